"""A task with a memory budget dies, and its next incarnation continues from the log of spill events."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.migration.strategies import STRATEGIES as MIGRATIONS
from operators.plan.plan import left_deep
from operators.spill.spilling import MemoryBudget
from operators.state import checkpoint
from operators.state.checkpoint import Block
from schemas.errors import StateError
from schemas.language.program import parse_program
from schemas.messages.spills import SpillEvent, decode_events, encode_events
from tests import oracle
from tests.cases import Case
from tests.feeding import canonical, to_rows
from tests.operators.aggregate.test_aggregate_properties import exactly, expected
from tests.operators.deaths import Life
from tests.operators.migrating import changes_of
from tests.operators.spill.memory_blocks import MemoryBlocks
from tests.operators.spill.small_parts import small_parts
from tests.operators.spill.test_spill_aggregates import AGGREGATED
from tests.operators.spill.test_spill_properties import BUDGETS, SPILLABLE
from tests.profiles import examples

TURNS = st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=5), min_size=1, max_size=3)
"""Per incarnation, the number of records of each partition that are consumed before each advance."""


class Incarnations:
    """Incarnations of a task, with what outlives them: the log of events, and perhaps a snapshot."""

    def __init__(
        self,
        case: Case,
        budget: MemoryBudget,
        changes: Sequence[tuple[Any, str, int]],
        *,
        snapshots: bool,
        **options: Any,
    ) -> None:
        self._case = case
        self._options = options
        self._budget = budget
        self._snapshots = snapshots
        self._log: list[SpillEvent] = []
        self._blocks: list[Block] = []
        self._cut = 0
        self._points: dict[tuple[str, int], Any] = {}
        self.results: list[dict[str, Any]] = []
        self.life = self._start(case)
        for cut, to, strategy in changes:
            self.life.engine.migrate(to, strategy, cut)

    def _start(self, case: Case) -> Life:
        life = Life(case, budget=self._budget, blocks=MemoryBlocks(), **self._options)
        life.engine.durable = self._snapshots
        return life

    def _collect(self, found: list[dict[str, Any]]) -> None:
        engine = self.life.engine
        self.results += found + [row for batch in engine.cleaned() for row in to_rows(batch)]
        written = encode_events(engine.spill_events(), self._budget.groups, str(engine.plan))
        self._log += decode_events(written, self._budget.groups, "the log").events
        self._log = [event for event in self._log if event.at > engine.spills_needed_from()]

    def turn(self, size: int, *, snapshot: bool, clean: bool) -> None:
        """Consume a little; perhaps clean up a group before it, as in spare time."""
        engine = self.life.engine
        if clean:
            engine.clean(1)
        self._collect(self.life.turn(size))
        if snapshot and self._snapshots:
            saved = engine.checkpoint()
            live = saved.live_from
            blocks = (*self._blocks, *saved.blocks)
            self._blocks = [b for b in blocks if b.first_row + len(b.batch) > live[b.stream]]
            self._cut = saved.cut
            self._points = self.life.points(self._cut)

    def die(self) -> None:
        """The next incarnation takes over."""
        dead = self.life
        begun = [r for r in dead.engine.migrations if r.began_at is not None]
        successor = self._start(replace(self._case, plan=begun[-1].plan if begun else dead.engine.plan))
        successor.engine.play_spills(self._log, dead.engine.cut)
        if self._cut:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(checkpoint, "PIECE_TUPLES", 3)
                successor.replay_from_snapshot(dead, self._cut, self._blocks, self._points)
        else:
            self._blocks = []  # Row numbers restart.
            streams = self._case.query.streams()
            successor.replay_from(dead, {s.name: dead.engine.replay_horizon(s.name) for s in streams}, floor=0)
        assert successor.engine.cleaned() == []
        assert successor.engine.spill_events() == []
        for record in dead.engine.migrations:
            if record.began_at is None:
                successor.engine.migrate(record.plan, record.strategy, max(record.cut, successor.engine.cut))
        self.life = successor

    def clean(self) -> None:
        """Clean up at this point, group by group, until nothing is pending."""
        engine = self.life.engine
        while engine.clean(1):
            pass
        self._collect([])
        spill = engine.statistics().spill
        assert spill is not None
        assert spill.owed == 0
        engine.clean()
        assert engine.cleaned() == []

    def end(self) -> None:
        """Consume the rest, and clean up."""
        self._collect(self.life.finish())
        self.life.engine.clean()
        self._collect([])


@examples(100, quick=10)
@given(SPILLABLE, BUDGETS, TURNS, st.booleans(), st.booleans(), st.data())
def test_a_successor_finds_the_pending_results_of_the_dead(
    case: Case, budget: MemoryBudget, incarnations: list[list[int]], snapshots: bool, small: bool, data: st.DataObject
) -> None:
    """Through deaths, plan changes and snapshots, every result comes once, while running or from a cleanup, and both
    may be interrupted."""
    with small_parts() if small else nullcontext():
        found = _through_deaths(case, budget, incarnations, snapshots, data)
    assert canonical(found) == canonical(oracle.results(case.query, case.given))


@examples(100, quick=10)
@given(AGGREGATED, BUDGETS, TURNS, st.booleans(), st.data())
def test_a_successor_emits_what_the_dead_would_have(
    case: Case, budget: MemoryBudget, incarnations: list[list[int]], snapshots: bool, data: st.DataObject
) -> None:
    """Emissions wait for pending results, through deaths, plan changes and snapshots; they come once, in order."""
    assert exactly(_through_deaths(case, budget, incarnations, snapshots, data)) == expected(case)


def test_a_snapshot_has_what_died_since_the_last_emission() -> None:
    """A plan change reads spilled state back and stores it anew, but only what is alive. A snapshot after it lacked the
    pair of 55 and 56, which is in the row at 60; so the successor did not know that its death changes the row at 80."""
    query = parse_program(
        "CREATE STREAM a (k BIGINT, ts TIMESTAMP) WITH (topic = 'a', timestamp = 'ts');"
        "CREATE STREAM b (k BIGINT, ts TIMESTAMP) WITH (topic = 'b', timestamp = 'ts');"
        "SELECT COUNT(*) AS n FROM a A, b B WINDOW RANGE 10 MILLISECONDS WHERE A.k = B.k EMIT EVERY 20 MILLISECONDS"
    ).queries[0]
    rows = {
        "a": [[{"ts": ts, "k": k} for ts, k in ((50, 7), (55, 1), (66, 2), (70, 3), (72, 3), (90, 4))]],
        "b": [[{"ts": ts, "k": k} for ts, k in ((51, 8), (56, 1), (67, 5), (71, 6), (73, 6), (91, 5))]],
    }
    case = Case(query, rows, left_deep(("A", "B")), [1], 1)
    task = Incarnations(
        case, MemoryBudget(0, "bottom-up", 1, 0), [(70, left_deep(("B", "A")), "moving-state")], snapshots=True
    )
    for _ in range(5):
        task.turn(1, snapshot=True, clean=False)
    assert [record.began_at for record in task.life.engine.migrations] == [70]
    task.die()
    task.end()
    assert expected(case)
    assert exactly(task.results) == expected(case)


def _through_deaths(
    case: Case, budget: MemoryBudget, incarnations: list[list[int]], snapshots: bool, data: st.DataObject
) -> list[dict[str, Any]]:
    """All results of all incarnations."""
    changes = data.draw(st.one_of(st.just([]), changes_of(case, sorted(MIGRATIONS), 2)))
    task = Incarnations(case, budget, changes, snapshots=snapshots)
    for turns in incarnations:
        taken = data.draw(st.integers(0, len(turns)))
        for number, size in enumerate(turns):
            task.turn(size, snapshot=number < taken, clean=data.draw(st.booleans()))
        if data.draw(st.booleans()):
            task.clean()
        task.die()
        if data.draw(st.booleans()):
            task.clean()
            task.die()
    task.end()
    return task.results


def test_a_log_of_another_weir_is_refused() -> None:
    raw = encode_events([SpillEvent(7, "leave", ((0, (3, 5)),))], 64, "(A B)")
    assert decode_events(raw, 64, "spill[0]").events == (SpillEvent(7, "leave", ((0, (3, 5)),)),)
    with pytest.raises(StateError, match=r"spill\[0\] has 64 groups per join, this Weir reads 32"):
        decode_events(raw, 32, "spill[0]")
    with pytest.raises(StateError, match=r"spill\[0\] holds b'nonsense', which is no log of spilled state"):
        decode_events(b"nonsense", 64, "spill[0]")
