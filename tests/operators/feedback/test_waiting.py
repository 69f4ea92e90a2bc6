"""Tuples that wait unseen: in order, until they die, and in no more memory than they need."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.data.tuples import Tuples
from operators.feedback import waiting
from operators.feedback.waiting import WaitingTuples
from tests.profiles import PROPERTY


def tuples(rows: list[int], life: int = 10) -> Tuples:
    """Tuples whose row is their ts."""
    ts = np.array(rows, np.int64)
    return Tuples(("A",), ts[np.newaxis].copy(), ts, ts + life)


@PROPERTY
@given(st.lists(st.lists(st.integers(0, 40), max_size=5), max_size=8), st.integers(0, 60), st.integers(0, 40))
def test_what_lives_comes_out_in_order(parts: list[list[int]], now: int, first_row: int) -> None:
    """Whatever was purged before, and however small the parts; all others have died, and each is counted once."""
    for least in (1, 4, 256):
        held = WaitingTuples("A")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(waiting, "MIN_PART_TUPLES", least)
            for part in parts:
                held.put(tuples(sorted(part)))
        given_in = sorted(row for part in parts for row in part)
        assert len(held) == len(given_in)
        held.purge_rows(first_row)
        held.purge(now)
        living = [row for row in given_in if row + 10 >= now and row >= first_row]
        assert len(held) + held.died == len(given_in)
        assert len(held) >= len(living)
        out = held.take_all(now)
        assert out.rows[0].tolist() == out.ts.tolist() == living
        assert (len(held), held.died, held.size_bytes()) == (0, len(given_in) - len(living), 0)


def test_the_dead_leave_with_their_part() -> None:
    held = WaitingTuples("A")
    for begin in (0, 300, 600):
        held.put(tuples(list(range(begin, begin + 300))))
    full = held.size_bytes()
    assert full == 900 * 24
    held.purge(309)
    assert (len(held), held.died) == (900, 0), "the last of the first part lives still"
    held.purge(310)
    assert (len(held), held.died, held.size_bytes()) == (600, 300, full * 2 // 3)
    held.purge_rows(900)
    held.purge(310)
    assert (len(held), held.died) == (0, 900)


def test_small_parts_are_put_together() -> None:
    """One tuple per slice does not make one part per tuple."""
    held = WaitingTuples("A")
    for row in range(1000):
        held.put(tuples([row], life=10_000))
    assert len(held._parts) <= 4
    assert held.take_all(0).ts.tolist() == list(range(1000))
