"""A consumer that watches one input to say what it can use of the other (JIT 3.1, 4.1).

The suppressed input is always a join's output: sources cannot be asked to produce less. The other is observed. Of two
joins' outputs one is suppressed and one observed, never both. The paper lets either be suppressed for the other's
sake, and then loses results: with A B on one side and C D on the other, a1 is suspended while no C D that was produced
fits it, d1 while no such A B fits it; then b1 comes, which fits d1, and c1, which fits a1. Neither a1 b1 nor c1 d1 is
produced, so neither brings back the other. With one observed side, whose own suppression rests only on what lies
outside of this consumer, there is an order in which all is known when it is asked for: observed before suppressed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from operators.data.tuples import Tuples
from operators.feedback.bloom import Bloom
from operators.feedback.burden import Input
from operators.feedback.counters import EdgeCounters
from operators.feedback.guard_payoff import SAMPLED_TUPLES
from operators.feedback.kinds import lattice, level_one
from operators.feedback.lattice import Lattice
from operators.feedback.stopwatch import Stopwatch
from operators.feedback.tree_guard import TreeGuard
from operators.feedback.waiting import Waiting
from operators.join.binary_join import BinaryJoin
from operators.kernels.hashing import U64
from operators.kernels.lattice import MOST_NODES
from operators.plan.plan import Join, Leaf, Plan
from operators.state.match import LEFT, RIGHT
from operators.state.side_state import SideState
from operators.state.sources import Sources
from schemas.columns import Mask

MOST_SOURCES = 2
"""A kind of sub-tuples is of so many sources at most: the lattice (Fig. 7) doubles with each source that a join reads,
and what has partners by one, and by two, seldom lacks one by three."""

BLOOM, LATTICE = DETECTORS = ("bloom", "lattice")
"""How sub-tuples without a partner are found (JIT 4.1): by a filter of the observed tuples, before a tuple enters its
first join; or, in joins by nested loops, by comparing what has been produced with all of them (Fig. 8)."""

LEAST_FILTERED = 1024
"""A filter is made for at least this many observed tuples."""

SCREENED_TUPLES = 1024
"""About so many observed tuples are looked at to see whether a guard is worth a trial."""

TAKEN_OVER = 1e7
"""What it costs at least to let in what has waited of a source, for a guard to take over."""

LEAST_TAKEN_OVER = 0.5
"""And it keeps back more than this share of it."""


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


class Watch:
    """One consumer.

    Attributes:
        node: its join's sub-plan; `producer` the suppressed input's.
        depth: joins above it.
        suppressed, observed: the sides of its join.
        guards: one per kind of sub-tuples.
        idle: per source of the suppressed input what is kept back because nothing can be used: the empty sub-tuple is
            not demanded while the observed input is empty. (Demand-driven operator execution is this alone.)
        idling: nothing can be used: everything new is kept back so. If it came back too soon the last time, this begins
            when the observed input has been empty for a window: by then what it kept back first would have died.
        static: the observed input never changes: what it does not demand is forgotten. Of tables, unless a consumer
            above may have tuples of theirs taken out.
        detecting: runs while its driver has it look for what is not demanded.
    """

    def __init__(
        self,
        sources: Sources,
        node: Join,
        joins: Mapping[int, BinaryJoin],
        depth: int,
        suppressed: int,
        detector: str,
        clock: Callable[[], float],
        *,
        told: bool,
    ) -> None:
        """Args: `joins` of the plan by the identity of their sub-plans; `detector` for a join by nested loops; `told`
        where a consumer above says what it does not demand of this one's output."""
        self._sources = sources
        self.node = node
        self.join = joins[id(node)]
        self.depth = depth
        self.suppressed, self.observed = suppressed, 1 - suppressed
        children: tuple[Plan, Plan] = (node.left, node.right)
        self.producer = children[suppressed]
        self.static = not told and frozenset(children[self.observed].aliases) <= sources.tables
        self._consumer = Input(self.join, self.observed)
        self.guards: list[TreeGuard] = []
        self._at: dict[int, list[TreeGuard]] = {}
        singles = tuple(kind for kind in level_one(self.join.match, suppressed) if kind.equal)
        self._lattice: Lattice | None = None
        if detector == LATTICE and not self.join.match.condition.keys and 0 < len(singles) <= MOST_NODES:
            self._lattice = Lattice(self.join.match, suppressed, singles)
        lists = self._lattice is None and not self.static
        for kind in (*singles, *lattice(singles)):
            if len(kind.aliases) <= MOST_SOURCES and kind.equal:
                home, above = _home(self.producer, frozenset(kind.aliases))
                first = above[-1] if above else node
                entry = Input(joins[id(first)], LEFT if first.left is home else RIGHT)
                below = [joins[id(join)] for join in above]
                guard = TreeGuard(kind, home, entry, below, self._consumer, lists=lists)
                self.guards.append(guard)
                self._at.setdefault(id(home), []).append(guard)
        self.idle = {alias: Waiting(alias) for alias in self.producer.aliases}
        self.idling = False
        self._empty_since: int | None = None
        self._patience = 0
        self._longest = max(sources.life[alias] for alias in self.producer.aliases)
        self.counters = EdgeCounters()
        self.detecting = Stopwatch(clock)

    @property
    def state(self) -> SideState:
        """The observed input's state."""
        return self.join.states[self.observed]

    def speaks_of(self, node: Plan) -> bool:
        """Whether tuples of a sub-plan may be kept back at it."""
        return isinstance(node, Leaf) or id(node) in self._at

    def observe(self, arrived: list[Tuples], now: int) -> list[Tuples]:
        """Take notice of observed tuples that are about to enter; what they bring back, in parts of any homes."""
        back: list[Tuples] = []
        arrived = [tuples for tuples in arrived if len(tuples)]
        if self.is_idle(now, arrives=bool(arrived)):
            self.idling = True
        elif self.idling:
            self._wake(arrived, back, now)
        for guard in self.guards:
            if not guard.watching:
                continue
            some = False
            for tuples in arrived:
                hashes = _known(*guard.kind.opposite_hashes(self._sources, tuples))
                self._looked_up(guard, len(hashes))
                if self._lattice is None:
                    guard.filter.add(hashes)
                resumed, returned = guard.resume(hashes, now)
                self._count(guard, resumed=resumed)
                guard.returned += len(returned)
                some |= len(returned) > 0
                self._bring(back, returned)
            guard.late += some
            if guard.filter.full:
                self._renew(guard, [self._held(now), *arrived])
        return back

    def is_idle(self, now: int, *, arrives: bool = False) -> bool:
        """Whether nothing at all can be used in a slice that begins at `now`, unless something observed `arrives`."""
        if arrives or len(self.state):
            self._empty_since = None
            return False
        if self._empty_since is None:
            self._empty_since = now
        return self.idling or now - self._empty_since >= self._patience

    def _wake(self, arrived: list[Tuples], back: list[Tuples], now: int) -> None:
        """Let in what has waited because nothing at all could be used."""
        self.idling = False
        waited = [idle.take_all(now) for idle in self.idle.values()]
        self._take_over(arrived, dict(zip(self.idle, waited, strict=True)))
        returned = sum(map(len, waited))
        self.counters.resume += returned > 0
        if returned:
            died = sum(idle.died for idle in self.idle.values())
            self._patience = 0 if died >= returned else self._longest
        for idle, tuples in zip(self.idle.values(), waited, strict=True):
            idle.died = 0
            self._bring(back, tuples)

    def _take_over(self, arrived: list[Tuples], waited: Mapping[str, Tuples]) -> None:
        """Where much has waited for little: have one guard watch from now on, the one that seems to keep most of it
        back. What would be made of it is not known yet, so its stake is what it would cost to let it all in."""
        if self._lattice is not None or any(guard.watching for guard in self.guards):
            return
        chosen: tuple[float, TreeGuard, Bloom] | None = None
        for guard in self.guards:
            if not isinstance(guard.home, Leaf):
                continue
            tuples = waited[guard.home.alias]
            if len(tuples) * guard.burden.returned < TAKEN_OVER:
                continue
            filter = Bloom(2 * sum(map(len, arrived)))
            for part in arrived:
                filter.add(_known(*guard.kind.opposite_hashes(self._sources, part)))
            (lacking,) = self._lacking(guard, filter, [tuples.take(np.arange(len(tuples))[-SAMPLED_TUPLES:])])
            if lacking > LEAST_TAKEN_OVER and (chosen is None or lacking * len(tuples) > chosen[0]):
                chosen = lacking * len(tuples), guard, filter
        if chosen is not None:
            _, guard, guard.filter = chosen
            guard.account.begin(len(waited[guard.kind.aliases[0]]) * guard.burden.returned)

    def admit(self, node: Plan, tuples: Tuples, now: int) -> Tuples:
        """Those of a sub-plan's tuples that the consumer can use; the others are kept back."""
        if self.idling and isinstance(node, Leaf):
            if len(tuples):
                idle = self.idle[node.alias]
                self.counters.suspend += len(idle) == 0
                self.counters.kept_back += len(tuples)
                idle.put(tuples)
            return Tuples.empty(tuples.aliases)
        for guard in self._at.get(id(node), ()):
            if guard.watching and len(tuples):
                tuples = self._admit(guard, tuples, now)
        return tuples

    def _admit(self, guard: TreeGuard, tuples: Tuples, now: int) -> Tuples:
        hashes, valid = guard.kind.own_hashes(self._sources, tuples)
        if valid is not None and not valid.all():
            # What is null there can never be used.
            self.counters.forgotten += len(tuples) - int(np.count_nonzero(valid))
            tuples, hashes = tuples.take(valid), hashes[valid]
        self._looked_up(guard, len(hashes))
        useless = self._useless(guard, hashes)
        if useless.any():
            self._suspend(guard, tuples.take(useless), hashes[useless], now)
            tuples = tuples.take(~useless)
        return tuples

    def sweep(self, guard: TreeGuard, held: Tuples, now: int) -> Mask:
        """Look through tuples that the home's state holds; (n,) True where they are kept back from now on."""
        hashes, valid = guard.kind.own_hashes(self._sources, held)
        self._looked_at(guard, len(hashes))
        useless = self._useless(guard, hashes)
        if valid is not None:
            useless &= valid
        if useless.any():
            self._suspend(guard, held.take(useless), hashes[useless], now)
        return useless

    def lost(self, guard: TreeGuard, held: Tuples) -> Mask:
        """(n,) True for those of a state above the home, after its sweep, that are made of tuples kept back."""
        hashes, valid = guard.kind.own_hashes(self._sources, held)
        self._looked_at(guard, len(hashes))
        lost = guard.suspends(hashes)
        return lost if valid is None else lost & valid

    def renew(self, now: int) -> None:
        """Forget what has expired: filters are made anew from the observed state."""
        windows = self._sources.rows_windows
        watching = [guard for guard in self.guards if guard.watching]
        if watching:
            held = self._held(now)
            for guard in watching:
                self._renew(guard, [held])
                guard.unlisted.purge(now)
        for guard in self.guards:
            for alias in guard.blacklist.aliases:
                if alias in windows:
                    guard.blacklist.purge_rows(alias, self._sources.first_live_row(alias))
            guard.blacklist.purge(now)

    def forget(self, now: int) -> None:
        """Forget what has waited unseen too long."""
        if not self.idling:
            return
        for alias, idle in self.idle.items():
            if alias in self._sources.rows_windows:
                idle.purge_rows(self._sources.first_live_row(alias))
            idle.purge(now)

    def rest(self, guard: TreeGuard, now: int) -> Tuples:
        """Stop watching; what is let go, at the guard's home."""
        self.counters.returned += len(guard.blacklist)
        return self._given_up(guard, now)

    def screen(self, guard: TreeGuard, ends: Sequence[Tuples], now: int) -> list[float]:
        """The shares of some of the newest and oldest tuples of a resting guard's home that seem to have no partner, by
        some of those observed, evenly spread."""
        state = self.state
        step = max(1, (state.hi - state.lo) // SCREENED_TUPLES)
        _, seen = state.living(now, np.arange(state.lo, state.hi, step, dtype=np.int64))
        filter = Bloom(2 * SCREENED_TUPLES)
        filter.add(_known(*guard.kind.opposite_hashes(self._sources, seen)))
        # Who has no partner among these has none among as many others as often.
        return [share**step for share in self._lacking(guard, filter, ends)]

    def try_out(self, guard: TreeGuard, ends: Sequence[Tuples], slices: int, stake: float, now: int) -> bool:
        """Give a guard that rests a trial on some of the newest and oldest tuples of its home; it watches from now on,
        with a stake, if that promises to pay. Whether it does."""
        self._renew(guard, [self._held(now)])
        guard.swept = 0
        if guard.promise(self._lacking(guard, guard.filter, ends), slices):
            guard.account.begin(stake)
            return True
        guard.filter = Bloom()
        return False

    def _lacking(self, guard: TreeGuard, filter: Bloom, ends: Sequence[Tuples]) -> list[float]:
        """Which share of each part of a home's tuples is not in a filter; none of no tuples."""
        shares: list[float] = []
        for tuples in ends:
            hashes, valid = guard.kind.own_hashes(self._sources, tuples)
            lacking = ~filter.contains(hashes)
            shares.append(float((lacking if valid is None else lacking | ~valid).mean()) if len(tuples) else 0.0)
        return shares

    def release(self, now: int) -> list[Tuples]:
        """Everything that is kept back, in parts of any homes; suspends nothing."""
        back: list[Tuples] = []
        for idle in self.idle.values():
            self._bring(back, idle.take_all(now))
        for guard in self.guards:
            self._bring(back, self._given_up(guard, now))
        return back

    def kept_back(self) -> int:
        """Tuples kept back now."""
        return sum(map(len, self.idle.values())) + sum(len(g.blacklist) for g in self.guards)

    def size_bytes(self) -> int:
        """Bytes of all buffers and filters."""
        guards = sum(guard.size_bytes() for guard in self.guards)
        return guards + sum(idle.size_bytes() for idle in self.idle.values())

    def _given_up(self, guard: TreeGuard, now: int) -> Tuples:
        resumed, returned = guard.release(now)
        self._count(guard, resumed=resumed)
        return returned

    def detect(self, entered: Tuples, now: int) -> None:
        """With the lattice detector: find what of tuples that have entered nothing observed matches. Such tuples are
        kept back when more of them come; those that are there, with the next sweep."""
        guards = {guard.kind.aliases: guard for guard in self.guards if guard.watching}
        if self._lattice is None or not guards or len(entered) == 0:
            return
        states = [self.state] if self.state.older is None else [self.state, self.state.older]
        tuples, found, compared = self._lattice.identify(entered, states, now)
        self.join.counters.comparisons += compared
        for aliases, without in found.items():
            guard = guards.get(aliases)
            if guard is not None:
                lacking = tuples.take(without)
                hashes, _ = guard.kind.own_hashes(self._sources, lacking)
                self._looked_up(guard, len(hashes))
                self._count(guard, suspended=guard.suspend(hashes, lacking.expiry))

    def _useless(self, guard: TreeGuard, hashes: U64) -> Mask:
        suspended = guard.suspends(hashes)
        return suspended if self._lattice is not None else suspended | ~guard.filter.contains(hashes)

    def _suspend(self, guard: TreeGuard, tuples: Tuples, hashes: U64, now: int) -> None:
        guard.kept_back += len(tuples)
        if self.static:
            self.counters.forgotten += len(tuples)
            suspended = guard.suspend(hashes, tuples.expiry)
        else:
            self.counters.kept_back += len(tuples)
            suspended = guard.keep_back(tuples, hashes, now)
        self._count(guard, suspended=suspended)

    def _count(self, guard: TreeGuard, *, suspended: int = 0, resumed: int = 0) -> None:
        """Count messages: what only the producer as a whole can keep back is marked (Type II)."""
        if guard.home is self.producer:
            self.counters.mark += suspended
            self.counters.unmark += resumed
        else:
            self.counters.suspend += suspended
            self.counters.resume += resumed

    def _bring(self, back: list[Tuples], tuples: Tuples) -> None:
        if len(tuples):
            self.counters.returned += len(tuples)
            back.append(tuples)

    def _looked_up(self, guard: TreeGuard, count: int) -> None:
        self.counters.checked += count
        guard.checked += count

    def _looked_at(self, guard: TreeGuard, count: int) -> None:
        self.counters.checked += count
        guard.swept += count

    def _held(self, now: int) -> Tuples:
        """What lives of the observed input. O(n)."""
        held = self.state.tuples()
        return held.take(held.expiry >= now)

    def _renew(self, guard: TreeGuard, parts: list[Tuples]) -> None:
        """Make a guard's filter anew, of these observed tuples."""
        guard.filter = Bloom(max(LEAST_FILTERED, 2 * sum(len(part) for part in parts)))
        for part in parts:
            hashes = _known(*guard.kind.opposite_hashes(self._sources, part))
            self._looked_at(guard, len(hashes))
            guard.filter.add(hashes)


def _home(producer: Plan, aliases: frozenset[str]) -> tuple[Plan, list[Join]]:
    """The lowest sub-plan over some sources, and the joins from there up to the producer, which is one of them."""
    node, above = producer, list[Join]()
    while isinstance(node, Join):
        inside = [child for child in (node.left, node.right) if aliases <= frozenset(child.aliases)]
        if not inside:
            break
        above.append(node)
        node = inside[0]
    return node, above


def _known(hashes: U64, valid: Mask | None) -> U64:
    return hashes if valid is None else hashes[valid]
