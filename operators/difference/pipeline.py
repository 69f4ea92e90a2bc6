"""The set-difference executor: a pipeline of operators, in the order of a left-deep plan (JISC 4.7).

The plan `((A B) C)` takes from A what matches in B, and from what is left what matches in C. Any order of the
subtracted streams gives the same changes in the same order: by instant; what leaves before what comes; then in
the total order of A. Leaving first lets a consumer that keeps the answer as a set by its columns end up right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from operators.data.statistics import OperatorStatistics
from operators.data.tuples import FOREVER, Tuples
from operators.difference.difference import Difference, Places, Runs, Span
from operators.difference.longest_match import Lives
from operators.join.executor import operator_statistics
from operators.kernels.cover import run_edges
from operators.kernels.marks import Table, add_marks, new_table
from operators.kernels.ring import ring_grow, ring_read
from operators.plan.plan import Join, Plan, check_plan, postorder
from operators.state.sources import Sources
from schemas.columns import I64, Column
from schemas.query import TABLE_TS, Type


def change_kinds(changes: Tuples) -> Column:
    """The `_op` column of an answer's changes."""
    n = len(changes)
    signs = np.where(changes.expiry >= changes.ts, np.uint8(ord("+")), np.uint8(ord("-")))
    return Column(Type.STRING, signs, None, np.arange(n + 1, dtype=np.int64))


@dataclass(slots=True)
class Completed:
    """What was completed after a change of plans.

    Attributes:
        open: tuples of which it is not known which operator of the new plan stops them; `settled` those where it
            was not, and is now, or they have died.
        keys: the join keys of those that were completed, per operator each once.
    """

    open: int = 0
    settled: int = 0
    comparisons: int = 0
    keys: int = 0


