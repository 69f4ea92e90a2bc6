"""Keys of an incomplete state: claimed while they are counted, a piece at a time; and the table that they are in."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.data.tuples import FOREVER, Tuples
from operators.kernels.marks import add_marks, new_table, read_marks, with_room
from operators.migration.jisc.counting import KeyCount
from operators.state.side_state import SideState
from schemas.columns import I64, Mask
from tests.profiles import PROPERTY

HASHES = st.lists(st.sampled_from([0, 1, 2, 3, 8, 16, 2**63, 2**64 - 1, 5 << 60, 6 << 60]) | st.integers(0, 2**64 - 1))


def hashes(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """As keys come."""
    return np.array(values, np.uint64)


@PROPERTY
@given(st.lists(st.tuples(HASHES, st.sampled_from([1, 2, 4])), max_size=8), HASHES, st.integers(0, 3))
def test_a_table_is_a_dictionary_of_marks(steps: list[tuple[list[int], int]], others: list[int], room: int) -> None:
    known: dict[int, int] = {}
    table = new_table(room)
    for keys, mark in steps:
        table = with_room(table, len(keys))
        new = add_marks(hashes(keys), mark, table)
        for key, first in zip(keys, new.tolist(), strict=True):
            assert first == (known.get(key, 0) & mark == 0)
            known[key] = known.get(key, 0) | mark
        asked = [*known, *others]
        assert read_marks(hashes(asked), table).tolist() == [known.get(key, 0) for key in asked]
        count, buckets, power = table[-1].tolist()
        assert count == len(known)
        assert buckets == max(count, 1), "so that chains stay short"
        assert power <= buckets < 2 * power


def test_a_table_without_room_is_left_alone() -> None:
    """A kernel that wrote beyond its arrays would destroy what lies there."""
    table = new_table(2)
    add_marks(hashes([1, 2, 1]), 1, table)
    with pytest.raises(IndexError, match="no room"):
        add_marks(hashes([2, 3]), 1, table)
    assert with_room(table, 0) is table
    assert add_marks(hashes([3]), 1, with_room(table, 1)).tolist() == [True]


def held(keys: list[int], *, life: int = 1000) -> SideState:
    """A state with an entry per key, of 0, 1, 2 and so on."""
    state = SideState(("A",), life, hashed=True)
    n = len(keys)
    ts: I64 = np.arange(n, dtype=np.int64)
    state.insert(Tuples(("A",), np.arange(n, dtype=np.int64)[np.newaxis], ts, ts + life), hashes(keys))
    return state


def all_possible(keys: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> Mask:
    return np.ones(len(keys), np.bool_)


NONE = hashes([])


def claimed(
    count: KeyCount, keys: list[int], possible: Callable[[np.ndarray[tuple[int], np.dtype[np.uint64]]], Mask]
) -> list[int]:
    """What comes of asking for keys."""
    return count.claim(count.sift(hashes(keys), possible), possible).tolist()


def test_a_piece_at_a_time_newest_first() -> None:
    count = KeyCount(held([1, 2, 2, 1, 3, 3]), 5, all_possible, NONE)
    assert count.progress() == (0, 0)
    assert count.count(2) == 2, "entries of 3 and 4: the last one is no old tuple"
    assert count.progress() == (0, 0), "not known yet"
    assert count.count(2) == 2
    assert not count.ended
    assert count.count(9) == 1
    assert count.progress() == (0, 3)
    assert count.count(9) == 0


def test_what_is_claimed_before_it_is_counted_counts_once() -> None:
    def possible(keys: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> Mask:
        return np.asarray(keys != 9)

    count = KeyCount(held([1, 2, 2, 1, 3]), FOREVER, possible, NONE)
    assert claimed(count, [2, 9, 2], possible) == [2], "there is nothing under 9"
    count.count(2)
    assert claimed(count, [3, 2], possible) == [3], "counted; attempted"
    assert not count.exhausted
    count.count(9)
    assert count.progress() == (2, 3)
    assert not count.exhausted
    assert claimed(count, [1, 1], possible) == [1]
    assert count.exhausted
    assert count.progress() == (3, 3)
    assert sorted(count.attempted().tolist()) == [1, 2, 3]


def test_when_all_are_counted_no_other_can_be_claimed() -> None:
    """Without asking anybody: an endless stream of keys that no old tuple has takes no room."""
    asked: list[int] = []

    def possible(keys: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> Mask:
        asked.extend(keys.tolist())
        return all_possible(keys)

    count = KeyCount(held([1, 2]), FOREVER, possible, NONE)
    count.count(2)
    asked.clear()
    assert claimed(count, [7, 8, 1, 7, 1], possible) == [1]
    assert asked == []


def test_an_earlier_transition_has_completed_some() -> None:
    count = KeyCount(held([1, 2, 3]), FOREVER, all_possible, hashes([2, 5]))
    assert claimed(count, [2], all_possible) == []
    count.count(9)
    assert count.progress() == (1, 3)
    assert claimed(count, [1, 2, 3, 5], all_possible) == [1, 3]
    assert count.exhausted


def test_only_what_is_possible_is_counted() -> None:
    count = KeyCount(held([1, 2, 3]), FOREVER, lambda keys: keys != 2, NONE)
    count.count(9)
    assert count.progress() == (0, 2)


@pytest.mark.parametrize("kept", [[0, 1, 2, 4, 6], [0, 3, 5, 7], [6, 7]])
def test_a_ring_that_is_compacted_meanwhile_loses_no_key(kept: list[int]) -> None:
    """Entries move downwards: each that is left and was not looked at is looked at, whatever its number."""
    state = held([10, 11, 12, 13, 14, 15, 16, 17])
    count = KeyCount(state, FOREVER, all_possible, NONE)
    count.count(3)
    mask = np.zeros(8, np.bool_)
    mask[kept] = True
    state.keep(mask)
    count.count(9)
    found = {15, 16, 17} | {10 + k for k in kept}
    assert count.progress() == (0, len(found))
    assert claimed(count, list(range(10, 18)), all_possible) == sorted(found)


def test_what_has_left_its_window_need_not_be_counted() -> None:
    state = held([1, 2, 3, 4], life=10)
    count = KeyCount(state, FOREVER, all_possible, NONE)
    count.count(1)
    state.purge(12)
    count.count(9)
    assert count.progress() == (0, 2), "entries of 2 and 3"


def test_what_was_computed_of_a_complete_state_is_counted_too() -> None:
    state = held([1, 2, 3])
    state.older = held([2, 5])
    count = KeyCount(state, 2, all_possible, NONE)
    assert count.count(1) == 1
    assert count.count(2) == 2, "one of either"
    assert count.progress() == (0, 0)
    assert count.count(2) == 1
    assert count.progress() == (0, 3), "3 came later"


def test_what_another_has_counted_is_all_that_there_can_be() -> None:
    """3 was attempted there without being counted, so it is not there; 5 is in this state alone."""
    other = KeyCount(held([1, 2, 4]), FOREVER, all_possible, hashes([3]))
    other.count(9)
    count = KeyCount(held([1, 2, 3, 4, 5]), FOREVER, lambda keys: keys != 4, NONE)
    count.within(other)
    assert count.count(2) == 2
    assert not count.ended
    assert count.count(9) == 2
    assert count.progress() == (0, 2)
    assert other.known(hashes([1, 2, 3, 4, 5]))[0].tolist() == [True, True, False, True, False]


def test_keys_may_be_more_than_the_tuples_that_are_left() -> None:
    """What another has counted may have died since; and a key may be possible that no tuple has."""
    other = KeyCount(held([1, 2, 4]), FOREVER, all_possible, NONE)
    other.count(9)
    count = KeyCount(held([4]), FOREVER, all_possible, NONE)
    count.within(other)
    assert count.count(9) == 3
    assert count.progress() == (0, 3)
    assert claimed(count, [1, 2, 4, 9], all_possible) == [1, 2, 4]
    alone = KeyCount(held([4]), FOREVER, all_possible, NONE)
    assert claimed(alone, [1, 2, 9], all_possible) == [1, 2, 9]
    assert alone.attempted().tolist() == [1, 2, 9]


def test_what_was_claimed_can_be_there() -> None:
    """Before the count has ended, of what was asked for; what an earlier transition attempted it cannot tell."""
    count = KeyCount(held([1, 2, 3, 4]), FOREVER, all_possible, hashes([3, 5]))
    assert claimed(count, [2, 9], lambda keys: keys != 9) == [2]
    count.count(1)
    known, unsure = count.known(hashes([2, 3, 4, 5, 9]))
    assert known.tolist() == [True, False, True, False, False]
    assert unsure.tolist() == [1, 3]
    count.count(9)
    known, unsure = count.known(hashes([1, 2, 3, 4, 5, 9]))
    assert known.tolist() == [True, True, True, True, False, False]
    assert unsure.tolist() == []


def test_what_is_left_when_some_were_claimed() -> None:
    count = KeyCount(held([4, 3, 2, 1]), FOREVER, all_possible, NONE)
    assert claimed(count, [2, 8], lambda keys: keys != 8) == [2]
    count.count(9)
    assert count.left == 3
    assert count.rest().tolist() == [1, 3, 4]
    assert claimed(count, [3], all_possible) == [3]
    assert count.left == 2
    assert count.rest().tolist() == [1, 4]
