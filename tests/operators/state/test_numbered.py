"""ROWS windows over tuples that another operator has numbered: what has left them, and what may have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from operators.engine.engine import Engine
from operators.engine.numbered import SWEEP_TUPLES
from operators.feedback.blacklist import Blacklist
from operators.plan.plan import parse_plan
from operators.state import numbered
from operators.state.match import LEFT
from operators.state.numbered import NumberColumn, NumberedWindows
from schemas.columns import Batch
from tests.operators.inside import executor_of, sources_of
from tests.operators.tiny import numbers, query


def tuples(ts: Sequence[int], counted: Sequence[int]) -> Batch:
    """All of one key, with their numbers or horizons in the counted stream."""
    return numbers(np.array(ts, np.int64), v=np.array(counted, np.int64))


class Numbered:
    """A join of A and B; A has a component in a ROWS window over a stream s, by its column v. B has its horizons."""

    def __init__(self, rows: int, range_ms: int = 20) -> None:
        windows = f"a A [RANGE {range_ms} ms], b B [RANGE {range_ms} ms]"
        bound = query(f"SELECT A.v FROM {windows} WHERE A.k = B.k AND B.v - A.v < {rows}")
        columns = {"a": [NumberColumn("v", "s", rows)], "b": [NumberColumn("v", "s")]}
        self.engine = Engine(bound, plan=parse_plan("(A B)", bound), numbered=columns)
        ((_, self.join),) = executor_of(self.engine).joins
        self.kept = Blacklist(("A",))
        self.engine.kept_back = (self.kept,)

    def late(self, at: int, number: int) -> None:
        """Enter a tuple of A after its time, and keep another one back."""
        self.join.enter_late(LEFT, self.engine.store("a", tuples([at], [number]))["A"], self.engine.cut)
        self.kept.put(self.engine.store("a", tuples([at], [number]))["A"], np.ones(1, np.uint64), 0)


def test_late_tuples_that_have_left_the_store_are_dropped() -> None:
    """Those that RANGE has expired stay among the late tuples for as long as others come late, and so do those that are
    kept back. A search for tuples that are dead by their numbers looked for their rows before the beginning of the
    store, and failed."""
    run = Numbered(30)
    for step in range(30):
        at = 10 * step
        # The first will be dead with the next tuple that is counted.
        run.engine.push("a", 0, tuples([at, at], [step - 29, step]))
        run.engine.push("b", 0, tuples([at], [step]))
        run.engine.advance(at + 5)
        run.late(at, step)
    store, state = sources_of(run.engine).stores["a"], run.join.states[LEFT]
    assert (len(state.older), len(run.kept)) == (30, 30)
    assert state.older.tuples().rows[0].min() < store.lo - len(store), "the case at hand"
    run.engine.push("b", 0, tuples([300] * SWEEP_TUPLES, [30] * SWEEP_TUPLES))
    run.engine.advance(301)
    assert state.older.tuples().ts.tolist() == [280, 290]
    assert run.kept.living(0)[1].ts.tolist() == [280, 290]


def test_a_late_tuple_is_needed_until_it_is_dead() -> None:
    """When the newest tuple before a time is dead, a late tuple of that time may be alive."""
    run = Numbered(40, range_ms=10_000)
    run.engine.push("a", 0, tuples([100], [5]))
    run.engine.push("b", 0, tuples([2000, 2010], [100, 101]))
    run.engine.advance(900)
    run.engine.advance(1999)
    run.late(900, 61)
    run.engine.advance(2001)
    assert run.engine.horizon("a") == 900, "61 is alive"
    run.engine.advance(2011)
    assert run.engine.horizon("a") == 1999, "61 is dead"


def test_a_tuple_ahead_of_its_time_counts_from_then_on() -> None:
    """It says nothing of the horizons before."""
    windows = NumberedWindows({"a": [NumberColumn("v", "s", 40)]})
    windows.note({"a": tuples([0], [5])}, 500)
    windows.note_late("a", tuples([1500, 900, 700], [62, 61, 60]))
    windows.note_late("a", tuples([800], [60]))
    found = []
    for cut in (600, 701, 900, 901, 1600):
        windows.note({}, cut)
        found.append(windows.reached(cut))
    assert [reached["s"] for reached in found if reached is not None] == [5, 60, 60, 61, 62]
    windows.note({"a": tuples([1600], [101])}, 1700)
    windows.note({}, 1800)
    assert windows.horizon("a", 1800) == 901, "61 is dead by 101, and 62 is not"


def test_the_history_stays_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a join had a long and a short window, its history had an entry per slice of the long one. What is dead is
    still known to a fraction of each window, and nothing that is alive is taken for dead."""
    monkeypatch.setattr(numbered, "STEPS", 32)
    rows, few, each = 500, 50, 7
    columns = {"a": [NumberColumn("v", "s", rows)], "b": [NumberColumn("v", "t", few), NumberColumn("k", "u")]}
    windows, needed_from, lengths = NumberedWindows(columns), 0, []
    for step in range(2500):
        at = 10 * step
        batch = numbers(np.full(each, at), v=np.arange(each) + each * step, k=np.full(each, step))
        windows.note({"a": tuples([at], [step]), "b": batch}, at + 10)
        # Now and then something is needed for longer.
        needed_from = max(needed_from, at + 10 if step % 800 < 400 else 0)
        windows.forget(needed_from)
        lengths.append(len(windows._history))
        if step < 2 * rows:
            continue
        newest = needed_from // 10 - 1
        for stream, size, per_slice in (("a", rows, 1), ("b", few, each)):
            dead = per_slice * (newest + 1) - 1 - size
            fraction = (size + per_slice * (step - newest)) // 8
            horizon = windows.horizon(stream, needed_from)
            assert 10 * ((dead - fraction) // per_slice) <= horizon <= 10 * ((dead + 1) // per_slice)
        known = np.arange(newest - rows, step - rows + 1, 50)
        expired = windows.expiry(columns["a"][0], known)
        assert (10 * (known + rows) <= expired).all()
        assert (expired <= 10 * (known + rows + rows // 8)).all()
    assert max(lengths) <= 2 * 4 * 32


def test_streams_that_are_counted_for_others_are_not_noted() -> None:
    """Nothing is purged here by the numbers of s."""
    windows = NumberedWindows({"b": [NumberColumn("v", "s"), NumberColumn("k", "t", 1000)]})
    for at in range(100):
        windows.note({"b": tuples([at], [at])}, at + 1)
        windows.forget(at + 1)
    assert len(windows._history) == 2
