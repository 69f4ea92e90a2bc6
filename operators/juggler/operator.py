"""Juggler: one multi-way operator that executes all queries of a group (WPI 2004, chapters 3 and 4).

`operators.groups.sharing` makes a `Juggler` for the queries that share it. `operators.juggler.mixed` makes one for each
multi-way join of a plan. They run it once per slice with `Juggler.process`.

A new tuple of an input visits the other inputs along a tree of visits that the queries share (`visits`). Each visit
finds candidates through the exploitation structure of the first predicate type (`probe`). It then evaluates the
predicate lists of all types in the order in force (`lists`, `tuples_in_flight`) and drops at once a tuple that no
query can use any more. Where all inputs of a query are covered, its results are the tuples that still carry its bit.
There is no false positive, and the operator emits each result once per query.

As in an M-Join, the latest component of a result in the total order finds the result. The operator enters the new
tuples of all inputs first. Of two inputs, the later one in the group finds rows of its own ts, and the earlier one does
not.

The operator's state is a function of the rows in the stores. To add or drop a query, the operator makes its lists and
visits anew. It keeps the structures of an input that hold the same rows as before, and builds those of the others from
the stores. Both cost time proportional to the live rows.

Limits: those of `schemas.groups`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from operators.data.evaluate import holds
from operators.data.statistics import EdgeStatistics
from operators.data.tuples import Tuples
from operators.juggler.feedback.demand import RowSuppressor
from operators.juggler.predicates.adaptive import AdaptiveEntry, AdaptiveOrder
from operators.juggler.predicates.lists import ATTRIBUTE, JOIN, WINDOW, Lists, predicate_lists, query_mask
from operators.juggler.predicates.order import ADAPTIVE, ORDERS, VisitWork
from operators.juggler.routing.output import SliceResults, routes
from operators.juggler.routing.probe import CANDIDATES_PER_BATCH, Lookup, Pairs, Prober
from operators.juggler.routing.sampling import observe
from operators.juggler.routing.selection import Selection
from operators.juggler.routing.stages import Stages
from operators.juggler.routing.tuples_in_flight import ENCODINGS, QUERIES, Evaluator, JugglerCounters, TuplesInFlight
from operators.juggler.routing.visits import Visit, visits
from operators.juggler.state.available_past import AvailableHistory
from operators.juggler.state.input_state import InputState
from operators.juggler.state.sources import GroupSources
from operators.kernels.hashing import U64
from operators.state.side_state import SideState
from schemas.columns import Batch, Column, Mask
from schemas.errors import InvariantError, UsageError
from schemas.groups import QueryGroup
from schemas.query import TABLE_TS, ColumnRef, Expr, Query

SAMPLED_NEW_TUPLES = 64
"""How many new tuples of an input the operator samples to decide whether to evaluate attribute predicates on entry."""


class Juggler:
    """Executes a group of queries.

    Args:
        sources: the stores of the group's streams.
        group: the queries to run.
        order: one of ORDERS, or `adaptive`.
        encoding: one of ENCODINGS; it changes no result.
        feedback: whether to set rows aside that no query can use (`demand`); it changes no result either.
        clock: returns seconds; it measures the time that feedback takes.

    Attributes:
        group: the queries that run.
        lists: their predicate lists.
        counters: the work done so far.
        demand: the feedback; None without feedback.

    Raises:
        UsageError: the order or the encoding is unknown.
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
        self.counters = JugglerCounters()
        self._since: dict[str, dict[str, int]] = {}
        self._history = AvailableHistory(group, sources.since)
        self._feedback = feedback
        self._clock = clock
        self.demand: RowSuppressor | None = None
        self._build(group)

    @property
    def adaptive(self) -> bool:
        """Whether visits choose their order of predicate types at run time."""
        return self._fixed is None

    def orders(self) -> dict[tuple[str, ...], str]:
        """The order in force of every visit, by the inputs that the visit covers; the last one is the input visited."""
        visits = [visit for root in self._visits.values() for visit in root.all() if len(visit.inputs) > 1]
        return {visit.inputs: self._choices[id(visit)].order for visit in visits}

    def _build(self, group: QueryGroup) -> None:
        self.group = group
        self.lists: Lists = predicate_lists(group, self._since, _never)
        self._evaluator = Evaluator(self.sources, self.lists, len(group.members), self.encoding, self.counters)
        self._prober = Prober(self.sources, self._evaluator, self.counters)
        self._positions = {source.alias: n for n, source in enumerate(group.inputs)}
        self._routes = routes(group)
        self._visits = {source.alias: visits(group, self.lists, source.alias) for source in group.inputs}
        words = self._evaluator.words
        self._selection = Selection(group, self.lists, self._evaluator)
        self._input_states: dict[str, InputState] = {}
        for source in group.inputs:
            name = source.alias
            asking = {n for n, member in enumerate(group.members) if name in member.inputs}
            mask = query_mask(asking, words)
            input_state = InputState(self.sources, name, self.sources.life[name], mask, self._evaluator.predicate_words)
            self._input_states[name] = input_state
        for root in self._visits.values():
            for visit in root.all():
                self._index_for(visit)
        self._stages = Stages(self._evaluator, self.counters, self._input_states, self._visits, self.lists)
        every = [visit for root in self._visits.values() for visit in root.all()]
        self._choices = {id(visit): AdaptiveOrder(self._fixed or ("AJW" if visit.key else "AWJ")) for visit in every}
        at_once = self._fixed is None or self._fixed[0] == ATTRIBUTE
        self._entries = {name: AdaptiveEntry(len(of), at_once) for name, of in self._stages.attributes.items()}
        if self._feedback:
            choices = self._choices
            self.demand = RowSuppressor(
                group,
                self.sources,
                self._input_states,
                self._visits,
                lambda visit: choices[id(visit)].work,
                words,
                self._clock,
                self.demand,
            )

    def _index_for(self, visit: Visit) -> None:
        """Create the indexes by which a visit looks its input up."""
        input_state = self._input_states[visit.inputs[-1]]
        if visit.key:
            input_state.with_key(visit.operands)
        if visit.index is None:
            return
        column, whole = visit.index
        for one in visit.lists[JOIN]:
            if one.form is not None and one.form.whole == whole and column in (one.form.x, one.form.y):
                input_state.with_values(column, whole, one.limits())

    # --- Running ----------------------------------------------------------------------------------------

    def process(self, epoch: Mapping[str, Tuples], now: int) -> dict[str, Tuples]:
        """Run one slice of the input.

        Args:
            epoch: new tuples per input, ascending by ts, none older than any processed before, no predicate applied;
                inputs without new tuples may be absent.
            now: the slice's start; tuples that expired before it are dead.

        Returns:
            Each query's new results, over its inputs in FROM order, ascending by (ts, rows): the order in which the
            engine returns them for the query alone. The query's own windows determine their expiry.
        """
        given = {name: tuples for name, tuples in epoch.items() if len(tuples)}
        entered = self._enter(given, now)
        out = SliceResults(self.sources, self._routes)
        for name in sorted(entered, key=self._positions.__getitem__):
            self._continue(self._visits[name], entered[name], out)
        if self.adaptive and now != TABLE_TS:
            self._update_entries(given)
        if self.demand is not None and given:
            self.demand.end(now)
        found = out.results()
        for query, tuples in found.items():
            self.counters.results[query] = self.counters.results.get(query, 0) + len(tuples)
        return found

    def wanted(self, batches: Mapping[str, Batch]) -> dict[str, Mask]:
        """Select the tuples of the next slice to store and process.

        Args:
            batches: by stream or table.

        Returns:
            By stream a mask (n,), True for the tuples to store; a stream of which all are stored may be absent.
        """
        return self._selection.wanted(batches, {name for name, entry in self._entries.items() if entry.at_once})

    def _enter(
        self,
        given: Mapping[str, Tuples],
        now: int,
        alive_at: int | None = None,
        former: Mapping[str, InputState] | None = None,
    ) -> dict[str, TuplesInFlight]:
        """Enter tuples into the states, and return the tuples that start to visit other inputs.

        Args:
            alive_at: tuples that are dead at this time need not be stored; None means `now`.
            former: the states of all inputs before the queries changed, at a rebuild; else None.
        """
        in_flight_by_input = {name: self._start(name, tuples) for name, tuples in given.items()}
        if self.demand is not None:
            return self.demand.enter(in_flight_by_input, now, alive_at, former)
        for name, in_flight in in_flight_by_input.items():
            input_state = self._input_states[name]
            input_state.enter(input_state.tuples(np.ascontiguousarray(in_flight.rows[0]), in_flight.ts), now)
        return in_flight_by_input

    def _start(self, name: str, tuples: Tuples) -> TuplesInFlight:
        """Register new tuples of an input, and return them with the queries that they may still satisfy."""
        input_state, entry = self._input_states[name], self._entries[name]
        rows = tuples.rows[0]
        input_state.register(rows)
        arrived = len(rows)
        if entry.at_once:
            selected = self._selection.take(name)
            if selected is not None:
                arrived, known = selected
                input_state.learn(rows, known.alive, known.relevant, known.satisfied)
            self._stages.evaluate_rows(name, rows)
        elif self.adaptive and entry.wants_sample(len(rows)):
            tried = rows[:: max(1, len(rows) // SAMPLED_NEW_TUPLES)]
            self._stages.evaluate_rows(name, tried)
            entry.passed(len(tried) * _bits(input_state.asking), _bits(input_state.alive_of(tried)))
        in_flight = TuplesInFlight((name,), tuples.rows, tuples.ts, *input_state.known(rows))
        if entry.at_once:
            in_flight = in_flight.still_alive()
            self._count(ORDERS[0], ATTRIBUTE, arrived, len(in_flight))
            entry.passed(arrived * _bits(input_state.asking), _bits(in_flight.alive))
        return in_flight

    def _update_entries(self, given: Mapping[str, Tuples]) -> None:
        """Let each input decide when to evaluate its attribute predicates, by the cost of visits from it and to it."""
        cost = dict.fromkeys(self._input_states, 0.0)
        for root in self._visits.values():
            for visit in root.all():
                work = self._choices[id(visit)].work_since_last()
                for name in {visit.inputs[0], visit.inputs[-1]}:
                    cost[name] += work
        for name, entry in self._entries.items():
            entry.end(len(given.get(name, ())), cost[name])

    def _continue(self, visit: Visit, in_flight: TuplesInFlight, out: SliceResults) -> None:
        """Emit results of the queries whose inputs are covered, and continue with the next visits."""
        if len(in_flight) and visit.finished:
            if len(visit.inputs) == 1:
                # The tuple visited no input, so its attribute predicates are evaluated only here.
                in_flight = self._stages.with_attributes(in_flight, visit.inputs)
            out.add(in_flight)
        for following in visit.next:
            part = in_flight
            if len(visit.next) > 1 or visit.finished:
                alive = in_flight.alive & self._stages.masks[id(following)]
                part = in_flight.with_alive(alive).still_alive()
            if len(part):
                self._visit(following, part, out)

    def _visit(self, visit: Visit, in_flight: TuplesInFlight, out: SliceResults) -> None:
        """Find candidates for tuples in flight, and continue with those that some query can still use."""
        name = visit.inputs[-1]
        input_state, choice = self._input_states[name], self._choices[id(visit)]
        strict = self._positions[name] > self._positions[visit.inputs[0]]
        in_flight = self._with_own_attributes(visit, in_flight, choice.order)
        if not len(in_flight):
            return
        state, lookup = self._structure(visit, in_flight, input_state, choice.order, strict=strict)
        pieces, entries = (0, 0) if lookup is None else (len(lookup.pieces), lookup.entries())
        if self.adaptive and choice.wants_sample(len(in_flight), pieces, entries):
            seen = observe(visit, in_flight, input_state, self._prober, self._stages, self.counters, strict=strict)
            before = choice.order
            choice.learn(seen)
            if choice.order != before:
                in_flight = self._with_own_attributes(visit, in_flight, choice.order)
                state, lookup = self._structure(visit, in_flight, input_state, choice.order, strict=strict)
        pairs: list[Pairs] = []
        waiting = found = 0
        for some in self._prober.pairs(visit, in_flight, input_state, state, lookup, strict=strict):
            count = len(some[0])
            if waiting + count > CANDIDATES_PER_BATCH:
                self._evaluate_candidates(visit, in_flight, pairs, choice, out)
                pairs, waiting = [], 0
            pairs.append(some)
            waiting += count
            found += count
        if pairs:
            self._evaluate_candidates(visit, in_flight, pairs, choice, out)
        if lookup is None:
            choice.looked(len(in_flight), 1, found, found)
        else:
            choice.looked(len(in_flight), len(lookup.pieces), lookup.entries(), found)

    def _with_own_attributes(self, visit: Visit, in_flight: TuplesInFlight, order: str) -> TuplesInFlight:
        """Filter new tuples by their attributes where attributes come first and were not evaluated on entry."""
        if order[0] != ATTRIBUTE or len(visit.inputs) > 2 or self._entries[visit.inputs[0]].at_once:
            return in_flight
        return self._stages.with_attributes(in_flight, visit.inputs[:1])

    def _structure(
        self, visit: Visit, in_flight: TuplesInFlight, input_state: InputState, order: str, *, strict: bool
    ) -> tuple[SideState | None, Lookup | None]:
        """The hash index, or the lookup, in which the first of the join and window types finds candidates."""
        first = next(kind for kind in order if kind != ATTRIBUTE)
        state = self._prober.keyed(visit, input_state, first)
        if state is not None:
            return state, None
        return None, self._prober.lookup(visit, in_flight, input_state, first, strict=strict)

    def _evaluate_candidates(
        self, visit: Visit, in_flight: TuplesInFlight, pairs: Sequence[Pairs], choice: AdaptiveOrder, out: SliceResults
    ) -> None:
        """Evaluate the predicate types in their order on candidates, and continue with those that pass."""
        probe = pairs[0][0] if len(pairs) == 1 else np.concatenate([p for p, _ in pairs])
        rows = pairs[0][1] if len(pairs) == 1 else np.concatenate([r for _, r in pairs])
        order = choice.order

        def passed(kind: str, before: int, after: int) -> None:
            self._count(order, kind, before, after)
            if kind != ATTRIBUTE or order[0] != ATTRIBUTE:
                choice.passed(kind, before, after)

        self._continue(visit, self._stages.evaluate_types(visit, order, in_flight, probe, rows, passed), out)

    def _count(self, order: str, kind: str, before: int, after: int) -> None:
        key = (order, kind)
        self.counters.intermediate[key] = self.counters.intermediate.get(key, 0) + after

    # --- Registration -----------------------------------------------------------------------------------

    def add(self, query: Query, *, from_now: bool, cut: int) -> dict[str, int]:
        """Register one more query after everything before `cut` has been processed.

        Args:
            from_now: True if the query sees only tuples at or after the cut; else it also sees those that the group's
                windows hold at the cut.

        Returns:
            By input the least ts of tuples that the query sees; absent where it sees all that its window holds.

        Raises:
            UsageError: the group cannot take the query; nothing has changed.
        """
        group = self.group.adding(query)
        member = group.member(query.name)
        sources = self.sources
        known = self._history.add(
            self.group, member, cut, lambda source: sources.known_from(source.stream.name, cut), sources.counted
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
        """Remove a query after everything before `cut` has been processed.

        Raises:
            UsageError: there is no such query.
        """
        group = self.group.dropping(name)
        self._since.pop(name, None)
        self.sources.change(group, cut)
        self._rebuild(group, cut)

    def rename(self, name: str, other: str, *, cut: int) -> None:
        """Rename a query after everything before `cut` has been processed."""
        if name in self._since:
            self._since[other] = self._since.pop(name)
        self._history.rename(name, other)
        self._rebuild(self.group.renaming(name, other), cut)

    @property
    def since(self) -> Mapping[str, Mapping[str, int]]:
        """By query and input, the least ts of tuples that a query may see."""
        return self._since

    def rebuild(self, cut: int) -> None:
        """Rebuild all structures from the stores after rows have left them; everything before `cut` is processed."""
        self._rebuild(self.group, cut)

    def _rebuild(self, group: QueryGroup, cut: int) -> None:
        former = self._input_states
        self._build(group)
        stored = {
            name: self.sources.stored_since(name, int(input_state.least_ts(np.array([cut]))[0]))
            for name, input_state in self._input_states.items()
        }
        given = {name: tuples for name, tuples in stored.items() if len(tuples)}
        now = min([cut, *(int(tuples.ts[0]) for tuples in given.values())])
        if self.demand is None:
            given = {name: tuples for name, tuples in given.items() if not self._take_over(name, former, tuples, now)}
        self._enter(given, now, cut, former)

    def _take_over(self, name: str, former: Mapping[str, InputState], tuples: Tuples, now: int) -> bool:
        """Enter an input's rows with the structures that they had, if possible. Their attribute predicates are
        evaluated when other tuples meet them."""
        input_state = self._input_states[name]
        taken = name in former and input_state.take_over(former[name], tuples, now)
        if taken:
            input_state.register(tuples.rows[0])
        return taken

    def purge(self, cut: int) -> None:
        """Drop rows that no tuple with ts >= cut can join."""
        for input_state in self._input_states.values():
            input_state.purge(cut)

    # --- Introspection ----------------------------------------------------------------------------------

    def comparisons(self) -> int:
        """Predicates evaluated so far, plus entries of structures examined."""
        return self.counters.comparisons

    def work(self) -> VisitWork:
        """The work of all visits so far, by kind."""
        done = VisitWork()
        for choice in self._choices.values():
            done.add(choice.work)
        return done

    def intermediate_results(self) -> int:
        """Tuples left after each predicate type except the last one of the order in force at that time."""
        return sum(count for (order, kind), count in self.counters.intermediate.items() if kind != order[-1])

    def state_tuples(self) -> int:
        """Rows stored, those of each input once."""
        return sum(len(input_state) for input_state in self._input_states.values())

    def feedback(self) -> tuple[EdgeStatistics, ...]:
        """Statistics of each feedback edge between inputs; empty without feedback."""
        return () if self.demand is None else self.demand.edges()

    def size_bytes(self) -> int:
        """Bytes of all structures, without the stores."""
        aside = 0 if self.demand is None else self.demand.size_bytes()
        return aside + sum(input_state.size_bytes() for input_state in self._input_states.values())

    def touched_bytes(self) -> int:
        """Bytes of memory that all structures occupy, without the stores (`InputState.touched_bytes`)."""
        aside = 0 if self.demand is None else self.demand.size_bytes()
        return aside + sum(input_state.touched_bytes() for input_state in self._input_states.values())


def _bits(sets: U64) -> int:
    """The total number of queries in some sets of queries."""
    return int(np.bitwise_count(sets).sum())


def _never(predicate: Expr) -> bool:
    """Whether a predicate without columns is false."""
    return not holds(predicate, _no_column, 1)[0]


def _no_column(column: ColumnRef) -> Column:
    raise InvariantError(f"a constant predicate reads {column}")


__all__ = ["ADAPTIVE", "ATTRIBUTE", "JOIN", "ORDERS", "WINDOW", "Juggler"]
