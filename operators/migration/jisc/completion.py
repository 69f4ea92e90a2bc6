"""Completes the incomplete states of a new plan under the keys that are requested (JISC 4.4, procedures 2 and 3).

`operators.migration.jisc.strategy` creates a `Completer` per incomplete state. The entries of a state under some keys
are computed from its two inputs, upwards from the highest complete state below. That holds for left-deep and bushy
trees alike, and for any join columns: a state's keys are looked up in the input that has the columns.

Keys that are requested together are completed together. Going down the plan, the keys requested of each state are
sifted by the sources next to it, and requested of the incomplete states below that have them too. Going up again, each
key that the states below have is claimed, and its entries are computed. So every state is completed once, and looks for
its keys in its own inputs alone, not in everything below them.

A state that has few keys left beyond those requested at once is completed with them (`MIN_KEYS_FOR_REST`). Another call
for it costs as much as hundreds of keys. So does every probe of a second state (`SideState.older`), which a state that
is completed in its first slice does not need. The price is a request that takes up to four times as long, and entries
that may never be requested.
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

MIN_KEYS_FOR_REST = 16
REST_PER_KEY = 3
"""If at least MIN_KEYS_FOR_REST keys are requested at once, and the state has at most REST_PER_KEY keys left for each
of them, the rest is completed too."""


class OldTuples:
    """The old tuples of a new plan, some of whose states lack them.

    Attributes:
        sources: The query's sources.
        counters: The migration's cost so far.
        completers: The completers of the incomplete states, children before parents.
        indexes: Complete states' tuples by other columns than their own.
        may_count: The tuples in which keys may still be counted in this slice.
    """

    def __init__(self, tree: XJoinTree, counters: MigrationCounters) -> None:
        self.sources = tree.sources
        self.counters = counters
        self.completers: list[Completer] = []
        self.indexes: dict[tuple[frozenset[str], Operands], SideState] = {}
        self.may_count = 0
        self._joins = {id(node): join for node, join in tree.joins}
        self._joins_above = {
            id(child): (join, side) for node, join in tree.joins for side, child in enumerate((node.left, node.right))
        }

    @property
    def complete(self) -> bool:
        """True when every state is complete."""
        return all(completer.over for completer in self.completers)

    def useful(self, aliases: frozenset[str], operands: Operands) -> bool:
        """Return whether a state's tuples by these columns may be requested."""
        return any(
            completer.operands == operands and aliases < frozenset(completer.node.aliases)
            for completer in self.completers
        )

    def meet(self, wanted: dict[int, list[U64]], now: int) -> None:
        """Complete the keys requested of completers, by the completers' ids; keys may repeat. The completers are
        `countable`."""
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
        """Count a state's keys, as far as the slice allows."""
        self.may_count -= completer.count(self.may_count)

    def purge(self, cut: int) -> None:
        """Drop what no tuple with ts >= cut can match from the indexes."""
        for index in self.indexes.values():
            purge_state(self.sources, index, cut)

    def size_bytes(self) -> int:
        """Bytes of the indexes, which only the completion needs."""
        return sum(index.size_bytes() for index in self.indexes.values())

    # --- Looking things up in the new plan's states ---------------------------------------------------

    def place(self, node: Plan) -> tuple[BinaryJoin, int]:
        """Return the join that a sub-plan is an input of, and the side."""
        return self._joins_above[id(node)]

    def join_of(self, node: Join) -> BinaryJoin:
        """Return the join that makes a sub-plan's tuples."""
        return self._joins[id(node)]

    def state(self, node: Plan) -> SideState:
        """Return the state of a sub-plan's tuples."""
        join, side = self.place(node)
        return join.states[side]

    def everything(self, node: Plan, before: int, now: int) -> Tuples:
        """Return a sub-plan's tuples with ts < before that a tuple at or after `now` can match, ascending by ts."""
        state = self.state(node)
        if state.completion is not None:
            state.completion.demand(None, now)
        tuples = alive(self.sources, state, now)
        return tuples.take(tuples.ts < before)

    def lookup(
        self, node: Plan, operands: Operands, hashes: U64, before: int, now: int, *, asked: bool = False
    ) -> Tuples:
        """Return those of `everything` whose `operands` hash to one of `hashes`, which are sorted; in any order.

        Args:
            asked: True if these hashes have been requested of the sub-plan's state by its completer's operands.
        """
        join, side = self.place(node)
        state = join.states[side]
        completer = state.completion
        own = join.match.key(side) == operands
        if isinstance(completer, Completer) and completer.operands == operands:
            if not (asked and completer.countable(now)):
                completer.complete(hashes, now)
        elif own and completer is not None:
            completer.demand(None, now)
        if own:
            return self.select(state, hashes, before, now)
        if not isinstance(completer, Completer):
            return self.select(self.index(node, operands, now), hashes, before, now)
        if completer.operands == operands:
            tuples = alive(self.sources, state, now)
            tuples = tuples.take(tuples.ts < before)
            return tuples.take(member(self.hashes(tuples, operands), hashes))
        late = alive(self.sources, state, now)
        late = late.take((late.ts >= completer.before) & (late.ts < before))
        late = late.take(member(self.hashes(late, operands), hashes))
        assert isinstance(node, Join)
        return Tuples.concat([self.derive(node, operands, hashes, completer.before, now), late], node.aliases)

    def select(self, state: SideState, hashes: U64, before: int, now: int) -> Tuples:
        """Return the tuples of a state with ts < before under some of its own keys, found through its hash index."""
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
        """Return the same as `lookup`, computed from the sub-plan's inputs; all components have ts < before.

        Args:
            asked: True if these hashes have been requested of its incomplete inputs.
        """
        join = self.join_of(node)
        inputs, keys = (node.left, node.right), (join.match.key(LEFT), join.match.key(RIGHT))
        both = operands in keys
        if both:
            # Both inputs have these keys; a complete input is looked up only for the keys that the other has.
            side = LEFT if join.states[RIGHT].completion is not None else RIGHT
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
        """Return the joins of old tuples of one side with the old ones of the other that a tuple at `now` can match.

        Args:
            asked: True if the tuples' keys have been requested of the other side's state by its completer's operands.
        """
        match = join.match
        state = join.states[1 - side]
        probing = match.prepare(side, tuples.reorder(match.sides[side]))
        if state.completion is not None and len(probing):
            met = asked and self._counted_completer(other, match.key(1 - side), now, asked=True) is not None
            if not met:
                state.completion.demand(probing, now)
        found, compared = match.find_alive(side, probing, state, now)
        self.counters.comparisons += compared
        return found.take(found.ts < before)

    def hashes(self, tuples: Tuples, operands: Operands) -> U64:
        """Return (n,) hashes of some columns; tuples of states have no nulls in columns that any join reads."""
        resolve = self.sources.resolver(tuples.aliases, tuples.rows)
        return key_hashes([operand.values(resolve, len(tuples)) for operand in operands])[0]

    def index(self, node: Plan, operands: Operands, now: int) -> SideState:
        """Return a complete state's tuples by other columns than its own: the old plan's state, or an index made
        once."""
        key = frozenset(node.aliases), operands
        found = self.indexes.get(key)
        if found is None:
            tuples = alive(self.sources, self.state(node), now)
            life = min(self.sources.life[alias] for alias in tuples.aliases)
            found = self.indexes[key] = SideState(tuples.aliases, life, hashed=True)
            found.insert(tuples, self.hashes(tuples, operands))
        return found

    def _hashed(self, node: Plan, operands: Operands, now: int) -> SideState | None:
        """Return a complete state's tuples by some columns; None if it is incomplete."""
        join, side = self.place(node)
        state = join.states[side]
        if not state.complete:
            return None
        return state if join.match.key(side) == operands else self.index(node, operands, now)

    def _made_of(self, node: Join, operands: Operands) -> list[tuple[Plan, Operands]]:
        """Return the inputs of a sub-plan that have the keys of its tuples too, each with the columns there."""
        join = self.join_of(node)
        keys = join.match.key(LEFT), join.match.key(RIGHT)
        if operands in keys:
            return list(zip((node.left, node.right), keys, strict=True))
        below = input_of(node, operands)
        return [] if below is None else [(below, operands)]

    def counted_in(self, node: Join, operands: Operands, now: int) -> SideState | None:
        """Return the smallest complete state that has all keys that old tuples of an incomplete sub-plan can have
        (4.3); None if no state is hashed by them."""
        found: list[SideState] = []
        for child, key in self._made_of(node, operands):
            state = self._hashed(child, key, now)
            if state is None and isinstance(child, Join):
                completer = self.state(child).completion
                if isinstance(completer, Completer) and completer.operands == key and completer.countable(now):
                    state = completer.base
                else:
                    state = self.counted_in(child, key, now)
            found += [] if state is None else [state]
        return min(found, key=len, default=None)

    def possible_by_complete_inputs(self, node: Join, operands: Operands, hashes: U64, before: int, now: int) -> Mask:
        """Return (n,) False where an incomplete sub-plan can have no old tuple of a key, since a complete input has
        none."""
        good = np.ones(len(hashes), np.bool_)
        for child, key in self._made_of(node, operands):
            state = self._hashed(child, key, now)
            if state is not None:
                good &= state.has(hashes, before)
        return good

    def possible_by_incomplete_inputs(
        self, node: Join, operands: Operands, hashes: U64, before: int, now: int, *, asked: bool
    ) -> Mask:
        """Return the same by the inputs that are results of joins, complete by now or not.

        Args:
            asked: True if these hashes have been requested of the node's incomplete inputs.
        """
        good = np.ones(len(hashes), np.bool_)
        for child, key in self._made_of(node, operands):
            there = np.flatnonzero(good)
            if not isinstance(child, Join) or not len(there):
                continue
            some = hashes[there]
            state = self._hashed(child, key, now)
            completer = self._counted_completer(child, key, now, asked=asked)
            if state is not None:
                good[there] = state.has(some, before)
            elif completer is not None:
                good[there] = completer.possible(some, before, now)
            else:
                good[there] = self.possible(child, key, some, before, now)
        return good

    def _counted_completer(self, node: Plan, operands: Operands, now: int, *, asked: bool) -> Completer | None:
        """What completes a sub-plan's state, where it can tell which keys are possible."""
        completer = self.state(node).completion
        if not isinstance(completer, Completer) or completer.operands != operands:
            return None
        return completer if completer.counted or (asked and completer.countable(now)) else None

    def possible(self, node: Join, operands: Operands, hashes: U64, before: int, now: int) -> Mask:
        """Return (n,) False where an incomplete sub-plan can have no old tuple of a key, since some input of it has
        none."""
        good = self.possible_by_complete_inputs(node, operands, hashes, before, now)
        there = np.flatnonzero(good)
        if len(there):
            good[there] = self.possible_by_incomplete_inputs(node, operands, hashes[there], before, now, asked=False)
        return good

    def below(self, node: Join, operands: Operands) -> list[Completer]:
        """Return the completers of those incomplete inputs of a sub-plan that are requested by the same keys."""
        join = self.join_of(node)
        keys = join.match.key(LEFT), join.match.key(RIGHT)
        same = keys if operands in keys else (operands, operands)
        return [
            completer
            for state, key in zip(join.states, same, strict=True)
            if isinstance(completer := state.completion, Completer) and completer.operands == key
        ]

    def values(self, node: Join, operand: Operand, now: int) -> Column:
        """Return the values of an operand among the living tuples of the smallest sub-plan that has its columns,
        without nulls. Every tuple of the sub-plan contains one of these tuples."""
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
        node: The sub-plan whose tuples the state stores.
        facing: The sub-plan whose tuples probe it.
        before: The tuples that may be missing have only components with a smaller ts.
        asked: How its entries are requested; None if only as a whole.
        operands: The columns by which they are requested; empty if only as a whole.
        base: The state in which its keys are counted; None if they cannot be, or before the first request.
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
        self._prepared: Prepared | None = None
        state.completion = self
        if state.life < FOREVER:
            state.older_until = before + state.life

    @property
    def over(self) -> bool:
        """True when the state is complete."""
        return self._state.completion is not self

    @property
    def below(self) -> list[Completer]:
        """The completers of those incomplete inputs of the state that are requested by the same keys. Valid after
        `countable`."""
        return [completer for completer in self._below if not completer.over]

    def progress(self) -> tuple[int, int]:
        """Return the keys completed, of how many; (0, 0) until they have been counted, or if they cannot be."""
        return (0, 0) if self._keys is None else self._keys.progress()

    def attempted(self) -> U64:
        """Return the keys that have been completed."""
        return self._inherited if self._keys is None else self._keys.attempted()

    def prepare(self, tuples: Tuples) -> Prepared:
        """Prepare source tuples of a slice for probing this state; `meet` must run before they probe."""
        self._prepared = self._match.prepare(1 - self._side, tuples)
        return self._prepared

    def demand(self, probing: Prepared | None, now: int) -> None:
        """Complete what these tuples look for; everything if None."""
        if probing is None or self.asked is None or not self.countable(now):
            self._complete_all(now)
        elif probing is not self._prepared:
            self.complete(self.asked.wanted(probing), now)

    def complete(self, hashes: U64, now: int) -> None:
        """Complete the entries whose operands have these hashes."""
        if self.countable(now):
            self._old.meet({id(self): [hashes]}, now)
        else:
            self._complete_all(now)

    def sift(self, hashes: U64, now: int) -> U64:
        """Return those of some keys that may have entries that were not computed, judging by complete inputs; each
        once, ascending."""
        keys = self._counted_keys()
        old, node, operands, before = self._old, self.node, self.operands, self.before
        some = keys.sift(hashes, lambda unknown: old.possible_by_complete_inputs(node, operands, unknown, before, now))
        few = keys.ended and keys.left - len(some) <= REST_PER_KEY * len(some)
        return keys.rest() if few and len(some) >= MIN_KEYS_FOR_REST else some

    def claim(self, hashes: U64, now: int) -> None:
        """Compute the entries of sifted keys, which have been requested of the states below as well."""
        keys = self._counted_keys()
        old, node, operands, before = self._old, self.node, self.operands, self.before
        fresh = keys.claim(
            hashes, lambda unknown: old.possible_by_incomplete_inputs(node, operands, unknown, before, now, asked=True)
        )
        old.counters.completed_keys += len(fresh)
        if len(fresh):
            self._keep(old.derive(node, operands, fresh, before, now, asked=True), now, last=keys.exhausted)
        self.check_complete()

    def check_complete(self) -> None:
        """Mark the state complete if all keys have been counted and claimed."""
        if self._keys is not None and self._keys.exhausted:
            self._state.completion = None

    def countable(self, now: int) -> bool:
        """Return whether entries can be requested by keys. The first call starts to count the keys (4.3)."""
        if not self._asked_for:
            self._asked_for = True
            old, node, operands, before = self._old, self.node, self.operands, self.before
            if isinstance(self.asked, ByRange):
                self.asked.know(old.values(node, operands[0], now))
            # The states below first: keys counted there need not be scanned again.
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
        """Scan up to `most` more tuples for keys, if keys were requested and the states below have been counted. Return
        the number scanned."""
        if self._keys is None or self.counted or self.over or any(b.counting for b in self._within):
            return 0
        found = [b._keys for b in self._within if b._keys is not None and b.counted and b.before == self.before]
        if found:
            self._keys.within(min(found, key=lambda keys: keys.hi))
            self._within = []
        return self._keys.count(most)

    @property
    def counted(self) -> bool:
        """True when keys were requested and have been counted."""
        return self._keys is not None and self._keys.ended

    @property
    def counting(self) -> bool:
        """True while keys are being counted."""
        return self._keys is not None and not (self._keys.ended or self.over)

    def possible(self, hashes: U64, before: int, now: int) -> Mask:
        """Return (n,) False where there is no tuple with ts < before under a key, neither stored nor missing. Valid
        once the keys are counted, or for keys that have been requested."""
        known, unsure = self._counted_keys().known(hashes)
        if len(unsure):
            known[unsure] = self._old.possible(self.node, self.operands, hashes[unsure], self.before, now)
        if before == self.before:
            return known
        # Tuples that arrived after the transition that left this state incomplete are in it.
        whole = self.operands == self._match.key(self._side)
        return known | self._state.has(hashes, before) if whole else np.ones(len(hashes), np.bool_)

    def _counted_keys(self) -> KeyCount:
        if self._keys is None:
            raise InvariantError(f"entries of {self.node} are asked for by keys that cannot be counted")
        return self._keys

    def _complete_all(self, now: int) -> None:
        """Compute the whole state; entries that were completed before are computed again."""
        old, node = self._old, self.node
        self._state.older = None
        left = old.everything(node.left, self.before, now)
        tuples = old.joined(old.join_of(node), left, node.right, LEFT, self.before, now)
        self._keep(tuples, now, last=True)
        self._state.completion = None

    def _keep(self, tuples: Tuples, now: int, *, last: bool) -> None:
        """Args: `last` is True if these tuples complete the state."""
        state, match = self._state, self._match
        if last and state.hi == state.lo:
            # Enter the state itself, so that probes read one state: later tuples have a greater ts.
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
