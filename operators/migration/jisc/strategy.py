"""Just-in-time state completion (JISC): no halt, one plan, and missing states are completed where they are probed.

`operators.migration.strategies` lists it. A complete state of the old plan that the new plan has too is moved; any
other state is incomplete (definition 1, and 4.5 for overlapping transitions). When tuples are about to probe an
incomplete state, the entries under their join keys are computed first, each key once (definition 2: a key that was
attempted is not fresh any more).

All requests of a slice are completed together (`operators.migration.jisc.completion`). The source tuples that are about
to probe an incomplete state determine its requested keys before any of them enters. The requests of intermediate
results are not known then, and are completed when these arrive.

The paper counts down distinct values to detect completion (4.3). This does so too, a piece per slice
(`operators.migration.jisc.counting`): a key of a state is a key of both its inputs, as far as they are hashed by it. A
state is also complete when all old tuples have left their windows. Clearing windows through incomplete states (4.2)
needs nothing here: every tuple carries its own expiry, and an expired tuple never matches.

No slice bears the cost of a whole state, with three exceptions. A state that the new plan joins by other columns is
re-indexed at the cut. If entries are looked up by columns by which neither plan has an index, an index is made at the
first request, once per state and columns. Both are a pass over the state. And a request for many of the keys that a
state lacks completes the rest.

The keys need not be the state's own: `operators.migration.jisc.demand` determines the columns by which entries are
requested when the key has columns of both inputs, or when there is no key (theta joins). If nothing smaller than the
whole state can be requested, the first probe completes all of it.
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
"""Keys are counted in at most this many tuples per slice, over all states, which takes about half a millisecond. The
limit is COUNTED_TUPLES, or COUNTED_PER_TUPLE for each tuple that arrived if that is more."""

NO_KEYS: U64 = np.zeros(0, np.uint64)


class Jisc(Migration):
    """Lazy migration; it may start while another one is still completing.

    Attributes:
        completions: The completers of the incomplete states, children before parents.
    """

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
                    continue  # a query of one source has no states to move; sub-plans over tables alone are complete
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
        """Return the completer of an empty state, or of what an earlier transition left of it (4.5)."""
        before, done = self.cut, NO_KEYS
        if former is not None:
            match, former_side, state = former
            completer = state.completion
            if not isinstance(completer, Completer):
                raise InvariantError(f"the state of {child} is incomplete and nothing completes it")
            before = completer.before
            asked = demand_of(join.match, side, child)
            same = () if asked is None else asked.operands
            if match.signature(former_side) == join.match.signature(side) and completer.operands == same:
                join.states[side] = state
                done = completer.attempted()
            else:
                # Attempted keys tell nothing about keys of other columns: start again.
                state.older = None
                join.states[side] = moved(self.sources, former, join.match, side, self.cut)
        return Completer(self._old_tuples, child, facing, join, side, before, done)

    @property
    def finished(self) -> bool:
        """True when every state is complete."""
        return self._old_tuples.complete

    def progress(self) -> tuple[int, int, str]:
        """Return the keys completed, if all can be counted and have been; otherwise the states."""
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
            completer.check_complete()
        return self._tree.process(self._met(epoch, now), now)

    def purge(self, cut: int) -> None:
        """Drop what no tuple with ts >= cut can match."""
        super().purge(cut)
        self._old_tuples.purge(cut)

    def size_bytes(self) -> int:
        """Bytes of all states, and of the indexes that only the completion needs."""
        return super().size_bytes() + self._old_tuples.size_bytes()

    def _met(self, epoch: Mapping[str, Tuples], now: int) -> Mapping[str, Tuples | Prepared]:
        """Complete what the slice's source tuples will look for. Return these tuples, prepared as far as that
        required."""
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
