"""Completing the incomplete states of a new plan under the keys that are asked for (JISC 4.4, procedures 2 and 3).

The entries of a state under some keys are computed from its two inputs, by climbing from the highest complete state
below. That holds for left-deep and bushy trees alike, and for any join columns: a state's keys are looked up in
whichever of its inputs has the columns.

What is asked for together is completed together. Going down the plan, the keys asked of each state are sifted by the
sources next to it, and asked of the incomplete states below that have them too. Going up again, each is claimed where
the states below have it, and its entries are computed. So every state is completed once, and looks for its keys in its
own inputs alone, not in all that is below them.

A state that has few keys left beside those that are asked for at once is completed with them (`REST_LEAST`). Another
call for it costs as much as hundreds of keys, and so does every probe of a second state (`SideState.older`), which one
that is completed in its first slice does not need. The price is a demand that takes up to four times as long, and
entries that nobody may ask for.
"""

from __future__ import annotations

import numpy as np

from operators.data.keys import key_hashes
from operators.data.tuples import FOREVER, Tuples
from operators.join.binary_join import BinaryJoin, purge_state
from operators.join.tree import XJoinTree
from operators.kernels.hashing import U64
from operators.migration.jisc.counting import KeyCount
from operators.migration.jisc.demand import ByRange, demand_of
from operators.migration.jisc.lookup import Operands, input_of, member
from operators.migration.migration import MigrationCounters
from operators.migration.moving_state import alive
from operators.plan.plan import Join, Plan
from operators.plan.predicates import Operand
from operators.state.match import LEFT, RIGHT, Prepared
from operators.state.side_state import SideState
from schemas.columns import Column, Mask
from schemas.errors import InvariantError

REST_LEAST = 16
REST_PER_KEY = 3
"""With so many keys asked for at once the rest of a state's keys are completed too, if it has at most so many left for
each of them."""


