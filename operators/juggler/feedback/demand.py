"""Sets rows aside while no query of a shared operator can use them (JIT V, Juggler 3.2.4).

`operators.juggler.operator` enters each slice through `RowSuppressor.enter` and closes it with `RowSuppressor.end`. The
operator keeps no intermediate results, so section V of the JIT paper on M-Joins and eddies applies. A half join that
finds no partner for a row reports this to the row's own input, which sets the row aside. An arriving partner requests
nothing, since the latest component of every result finds all others. This module extends that to many queries.

*What is not demanded.* A row has one bit per query that may still want it. A bit is not demanded while, in some other
input, its query has no live row that matches the row's values. The row is then a minimal non-demanded sub-tuple (MNS)
for that query. The whole row is an MNS when none of its bits is demanded. The empty sub-tuple is an MNS for a query
that has no live row at all in some input (`idle`). Then no tuple visits other inputs for that query, whatever its
predicates are.

*Detection.* For two inputs that some queries join by the same equalities, there is a *guard* in each direction
(`guards`). All rows of a slice are observed before any row enters. The partner table of their input stores, by
signature, the latest ts and the bits of all rows with that signature that may be alive. Then every new row loses those
bits of a guard's queries that the partners of its signature do not have. So a batch costs one look-up per row and
guard. A row with bits left is stored and visits other inputs with these bits only. A row without bits left visits no
input and is set aside: it enters none of the input's structures, so no visit finds it by key, value or time. A row set
aside is in the blacklists of the guards that have taken its bits, each bit in one of them.

*Return.* When a new row adds bits to a signature, all rows set aside under that signature look for partners again, in
all guards, before any tuple visits other inputs. Those with partners enter the structures as late rows
(`InputState.enter_late`); the rest is set aside again. Nothing is produced for a returned row: while a bit was taken,
its query had no combination with that row, and from now on visits find the row.

*End.* A signature is suspended no longer than its rows live; rows expire in the blacklist as they would in the
structures. The ts of a partner shows that it is dead. From time to time, a sweep searches the structures for rows that
have lost their last partner; it also removes dead rows from the tables and sorts late rows in among the others. The
group's longest windows determine which rows are alive. So for a query with a shorter window, a partner may stay too
long: then fewer rows are set aside, and none wrongly.

*When queries are added or dropped*, or rows move to disk, the operator is rebuilt from its stores, and this object with
it, since bits then stand for other queries. All stored rows are observed first, so that rows without partners do not
enter. Guards keep their balance and counters; their inputs and equalities identify them.

Inputs cannot suppress each other for ever: a row set aside has been observed, so it is a partner like any other row.

*What it can save.* It saves probe paths that reach the guarding input last: those of queries over three or more inputs
whose tuples find many rows in one input and none in another. With two inputs, the visit itself is the look-up, so only
idle queries save work. The same holds for order comparisons: of 100 live rows some row is larger than most values, so a
table of the least and largest values would suppress almost nothing. Guards ignore them; idle queries cover them.

Guards watch while that saves more than it costs (`operators.feedback.payoff.path_controller`); a resting guard costs
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from operators.data.statistics import EdgeStatistics
from operators.data.tuples import Tuples
from operators.data.watermark import END
from operators.feedback.payoff import guard as payoff
from operators.feedback.payoff.path_controller import PathController
from operators.feedback.payoff.tuple_cost import trial_cost
from operators.juggler.feedback.guards import RowGuard, RowSignatures, edges, guards_of
from operators.juggler.feedback.idle import IdleQueries
from operators.juggler.feedback.row_cost import WorkOf, paths_ns
from operators.juggler.routing.tuples_in_flight import TuplesInFlight
from operators.juggler.routing.visits import Visit
from operators.juggler.state.input_state import InputState
from operators.juggler.state.sources import GroupSources
from operators.kernels.hashing import U64
from operators.kernels.juggler import living
from schemas.groups import QueryGroup

LEAST_SWEPT = 1_024
"""A sweep starts after at least this many rows were entered, and after as many as the structures hold."""

SWEPT_SHARE = 0.1
"""A sweep rebuilds the structures when more than this share of their rows is late or has lost its last partner."""


class RowSuppressor:
    """Controls which rows enter an operator's structures and visit other inputs.

    Args:
        group: the queries.
        sources: the stores of their streams.
        input_states: every input's structures, still empty.
        roots: every input's tree of visits.
        work_of: returns the work of a visit so far.
        words: 64-bit words of a set of queries.
        clock: returns seconds; it measures the time of detection.
        before: the object of the group before the last change.

    Attributes:
        guards: by input.
    """

    def __init__(
        self,
        group: QueryGroup,
        sources: GroupSources,
        input_states: Mapping[str, InputState],
        roots: Mapping[str, Visit],
        work_of: WorkOf,
        words: int,
        clock: Callable[[], float],
        before: RowSuppressor | None = None,
    ) -> None:
        self._sources = sources
        self._input_states = input_states
        self._idle = IdleQueries(group, words)
        self._roots = roots
        self._work_of = work_of
        structures = {name: 1 + len(one.by_key) + len(one.by_value) for name, one in input_states.items()}
        self.guards = guards_of(edges(group), words, sources.tables, structures, clock)
        self._all = [guard for some in self.guards.values() for guard in some]
        known = {} if before is None else {guard.edge.name: guard for guard in before._all}
        for guard in self._all:
            if guard.edge.name in known:
                guard.take_over(known[guard.edge.name])
        self._controller: PathController[RowGuard] = PathController(
            self._all, self, roots, self._work(), None if before is None else before._controller
        )
        self._entered_since_sweep = dict.fromkeys(input_states, 0)
        # New rows that visited no input, since no query that wants them could have results.
        self._not_started: int = 0 if before is None else before._not_started

    # --- Running ----------------------------------------------------------------------------------------

    def enter(
        self,
        in_flight_by_input: Mapping[str, TuplesInFlight],
        now: int,
        alive_at: int | None = None,
        former: Mapping[str, InputState] | None = None,
    ) -> dict[str, TuplesInFlight]:
        """Observe a slice, admit the rows that it brings back, and enter new rows or set them aside.

        Args:
            in_flight_by_input: new rows of each input in their order; the stores hold them already.
            now: rows that expired before it are dead.
            alive_at: the same if the rows are not new but those of a window, at a rebuild; else None.
            former: the states of inputs before a rebuild.

        Returns:
            By input the tuples that visit other inputs, with the queries for which they do.
        """
        at = now if alive_at is None else alive_at
        least = {name: self._least(name, at) for name in self._input_states}
        hashed = RowSignatures(self._sources, {name: in_flight.rows for name, in_flight in in_flight_by_input.items()})
        for in_flight in in_flight_by_input.values():
            self._idle.observe(in_flight)
        returned_by_input: dict[str, list[Tuples]] = {}
        for guard, gained in self._observe(in_flight_by_input, hashed, least):
            if len(gained) and len(guard.blacklist):
                returned = guard.take(gained, at)
                guard.counters.returned += len(returned)
                returned_by_input.setdefault(guard.edge.alias, []).append(returned)
        for name, batches in returned_by_input.items():
            self._admit_returned(name, batches, now, least)
        active = self._idle.active(least)
        starting = {}
        for name, in_flight in in_flight_by_input.items():
            before = self._entered_since_sweep[name]
            held = None if former is None else former.get(name)
            starting[name] = self._admit(in_flight, hashed, active, now, least, held, new=alive_at is None)
            if alive_at is None:
                self._controller.note(name, len(in_flight), self._entered_since_sweep[name] - before)
        return starting

    def _observe(
        self, in_flight_by_input: Mapping[str, TuplesInFlight], hashed: RowSignatures, least: Mapping[str, int]
    ) -> list[tuple[RowGuard, U64]]:
        """Enter new rows into the tables of watching guards.

        Returns:
            Each of these guards with the signatures that have gained queries.
        """
        gained_by_table: dict[int, U64] = {}
        found = []
        for guard in self._all:
            name = guard.edge.by
            if not guard.watching or not len(in_flight_by_input.get(name, ())):
                continue
            with guard.detecting:
                if id(guard.partners) not in gained_by_table:
                    in_flight = in_flight_by_input[name]
                    signatures, valid = hashed.of(name, guard.edge.observed)
                    guard.counters.checked += len(in_flight)
                    gained_by_table[id(guard.partners)] = guard.partners.observe(
                        signatures, valid, in_flight.ts, in_flight.alive, least[name]
                    )
                found.append((guard, gained_by_table[id(guard.partners)]))
        return found

    def _admit(
        self,
        in_flight: TuplesInFlight,
        hashed: RowSignatures,
        active: U64,
        now: int,
        least: Mapping[str, int],
        former: InputState | None,
        *,
        new: bool,
    ) -> TuplesInFlight:
        """Enter an input's rows or set them aside, and return those that visit other inputs. Only `new` rows count in
        the statistics of guards."""
        if not len(in_flight):
            return in_flight
        name, input_state = in_flight.inputs[0], self._input_states[in_flight.inputs[0]]
        left = self._without_unmatched(name, in_flight.alive, hashed, least, new=new)
        rows = np.ascontiguousarray(in_flight.rows[0])
        entering = Tuples((name,), rows[np.newaxis], in_flight.ts, self._sources.expiry(name, rows, in_flight.ts))
        if left is not in_flight.alive:
            staying = living(left)
            if not staying.all():
                away = ~staying
                self._set_aside(name, entering.take(away), in_flight.alive[away], now, least, new=new)
                entering = entering.take(staying)
        if former is None or not input_state.take_over(former, entering, now):
            input_state.enter(entering, now)
        self._entered_since_sweep[name] += len(entering)
        starting = left & active
        started = living(starting)
        if new:
            self._not_started += int(np.count_nonzero(living(left) & ~started))
        return in_flight.with_alive(starting).take(started)

    def _without_unmatched(
        self, name: str, alive: U64, hashed: RowSignatures, least: Mapping[str, int], *, new: bool = False
    ) -> U64:
        """(n, words) the queries that may have partners for rows; `alive` itself where no guard watches."""
        left = alive
        for guard in self.guards.get(name, ()):
            if guard.watching:
                with guard.detecting:
                    left = alive.copy() if left is alive else left
                    own, valid = hashed.of(name, guard.edge.own)
                    lost = guard.partners.drop_unmatched(own, valid, guard.asking, least[guard.edge.by], left)
                    guard.counters.checked += len(own)
                    if new:
                        guard.pruned += lost
                        guard.admitted += len(own) - lost
        return left

    def _set_aside(
        self, name: str, tuples: Tuples, alive: U64, now: int, least: Mapping[str, int], *, new: bool = False
    ) -> None:
        """Set rows aside that no query can use, each bit with the guard that has taken it."""
        input_state = self._input_states[name]
        hashed = RowSignatures(self._sources, {name: tuples.rows})
        remaining = alive.copy()
        for guard in self.guards[name]:
            if not guard.watching:
                continue
            own, valid = hashed.of(name, guard.edge.own)
            before = remaining.copy()
            guard.partners.drop_unmatched(own, valid, guard.asking, least[guard.edge.by], remaining)
            taken = (before != remaining).any(axis=1)
            if taken.any():
                guard.put(tuples.take(taken), own[taken], valid[taken], now)
                if new:
                    guard.refused += int(np.count_nonzero(taken))
        input_state.set_aside(tuples.rows[0], True)

    def _admit_returned(self, name: str, batches: Sequence[Tuples], now: int, least: Mapping[str, int]) -> int:
        """Enter the rows set aside that have partners now, and return their number."""
        input_state = self._input_states[name]
        all_rows = np.concatenate([part.rows[0] for part in batches])
        rows, first = np.unique(all_rows, return_index=True)
        ts = np.concatenate([part.ts for part in batches])[first]
        good = input_state.are_aside(rows) & (ts >= least[name])
        if not good.any():
            return 0
        tuples = input_state.tuples(rows[good], ts[good])
        alive = input_state.alive_of(tuples.rows[0])
        hashed = RowSignatures(self._sources, {name: tuples.rows})
        left = self._without_unmatched(name, alive, hashed, least)
        staying = living(left)
        if not staying.all():
            self._set_aside(name, tuples.take(~staying), alive[~staying], now, least)
            tuples = tuples.take(staying)
        input_state.set_aside(tuples.rows[0], False)
        if len(tuples):
            input_state.enter_late(tuples, now)
            self._entered_since_sweep[name] += len(tuples)
        return len(tuples)

    def end(self, now: int) -> None:
        """Finish a slice: drop dead rows, sweep structures, and update the guards' balances."""
        for guard in self._all:
            if guard.watching:
                name = guard.edge.alias
                counted = self._input_states[name].counts
                guard.purge(now, self._sources.store(name).first_at(self._least(name, now)) if counted else None)
        for name, some in self.guards.items():
            due = self._entered_since_sweep[name] >= max(LEAST_SWEPT, len(self._input_states[name]))
            if due and any(guard.watching for guard in some):
                self._sweep(name, now)
        if self._controller.end_slice():
            for guard in self._all:
                own, met = paths_ns(self._roots, guard.alias, guard.observed_alias, self._work_of)
                guard.tuple_cost.update(own, met, self._controller.entered[guard.alias])
            self._controller.update(self._work(), now)

    def _work(self) -> float:
        visits = (visit for root in self._roots.values() for visit in root.all())
        return sum(self._work_of(visit).ns() for visit in visits)

    def _sweep(self, name: str, now: int) -> None:
        """Search an input's structures for rows that have lost their last partner, and sort late rows in."""
        input_state = self._input_states[name]
        least = {other: self._least(other, now) for other in self._input_states}
        watching = [guard for guard in self.guards[name] if guard.watching]
        for guard in watching:
            with guard.detecting:
                guard.swept += self._renew(guard, now) + len(input_state)
        tuples = input_state.live_tuples(now)
        alive = input_state.alive_of(tuples.rows[0])
        staying = living(self._without_unmatched(name, alive, RowSignatures(self._sources, {name: tuples.rows}), least))
        gone = len(tuples) - int(np.count_nonzero(staying))
        if gone + len(input_state.late_by_time) > SWEPT_SHARE * len(tuples):
            if gone:
                self._set_aside(name, tuples.take(~staying), alive[~staying], now, least)
            input_state.restart(tuples.take(staying), now)
        self._entered_since_sweep[name] = 0

    def _renew(self, guard: RowGuard, now: int) -> int:
        """Rebuild a guard's partner table from the live rows, and return their number."""
        name, least = guard.edge.by, self._least(guard.edge.by, now)
        tuples = self._sources.stored_since(name, least)
        own, valid = RowSignatures(self._sources, {name: tuples.rows}).of(name, guard.edge.observed)
        guard.partners.clear()
        guard.partners.observe(own, valid, tuples.ts, self._input_states[name].alive_of(tuples.rows[0]), least)
        return len(tuples)

    def _least(self, name: str, now: int) -> int:
        return END if now == END else int(self._input_states[name].least_ts(np.array([now]))[0])

    # --- Turns at trials: `operators.feedback.payoff.path_controller` -------------------------------------

    def take_turn(self, guard: RowGuard, now: int) -> bool:
        """Give a resting guard a trial if rows set aside could save anything."""
        if guard.tuple_cost.saved > 0.0:
            cost = trial_cost(len(self._input_states[guard.observed_alias]))
            if not self._controller.pay(cost):
                return False
            if self._controller.promises(guard, *self._sample(guard, now)):
                self._controller.start(guard, cost)
                self._sweep(guard.alias, now)
        return True

    def _sample(self, guard: RowGuard, now: int) -> tuple[float, float]:
        """The shares of queries that a guard would take from the newest and from the oldest rows of its input."""
        name, least = guard.alias, self._least(guard.observed_alias, now)
        with guard.detecting:
            self._renew(guard, now)
            tuples = self._input_states[name].live_tuples(now)
            shares = []
            for some in (slice(-payoff.SAMPLED_TUPLES, None), slice(0, payoff.SAMPLED_TUPLES)):
                part = tuples.take(np.arange(len(tuples))[some])
                own, valid = RowSignatures(self._sources, {name: part.rows}).of(name, guard.edge.own)
                alive = self._input_states[name].alive_of(part.rows[0])
                left = alive.copy()
                guard.partners.drop_unmatched(own, valid, guard.asking, least, left)
                bits = int(np.bitwise_count(alive).sum())
                shares.append(1 - int(np.bitwise_count(left).sum()) / bits if bits else 0.0)
            self._clear(guard)
        newest, oldest = shares
        return newest, oldest

    def release(self, guard: RowGuard, now: int) -> int:
        """A guard rests from now on: admit the rows that it has set aside, and return their number."""
        name = guard.edge.alias
        returned = guard.take(None, now)
        if len(returned):
            least = {other: self._least(other, now) for other in self._input_states}
            self._admit_returned(name, [returned], now, least)
        self._clear(guard)
        return len(returned)

    def _clear(self, guard: RowGuard) -> None:
        """Clear a guard's partner table unless another watching guard uses it."""
        if not any(other.watching for other in self._all if other.partners is guard.partners):
            guard.partners.clear()

    # --- Introspection ------------------------------------------------------------------------------------

    def kept_back(self) -> int:
        """The number of rows set aside now; rows that two guards have set aside count twice."""
        return sum(len(guard.blacklist) for guard in self._all)

    def size_bytes(self) -> int:
        """Bytes of all tables and blacklists."""
        tables = {id(guard.partners): guard.partners for guard in self._all}.values()
        return sum(guard.size_bytes() for guard in self._all) + sum(table.size_bytes() for table in tables)

    def edges(self) -> tuple[EdgeStatistics, ...]:
        """The statistics of each guard. The last entry is for queries that could have no result at all."""
        idle = EdgeStatistics("an empty input", "every input", True, suppressed=self._not_started)
        return (*(guard.statistics() for guard in self._all), idle)
