"""Feedback in an operator that queries share: rows are set aside while no query can use them (JIT V, Juggler 3.2.4).

The operator keeps no intermediate results, so what section V of the JIT paper says of M-Joins and eddies holds: what a
half join finds to have no partner is told to its own input, which sets it aside; and a partner that comes asks nobody
for anything, since every result has a latest component, which finds all others. What is new here are many queries.

*What is not demanded.* A row has a bit per query that may still want it. A bit is not demanded while its query has no
living row in some other input that fits the row's values: the row is a minimal non-demanded sub-tuple, for that query.
A row is one as a whole when all its bits are. The empty sub-tuple is one for a query that finds nothing at all in some
input (`idle`): then no tuple starts on its way for that query's sake, whatever its predicates are.

*How it is detected.* For two inputs that some queries join by the same equalities there is a *guard* each way
(`guards`). All rows of a slice are observed before any of them is let in: the table of partners of their input has, by
signature, the latest ts and the bits of all rows with it that may live. Then every new row loses the bits of a guard's
queries that its signature's partners do not have: a batch costs one look-up per row and guard. A row that has bits
left is stored, and starts with these alone. One that has none left starts on no way, and is set aside: it enters none
of the input's structures, so nobody finds it, neither by key nor by value nor by time. What is set aside is in the
blacklists of guards that have taken its bits, every bit in one of them.

*How it comes back.* When a row gives a signature bits that it did not have, all that is set aside under it looks for
partners again, in all guards, before anything starts on its way; what has some enters the structures as a late row
(`Held.enter_late`), the rest is set aside anew. Nothing is produced for it: while a bit was taken there was no
combination of its query that it could be part of, and from now on it is found.

*How it ends.* A signature is suspended no longer than its rows live: they die in the blacklist as they would in the
structures. Partners that die are noticed by their ts, and now and then the rows in the structures are looked through
for those that have lost their last one; at that the tables forget the dead, and late rows take their place among the
others. What lives is said by the group's longest windows, so that a query with a shorter one has a partner at worst too
long: fewer rows are set aside, none wrongly.

*When queries come and go*, or rows leave for the disk, the operator is built anew from what the stores hold, and
this with it: bits mean other queries then. All stored rows are observed first, so that what nobody wants does not
enter. Guards go on as they were, known by their inputs and equalities.

Inputs do not suppress each other to death: what is set aside has been observed, and is somebody's partner as much as
any row.

*What it can gain.* Ways that lead to the guarding input at last: a query of three inputs and more, where tuples find
much in the one and nothing in the other. With two inputs the visit itself is the look-up, and only idle queries are
spared. So it is for comparisons by order: of 100 living rows some is larger than most values, and a table of the least
and largest would keep next to nothing back; they are left out, but for idle queries.

Guards watch while that pays (`watching`); one that rests costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from operators.data.statistics import EdgeStatistics
from operators.data.tuples import Tuples
from operators.data.watermark import END
from operators.feedback import guard_payoff as trials
from operators.feedback.stopwatch import Stopwatch
from operators.juggler.feedback.guards import Guard, Signatures, edges, guards_of
from operators.juggler.feedback.idle import Idle
from operators.juggler.feedback.row_cost import WorkOf
from operators.juggler.feedback.watching import Watching
from operators.juggler.routing.tuples_in_flight import Flight
from operators.juggler.routing.visits import Visit
from operators.juggler.state.input_state import Held
from operators.juggler.state.sources import GroupSources
from operators.kernels.hashing import U64
from operators.kernels.juggler import living
from schemas.groups import QueryGroup

LEAST_SWEPT = 1_024
"""Structures are looked through after so many rows were entered, at least, and after as many as they held before."""

SWEPT_SHARE = 0.1
"""They are made anew when a larger share of them is late, or has lost its last partner."""


class Demand:
    """Drives what enters an operator's structures, and starts on its way.

    Args:
        held: every input's structures, still empty.
        roots: every input's visits; work_of: what a visit has done so far.
        words: of a set of queries.
        before: that of the group as it was.
        clock: seconds, for what detecting takes.

    Attributes:
        guards: by input.
    """

    def __init__(
        self,
        group: QueryGroup,
        sources: GroupSources,
        held: Mapping[str, Held],
        roots: Mapping[str, Visit],
        work_of: WorkOf,
        words: int,
        clock: Callable[[], float],
        before: Demand | None = None,
    ) -> None:
        self._sources = sources
        self._held = held
        self._idle = Idle(group, words)
        self.guards = guards_of(edges(group), words, sources.tables)
        self._all = [guard for some in self.guards.values() for guard in some]
        self._detecting = {guard.edge.name: Stopwatch(clock) for guard in self._all}
        if before is not None:
            self._take_over(before)
        structures = {name: 1 + len(one.by_key) + len(one.by_value) for name, one in held.items()}
        accounts = None if before is None else before._watching
        self._watching: Watching = Watching(self._all, roots, work_of, structures, accounts)
        self._unswept = dict.fromkeys(held, 0)
        # New rows that started on no way since no query that wants them could have results.
        self._not_started: int = 0 if before is None else before._not_started

    def _take_over(self, before: Demand) -> None:
        """Go on as guards did that spoke of the same."""
        known = {guard.edge.name: guard for guard in before._all}
        for guard in self._all:
            old = known.get(guard.edge.name)
            if old is not None:
                guard.account, guard.counters = old.account, old.counters
                guard.refused, guard.pruned, guard.admitted, guard.swept = (
                    old.refused, old.pruned, old.admitted, old.swept
                )  # fmt: skip
                guard.settled = old.settled
                self._detecting[guard.edge.name] = before._detecting[guard.edge.name]

    # --- Running ----------------------------------------------------------------------------------------

    def enter(self, flights: Mapping[str, Flight], now: int, alive_at: int | None = None) -> dict[str, Flight]:
        """Observe a slice, let in what that brings back, and enter new rows into their structures, or set them aside.

        Args:
            flights: of one input each, new rows in their order, the stores have them.
            now: what expired before it is dead; `alive_at`: the same where rows are not new, but those of a window.

        Returns:
            Those that start on their way, with the queries for which they do.
        """
        at = now if alive_at is None else alive_at
        least = {name: self._least(name, at) for name in self._held}
        hashed = Signatures(self._sources, {name: flight.rows for name, flight in flights.items()})
        for flight in flights.values():
            self._idle.see(flight)
        back: dict[str, list[Tuples]] = {}
        for guard, gained in self._observed(flights, hashed, least):
            if len(gained) and len(guard.blacklist):
                returned = guard.take(gained, at)
                guard.counters.returned += len(returned)
                back.setdefault(guard.edge.alias, []).append(returned)
        for name, parts in back.items():
            self._let_in(name, parts, now, least)
        busy = self._idle.busy(least)
        starting = {}
        for name, flight in flights.items():
            before = self._unswept[name]
            starting[name] = self._admitted(flight, hashed, busy, now, least, new=alive_at is None)
            if alive_at is None:
                self._watching.note(name, len(flight), self._unswept[name] - before)
        return starting

    def _observed(
        self, flights: Mapping[str, Flight], hashed: Signatures, least: Mapping[str, int]
    ) -> list[tuple[Guard, U64]]:
        """Tell the tables of watching guards of new rows; each guard, and the signatures that have gained queries."""
        told: dict[int, U64] = {}
        found = []
        for guard in self._all:
            name = guard.edge.by
            if not guard.watching or not len(flights.get(name, ())):
                continue
            with self._detecting[guard.edge.name]:
                if id(guard.partners) not in told:
                    flight = flights[name]
                    signatures, valid = hashed.of(name, guard.edge.observed)
                    guard.counters.checked += len(flight)
                    told[id(guard.partners)] = guard.partners.see(
                        signatures, valid, flight.ts, flight.alive, least[name]
                    )
                found.append((guard, told[id(guard.partners)]))
        return found

    def _admitted(
        self, flight: Flight, hashed: Signatures, busy: U64, now: int, least: Mapping[str, int], *, new: bool
    ) -> Flight:
        """Enter an input's rows, or set them aside; those that start. Of rows that are not `new` nothing is booked."""
        if not len(flight):
            return flight
        name, held = flight.inputs[0], self._held[flight.inputs[0]]
        left = self._left(name, flight.alive, hashed, least, new=new)
        rows = np.ascontiguousarray(flight.rows[0])
        entering = Tuples((name,), rows[np.newaxis], flight.ts, self._sources.expiry(name, rows, flight.ts))
        if left is not flight.alive:
            staying = living(left)
            if not staying.all():
                away = ~staying
                self._set_aside(name, entering.take(away), flight.alive[away], now, least, new=new)
                entering = entering.take(staying)
        held.enter(entering, now)
        self._unswept[name] += len(entering)
        starting = left & busy
        started = living(starting)
        if new:
            self._not_started += int(np.count_nonzero(living(left) & ~started))
        return flight.with_alive(starting).take(started)

    def _left(self, name: str, alive: U64, hashed: Signatures, least: Mapping[str, int], *, new: bool = False) -> U64:
        """(n, words) the queries that may have partners for rows; the sets themselves where nobody watches."""
        left = alive
        for guard in self.guards.get(name, ()):
            if guard.watching:
                with self._detecting[guard.edge.name]:
                    left = alive.copy() if left is alive else left
                    own, valid = hashed.of(name, guard.edge.own)
                    lost = guard.partners.leave(own, valid, guard.asking, least[guard.edge.by], left)
                    guard.counters.checked += len(own)
                    if new:
                        guard.pruned += lost
                        guard.admitted += len(own) - lost
        return left

    def _set_aside(
        self, name: str, tuples: Tuples, alive: U64, now: int, least: Mapping[str, int], *, new: bool = False
    ) -> None:
        """Set rows aside of which no query is left, each bit with a guard that has taken it."""
        held = self._held[name]
        hashed = Signatures(self._sources, {name: tuples.rows})
        remaining = alive.copy()
        for guard in self.guards[name]:
            if not guard.watching:
                continue
            own, valid = hashed.of(name, guard.edge.own)
            before = remaining.copy()
            guard.partners.leave(own, valid, guard.asking, least[guard.edge.by], remaining)
            taken = (before != remaining).any(axis=1)
            if taken.any():
                guard.put(tuples.take(taken), own[taken], valid[taken], now)
                if new:
                    guard.refused += int(np.count_nonzero(taken))
        held.set_aside(tuples.rows[0], True)

    def _let_in(self, name: str, parts: Sequence[Tuples], now: int, least: Mapping[str, int]) -> int:
        """Enter rows that were set aside, as far as they have partners now; how many."""
        held = self._held[name]
        together = np.concatenate([part.rows[0] for part in parts])
        rows, first = np.unique(together, return_index=True)
        ts = np.concatenate([part.ts for part in parts])[first]
        good = held.are_aside(rows) & (ts >= least[name])
        if not good.any():
            return 0
        tuples = held.tuples(rows[good], ts[good])
        alive = held.alive_of(tuples.rows[0])
        hashed = Signatures(self._sources, {name: tuples.rows})
        left = self._left(name, alive, hashed, least)
        staying = living(left)
        if not staying.all():
            self._set_aside(name, tuples.take(~staying), alive[~staying], now, least)
            tuples = tuples.take(staying)
        held.set_aside(tuples.rows[0], False)
        if len(tuples):
            held.enter_late(tuples, now)
            self._unswept[name] += len(tuples)
        return len(tuples)

    def end(self, now: int) -> None:
        """A slice has been processed: let the dead go, look structures through, settle accounts."""
        for guard in self._all:
            if guard.watching:
                name = guard.edge.alias
                counted = self._held[name].counts
                guard.purge(now, self._sources.store(name).first_at(self._least(name, now)) if counted else None)
        for name, some in self.guards.items():
            if self._unswept[name] >= max(LEAST_SWEPT, len(self._held[name])) and any(g.watching for g in some):
                self._sweep(name, now)
        self._watching.end(self, now)

    def _sweep(self, name: str, now: int) -> None:
        """Look an input's structures through for what has lost its last partner, and put late rows in their place."""
        held = self._held[name]
        least = {other: self._least(other, now) for other in self._held}
        watching = [guard for guard in self.guards[name] if guard.watching]
        for guard in watching:
            with self._detecting[guard.edge.name]:
                guard.swept += self._renew(guard, now) + len(held)
        tuples = held.entered(now)
        alive = held.alive_of(tuples.rows[0])
        staying = living(self._left(name, alive, Signatures(self._sources, {name: tuples.rows}), least))
        gone = len(tuples) - int(np.count_nonzero(staying))
        if gone + len(held.late_by_time) > SWEPT_SHARE * len(tuples):
            if gone:
                self._set_aside(name, tuples.take(~staying), alive[~staying], now, least)
            held.restart(tuples.take(staying), now)
        self._unswept[name] = 0

    def _renew(self, guard: Guard, now: int) -> int:
        """Make a guard's table anew from what lives; how many rows that are."""
        name, least = guard.edge.by, self._least(guard.edge.by, now)
        tuples = self._sources.stored_since(name, least)
        own, valid = Signatures(self._sources, {name: tuples.rows}).of(name, guard.edge.observed)
        guard.partners.clear()
        guard.partners.see(own, valid, tuples.ts, self._held[name].alive_of(tuples.rows[0]), least)
        return len(tuples)

    def _least(self, name: str, now: int) -> int:
        return END if now == END else int(self._held[name].least_ts(np.array([now]))[0])

    # --- Guards that watch and rest: `operators.juggler.feedback.watching` ------------------------------------------

    def sizes(self) -> dict[str, int]:
        """The rows in every input's structures."""
        return {name: len(held) for name, held in self._held.items()}

    def sample(self, guard: Guard, now: int) -> tuple[float, float]:
        """The shares of queries that a guard would take from the newest and from the oldest rows of its input."""
        alias, least = guard.edge.alias, self._least(guard.edge.by, now)
        with self._detecting[guard.edge.name]:
            self._renew(guard, now)
            tuples = self._held[alias].entered(now)
            shares = []
            for some in (slice(-trials.SAMPLED_TUPLES, None), slice(0, trials.SAMPLED_TUPLES)):
                part = tuples.take(np.arange(len(tuples))[some])
                own, valid = Signatures(self._sources, {alias: part.rows}).of(alias, guard.edge.own)
                alive = self._held[alias].alive_of(part.rows[0])
                left = alive.copy()
                guard.partners.leave(own, valid, guard.asking, least, left)
                bits = int(np.bitwise_count(alive).sum())
                shares.append(1 - int(np.bitwise_count(left).sum()) / bits if bits else 0.0)
            self._clear(guard)
        newest, oldest = shares
        return newest, oldest

    def begin(self, guard: Guard, now: int) -> None:
        """A guard watches from now on."""
        self._sweep(guard.edge.alias, now)

    def release(self, guard: Guard, now: int) -> int:
        """A guard rests from now on: let in what it keeps back; how many rows."""
        name = guard.edge.alias
        back = guard.take(None, now)
        if len(back):
            self._let_in(name, [back], now, {other: self._least(other, now) for other in self._held})
        self._clear(guard)
        return len(back)

    def _clear(self, guard: Guard) -> None:
        """Forget a guard's partners where nobody asks for them."""
        if not any(other.watching for other in self._all if other.partners is guard.partners):
            guard.partners.clear()

    # --- Introspection ------------------------------------------------------------------------------------

    def kept_back(self) -> int:
        """Rows set aside now; those count twice that two guards keep back."""
        return sum(len(guard.blacklist) for guard in self._all)

    def size_bytes(self) -> int:
        """Bytes of all tables and blacklists."""
        tables = {id(guard.partners): guard.partners for guard in self._all}.values()
        return sum(guard.size_bytes() for guard in self._all) + sum(table.size_bytes() for table in tables)

    def edges(self) -> tuple[EdgeStatistics, ...]:
        """What each input has said about each other one; a result not made is a row that was set aside, or that
        started for fewer queries. The last one is of queries that could have none at all."""
        found = [
            EdgeStatistics(
                consumer=f"{guard.edge.alias} -> {guard.edge.by}",
                producer=guard.edge.alias,
                watching=guard.watching,
                suspend=guard.counters.suspend,
                resume=guard.counters.resume,
                demanded=guard.admitted,
                suppressed=guard.pruned,
                kept_back=len(guard.blacklist),
                returned=guard.counters.returned,
                forgotten=guard.counters.forgotten,
                checked=guard.counters.checked + guard.swept,
                detecting_s=self._detecting[guard.edge.name].seconds,
            )
            for guard in self._all
        ]
        return (*found, EdgeStatistics("an empty input", "every input", True, suppressed=self._not_started))
