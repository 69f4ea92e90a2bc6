"""Timelines of a few tuples, in which one rule of spilling decides about one result.

All tuples have one key and every join one partition group, so all tuples in reach of each other's windows match. A test
determines which joins' groups leave memory and when. The results must be those of an engine with all tuples in memory.
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
from operators.spill import plan_spilling
from operators.spill.spilling import MemoryBudget
from operators.spill.strategies import STRATEGIES, SpillCandidates
from schemas.codecs.blocks import decode_block
from schemas.columns import I64
from schemas.language.program import parse_program
from tests.feeding import to_batch, to_rows
from tests.operators.spill.memory_blocks import MemoryBlocks


class Timeline:
    """An engine whose spills a test decides on, next to one that has all tuples in memory.

    Args:
        windows: per alias the stream and the RANGE in ms, or the window as it is written; joined by equality in this
            order.
        groups_to_evict: the joins, children before parents, whose groups leave at the end of the next call of `at`.
        due_rows: see `MemoryBudget`.
        chosen: an alias of which tuples without a key are refused.
    """

    def __init__(
        self,
        groups_to_evict: set[int],
        plan: str,
        *,
        due_rows: int = 1000,
        chosen: str = "",
        **windows: tuple[str, int | str],
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
        self._leaving = groups_to_evict
        self.query = parse_program(f"{declared}\nSELECT {select} FROM {sources} WHERE {equal};").queries[0]
        self.blocks = MemoryBlocks()
        budget = MemoryBudget(0, "given", groups=1, due_rows=due_rows)
        options: dict[str, Any] = {"budget": budget, "blocks": self.blocks}
        self._spilling, self._whole = (
            Engine(self.query, plan=parse_plan(plan, self.query), **kind) for kind in (options, {})
        )
        self._spilling.durable = True
        self._found: list[dict[str, Any]] = []
        self._wanted: list[dict[str, Any]] = []

    def at(self, ts: int, streams: str = "", leave: int | None = None, k: int | None = 1) -> None:
        """A tuple of each of the streams arrives at `ts`, and after that instant a join's group leaves."""
        self._leaving |= set() if leave is None else {leave}
        for name in streams:
            stream = next(stream for stream in self.query.streams() if stream.name == name)
            for task in (self._spilling, self._whole):
                task.push(name, 0, to_batch(stream, [{"k": k, "id": f"{name}{ts}", "at": ts}]))
        self._found += to_rows(self._spilling.advance(ts + 1))
        self._wanted += to_rows(self._whole.advance(ts + 1))
        self._leaving.clear()

    def clean(self, max_groups: int) -> bool:
        """Clean up at most this many groups, as in spare time."""
        return self._spilling.clean(max_groups)

    def migrate(self, plan: str, strategy: str, cut: int) -> None:
        """Migrate both engines to the plan."""
        for task in (self._spilling, self._whole):
            task.migrate(parse_plan(plan, self.query), strategy, cut)

    def saved(self, stream: str) -> list[tuple[int, str]]:
        """Number and id of the stream's tuples that are new since the last snapshot."""
        blocks = [block for block in self._spilling.checkpoint().blocks if block.stream == stream]
        return [
            row for block in blocks for row in enumerate(block.batch.columns["id"].to_values(), start=block.first_row)
        ]

    @property
    def spill(self) -> SpillStatistics:
        """The engine's spill statistics."""
        found = self._spilling.statistics().spill
        assert found is not None
        return found

    def blocks_tuples(self) -> int:
        """Tuples in blocks."""
        return sum(len(decode_block(raw, key).batch) for key, raw in self.blocks.stored.items())

    def check(self, *, pending: int) -> None:
        """Check that all results are found, and that cleanups at the end find so many of them."""
        self._found += [row for batch in self._spilling.cleaned() for row in to_rows(batch)]
        while_running = len(self._found)
        for task, into in ((self._spilling, self._found), (self._whole, self._wanted)):
            for stream in self.query.streams():
                task.close(stream.name, 0)
            into += to_rows(task.advance())
        self._spilling.clean()
        self._found += [row for batch in self._spilling.cleaned() for row in to_rows(batch)]
        assert Counter(map(repr, self._found)) == Counter(map(repr, self._wanted))
        assert len(self._found) - while_running == pending
        assert self.blocks.stored == {}


Make = Callable[..., Timeline]


