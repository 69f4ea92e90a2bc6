"""Just-in-time state completion (JISC): no halt, one plan, missing states are completed where they are probed.

A state of the new plan that the old plan has, complete, is moved; any other is incomplete (definition 1, and
4.5 for overlapping transitions). When tuples are about to probe an incomplete state, the entries under their
join keys are computed first, each key once (definition 2: a key that was attempted is not fresh any more).

A slice's demands are met together (`operators.migration.jisc.completion`). Source tuples about to probe an incomplete
state say which of its keys are wanted before any of them is entered. What intermediate results will ask for is not
known then, and is completed when they come.

Where the paper counts down distinct values to detect completion (4.3), so does this, a piece per slice
(`operators.migration.jisc.counting`): a key of a state is a key of both its inputs, as far as they are hashed by it.
Besides, a state is complete when all old tuples have left their windows. Clearing windows through incomplete states
(4.2) needs nothing here: every tuple carries its own expiry, and a dead one is never met.

No slice pays for a whole state, with three exceptions. A state that the new plan joins by other columns is indexed anew
at the cut. Where entries are looked up by columns by which neither plan has an index, one is made at the first
demand, once per state and columns. Both are a pass over the state. And a demand for many of the keys that a state lacks
completes the rest.

The keys need not be the state's own: `operators.migration.jisc.demand` says by which columns its entries are asked for
when its key has columns of both inputs, or when there is no key (theta joins). Where nothing smaller than the whole
state can be asked for, the first probe completes all of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from operators.data.tuples import Tuples
from operators.join.binary_join import BinaryJoin
from operators.join.executor import Executor
from operators.kernels.hashing import U64
from operators.migration.jisc.completion import Completer, OldTuples
from operators.migration.jisc.demand import demand_of
from operators.migration.jisc.lookup import Operands
from operators.migration.migration import Migration, states_by_aliases, tree_like
from operators.migration.moving_state import dropped, moved
from operators.plan.plan import Join, Leaf, Plan
from operators.state.match import Match, Prepared
from operators.state.side_state import SideState
from schemas.errors import InvariantError

COUNTED_TUPLES = 4_096
COUNTED_PER_TUPLE = 8
"""Tuples in which keys are counted per slice, over all states: about half a millisecond. More, where so many for each
tuple that came are more."""

NO_KEYS: U64 = np.zeros(0, np.uint64)


class Jisc(Migration):
    """Lazy migration; may begin while another one is still completing."""

    def __init__(self, old: Executor, plan: Plan, cut: int) -> None:
        new = tree_like(old, plan)
        super().__init__(old, new, cut)
        self._tree = new
        self._old_tuples = OldTuples(new, self.counters)
        held = states_by_aliases(old)
        self.counters.dropped_tuples = dropped(held, plan)
        self.completions = self._old_tuples.completers
        indexes: dict[tuple[frozenset[str], Operands], SideState] = {}
        for node, join in new.joins:
            for side, child in enumerate((node.left, node.right)):
                aliases = frozenset(child.aliases)
                former = held.get(aliases)
                if former is None and (not isinstance(child, Join) or aliases <= self.sources.tables):
                    continue  # a query of one source has no states to move; what is made of tables alone is there
                if former is not None and former[2].complete:
                    state = join.states[side] = moved(self.sources, former, join.match, side, cut)
                    if state is not former[2] and former[2].hashed:
                        indexes[aliases, former[0].key(former[1])] = former[2]
                    continue
                assert isinstance(child, Join)
                facing = (node.right, node.left)[side]
                self.completions.append(self._incomplete(join, side, child, facing, former))
        useful = self._old_tuples.useful
        self._old_tuples.indexes |= {index: state for index, state in indexes.items() if useful(*index)}

    def _incomplete(
        self,
        join: BinaryJoin,
        side: int,
        child: Join,
        facing: Plan,
        former: tuple[Match, int, SideState] | None,
    ) -> Completer:
        """An empty state, or what an earlier transition has of it (4.5)."""
        before, done = self.cut, NO_KEYS
        if former is not None:
            match, former_side, state = former
            owed = state.owed
            if not isinstance(owed, Completer):
                raise InvariantError(f"the state of {child} is incomplete and nothing completes it")
            before = owed.before
            asked = demand_of(join.match, side, child)
            same = () if asked is None else asked.operands
            if match.signature(former_side) == join.match.signature(side) and owed.operands == same:
                join.states[side] = state
                done = owed.attempted()
            else:
                # Keys that were attempted say nothing about keys of other columns: begin again.
                state.older = None
                join.states[side] = moved(self.sources, former, join.match, side, self.cut)
        return Completer(self._old_tuples, child, facing, join, side, before, done)

    @property
    def finished(self) -> bool:
        """True when every state is complete."""
        return self._old_tuples.complete

    def progress(self) -> tuple[int, int, str]:
        """Keys completed where they can be counted and have been, else states."""
        counted = [completer.progress() for completer in self.completions]
        if counted and all(total for _, total in counted):
            return sum(done for done, _ in counted), sum(total for _, total in counted), "keys"
        return sum(completer.over for completer in self.completions), len(self.completions), "states"

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice; see `Executor.process`."""
        if self.finished:
            return self._tree.process(epoch, now)
        old = self._old_tuples
        old.may_count = max(COUNTED_TUPLES, COUNTED_PER_TUPLE * sum(len(tuples) for tuples in epoch.values()))
        for completer in self.completions:
            old.count(completer)
            completer.settle()
        return self._tree.process(self._met(epoch, now), now)

    def purge(self, cut: int) -> None:
        """Drop what no tuple with ts >= cut can meet."""
        super().purge(cut)
        self._old_tuples.purge(cut)

    def size_bytes(self) -> int:
        """Bytes of all states, and of the indexes that only the completion needs."""
        return super().size_bytes() + self._old_tuples.size_bytes()

    def _met(self, epoch: Mapping[str, Tuples], now: int) -> Mapping[str, Tuples | Prepared]:
        """Complete what the slice's source tuples will look for; those tuples, prepared as far as that took."""
        ready: dict[str, Tuples | Prepared] = dict(epoch)
        wanted: dict[int, list[U64]] = {}
        for completer in self.completions:
            facing = completer.facing
            if completer.over or completer.asked is None or not isinstance(facing, Leaf) or facing.alias not in epoch:
                continue
            prepared = ready[facing.alias] = completer.prepare(epoch[facing.alias])
            if len(prepared) and completer.countable(now):
                wanted[id(completer)] = [completer.asked.wanted(prepared)]
        self._old_tuples.meet(wanted, now)
        return ready
