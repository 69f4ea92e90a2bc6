"""The set-difference executor: a pipeline of operators, in the order of a left-deep plan (JISC 4.7).

The plan `((A B) C)` removes from A the tuples that match in B, and from the rest those that match in C. Any order of
the subtracted streams makes the same changes in the same order: by instant; at one instant removals before additions;
then in the total order of A. Removals come first so that a consumer that stores the answer as a set of column values
ends up with the right set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from operators.data.statistics import OperatorStatistics
from operators.data.tuples import FOREVER, Tuples
from operators.difference.difference import Difference, Runs, Span, Stops
from operators.difference.longest_match import Lifetimes
from operators.join.executor import operator_statistics
from operators.kernels.cover import run_edges
from operators.kernels.marks import Table, add_marks, new_table, with_room
from operators.kernels.ring import ring_grow, ring_read
from operators.plan.plan import Join, Plan, check_plan, postorder
from operators.state.sources import Sources
from schemas.columns import I64, Column
from schemas.query import TABLE_TS, Type


def change_kinds(changes: Tuples) -> Column:
    """Return the `_op` column of an answer's changes: "+" for a tuple that enters it, "-" for one that leaves."""
    n = len(changes)
    signs = np.where(changes.expiry >= changes.ts, np.uint8(ord("+")), np.uint8(ord("-")))
    return Column(Type.STRING, signs, None, np.arange(n + 1, dtype=np.int64))


@dataclass(slots=True)
class Completed:
    """The work of completion after a change of plans.

    Attributes:
        open: tuples for which the stopping operator of the new plan is not known yet.
        decided: tuples that were open and no longer are, since the operator is known or they have died.
        comparisons: predicate evaluations for completion.
        keys: number of join keys of completed tuples, each counted once per operator.
    """

    open: int = 0
    decided: int = 0
    comparisons: int = 0
    keys: int = 0


