"""The binary window join: symmetric, one match over two states (HybMig 2.1, JISC 2).

Each pair is found exactly once, whatever the epochs, and output ascends by ts (ties of ts: the right side
counts as later).
"""

from __future__ import annotations

import numpy as np

from operators.data.tuples import FOREVER, Tuples
from operators.data.watermark import NEVER
from operators.state.match import LEFT, RIGHT, Match, MatchCounters, Prepared
from operators.state.side_state import SideState
from operators.state.sources import Sources


class BinaryJoin:
    """One join of a plan.

    Attributes:
        states: the left and the right side's state.
        aliases: the output's aliases, left's then right's.
    """

    def __init__(self, sources: Sources, left: tuple[str, ...], right: tuple[str, ...]) -> None:
        self.sources = sources
        self.match = Match(sources, left, right, implied=True)
        self.aliases = self.match.aliases
        self.states: list[SideState] = [self.match.new_state(LEFT), self.match.new_state(RIGHT)]

    @property
    def counters(self) -> MatchCounters:
        """What the join has done so far."""
        return self.match.counters

    def process(self, left: Tuples | Prepared, right: Tuples | Prepared, now: int) -> Tuples:
        """Enter an epoch's new tuples of both sides; the new results, ascending by ts.

        Args:
            left, right: new tuples, ascending by ts, none older than any processed before.
            now: the epoch's beginning: what expired before it is dead.
        """
        match = self.match
        match.counters.input_tuples += len(left) + len(right)
        match.counters.left_tuples += len(left)
        prepared = [match.prepare(LEFT, left), match.prepare(RIGHT, right)]
        for side in (LEFT, RIGHT):
            match.enter(self.states[side], prepared[side], now)
        for side in (LEFT, RIGHT):
            owed = self.states[1 - side].owed
            if owed is not None and len(prepared[side]):
                owed.demand(prepared[side], now)
        found = [
            match.find(side, prepared[side], self.states[1 - side], strict=side == LEFT) for side in (LEFT, RIGHT)
        ]
        return Tuples.merge(*found)

    def enter_late(self, side: int, late: Tuples, now: int) -> None:
        """Put tuples into a side's state after their time, in any order; what they make is somebody else's to find.
        They are in `older` from then on, unless the state holds nothing of their time or later."""
        if len(late) == 0:
            return
        state = self.states[side]
        if state.first_at(int(late.ts.min())) == state.hi and int(late.ts.max()) < now:
            # Ascending by ts, and of equal ts in the order of their coming, by which ROWS windows find the dead.
            late = late.take(np.lexsort((late.rows[0], late.ts)))
            self.match.enter(state, self.match.prepare(side, late.reorder(self.match.sides[side])), now)
            return
        if state.older is None:
            state.older, state.older_until = self.match.new_state(side, sorted_by_ts=False), NEVER
        state.older_until = max(state.older_until, min(int(late.expiry.max()) + 1, FOREVER))
        self.match.enter(state.older, self.match.prepare(side, late.reorder(self.match.sides[side])), now)

    def sort_late(self) -> None:
        """Put what came late in its place among the others, in complete states. O(n) where there is any."""
        for side, state in enumerate(self.states):
            if state.older is None or not state.complete:
                continue
            runs = []
            for held in (state.older, state):
                held.bury()
                runs.append(held.tuples_of(held.entries()))
            both = Tuples.concat(runs, state.aliases)
            # Of equal ts by their rows, by which ROWS windows find the dead.
            both = both.take(np.lexsort((both.rows[0], both.ts)).astype(np.int64))
            whole = self.match.new_state(side)
            self.match.enter(whole, self.match.prepare(side, both), state.purged_to)
            whole.purged_to = state.purged_to
            self.states[side] = whole

    def purge(self, cut: int, held: int | None = None) -> None:
        """Drop what no tuple with ts >= cut can meet; of ROWS windows no more than had died before `held`."""
        for state in self.states:
            purge_state(self.sources, state, cut, held)


def purge_state(sources: Sources, state: SideState, cut: int, held: int | None = None) -> None:
    """Drop from a state what no tuple with ts >= cut can meet; of ROWS windows no more than had died before `held`, if
    that is given."""
    state.purge(cut)
    for alias in state.aliases:
        if alias in sources.rows_windows:
            state.purge_rows(alias, sources.first_live_row(alias, held))
