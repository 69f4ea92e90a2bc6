"""A consumer that watches one input to say what it can use of the other (JIT 3.1, 4.1).

The suppressed input is always a join's output: sources cannot be asked to produce less. The other is observed. Of two
joins' outputs one is suppressed and one observed, never both. The paper lets either be suppressed for the other's
sake, and then loses results: with A B on one side and C D on the other, a1 is suspended while no C D that was produced
fits it, d1 while no such A B fits it; then b1 comes, which fits d1, and c1, which fits a1. Neither a1 b1 nor c1 d1 is
produced, so neither brings back the other. With one observed side, whose own suppression rests only on what lies
outside of this consumer, there is an order in which all is known when it is asked for: observed before suppressed.
"""

from __future__ import annotations

import numpy as np

from operators.feedback.blacklist import Blacklist
from operators.feedback.bloom import Bloom
from operators.feedback.counters import EdgeCounters
from operators.feedback.kinds import Kind, level_one
from operators.feedback.signatures import Signatures
from operators.join import BinaryJoin
from operators.kernels.hashing import U64
from operators.match import LEFT, RIGHT
from operators.plan import Join, Plan
from operators.sources import Sources
from operators.state import SideState
from operators.tuples import Tuples
from schemas.columns import Mask

LEAST_FILTERED = 1024
"""A filter is made for at least this many observed tuples."""

EVERYTHING = np.uint64(0)
"""The signature of the empty sub-tuple."""


def suppressed_side(node: Join) -> int | None:
    """The side of a join that is told to produce less; None where both are sources.

    Of two joins' outputs the one of more sources is observed: it is the more selective, as a rule.
    """
    left, right = (len(child.aliases) for child in (node.left, node.right))
    if left == right == 1:
        return None
    if 1 in (left, right):
        return LEFT if right == 1 else RIGHT
    return RIGHT if left > right else LEFT