class OldTuples:
    """The old tuples of a new plan, some of whose states lack them.

    Attributes:
        completers: of the incomplete states, children before parents.
        indexes: complete states' tuples by other columns than their own.
        may_count: tuples in which keys may still be counted in this slice.
    """

    def __init__(self, tree: XJoinTree, counters: MigrationCounters) -> None:
        self.sources = tree.sources
        self.counters = counters
        self.completers: list[Completer] = []
        self.indexes: dict[tuple[frozenset[str], Operands], SideState] = {}
        self.may_count = 0
        self._joins = {id(node): join for node, join in tree.joins}
        self._places = {
            id(child): (join, side) for node, join in tree.joins for side, child in enumerate((node.left, node.right))
        }

    @property
    def complete(self) -> bool:
        """True when every state is complete."""
        return all(completer.over for completer in self.completers)

    def useful(self, aliases: frozenset[str], operands: Operands) -> bool:
        """Whether a state's tuples by these columns may be asked for."""
        return any(
            completer.operands == operands and aliases < frozenset(completer.node.aliases)
            for completer in self.completers
        )

    def meet(self, wanted: dict[int, list[U64]], now: int) -> None:
        """Complete what is wanted of completers, by their ids: keys, which may repeat. They are `countable`."""
        sifted: list[tuple[Completer, U64]] = []
        for completer in reversed(self.completers):  # parents before children
            keys = wanted.get(id(completer))
            if keys is None or completer.over:
                continue
            some = completer.sift(keys[0] if len(keys) == 1 else np.concatenate(keys), now)
            if len(some):
                sifted.append((completer, some))
                for below in completer.below:
                    if below.countable(now):
                        wanted.setdefault(id(below), []).append(some)
        for completer, some in reversed(sifted):
            completer.claim(some, now)

    def count(self, completer: Completer) -> None:
        """Count a state's keys, as far as the slice may."""
        self.may_count -= completer.count(self.may_count)

    def purge(self, cut: int) -> None:
        """Drop what no tuple with ts >= cut can meet from the indexes."""
        for index in self.indexes.values():
            purge_state(self.sources, index, cut)

    def size_bytes(self) -> int:
        """Bytes of the indexes, which only the completion needs."""
        return sum(index.size_bytes() for index in self.indexes.values())

    # --- Looking things up in the new plan's states ---------------------------------------------------

    def place(self, node: Plan) -> tuple[BinaryJoin, int]:
        """The join that a sub-plan is an input of, and on which side."""
        return self._places[id(node)]

    def join_of(self, node: Join) -> BinaryJoin:
        """The join that makes a sub-plan's tuples."""
        return self._joins[id(node)]

    def state(self, node: Plan) -> SideState:
        """The state that holds a sub-plan's tuples."""
        join, side = self.place(node)
        return join.states[side]

    def everything(self, node: Plan, before: int, now: int) -> Tuples:
        """A sub-plan's tuples with ts < before that one at or after `now` can meet, ascending by ts."""
        state = self.state(node)
        if state.owed is not None:
            state.owed.demand(None, now)
        tuples = alive(self.sources, state, now)
        return tuples.take(tuples.ts < before)

    def lookup(
        self, node: Plan, operands: Operands, hashes: U64, before: int, now: int, *, asked: bool = False
    ) -> Tuples:
        """Those of `everything` whose `operands` hash to one of `hashes`, which are sorted; in any order.

        Args: `asked` when these have been asked of the sub-plan's state by its completer's operands.
        """
        join, side = self.place(node)
        state = join.states[side]
        owed = state.owed
        own = join.match.key(side) == operands
        if isinstance(owed, Completer) and owed.operands == operands:
            if not (asked and owed.countable(now)):
                owed.complete(hashes, now)
        elif own and owed is not None:
            owed.demand(None, now)
        if own:
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
        own = state if state.first_at(before) > state.lo else None
        for part in (state.older, own):
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

    def derive(
        self, node: Join, operands: Operands, hashes: U64, before: int, now: int, *, asked: bool = False
    ) -> Tuples:
        """The same, computed from the sub-plan's inputs; all components have ts < before.

        Args: `asked` when these have been asked of its incomplete inputs.
        """
        join = self.join_of(node)
        inputs, keys = (node.left, node.right), (join.match.key(LEFT), join.match.key(RIGHT))
        both = operands in keys
        if both:
            # Both inputs have these keys; what is complete need not be asked for more than the other has.
            side = LEFT if join.states[RIGHT].owed is not None else RIGHT
            operands = keys[side]
        else:
            below = input_of(node, operands)
            if below is None:
                tuples = self.joined(join, self.everything(node.left, before, now), node.right, LEFT, before, now)
                return tuples.take(member(self.hashes(tuples, operands), hashes))
            side = LEFT if below is node.left else RIGHT
        tuples = self.lookup(inputs[side], operands, hashes, before, now, asked=asked)
        return self.joined(join, tuples, inputs[1 - side], side, before, now, asked=asked and both)

    def joined(
        self, join: BinaryJoin, tuples: Tuples, other: Plan, side: int, before: int, now: int, *, asked: bool = False
    ) -> Tuples:
        """Old tuples of one side of a join with the old ones of the other, as far as one at `now` can meet them.

        Args: `asked` when the keys of these have been asked of the other side's state by its completer's operands.
        """
        match = join.match
        state = join.states[1 - side]
        probing = match.prepare(side, tuples.reorder(match.sides[side]))
        if state.owed is not None and len(probing):
            met = asked and self._telling(other, match.key(1 - side), now, asked=True) is not None
            if not met:
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
        key = frozenset(node.aliases), operands
        found = self.indexes.get(key)
        if found is None:
            tuples = alive(self.sources, self.state(node), now)
            life = min(self.sources.life[alias] for alias in tuples.aliases)
            found = self.indexes[key] = SideState(tuples.aliases, life, hashed=True)
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
                owed = self.state(child).owed
                if isinstance(owed, Completer) and owed.operands == key and owed.countable(now):
                    state = owed.base
                else:
                    state = self.counted_in(child, key, now)
            found += [] if state is None else [state]
        return min(found, key=len, default=None)

    def near(self, node: Join, operands: Operands, hashes: U64, before: int, now: int) -> Mask:
        """(n,) False where an incomplete sub-plan can have no old tuple of a key, since a complete input has none."""
        good = np.ones(len(hashes), np.bool_)
        for child, key in self._made_of(node, operands):
            state = self._hashed(child, key, now)
            if state is not None:
                good &= state.has(hashes, before)
        return good

    def far(self, node: Join, operands: Operands, hashes: U64, before: int, now: int, *, asked: bool) -> Mask:
        """The same, of what is joined, complete by now or not.

        Args: `asked` when these have been asked of the node's incomplete inputs.
        """
        good = np.ones(len(hashes), np.bool_)
        for child, key in self._made_of(node, operands):
            there = np.flatnonzero(good)
            if not isinstance(child, Join) or not len(there):
                continue
            some = hashes[there]
            state = self._hashed(child, key, now)
            owed = self._telling(child, key, now, asked=asked)
            if state is not None:
                good[there] = state.has(some, before)
            elif owed is not None:
                good[there] = owed.possible(some, before, now)
            else:
                good[there] = self.possible(child, key, some, before, now)
        return good

    def _telling(self, node: Plan, operands: Operands, now: int, *, asked: bool) -> Completer | None:
        """What completes a sub-plan's state, where it can tell which keys are possible."""
        owed = self.state(node).owed
        if not isinstance(owed, Completer) or owed.operands != operands:
            return None
        return owed if owed.counted or (asked and owed.countable(now)) else None

    def possible(self, node: Join, operands: Operands, hashes: U64, before: int, now: int) -> Mask:
        """(n,) False where an incomplete sub-plan can have no old tuple of some key, since an input of it has none."""
        good = self.near(node, operands, hashes, before, now)
        there = np.flatnonzero(good)
        if len(there):
            good[there] = self.far(node, operands, hashes[there], before, now, asked=False)
        return good

    def below(self, node: Join, operands: Operands) -> list[Completer]:
        """What completes those inputs of a sub-plan that are incomplete and have these of its keys for theirs."""
        join = self.join_of(node)
        keys = join.match.key(LEFT), join.match.key(RIGHT)
        same = keys if operands in keys else (operands, operands)
        return [
            owed
            for state, key in zip(join.states, same, strict=True)
            if isinstance(owed := state.owed, Completer) and owed.operands == key
        ]

    def values(self, node: Join, operand: Operand, now: int) -> Column:
        """The values of an operand among the living tuples of the smallest sub-plans that have its columns, which every
        tuple of the sub-plan is made of; nulls left out."""
        below: Plan = node
        while isinstance(below, Join) and (deeper := input_of(below, (operand,))) is not None:
            below = deeper
        aliases = below.aliases
        if isinstance(below, Join):
            raise InvariantError(f"{operand.expr} is asked for, and {below} has no single source of it")
        tuples = alive(self.sources, self.state(below), now)
        column = operand.values(self.sources.resolver(aliases, tuples.rows), len(tuples))
        return column if column.valid is None else column.take(np.flatnonzero(column.valid))


