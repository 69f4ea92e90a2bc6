"""The eddy with SteMs (CACQ; JISC 3.1): no intermediate state, and no plan: every tuple is routed on its own.

Every source has a SteM (state module): its tuples, indexed once per key under which they are probed, as in an
M-Join. A new tuple is entered into its SteM and given to the eddy. The eddy sends every partial tuple to some
SteM that it has not visited; what matches there comes back to the eddy, until all SteMs are visited. Each
partial tuple has a bitmap of the SteMs visited. A result is found by the one of its components that is latest
in the total order, whatever way it took, so exactly once.

The next SteM is drawn by lottery: the fewer tuples a SteM has given back per tuple sent to it lately, the more
tickets. Those to which no predicate leads from what the tuple covers are drawn only where there is no other.
The generator is a counter and a mixing function, so a run can be repeated.

A tuple probes a SteM by one link, the predicates between some of its aliases and the SteM's, which may have an
index; further links are checked on what is found. Tuples drawn to the same link are probed together whatever
else they cover, so the work per step is a few calls per link, not per set of aliases. Links are the predicates as they
are written: those that follow from others (`operators.plan.equalities`) would give a star of n streams n^2 links, and
every draw looks at all.

It adapts without any migration, and pays for that: every tuple passes through the eddy for every SteM, and
what a tree would have kept is made again for every tuple (JISC 3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from operators.data.evaluate import holds
from operators.data.statistics import OperatorStatistics
from operators.data.tuples import Tuples
from operators.join.binary_join import purge_state
from operators.join.executor import operator_statistics
from operators.kernels.hashing import F64, U64, mix_words
from operators.kernels.route import covers, draw_links
from operators.plan.plan import Plan
from operators.state.match import LEFT, RIGHT, Match, MatchCounters, Signature
from operators.state.side_state import SideState
from operators.state.sources import Sources
from schemas.columns import I64, Mask
from schemas.query import Expr, aliases_of

FADING = 0.9
"""What a slice's observations count for one slice later."""

MOST_TICKETS = 1e6
"""Of a link that gives nothing back. Fewer than a draw can tell apart, so that others are still tried."""

_STEP = 0x9E3779B97F4A7C15
"""Odd and without pattern: consecutive multiples, mixed, pass for random (SplitMix64)."""


@dataclass(slots=True)
class _Link:
    """A way to probe a SteM: `match.sides` are the SteM's alias and the aliases that the probe reads.

    Attributes:
        required: (w,) the bits of the aliases read.
        predicates: those over exactly these aliases, for tuples that came by another link.
        further: the SteM's other links, whose predicates this one does not check.
        routed, returned: tuples sent and tuples given back, fading.
    """

    match: Match
    state: SideState
    required: U64
    predicates: tuple[Expr, ...]
    routed: float = 0.0
    returned: float = 0.0
    further: list[_Link] = field(default_factory=list)

    @property
    def tickets(self) -> float:
        """More where less comes back."""
        return min((self.routed + 1.0) / (self.returned + 1.0), MOST_TICKETS)