class Guard:
    """What a consumer says of one source of its suppressed input.

    Attributes:
        kind: the sub-tuples that it speaks of, by the columns that its join reads of the source.
        suspended: signatures that no observed tuple matches (the paper's MNS buffer).
        filter: signatures that observed tuples match, and some more.
        blacklist: the source's tuples that are kept back.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.suspended = Signatures()
        self.filter = Bloom(LEAST_FILTERED)
        self.blacklist = Blacklist(tuple(kind.aliases))


class Watch:
    """One consumer.

    Attributes:
        node: its join's sub-plan; `producer` the suppressed input's.
        depth: joins above it.
        suppressed, observed: the sides of its join.
        guards: by the source of which they keep tuples back.
        idle: per source of the suppressed input what is kept back because nothing can be used: the empty sub-tuple is
            not demanded while the observed input is empty. (Demand-driven operator execution is this alone.)
        empty: the observed input is empty.
        static: the observed input never changes: what it does not demand is forgotten.
    """

    def __init__(self, sources: Sources, node: Join, join: BinaryJoin, depth: int, suppressed: int) -> None:
        self._sources = sources
        self.node = node
        self.join = join
        self.depth = depth
        self.suppressed, self.observed = suppressed, 1 - suppressed
        children: tuple[Plan, Plan] = (node.left, node.right)
        self.producer = children[suppressed]
        self.static = frozenset(children[self.observed].aliases) <= sources.tables
        kinds = level_one(join.match, suppressed)
        self.guards = {alias: Guard(kind) for kind in kinds if kind.equal for alias in kind.aliases}
        self.idle = {alias: Blacklist((alias,)) for alias in self.producer.aliases}
        self.empty = True
        self.counters = EdgeCounters()

    @property
    def state(self) -> SideState:
        """The observed input's state."""
        return self.join.states[self.observed]

    def observe(self, arrived: list[Tuples], now: int) -> dict[str, list[Tuples]]:
        """Take notice of observed tuples that are about to enter; the tuples per source that they bring back."""
        back: dict[str, list[Tuples]] = {}
        arrived = [tuples for tuples in arrived if len(tuples)]
        was_empty, self.empty = self.empty, not arrived and len(self.state) == 0
        if was_empty and not self.empty:
            self.counters.resume += any(len(blacklist) for blacklist in self.idle.values())
            for alias, blacklist in self.idle.items():
                self._bring(back, alias, blacklist.take_all(now))
        for alias, guard in self.guards.items():
            for tuples in arrived:
                hashes = self._known(*guard.kind.opposite_hashes(self._sources, tuples))
                self.counters.checked += len(hashes)
                guard.filter.add(hashes)
                hit = guard.suspended.hit(hashes)
                if len(hit):
                    guard.suspended.remove(hit)
                    self.counters.resume += len(hit)
                    self._bring(back, alias, guard.blacklist.take(hit, now))
            if guard.filter.full:
                self._renew(guard, arrived, now)
        return back

    def admit(self, alias: str, tuples: Tuples, now: int) -> Tuples:
        """Those of a source's tuples that the consumer can use; the others are kept back."""
        if self.empty:
            self.counters.suspend += len(tuples) > 0 and len(self.idle[alias]) == 0
            return self._keep_back(self.idle[alias], tuples, np.full(len(tuples), EVERYTHING), now)
        guard = self.guards.get(alias)
        if guard is None or len(tuples) == 0:
            return tuples
        tuples, hashes = self._own(guard, tuples)
        useless = self._useless(guard, hashes)
        if not useless.any():
            return tuples
        self._suspend(guard, tuples.take(useless), hashes[useless], now)
        return tuples.take(~useless)

    def sweep(self, alias: str, held: Tuples, now: int) -> Mask:
        """Look through what a source's state holds; (n,) True where it is kept back from now on."""
        guard = self.guards.get(alias)
        if guard is None or self.empty or len(held) == 0:
            return np.zeros(len(held), np.bool_)
        hashes, valid = guard.kind.own_hashes(self._sources, held)
        self.counters.swept += len(hashes)
        useless = self._useless(guard, hashes)
        if valid is not None:
            useless &= valid
        if useless.any():
            self._suspend(guard, held.take(useless), hashes[useless], now)
        return useless

    def renew(self, now: int) -> None:
        """Forget what has expired: filters are made anew from the observed state, buffers from what is kept back."""
        for guard in self.guards.values():
            self._renew(guard, [], now)
            guard.suspended.purge(now)
            guard.blacklist.purge(now)
        for blacklist in self.idle.values():
            blacklist.purge(now)

    def release(self, now: int) -> dict[str, list[Tuples]]:
        """Everything that is kept back, per source; suspends nothing."""
        back: dict[str, list[Tuples]] = {}
        for alias, blacklist in self.idle.items():
            self._bring(back, alias, blacklist.take_all(now))
        for alias, guard in self.guards.items():
            self.counters.resume += len(guard.suspended)
            self._bring(back, alias, guard.blacklist.take_all(now))
            guard.suspended = Signatures()
        return back

    def kept_back(self) -> int:
        """Tuples kept back now."""
        return sum(len(b) for b in self.idle.values()) + sum(len(g.blacklist) for g in self.guards.values())

    def size_bytes(self) -> int:
        """Bytes of all buffers and filters."""
        guards = sum(
            guard.suspended.size_bytes() + guard.filter.size_bytes() + guard.blacklist.size_bytes()
            for guard in self.guards.values()
        )
        return guards + sum(blacklist.size_bytes() for blacklist in self.idle.values())

    def _useless(self, guard: Guard, hashes: U64) -> Mask:
        self.counters.checked += len(hashes)
        return guard.suspended.contains(hashes) | ~guard.filter.contains(hashes)

    def _suspend(self, guard: Guard, tuples: Tuples, hashes: U64, now: int) -> None:
        before = len(guard.suspended)
        guard.suspended.add(hashes, tuples.expiry)
        self.counters.suspend += len(guard.suspended) - before
        if self.static:
            self.counters.forgotten += len(tuples)
        else:
            self._keep_back(guard.blacklist, tuples, hashes, now)

    def _keep_back(self, blacklist: Blacklist, tuples: Tuples, hashes: U64, now: int) -> Tuples:
        blacklist.put(tuples, hashes, now)
        self.counters.kept_back += len(tuples)
        return Tuples.empty(tuples.aliases)

    def _bring(self, back: dict[str, list[Tuples]], alias: str, tuples: Tuples) -> None:
        if len(tuples):
            self.counters.returned += len(tuples)
            back.setdefault(alias, []).append(tuples)

    def _own(self, guard: Guard, tuples: Tuples) -> tuple[Tuples, U64]:
        """Tuples with their signatures; those whose columns are null can never be used and are forgotten."""
        hashes, valid = guard.kind.own_hashes(self._sources, tuples)
        if valid is None or valid.all():
            return tuples, hashes
        self.counters.forgotten += len(tuples) - int(np.count_nonzero(valid))
        return tuples.take(valid), hashes[valid]

    def _renew(self, guard: Guard, arrived: list[Tuples], now: int) -> None:
        held = self.state.tuples()
        parts = [held.take(held.expiry >= now), *arrived]
        guard.filter = Bloom(max(LEAST_FILTERED, 2 * sum(len(part) for part in parts)))
        for part in parts:
            hashes = self._known(*guard.kind.opposite_hashes(self._sources, part))
            self.counters.swept += len(hashes)
            guard.filter.add(hashes)

    @staticmethod
    def _known(hashes: U64, valid: Mask | None) -> U64:
        return hashes if valid is None else hashes[valid]