class Completer:
    """Completes one state on demand.

    Attributes:
        node: whose tuples the state holds; `facing` is what probes it.
        before: the tuples that may be missing have only components with smaller ts.
        asked: how its entries are asked for; None for all or nothing.
        operands: what they are asked for by, empty for all or nothing.
        base: the state in which its keys are counted; None where they cannot be, or nothing was asked for yet.
    """

    def __init__(
        self, old: OldTuples, node: Join, facing: Plan, join: BinaryJoin, side: int, before: int, done: U64
    ) -> None:
        self._old = old
        self.node = node
        self.facing = facing
        self._match = join.match
        self._side = side
        self._state = state = join.states[side]
        self.before = before
        self.asked = demand_of(join.match, side, node)
        self.operands: Operands = () if self.asked is None else self.asked.operands
        self.base: SideState | None = None
        self._inherited = done
        self._asked_for = False
        self._keys: KeyCount | None = None
        self._below: list[Completer] = []
        self._within: list[Completer] = []
        self._met: Prepared | None = None
        state.owed = self
        if state.life < FOREVER:
            state.older_until = before + state.life

    @property
    def over(self) -> bool:
        """True when the state is complete."""
        return self._state.owed is not self

    @property
    def below(self) -> list[Completer]:
        """What completes those inputs of the state that are incomplete and have its keys for theirs; once `countable`
        has been asked."""
        return [completer for completer in self._below if not completer.over]

    def progress(self) -> tuple[int, int]:
        """Keys completed, of how many; (0, 0) until they have been counted, and where they cannot be."""
        return (0, 0) if self._keys is None else self._keys.progress()

    def attempted(self) -> U64:
        """The keys that have been completed."""
        return self._inherited if self._keys is None else self._keys.attempted()

    def prepare(self, tuples: Tuples) -> Prepared:
        """Source tuples of a slice, with what they look for here; `meet` has to see to that before they do."""
        self._met = self._match.prepare(1 - self._side, tuples)
        return self._met

    def demand(self, probing: Prepared | None, now: int) -> None:
        """Complete what these tuples look for; None for all."""
        if probing is None or self.asked is None or not self.countable(now):
            self._complete_all(now)
        elif probing is not self._met:
            self.complete(self.asked.wanted(probing), now)

    def complete(self, hashes: U64, now: int) -> None:
        """Complete the entries whose operands have these hashes."""
        if self.countable(now):
            self._old.meet({id(self): [hashes]}, now)
        else:
            self._complete_all(now)

    def sift(self, hashes: U64, now: int) -> U64:
        """Those of some keys that may have entries which were not computed, as far as complete inputs tell; each once,
        ascending."""
        keys = self._counted_keys()
        some = keys.sift(hashes, lambda unknown: self._old.near(self.node, self.operands, unknown, self.before, now))
        few = keys.ended and keys.left - len(some) <= REST_PER_KEY * len(some)
        return keys.rest() if few and len(some) >= REST_LEAST else some

    def claim(self, hashes: U64, now: int) -> None:
        """Compute the entries of sifted keys, which have been asked of the states below as well."""
        keys = self._counted_keys()
        old, node, operands, before = self._old, self.node, self.operands, self.before
        fresh = keys.claim(hashes, lambda unknown: old.far(node, operands, unknown, before, now, asked=True))
        old.counters.completed_keys += len(fresh)
        if len(fresh):
            self._keep(old.derive(node, operands, fresh, before, now, asked=True), now, last=keys.exhausted)
        self.settle()

    def settle(self) -> None:
        """See whether the state is complete by now."""
        if self._keys is not None and self._keys.exhausted:
            self._state.owed = None

    def countable(self, now: int) -> bool:
        """Whether entries can be asked for by keys; when first asked, begins to count those (4.3)."""
        if not self._asked_for:
            self._asked_for = True
            old, node, operands, before = self._old, self.node, self.operands, self.before
            if isinstance(self.asked, ByRange):
                self.asked.know(old.values(node, operands[0], now))
            # Below first: what has been counted there need not be looked for again.
            self._below = self._within = old.below(node, operands)
            for below in self._below:
                below.countable(now)
            self.base = None if self.asked is None else old.counted_in(node, operands, now)
            if self.base is not None:
                self._keys = KeyCount(
                    self.base, before, lambda keys: old.possible(node, operands, keys, before, now), self._inherited
                )
                old.count(self)
        return self._keys is not None

    def count(self, most: int) -> int:
        """Look for keys in up to so many tuples more, if any were asked for and what is below is counted; in how
        many."""
        if self._keys is None or self.counted or self.over or any(b.counting for b in self._within):
            return 0
        found = [b._keys for b in self._within if b._keys is not None and b.counted and b.before == self.before]
        if found:
            self._keys.within(min(found, key=lambda keys: keys.hi))
            self._within = []
        return self._keys.count(most)

    @property
    def counted(self) -> bool:
        """True when keys were asked for and have been counted."""
        return self._keys is not None and self._keys.ended

    @property
    def counting(self) -> bool:
        """True while keys are being counted."""
        return self._keys is not None and not (self._keys.ended or self.over)

    def possible(self, hashes: U64, before: int, now: int) -> Mask:
        """(n,) False where there is no tuple with ts < before under a key, here or missing; once they are counted, or
        of keys that have been asked for."""
        known, unsure = self._counted_keys().known(hashes)
        if len(unsure):
            known[unsure] = self._old.possible(self.node, self.operands, hashes[unsure], self.before, now)
        if before == self.before:
            return known
        # What came after the transition that left this state incomplete is here.
        whole = self.operands == self._match.key(self._side)
        return known | self._state.has(hashes, before) if whole else np.ones(len(hashes), np.bool_)

    def _counted_keys(self) -> KeyCount:
        if self._keys is None:
            raise InvariantError(f"entries of {self.node} are asked for by keys that cannot be counted")
        return self._keys

    def _complete_all(self, now: int) -> None:
        """Compute the whole state; what was completed before is computed again."""
        old, node = self._old, self.node
        self._state.older = None
        left = old.everything(node.left, self.before, now)
        tuples = old.joined(old.join_of(node), left, node.right, LEFT, self.before, now)
        self._keep(tuples, now, last=True)
        self._state.owed = None

    def _keep(self, tuples: Tuples, now: int, *, last: bool) -> None:
        """Args: `last` when the state is complete with them."""
        state, match = self._state, self._match
        if last and state.hi == state.lo:
            # One state to probe, not two: what comes after them is later.
            tuples, into = tuples.take(np.argsort(tuples.ts, kind="stable").astype(np.int64, copy=False)), state
        else:
            if state.older is None:
                state.older = match.new_state(self._side, sorted_by_ts=False)
            into = state.older
        new = match.prepare(self._side, tuples.reorder(match.sides[self._side]))
        match.enter(into, new, now)
        counters = self._old.counters
        counters.made_tuples += len(new)
        counters.extra_tuples += len(new)
        counters.peak_extra_tuples = max(counters.peak_extra_tuples, counters.extra_tuples)
