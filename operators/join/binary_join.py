"""The binary window join: symmetric, one match over two states (HybMig 2.1, JISC 2).

Trees are made of these. Each pair is found exactly once, however the input is cut into epochs. Output ascends by ts; of
two tuples with equal ts the right side's counts as later.
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
        sources: the stores that tuples' row ids refer to.
        match: the condition between the two sides.
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
        """The join's counters so far."""
        return self.match.counters

    def process(self, left: Tuples | Prepared, right: Tuples | Prepared, now: int) -> Tuples:
        """Insert a slice's new tuples of both sides and join them.

        Args:
            left: new tuples of the left side, ascending by ts, none older than any processed before.
            right: new tuples of the right side, likewise.
            now: the slice's first instant; tuples that expired before it are dead.

        Returns:
            The new results, ascending by ts.
        """
        match, prepared = self.match, self.enter(left, right, now)
        for side in (LEFT, RIGHT):
            completion = self.states[1 - side].completion
            if completion is not None and len(prepared[side]):
                completion.demand(prepared[side], now)
        found = [match.find(side, prepared[side], self.states[1 - side], strict=side == LEFT) for side in (LEFT, RIGHT)]
        return Tuples.merge(*found)

    def enter(self, left: Tuples | Prepared, right: Tuples | Prepared, now: int) -> tuple[Prepared, Prepared]:
        """Insert a slice's new tuples of both sides, as `process` does, without joining them; return them prepared."""
        match = self.match
        match.counters.input_tuples += len(left) + len(right)
        match.counters.left_tuples += len(left)
        prepared = match.prepare(LEFT, left), match.prepare(RIGHT, right)
        for side in (LEFT, RIGHT):
            match.enter(self.states[side], prepared[side], now)
        return prepared

    def enter_late(self, side: int, late: Tuples, now: int) -> None:
        """Insert tuples into a side's state after their time, in any order. The caller must find their results.

        They are in the state's `older` from then on, unless the state has no entry of their time or later.
        """
        if len(late) == 0:
            return
        state = self.states[side]
        if state.first_at(int(late.ts.min())) == state.hi and int(late.ts.max()) < now:
            # Ascending by ts, and at equal ts in the order of arrival, which ROWS windows need to find dead entries.
            late = late.take(np.lexsort((late.rows[0], late.ts)))
            self.match.enter(state, self.match.prepare(side, late.reorder(self.match.sides[side])), now)
            return
        if state.older is None:
            state.older, state.older_until = self.match.new_state(side, sorted_by_ts=False), NEVER
        state.older_until = max(state.older_until, min(int(late.expiry.max()) + 1, FOREVER))
        self.match.enter(state.older, self.match.prepare(side, late.reorder(self.match.sides[side])), now)

    def sort_late(self) -> None:
        """Merge late entries into the others by ts, in complete states. O(n) for a state with late entries."""
        for side, state in enumerate(self.states):
            if state.older is None or not state.complete:
                continue
            runs = []
            for part in (state.older, state):
                part.drop_dead_rows()
                runs.append(part.tuples_of(part.entries()))
            both = Tuples.concat(runs, state.aliases)
            # At equal ts by their rows, which ROWS windows need to find dead entries.
            both = both.take(np.lexsort((both.rows[0], both.ts)).astype(np.int64))
            whole = self.match.new_state(side)
            self.match.enter(whole, self.match.prepare(side, both), state.purged_to)
            whole.purged_to = state.purged_to
            self.states[side] = whole

    def purge(self, cut: int, alive_at: int | None = None) -> None:
        """Drop the entries that no tuple with ts >= cut can meet; see `purge_state`."""
        for state in self.states:
            purge_state(self.sources, state, cut, alive_at)


def purge_state(sources: Sources, state: SideState, cut: int, alive_at: int | None = None) -> None:
    """Drop the entries of a state that no tuple with ts >= cut can meet.

    Args:
        alive_at: keep the entries of ROWS windows that had not died before this event time; None for no such limit.
    """
    state.purge(cut)
    for alias in state.aliases:
        if alias in sources.rows_windows:
            state.purge_rows(alias, sources.first_live_row(alias, alive_at))