class DifferencePipeline:
    """Executes a set difference; an `Executor`.

    Its results are the answer's changes: tuples of the first alias with the instant as ts, in their final order.
    One that comes has expiry >= ts, one that leaves expiry < ts.

    Attributes:
        operators_: in the order of the plan.
        completed: since this plan took over.
    """

    def __init__(self, sources: Sources, plan: Plan, *, former: DifferencePipeline | None = None) -> None:
        """Args: `former` hands over its states and must not be used after; `place` then says what it left."""
        check_plan(plan, sources.query)
        self.sources = sources
        self.plan = plan
        self.first = plan.aliases[0]
        self.completed = Completed()
        self._store = sources.store(self.first)
        self._life = Lives(sources, self.first)
        self._retired: tuple[int, int] | None = None
        if former is None:
            self.operators_ = [Difference(sources, self.first, alias) for alias in plan.aliases[1:]]
            rings = [np.zeros(self._store.capacity, np.int64) for _ in range(2)]
            self._places = Places(*rings)
            self._hi = self._dead = self._store.lo
            self._from = TABLE_TS if sources.tables else 0
            self._before = (0, 0)
        else:
            held = {operator.alias: operator for operator in former.operators_}
            self.operators_ = [held[alias] for alias in plan.aliases[1:]]
            self._places = former._places
            self._hi, self._dead, self._from = former._hi, former._dead, former._from
            self._before = self._counted()
            former._retired = former.comparisons(), former.intermediate_results()
        # A tuple is completed once per operator, so no more keys are attempted than tuples were taken over.
        self._attempted: dict[str, Table] = {}
        self._taken_over = 0

    # --- Running ----------------------------------------------------------------------------------------

    def process(self, epoch: Mapping[str, Tuples], now: int) -> Tuples:
        """Run one slice, up to the event time that the stores have come to; the answer's changes.

        Tables are loaded at the instant before all others, whenever that is done.
        """
        until = TABLE_TS + 1 if now == TABLE_TS else min(self.sources.cut, FOREVER)
        if until <= self._from:
            return Tuples.empty((self.first,))
        span = Span(self._from, until - 1)
        self._make_room()
        coming = epoch.get(self.first)
        new = np.zeros(0, np.int64) if coming is None else coming.rows[0]
        ended = [operator.covers.take_ended(until) for operator in self.operators_]
        resumed = self._resume(ended, span)
        runs, dead = self._living(new, span)
        for number, operator in enumerate(self.operators_):
            matches = epoch.get(operator.alias)
            if matches is None:
                matches = Tuples.empty((operator.alias,))
            runs = operator.process(number, runs, matches, ended[number], resumed[number], self._places, span)
        self._bury(dead)
        self._from = until
        return self._changes(runs, span)

    def _make_room(self) -> None:
        store, places = self._store, self._places
        if store.capacity > len(places.place):
            lo, hi = min(store.lo, self._hi), self._hi
            places.place = ring_grow(places.place, lo, hi, store.capacity)
            places.witness = ring_grow(places.witness, lo, hi, store.capacity)
        self._hi = store.hi
        for operator in self.operators_:
            operator.covers.make_room()

    def _living(self, new: I64, span: Span) -> tuple[Runs, I64]:
        """The lives of those tuples that come or die in the slice; and who dies."""
        places, mask = self._places, len(self._places.place) - 1
        begin = max(self._dead, self._store.lo)
        self._dead = max(begin, min(self._life.ended(span.until), self._store.hi))
        past = np.arange(begin, self._dead, dtype=np.int64)
        past = past[places.place[past & mask] > 0]
        rows = np.concatenate([past, new])
        place = places.place[rows & mask]
        places.place[new & mask] = 1
        first = np.maximum(self._life.begin(rows), span.first)
        end = self._life.end(rows)
        last = np.minimum(end, span.last)
        alive = first <= last
        offsets = np.append(0, np.cumsum(alive))
        return Runs(rows, place, offsets, first[alive], last[alive]), rows[end < span.last]

    def _bury(self, dead: I64) -> None:
        places = self._places
        slots = dead & (len(places.place) - 1)
        places.place[slots] = 0
        if self.completed.open:
            self._settle(int(np.count_nonzero(places.witness[slots])))
            places.witness[slots] = 0
        for operator in self.operators_:
            operator.covers.forget(dead)

    def _changes(self, runs: Runs, span: Span) -> Tuples:
        before = runs.place > len(self.operators_)
        rows, ts, comes = run_edges(runs.rows, before, runs.offsets, runs.first, runs.last, span.first, span.last)
        order = np.lexsort((rows, comes, ts))
        rows, ts, comes = rows[order], ts[order], comes[order]
        return Tuples((self.first,), rows[np.newaxis], ts, np.where(comes, ts, ts - 1))

    # --- Another order ----------------------------------------------------------------------------------

    def reordered(self, plan: Plan, *, lazy: bool) -> DifferencePipeline:
        """The same answer, subtracted in another order from here on.

        An operator is moved with all that it knows of its stream: that does not depend on its place. What is missing
        is what an operator says of tuples that it was never asked about, since another one used to stop them first.

        Args:
            lazy: leave that open while the match lasts that is known to keep them out of the answer, and ask
                when it ends, or never; else ask at once.
        """
        new = DifferencePipeline(self.sources, plan, former=self)
        new._take_over(lazy)
        return new

    def _take_over(self, lazy: bool) -> None:
        """Give every living tuple its place in this plan."""
        places, mask = self._places, len(self._places.place) - 1
        lo = max(self._store.lo, self._dead)
        rows = lo + np.flatnonzero(ring_read(places.place, lo, self._hi) > 0)
        self._taken_over = len(rows)
        places.witness[rows & mask] = 0
        for number, operator in enumerate(self.operators_):
            asked = operator.covers.asked(rows)
            if not asked.all():
                if lazy:
                    self._leave_open(rows[~asked], number)
                    rows = rows[asked]
                else:
                    self._complete(operator, rows[~asked], self._from)
            covered = operator.covers.covering(rows)
            places.place[rows[covered] & mask] = number + 1
            rows = rows[~covered]
        places.place[rows & mask] = len(self.operators_) + 1

    def _leave_open(self, rows: I64, number: int) -> None:
        """Say of rows that come to an operator which was never asked about them that a later one covers them."""
        places, mask = self._places, len(self._places.place) - 1
        self.completed.open += len(rows)
        places.place[rows & mask] = number + 1
        for later in range(number + 1, len(self.operators_)):
            covered = self.operators_[later].covers.covering(rows)
            places.witness[rows[covered] & mask] = later + 1
            rows = rows[~covered]

    def _resume(self, ended: list[I64], span: Span) -> list[I64]:
        """Ask about the tuples whose match that was relied upon ends; per operator those that it was asked about."""
        resumed = [np.zeros(0, np.int64)] * len(self.operators_)
        if not self.completed.open:
            return resumed
        places, mask = self._places, len(self._places.place) - 1
        for number, rows in enumerate(ended):
            due = np.sort(rows[places.witness[rows & mask] == number + 1])
            places.witness[due & mask] = 0
            self._settle(len(due))
            place = places.place[due & mask]
            for k, operator in enumerate(self.operators_):
                asking = due[place == k + 1]
                asking = asking[~operator.covers.asked(asking)]
                if len(asking):
                    self._complete(operator, asking, span.first)
                    resumed[k] = np.union1d(resumed[k], asking)
        return resumed

    def _settle(self, count: int) -> None:
        self.completed.open -= count
        self.completed.settled += count

    def _complete(self, operator: Difference, rows: I64, ts: int) -> None:
        counters = operator.match.counters
        compared = counters.comparisons
        keys = operator.ask(rows, ts)
        self.completed.comparisons += counters.comparisons - compared
        counters.comparisons = compared
        if keys is None:
            self.completed.keys += len(rows)
            return
        attempted = self._attempted.get(operator.alias)
        if attempted is None:
            attempted = self._attempted[operator.alias] = new_table(self._taken_over)
        self.completed.keys += int(np.count_nonzero(add_marks(keys, 1, attempted)))

    # --- Executor ---------------------------------------------------------------------------------------

    def purge(self, cut: int) -> None:
        """Drop what no tuple with ts >= cut can meet, in every state."""
        for operator in self.operators_:
            operator.purge(cut)

    def operators(self) -> tuple[OperatorStatistics, ...]:
        """Counters and sizes per operator, in the order of the plan. Results are tuples that came through.

        Cost: O(living tuples), a counter's worth each.
        """
        nodes = [node for node in postorder(self.plan) if isinstance(node, Join)]
        complete = self._complete_lefts()
        places = ring_read(self._places.place, max(self._store.lo, self._dead), self._hi)
        stopped = np.bincount(places, minlength=len(nodes) + 2)
        found = []
        for number, (node, operator) in enumerate(zip(nodes, self.operators_, strict=True)):
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
        """Per operator whether it is known of every tuple that it comes to it (JISC, definition 1)."""
        complete = [True] * len(self.operators_)
        if self.completed.open:
            places = self._places
            rows = np.flatnonzero(places.witness)
            for stop, witness in {*zip(places.place[rows].tolist(), places.witness[rows].tolist(), strict=True)}:
                complete[stop:witness] = [False] * (witness - stop)
        return complete

    def _counted(self) -> tuple[int, int]:
        counters = [operator.match.counters for operator in self.operators_]
        return sum(c.comparisons for c in counters), sum(c.results for c in counters)

    def comparisons(self) -> int:
        """Predicate evaluations since this plan took over."""
        return self._retired[0] if self._retired else self._counted()[0] - self._before[0]

    def intermediate_results(self) -> int:
        """Matches found since this plan took over."""
        return self._retired[1] if self._retired else self._counted()[1] - self._before[1]

    def state_tuples(self) -> int:
        """Tuples in all states."""
        return sum(len(state) for operator in self.operators_ for state in operator.states)

    def size_bytes(self) -> int:
        """Bytes of all states."""
        places = self._places
        return places.place.nbytes + places.witness.nbytes + sum(o.size_bytes() for o in self.operators_)
