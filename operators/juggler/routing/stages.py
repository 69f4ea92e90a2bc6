"""Evaluates the predicate types as stages that candidates pass in any order (Juggler 3.4.2, Fig. 3.19).

`operators.juggler.operator` calls `Stages.evaluate_types` per batch of candidates. Under the `queries` encoding, the
lists of a type over one pair of inputs are laid out for one kernel (`compiled_lists`). Lists that the kernel cannot
evaluate follow one by one. All lists are evaluated one by one while an odd row is stored (`fields`), and under the
thesis' own encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from operators.juggler.predicates.compiled_lists import CompiledLists, ListPlan, PairSide, PairsLeft, compilable
from operators.juggler.predicates.fields import Fields
from operators.juggler.predicates.lists import ATTRIBUTE, JOIN, WINDOW, Lists, PredicateList, query_mask
from operators.juggler.routing.tuples_in_flight import QUERIES, Evaluator, JugglerCounters, TuplesInFlight
from operators.juggler.routing.visits import Visit
from operators.juggler.state.input_state import InputState
from operators.kernels.hashing import U64
from schemas.columns import I64
from schemas.query import ColumnRef

OnPassed = Callable[[str, int, int], None]
"""Receives a type, the number of tuples that arrived at it, and the number that passed it."""


class Stages:
    """Evaluates predicate types on candidates.

    Attributes:
        masks: by visit (its `id`), (words,) the queries that use the visit.
        attributes: the attribute lists of each input.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        counters: JugglerCounters,
        input_states: Mapping[str, InputState],
        visits: Mapping[str, Visit],
        lists: Lists,
    ) -> None:
        self._evaluator = evaluator
        self._counters = counters
        self._input_states = input_states
        self._all = np.full(evaluator.words, 2**64 - 1, np.uint64)
        self._no_lists = CompiledLists((), "", (Fields(), Fields()))
        if evaluator.encoding == QUERIES:
            self._keep_fields(lists)
        every = [visit for root in visits.values() for visit in root.all()]
        self.masks = {id(visit): query_mask(set(visit.queries), evaluator.words) for visit in every}
        self._plans = {
            (id(visit), kind): self._plan(visit.lists[kind], visit.inputs)
            for visit in every
            for kind in (JOIN, WINDOW)
            if len(visit.inputs) > 1
        }
        self.attributes = {name: [one for one in lists.of(ATTRIBUTE) if name in one.inputs] for name in input_states}
        self._attribute_plans = {name: self._plan(some, (name,)) for name, some in self.attributes.items()}

    def _keep_fields(self, lists: Lists) -> None:
        """Create the fields that lists read."""
        for one in lists.lists:
            form = one.form
            if form is None or not isinstance(form.x, ColumnRef):
                continue
            for column in (form.x, form.y):
                if column is not None:
                    self._input_states[column.alias].fields.add(column, form.whole, one.limits())

    def _plan(self, lists: Sequence[PredicateList], inputs: Sequence[str]) -> ListPlan:
        """Lay out lists for kernels: one group of lists over the last input and each of the others."""
        fields = {name: self._input_states[name].fields for name in inputs}
        b = inputs[-1]
        by_input: dict[str, list[PredicateList]] = {}
        uncompiled = []
        for one in lists:
            if self._evaluator.encoding == QUERIES and compilable(one, fields):
                by_input.setdefault(next((name for name in one.inputs if name != b), b), []).append(one)
            else:
                uncompiled.append(one)
        compiled = []
        for a, some in by_input.items():
            with_tables = [(one, self._evaluator.list_table(one)) for one in some]
            compiled.append((inputs.index(a), CompiledLists(with_tables, a, (fields[a], fields[b]))))
        return ListPlan(tuple(compiled), tuple(uncompiled), tuple(lists))

    # --- Attributes -------------------------------------------------------------------------------------

    def evaluate_rows(self, name: str, rows: I64) -> None:
        """Evaluate the attribute predicates of those rows that have not been evaluated yet."""
        input_state = self._input_states[name]
        rows = input_state.unknown(rows)
        if not len(rows):
            return
        in_flight = TuplesInFlight((name,), rows[np.newaxis], np.zeros(len(rows), np.int64), *input_state.known(rows))
        own = self._attribute_plans[name]
        alive = self._alive_after(in_flight, own)
        input_state.learn(rows, alive.alive, alive.relevant, alive.satisfied)

    def with_attributes(self, in_flight: TuplesInFlight, names: Iterable[str]) -> TuplesInFlight:
        """Filter tuples by the attribute predicates of some components."""
        for name in names:
            if not len(in_flight) or not self.attributes[name]:
                continue
            rows = in_flight.rows[in_flight.inputs.index(name)]
            self.evaluate_rows(name, rows)
            alive, relevant, satisfied = self._input_states[name].known(rows)
            in_flight = TuplesInFlight(
                in_flight.inputs,
                in_flight.rows,
                in_flight.ts,
                in_flight.alive & alive,
                in_flight.relevant | relevant,
                in_flight.satisfied | satisfied,
            ).still_alive()
        return in_flight

    # --- Candidates -------------------------------------------------------------------------------------

    def evaluate_types(
        self, visit: Visit, order: str, in_flight: TuplesInFlight, probe: I64, rows: I64, passed: OnPassed
    ) -> TuplesInFlight:
        """Filter candidates by all predicate types.

        Args:
            visit: the visit that found the candidates.
            order: one of ORDERS.
            in_flight: the tuples that arrived at the visit; if attributes come first, the attribute predicates of their
                first component were evaluated.
            probe: (n,) positions in `in_flight`.
            rows: (n,) the rows found.
            passed: called after each type.

        Returns:
            The candidates that some query can still use.
        """
        candidates: TuplesInFlight | None = None
        for index, kind in enumerate(order):
            if kind == ATTRIBUTE and not index:
                # `_pair` takes the known attributes of rows into account.
                self.evaluate_rows(visit.inputs[-1], rows)
                continue
            if candidates is None:
                candidates, before = self._pair(visit, kind, in_flight, probe, rows)
                if index:
                    passed(ATTRIBUTE, len(rows), before)
                candidates = self._narrow(visit, kind, candidates, done=1)
            else:
                before = len(candidates)
                if kind == ATTRIBUTE:
                    # The latest tuple's own attributes are evaluated at its first visit, as late as the order says.
                    owners = visit.inputs if len(visit.inputs) == 2 else visit.inputs[-1:]
                    candidates = self.with_attributes(candidates, owners)
                else:
                    candidates = self._narrow(visit, kind, candidates)
            passed(kind, before, len(candidates))
        assert candidates is not None
        return candidates

    def _pair(
        self, visit: Visit, kind: str | None, in_flight: TuplesInFlight, probe: I64, rows: I64
    ) -> tuple[TuplesInFlight, int]:
        """Pair tuples with rows, and filter the pairs by the first compiled lists of a type.

        Returns:
            The pairs that some query can still use, and how many pairs some query wanted before these lists.
        """
        name = visit.inputs[-1]
        input_state = self._input_states[name]
        other, compiled_lists = 0, self._no_lists
        if kind is not None and not self._odd(visit.inputs):
            other, compiled_lists = next(iter(self._plans[id(visit), kind].compiled), (0, self._no_lists))
        fields = self._input_states[in_flight.inputs[other]].fields
        left = compiled_lists.run(
            probe, PairSide(in_flight.rows[other], fields), PairSide(rows, input_state.fields), in_flight.alive,
            input_state.alive, self.masks[id(visit)],
        )  # fmt: skip
        self._tally(left)
        probe, rows = probe[left.at], rows[left.at]
        relevant, satisfied = input_state.evaluated(rows)
        candidates = TuplesInFlight(
            visit.inputs,
            np.concatenate([np.take(in_flight.rows, probe, axis=1), rows[np.newaxis]]),
            in_flight.ts[probe],
            left.alive,
            relevant | in_flight.relevant[probe],
            satisfied | in_flight.satisfied[probe],
        )
        return candidates, left.entered

    def _narrow(self, visit: Visit, kind: str, in_flight: TuplesInFlight, *, done: int = 0) -> TuplesInFlight:
        """Filter tuples by a type's lists; the first `done` compiled lists have run already."""
        plan = self._plans[id(visit), kind]
        if self._odd(visit.inputs):
            return self._evaluator.narrowed(in_flight, plan.lists)
        for other, compiled_lists in plan.compiled[done:]:
            if not len(in_flight):
                return in_flight
            left = self._run(compiled_lists, other, in_flight)
            in_flight = in_flight.take(left.at).with_alive(left.alive)
        return self._evaluator.narrowed(in_flight, plan.uncompiled)

    def _alive_after(self, in_flight: TuplesInFlight, plan: ListPlan) -> TuplesInFlight:
        """Evaluate lists and keep all tuples, even those without a query left; the sets of `in_flight` may change."""
        if self._odd(in_flight.inputs):
            self._evaluator.evaluate(in_flight, plan.lists)
            return in_flight
        for other, compiled_lists in plan.compiled:
            left = self._run(compiled_lists, other, in_flight)
            alive = np.zeros_like(in_flight.alive)
            alive[left.at] = left.alive
            in_flight = in_flight.with_alive(alive)
        self._evaluator.evaluate(in_flight, plan.uncompiled)
        return in_flight

    def _run(self, compiled_lists: CompiledLists, other: int, in_flight: TuplesInFlight) -> PairsLeft:
        a, b = (PairSide(in_flight.rows[k], self._input_states[in_flight.inputs[k]].fields) for k in (other, -1))
        left = compiled_lists.run(np.arange(len(in_flight)), a, b, in_flight.alive, None, self._all)
        self._tally(left)
        return left

    def _odd(self, inputs: Iterable[str]) -> bool:
        """Whether, for some stored row, normal forms may disagree with the predicates as written."""
        return any(self._input_states[name].odd() for name in inputs)

    def _tally(self, left: PairsLeft) -> None:
        self._counters.comparisons += left.comparisons
        self._counters.bit_operations += left.bit_operations

    # --- Samples ----------------------------------------------------------------------------------------

    def sample_types(
        self, visit: Visit, in_flight: TuplesInFlight, probe: I64, rows: I64
    ) -> tuple[int, dict[str, U64], dict[str, float], float]:
        """Evaluate every type by itself on the same candidates.

        Returns:
            The number of pairs that some query wants; by type, the queries of these pairs left after it; by type, the
            predicates evaluated per pair (of attributes, per row); the share of pairs whose attributes were not known.
        """
        candidates, wanted = self._pair(visit, None, in_flight, probe, rows)
        alive: dict[str, U64] = {}
        cost: dict[str, float] = {}
        name = visit.inputs[-1]
        unknown = len(self._input_states[name].unknown(candidates.rows[-1]))
        owners = visit.inputs if len(visit.inputs) == 2 else visit.inputs[-1:]
        alive[ATTRIBUTE] = candidates.alive.copy()
        for owner in owners:
            own = candidates.rows[visit.inputs.index(owner)]
            self.evaluate_rows(owner, own)
            alive[ATTRIBUTE] &= self._input_states[owner].alive_of(own)
        cost[ATTRIBUTE] = float(len(self.attributes[name]))
        for kind in (JOIN, WINDOW):
            before = self._counters.comparisons
            sets = (candidates.alive.copy(), candidates.relevant.copy(), candidates.satisfied.copy())
            copy = TuplesInFlight(candidates.inputs, candidates.rows, candidates.ts, *sets)
            alive[kind] = self._alive_after(copy, self._plans[id(visit), kind]).alive
            cost[kind] = (self._counters.comparisons - before) / max(1, len(candidates))
        return wanted, alive, cost, unknown / max(1, len(candidates))
