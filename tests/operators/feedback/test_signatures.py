"""The MNS buffer against a dict: words that collide, wrap around the table, repeat, leave and come again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.feedback import signatures
from operators.feedback.signatures import Signatures
from operators.kernels.hashing import U64
from operators.kernels.signatures import VACANT, enter_greatest, take_value
from schemas.columns import I64
from tests.profiles import PROPERTY

WORD = st.sampled_from([0, 1, 2, 7, 8, 9, 15, 16, 23, 2**63, 2**64 - 1, 2**64 - 9])
"""In a table of 8 slots these share the first, second and last ones."""

EXPIRY = st.integers(0, 6)


def words(values: list[int]) -> U64:
    return np.array(values, np.uint64)


def times(values: list[int]) -> I64:
    return np.array(values, np.int64)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "FIRST_CAPACITY", 8)


@PROPERTY
@given(st.lists(st.tuples(st.sampled_from(["add", "remove"]), st.lists(st.tuples(WORD, EXPIRY))), max_size=12))
def test_it_is_a_dict_that_keeps_the_later_expiry(steps: list[tuple[str, list[tuple[int, int]]]]) -> None:
    """After any steps it holds what a dict holds, with the same expiry: it dies at the same purge."""
    buffer, model = Signatures(), {}
    for step, pairs in steps:
        hashes, expiry = words([w for w, _ in pairs]), times([e for _, e in pairs])
        if step == "remove":
            buffer.remove(hashes)
            model = {w: e for w, e in model.items() if w not in hashes}
        else:
            buffer.add(hashes, expiry)
            for w, e in pairs:
                model[w] = max(model.get(w, -1), e)
        everything = words([*range(30), 2**63, 2**64 - 1, 2**64 - 9])
        assert len(buffer) == len(model)
        assert buffer.contains(everything).tolist() == [int(w) in model for w in everything]
        assert buffer.hit(np.concatenate([everything[::-1], everything])).tolist() == sorted(model)
    for now in range(8):
        buffer.contains(words(list(range(50))))  # pays for a sweep
        buffer.purge(now)
        assert buffer.hit(everything_of(model)).tolist() == sorted(w for w, e in model.items() if e >= now)


def everything_of(model: dict[int, int]) -> U64:
    """All words that the model has ever had a value for, in any order."""
    return words(list(model))


def test_taking_out_moves_up_what_was_pushed_behind() -> None:
    """Words by home slot in a table of 4: 3 3 0 1, pushed to 3 0 1 2; without the first, all move back by one."""
    keys, values = np.zeros(4, np.uint64), np.full(4, VACANT)
    enter_greatest(words([3, 7, 4]), times([1, 2, 3]), keys, values)
    assert (keys[[3, 0, 1]].tolist(), values.tolist()) == ([3, 7, 4], [2, 3, VACANT, 1])
    assert take_value(words([11])[0], keys, values) == VACANT, "not there"
    assert take_value(words([3])[0], keys, values) == 1
    assert (keys[[3, 0]].tolist(), values.tolist()) == ([7, 4], [3, VACANT, VACANT, 2])


def test_what_stands_at_home_stays() -> None:
    """Taking out 3 must not move 0 away from its home, nor 4 before it."""
    keys, values = np.zeros(8, np.uint64), np.full(8, VACANT)
    enter_greatest(words([7, 0, 8]), times([1, 2, 3]), keys, values)
    assert take_value(words([7])[0], keys, values) == 1
    assert (keys[:2].tolist(), values[:2].tolist(), values[7]) == ([0, 8], [2, 3], VACANT)


def test_sweeps_are_paid_for() -> None:
    """With many entries and little done, a purge does nothing; entries stay, which harms nobody."""
    buffer = Signatures()
    buffer.add(words(list(range(100))), times([5] * 50 + [9] * 50))
    buffer.purge(0)
    buffer.purge(6)
    assert len(buffer) == 100, "swept just before"
    buffer.contains(words([1] * 99))
    buffer.purge(6)
    assert len(buffer) == 100
    buffer.add(words([0]), times([7]))
    buffer.purge(6)
    assert len(buffer) == 51
    assert buffer.hit(words([0, 1, 49, 50, 99])).tolist() == [0, 50, 99]


def test_memory_follows_the_entries() -> None:
    """Up by doubling, at most two thirds full; down when what was there has gone."""
    buffer = Signatures()
    least = buffer.size_bytes()
    assert least == 0
    for k in range(1000):
        buffer.add(words([k * 8]), times([k]))
        assert buffer.size_bytes() >= 1.5 * 16 * len(buffer)
    assert buffer.size_bytes() <= 4 * 16 * 1000
    buffer.remove(words([k * 8 for k in range(990)]))
    buffer.purge(0)
    assert len(buffer) == 10
    assert buffer.size_bytes() <= 4 * 16 * 10
    buffer.remove(words([k * 8 for k in range(1000)]))
    buffer.purge(0)
    assert (len(buffer), buffer.size_bytes()) == (0, least)
