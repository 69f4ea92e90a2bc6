"""Changes the plan of an executor without intermediate states: M-Joins and eddies with SteMs (HybMig 2.3).

Their states are the sources' tuples, which every plan has, so no state is missing: Moving State has nothing to compute,
HybMig nothing to leave to the old plan, JISC nothing to complete. All three become the same change. At the cut the
states are handed to an executor with the new probe orders (M-Join) or the new tie order (eddy, which chooses its routes
itself, whatever the plan). That costs nothing, unless the new order probes a source by a key by which it has not been
probed before: then the source's tuples are indexed once by that key.
"""

from __future__ import annotations

from operators.join.eddy import Eddy
from operators.join.executor import Executor
from operators.join.mjoin import MJoin
from operators.migration.migration import Migration
from operators.migration.moving_state import alive, filled
from operators.plan.plan import Plan
from operators.state.match import Match
from operators.state.side_state import SideState
from schemas.errors import UsageError


class Reordering(Migration):
    """A change of order. It is finished as soon as it has started."""

    def __init__(self, old: Executor, plan: Plan, cut: int) -> None:
        super().__init__(old, _reordered(old, plan, cut), cut)


def _reordered(old: Executor, plan: Plan, cut: int) -> Executor:
    if not isinstance(old, MJoin | Eddy):
        raise UsageError(f"only M-Joins and eddies change plans by reordering alone, not {type(old).__name__}")
    sources, held = old.sources, old.states()

    def state_of(match: Match, side: int) -> SideState:
        found = held.get(match.signature(side))
        if found is not None:
            return found
        for state in held.values():
            if state.aliases == match.sides[side]:
                # A tuple that a null kept out of one state cannot be in any result.
                return filled(match, side, alive(sources, state, cut), cut)
        return match.new_state(side)

    if isinstance(old, MJoin):
        return MJoin(sources, plan, old.declared, state_of=state_of)
    return Eddy(sources, plan, state_of=state_of)
