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

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from operators.data.evaluate import holds
from operators.data.statistics import EdgeStatistics
from operators.data.tuples import Tuples
from operators.juggler.feedback.demand import Demand
from operators.juggler.predicates.adaptive import AdaptiveEntry, AdaptiveOrder
from operators.juggler.predicates.lists import ATTRIBUTE, JOIN, WINDOW, Lists, predicate_lists, query_mask
from operators.juggler.predicates.order import ADAPTIVE, ORDERS, Work
from operators.juggler.routing.output import Outputs, routes
from operators.juggler.routing.probe import AT_ONCE, Look, Pairs, Prober
from operators.juggler.routing.sampling import observe
from operators.juggler.routing.selection import Selection
from operators.juggler.routing.stages import Stages
from operators.juggler.routing.tuples_in_flight import ENCODINGS, QUERIES, Counters, Evaluator, Flight
from operators.juggler.routing.visits import Visit, visits
from operators.juggler.state.available_past import Past
from operators.juggler.state.input_state import Held
from operators.juggler.state.sources import GroupSources
from operators.kernels.hashing import U64
from operators.state.side_state import SideState
from schemas.columns import Batch, Column, Mask
from schemas.errors import InvariantError, UsageError
from schemas.groups import QueryGroup
from schemas.query import TABLE_TS, Expr, Query
from schemas.query import Column as ColumnRef

TRIED_TUPLES = 64
"""New tuples of an input whose attributes are evaluated to see whether all should be."""