class DifferencePipeline:
    """Executes a set difference; an `Executor`.

    Its results are the answer's changes: tuples of the first alias with the instant as ts, in their final order. A
    tuple that enters the answer has expiry >= ts, a tuple that leaves it expiry < ts.

    Attributes:
        sources: the stores that tuples' row ids refer to.
        plan: a left-deep plan.
        first: the alias from which is subtracted.
        completed: the completion work since this plan took over.
        subtractions: the operators, in the order of the plan.
    """

    def __init__(self, sources: Sources, plan: Plan, *, former: DifferencePipeline | None = None) -> None:
        """Make the pipeline of a plan.

        Args:
            former: the pipeline to take all states from. Only its counters may be used after.
        """
        check_plan(plan, sources.query)
        self.sources = sources
        self.plan = plan
        self.first = plan.aliases[0]
        self.completed = Completed()
        self._store = sources.store(self.first)
        self._lifetimes = Lifetimes(sources, self.first)
        self._retired: tuple[int, int] | None = None
        if former is None:
            self.subtractions = [Difference(sources, self.first, alias) for alias in plan.aliases[1:]]
            rings = [np.zeros(self._store.capacity, np.int64) for _ in range(2)]
            self._stops = Stops(*rings)
            self._hi = self._dead = self._store.lo
            self._from = TABLE_TS if sources.tables else 0
            self._before = (0, 0)
        else:
            existing = {operator.alias: operator for operator in former.subtractions}
            self.subtractions = [existing[alias] for alias in plan.aliases[1:]]
            self._stops = former._stops
            self._hi, self._dead, self._from = former._hi, former._dead, former._from
            self._before = self._counted()
            former._retired = former.comparisons(), former.intermediate_results()
        # A tuple is completed once per operator, so there are at most as many attempted keys as tuples taken over.
        self._attempted: dict[str, Table] = {}
        self._taken_over = 0

    # --- Running ----------------------------------------------------------------------------------------

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice, up to the cut of the stores, and return the answer's changes.

        Tables are always loaded at TABLE_TS, the instant before all others.
        """
        until = TABLE_TS + 1 if now == TABLE_TS else min(self.sources.cut, FOREVER)
        if until <= self._from:
            return Tuples.empty((self.first,))
        span = Span(self._from, until - 1)
        self._make_room()
        coming = epoch.get(self.first)
        new = np.zeros(0, np.int64) if coming is None else coming.rows[0]
        ended = [operator.latest.take_ended(until) for operator in self.subtractions]
        resumed = self._resume(ended, span)
        runs, dead = self._living(new, span)
        for number, operator in enumerate(self.subtractions):
            matches = epoch.get(operator.alias)
            if matches is None:
                matches = Tuples.empty((operator.alias,))
            runs = operator.process(number, runs, matches, ended[number], resumed[number], self._stops, span)
        self._bury(dead)
        self._from = until
        return self._changes(runs, span)

    def _make_room(self) -> None:
        store, stops = self._store, self._stops
        if store.capacity > len(stops.stopped_by):
            lo, hi = min(store.lo, self._hi), self._hi
            stops.stopped_by = ring_grow(stops.stopped_by, lo, hi, store.capacity)
            stops.witness = ring_grow(stops.witness, lo, hi, store.capacity)
        self._hi = store.hi
        for operator in self.subtractions:
            operator.latest.make_room()

    def _living(self, new: I64, span: Span) -> tuple[Runs, I64]:
        """Return the lifetimes of the tuples that arrive or die in the slice, and the rows of those that die."""
        stops, mask = self._stops, len(self._stops.stopped_by) - 1
        begin = max(self._dead, self._store.lo)
        self._dead = max(begin, min(self._lifetimes.ended(span.until), self._store.hi))
        ending = np.arange(begin, self._dead, dtype=np.int64)
        ending = ending[stops.stopped_by[ending & mask] > 0]
        rows = np.concatenate([ending, new])
        stopped_by = stops.stopped_by[rows & mask]
        stops.stopped_by[new & mask] = 1
        first = np.maximum(self._lifetimes.begin(rows), span.first)
        end = self._lifetimes.end(rows)
        last = np.minimum(end, span.last)
        alive = first <= last
        offsets = np.append(0, np.cumsum(alive))
        return Runs(rows, stopped_by, offsets, first[alive], last[alive]), rows[end < span.last]

    def _bury(self, dead: I64) -> None:
        stops = self._stops
        slots = dead & (len(stops.stopped_by) - 1)
        stops.stopped_by[slots] = 0
        if self.completed.open:
            self._decide(int(np.count_nonzero(stops.witness[slots])))
            stops.witness[slots] = 0
        for operator in self.subtractions:
            operator.latest.forget(dead)

    def _changes(self, runs: Runs, span: Span) -> Tuples:
        before = runs.stopped_by > len(self.subtractions)
        rows, ts, comes = run_edges(runs.rows, before, runs.offsets, runs.first, runs.last, span.first, span.last)
        order = np.lexsort((rows, comes, ts))
        rows, ts, comes = rows[order], ts[order], comes[order]
        return Tuples((self.first,), rows[np.newaxis], ts, np.where(comes, ts, ts - 1))

    # --- Another order ----------------------------------------------------------------------------------

    def reordered(self, plan: Plan, *, lazy: bool) -> DifferencePipeline:
        """Return a pipeline for the same answer that subtracts in another order from now on.

        Operators move with their whole state, which does not depend on their position. An operator only lacks the
        matches of tuples that it was never asked about, since another operator used to stop them first.

        Args:
            lazy: leave such a tuple open while a known match keeps it out of the answer, and ask the operator when that
                match ends, if the tuple lives so long; else ask at once.
        """
        new = DifferencePipeline(self.sources, plan, former=self)
        new._take_over(lazy)
        return new

    def _take_over(self, lazy: bool) -> None:
        """Determine for every living tuple which operator of this plan stops it."""
        stops, mask = self._stops, len(self._stops.stopped_by) - 1
        lo = max(self._store.lo, self._dead)
        rows = lo + np.flatnonzero(ring_read(stops.stopped_by, lo, self._hi) > 0)
        self._taken_over = len(rows)
        stops.witness[rows & mask] = 0
        for number, operator in enumerate(self.subtractions):
            asked = operator.latest.asked(rows)
            if not asked.all():
                if lazy:
                    self._leave_open(rows[~asked], number)
                    rows = rows[asked]
                else:
                    self._complete(operator, rows[~asked], self._from)
            covered = operator.latest.covering(rows)
            stops.stopped_by[rows[covered] & mask] = number + 1
            rows = rows[~covered]
        stops.stopped_by[rows & mask] = len(self.subtractions) + 1

    def _leave_open(self, rows: I64, number: int) -> None:
        """Leave rows open that reach an operator which was never asked about them; a later operator covers them."""
        stops, mask = self._stops, len(self._stops.stopped_by) - 1
        self.completed.open += len(rows)
        stops.stopped_by[rows & mask] = number + 1
        for later in range(number + 1, len(self.subtractions)):
            covered = self.subtractions[later].latest.covering(rows)
            stops.witness[rows[covered] & mask] = later + 1
            rows = rows[~covered]

    def _resume(self, ended: list[I64], span: Span) -> list[I64]:
        """Ask about the open tuples whose known match ends; return per operator the rows that it was asked about."""
        resumed = [np.zeros(0, np.int64)] * len(self.subtractions)
        if not self.completed.open:
            return resumed
        stops, mask = self._stops, len(self._stops.stopped_by) - 1
        for number, rows in enumerate(ended):
            due = np.sort(rows[stops.witness[rows & mask] == number + 1])
            stops.witness[due & mask] = 0
            self._decide(len(due))
            stopped_by = stops.stopped_by[due & mask]
            for k, operator in enumerate(self.subtractions):
                asking = due[stopped_by == k + 1]
                asking = asking[~operator.latest.asked(asking)]
                if len(asking):
                    self._complete(operator, asking, span.first)
                    resumed[k] = np.union1d(resumed[k], asking)
        return resumed

    def _decide(self, count: int) -> None:
        self.completed.open -= count
        self.completed.decided += count

    def _complete(self, operator: Difference, rows: I64, ts: int) -> None:
        counters = operator.match.counters
        compared = counters.comparisons
        keys = operator.ask(rows, ts)
        self.completed.comparisons += counters.comparisons - compared
        counters.comparisons = compared
        if keys is None:
            self.completed.keys += len(rows)
            return
        attempted = self._attempted.get(operator.alias) or new_table(self._taken_over)
        attempted = self._attempted[operator.alias] = with_room(attempted, len(keys))
        self.completed.keys += int(np.count_nonzero(add_marks(keys, 1, attempted)))

    # --- Executor ---------------------------------------------------------------------------------------

    def purge(self, cut: int) -> None:
        """Drop the entries that no tuple with ts >= cut can meet, in every state."""
        for operator in self.subtractions:
            operator.purge(cut)

    def operators(self) -> tuple[OperatorStatistics, ...]:
        """Return counters and sizes per operator, in the order of the plan. Results are tuples that passed.

        Cost: O(living tuples), with a very small constant.
        """
        nodes = [node for node in postorder(self.plan) if isinstance(node, Join)]
        complete = self._complete_lefts()
        stops = ring_read(self._stops.stopped_by, max(self._store.lo, self._dead), self._hi)
        stopped = np.bincount(stops, minlength=len(nodes) + 2)
        found = []
        for number, (node, operator) in enumerate(zip(nodes, self.subtractions, strict=True)):
            keyed = bool(operator.match.condition.keys)
            plain = operator_statistics(str(node), keyed, operator.match.counters, operator.states)
            found.append(
                replace(
                    plain,
                    kind=f"{plain.kind} difference",
                    candidates=operator.match.counters.results,
                    results=operator.results,
                    aliases=(node.left.aliases, (operator.alias,)),
                    living_tuples=(int(stopped[number + 1 :].sum()), plain.living_tuples[1]),
                    complete=(complete[number], True),
                )
            )
        return tuple(found)

    def _complete_lefts(self) -> list[bool]:
        """Return per operator whether it is known which tuples reach it (JISC, definition 1)."""
        complete = [True] * len(self.subtractions)
        if self.completed.open:
            stops = self._stops
            rows = np.flatnonzero(stops.witness)
            for stop, witness in {*zip(stops.stopped_by[rows].tolist(), stops.witness[rows].tolist(), strict=True)}:
                complete[stop:witness] = [False] * (witness - stop)
        return complete

    def _counted(self) -> tuple[int, int]:
        counters = [operator.match.counters for operator in self.subtractions]
        return sum(c.comparisons for c in counters), sum(c.results for c in counters)

    def comparisons(self) -> int:
        """Return the number of predicate evaluations since this plan took over."""
        return self._retired[0] if self._retired else self._counted()[0] - self._before[0]

    def intermediate_results(self) -> int:
        """Return the number of matches found since this plan took over."""
        return self._retired[1] if self._retired else self._counted()[1] - self._before[1]

    def state_tuples(self) -> int:
        """Return the number of tuples in all states."""
        return sum(len(state) for operator in self.subtractions for state in operator.states)

    def size_bytes(self) -> int:
        """Return the bytes of all states."""
        stops = self._stops
        return stops.stopped_by.nbytes + stops.witness.nbytes + sum(o.size_bytes() for o in self.subtractions)
