"""Decides for a consumer in a tree of joins which tuples of one input it can use, given the other (JIT III-A, IV-A).

`operators.feedback.tree` creates a `Watch` per join and calls it in each slice. The consumer observes one input and
suppresses tuples of the other. The suppressed input is always a join's output, since sources cannot be asked to produce
less. If both inputs are joins' outputs, one is suppressed and the other observed, never both.

The paper lets each input be suppressed because of the other, and then loses results. Take A B on one side and C D on
the other. a1 is suspended while no C D that was produced matches it, and d1 while no such A B matches it. Then b1
arrives, which matches d1, and c1, which matches a1. Neither a1 b1 nor c1 d1 is produced, so neither resumes the other.
With one observed side, whose own suppression depends only on what lies outside this consumer, there is an order in
which everything is known when it is needed: observed before suppressed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from operators.data.tuples import Tuples
from operators.feedback.bloom import Bloom
from operators.feedback.counters import EdgeCounters
from operators.feedback.kinds import lattice, level_one
from operators.feedback.lattice import Lattice
from operators.feedback.payoff.guard import SAMPLED_TUPLES
from operators.feedback.payoff.tree_cost import JoinInput
from operators.feedback.stopwatch import Stopwatch
from operators.feedback.tree_guard import TreeGuard
from operators.feedback.waiting import WaitingTuples
from operators.join.binary_join import BinaryJoin
from operators.kernels.hashing import U64
from operators.kernels.lattice import MOST_NODES
from operators.plan.plan import Join, Leaf, Plan
from operators.state.match import LEFT, RIGHT
from operators.state.side_state import SideState
from operators.state.sources import Sources
from schemas.columns import Mask

MAX_SOURCES = 2
"""The largest number of sources in a kind. The lattice (Fig. 7) doubles with each source that a join reads, and a tuple
that has partners by one source and by two seldom lacks one by three."""

BLOOM, LATTICE = DETECTORS = ("bloom", "lattice")
"""How sub-tuples without a partner are found (JIT IV-A). "bloom" looks a tuple up in a filter of the observed tuples
before it enters its first join. "lattice", for nested-loop joins, compares what has been produced with all observed
tuples (Fig. 8)."""

MIN_FILTER_ENTRIES = 1024
"""A filter is sized for at least this many observed tuples."""

SCREENED_TUPLES = 1024
"""The approximate number of observed tuples that a screening reads."""

MIN_TAKEOVER_NS = 1e7
"""A guard takes over from a source's idle buffer only if letting in the waiting tuples would cost at least this
much."""

MIN_TAKEOVER_SHARE = 0.5
"""A guard takes over only if it would keep back more than this share of the waiting tuples."""


def suppressed_side(node: Join) -> int | None:
    """Return the side of a join that is suppressed; None if both inputs are sources.

    If both inputs are joins' outputs, the one over more sources is observed: it is usually the more selective.
    """
    left, right = (len(child.aliases) for child in (node.left, node.right))
    if left == right == 1:
        return None
    if 1 in (left, right):
        return LEFT if right == 1 else RIGHT
    return RIGHT if left > right else LEFT


class Watch:
    """The feedback of one consumer.

    Attributes:
        node: The sub-plan of its join.
        join: Its join.
        producer: The sub-plan of the suppressed input.
        depth: The number of joins above it.
        suppressed: The suppressed side of the join.
        observed: The observed side of the join.
        guards: One guard per kind of sub-tuples.
        idle: Per source of the suppressed input, the tuples kept back because the consumer can use none at all: while
            the observed input is empty, the empty sub-tuple is not demanded. This alone is demand-driven operator
            execution.
        idling: True while the consumer can use no tuple, so that all new ones go to `idle`. If the tuples returned too
            soon the last time, idling starts only when the observed input has been empty for a window: by then the
            first tuples kept back would have expired.
        static: The observed input never changes, so suspended tuples are dropped. True for tables, unless a consumer
            above may have their tuples taken out.
        counters: Counts of feedback messages and of tuples kept back.
        detecting: The time that the driver spends in this consumer's detection.
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
        suppressed_above: bool,
    ) -> None:
        """Args: `joins` are the plan's joins by the identity of their sub-plans. `detector` applies to a nested-loop
        join. `suppressed_above` is True if a consumer above suppresses this consumer's output."""
        self._sources = sources
        self.node = node
        self.join = joins[id(node)]
        self.depth = depth
        self.suppressed, self.observed = suppressed, 1 - suppressed
        children: tuple[Plan, Plan] = (node.left, node.right)
        self.producer = children[suppressed]
        self.static = not suppressed_above and frozenset(children[self.observed].aliases) <= sources.tables
        self._consumer = JoinInput(self.join, self.observed)
        self.guards: list[TreeGuard] = []
        self._at: dict[int, list[TreeGuard]] = {}
        singles = tuple(kind for kind in level_one(self.join.match, suppressed) if kind.equal)
        self._lattice: Lattice | None = None
        if detector == LATTICE and not self.join.match.condition.keys and 0 < len(singles) <= MOST_NODES:
            self._lattice = Lattice(self.join.match, suppressed, singles)
        lists_all = self._lattice is None and not self.static
        for kind in (*singles, *lattice(singles)):
            if len(kind.aliases) <= MAX_SOURCES and kind.equal:
                home, above = _home(self.producer, frozenset(kind.aliases))
                first = above[-1] if above else node
                entry = JoinInput(joins[id(first)], LEFT if first.left is home else RIGHT)
                below = [joins[id(join)] for join in above]
                guard = TreeGuard(kind, home, entry, below, self._consumer, lists_all=lists_all)
                self.guards.append(guard)
                self._at.setdefault(id(home), []).append(guard)
        self.idle = {alias: WaitingTuples(alias) for alias in self.producer.aliases}
        self.idling = False
        self._empty_since: int | None = None
        self._patience = 0
        self._max_patience = max(sources.life[alias] for alias in self.producer.aliases)
        self.counters = EdgeCounters()
        self.detecting = Stopwatch(clock)

    @property
    def state(self) -> SideState:
        """The observed input's state."""
        return self.join.states[self.observed]

    def keeps_back_at(self, node: Plan) -> bool:
        """Return whether tuples of a sub-plan may be kept back at that sub-plan."""
        return isinstance(node, Leaf) or id(node) in self._at

    def observe(self, arrived: list[Tuples], now: int) -> list[Tuples]:
        """Process observed tuples before they enter. Return the tuples that they resume, in batches, each of one
        home."""
        back: list[Tuples] = []
        arrived = [tuples for tuples in arrived if len(tuples)]
        if self.is_idle(now, arrives=bool(arrived)):
            self.idling = True
        elif self.idling:
            self._wake(arrived, back, now)
        for guard in self.guards:
            if not guard.watching:
                continue
            returned_any = False
            for tuples in arrived:
                hashes = _valid_hashes(*guard.kind.opposite_hashes(self._sources, tuples))
                self._count_signatures(guard, len(hashes))
                if self._lattice is None:
                    guard.filter.add(hashes)
                resumed, returned = guard.resume(hashes, now)
                self._count(guard, resumed=resumed)
                guard.returned += len(returned)
                returned_any |= len(returned) > 0
                self._add_returned(back, returned)
            guard.late_slices += returned_any
            if guard.filter.full:
                self._rebuild_filter(guard, [self._living_observed(now), *arrived])
        return back

    def is_idle(self, now: int, *, arrives: bool = False) -> bool:
        """Return whether the consumer can use no tuple at all in the slice that begins at `now`; `arrives` tells that
        observed tuples arrive in it."""
        if arrives or len(self.state):
            self._empty_since = None
            return False
        if self._empty_since is None:
            self._empty_since = now
        return self.idling or now - self._empty_since >= self._patience

    def _wake(self, arrived: list[Tuples], back: list[Tuples], now: int) -> None:
        """Stop idling and return the waiting tuples in `back`."""
        self.idling = False
        waited = [idle.take_all(now) for idle in self.idle.values()]
        self._take_over(arrived, dict(zip(self.idle, waited, strict=True)))
        returned = sum(map(len, waited))
        self.counters.resume += returned > 0
        if returned:
            died = sum(idle.died for idle in self.idle.values())
            self._patience = 0 if died >= returned else self._max_patience
        for idle, tuples in zip(self.idle.values(), waited, strict=True):
            idle.died = 0
            self._add_returned(back, tuples)

    def _take_over(self, arrived: list[Tuples], waited: Mapping[str, Tuples]) -> None:
        """If many tuples have waited for a few observed ones, let one guard watch from now on: the guard that seems to
        keep back most of them. The cost of results made of them is not known yet, so the guard's budget is the cost of
        letting them all in."""
        if self._lattice is not None or any(guard.watching for guard in self.guards):
            return
        chosen: tuple[float, TreeGuard, Bloom] | None = None
        for guard in self.guards:
            if not isinstance(guard.home, Leaf):
                continue
            tuples = waited[guard.home.alias]
            if len(tuples) * guard.tuple_cost.returned < MIN_TAKEOVER_NS:
                continue
            filter = Bloom(2 * sum(map(len, arrived)))
            for part in arrived:
                filter.add(_valid_hashes(*guard.kind.opposite_hashes(self._sources, part)))
            (lacking,) = self._lacking(guard, filter, [tuples.take(np.arange(len(tuples))[-SAMPLED_TUPLES:])])
            if lacking > MIN_TAKEOVER_SHARE and (chosen is None or lacking * len(tuples) > chosen[0]):
                chosen = lacking * len(tuples), guard, filter
        if chosen is not None:
            _, guard, guard.filter = chosen
            guard.start(len(waited[guard.kind.aliases[0]]) * guard.tuple_cost.returned)

    def admit(self, node: Plan, tuples: Tuples, now: int) -> Tuples:
        """Return those of a sub-plan's tuples that the consumer can use, and keep the others back."""
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
            # A tuple with a null there never matches anything.
            self.counters.forgotten += len(tuples) - int(np.count_nonzero(valid))
            tuples, hashes = tuples.take(valid), hashes[valid]
        self._count_signatures(guard, len(hashes))
        useless = self._useless(guard, hashes)
        if useless.any():
            self._suspend(guard, tuples.take(useless), hashes[useless], now)
            tuples = tuples.take(~useless)
        return tuples

    def sweep(self, guard: TreeGuard, held: Tuples, now: int) -> Mask:
        """Check the tuples of the home's state. Return (n,) True for those that are kept back from now on."""
        hashes, valid = guard.kind.own_hashes(self._sources, held)
        self._count_entries(guard, len(hashes))
        useless = self._useless(guard, hashes)
        if valid is not None:
            useless &= valid
        if useless.any():
            self._suspend(guard, held.take(useless), hashes[useless], now)
        return useless

    def made_of_suppressed(self, guard: TreeGuard, held: Tuples) -> Mask:
        """For a state above the home, after the home's sweep, return (n,) True for tuples that contain a suspended
        sub-tuple."""
        hashes, valid = guard.kind.own_hashes(self._sources, held)
        self._count_entries(guard, len(hashes))
        lost = guard.suspends(hashes)
        return lost if valid is None else lost & valid

    def rebuild_filters(self, now: int) -> None:
        """Rebuild the filters from the observed state, and purge what has expired from the blacklists."""
        windows = self._sources.rows_windows
        watching = [guard for guard in self.guards if guard.watching]
        if watching:
            held = self._living_observed(now)
            for guard in watching:
                self._rebuild_filter(guard, [held])
                guard.unlisted.purge(now)
        for guard in self.guards:
            for alias in guard.blacklist.aliases:
                if alias in windows:
                    guard.blacklist.purge_rows(alias, self._sources.first_live_row(alias))
            guard.blacklist.purge(now)

    def purge_idle(self, now: int) -> None:
        """Purge expired tuples from the idle buffers."""
        if not self.idling:
            return
        for alias, idle in self.idle.items():
            if alias in self._sources.rows_windows:
                idle.purge_rows(self._sources.first_live_row(alias))
            idle.purge(now)

    def stop(self, guard: TreeGuard, now: int) -> Tuples:
        """Stop a guard and return the tuples that it kept back at its home."""
        self.counters.returned += len(guard.blacklist)
        return self._release(guard, now)

    def screen(self, guard: TreeGuard, ends: Sequence[Tuples], now: int) -> list[float]:
        """For each part of `ends`, the newest and the oldest tuples of a resting guard's home, estimate the share of
        tuples without a partner from a sample of evenly spaced observed tuples."""
        state = self.state
        step = max(1, (state.hi - state.lo) // SCREENED_TUPLES)
        _, seen = state.living(now, np.arange(state.lo, state.hi, step, dtype=np.int64))
        filter = Bloom(2 * SCREENED_TUPLES)
        filter.add(_valid_hashes(*guard.kind.opposite_hashes(self._sources, seen)))
        # A tuple lacks a partner in each of `step` samples of this size about equally often.
        return [share**step for share in self._lacking(guard, filter, ends)]

    def run_trial(self, guard: TreeGuard, ends: Sequence[Tuples], slices: int, budget: float, now: int) -> bool:
        """Give a resting guard a trial on the newest and the oldest tuples of its home. If the estimate is favourable,
        the guard watches from now on with a budget. Return whether it does."""
        self._rebuild_filter(guard, [self._living_observed(now)])
        if guard.expected_gain(self._lacking(guard, guard.filter, ends), slices):
            guard.start(budget)
            return True
        guard.filter = Bloom()
        return False

    def _lacking(self, guard: TreeGuard, filter: Bloom, ends: Sequence[Tuples]) -> list[float]:
        """Return, for each part of a home's tuples, the share that is not in a filter; 0.0 for an empty part."""
        return [filter.missing_share(*guard.kind.own_hashes(self._sources, tuples)) for tuples in ends]

    def release(self, now: int) -> list[Tuples]:
        """Return all tuples that are kept back, in batches, each of one home. Resume everything."""
        back: list[Tuples] = []
        for idle in self.idle.values():
            self._add_returned(back, idle.take_all(now))
        for guard in self.guards:
            self._add_returned(back, self._release(guard, now))
        return back

    def kept_back(self) -> int:
        """The number of tuples that are kept back now."""
        return sum(map(len, self.idle.values())) + sum(len(g.blacklist) for g in self.guards)

    def size_bytes(self) -> int:
        """Bytes of all buffers and filters."""
        guards = sum(guard.size_bytes() for guard in self.guards)
        return guards + sum(idle.size_bytes() for idle in self.idle.values())

    def _release(self, guard: TreeGuard, now: int) -> Tuples:
        resumed, returned = guard.release(now)
        self._count(guard, resumed=resumed)
        return returned

    def detect(self, entered: Tuples, now: int) -> None:
        """With the lattice detector, find sub-tuples without a partner in tuples that have entered. Similar tuples that
        arrive later are kept back on arrival; those in the states are taken out by the next sweep."""
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
                self._count_signatures(guard, len(hashes))
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
        """Count messages. A signature that only the producer as a whole can keep back is marked (Type II), not
        suspended."""
        if guard.home is self.producer:
            self.counters.mark += suspended
            self.counters.unmark += resumed
        else:
            self.counters.suspend += suspended
            self.counters.resume += resumed

    def _add_returned(self, back: list[Tuples], tuples: Tuples) -> None:
        if len(tuples):
            self.counters.returned += len(tuples)
            back.append(tuples)

    def _count_signatures(self, guard: TreeGuard, count: int) -> None:
        self.counters.checked += count
        guard.checked += count

    def _count_entries(self, guard: TreeGuard, count: int) -> None:
        self.counters.checked += count
        guard.swept += count

    def _living_observed(self, now: int) -> Tuples:
        """Return the living tuples of the observed input. O(n)."""
        held = self.state.tuples()
        return held.take(held.expiry >= now)

    def _rebuild_filter(self, guard: TreeGuard, parts: list[Tuples]) -> None:
        """Rebuild a guard's filter from these observed tuples."""
        guard.filter = Bloom(max(MIN_FILTER_ENTRIES, 2 * sum(len(part) for part in parts)))
        for part in parts:
            hashes = _valid_hashes(*guard.kind.opposite_hashes(self._sources, part))
            self._count_entries(guard, len(hashes))
            guard.filter.add(hashes)


def _home(producer: Plan, aliases: frozenset[str]) -> tuple[Plan, list[Join]]:
    """Return the lowest sub-plan over some sources, and the joins of the producer above it, from the producer down."""
    node, above = producer, list[Join]()
    while isinstance(node, Join):
        inside = [child for child in (node.left, node.right) if aliases <= frozenset(child.aliases)]
        if not inside:
            break
        above.append(node)
        node = inside[0]
    return node, above


def _valid_hashes(hashes: U64, valid: Mask | None) -> U64:
    return hashes if valid is None else hashes[valid]
