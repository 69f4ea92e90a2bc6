"""Timelines of a few tuples, in which one thing that spilling must keep in mind decides about one result.

All tuples have one key and every join one partition group, so everything in reach of each other's windows meets. A test
says which joins' groups leave memory and when; what comes out must be what an engine with all in memory says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from operators.data.statistics import SpillStatistics
from operators.engine.engine import Engine
from operators.plan.plan import parse_plan
from operators.spill import plan_spilling as spills
from operators.spill.spilling import Budget
from operators.spill.strategies import STRATEGIES, Candidates
from schemas.codecs.blocks import decode_block
from schemas.columns import I64
from schemas.language.program import parse_program
from tests.feeding import to_batch, to_rows
from tests.operators.spill.memory_blocks import MemoryBlocks


class Timeline:
    """An engine whose spills a test decides on, beside one that has all in memory.

    Args:
        windows: per alias the stream and the RANGE in ms, or the window as it is written; joined by equality in this
            order.
        leaving: the joins, children before parents, whose groups leave at the end of the next moment.
        due_rows: see `Budget`.
        chosen: an alias of which tuples without a key are refused.
    """

    def __init__(
        self, leaving: set[int], plan: str, *, due_rows: int = 1000, chosen: str = "", **windows: tuple[str, int | str]
    ) -> None:
        declared = "\n".join(
            f"CREATE STREAM {name} (k BIGINT, id STRING, at TIMESTAMP) WITH (topic = '{name}', timestamp = 'at');"
            for name in sorted({stream for stream, _ in windows.values()})
        )
        select = ", ".join(f"{alias}.id AS {alias}" for alias in windows)
        sources = ", ".join(
            f"{stream} {alias} [{f'RANGE {window} MILLISECONDS' if isinstance(window, int) else window}]"
            for alias, (stream, window) in windows.items()
        )
        equal = " AND ".join(f"{one}.k = {other}.k" for one, other in zip(windows, list(windows)[1:], strict=False))
        equal += f" AND {chosen}.k IS NOT NULL" if chosen else ""
        self._leaving = leaving
        self.query = parse_program(f"{declared}\nSELECT {select} FROM {sources} WHERE {equal};").queries[0]
        self.blocks = MemoryBlocks()
        options: dict[str, Any] = {"budget": Budget(0, "told", groups=1, due_rows=due_rows), "blocks": self.blocks}
        self._spilling, self._whole = (
            Engine(self.query, plan=parse_plan(plan, self.query), **kind) for kind in (options, {})
        )
        self._spilling.durable = True
        self._found: list[dict[str, Any]] = []
        self._wanted: list[dict[str, Any]] = []

    def at(self, ts: int, streams: str = "", leave: int | None = None, k: int | None = 1) -> None:
        """A tuple of each of the streams comes at `ts`, and when that has passed a join's group leaves."""
        self._leaving |= set() if leave is None else {leave}
        for name in streams:
            stream = next(stream for stream in self.query.streams() if stream.name == name)
            for task in (self._spilling, self._whole):
                task.push(name, 0, to_batch(stream, [{"k": k, "id": f"{name}{ts}", "at": ts}]))
        self._found += to_rows(self._spilling.advance(ts + 1))
        self._wanted += to_rows(self._whole.advance(ts + 1))
        self._leaving.clear()

    def clean(self, most: int) -> bool:
        """So many groups are cleaned up, in spare time."""
        return self._spilling.clean(most)

    def migrate(self, plan: str, strategy: str, cut: int) -> None:
        """Both change to the plan."""
        for task in (self._spilling, self._whole):
            task.migrate(parse_plan(plan, self.query), strategy, cut)

    def saved(self, stream: str) -> list[tuple[int, str]]:
        """Number and id of the stream's tuples that are new since the last snapshot."""
        blocks = [block for block in self._spilling.checkpoint().blocks if block.stream == stream]
        return [
            one for block in blocks for one in enumerate(block.batch.columns["id"].to_values(), start=block.first_row)
        ]

    @property
    def spill(self) -> SpillStatistics:
        """What the engine says of its spills."""
        found = self._spilling.statistics().spill
        assert found is not None
        return found

    def blocks_tuples(self) -> int:
        """Tuples in blocks."""
        return sum(len(decode_block(raw, key).batch) for key, raw in self.blocks.held.items())

    def check(self, *, owed: int) -> None:
        """All results are there, so many of them since the run by cleanups."""
        self._found += [row for batch in self._spilling.cleaned() for row in to_rows(batch)]
        while_running = len(self._found)
        for task, into in ((self._spilling, self._found), (self._whole, self._wanted)):
            for stream in self.query.streams():
                task.close(stream.name, 0)
            into += to_rows(task.advance())
        self._spilling.clean()
        self._found += [row for batch in self._spilling.cleaned() for row in to_rows(batch)]
        assert Counter(map(repr, self._found)) == Counter(map(repr, self._wanted))
        assert len(self._found) - while_running == owed
        assert self.blocks.held == {}


