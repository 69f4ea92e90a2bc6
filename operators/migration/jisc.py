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

Where the paper counts down distinct values to detect completion (4.3), so does this, a piece per slice
(`operators.migration.counting`): a key of a state is a key of both its inputs, as far as they are hashed by it.
Besides, a state is complete when all old tuples have left their windows. Clearing windows through incomplete states
(4.2) needs nothing here: every tuple carries its own expiry, and a dead one is never met.

No slice pays for a whole state, with two exceptions. A state that the new plan joins by other columns is indexed anew
at the cut. And where entries are looked up by columns by which neither plan has an index, one is made at the first
demand, once per state and columns. Both are a pass over the state.

The keys need not be the state's own: `operators.migration.demand` says by which columns its entries are asked for
when its key has columns of both inputs, or when there is no key (theta joins). Where nothing smaller than the whole
state can be asked for, the first probe completes all of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from operators.executor import Executor
from operators.join import BinaryJoin, purge_state
from operators.kernels.hashing import U64
from operators.keys import key_hashes
from operators.match import LEFT, RIGHT, Match, Prepared
from operators.migration.counting import KeyCount
from operators.migration.demand import ByRange, demand_of
from operators.migration.lookup import Operands, input_of, member
from operators.migration.migration import Migration, states_by_aliases, tree_like
from operators.migration.moving_state import alive, dropped, moved
from operators.plan import Join, Leaf, Plan
from operators.predicates import Operand
from operators.state import SideState
from operators.tuples import FOREVER, Tuples
from schemas.columns import Column, Mask
from schemas.errors import InvariantError

COUNTED_TUPLES = 4_096
"""Tuples in which keys are counted per slice, over all states: about half a millisecond. In as many as came, if more
did."""

NO_KEYS: U64 = np.zeros(0, np.uint64)