@pytest.fixture
def timeline(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes timelines."""
    groups_to_evict: set[int] = set()

    def given(candidates: SpillCandidates) -> I64:
        return np.flatnonzero(np.isin(candidates.joins, sorted(groups_to_evict)))

    monkeypatch.setitem(STRATEGIES, "given", given)
    return lambda plan, **options: Timeline(groups_to_evict, plan, **options)


def test_entries_that_expired_are_spilled_for_a_part(timeline: Make) -> None:
    """b0 c5 arrives when a0 has left. It has expired when it leaves itself."""
    run = timeline("(A (B C))", A=("a", 30), B=("b", 10), C=("c", 30))
    run.at(0, "ab", leave=1)
    run.at(5, "c")
    run.at(10, leave=1)
    assert run.spill.on_disk_tuples == 2
    run.check(pending=1)


def test_entries_that_expired_stay_for_a_part(timeline: Make) -> None:
    """The same, but it stays in memory."""
    run = timeline("(A (B C))", A=("a", 30), B=("b", 10), C=("c", 30))
    run.at(0, "ab", leave=1)
    run.at(5, "c")
    run.at(10)
    run.check(pending=1)


def test_pending_results_from_below_find_expired_entries(timeline: Make) -> None:
    """a0 b2 is found when c3, which it matches, has long expired."""
    run = timeline("((A B) C)", A=("a", 100), B=("b", 100), C=("c", 5))
    run.at(0, "a", leave=0)
    run.at(2, "b")
    run.at(3, "c")
    run.at(20)
    run.check(pending=1)


@pytest.mark.parametrize(("b", "c"), [(8, 15), (8, 18), (2, 12)])
def test_late_results_go_to_disk_while_they_live(timeline: Make, b: int, c: int) -> None:
    """a0 and b are found by a cleanup before c arrives, which they still match; until then they take no memory."""
    run = timeline("((A B) C)", A=("a", 100), B=("b", 10), C=("c", 100))
    run.at(0, "a", leave=0)
    run.at(b, "b")
    run.at(11)
    assert run.spill.cleanups > 0
    assert run.spill.on_disk_tuples == run.blocks_tuples() == 2
    run.at(c, "c")
    run.check(pending=1)


def test_a_stream_of_two_aliases_is_read_back_once(timeline: Make) -> None:
    """Before a plan changes a0 is read back from the states of both its aliases."""
    run = timeline("((X Y) Z)", X=("a", 50), Y=("a", 50), Z=("b", 50))
    run.at(0, "a", leave=0)
    run.migrate("(X (Y Z))", "jisc", 5)
    run.at(6, "b")
    run.check(pending=0)


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
    run.check(pending=0)


def test_expired_entries_keep_no_source_tuples(timeline: Make) -> None:
    """When c4 leaves, b0 c4 and its twin are dead but still in the state above; their source tuples are gone."""
    run = timeline("(A (B C))", A=("a", 50), B=("b", 5), C=("c", 50))
    run.at(0, "bb")
    run.at(4, "c")
    run.at(6, leave=0)
    run.at(7, "b")
    run.check(pending=0)


def test_nothing_is_pending_after_a_cleanup(timeline: Make) -> None:
    """Though a0 stays on disk, for later tuples."""
    run = timeline("(A B)", A=("a", 100), B=("b", 100))
    run.at(0, "a", leave=0)
    assert run.spill.owed == 0
    run.at(5, "b")
    assert run.spill.owed == 1
    assert run.clean(1)
    assert not run.clean(1), "there is spare time, but nothing to clean up"
    assert (run.spill.owed, run.spill.on_disk_tuples, run.spill.cleanup_results) == (0, 1, 1)
    run.at(7, "a")
    assert run.spill.owed == 0, "a7 and b5 were joined in memory"
    run.at(8, "b")
    assert run.spill.owed == 1, "b8 and a0"
    run.check(pending=1)
    assert run.spill.owed == 0


def test_a_window_counts_on_when_its_tuples_have_left(timeline: Make) -> None:
    """a0 matches b2, but not b4: a3 is the second one after it. a1 matches both."""
    run = timeline("(A B)", A=("a", "ROWS 2"), B=("b", "UNBOUNDED"))
    run.at(0, "a")
    run.at(1, "a", leave=0)
    run.at(2, "b")
    run.at(3, "a")
    run.at(4, "b")
    run.check(pending=3)


def test_a_tuple_that_is_refused_counts(timeline: Make) -> None:
    """a1 is in no result, and yet a0 is dead when b2 arrives."""
    run = timeline("(A B)", chosen="A", A=("a", "ROWS 1"), B=("b", "UNBOUNDED"))
    run.at(0, "a", leave=0)
    run.at(1, "a", k=None)
    run.at(2, "b")
    run.check(pending=0)


@pytest.mark.parametrize(("order", "pending"), [("AB", 0), ("BA", 1)])
def test_of_one_instant_streams_come_in_their_order(timeline: Make, order: str, pending: int) -> None:
    """b5 matches a0 if it is processed before a5, as the FROM list determines."""
    windows = {"A": ("a", "ROWS 1"), "B": ("b", 100)}
    run = timeline("(A B)", **{alias: windows[alias] for alias in order})
    run.at(0, "a", leave=0)
    run.at(5, "ab")
    run.check(pending=pending)


def test_aliases_of_one_stream_count_each_for_itself(timeline: Make) -> None:
    """When a2 arrives a0 has left the window of X, not that of Y."""
    run = timeline("(X Y)", X=("a", "ROWS 1"), Y=("a", "ROWS 3"))
    run.at(0, "a")
    run.at(1, "a", leave=0)
    run.at(2, "a")
    run.check(pending=2)


def test_the_dead_of_joined_tuples_are_not_read(timeline: Make) -> None:
    """a0 b1 is still in the state above when a0 is gone: its source tuple is released and it is not spilled."""
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
    run.check(pending=1)


def test_what_was_dropped_after_a_spill_would_be_missed(timeline: Make) -> None:
    """a2 is dead when a3 has arrived, and is kept for b0, which has left and matches it."""
    run = timeline("(A B)", A=("a", "ROWS 1"), B=("b", "UNBOUNDED"))
    run.at(0, "b", leave=0)
    for ts in range(2, 7):
        run.at(ts, "a")
    run.check(pending=5)


def test_parts_are_due_when_a_window_has_gone_by(timeline: Make) -> None:
    """Cleanups run without a request, tuples that are dead then leave the disk, and memory use does not grow."""
    run = timeline("(A B)", due_rows=4, A=("a", "ROWS 2"), B=("b", "ROWS 3"))
    run.at(0, "ab", leave=0)
    for ts in range(1, 5):
        run.at(ts, "ab")
        assert run.spill.cleanups == 0
    run.at(5, "ab")
    run.at(6, "ab")
    assert run.spill.cleanups == 1
    assert run.spill.on_disk_tuples == run.blocks_tuples() == 0
    run.check(pending=0)


def test_a_window_counts_on_when_plans_change(timeline: Make) -> None:
    """What was spilled is read back, and a1, which was refused, and a3 go on counting: a0 is dead when b5 arrives."""
    run = timeline("((A B) C)", chosen="A", A=("a", "ROWS 3"), B=("b", "UNBOUNDED"), C=("c", "UNBOUNDED"))
    run.at(0, "ac", leave=0)
    run.at(1, "a", k=None)
    run.at(2, "a", k=None)
    run.migrate("(A (B C))", "jisc", 4)
    run.at(4, "b")
    run.at(5, "a")
    run.at(6, "b")
    run.check(pending=0)


@pytest.mark.parametrize(("chosen", "window"), [("A", "ROWS 9"), ("", "UNBOUNDED")])
def test_snapshots_have_each_tuple_once_when_plans_change(
    timeline: Make, chosen: str, window: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tuples that are read back for the new plan keep their numbers and are not new; nothing is saved in place of a1,
    which no state contains, though memory is short while they are read back."""
    monkeypatch.setattr(plan_spilling, "MIN_SLICE_TUPLES", 1)
    run = timeline("((A B) C)", chosen=chosen, A=("a", window), B=("b", "UNBOUNDED"), C=("c", "UNBOUNDED"))
    run.at(0, "ac", leave=0)
    run.at(1, "a", k=None)
    for ts in range(2, 25):
        run.at(ts, "c")
    run.at(25, "a")
    run.migrate("(A (B C))", "jisc", 27)
    run.at(28, "ab")
    assert run.saved("a") == [(0, "a0"), (1, "a1"), (2, "a25"), (3, "a28")]
    run.check(pending=0)
