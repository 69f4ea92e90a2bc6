"""Tuples in flight: selection, reordering, merging, and the layout that kernels are compiled for."""

from __future__ import annotations

import numpy as np

from operators.data.tuples import FOREVER, Tuples
from operators.state.side_state import Scratch, SideState


def pairs(*items: tuple[int, int, int]) -> Tuples:
    """Tuples over aliases A, B from (row of A, row of B, ts), each with a lifetime of 10 ms."""
    array = np.array(items, np.int64).reshape(-1, 3)
    ts = array[:, 2].copy()
    return Tuples(("A", "B"), np.ascontiguousarray(array[:, :2].T), ts, ts + 10)


def listed(tuples: Tuples) -> list[tuple[int, ...]]:
    return [
        (*row, ts, expiry)
        for *row, ts, expiry in zip(*tuples.rows.tolist(), tuples.ts.tolist(), tuples.expiry.tolist(), strict=True)
    ]


def test_take_by_position_and_by_mask() -> None:
    """The same tuples either way."""
    some = pairs((1, 7, 3), (2, 8, 4), (3, 9, 5))
    assert listed(some.take(np.array([0, 2]))) == [(1, 7, 3, 13), (3, 9, 5, 15)]
    assert listed(some.take(np.array([True, False, True]))) == [(1, 7, 3, 13), (3, 9, 5, 15)]
    assert listed(some.take(np.zeros(3, np.bool_))) == []


def test_copies_are_laid_out_by_rows() -> None:
    """Regression: `rows[:, index]` makes a column-major copy. Every kernel was then compiled once more for each mix of
    layouts, some seconds into a run."""
    some = pairs((1, 7, 3), (2, 8, 4), (3, 9, 5))
    assert some.take(np.array([0, 2])).rows.flags.c_contiguous
    assert some.take(np.array([True, False, True])).rows.flags.c_contiguous
    state = SideState(("A", "B"), FOREVER, hashed=False)
    state.insert(some, None)
    assert state.gather(np.array([0, 2]))[0].flags.c_contiguous
    combined = state.combine(some, np.array([2, 2]), np.array([0, 1]), probe_first=True)
    assert combined[0].flags.c_contiguous
    assert Scratch().entries.flags.c_contiguous


def test_reorder_moves_rows() -> None:
    """Only the order of the components changes."""
    some = pairs((1, 7, 3), (2, 8, 4))
    assert some.reorder(("A", "B")) is some
    assert listed(some.reorder(("B", "A"))) == [(7, 1, 3, 13), (8, 2, 4, 14)]
    three = Tuples(("A", "B", "C"), np.array([[1], [2], [3]]), some.ts[:1], some.expiry[:1])
    assert listed(three.reorder(("C", "A", "B"))) == [(3, 1, 2, 3, 13)]


def test_merge_keeps_ts_order_and_the_first_runs_ties_first() -> None:
    """Two ascending runs become one."""
    one = pairs((1, 0, 3), (2, 0, 5), (3, 0, 5))
    two = pairs((4, 0, 1), (5, 0, 3), (6, 0, 5), (7, 0, 9))
    assert [row[0] for row in listed(Tuples.merge(one, two))] == [4, 1, 5, 2, 3, 6, 7]
    assert [row[0] for row in listed(Tuples.merge(two, one))] == [4, 5, 1, 6, 2, 3, 7]
    nothing = Tuples.empty(("A", "B"))
    assert Tuples.merge(one, nothing) is one
    assert Tuples.merge(nothing, one) is one
    assert len(Tuples.merge(nothing, nothing)) == 0


def test_concat() -> None:
    """Parts one after the other."""
    one, two = pairs((1, 0, 3)), pairs((2, 0, 4))
    assert listed(Tuples.concat([one, two], one.aliases)) == [(1, 0, 3, 13), (2, 0, 4, 14)]
    assert Tuples.concat([one], one.aliases) is one
    assert len(Tuples.concat([], ("A", "B"))) == 0
