"""A task with a memory budget dies, and an heir goes on from the log of what happened to spilled state."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.migration.strategies import STRATEGIES as MIGRATIONS
from operators.spill.spilling import Budget
from operators.state import checkpoint
from operators.state.checkpoint import Block, by_time
from schemas.errors import StateError
from schemas.messages.spills import SpillEvent, decode_events, encode_events
from tests import oracle
from tests.cases import Case
from tests.feeding import canonical, to_rows
from tests.operators.deaths import Life
from tests.operators.migrating import changes_of
from tests.operators.profiles import PROPERTY
from tests.operators.spill.memory_blocks import MemoryBlocks
from tests.operators.spill.small_parts import small_parts
from tests.operators.spill.test_spill_properties import BUDGETS, SPILLABLE

TURNS = st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=5), min_size=1, max_size=3)
"""Per life, how much of each partition is consumed before each advance."""


class _Dynasty:
    """Tasks that follow each other, with what outlives them: the log of events, and perhaps a snapshot."""

    def __init__(self, case: Case, budget: Budget, changes: Sequence[tuple[Any, str, int]], *, snapshots: bool) -> None:
        self._case = case
        self._budget = budget
        self._snapshots = snapshots
        self._log: list[SpillEvent] = []
        self._blocks: list[Block] = []
        self._cut = 0
        self._points: dict[tuple[str, int], Any] = {}
        self.got: list[dict[str, Any]] = []
        self.life = self._born(case)
        for cut, to, strategy in changes:
            self.life.engine.migrate(to, strategy, cut)

    def _born(self, case: Case) -> Life:
        life = Life(case, budget=self._budget, blocks=MemoryBlocks())
        life.engine.durable = self._snapshots
        return life

    def _heard(self, found: list[dict[str, Any]]) -> None:
        engine = self.life.engine
        self.got += found + [row for batch in engine.cleaned() for row in to_rows(batch)]
        written = encode_events(engine.spill_events(), self._budget.groups, str(engine.plan))
        self._log += decode_events(written, self._budget.groups, "the log").events
        self._log = [event for event in self._log if event.at > engine.spills_needed_from()]

    def turn(self, size: int, *, snapshot: bool, clean: bool) -> None:
        """Consume a little; perhaps, as who has some time, clean up a group before it."""
        engine = self.life.engine
        if clean:
            engine.clean(1)
        self._heard(self.life.turn(size))
        if snapshot and self._snapshots:
            saved = engine.checkpoint()
            live = saved.live_from
            held = (*self._blocks, *saved.blocks)
            self._blocks = [b for b in held if b.first_row + len(b.batch) > live[b.stream]]
            self._cut = saved.cut
            self._points = {key: engine.replay_point(*key, self._cut) for key in self.life.at}

    def die(self) -> None:
        """An heir takes over."""
        dead = self.life
        begun = [r for r in dead.engine.migrations if r.began_at is not None]
        heir = self._born(replace(self._case, plan=begun[-1].plan if begun else dead.engine.plan))
        heir.engine.play_spills(self._log, dead.engine.cut)
        if self._cut:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(checkpoint, "PIECE_TUPLES", 3)
                heir.engine.restore(self._cut, by_time(self._blocks))
            for (name, p), position in dead.at.items():
                heir.engine.set_clock(name, p, self._points[name, p].max_ts)
                heir.push(name, p, self._points[name, p].offset, position, floor=self._cut)
                heir.at[name, p] = position
            heir.engine.advance(dead.engine.cut)
        else:
            self._blocks = []  # Rows are numbered anew.
            streams = self._case.query.streams()
            heir.replay_from(dead, {s.name: dead.engine.horizon(s.name) for s in streams}, floor=0)
        assert heir.engine.cleaned() == []
        assert heir.engine.spill_events() == []
        for record in dead.engine.migrations:
            if record.began_at is None:
                heir.engine.migrate(record.plan, record.strategy, max(record.cut, heir.engine.cut))
        self.life = heir

    def clean(self) -> None:
        """Clean up where the task stands, group by group, until nothing is owed."""
        engine = self.life.engine
        while engine.clean(1):
            pass
        self._heard([])
        spill = engine.statistics().spill
        assert spill is not None
        assert spill.owed == 0
        engine.clean()
        assert engine.cleaned() == []

    def end(self) -> None:
        """Consume the rest, and clean up."""
        self._heard(self.life.finish())
        self.life.engine.clean()
        self._heard([])


@PROPERTY
@given(SPILLABLE, BUDGETS, TURNS, st.booleans(), st.booleans(), st.data())
def test_an_heir_owes_what_the_dead_owed(
    case: Case, budget: Budget, lives: list[list[int]], snapshots: bool, small: bool, data: st.DataObject
) -> None:
    """Through deaths, plan changes and snapshots, every result comes once, while running or of a cleanup, which may
    both be interrupted."""
    with small_parts() if small else nullcontext():
        _through_deaths(case, budget, lives, snapshots, data)


def _through_deaths(case: Case, budget: Budget, lives: list[list[int]], snapshots: bool, data: st.DataObject) -> None:
    changes = data.draw(st.one_of(st.just([]), changes_of(case, sorted(MIGRATIONS), 2)))
    dynasty = _Dynasty(case, budget, changes, snapshots=snapshots)
    for turns in lives:
        taken = data.draw(st.integers(0, len(turns)))
        for number, size in enumerate(turns):
            dynasty.turn(size, snapshot=number < taken, clean=data.draw(st.booleans()))
        if data.draw(st.booleans()):
            dynasty.clean()
        dynasty.die()
        if data.draw(st.booleans()):
            dynasty.clean()
            dynasty.die()
    dynasty.end()
    assert canonical(dynasty.got) == canonical(oracle.results(case.query, case.given))


def test_a_log_of_another_weir_is_refused() -> None:
    raw = encode_events([SpillEvent(7, "leave", ((0, (3, 5)),))], 64, "(A B)")
    assert decode_events(raw, 64, "spill[0]").events == (SpillEvent(7, "leave", ((0, (3, 5)),)),)
    with pytest.raises(StateError, match=r"spill\[0\] has 64 groups per join, this Weir reads 32"):
        decode_events(raw, 32, "spill[0]")
    with pytest.raises(StateError, match=r"spill\[0\] holds b'nonsense', which is no log of spilled state"):
        decode_events(b"nonsense", 64, "spill[0]")
