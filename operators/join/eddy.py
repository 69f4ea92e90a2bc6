"""The eddy with SteMs (CACQ; JISC 3.1): no intermediate state, and no plan: every tuple is routed on its own.

Every source has a SteM (state module): its tuples, indexed once per key under which they are probed, as in an M-Join. A
new tuple is inserted into its SteM and enters the eddy. The eddy sends every partial tuple to a SteM that it has not
visited; the matches return to the eddy, until all SteMs are visited. Each partial tuple has a bitmap of the SteMs
visited. The component that is latest in the total order finds the result, whatever probe path it took, so each result
is found exactly once.

The next SteM is drawn by lottery: the fewer tuples a SteM has returned per tuple sent to it lately, the more tickets it
has. A SteM to which no predicate leads from the covered aliases is drawn only where there is no other. The random
generator is a counter and a mixing function, so that a run can be repeated.

A tuple probes a SteM by one link: the predicates between some of its aliases and the SteM's, which may have an index.
The SteM's further links are checked on the matches. Tuples drawn to the same link are probed together whatever else
they cover, so a step costs a few calls per link, not per set of aliases. Links have the predicates as written.
Equalities that follow from others (`operators.plan.equalities`) would add up to n^2 links for a star of n streams, and
every draw considers all links.

The eddy adapts without any migration. The cost is that every tuple passes through the eddy for every SteM, and that
intermediate results that a tree would have kept are computed again for every tuple (JISC 3.1).
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

DECAY = 0.9
"""The weight of a slice's observations one slice later."""

MAX_TICKETS = 1e6
"""The tickets of a link that returns nothing. Too few to hide other links from a draw, so that they are tried."""

_STEP = 0x9E3779B97F4A7C15
"""Odd and without pattern: consecutive multiples, mixed, are good random numbers (SplitMix64)."""


@dataclass(slots=True)
class _Link:
    """One way to probe a SteM: `match.sides` are the SteM's alias and the aliases that the probe reads.

    Attributes:
        match: the condition between the two sides.
        state: the SteM.
        required: (w,) the bits of the aliases read.
        predicates: those over exactly these aliases, for tuples that probe the SteM by another link.
        routed: tuples sent, decaying by DECAY per slice.
        returned: tuples returned, likewise.
        further: the SteM's other links, whose predicates this link does not check.
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
        """The link's tickets in the lottery: the more, the fewer tuples it returns."""
        return min((self.routed + 1.0) / (self.returned + 1.0), MAX_TICKETS)


