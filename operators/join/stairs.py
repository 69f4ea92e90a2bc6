"""The eddy with STAIRs (Deshpande and Hellerstein 2004; JISC 3.2, 4.6): routing over states that are kept.

Each join of the plan is two STAIRs, duals of each other, one per input. The eddy takes a source tuple or intermediate
result to the STAIR of the aliases that it covers. There the tuple is inserted and probes the dual; the results return
to the eddy. That is the work of a binary join, so a pair of duals is a `BinaryJoin`.

STAIRs also move state when the eddy routes by another plan. `operators.migration` does that:

- **demote**: entries of a STAIR are decomposed into their source tuples. The sources' own STAIRs, which every plan has,
  store those already, so the entries are just dropped.
- **promote**: the entries of two duals are joined, and the results inserted into the STAIR above.

Strategy `moving-state` does both for all entries at the cut. That is STAIRs as of 2004, which JISC 4.6 finds to be
Moving State in an eddy. Strategy `jisc` promotes the entries of a key when a tuple is routed to where they are needed.
"""

from __future__ import annotations

from collections.abc import Mapping

from operators.data.tuples import Tuples
from operators.join.tree import XJoinTree
from operators.plan.plan import Plan
from operators.state.match import Prepared
from operators.state.sources import Sources


class Stairs(XJoinTree):
    """Executes a query by routing over the STAIRs of a plan. Each of `joins` is a pair of duals.

    Attributes:
        routings: how often the eddy took a tuple to a STAIR.
    """

    def __init__(self, sources: Sources, plan: Plan) -> None:
        super().__init__(sources, plan)
        self.routings = 0


    def process(self, epoch: Mapping[str, Tuples | Prepared], now: int) -> Tuples:
        """Run one slice; see `Executor.process`."""
        # The tuples in the eddy by the aliases covered. Both duals' tuples are inserted before either is probed.
        waiting = {frozenset({alias}): tuples for alias, tuples in epoch.items() if len(tuples)}
        for _, join in self.joins:
            left, right = (waiting.pop(frozenset(aliases), Tuples.empty(aliases)) for aliases in join.match.sides)
            self.routings += len(left) + len(right)
            if len(left) or len(right):
                waiting[frozenset(join.aliases)] = join.process(left, right, now)
        found = waiting.pop(frozenset(self.plan.aliases), Tuples.empty(self.plan.aliases))
        return found.tuples if isinstance(found, Prepared) else found
