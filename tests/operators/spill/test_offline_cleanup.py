"""Backlogs of a few tuples, in each of which one rule of the cleanup decides the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from operators.engine.engine import Engine
from operators.plan.plan import parse_plan
from operators.spill import plan_spilling
from operators.spill.backlog import Backlog
from operators.spill.cleanup.offline import OfflineCleanup, clean_up_all
from operators.spill.spilling import MemoryBudget
from schemas.language.program import parse_program
from schemas.query import Query
from tests.feeding import to_batch, to_rows
from tests.operators.spill.memory_blocks import MemoryBlocks

NAMES = "abcd"


def query(where: str, sources: int) -> Query:
    """A query over the first streams, each with keys k and j and an id."""
    declared = "".join(
        f"CREATE STREAM {name} (k BIGINT, j BIGINT, id STRING, at TIMESTAMP) "
        f"WITH (topic = '{name}', timestamp = 'at');"
        for name in NAMES
    )
    used = NAMES[:sources]
    select = ", ".join(f"{name.upper()}.id AS {name}" for name in used)
    windows = ", ".join(f"{name} {name.upper()} [UNBOUNDED]" for name in used)
    return parse_program(f"{declared} SELECT {select} FROM {windows} WHERE {where};").queries[0]


class BacklogRun:
    """An engine that keeps nothing in memory: after every instant all tuples leave, as a part of their own."""

    def __init__(self, of: Query, plan: str) -> None:
        self.query = of
        self.blocks = MemoryBlocks()
        budget = MemoryBudget(0, "bottom-up", groups=1)
        self.engine = Engine(of, plan=parse_plan(plan, of), budget=budget, blocks=self.blocks)
        self.found: list[str] = []

    def at(self, ts: int, streams: str, k: int = 1, j: int | None = 1) -> None:
        """Process a tuple of each of the streams."""
        for name in streams:
            stream = next(stream for stream in self.query.streams() if stream.name == name)
            self.engine.push(name, 0, to_batch(stream, [{"k": k, "j": j, "id": f"{name}{ts}", "at": ts}]))
        self.found += shown(to_rows(self.engine.advance(ts + 1)))

    def write_backlog(self) -> Backlog:
        """The backlog at the end of the run."""
        for stream in self.query.streams():
            self.engine.close(stream.name, 0)
        self.found += shown(to_rows(self.engine.advance()))
        backlog = self.engine.write_backlog()
        self.found += shown(row for batch in self.engine.cleaned() for row in to_rows(batch))
        assert backlog is not None
        return backlog

    def cleaned_up(self, backlog: Backlog) -> list[str]:
        """The pending results."""
        groups = clean_up_all(OfflineCleanup(self.query, backlog), backlog, self.blocks)
        return shown(row for _, batches in groups for batch in batches for row in to_rows(batch))


def shown(rows: Any) -> list[str]:
    """Each row as the ids of its tuples, ascending."""
    return sorted(" ".join(row[name] for name in NAMES if name in row) for row in rows)


def cleaned_up(run: BacklogRun, arrivals: Sequence[tuple[int, str]]) -> list[str]:
    """The pending results of a run with tuples of these streams at these times."""
    for ts, streams in arrivals:
        run.at(ts, streams)
    return run.cleaned_up(run.write_backlog())


def test_pending_results_of_both_sides_match() -> None:
    """a0 b1 and c0 d1 are pending, so their group of the join above has no tuples of its own."""
    run = BacklogRun(query("A.k = B.k AND C.k = D.k AND B.j = C.j", 4), "((A B) (C D))")
    assert cleaned_up(run, [(0, "ac"), (1, "bd")]) == ["a0 b1 c0 d1"]
    assert run.found == []


def test_tuples_that_a_null_keeps_from_matching_are_dropped() -> None:
    """a0 b1 is pending, and nothing equals b1's key for the join above: not even another null."""
    run = BacklogRun(query("A.k = B.k AND B.j = C.j", 3), "((A B) C)")
    run.at(0, "ac", j=None)
    run.at(1, "b", j=None)
    run.at(2, "ac", k=2)
    run.at(3, "b", k=2)
    assert run.cleaned_up(run.write_backlog()) == ["a2 b3 c2"]
    assert run.found == []


def test_results_that_another_plan_has_delivered_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan changes when all results before 20 are delivered. Spilled tuples go through the new plan, in slices, and
    are spilled again: so many delivered results are found once more."""
    monkeypatch.setattr(plan_spilling, "MIN_SLICE_TUPLES", 1)
    run = BacklogRun(query("A.k = B.k AND B.k = C.k", 3), "((A B) C)")
    run.at(0, "ab")
    times = range(1, 16)
    for ts in times:
        run.at(ts, "c")
    run.engine.migrate(parse_plan("(A (B C))", run.query), "moving-state", 20)
    run.at(20, "a")
    backlog = run.write_backlog()
    assert backlog.delivered == 20
    rest = run.cleaned_up(backlog)
    assert sorted([*run.found, *rest]) == sorted(f"a{a} b0 c{ts}" for a in (0, 20) for ts in times)
    assert rest == sorted(f"a20 b0 c{ts}" for ts in times), "at the very instant of the change too"
