"""The eddy with STAIRs (Deshpande and Hellerstein 2004; JISC 3.2, 4.6): routing over states that are kept.

Each join of the plan is two STAIRs, duals of each other, one per input. The eddy takes a tuple, source tuple or
intermediate result, to the STAIR of what it covers: it is inserted there and probes the dual; what matches comes
back to the eddy. That is the work of a binary join, and a pair of duals is one (`BinaryJoin`).

What STAIRs add is that state moves when the eddy routes otherwise, which is what `operators.migration` does:

- **demote**: entries of a STAIR fall apart into the source tuples that they are made of. Those are held by the
  sources' own STAIRs already, which every plan has, so the entries are dropped.
- **promote**: the entries of two duals are joined and put into the STAIR above.

Strategy `moving-state` does both for all entries at the cut: the STAIRs of 2004, which JISC 4.6 finds to be Moving
State in an eddy. `jisc` promotes the entries of a key when a tuple is routed to where they are wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from operators.data.tuples import Tuples
from operators.join.binary_join import BinaryJoin
from operators.join.tree import XJoinTree
from operators.plan.plan import Plan
from operators.state.match import LEFT, RIGHT, Prepared
from operators.state.side_state import SideState
from operators.state.sources import Sources


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
    """Executes a query by routing over the STAIRs of a plan.

    Attributes:
        joins: the pairs of duals, children before parents.
        routings: how often the eddy took a tuple to a STAIR.
    """

    def __init__(self, sources: Sources, plan: Plan) -> None:
        super().__init__(sources, plan)
        self.routings = 0

    def stairs(self) -> dict[frozenset[str], Stair]:
        """The STAIRs by what they cover."""
        pairs = (Stair(join, side) for _, join in self.joins for side in (LEFT, RIGHT))
        return {frozenset(stair.aliases): stair for stair in pairs}

    def process(self, epoch: Mapping[str, Tuples | Prepared], now: int) -> Tuples:
        """Run one slice; see `Executor.process`."""
        # What waits in the eddy, by what it covers. Both duals' tuples are inserted before either is probed.
        waiting = {frozenset({alias}): tuples for alias, tuples in epoch.items() if len(tuples)}
        for _, join in self.joins:
            left, right = (waiting.pop(frozenset(aliases), Tuples.empty(aliases)) for aliases in join.match.sides)
            self.routings += len(left) + len(right)
            if len(left) or len(right):
                waiting[frozenset(join.aliases)] = join.process(left, right, now)
        found = waiting.pop(frozenset(self.plan.aliases), Tuples.empty(self.plan.aliases))
        return found.tuples if isinstance(found, Prepared) else found
