"""The predicate types as stages that candidates go through, in any order (Juggler 3.4.2, Fig. 3.19).

Where queries are encoded, the lists of a type are laid out for one kernel, pair by input (`programs`); what no program
can have is evaluated list by list afterwards, and so is everything while an odd row is held (`fields`), and under the
thesis' own encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from operators.juggler.predicates.compiled_lists import Left, Program, Programmed, Side, plain
from operators.juggler.predicates.fields import Fields
from operators.juggler.predicates.lists import ATTRIBUTE, JOIN, WINDOW, Lists, PredicateList, query_mask
from operators.juggler.routing.tuples_in_flight import QUERIES, Counters, Evaluator, Flight
from operators.juggler.routing.visits import Visit
from operators.juggler.state.input_state import Held
from operators.kernels.hashing import U64
from schemas.columns import I64
from schemas.query import Column

Passed = Callable[[str, int, int], None]
"""Told of a type how many came to it and how many are left."""


class Stages:
    """Evaluates types of predicates on candidates.

    Attributes:
        attributes: the attribute lists of each input.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        counters: Counters,
        held: Mapping[str, Held],
        visits: Mapping[str, Visit],
        lists: Lists,
    ) -> None:
        self._evaluator = evaluator
        self._counters = counters
        self._held = held
        self._all = np.full(evaluator.words, 2**64 - 1, np.uint64)
        self._nothing = Program((), "", (Fields(), Fields()))
        if evaluator.encoding == QUERIES:
            self._keep_fields(lists)
        every = [visit for root in visits.values() for visit in root.all()]
        self.masks = {id(visit): query_mask(set(visit.queries), evaluator.words) for visit in every}
        self._ways = {
            (id(visit), kind): self._programmed(visit.lists[kind], visit.inputs)
            for visit in every
            for kind in (JOIN, WINDOW)
            if len(visit.inputs) > 1
        }
        self.attributes = {name: [one for one in lists.of(ATTRIBUTE) if name in one.inputs] for name in held}
        self._own = {name: self._programmed(some, (name,)) for name, some in self.attributes.items()}

    def _keep_fields(self, lists: Lists) -> None:
        """Keep the numbers that lists read."""
        for one in lists.lists:
            form = one.form
            if form is None or not isinstance(form.x, Column):
                continue
            for column in (form.x, form.y):
                if column is not None:
                    self._held[column.alias].fields.add(column, form.whole, one.limits())

    def _programmed(self, lists: Sequence[PredicateList], inputs: Sequence[str]) -> Programmed:
        """Lay out lists for kernels: over the last of some inputs and each other one by itself."""
        fields = {name: self._held[name].fields for name in inputs}
        b = inputs[-1]
        parts: dict[str, list[PredicateList]] = {}
        rest = []
        for one in lists:
            if self._evaluator.encoding == QUERIES and plain(one, fields):
                parts.setdefault(next((name for name in one.inputs if name != b), b), []).append(one)
            else:
                rest.append(one)
        programs = []
        for a, some in parts.items():
            with_tables = [(one, self._evaluator.compiled(one)) for one in some]
            programs.append((inputs.index(a), Program(with_tables, a, (fields[a], fields[b]))))
        return Programmed(tuple(programs), tuple(rest), tuple(lists))

    # --- Attributes -------------------------------------------------------------------------------------

    def evaluate_rows(self, name: str, rows: I64) -> None:
        """Evaluate the attribute predicates of those rows for which that was not done."""
        held = self._held[name]
        rows = held.unknown(rows)
        if not len(rows):
            return
        flight = Flight((name,), rows[np.newaxis], np.zeros(len(rows), np.int64), *held.known(rows))
        own = self._own[name]
        alive = self._alive_after(flight, own)
        held.learn(rows, alive.alive, alive.relevant, alive.satisfied)

    def with_attributes(self, flight: Flight, names: Iterable[str]) -> Flight:
        """What is left after the attribute predicates of some components."""
        for name in names:
            if not len(flight) or not self.attributes[name]:
                continue
            rows = flight.rows[flight.inputs.index(name)]
            self.evaluate_rows(name, rows)
            alive, relevant, satisfied = self._held[name].known(rows)
            flight = Flight(
                flight.inputs,
                flight.rows,
                flight.ts,
                flight.alive & alive,
                flight.relevant | relevant,
                flight.satisfied | satisfied,
            ).still_alive()
        return flight

    # --- Candidates -------------------------------------------------------------------------------------

    def met(self, visit: Visit, order: str, flight: Flight, probe: I64, rows: I64, passed: Passed) -> Flight:
        """What is left of candidates after all types.

        Args:
            flight: what comes to the visit; with attributes first, its first component's were evaluated.
            probe: (n,) positions in it; rows: (n,) those found.
        """
        met: Flight | None = None
        for place, kind in enumerate(order):
            if kind == ATTRIBUTE and not place:
                # What is known of rows is taken into account where pairs are made.
                self.evaluate_rows(visit.inputs[-1], rows)
                continue
            if met is None:
                met, before = self._paired(visit, kind, flight, probe, rows)
                if place:
                    passed(ATTRIBUTE, len(rows), before)
                met = self._narrowed(visit, kind, met, done=1)
            else:
                before = len(met)
                if kind == ATTRIBUTE:
                    # The latest tuple's own are asked for at its first visit, as late as the order says.
                    met = self.with_attributes(met, visit.inputs if len(visit.inputs) == 2 else visit.inputs[-1:])
                else:
                    met = self._narrowed(visit, kind, met)
            passed(kind, before, len(met))
        assert met is not None
        return met

    def _paired(
        self, visit: Visit, kind: str | None, flight: Flight, probe: I64, rows: I64
    ) -> tuple[Flight, int]:
        """Candidates of which some query is left after a type's first program, and how many were wanted before it."""
        name = visit.inputs[-1]
        held = self._held[name]
        other, program = 0, self._nothing
        if kind is not None and not self._odd(visit.inputs):
            other, program = next(iter(self._ways[id(visit), kind].programs), (0, self._nothing))
        fields = self._held[flight.inputs[other]].fields
        left = program.run(
            probe, Side(flight.rows[other], fields), Side(rows, held.fields), flight.alive, held.alive,
            self.masks[id(visit)],
        )  # fmt: skip
        self._tally(left)
        probe, rows = probe[left.at], rows[left.at]
        relevant, satisfied = held.evaluated(rows)
        met = Flight(
            visit.inputs,
            np.concatenate([np.take(flight.rows, probe, axis=1), rows[np.newaxis]]),
            flight.ts[probe],
            left.alive,
            relevant | flight.relevant[probe],
            satisfied | flight.satisfied[probe],
        )
        return met, left.entered

    def _narrowed(self, visit: Visit, kind: str, flight: Flight, *, done: int = 0) -> Flight:
        """What a type's lists leave; so many programs have run already, if any do."""
        way = self._ways[id(visit), kind]
        if self._odd(visit.inputs):
            return self._evaluator.narrowed(flight, way.lists)
        for other, program in way.programs[done:]:
            if not len(flight):
                return flight
            left = self._run(program, other, flight)
            flight = flight.take(left.at).with_alive(left.alive)
        return self._evaluator.narrowed(flight, way.rest)

    def _alive_after(self, flight: Flight, way: Programmed) -> Flight:
        """The same tuples after lists, whether or not a query is left of them; the flight's sets are used up."""
        if self._odd(flight.inputs):
            self._evaluator.evaluate(flight, way.lists)
            return flight
        for other, program in way.programs:
            left = self._run(program, other, flight)
            alive = np.zeros_like(flight.alive)
            alive[left.at] = left.alive
            flight = flight.with_alive(alive)
        self._evaluator.evaluate(flight, way.rest)
        return flight

    def _run(self, program: Program, other: int, flight: Flight) -> Left:
        a, b = (Side(flight.rows[k], self._held[flight.inputs[k]].fields) for k in (other, -1))
        left = program.run(np.arange(len(flight)), a, b, flight.alive, None, self._all)
        self._tally(left)
        return left

    def _odd(self, inputs: Iterable[str]) -> bool:
        """Whether lists' forms may not say of some row what was written."""
        return any(self._held[name].odd() for name in inputs)

    def _tally(self, left: Left) -> None:
        self._counters.comparisons += left.comparisons
        self._counters.bit_operations += left.bit_operations

    # --- Samples ----------------------------------------------------------------------------------------

    def tried(
        self, visit: Visit, flight: Flight, probe: I64, rows: I64
    ) -> tuple[int, dict[str, U64], dict[str, float], float]:
        """Every type by itself on the same candidates.

        Returns:
            How many some query wants; of those, by type, the queries left after it; predicates evaluated per pair, of
            attributes per row; the share of pairs whose attributes were not known.
        """
        met, wanted = self._paired(visit, None, flight, probe, rows)
        alive: dict[str, U64] = {}
        cost: dict[str, float] = {}
        name = visit.inputs[-1]
        unknown = len(self._held[name].unknown(met.rows[-1]))
        owners = visit.inputs if len(visit.inputs) == 2 else visit.inputs[-1:]
        alive[ATTRIBUTE] = met.alive.copy()
        for owner in owners:
            own = met.rows[visit.inputs.index(owner)]
            self.evaluate_rows(owner, own)
            alive[ATTRIBUTE] &= self._held[owner].alive_of(own)
        cost[ATTRIBUTE] = float(len(self.attributes[name]))
        for kind in (JOIN, WINDOW):
            before = self._counters.comparisons
            sets = (met.alive.copy(), met.relevant.copy(), met.satisfied.copy())
            copy = Flight(met.inputs, met.rows, met.ts, *sets)
            alive[kind] = self._alive_after(copy, self._ways[id(visit), kind]).alive
            cost[kind] = (self._counters.comparisons - before) / max(1, len(met))
        return wanted, alive, cost, unknown / max(1, len(met))
