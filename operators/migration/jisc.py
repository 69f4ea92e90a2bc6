"""Just-in-time state completion (JISC): no halt, one plan, missing states are completed where they are probed.

A state of the new plan that the old plan has, complete, is moved; any other is incomplete (definition 1, and
4.5 for overlapping transitions). When tuples are about to probe an incomplete state, the entries under their
join keys are computed first, each key once (definition 2: a key that was attempted is not fresh any more), by
climbing from the highest complete state below (procedures 2 and 3). That holds for left-deep and bushy trees
alike, and for any join columns: a state's keys are looked up in whichever of its inputs has the columns.

A slice's demands are met together. Source tuples about to probe an incomplete state say which of its keys are
wanted; so do, by the same keys, the incomplete states above it. Going down the plan collects what is wanted of each
state, going up again computes it: every state is completed once per slice, not once per state above it. What
intermediate results will ask for is not known then, and is completed when they come.

Where the paper counts down distinct values to detect completion (4.3), so does this: a key of a state is a key of
both its inputs, as far as they are hashed by it. Besides, a state is complete when all old tuples have left their
windows. Clearing windows through incomplete states (4.2) needs
nothing here: every tuple carries its own expiry, and a dead one is never met.

The keys need not be the state's own: `operators.migration.demand` says by which columns its entries are asked for
when its key has columns of both inputs, or when there is no key (theta joins). Where nothing smaller than the whole
state can be asked for, the first probe completes all of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from operators.executor import Executor
from operators.join import BinaryJoin
from operators.kernels.hashing import U64
from operators.keys import key_hashes
from operators.match import LEFT, RIGHT, Match, Prepared
from operators.migration.demand import ByKey, ByRange, demand_of
from operators.migration.lookup import Index, Operands, input_of, member
from operators.migration.migration import Migration, states_by_aliases, tree_like
from operators.migration.moving_state import alive, dropped, moved
from operators.plan import Join, Leaf, Plan
from operators.predicates import Operand
from operators.state import SideState
from operators.tuples import FOREVER, Tuples
from schemas.columns import I64, Column, Mask
from schemas.errors import InvariantError


class Jisc(Migration):
    """Lazy migration; may begin while another one is still completing."""

    def __init__(self, old: Executor, plan: Plan, cut: int) -> None:
        new = tree_like(old, plan)
        super().__init__(old, new, cut)
        self._tree = new
        self._indexes: dict[tuple[frozenset[str], Operands, int], Index] = {}
        held = states_by_aliases(old)
        self.counters.dropped_tuples = dropped(held, plan)
        self._joins = {frozenset(join.aliases): join for _, join in new.joins}
        self._place: dict[frozenset[str], tuple[BinaryJoin, int]] = {}
        self.completions: list[Completer] = []
        for node, join in new.joins:
            for side, child in enumerate((node.left, node.right)):
                aliases = frozenset(child.aliases)
                self._place[aliases] = join, side
                former = held.get(aliases)
                if former is None and (not isinstance(child, Join) or aliases <= self.sources.tables):
                    continue  # a query of one source has no states to move; what is made of tables alone is there
                if former is not None and former[2].complete:
                    join.states[side] = moved(self.sources, former, join.match, side, cut)
                    continue
                assert isinstance(child, Join)
                facing = (node.right, node.left)[side]
                self.completions.append(self._incomplete(join, side, child, facing, former))

    def _incomplete(
        self,
        join: BinaryJoin,
        side: int,
        child: Join,
        facing: Plan,
        former: tuple[Match, int, SideState] | None,
    ) -> Completer:
        """An empty state, or what an earlier transition has of it (4.5)."""
        before, done = self.cut, np.zeros(0, np.uint64)
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
        return Completer(self, child, facing, join, side, before, done)

    @property
    def finished(self) -> bool:
        """True when every state is complete."""
        return all(completer.over for completer in self.completions)

    def progress(self) -> tuple[int, int, str]:
        """Keys completed where they can be counted and have been, else states."""
        counted = [completer.progress() for completer in self.completions]
        if counted and all(total for _, total in counted):
            return sum(done for done, _ in counted), sum(total for _, total in counted), "keys"
        return sum(completer.over for completer in self.completions), len(self.completions), "states"

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice; see `Executor.process`."""
        return self._tree.process(epoch if self.finished else self._met(epoch, now), now)

    def _met(self, epoch: Mapping[str, Tuples], now: int) -> Mapping[str, Tuples | Prepared]:
        """Complete what the slice's source tuples will look for; those tuples, prepared as far as that took."""
        ready: dict[str, Tuples | Prepared] = dict(epoch)
        wanted: dict[int, list[U64]] = {}
        claimed: list[tuple[Completer, U64]] = []
        for completer in reversed(self.completions):  # parents before children
            if completer.over:
                continue
            keys = wanted.pop(id(completer), [])
            facing = completer.facing
            if isinstance(facing, Leaf) and facing.alias in epoch:
                prepared = ready[facing.alias] = completer.prepare(epoch[facing.alias])
                if completer.asked is not None and len(prepared):
                    completer.keys(now)
                    keys.append(completer.asked.wanted(prepared))
            fresh = completer.claim(np.concatenate(keys), now) if keys else None
            if fresh is None:
                continue
            claimed.append((completer, fresh))
            if len(fresh):
                for below in self.below(completer):
                    wanted.setdefault(id(below), []).append(fresh)
        for completer, fresh in reversed(claimed):
            completer.fill(fresh, now)
        return ready

    def below(self, completer: Completer) -> list[Completer]:
        """What completes those inputs of a state that are incomplete and have its keys for theirs."""
        join = self.join_of(completer.node)
        keys = join.match.key(LEFT), join.match.key(RIGHT)
        same = keys if completer.operands in keys else (completer.operands, completer.operands)
        return [
            owed
            for state, operands in zip(join.states, same, strict=True)
            if isinstance(owed := state.owed, Completer) and owed.operands == operands
        ]

    # --- Looking things up in the new plan's states ---------------------------------------------------

    def place(self, node: Plan) -> tuple[BinaryJoin, int]:
        """The join that a sub-plan is an input of, and on which side."""
        return self._place[frozenset(node.aliases)]

    def join_of(self, node: Join) -> BinaryJoin:
        """The join that makes a sub-plan's tuples."""
        return self._joins[frozenset(node.aliases)]

    def everything(self, node: Plan, before: int, now: int) -> Tuples:
        """A sub-plan's tuples with ts < before that one at or after `now` can meet, ascending by ts."""
        join, side = self.place(node)
        state = join.states[side]
        if state.owed is not None:
            state.owed.demand(None, now)
        tuples = alive(self.sources, state, now)
        return tuples.take(tuples.ts < before)

    def lookup(self, node: Plan, operands: Operands, hashes: U64, before: int, now: int) -> Tuples:
        """Those of `everything` whose `operands` hash to one of `hashes`, which are sorted; in any order."""
        join, side = self.place(node)
        state = join.states[side]
        owed = state.owed
        if isinstance(owed, Completer) and owed.operands == operands:
            owed.complete(hashes, now)
        elif join.match.key(side) == operands and owed is not None:
            owed.demand(None, now)
        if join.match.key(side) == operands:
            return self.select(state, hashes, before, now)
        if not isinstance(owed, Completer):
            return self.index(node, operands, before, now).take(hashes)
        if owed.operands == operands:
            tuples = alive(self.sources, state, now)
            tuples = tuples.take(tuples.ts < before)
            return tuples.take(member(self.hashes(tuples, operands), hashes))
        late = alive(self.sources, state, now)
        late = late.take((late.ts >= owed.before) & (late.ts < before))
        late = late.take(member(self.hashes(late, operands), hashes))
        assert isinstance(node, Join)
        return Tuples.concat([self.derive(node, operands, hashes, owed.before, now), late], node.aliases)

    def select(self, state: SideState, hashes: U64, before: int, now: int) -> Tuples:
        """The tuples of a state with ts < before under some of its own keys, found through its hash index."""
        found: list[Tuples] = []
        scratch = self.sources.scratch
        stamps = np.full(len(hashes), now, np.int64)
        for part in (state.older, state):
            start, resume = 0, -1
            while part is not None and start < len(hashes) and part.hi > part.lo:
                count, start, resume, compared = part.probe(
                    hashes, stamps, strict=False, start=start, resume=resume, scratch=scratch
                )
                self.counters.comparisons += compared
                entries = scratch.entries[:count]
                rows, expiry = part.gather(entries)
                found.append(Tuples(state.aliases, rows, part.ts[entries & (part.capacity - 1)], expiry))
        tuples = Tuples.concat(found, state.aliases)
        return tuples.take(tuples.ts < before)

    def derive(self, node: Join, operands: Operands, hashes: U64, before: int, now: int) -> Tuples:
        """The same, computed from the sub-plan's inputs; all components have ts < before."""
        join = self.join_of(node)
        inputs, keys = (node.left, node.right), (join.match.key(LEFT), join.match.key(RIGHT))
        if operands in keys:
            # Both inputs have these keys; what is complete need not be asked for more than the other has.
            side = LEFT if join.states[RIGHT].owed is not None else RIGHT
            operands = keys[side]
        else:
            below = input_of(node, operands)
            if below is None:
                tuples = self.joined(join, self.everything(node.left, before, now), node.right, LEFT, before, now)
                return tuples.take(member(self.hashes(tuples, operands), hashes))
            side = LEFT if below is node.left else RIGHT
        tuples = self.lookup(inputs[side], operands, hashes, before, now)
        return self.joined(join, tuples, inputs[1 - side], side, before, now)

    def joined(self, join: BinaryJoin, tuples: Tuples, other: Plan, side: int, before: int, now: int) -> Tuples:
        """Old tuples of one side of a join with the old ones of the other, as far as one at `now` can meet them."""
        match = join.match
        state = join.states[1 - side]
        probing = match.prepare(side, tuples.reorder(match.sides[side]))
        if state.owed is not None and len(probing):
            state.owed.demand(probing, now)
        found, compared = match.find_alive(side, probing, state, now)
        self.counters.comparisons += compared
        return found.take(found.ts < before)

    def hashes(self, tuples: Tuples, operands: Operands) -> U64:
        """(n,) hashes of some columns; tuples of states have no nulls in columns that any join reads."""
        resolve = self.sources.resolver(tuples.aliases, tuples.rows)
        return key_hashes([operand.values(resolve, len(tuples)) for operand in operands])[0]

    def index(self, node: Plan, operands: Operands, before: int, now: int) -> Index:
        """A complete state's old tuples by key; made once per state and key."""
        join, side = self.place(node)
        state = join.states[side]
        key = (frozenset(node.aliases), operands, before)
        found = self._indexes.get(key)
        if found is None:
            tuples = alive(self.sources, state, now)
            tuples = tuples.take(tuples.ts < before)
            found = self._indexes[key] = Index(tuples, self.hashes(tuples, operands))
        return found

    def keys(self, node: Join, operands: Operands, before: int, now: int) -> U64 | None:
        """The distinct key hashes that an incomplete sub-plan's old tuples can have (4.3); None if unknown."""
        join = self.join_of(node)
        if operands in (join.match.key(LEFT), join.match.key(RIGHT)):
            one, other = (self._keys_of(state, before, now) for state in join.states)
            if one is None or other is None:
                return one if other is None else other
            # Each of its tuples has a part on either side.
            both = np.isin(one, other, assume_unique=True)
            return one if both.all() else one[both]
        below = input_of(node, operands)
        if below is None:
            return None
        join, side = self.place(below)
        owed = join.states[side].owed
        if not isinstance(owed, Completer):
            return self.index(below, operands, before, now).keys
        assert isinstance(below, Join)
        if owed.operands != operands:
            return self.keys(below, operands, before, now)
        missing = owed.keys(now)
        if missing is None or owed.before == before:
            return missing
        return np.union1d(missing, self.hashes(alive(self.sources, join.states[side], now), operands))

    def _keys_of(self, state: SideState, before: int, now: int) -> U64 | None:
        """The keys of its own that a state's old tuples have or will have, at least; None if unknown."""
        owed = state.owed
        if not isinstance(owed, Completer):
            return state.distinct_keys()
        missing = owed.keys(now) if owed.by_key else None
        if missing is None or owed.before == before:
            return missing
        return np.union1d(missing, state.distinct_keys())

    def values(self, node: Join, operand: Operand, now: int) -> Column:
        """The values of an operand among the living tuples of the smallest sub-plans that have its columns, which every
        tuple of the sub-plan is made of; nulls left out."""
        below: Plan = node
        while isinstance(below, Join) and (deeper := input_of(below, (operand,))) is not None:
            below = deeper
        aliases = below.aliases
        if isinstance(below, Join):
            raise InvariantError(f"{operand.expr} is asked for, and {below} has no single source of it")
        join, side = self.place(below)
        tuples = alive(self.sources, join.states[side], now)
        column = operand.values(self.sources.resolver(aliases, tuples.rows), len(tuples))
        return column if column.valid is None else column.take(np.flatnonzero(column.valid))