Make = Callable[..., Timeline]


@pytest.fixture
def timeline(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes timelines."""
    leaving: set[int] = set()

    def told(candidates: Candidates) -> I64:
        return np.flatnonzero(np.isin(candidates.joins, sorted(leaving)))

    monkeypatch.setitem(STRATEGIES, "told", told)
    return lambda plan, **options: Timeline(leaving, plan, **options)


def test_what_a_part_is_owed_by_the_dead_leaves_with_them(timeline: Make) -> None:
    """b0 c5 comes when a0 has left, and has died when it leaves itself."""
    run = timeline("(A (B C))", A=("a", 30), B=("b", 10), C=("c", 30))
    run.at(0, "ab", leave=1)
    run.at(5, "c")
    run.at(10, leave=1)
    assert run.spill.on_disk_tuples == 2
    run.check(owed=1)


def test_what_a_part_is_owed_by_the_dead_stays(timeline: Make) -> None:
    """The same, but it stays in memory."""
    run = timeline("(A (B C))", A=("a", 30), B=("b", 10), C=("c", 30))
    run.at(0, "ab", leave=1)
    run.at(5, "c")
    run.at(10)
    run.check(owed=1)


def test_what_a_join_below_owes_finds_the_dead(timeline: Make) -> None:
    """a0 b2 is found when c3, which it meets, has long been dead."""
    run = timeline("((A B) C)", A=("a", 100), B=("b", 100), C=("c", 5))
    run.at(0, "a", leave=0)
    run.at(2, "b")
    run.at(3, "c")
    run.at(20)
    run.check(owed=1)


@pytest.mark.parametrize(("b", "c"), [(8, 15), (8, 18), (2, 12)])
def test_late_results_go_to_disk_while_they_live(timeline: Make, b: int, c: int) -> None:
    """a0 and b are found by a cleanup before c comes, which they still meet; until then they take no memory."""
    run = timeline("((A B) C)", A=("a", 100), B=("b", 10), C=("c", 100))
    run.at(0, "a", leave=0)
    run.at(b, "b")
    run.at(11)
    assert run.spill.cleanups > 0
    assert run.spill.on_disk_tuples == run.blocks_tuples() == 2
    run.at(c, "c")
    run.check(owed=1)


def test_a_stream_of_two_aliases_is_read_back_once(timeline: Make) -> None:
    """Before a plan changes a0 is read back from the states of both its aliases."""
    run = timeline("((X Y) Z)", X=("a", 50), Y=("a", 50), Z=("b", 50))
    run.at(0, "a", leave=0)
    run.migrate("(X (Y Z))", "jisc", 5)
    run.at(6, "b")
    run.check(owed=0)


def test_what_a_migration_has_completed_keeps_its_source_tuples(timeline: Make) -> None:
    """b0 c1 is made by the migration after b6 c1, and a9 meets both when b0, c1 and b6 themselves have left."""
    run = timeline("((A B) C)", A=("a", 50), B=("b", 50), C=("c", 50))
    run.at(0, "b")
    run.at(1, "c")
    run.migrate("(A (B C))", "jisc", 5)
    run.at(6, "b")
    run.at(7, "a")
    run.at(8, leave=0)
    assert run.spill.on_disk_tuples == 3
    run.at(9, "a")
    run.check(owed=0)


def test_the_dead_hold_nothing(timeline: Make) -> None:
    """When c4 leaves, b0 c4 and its twin are dead but still in the state above; their source tuples are gone."""
    run = timeline("(A (B C))", A=("a", 50), B=("b", 5), C=("c", 50))
    run.at(0, "bb")
    run.at(4, "c")
    run.at(6, leave=0)
    run.at(7, "b")
    run.check(owed=0)


def test_what_is_owed_is_nothing_when_it_has_been_paid(timeline: Make) -> None:
    """Though a0 stays on disk, for what is to come."""
    run = timeline("(A B)", A=("a", 100), B=("b", 100))
    run.at(0, "a", leave=0)
    assert run.spill.owed == 0
    run.at(5, "b")
    assert run.spill.owed == 1
    assert run.clean(1)
    assert not run.clean(1), "there is time, and nothing to do"
    assert (run.spill.owed, run.spill.on_disk_tuples, run.spill.cleanup_results) == (0, 1, 1)
    run.at(7, "a")
    assert run.spill.owed == 0, "a7 and b5 have met in memory"
    run.at(8, "b")
    assert run.spill.owed == 1, "b8 and a0"
    run.check(owed=1)
    assert run.spill.owed == 0


def test_a_window_counts_on_when_its_tuples_have_left(timeline: Make) -> None:
    """a0 meets b2, but not b4: a3 is the second one after it. a1 meets both."""
    run = timeline("(A B)", A=("a", "ROWS 2"), B=("b", "UNBOUNDED"))
    run.at(0, "a")
    run.at(1, "a", leave=0)
    run.at(2, "b")
    run.at(3, "a")
    run.at(4, "b")
    run.check(owed=3)


def test_a_tuple_that_is_refused_counts(timeline: Make) -> None:
    """a1 is no result's, and yet a0 is dead when b2 comes."""
    run = timeline("(A B)", chosen="A", A=("a", "ROWS 1"), B=("b", "UNBOUNDED"))
    run.at(0, "a", leave=0)
    run.at(1, "a", k=None)
    run.at(2, "b")
    run.check(owed=0)


@pytest.mark.parametrize(("order", "owed"), [("AB", 0), ("BA", 1)])
def test_of_one_instant_streams_come_in_their_order(timeline: Make, order: str, owed: int) -> None:
    """b5 meets a0 if it comes before a5, as the FROM list says."""
    windows = {"A": ("a", "ROWS 1"), "B": ("b", 100)}
    run = timeline("(A B)", **{alias: windows[alias] for alias in order})
    run.at(0, "a", leave=0)
    run.at(5, "ab")
    run.check(owed=owed)


def test_aliases_of_one_stream_count_each_for_itself(timeline: Make) -> None:
    """When a2 comes a0 has left the window of X, not that of Y."""
    run = timeline("(X Y)", X=("a", "ROWS 1"), Y=("a", "ROWS 3"))
    run.at(0, "a")
    run.at(1, "a", leave=0)
    run.at(2, "a")
    run.check(owed=2)


def test_the_dead_of_joined_tuples_are_not_read(timeline: Make) -> None:
    """a0 b1 is still in the state above when a0 is gone: it holds nothing and does not leave."""
    run = timeline("((A B) C)", A=("a", "ROWS 1"), B=("b", "UNBOUNDED"), C=("c", "UNBOUNDED"))
    run.at(0, "a")
    run.at(1, "b")
    for ts in range(2, 9):
        run.at(ts, "a", k=ts)
    run.at(9, "b", k=8)
    run.at(10, leave=1)
    assert run.spill.on_disk_tuples == 1
    run.at(11, "c")
    run.at(12, "c", k=8)
    run.check(owed=1)


def test_what_was_dropped_after_a_spill_would_be_missed(timeline: Make) -> None:
    """a2 is dead when a3 has come, and is kept for b0, which has left and meets it."""
    run = timeline("(A B)", A=("a", "ROWS 1"), B=("b", "UNBOUNDED"))
    run.at(0, "b", leave=0)
    for ts in range(2, 7):
        run.at(ts, "a")
    run.check(owed=5)


def test_parts_are_due_when_a_window_has_gone_by(timeline: Make) -> None:
    """Cleanups come by themselves, what is dead then leaves the disk, and memory holds no more than before."""
    run = timeline("(A B)", due_rows=4, A=("a", "ROWS 2"), B=("b", "ROWS 3"))
    run.at(0, "ab", leave=0)
    for ts in range(1, 5):
        run.at(ts, "ab")
        assert run.spill.cleanups == 0
    run.at(5, "ab")
    run.at(6, "ab")
    assert run.spill.cleanups == 1
    assert run.spill.on_disk_tuples == run.blocks_tuples() == 0
    run.check(owed=0)


def test_a_window_counts_on_when_plans_change(timeline: Make) -> None:
    """What was spilled is read back, and a1, which was refused, and a3 go on counting: a0 is dead when b5 comes."""
    run = timeline("((A B) C)", chosen="A", A=("a", "ROWS 3"), B=("b", "UNBOUNDED"), C=("c", "UNBOUNDED"))
    run.at(0, "ac", leave=0)
    run.at(1, "a", k=None)
    run.at(2, "a", k=None)
    run.migrate("(A (B C))", "jisc", 4)
    run.at(4, "b")
    run.at(5, "a")
    run.at(6, "b")
    run.check(owed=0)


@pytest.mark.parametrize(("chosen", "window"), [("A", "ROWS 9"), ("", "UNBOUNDED")])
def test_snapshots_have_each_tuple_once_when_plans_change(
    timeline: Make, chosen: str, window: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read back for the new plan keeps its number and is not new; nothing is saved in place of a1, which no
    state holds, though memory is short while it is read back."""
    monkeypatch.setattr(spills, "SLICE_LEAST", 1)
    run = timeline("((A B) C)", chosen=chosen, A=("a", window), B=("b", "UNBOUNDED"), C=("c", "UNBOUNDED"))
    run.at(0, "ac", leave=0)
    run.at(1, "a", k=None)
    for ts in range(2, 25):
        run.at(ts, "c")
    run.at(25, "a")
    run.migrate("(A (B C))", "jisc", 27)
    run.at(28, "ab")
    assert run.saved("a") == [(0, "a0"), (1, "a1"), (2, "a25"), (3, "a28")]
    run.check(owed=0)
