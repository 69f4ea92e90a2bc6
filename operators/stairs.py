"""The eddy with STAIRs (Deshpande and Hellerstein 2004; JISC 3.2, 4.6): routing over states that are kept.

Each join of the plan is two STAIRs, duals of each other, one per input. The eddy takes a tuple, source tuple or
intermediate result, to the STAIR of what it covers: it is inserted there and probes the dual; what matches comes
back to the eddy. That is the work of a binary join, and a pair of duals is one (`BinaryJoin`).

What STAIRs add is that state moves when the eddy routes otherwise:

- **demote**: entries of a STAIR fall apart into the source tuples that they are made of. Those are held by the
  sources' own STAIRs already, which every plan has, so the entries are dropped.
- **promote**: the entries of two duals are joined and put into the STAIR above.

`route` does both for all entries at once: JISC 4.6 finds this to be Moving State in an eddy, and on demand, JISC.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from operators.join import BinaryJoin
from operators.match import LEFT, RIGHT
from operators.plan import Join, Plan, postorder
from operators.sources import Sources
from operators.state import SideState
from operators.tree import XJoinTree
from operators.tuples import Tuples
from schemas.columns import Mask
from schemas.errors import UsageError


class Stair(NamedTuple):
    """One of the two STAIRs of a join: what covers `aliases` is inserted here and probes the dual."""

    join: BinaryJoin
    side: int

    @property
    def aliases(self) -> tuple[str, ...]:
        """What its entries cover."""
        return self.join.match.sides[self.side]

    @property
    def state(self) -> SideState:
        """Its entries."""
        return self.join.states[self.side]

    @property
    def dual(self) -> Stair:
        """The other STAIR of the join."""
        return Stair(self.join, 1 - self.side)


class Stairs(XJoinTree):
    """Executes a query by routing over the STAIRs of a plan, which `route` changes.

    Attributes:
        joins: the pairs of duals, children before parents.
        routings: how often the eddy took a tuple to a STAIR.
        promoted, demoted: state entries made and dropped by `route`.
    """

    def __init__(self, sources: Sources, plan: Plan) -> None:
        super().__init__(sources, plan)
        self.routings = 0
        self.promoted = 0
        self.demoted = 0
        self._cut = 0
        self._past_comparisons = 0
        self._past_intermediate_results = 0

    def stairs(self) -> dict[frozenset[str], Stair]:
        """The STAIRs by what they cover."""
        pairs = (Stair(join, side) for _, join in self.joins for side in (LEFT, RIGHT))
        return {frozenset(stair.aliases): stair for stair in pairs}

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice; see `Executor.process`."""
        # What waits in the eddy, by what it covers. Both duals' tuples are inserted before either is probed.
        waiting = {frozenset({alias}): tuples for alias, tuples in epoch.items() if len(tuples)}
        for _, join in self.joins:
            left, right = (waiting.pop(frozenset(aliases), Tuples.empty(aliases)) for aliases in join.match.sides)
            self.routings += len(left) + len(right)
            if len(left) or len(right):
                waiting[frozenset(join.aliases)] = join.process(left, right, now)
        return waiting.pop(frozenset(self.plan.aliases), Tuples.empty(self.plan.aliases))

    def route(self, plan: Plan) -> None:
        """Route by another plan from now on; the states are migrated eagerly.

        Raises:
            UsageError: the plan is over other aliases.
        """
        if set(plan.aliases) != set(self.plan.aliases):
            raise UsageError(f"a plan over {' '.join(self.plan.aliases)} cannot become {plan}: other aliases")
        held, old = self.stairs(), self.joins
        needed = {frozenset(node.aliases) for node in postorder(plan)}
        for covered in held.keys() - needed:
            self.demote(held[covered])
        # What JISC has not completed yet is promoted here like what is missing (JISC 4.5).
        same = {join.match.sides: join for _, join in old if all(state.complete for state in join.states)}
        joins: dict[frozenset[str], BinaryJoin] = {}
        self.joins = []
        for node in postorder(plan):
            if not isinstance(node, Join):
                continue
            join = same.get((node.left.aliases, node.right.aliases))
            if join is None:
                join = BinaryJoin(self.sources, node.left.aliases, node.right.aliases)
                for stair in (Stair(join, LEFT), Stair(join, RIGHT)):
                    covered = frozenset(stair.aliases)
                    source = held.get(covered)
                    if source is not None and source.state.complete:
                        self.take_over(stair, source)
                    else:
                        self.promote(stair, joins[covered])
            joins[frozenset(node.aliases)] = join
            self.joins.append((node, join))
        kept = {id(join) for _, join in self.joins}
        for node, join in old:
            if id(join) not in kept:
                self._past_comparisons += join.counters.comparisons
                self._past_intermediate_results += 0 if node is self.plan else join.counters.results
        self.plan = plan

    def promote(self, stair: Stair, below: BinaryJoin) -> None:
        """Fill an empty STAIR with all that the entries of the duals `below` it make."""
        match = below.match
        for state in below.states:
            # The dead would be found again, and what they are made of may have left its store.
            if state.older is None:
                state.keep(self._living(state.tuples()))
        prepared = [match.prepare(side, self._alive(below.states[side])) for side in (LEFT, RIGHT)]
        found = [
            match.find(side, prepared[side], below.states[1 - side], strict=side == LEFT) for side in (LEFT, RIGHT)
        ]
        entries = Tuples.merge(*found).reorder(stair.aliases)
        self._insert(stair, entries.take(self._living(entries)))
        self.promoted += len(stair.state)

    def demote(self, stair: Stair) -> None:
        """Drop all entries of a STAIR; the source tuples that they are made of are in their own STAIRs."""
        self.demoted += len(stair.state)
        stair.join.states[stair.side] = stair.join.match.new_state(stair.side)

    def take_over(self, stair: Stair, source: Stair) -> None:
        """Give a STAIR the entries of one of the plan before that covers the same, indexed anew if need be."""
        if source.join.match.signature(source.side) == stair.join.match.signature(stair.side):
            stair.join.states[stair.side] = source.state
        else:
            self._insert(stair, self._alive(source.state).reorder(stair.aliases))

    def _insert(self, stair: Stair, entries: Tuples) -> None:
        match = stair.join.match
        match.enter(stair.state, match.prepare(stair.side, entries), self._cut)

    def _alive(self, state: SideState) -> Tuples:
        """The entries that a tuple to come can meet."""
        tuples = state.tuples()
        return tuples.take(self._living(tuples))

    def _living(self, tuples: Tuples) -> Mask:
        """Where a tuple to come can meet them."""
        alive = np.asarray(tuples.expiry >= self._cut)
        for k, alias in enumerate(tuples.aliases):
            if alias in self.sources.rows_windows:
                alive &= tuples.rows[k] >= self.sources.first_live_row(alias)
        return alive

    def purge(self, cut: int) -> None:
        """Drop what no tuple with ts >= cut can meet, in every STAIR."""
        self._cut = max(self._cut, cut)
        super().purge(cut)

    def comparisons(self) -> int:
        """Predicate evaluations so far, promotion's included."""
        return self._past_comparisons + super().comparisons()

    def intermediate_results(self) -> int:
        """Results of all joins but the topmost so far, promoted ones included."""
        return self._past_intermediate_results + super().intermediate_results()
