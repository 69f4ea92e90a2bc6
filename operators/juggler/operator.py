"""Juggler: the queries of a group in one multi-way operator (WPI 2004, chapters 3 and 4).

A new tuple of an input visits the others, along a tree of visits that queries share (`visits`). Each visit finds
candidates through the structure of the first type of predicates (`probe`), then evaluates the lists of all types in
the order in force (`lists`, `flight`); what no query is left of is dropped at once. Where all inputs of a query are
covered, its results are those that still carry its bit: no false positive, and a result leaves once per query.

A result is found by that one of its components which is the latest in the total order, as in an M-Join: new tuples of
all inputs are entered first, and of two inputs the later one in the group finds rows of its own ts, the earlier does
not.

The operator's state is a function of the rows that the stores hold. So to add or drop a query is to build lists,
visits and structures anew over them, at the cost of the rows that live; nothing is patched.

Limits: what `schemas.groups` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from operators.evaluate import holds
from operators.juggler.adaptive import FOUND, AdaptiveOrder
from operators.juggler.fields import Fields
from operators.juggler.flight import ENCODINGS, QUERIES, Counters, Evaluator, Flight
from operators.juggler.held import Held
from operators.juggler.lists import ATTRIBUTE, JOIN, WINDOW, Lists, PredicateList, predicate_lists, query_mask
from operators.juggler.order import ADAPTIVE, ORDERS
from operators.juggler.output import Outputs, routes
from operators.juggler.probe import Pairs, Prober
from operators.juggler.programs import Left, Program, Programmed, Side, plain
from operators.juggler.sampling import observe
from operators.juggler.sources import GroupSources
from operators.juggler.visits import Visit, visits
from operators.kernels.hashing import U64
from operators.tuples import Tuples
from schemas.columns import I64, Column
from schemas.errors import InvariantError, UsageError
from schemas.groups import QueryGroup
from schemas.query import TABLE_TS, Expr, Query
from schemas.query import Column as ColumnRef

AT_ONCE = 1 << 15
"""Candidates that are evaluated together: their columns fit the cache."""


class Juggler:
    """Executes a group of queries.

    Args:
        order: of ORDERS, or `adaptive`.
        encoding: of ENCODINGS; changes no result.

    Attributes:
        group: the queries that run.
        adaptive: whether the order changes.
        choice: the order in force, and why.
    """

    def __init__(
        self, sources: GroupSources, group: QueryGroup, order: str = ADAPTIVE, encoding: str = QUERIES
    ) -> None:
        if order not in (ADAPTIVE, *ORDERS):
            raise UsageError(f"order {order!r} of predicate types: one of {', '.join((ADAPTIVE, *ORDERS))}")
        if encoding not in ENCODINGS:
            raise UsageError(f"encoding {encoding!r}: one of {', '.join(ENCODINGS)}")
        self.sources = sources
        self.adaptive = order == ADAPTIVE
        self.choice = AdaptiveOrder(ORDERS[0] if self.adaptive else order)
        self.encoding = encoding
        self.counters = Counters()
        self._since: dict[str, dict[str, int]] = {}
        self._build(group)

    @property
    def order(self) -> str:
        """The order in force."""
        return self.choice.order

    def _build(self, group: QueryGroup) -> None:
        self.group = group
        self.lists: Lists = predicate_lists(group, self._since, _never)
        self._evaluator = Evaluator(self.sources, self.lists, len(group.members), self.encoding, self.counters)
        self._prober = Prober(self.sources, self._evaluator, self.counters)
        self._place = {source.alias: n for n, source in enumerate(group.inputs)}
        self._routes = routes(group)
        self._attributes = {
            source.alias: [one for one in self.lists.of(ATTRIBUTE) if source.alias in one.inputs]
            for source in group.inputs
        }
        self._visits = {source.alias: visits(group, self.lists, source.alias) for source in group.inputs}
        words = self._evaluator.words
        self._all = np.full(words, 2**64 - 1, np.uint64)
        self._nothing = Program((), "", (Fields(), Fields()))
        self._held: dict[str, Held] = {}
        for source in group.inputs:
            name = source.alias
            asking = {n for n, member in enumerate(group.members) if name in member.inputs}
            mask = query_mask(asking, words)
            held = Held(self.sources, name, self.sources.life[name], mask, self._evaluator.predicate_words)
            self._held[name] = held
        for root in self._visits.values():
            for visit in root.all():
                self._hold_for(visit)
        self._keep_fields()
        self._masks = {id(v): query_mask(set(v.queries), words) for r in self._visits.values() for v in r.all()}
        self._ways = {id(v): self._way(v) for r in self._visits.values() for v in r.all() if len(v.inputs) > 1}
        self._own = {name: self._programmed(lists, (name,)) for name, lists in self._attributes.items()}

    def _keep_fields(self) -> None:
        """Keep the numbers that predicate lists read, where queries are encoded."""
        if self.encoding != QUERIES:
            return
        for one in self.lists.lists:
            form = one.form
            if form is None or not isinstance(form.x, ColumnRef):
                continue
            for column in (form.x, form.y):
                if column is not None:
                    self._held[column.alias].fields.add(column, form.whole, one.limits())

    def _way(self, visit: Visit) -> dict[str, Programmed]:
        return {kind: self._programmed(visit.lists[kind], visit.inputs) for kind in (JOIN, WINDOW)}

    def _programmed(self, lists: Sequence[PredicateList], inputs: Sequence[str]) -> Programmed:
        """Lay out lists for kernels, over the last of some inputs and each other one by itself."""
        fields = {name: self._held[name].fields for name in inputs}
        b = inputs[-1]
        parts: dict[str, list[PredicateList]] = {}
        rest = []
        for one in lists:
            if self.encoding == QUERIES and plain(one, fields):
                parts.setdefault(next((name for name in one.inputs if name != b), b), []).append(one)
            else:
                rest.append(one)
        programs = []
        for a, some in parts.items():
            with_tables = [(one, self._evaluator.compiled(one)) for one in some]
            programs.append((inputs.index(a), Program(with_tables, a, (fields[a], fields[b]))))
        return Programmed(tuple(programs), tuple(rest), tuple(lists))

    def _hold_for(self, visit: Visit) -> None:
        """Keep an input as a visit wants to find it."""
        held = self._held[visit.inputs[-1]]
        if visit.key:
            held.with_key(visit.operands)
        if visit.index is None:
            return
        column, whole = visit.index
        for one in visit.lists[JOIN]:
            if one.form is not None and one.form.whole == whole and column in (one.form.x, one.form.y):
                held.with_values(column, whole, one.limits())

    # --- Running ----------------------------------------------------------------------------------------

    def process(self, epoch: Mapping[str, Tuples], now: int) -> dict[str, Tuples]:
        """Run one slice of the input.

        Args:
            epoch: new tuples per input, ascending by ts, none older than any processed before, no predicate applied;
                inputs without any may be absent.
            now: the slice's beginning: what expired before it is dead.

        Returns:
            Each query's new results, over its inputs in FROM order, ascending by (ts, rows): the order that the engine
            gives the query alone. Their expiry goes by the query's own windows.
        """
        given = {name: tuples for name, tuples in epoch.items() if len(tuples)}
        entered = {name: self._enter(name, tuples, now) for name, tuples in given.items()}
        out = Outputs(self.sources, self._routes)
        for name in sorted(entered, key=self._place.__getitem__):
            self._finish(self._visits[name], entered[name], out)
        if self.adaptive and given and now != TABLE_TS:
            self.choice.step(
                sum(len(tuples) for tuples in given.values()),
                lambda: observe(
                    self.sources, self._evaluator, self._prober, self._visits, self._held, self._attributes, given
                ),
            )
        found = out.results()
        for query, tuples in found.items():
            self.counters.results[query] = self.counters.results.get(query, 0) + len(tuples)
        return found

    def _enter(self, name: str, tuples: Tuples, now: int) -> Flight:
        """Keep new tuples; the flight that they begin."""
        held = self._held[name]
        rows = tuples.rows[0]
        held.begin(rows)
        if self.order[0] == ATTRIBUTE:
            self._evaluate_rows(name, rows)
        flight = Flight((name,), tuples.rows, tuples.ts, *held.known(rows))
        if self.order[0] == ATTRIBUTE:
            flight = flight.still_alive()
            self._count(ATTRIBUTE, len(rows), len(flight))
        expiry = self.sources.expiry(name, flight.rows[0], flight.ts)
        held.enter(Tuples((name,), np.ascontiguousarray(flight.rows), flight.ts, expiry), now)
        return flight

    def _evaluate_rows(self, name: str, rows: I64) -> None:
        """Evaluate the attribute predicates of those rows for which that was not done."""
        held = self._held[name]
        rows = held.unknown(rows)
        if len(rows):
            flight = Flight((name,), rows[np.newaxis], np.zeros(len(rows), np.int64), *held.known(rows))
            own = self._own[name]
            if held.odd():
                self._evaluator.evaluate(flight, own.lists)
            else:
                for _, program in own.programs:
                    side = Side(rows, held.fields)
                    left = program.run(np.arange(len(rows)), side, side, flight.alive, None, self._all)
                    self._tally(left)
                    flight.alive[:] = 0
                    flight.alive[left.at] = left.alive
                self._evaluator.evaluate(flight, own.rest)
            held.learn(rows, flight.alive, flight.relevant, flight.satisfied)

    def _finish(self, visit: Visit, flight: Flight, out: Outputs) -> None:
        """Give results of the queries that are covered, and go on to the next visits."""
        if len(flight) and visit.finished:
            if len(visit.inputs) == 1:
                # Nothing was visited, so only here are the attributes asked for.
                flight = self._with_attributes(flight, visit.inputs)
            out.add(flight)
        for following in visit.next:
            part = flight
            if len(visit.next) > 1 or visit.finished:
                alive = flight.alive & self._masks[id(following)]
                part = Flight(flight.inputs, flight.rows, flight.ts, alive, flight.relevant, flight.satisfied)
                part = part.still_alive()
            if len(part):
                self._visit(following, part, out)

    def _visit(self, visit: Visit, flight: Flight, out: Outputs) -> None:
        name = visit.inputs[-1]
        held = self._held[name]
        first = next(kind for kind in self.order if kind != ATTRIBUTE)
        strict = self._place[name] > self._place[visit.inputs[0]]
        mask = self._masks[id(visit)]
        pairs: list[Pairs] = []
        waiting = found = 0
        for probe, rows in self._prober.candidates(visit, flight, held, first, strict=strict):
            for begin in range(0, len(probe), AT_ONCE):
                pairs.append((probe[begin : begin + AT_ONCE], rows[begin : begin + AT_ONCE]))
                waiting += len(pairs[-1][0])
                found += len(pairs[-1][0])
                if waiting >= AT_ONCE:
                    self._meet(visit, flight, held, pairs, mask, out)
                    pairs, waiting = [], 0
        if pairs:
            self._meet(visit, flight, held, pairs, mask, out)
        self.choice.passed(FOUND, len(flight), found)

    def _meet(
        self,
        visit: Visit,
        flight: Flight,
        held: Held,
        pairs: list[Pairs],
        mask: U64,
        out: Outputs,
    ) -> None:
        """Evaluate the types in their order on candidates, and go on with what is left."""
        probe = pairs[0][0] if len(pairs) == 1 else np.concatenate([p for p, _ in pairs])
        rows = pairs[0][1] if len(pairs) == 1 else np.concatenate([r for _, r in pairs])
        odd = any(self._held[name].odd() for name in visit.inputs)
        way = self._ways[id(visit)]
        met: Flight | None = None
        for place, kind in enumerate(self.order):
            if kind == ATTRIBUTE and place == 0:
                # Those that are known are taken into account where pairs are made.
                self._evaluate_rows(visit.inputs[-1], rows)
                continue
            if met is None:
                met, before = self._paired(flight, probe, rows, held, mask, () if odd else way[kind].programs[:1])
                if self.order[0] == ATTRIBUTE:
                    self._count(ATTRIBUTE, before, before)
                met = self._narrowed(met, way[kind], odd=odd, done=1)
            else:
                before = len(met)
                if kind == ATTRIBUTE:
                    # The latest tuple's own are asked for at its first visit, as late as the order says.
                    met = self._with_attributes(met, visit.inputs if len(visit.inputs) == 2 else visit.inputs[-1:])
                else:
                    met = self._narrowed(met, way[kind], odd=odd)
            self._count(kind, before, len(met))
        assert met is not None
        self._finish(visit, met, out)

    def _paired(
        self, flight: Flight, probe: I64, rows: I64, held: Held, mask: U64, programs: Sequence[tuple[int, Program]]
    ) -> tuple[Flight, int]:
        """Candidates of which some query is left after a program, and how many were wanted before it."""
        other, program = programs[0] if programs else (0, self._nothing)
        fields = self._held[flight.inputs[other]].fields
        left = program.run(
            probe, Side(flight.rows[other], fields), Side(rows, held.fields), flight.alive, held.alive, mask
        )
        self._tally(left)
        probe, rows = probe[left.at], rows[left.at]
        relevant, satisfied = held.evaluated(rows)
        met = Flight(
            (*flight.inputs, held.name),
            np.concatenate([np.take(flight.rows, probe, axis=1), rows[np.newaxis]]),
            flight.ts[probe],
            left.alive,
            relevant | flight.relevant[probe],
            satisfied | flight.satisfied[probe],
        )
        return met, left.entered

    def _narrowed(self, flight: Flight, way: Programmed, *, odd: bool, done: int = 0) -> Flight:
        """What a type's lists leave; so many programs have run already, if any do."""
        if odd:
            return self._evaluator.narrowed(flight, way.lists)
        for other, program in way.programs[done:]:
            if not len(flight):
                return flight
            a, b = (Side(flight.rows[k], self._held[flight.inputs[k]].fields) for k in (other, -1))
            left = program.run(np.arange(len(flight)), a, b, flight.alive, None, self._all)
            self._tally(left)
            flight = flight.take(left.at).with_alive(left.alive)
        return self._evaluator.narrowed(flight, way.rest)

    def _tally(self, left: Left) -> None:
        self.counters.comparisons += left.comparisons
        self.counters.bit_operations += left.bit_operations

    def _with_attributes(self, flight: Flight, names: Iterable[str]) -> Flight:
        """What is left after the attribute predicates of some components."""
        for name in names:
            if not len(flight) or not self._attributes[name]:
                continue
            rows = flight.rows[flight.inputs.index(name)]
            self._evaluate_rows(name, rows)
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

    def _count(self, kind: str, before: int, after: int) -> None:
        key = (self.order, kind)
        self.counters.intermediate[key] = self.counters.intermediate.get(key, 0) + after
        self.choice.passed(kind, before, after)

    # --- Registration -----------------------------------------------------------------------------------

    def add(self, query: Query, *, from_now: bool, cut: int) -> dict[str, int]:
        """Register one more query when everything before `cut` has been processed.

        Args:
            from_now: results of tuples at or after the cut alone; else also with those that the group's windows hold
                at the cut.

        Returns:
            By input the least ts of tuples that the query sees; absent where it sees all that its window holds.

        Raises:
            UsageError: the group cannot take the query; nothing has changed.
        """
        group = self.group.adding(query)
        member = group.member(query.name)
        since: dict[str, int] = {}
        for source in member.over_inputs.sources:
            least = self.sources.seen_from(source, cut)
            if from_now and not source.is_table:
                least = cut
            if least is not None:
                since[source.alias] = least
        self._since[query.name] = since
        self.sources.change(group, cut)
        self._rebuild(group, cut)
        return since

    def drop(self, name: str, *, cut: int) -> None:
        """Forget a query when everything before `cut` has been processed.

        Raises:
            UsageError: there is no such query.
        """
        group = self.group.dropping(name)
        self._since.pop(name, None)
        self.sources.change(group, cut)
        self._rebuild(group, cut)

    def _rebuild(self, group: QueryGroup, cut: int) -> None:
        self._build(group)
        for name, held in self._held.items():
            tuples = self.sources.stored_since(name, int(held.least_ts(np.array([cut]))[0]))
            if len(tuples):
                self._enter(name, tuples, min(cut, int(tuples.ts[0])))

    def purge(self, cut: int) -> None:
        """Drop what no tuple with ts >= cut can meet."""
        for held in self._held.values():
            held.purge(cut)

    # --- Introspection ----------------------------------------------------------------------------------

    def comparisons(self) -> int:
        """Predicates evaluated so far, and entries of structures looked at."""
        return self.counters.comparisons

    def intermediate_results(self) -> int:
        """Tuples left after each type of predicates but the last of the order in force then."""
        return sum(count for (order, kind), count in self.counters.intermediate.items() if kind != order[-1])

    def state_tuples(self) -> int:
        """Rows kept, those of each input once."""
        return sum(len(held.by_time) for held in self._held.values())

    def size_bytes(self) -> int:
        """Bytes of all structures, without the stores."""
        return sum(held.size_bytes() for held in self._held.values())


def _never(predicate: Expr) -> bool:
    """Whether a predicate without columns does not hold."""
    return not holds(predicate, _no_column, 1)[0]


def _no_column(column: ColumnRef) -> Column:
    raise InvariantError(f"a constant predicate reads {column}")


__all__ = ["ADAPTIVE", "ATTRIBUTE", "JOIN", "ORDERS", "WINDOW", "Juggler"]
