"""Moving State (HybMig 2.2; Zhu 2004): halt, compute every state that the new plan lacks, and continue.

State matching and moving: a state of the old plan over the same aliases is taken over. It is re-keyed if the new plan
joins it by other columns. State recomputation: the other states are joined bottom up from those that exist.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from operators.data.tuples import Tuples
from operators.join.binary_join import BinaryJoin
from operators.join.executor import Executor
from operators.migration.migration import Migration, states_by_aliases, tree_like
from operators.plan.plan import Join, Plan, postorder
from operators.state.match import Match
from operators.state.side_state import SideState
from operators.state.sources import Sources


class MovingState(Migration):
    """Moving State. It is finished as soon as it has started; its whole cost arises at the cut."""

    def __init__(self, old: Executor, plan: Plan, cut: int) -> None:
        new = tree_like(old, plan)
        super().__init__(old, new, cut)
        self._held = states_by_aliases(old)
        self.counters.dropped_tuples = dropped(self._held, plan)
        self._made: dict[frozenset[str], Tuples] = {}
        for node, join in new.joins:
            for side, child in enumerate((node.left, node.right)):
                join.states[side] = self._state(join.match, side, child)

    def _state(self, match: Match, side: int, child: Plan) -> SideState:
        """Return the state of a join's input: moved if the old plan has it, else computed."""
        held = self._held.get(frozenset(child.aliases))
        if held is not None:
            return moved(self.sources, held, match, side, self.cut)
        made = filled(match, side, self._alive(child), self.cut)
        self.counters.made_tuples += len(made)
        self.counters.extra_tuples += len(made)
        self.counters.peak_extra_tuples = self.counters.extra_tuples
        return made

    def _alive(self, node: Plan) -> Tuples:
        """Return the old tuples of a sub-plan that a tuple at or after the cut can match."""
        key = frozenset(node.aliases)
        if key in self._made:
            return self._made[key]
        held = self._held.get(key)
        if held is not None or not isinstance(node, Join):
            tuples = Tuples.empty(node.aliases)
            if held is not None:
                tuples = alive(self.sources, held[2], self.cut).reorder(node.aliases)
        else:
            join = BinaryJoin(self.sources, node.left.aliases, node.right.aliases)
            tuples = join.process(self._alive(node.left), self._alive(node.right), 0)
            self.counters.comparisons += join.counters.comparisons
            tuples = tuples.take(tuples.expiry >= self.cut)
        self._made[key] = tuples
        return tuples


def alive(sources: Sources, state: SideState, cut: int) -> Tuples:
    """Return the state's tuples that a tuple at or after the cut can match. Tuples that have left ROWS windows are gone
    with their store."""
    tuples = state.tuples()
    good = np.asarray(tuples.expiry >= cut)
    if sources.rows_windows:
        for k, alias in enumerate(tuples.aliases):
            good &= tuples.rows[k] >= sources.store(alias).lo
    return tuples if good.all() else tuples.take(good)


def dropped(held: Mapping[frozenset[str], tuple[Match, int, SideState]], plan: Plan) -> int:
    """Return the number of entries in the old plan's states for which the new plan has no state."""
    needed = {frozenset(node.aliases) for node in postorder(plan)}
    return sum(len(state) for aliases, (_, _, state) in held.items() if aliases not in needed)


def moved(sources: Sources, held: tuple[Match, int, SideState], match: Match, side: int, cut: int) -> SideState:
    """Return a state of the old plan for a match of the new one: the state itself if both read the same columns of its
    tuples."""
    former, former_side, state = held
    if former.signature(former_side) == match.signature(side):
        return state
    return filled(match, side, alive(sources, state, cut).reorder(match.sides[side]), cut)


def filled(match: Match, side: int, tuples: Tuples, cut: int) -> SideState:
    """Return a new state with `tuples`, which ascend by ts."""
    state = match.new_state(side)
    match.enter(state, match.prepare(side, tuples), cut)
    return state
