"""The Bloom filter: never wrong about what it holds, seldom about the rest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.feedback.bloom import BITS_PER_ENTRY, MIN_EXPECTED, Bloom
from operators.kernels.bloom import has_bits, set_bits
from operators.kernels.hashing import U64, mix_words
from tests.profiles import PROPERTY


def hashes(begin: int, end: int) -> U64:
    return mix_words(np.arange(begin, end, dtype=np.uint64))


@PROPERTY
@given(st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=40), max_size=5), st.sampled_from([1, 2, 8]))
def test_what_was_added_is_contained(parts: list[list[int]], size: int) -> None:
    """Any hashes, in a filter of any size, however full."""
    blocks = np.zeros(size, np.uint64)
    for part in parts:
        set_bits(np.array(part, np.uint64), blocks)
    assert has_bits(np.array([h for part in parts for h in part], np.uint64), blocks).all()


def test_an_empty_filter_contains_nothing() -> None:
    """Demand-driven execution is this alone: nothing is observed, nothing is demanded."""
    assert not Bloom().contains(hashes(0, 1000)).any()
    assert Bloom().contains(hashes(0, 0)).tolist() == []


@pytest.mark.parametrize("expected", [1, MIN_EXPECTED, MIN_EXPECTED + 1, 50_000])
def test_it_is_seldom_wrong_until_it_is_full(expected: int) -> None:
    """Sized for at least what is asked, with the bits per entry that are promised."""
    bloom = Bloom(expected)
    assert max(expected, MIN_EXPECTED) <= bloom.expected < 2 * max(expected, MIN_EXPECTED)
    assert bloom.size_bytes() == 0, "of a guard that rests"
    bloom.add(hashes(0, bloom.expected))
    assert bloom.size_bytes() * 8 == bloom.expected * BITS_PER_ENTRY
    assert bloom.contains(hashes(0, bloom.expected)).all()
    assert not bloom.full
    wrong = bloom.contains(hashes(10**6, 10**6 + 20_000)).mean()
    assert wrong < 0.01
    bloom.add(hashes(0, 1))
    assert bloom.full, "repetitions count: it cannot tell"


def test_all_of_a_hash_counts() -> None:
    """Of 24 + 8 bits that a filter of 256 blocks looks at, each can tell two hashes apart."""
    blocks = np.zeros(256, np.uint64)
    set_bits(np.array([0], np.uint64), blocks)
    for bit in range(32):
        assert not has_bits(np.array([1 << bit], np.uint64), blocks).any(), bit
