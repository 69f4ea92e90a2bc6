"""Hashes of values: a bijection for words, equality for strings, one word for equal numbers of any type."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from operators.data.keys import column_words, is_exact, key_hashes
from operators.kernels.hashing import U64, combine_words, double_words, mix_words, string_words
from schemas.columns import Column
from schemas.query import Type

LEAST, MOST = -(2**63), 2**63 - 1
M64 = 2**64 - 1


def unmixed(word: int) -> int:
    """The inverse of MurmurHash3's finaliser: odd factors have inverses, `x ^ x >> 33` is its own."""
    word ^= word >> 33
    word = word * pow(0xC4CEB9FE1A85EC53, -1, 2**64) & M64
    word ^= word >> 33
    word = word * pow(0xFF51AFD7ED558CCD, -1, 2**64) & M64
    return word ^ (word >> 33)


def strings(*texts: str) -> list[int]:
    column = Column.from_values(list(texts), Type.STRING)
    assert column.offsets is not None
    return string_words(column.offsets, column.values).tolist()


def test_mix_is_a_bijection() -> None:
    """Every word can be had back, so equal hashes prove equal words."""
    words = [0, 1, 2, 2**31, 2**32, 2**33, 2**63, M64, *np.random.default_rng(3).integers(0, MOST, 1000)]
    mixed = mix_words(np.array([int(w) for w in words], np.uint64))
    assert [unmixed(int(w)) for w in mixed] == [int(w) for w in words]


def test_combine_depends_on_the_order_of_components() -> None:
    """(a, b) is not (b, a), and neither part is lost."""
    a, b = np.array([1, 1, 2, 2], np.uint64), np.array([1, 2, 1, 2], np.uint64)
    assert len(set(combine_words(a, b).tolist())) == 4


def test_strings_hash_by_content_not_by_place() -> None:
    """The same bytes give the same word wherever they lie in the buffer."""
    words = ["", "a", "ab", "1234567", "12345678", "123456789", "1234567812345678", "äöü"]
    alone = [strings(word)[0] for word in words]
    assert strings(*words) == alone
    shifted = Column.from_values(["xyz", *words], Type.STRING).slice(1, 1 + len(words))
    assert shifted.offsets is not None
    assert string_words(shifted.offsets, shifted.values).tolist() == alone
    assert len(set(alone)) == len(words)


def test_strings_that_differ_little_differ() -> None:
    """Every byte, its place, the length and trailing zeros count."""
    text = "abcdefghijklmnopqrst"
    near = [text, *(text[:i] + "~" + text[i + 1 :] for i in range(len(text)))]
    near += [text[:i] + text[i + 1] + text[i] + text[i + 2 :] for i in range(len(text) - 1)]
    near += [text[:i] for i in range(len(text))]
    near += ["\0" * i for i in range(1, 20)]
    assert len(set(strings(*near))) == len(near)


@pytest.mark.parametrize(
    ("real", "whole"),
    [
        (0.0, 0),
        (-0.0, 0),
        (1.0, 1),
        (-1.0, -1),
        (2.0**53, 2**53),
        (float(LEAST), LEAST),
        (float(2**62), 2**62),
        (9223372036854774784.0, 9223372036854774784),
    ],
)
def test_a_whole_double_has_the_word_of_its_bigint(real: float, whole: int) -> None:
    """So that 1.0 meets 1."""
    assert double_words(np.array([real])).tolist() == np.array([whole], np.int64).view(np.uint64).tolist()


def test_other_doubles_have_words_of_their_own() -> None:
    """Fractions, those beyond int64, infinities: distinct, and not those of small integers."""
    values = [0.5, -0.5, 1e-300, 1.5, 2.0**63, -(2.0**64), 1e300, float("inf"), float("-inf"), float("nan")]
    words = double_words(np.array(values)).tolist()
    assert len(set(words)) == len(values)
    assert not set(words) & {i & M64 for i in range(-1000, 1000)}


def test_equal_values_have_equal_words_across_types() -> None:
    """What compares equal is hashed equal."""
    assert column_words(Column.from_values([3, -4], Type.BIGINT)).tolist() == [3, 2**64 - 4]
    assert column_words(Column.from_values([3.0, -4.0], Type.DOUBLE)).tolist() == [3, 2**64 - 4]
    assert column_words(Column.from_values([3], Type.TIMESTAMP)).tolist() == [3]
    assert column_words(Column.from_values([False, True], Type.BOOLEAN)).tolist() == [0, 1]
    assert column_words(Column.from_values(["a"], Type.STRING)).tolist() == strings("a")


def test_a_null_in_any_component_is_told() -> None:
    """The mask is of all components together."""
    whole = Column.from_values([1, None, 3, 4], Type.BIGINT)
    text = Column.from_values(["a", "b", None, "d"], Type.STRING)
    full = Column.from_values([1, 2, 3, 4], Type.BIGINT)
    for components in ([whole, text], [text, full, whole]):
        _, valid = key_hashes(components)
        assert valid is not None
        assert valid.tolist() == [True, False, False, True]
    assert key_hashes([full, full])[1] is None
    valid = key_hashes([full, whole])[1]
    assert valid is not None
    assert valid.tolist() == [True, False, True, True]


def test_keys_differ_by_component_and_place() -> None:
    """(1, 2), (2, 1), (1), (2)."""
    one, two = Column.from_values([1, 2], Type.BIGINT), Column.from_values([2, 1], Type.BIGINT)
    hashes = [*key_hashes([one, two])[0].tolist(), *key_hashes([one])[0].tolist()]
    assert len(set(hashes)) == 4


def test_what_proves_equality() -> None:
    """One component of whole numbers on both sides; nothing else."""
    whole = (Type.BIGINT, Type.TIMESTAMP)
    assert is_exact([whole])
    assert is_exact([(Type.BOOLEAN, Type.BOOLEAN)])
    assert not is_exact([whole, whole])
    assert not is_exact([(Type.BIGINT, Type.DOUBLE)])
    assert not is_exact([(Type.DOUBLE, Type.BIGINT)])
    assert not is_exact([(Type.STRING, Type.STRING)])


def test_low_and_high_bits_are_spread() -> None:
    """Buckets are low bits, partition groups are high bits: both even for consecutive keys."""
    mixed: U64 = mix_words(np.arange(64_000, dtype=np.uint64))
    for groups in (mixed & np.uint64(63), mixed >> np.uint64(58)):
        counts = np.bincount(groups.astype(np.int64), minlength=64)
        assert counts.min() > 800
        assert counts.max() < 1200
    assert all(a != b for a, b in pairwise(mixed.tolist()))