@dataclass(slots=True, eq=False)
class _Flight:
    """Partial tuples in the eddy, ascending by ts.

    Attributes:
        rows: (sources, m) row ids in the plan's alias order, -1 where the SteM has not been visited.
        ts, expiry: (m,) as in `Tuples`.
        origin: (m,) the alias that each began with, its latest component.
        visited: (w, m) the progress bitmap: bit a % 64 of word a // 64 is alias a.
    """

    rows: I64
    ts: I64
    expiry: I64
    origin: I64
    visited: U64

    def __len__(self) -> int:
        return len(self.ts)

    def joined(self, places: I64, stems: I64, rows: I64, ts: I64, expiry: I64) -> _Flight:
        """The tuples at `places`, each with the row of one more SteM, put in order of ts."""
        order = np.argsort(ts, kind="stable")
        places, stems, rows, own = places[order], stems[order], rows[order], np.arange(len(ts))
        # Not rows[:, places]: that lays the copy out by columns, and kernels would be compiled anew for it.
        grown = np.take(self.rows, places, axis=1)
        grown[stems, own] = rows
        visited = np.take(self.visited, places, axis=1)
        visited[stems // 64, own] |= np.uint64(1) << (stems % 64).astype(np.uint64)
        return _Flight(grown, ts[order], expiry[order], self.origin[places], visited)


@dataclass(slots=True)
class Lottery:
    """Uniform draws that depend on the seed and on how many were drawn before."""

    seed: int = 0
    drawn: int = field(default=0, init=False)

    def draw(self, n: int) -> F64:
        """(n,) in [0, 1)."""
        counter = np.arange(self.drawn, self.drawn + n, dtype=np.uint64)
        self.drawn += n
        words = mix_words(mix_words(counter * np.uint64(_STEP)) + np.uint64(self.seed))
        return np.asarray((words >> np.uint64(11)).astype(np.float64) * 2.0**-53)


class Eddy:
    """Executes a query by routing.

    The plan only names the sources and their order at ties of ts.

    Args:
        seed: of the lottery.
        state_of: what to begin a SteM from, given a match and its side: empty, or of the eddy before.

    Attributes:
        routings: how often a tuple was sent to a SteM to probe it.
    """

    def __init__(
        self,
        sources: Sources,
        plan: Plan,
        *,
        seed: int = 0,
        state_of: Callable[[Match, int], SideState] = Match.new_state,
    ) -> None:
        self.sources = sources
        self.plan = plan
        self.routings = 0
        self._lottery = Lottery(seed)
        self._made = 0
        self._number = {alias: n for n, alias in enumerate(plan.aliases)}
        self._stems: dict[Signature, tuple[Match, SideState]] = {}
        self._links = self._find_links(state_of)
        self._targets = np.array([self._number[link.match.sides[LEFT][0]] for link in self._links], np.int64)
        self._required = np.array([link.required for link in self._links], np.uint64)
        self._hashed = np.array([bool(link.match.condition.keys) for link in self._links], np.bool_)

    def _find_links(self, state_of: Callable[[Match, int], SideState]) -> list[_Link]:
        """A link per alias and set of aliases that some predicate relates it to, and the cross products."""
        query, aliases = self.sources.query, self.plan.aliases
        between: dict[tuple[str, tuple[str, ...]], list[Expr]] = {}
        for alias in aliases:
            for predicate in query.predicates:
                used = aliases_of(predicate)
                if alias in used and len(used) > 1:
                    others = tuple(other for other in aliases if other in used and other != alias)
                    between.setdefault((alias, others), []).append(predicate)
        if not self._connected([(*others, alias) for alias, others in between]):
            between |= {(alias, ()): [] for alias in aliases}
        links: list[_Link] = []
        for (alias, others), predicates in between.items():
            match = Match(self.sources, (alias,), others)
            signature = match.signature(LEFT)
            if signature not in self._stems:
                self._stems[signature] = match, state_of(match, LEFT)
            _, state = self._stems[signature]
            links.append(_Link(match, state, self._bits(others), tuple(predicates)))
        for link in links:
            stem, read = link.match.sides
            link.further += [
                other
                for other in links
                if other.match.sides[LEFT] == stem and not set(other.match.sides[RIGHT]) <= set(read)
            ]
        return links

    def _connected(self, related: list[tuple[str, ...]]) -> bool:
        """True when predicates over two aliases lead from any source to all: no cross product is needed."""
        reached = {self.plan.aliases[0]}
        for _ in self.plan.aliases:
            for pair in related:
                if len(pair) == 2 and not reached.isdisjoint(pair):
                    reached |= set(pair)
        return len(reached) == len(self.plan.aliases)

    def _bits(self, aliases: Sequence[str]) -> U64:
        """(w,) the words in which the bits of these aliases are set."""
        words = np.zeros(-(-len(self._number) // 64), np.uint64)
        for alias in aliases:
            word, bit = divmod(self._number[alias], 64)
            words[word] |= np.uint64(1 << bit)
        return words

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice; see `Executor.process`."""
        for match, state in self._stems.values():
            new = epoch.get(state.aliases[0])
            if new is not None and len(new):
                match.enter(state, match.prepare(LEFT, new), now)
        count = len(self._number)
        flight = self._admit(epoch)
        for step in range(1, count):
            if len(flight) == 0:
                break
            flight = self._visit(flight)
            if step < count - 1:
                self._made += len(flight)
        for link in self._links:
            link.routed *= FADING
            link.returned *= FADING
        out = Tuples(self.plan.aliases, flight.rows, flight.ts, flight.expiry)
        # A link sees only the components that it reads; which one came last is known now.
        alive = self.sources.rows_alive(out)
        return out if alive is None or alive.all() else out.take(alive)

    def _admit(self, epoch: Mapping[str, Tuples]) -> _Flight:
        """New tuples, each of which has visited the SteM of its own source."""
        parts = [epoch.get(alias) or Tuples.empty((alias,)) for alias in self._number]
        origin = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        rows, ts, expiry = (
            np.concatenate(columns)
            for columns in zip(*((part.rows[0], part.ts, part.expiry) for part in parts), strict=True)
        )
        n = len(ts)
        nothing = np.zeros((len(self._bits(())), n), np.uint64)
        blank = _Flight(np.full((len(parts), n), -1, np.int64), ts, expiry, origin, nothing)
        return blank.joined(np.arange(n), origin, rows, ts, expiry)

    def _visit(self, flight: _Flight) -> _Flight:
        """Send every tuple to one SteM; what comes back."""
        self.routings += len(flight)
        tickets = np.array([link.tickets for link in self._links])
        draws = self._lottery.draw(len(flight))
        drawn = draw_links(flight.visited, self._required, self._targets, self._hashed, tickets, draws)
        # Of two tuples of equal ts, that of the later source finds the other.
        strict = self._targets[drawn] > flight.origin
        kind = drawn * 2 + strict
        order = np.argsort(kind, kind="stable")
        kinds, first = np.unique(kind[order], return_index=True)
        found = [
            self._probe(flight, places, self._links[which // 2], strict=bool(which % 2))
            for which, places in zip(kinds.tolist(), np.split(order, first[1:]), strict=True)
        ]
        rows, places = np.concatenate([part.rows for part in found], axis=1)
        stems = np.repeat(self._targets[kinds // 2], [len(part) for part in found])
        ts, expiry = np.concatenate([part.ts for part in found]), np.concatenate([part.expiry for part in found])
        return flight.joined(places, stems, rows, ts, expiry)

    def _probe(self, flight: _Flight, places: I64, link: _Link, *, strict: bool) -> Tuples:
        """What the tuples at ascending `places` find by a link: rows of the SteM, and of the flight."""
        match = link.match
        (alias,), others = match.sides
        # A match hands on rows beyond those of its aliases: the last one leads back to the tuple's place.
        reads = [flight.rows[self._number[other], places] for other in others]
        probing = Tuples(others, np.array([*reads, places]), flight.ts[places], flight.expiry[places])
        prepared = match.prepare(RIGHT, probing)
        match.counters.input_tuples += len(prepared)
        found = match.find(RIGHT, prepared, link.state, strict=strict)
        found = Tuples((alias,), found.rows[[0, -1]], found.ts, found.expiry)
        if link.further:
            good = self._further(link, flight, *found.rows)
            match.counters.results -= len(found) - int(np.count_nonzero(good))
            found = found.take(good)
        link.routed += len(places)
        link.returned += len(found)
        return found

    def _further(self, by: _Link, flight: _Flight, found: I64, origins: I64) -> Mask:
        """Where rows found by tuples at `origins` satisfy the SteM's further links too, if those are covered."""
        good = np.ones(len(found), np.bool_)
        visited = np.take(flight.visited, origins, axis=1)
        for link in by.further:
            places = np.flatnonzero(good & covers(visited, link.required))
            if len(places) == 0:
                continue
            others = link.match.sides[RIGHT]
            reads = [flight.rows[self._number[other], origins[places]] for other in others]
            resolve = self.sources.resolver(link.match.aliases, np.array([found[places], *reads]))
            for predicate in link.predicates:
                good[places] &= holds(predicate, resolve, len(places))
        return good

    def stems(self) -> list[tuple[Match, int, SideState]]:
        """Every SteM, with a match that probes it and the side that it is of that."""
        return [(match, LEFT, state) for match, state in self._stems.values()]

    def counters(self) -> list[MatchCounters]:
        """Of every link."""
        return [link.match.counters for link in self._links]

    def burden(self, alias: str, other: str) -> tuple[int, int, int]:
        """What tuples of `alias` have caused so far before `other` was visited, as `MJoin.burden`. Ways are not known
        here: of all that was probed and found by tuples that began in any source each is taken for an equal share, and
        `other` for visited half-way."""
        found = {link.match.sides[LEFT][0]: 0 for link in self._links}
        for link in self._links:
            found[link.match.sides[LEFT][0]] += link.match.counters.results
        ways = 2 * len(self._number)
        return self.routings // ways, sum(found.values()) // ways, found.get(alias, 0) // 2

    def states(self) -> dict[Signature, SideState]:
        """The SteMs by what they hold; one source may have several, under different keys."""
        return {signature: state for signature, (_, state) in self._stems.items()}

    def purge(self, cut: int) -> None:
        """Drop what no tuple with ts >= cut can meet."""
        for _, state in self._stems.values():
            purge_state(self.sources, state, cut)

    def operators(self) -> tuple[OperatorStatistics, ...]:
        """One per link; SteMs that links share are shown with each."""
        return tuple(
            operator_statistics(
                f"{' '.join(link.match.sides[RIGHT])} -> {link.state.aliases[0]}".strip(),
                bool(link.match.condition.keys),
                link.match.counters,
                (_NOTHING, link.state),
            )
            for link in self._links
        )

    def comparisons(self) -> int:
        """Predicate evaluations so far."""
        return sum(link.match.counters.comparisons for link in self._links)

    def intermediate_results(self) -> int:
        """Partial tuples that came back to the eddy so far."""
        return self._made

    def state_tuples(self) -> int:
        """Tuples in all SteMs."""
        return sum(len(state) for _, state in self._stems.values())

    def size_bytes(self) -> int:
        """Bytes of all SteMs."""
        return sum(state.size_bytes() for _, state in self._stems.values())


_NOTHING = SideState((), 0, hashed=False)
"""The side of a probe that keeps nothing."""