class Juggler:
    """Executes a group of queries.

    Args:
        order: of ORDERS, or `adaptive`.
        encoding: of ENCODINGS; changes no result.
        feedback: whether rows are set aside that no query can use (`demand`); changes no result either.
        clock: seconds, for what that takes.

    Attributes:
        group: the queries that run.
        demand: None without feedback.
    """

    def __init__(
        self,
        sources: GroupSources,
        group: QueryGroup,
        order: str = ADAPTIVE,
        encoding: str = QUERIES,
        *,
        feedback: bool = False,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        if order not in (ADAPTIVE, *ORDERS):
            raise UsageError(f"order {order!r} of predicate types: one of {', '.join((ADAPTIVE, *ORDERS))}")
        if encoding not in ENCODINGS:
            raise UsageError(f"encoding {encoding!r}: one of {', '.join(ENCODINGS)}")
        self.sources = sources
        self._fixed = None if order == ADAPTIVE else order
        self.encoding = encoding
        self.counters = Counters()
        self._since: dict[str, dict[str, int]] = {}
        self._past = Past(group, sources.since)
        self._feedback = feedback
        self._clock = clock
        self.demand: Demand | None = None
        self._build(group)

    @property
    def adaptive(self) -> bool:
        """Whether orders change."""
        return self._fixed is None

    def orders(self) -> dict[tuple[str, ...], str]:
        """The order in force of every visit, by the inputs covered: of that which is visited, last."""
        visits = [visit for root in self._visits.values() for visit in root.all() if len(visit.inputs) > 1]
        return {visit.inputs: self._choices[id(visit)].order for visit in visits}

    def _build(self, group: QueryGroup) -> None:
        self.group = group
        self.lists: Lists = predicate_lists(group, self._since, _never)
        self._evaluator = Evaluator(self.sources, self.lists, len(group.members), self.encoding, self.counters)
        self._prober = Prober(self.sources, self._evaluator, self.counters)
        self._place = {source.alias: n for n, source in enumerate(group.inputs)}
        self._routes = routes(group)
        self._visits = {source.alias: visits(group, self.lists, source.alias) for source in group.inputs}
        words = self._evaluator.words
        self._selection = Selection(group, self.lists, self._evaluator)
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
        self._stages = Stages(self._evaluator, self.counters, self._held, self._visits, self.lists)
        every = [visit for root in self._visits.values() for visit in root.all()]
        self._choices = {id(visit): AdaptiveOrder(self._fixed or ("AJW" if visit.key else "AWJ")) for visit in every}
        at_once = self._fixed is None or self._fixed[0] == ATTRIBUTE
        self._entries = {name: AdaptiveEntry(len(of), at_once) for name, of in self._stages.attributes.items()}
        if self._feedback:
            choices = self._choices
            self.demand = Demand(
                group,
                self.sources,
                self._held,
                self._visits,
                lambda visit: choices[id(visit)].work,
                words,
                self._clock,
                self.demand,
            )

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
        entered = self._enter(given, now)
        out = Outputs(self.sources, self._routes)
        for name in sorted(entered, key=self._place.__getitem__):
            self._finish(self._visits[name], entered[name], out)
        if self.adaptive and now != TABLE_TS:
            self._look_at_entries(given)
        if self.demand is not None and given:
            self.demand.end(now)
        found = out.results()
        for query, tuples in found.items():
            self.counters.results[query] = self.counters.results.get(query, 0) + len(tuples)
        return found

    def wanted(self, batches: Mapping[str, Batch]) -> dict[str, Mask]:
        """Where a tuple of the next slice is to be stored and processed; streams of which all are, may be absent.

        Args:
            batches: by stream, or table.
        """
        return self._selection.wanted(batches, {name for name, entry in self._entries.items() if entry.at_once})

    def _enter(self, given: Mapping[str, Tuples], now: int, alive_at: int | None = None) -> dict[str, Flight]:
        """Keep tuples; the flights that they begin.

        Args:
            alive_at: what is dead then need not be kept; None: `now`.
        """
        flights = {name: self._learned(name, tuples) for name, tuples in given.items()}
        if self.demand is not None:
            return self.demand.enter(flights, now, alive_at)
        for name, flight in flights.items():
            self._held[name].enter(self._held[name].tuples(np.ascontiguousarray(flight.rows[0]), flight.ts), now)
        return flights

    def _learned(self, name: str, tuples: Tuples) -> Flight:
        """New tuples with the queries that may want them."""
        held, entry = self._held[name], self._entries[name]
        rows = tuples.rows[0]
        held.begin(rows)
        arrived = len(rows)
        if entry.at_once:
            selected = self._selection.take(name)
            if selected is not None:
                arrived, known = selected
                held.learn(rows, known.alive, known.relevant, known.satisfied)
            self._stages.evaluate_rows(name, rows)
        elif self.adaptive and entry.asks(len(rows)):
            tried = rows[:: max(1, len(rows) // TRIED_TUPLES)]
            self._stages.evaluate_rows(name, tried)
            entry.passed(len(tried) * _bits(held.asking), _bits(held.alive_of(tried)))
        flight = Flight((name,), tuples.rows, tuples.ts, *held.known(rows))
        if entry.at_once:
            flight = flight.still_alive()
            self._count(ORDERS[0], ATTRIBUTE, arrived, len(flight))
            entry.passed(arrived * _bits(held.asking), _bits(flight.alive))
        return flight

    def _look_at_entries(self, given: Mapping[str, Tuples]) -> None:
        """Let inputs decide when their attributes are evaluated, by what visits from and to them have cost."""
        cost = dict.fromkeys(self._held, 0.0)
        for root in self._visits.values():
            for visit in root.all():
                work = self._choices[id(visit)].taken()
                for name in {visit.inputs[0], visit.inputs[-1]}:
                    cost[name] += work
        for name, entry in self._entries.items():
            entry.end(len(given.get(name, ())), cost[name])

    def _finish(self, visit: Visit, flight: Flight, out: Outputs) -> None:
        """Give results of the queries that are covered, and go on to the next visits."""
        if len(flight) and visit.finished:
            if len(visit.inputs) == 1:
                # Nothing was visited, so only here are the attributes asked for.
                flight = self._stages.with_attributes(flight, visit.inputs)
            out.add(flight)
        for following in visit.next:
            part = flight
            if len(visit.next) > 1 or visit.finished:
                alive = flight.alive & self._stages.masks[id(following)]
                part = flight.with_alive(alive).still_alive()
            if len(part):
                self._visit(following, part, out)

    def _visit(self, visit: Visit, flight: Flight, out: Outputs) -> None:
        """Find candidates for a flight, and go on with what is left of them."""
        name = visit.inputs[-1]
        held, choice = self._held[name], self._choices[id(visit)]
        strict = self._place[name] > self._place[visit.inputs[0]]
        flight = self._with_its_own(visit, flight, choice.order)
        if not len(flight):
            return
        state, look = self._structure(visit, flight, held, choice.order, strict=strict)
        pieces, entries = (0, 0) if look is None else (len(look.pieces), look.entries())
        if self.adaptive and choice.asks(len(flight), pieces, entries):
            seen = observe(visit, flight, held, self._prober, self._stages, self.counters, strict=strict)
            before = choice.order
            choice.learn(seen)
            if choice.order != before:
                flight = self._with_its_own(visit, flight, choice.order)
                state, look = self._structure(visit, flight, held, choice.order, strict=strict)
        pairs: list[Pairs] = []
        waiting = found = 0
        for some in self._prober.pairs(visit, flight, held, state, look, strict=strict):
            count = len(some[0])
            if waiting + count > AT_ONCE:
                self._meet(visit, flight, pairs, choice, out)
                pairs, waiting = [], 0
            pairs.append(some)
            waiting += count
            found += count
        if pairs:
            self._meet(visit, flight, pairs, choice, out)
        if look is None:
            choice.looked(len(flight), 1, found, found)
        else:
            choice.looked(len(flight), len(look.pieces), look.entries(), found)

    def _with_its_own(self, visit: Visit, flight: Flight, order: str) -> Flight:
        """What is left of new tuples where attributes come first and were not evaluated when they were entered."""
        if order[0] != ATTRIBUTE or len(visit.inputs) > 2 or self._entries[visit.inputs[0]].at_once:
            return flight
        return self._stages.with_attributes(flight, visit.inputs[:1])

    def _structure(
        self, visit: Visit, flight: Flight, held: Held, order: str, *, strict: bool
    ) -> tuple[SideState | None, Look | None]:
        """Where the first of the join and window types finds candidates."""
        first = next(kind for kind in order if kind != ATTRIBUTE)
        state = self._prober.keyed(visit, held, first)
        return state, None if state is not None else self._prober.look(visit, flight, held, first, strict=strict)

    def _meet(
        self, visit: Visit, flight: Flight, pairs: Sequence[Pairs], choice: AdaptiveOrder, out: Outputs
    ) -> None:
        """Evaluate the types in their order on candidates, and go on with what is left."""
        probe = pairs[0][0] if len(pairs) == 1 else np.concatenate([p for p, _ in pairs])
        rows = pairs[0][1] if len(pairs) == 1 else np.concatenate([r for _, r in pairs])
        order = choice.order

        def passed(kind: str, before: int, after: int) -> None:
            self._count(order, kind, before, after)
            if kind != ATTRIBUTE or order[0] != ATTRIBUTE:
                choice.passed(kind, before, after)

        self._finish(visit, self._stages.met(visit, order, flight, probe, rows, passed), out)

    def _count(self, order: str, kind: str, before: int, after: int) -> None:
        key = (order, kind)
        self.counters.intermediate[key] = self.counters.intermediate.get(key, 0) + after

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
        held = self.sources
        known = self._past.add(
            self.group, member, cut, lambda source: held.known_from(source.stream.name, cut), held.counted
        )
        since: dict[str, int] = {}
        for source in member.over_inputs.sources:
            least = cut if from_now else known[source.alias]
            if not self.sources.holds_all(source, least, cut):
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

    def rename(self, name: str, other: str, *, cut: int) -> None:
        """Call a query otherwise when everything before `cut` has been processed."""
        if name in self._since:
            self._since[other] = self._since.pop(name)
        self._past.rename(name, other)
        self._rebuild(self.group.renaming(name, other), cut)

    @property
    def since(self) -> Mapping[str, Mapping[str, int]]:
        """By query and input, the least ts of tuples that a query may see."""
        return self._since

    def rebuild(self, cut: int) -> None:
        """Hold what the stores hold, when everything before `cut` has been processed and rows have left them."""
        self._rebuild(self.group, cut)

    def _rebuild(self, group: QueryGroup, cut: int) -> None:
        self._build(group)
        stored = {
            name: self.sources.stored_since(name, int(held.least_ts(np.array([cut]))[0]))
            for name, held in self._held.items()
        }
        given = {name: tuples for name, tuples in stored.items() if len(tuples)}
        if given:
            self._enter(given, min(cut, *(int(tuples.ts[0]) for tuples in given.values())), cut)

    def purge(self, cut: int) -> None:
        """Drop what no tuple with ts >= cut can meet."""
        for held in self._held.values():
            held.purge(cut)

    # --- Introspection ----------------------------------------------------------------------------------

    def comparisons(self) -> int:
        """Predicates evaluated so far, and entries of structures looked at."""
        return self.counters.comparisons

    def work(self) -> Work:
        """What all visits have done, by kind."""
        done = Work()
        for choice in self._choices.values():
            done.add(choice.work)
        return done

    def intermediate_results(self) -> int:
        """Tuples left after each type of predicates but the last of the order in force then."""
        return sum(count for (order, kind), count in self.counters.intermediate.items() if kind != order[-1])

    def state_tuples(self) -> int:
        """Rows kept, those of each input once."""
        return sum(len(held) for held in self._held.values())

    def feedback(self) -> tuple[EdgeStatistics, ...]:
        """What inputs have said about each other; nothing without feedback."""
        return () if self.demand is None else self.demand.edges()

    def size_bytes(self) -> int:
        """Bytes of all structures, without the stores."""
        aside = 0 if self.demand is None else self.demand.size_bytes()
        return aside + sum(held.size_bytes() for held in self._held.values())

    def touched_bytes(self) -> int:
        """Bytes of memory that all structures take, without the stores (`Held.touched_bytes`)."""
        aside = 0 if self.demand is None else self.demand.size_bytes()
        return aside + sum(held.touched_bytes() for held in self._held.values())


def _bits(sets: U64) -> int:
    """How many queries are in sets of them, all together."""
    return int(np.bitwise_count(sets).sum())


def _never(predicate: Expr) -> bool:
    """Whether a predicate without columns does not hold."""
    return not holds(predicate, _no_column, 1)[0]


def _no_column(column: ColumnRef) -> Column:
    raise InvariantError(f"a constant predicate reads {column}")


__all__ = ["ADAPTIVE", "ATTRIBUTE", "JOIN", "ORDERS", "WINDOW", "Juggler"]