@dataclass(slots=True, eq=False)
class _TuplesInFlight:
    """Partial tuples in the eddy, ascending by ts.

    Attributes:
        rows: (sources, m) row ids in the plan's alias order, -1 where the SteM has not been visited.
        ts: (m,) as in `Tuples`.
        expiry: (m,) as in `Tuples`.
        origin: (m,) the number of the alias that each started from, its latest component.
        visited: (w, m) the progress bitmap: bit a % 64 of word a // 64 is alias a.
    """

    rows: I64
    ts: I64
    expiry: I64
    origin: I64
    visited: U64

    def __len__(self) -> int:
        return len(self.ts)

    def joined(self, positions: I64, stems: I64, rows: I64, ts: I64, expiry: I64) -> _TuplesInFlight:
        """Return the tuples at `positions`, each with the row of one more SteM, sorted by ts."""
        order = np.argsort(ts, kind="stable")
        positions, stems, rows, own = positions[order], stems[order], rows[order], np.arange(len(ts))
        # Not rows[:, positions]: that copy would have column-major layout, and kernels would be compiled again for it.
        extended = np.take(self.rows, positions, axis=1)
        extended[stems, own] = rows
        visited = np.take(self.visited, positions, axis=1)
        visited[stems // 64, own] |= np.uint64(1) << (stems % 64).astype(np.uint64)
        return _TuplesInFlight(extended, ts[order], expiry[order], self.origin[positions], visited)


@dataclass(slots=True)
class Lottery:
    """Uniform random numbers that depend only on the seed and on how many were drawn before."""

    seed: int = 0
    drawn: int = field(default=0, init=False)

    def draw(self, n: int) -> F64:
        """Return (n,) numbers in [0, 1)."""
        counter = np.arange(self.drawn, self.drawn + n, dtype=np.uint64)
        self.drawn += n
        words = mix_words(mix_words(counter * np.uint64(_STEP)) + np.uint64(self.seed))
        return np.asarray((words >> np.uint64(11)).astype(np.float64) * 2.0**-53)


class Eddy:
    """Executes a query by routing; an `Executor`.

    Args:
        plan: only names the sources; their order decides between tuples of equal ts.
        seed: of the lottery.
        state_of: makes the initial state of a SteM for a match and a side: empty, or taken over from the eddy before.

    Attributes:
        sources: the stores that tuples' row ids refer to.
        plan: see above.
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
        """Make a link per alias and set of aliases that a predicate relates it to, and the cross products needed."""
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
        """Return whether predicates over two aliases lead from any source to all: no cross product is needed."""
        reached = {self.plan.aliases[0]}
        for _ in self.plan.aliases:
            for pair in related:
                if len(pair) == 2 and not reached.isdisjoint(pair):
                    reached |= set(pair)
        return len(reached) == len(self.plan.aliases)

    def _bits(self, aliases: Sequence[str]) -> U64:
        """Return (w,) words in which the bits of these aliases are set."""
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
        in_flight = self._admit(epoch)
        for step in range(1, count):
            if len(in_flight) == 0:
                break
            in_flight = self._visit(in_flight)
            if step < count - 1:
                self._made += len(in_flight)
        for link in self._links:
            link.routed *= DECAY
            link.returned *= DECAY
        out = Tuples(self.plan.aliases, in_flight.rows, in_flight.ts, in_flight.expiry)
        # A link sees only the components that it reads. All are known now, so the ROWS windows can be tested.
        alive = self.sources.rows_alive(out)
        return out if alive is None or alive.all() else out.take(alive)

    def _admit(self, epoch: Mapping[str, Tuples]) -> _TuplesInFlight:
        """Return the new tuples, each of which has visited the SteM of its own source."""
        parts = [epoch.get(alias) or Tuples.empty((alias,)) for alias in self._number]
        origin = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        rows, ts, expiry = (
            np.concatenate(columns)
            for columns in zip(*((part.rows[0], part.ts, part.expiry) for part in parts), strict=True)
        )
        n = len(ts)
        nothing = np.zeros((len(self._bits(())), n), np.uint64)
        blank = _TuplesInFlight(np.full((len(parts), n), -1, np.int64), ts, expiry, origin, nothing)
        return blank.joined(np.arange(n), origin, rows, ts, expiry)

    def _visit(self, in_flight: _TuplesInFlight) -> _TuplesInFlight:
        """Send every tuple to one SteM and return the matches."""
        self.routings += len(in_flight)
        tickets = np.array([link.tickets for link in self._links])
        draws = self._lottery.draw(len(in_flight))
        drawn = draw_links(in_flight.visited, self._required, self._targets, self._hashed, tickets, draws)
        # Of two tuples with equal ts, the tuple of the later source finds the other.
        strict = self._targets[drawn] > in_flight.origin
        kind = drawn * 2 + strict
        order = np.argsort(kind, kind="stable")
        kinds, first = np.unique(kind[order], return_index=True)
        found = [
            self._probe(in_flight, positions, self._links[which // 2], strict=bool(which % 2))
            for which, positions in zip(kinds.tolist(), np.split(order, first[1:]), strict=True)
        ]
        rows, positions = np.concatenate([part.rows for part in found], axis=1)
        stems = np.repeat(self._targets[kinds // 2], [len(part) for part in found])
        ts, expiry = np.concatenate([part.ts for part in found]), np.concatenate([part.expiry for part in found])
        return in_flight.joined(positions, stems, rows, ts, expiry)

    def _probe(self, in_flight: _TuplesInFlight, positions: I64, link: _Link, *, strict: bool) -> Tuples:
        """Probe a SteM by a link with the tuples at ascending `positions`.

        Returns:
            The matches with two rows each: the row in the SteM, and the position of the probing tuple.
        """
        match = link.match
        (alias,), others = match.sides
        # A match passes on rows beyond those of its aliases; the last row here is the tuple's position.
        reads = [in_flight.rows[self._number[other], positions] for other in others]
        probing = Tuples(others, np.array([*reads, positions]), in_flight.ts[positions], in_flight.expiry[positions])
        prepared = match.prepare(RIGHT, probing)
        match.counters.input_tuples += len(prepared)
        found = match.find(RIGHT, prepared, link.state, strict=strict)
        found = Tuples((alias,), found.rows[[0, -1]], found.ts, found.expiry)
        if link.further:
            good = self._further(link, in_flight, *found.rows)
            match.counters.results -= len(found) - int(np.count_nonzero(good))
            found = found.take(good)
        link.routed += len(positions)
        link.returned += len(found)
        return found

    def _further(self, by: _Link, in_flight: _TuplesInFlight, found: I64, origins: I64) -> Mask:
        """Test the SteM's further links on matches, as far as the probing tuples cover the aliases of those.

        Args:
            by: the link by which the SteM was probed.
            found: (n,) rows in the SteM.
            origins: (n,) positions of the probing tuples.
        """
        good = np.ones(len(found), np.bool_)
        visited = np.take(in_flight.visited, origins, axis=1)
        for link in by.further:
            tested = np.flatnonzero(good & covers(visited, link.required))
            if len(tested) == 0:
                continue
            others = link.match.sides[RIGHT]
            reads = [in_flight.rows[self._number[other], origins[tested]] for other in others]
            resolve = self.sources.resolver(link.match.aliases, np.array([found[tested], *reads]))
            for predicate in link.predicates:
                good[tested] &= holds(predicate, resolve, len(tested))
        return good

    def stems(self) -> list[tuple[Match, int, SideState]]:
        """Return every SteM with a match that probes it and the SteM's side in that match."""
        return [(match, LEFT, state) for match, state in self._stems.values()]

    def counters(self) -> list[MatchCounters]:
        """Return the counters of every link."""
        return [link.match.counters for link in self._links]

    def work_before(self, alias: str, other: str) -> tuple[int, int, int]:
        """Estimate the work that tuples of `alias` have caused before `other` was visited; see `MJoin.work_before`.

        An eddy does not know probe paths. The estimate assumes that the sources have equal shares in all probes and
        matches, and that `other` is visited half-way.
        """
        found = {link.match.sides[LEFT][0]: 0 for link in self._links}
        for link in self._links:
            found[link.match.sides[LEFT][0]] += link.match.counters.results
        half_paths = 2 * len(self._number)
        return self.routings // half_paths, sum(found.values()) // half_paths, found.get(alias, 0) // 2

    def states(self) -> dict[Signature, SideState]:
        """Return the SteMs by their content's signature; a source may have several, under different keys."""
        return {signature: state for signature, (_, state) in self._stems.items()}

    def purge(self, cut: int) -> None:
        """Drop the entries that no tuple with ts >= cut can meet."""
        for _, state in self._stems.values():
            purge_state(self.sources, state, cut)

    def operators(self) -> tuple[OperatorStatistics, ...]:
        """Return statistics per link. A SteM that links share appears with each."""
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
        """Return the number of predicate evaluations so far."""
        return sum(link.match.counters.comparisons for link in self._links)

    def intermediate_results(self) -> int:
        """Return the number of partial tuples that have returned to the eddy so far."""
        return self._made

    def state_tuples(self) -> int:
        """Return the number of tuples in all SteMs."""
        return sum(len(state) for _, state in self._stems.values())

    def size_bytes(self) -> int:
        """Return the bytes of all SteMs."""
        return sum(state.size_bytes() for _, state in self._stems.values())


_NOTHING = SideState((), 0, hashed=False)
"""Stands for the side of a probe that keeps no state."""