class Jisc(Migration):
    """Lazy migration; may begin while another one is still completing."""

    def __init__(self, old: Executor, plan: Plan, cut: int) -> None:
        new = tree_like(old, plan)
        super().__init__(old, new, cut)
        self._tree = new
        self._indexes: dict[tuple[frozenset[str], Operands], SideState] = {}
        self._to_count = 0
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
                    state = join.states[side] = moved(self.sources, former, join.match, side, cut)
                    if state is not former[2] and former[2].hashed:
                        self._indexes[aliases, former[0].key(former[1])] = former[2]
                    continue
                assert isinstance(child, Join)
                facing = (node.right, node.left)[side]
                self.completions.append(self._incomplete(join, side, child, facing, former))
        self._indexes = {index: state for index, state in self._indexes.items() if self._useful(*index)}

    def _useful(self, aliases: frozenset[str], operands: Operands) -> bool:
        """Whether an index of the old plan may be asked for."""
        return any(
            completer.operands == operands and aliases < frozenset(completer.node.aliases)
            for completer in self.completions
        )

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
        if self.finished:
            return self._tree.process(epoch, now)
        self._to_count = max(COUNTED_TUPLES, sum(len(tuples) for tuples in epoch.values()))
        for completer in self.completions:
            self.count(completer)
            completer.fill(NO_KEYS, now)
        return self._tree.process(self._met(epoch, now), now)

    def count(self, completer: Completer) -> None:
        """Count a state's keys, as far as the slice may."""
        self._to_count -= completer.count(self._to_count)

    def purge(self, cut: int) -> None:
        """Drop what no tuple with ts >= cut can meet."""
        super().purge(cut)
        for index in self._indexes.values():
            purge_state(self.sources, index, cut)

    def size_bytes(self) -> int:
        """Bytes of all states, and of the indexes that only the completion needs."""
        return super().size_bytes() + sum(index.size_bytes() for index in self._indexes.values())

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
                if completer.asked is not None and len(prepared) and completer.countable(now):
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
            return self.select(self.index(node, operands, now), hashes, before, now)
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

    def index(self, node: Plan, operands: Operands, now: int) -> SideState:
        """A complete state's tuples by other columns than its own: the old plan's state, or made once."""
        join, side = self.place(node)
        key = frozenset(node.aliases), operands
        found = self._indexes.get(key)
        if found is None:
            tuples = alive(self.sources, join.states[side], now)
            life = min(self.sources.life[alias] for alias in tuples.aliases)
            found = self._indexes[key] = SideState(tuples.aliases, life, hashed=True)
            found.insert(tuples, self.hashes(tuples, operands))
        return found

    def _hashed(self, node: Plan, operands: Operands, now: int) -> SideState | None:
        """A complete state's tuples by some columns; None where it is incomplete."""
        join, side = self.place(node)
        state = join.states[side]
        if not state.complete:
            return None
        return state if join.match.key(side) == operands else self.index(node, operands, now)

    def _made_of(self, node: Join, operands: Operands) -> list[tuple[Plan, Operands]]:
        """The inputs of a sub-plan that a key of its tuples is also a key of, and by which of their columns."""
        join = self.join_of(node)
        keys = join.match.key(LEFT), join.match.key(RIGHT)
        if operands in keys:
            return list(zip((node.left, node.right), keys, strict=True))
        below = input_of(node, operands)
        return [] if below is None else [(below, operands)]

    def counted_in(self, node: Join, operands: Operands, now: int) -> SideState | None:
        """A complete state, the smallest, that has all keys that old tuples of an incomplete sub-plan can have (4.3);
        None where no state is hashed by them."""
        found: list[SideState] = []
        for child, key in self._made_of(node, operands):
            state = self._hashed(child, key, now)
            if state is None and isinstance(child, Join):
                state = self.counted_in(child, key, now)
            found += [] if state is None else [state]
        return min(found, key=len, default=None)

    def possible(self, node: Join, operands: Operands, hashes: U64, before: int, now: int) -> Mask:
        """(n,) False where an incomplete sub-plan can have no old tuple of some key, since an input of it has none."""
        good = np.ones(len(hashes), np.bool_)
        incomplete: list[tuple[Plan, Operands]] = []
        for child, key in self._made_of(node, operands):
            state = self._hashed(child, key, now)
            if state is None:
                incomplete.append((child, key))
            else:
                good &= state.has(hashes, before)
        for child, key in incomplete:
            there = np.flatnonzero(good)
            join, side = self.place(child)
            owed = join.states[side].owed
            if isinstance(owed, Completer) and owed.operands == key and owed.counted:
                good[there] = owed.possible(hashes[there], before)
            elif isinstance(child, Join) and len(there):
                good[there] = self.possible(child, key, hashes[there], before, now)
        return good

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
        operands: what they are asked for by, empty for all or nothing.
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
        self._inherited = done
        self._asked_for = False
        self._keys: KeyCount | None = None
        self._below: list[Completer] = []
        state.owed = self
        if state.life < FOREVER:
            state.older_until = before + state.life

    @property
    def over(self) -> bool:
        """True when the state is complete."""
        return self._state.owed is not self

    def progress(self) -> tuple[int, int]:
        """Keys completed, of how many; (0, 0) until they have been counted, and where they cannot be."""
        return (0, 0) if self._keys is None else self._keys.progress()

    def attempted(self) -> U64:
        """The keys that have been completed."""
        return self._inherited if self._keys is None else self._keys.attempted()

    def demand(self, probing: Prepared | None, now: int) -> None:
        """Complete what these tuples look for; None for all."""
        if probing is None or self.asked is None or not self.countable(now):
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
        if not self.countable(now) or self._keys is None:
            return None
        fresh = self._keys.claim(hashes)
        self._jisc.counters.completed_keys += len(fresh)
        return fresh

    def fill(self, keys: U64, now: int) -> None:
        """Compute the entries of claimed keys; the states below have theirs, or complete them on the way."""
        if len(keys):
            self._keep(self._jisc.derive(self.node, self.operands, keys, self.before, now), now)
        if self._keys is not None and self._keys.exhausted:
            self._state.owed = None

    def countable(self, now: int) -> bool:
        """Whether entries can be asked for by keys; when first asked, begins to count those (4.3)."""
        if not self._asked_for:
            self._asked_for = True
            jisc, node, operands, before = self._jisc, self.node, self.operands, self.before
            if isinstance(self.asked, ByRange):
                self.asked.know(jisc.values(node, operands[0], now))
            # Below first: what has been counted there need not be looked for again.
            self._below = jisc.below(self)
            for below in self._below:
                below.countable(now)
            base = None if self.asked is None else jisc.counted_in(node, operands, now)
            if base is not None:
                self._keys = KeyCount(
                    base, before, lambda keys: jisc.possible(node, operands, keys, before, now), self._inherited
                )
                jisc.count(self)
        return self._keys is not None

    def count(self, most: int) -> int:
        """Look for keys in up to so many tuples more, if any were asked for and what is below is counted; in how
        many."""
        if self._keys is None or self.counted or self.over or any(b.counting for b in self._below):
            return 0
        found = [b._keys for b in self._below if b._keys is not None and b.counted and b.before == self.before]
        if found:
            self._keys.within(min(found, key=lambda keys: keys.hi))
            self._below = []
        return self._keys.count(most)

    @property
    def counted(self) -> bool:
        """True when keys were asked for and have been counted."""
        return self._keys is not None and self._keys.ended

    @property
    def counting(self) -> bool:
        """True while keys are being counted."""
        return self._keys is not None and not (self._keys.ended or self.over)

    def possible(self, keys: U64, before: int) -> Mask:
        """(n,) False where there is no tuple with ts < before under a key, here or missing; once they are counted."""
        if self._keys is None:
            return np.ones(len(keys), np.bool_)
        known = self._keys.counted(keys)
        if before == self.before:
            return known
        # What came after the transition that left this state incomplete is here.
        whole = self.operands == self._match.key(self._side)
        return known | self._state.has(keys, before) if whole else np.ones(len(keys), np.bool_)

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