class Completer:
    """Completes one state on demand.

    Attributes:
        node: whose tuples the state holds; `facing` is what probes it.
        before: the tuples that may be missing have only components with smaller ts.
        asked: how its entries are asked for; None for all or nothing.
        operands: what they are asked for by, empty for all or nothing; `by_key` where that is the state's key.
    """

    def __init__(
        self, jisc: Jisc, node: Join, facing: Plan, join: BinaryJoin, side: int, before: int, done: U64
    ) -> None:
        self._jisc = jisc
        self.node = node
        self.facing = facing
        self._match = join.match
        self._side = side
        self._state = state = join.states[side]
        self.before = before
        self.asked = demand_of(join.match, side, node)
        self.operands: Operands = () if self.asked is None else self.asked.operands
        self.by_key = isinstance(self.asked, ByKey)
        self._inherited = done
        self._keys: U64 | None = None
        self._done: Mask = np.zeros(0, np.bool_)
        self._ready = False
        self._left = 0
        state.owed = self
        if state.life < FOREVER:
            state.older_until = before + state.life

    @property
    def over(self) -> bool:
        """True when the state is complete."""
        return self._state.owed is not self

    def progress(self) -> tuple[int, int]:
        """Keys completed, of how many; (0, 0) while they have not been counted, or cannot be."""
        return (0, 0) if self._keys is None else (int(np.count_nonzero(self._done)), len(self._keys))

    def attempted(self) -> U64:
        """The keys that have been completed."""
        if not self._ready or self._keys is None:
            return self._inherited
        return self._keys[self._done]

    def demand(self, probing: Prepared | None, now: int) -> None:
        """Complete what these tuples look for; None for all."""
        if probing is None or self.asked is None or self.keys(now) is None:
            self._complete_all(now)
        else:
            self.complete(self.asked.wanted(probing), now)

    def complete(self, hashes: U64, now: int) -> None:
        """Complete the entries whose operands have these hashes."""
        fresh = self.claim(hashes, now)
        if fresh is None:
            self._complete_all(now)
        else:
            self.fill(fresh, now)

    def prepare(self, tuples: Tuples) -> Prepared:
        """Tuples of the opposite side, with what they look for here."""
        return self._match.prepare(1 - self._side, tuples)

    def claim(self, hashes: U64, now: int) -> U64 | None:
        """Those of some keys that may have entries which were not computed, each once, ascending; from now on they
        count as attempted, so `fill` must follow. None where completion cannot go by keys."""
        keys = self.keys(now)
        if keys is None:
            return None
        if self._left == 0:
            return keys[:0]
        places = np.searchsorted(keys, hashes)
        places[places == len(keys)] = 0
        places = places[(keys[places] == hashes) & ~self._done[places]]
        if len(places) == 0:
            return keys[:0]
        fresh: I64 = np.unique(places)
        self._done[fresh] = True
        self._left -= len(fresh)
        self._jisc.counters.completed_keys += len(fresh)
        return np.take(keys, fresh)

    def fill(self, keys: U64, now: int) -> None:
        """Compute the entries of claimed keys; the states below have theirs, or complete them on the way."""
        if len(keys):
            self._keep(self._jisc.derive(self.node, self.operands, keys, self.before, now), now)
        if self._left == 0:
            self._state.owed = None

    def keys(self, now: int) -> U64 | None:
        """The distinct keys that entries may be missing of, ascending (4.3); None where they cannot be counted."""
        if not self._ready:
            self._ready = True
            if self.asked is not None:
                if isinstance(self.asked, ByRange):
                    self.asked.know(self._jisc.values(self.node, self.operands[0], now))
                self._keys = self._jisc.keys(self.node, self.operands, self.before, now)
            if self._keys is not None:
                # What an earlier transition has completed need not be computed again.
                self._done = np.isin(self._keys, self._inherited)
                self._left = int(np.count_nonzero(~self._done))
        return self._keys

    def _complete_all(self, now: int) -> None:
        """Compute the whole state; what was completed before is computed again."""
        jisc, node = self._jisc, self.node
        self._state.older = None
        left = jisc.everything(node.left, self.before, now)
        self._keep(jisc.joined(jisc.join_of(node), left, node.right, LEFT, self.before, now), now)
        self._state.owed = None

    def _keep(self, tuples: Tuples, now: int) -> None:
        state, match = self._state, self._match
        if state.older is None:
            state.older = match.new_state(self._side, sorted_by_ts=False)
        new = match.prepare(self._side, tuples.reorder(match.sides[self._side]))
        match.enter(state.older, new, now)
        counters = self._jisc.counters
        counters.made_tuples += len(new)
        counters.extra_tuples += len(new)
        counters.peak_extra_tuples = max(counters.peak_extra_tuples, counters.extra_tuples)
