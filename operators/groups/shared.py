"""Runs the queries of a group that share one operator, from source tuples to each query's output (Juggler 3.2).

`operators.groups.sharing` makes a `SharedQueries`. `operators.groups.engine` runs it as a `SharedRunner`.

Source tuples are stored once, with every column that some query reads, under the inputs of `schemas.groups`, if the
operator wants them for any query. The operator receives their row ids and returns row ids per query. Each query's
SELECT list is computed from those.

Invariants: a query's results are those that it produces alone, in the same order: by (ts, row ids in its own FROM
order); and row ids of a stream follow the total order whatever else is stored with them. Slices change nothing.

Within a memory budget a query may have pending results when it ends. It then stays in the operator under another name.
Its later results are dropped, and its pending results are found like those of the others. When nothing before its end
is pending any more, it is removed, with the tuples that it alone has read. So nothing waits for a query that is added
or dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from operators.data.evaluate import evaluate
from operators.data.slices import slices
from operators.data.tuples import FOREVER, Tuples
from operators.groups.aggregated import GroupAggregate
from operators.groups.budget import GroupBudget
from operators.groups.cleanup import ALWAYS
from operators.groups.executor import MakeExecutor
from operators.groups.spill import GroupSpill
from operators.groups.statistics import QueryStatistics, RunnerStatistics
from operators.juggler.state.sources import GroupSources
from schemas.columns import Batch
from schemas.errors import InvariantError, UsageError
from schemas.groups import Member, QueryGroup
from schemas.messages.spills import SpillEvent
from schemas.query import TABLE_TS, Query, Stream, Table

WAITING_TUPLES = 131_072
"""Number of source tuples and results that wait until SELECT lists are computed: for many queries a call per slice is
expensive."""

MIN_WINDOW_SLICE_TUPLES = 4_096
"""A short window makes no slice smaller than this. In a shared operator a slice costs 1 ms for a query, 2 ms for ten,
16 ms for a thousand, however few tuples are in it. So slices are four times as large as those of a query alone,
although more of the scanned tuples are too old then, and more are stored at the ends of slices."""


ENDED_AT = "\0"
"""In the name of an ended query with pending results: separates its own name from the event time at which it ended."""


def ended_name(name: str, ended: int) -> str:
    """The operator's name for a query that has ended."""
    return f"{name}{ENDED_AT}{ended}"


def name_of(called: str) -> str:
    """The name of a query, ended or not."""
    return called.partition(ENDED_AT)[0]


class SharedQueries:
    """A runner of several queries, or of one, in a single operator.

    Args:
        tables: the rows of each of the group's tables, by name.
        executor: makes the operator over the group's stores.
        cut: where it begins; earlier tuples have not been seen.
        spill: the tuples on disk, with the memory budget (`operators.groups.budget`); None for no limit.

    Attributes:
        group: the queries in the operator.
        names: of queries that run, without those that have ended.
        queries: see `QueryRunner`.
    """

    def __init__(
        self,
        group: QueryGroup,
        executor: MakeExecutor,
        *,
        name: str,
        tables: Mapping[str, Batch] | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        cut: int = 0,
        spill: GroupSpill | None = None,
    ) -> None:
        self._name = name
        self._clock = clock
        self._sources = GroupSources(group, cut or -FOREVER)
        self._executor = executor(self._sources, group)
        self._budget: GroupBudget | None = None
        if spill is not None:
            self._budget = GroupBudget(
                spill, self._sources, self._executor, executor, self._output, self._used_bytes, clock
            )
        self._cut = cut
        self._input_tuples = 0
        self._results: dict[str, int] = {}
        self._peak_tuples = self._peak_bytes = 0
        self._busy_s = 0.0
        self._aggregated: dict[str, GroupAggregate] = {}
        # The operator's names for ended queries that have pending results.
        self._ended: list[str] = []
        self._regroup(group)
        self._load(tables or {})
        if spill is not None:
            spill.own_bytes = self._used_bytes()

    def _regroup(self, group: QueryGroup) -> None:
        """Update everything that depends on the set of queries."""
        self.group = group
        self.names = tuple(name for name in group.names if name not in self._ended)
        self.queries: tuple[Query, ...] = tuple(member.over_inputs for member in group.members)
        self._members = {member.name: member for member in group.members}
        self._results = {name: self._results.get(name, 0) for name in self.names}
        numbers: dict[object, int] = {}
        self._same_output = {
            member.name: numbers.setdefault(
                (member.inputs, tuple(output.expr for output in member.over_inputs.outputs)), len(numbers)
            )
            for member in group.members
        }
        windows = [window for source in group.inputs for window in group.windows(source.alias) if not source.is_static]
        self._shortest = min((window.size for window in windows if window.kind == "RANGE"), default=FOREVER)
        self._shortest_rows = min((window.size for window in windows if window.kind == "ROWS"), default=FOREVER)
        streams: list[Stream | Table] = [*group.query.joined_streams(), *group.query.tables()]
        self._inputs = {s.name: tuple(i.alias for i in group.inputs if i.stream.name == s.name) for s in streams}
        self._streams = {s.name for s in streams if isinstance(s, Stream)}
        self._aggregated = {
            m.name: self._aggregated.get(m.name) or GroupAggregate(self._sources, m)
            for m in group.members
            if m.query.aggregation is not None
        }
        self._nothing = {
            m.name: self._aggregated[m.name].nothing
            if m.name in self._aggregated
            else self._output(m, Tuples.empty(m.inputs))
            for m in group.members
            if m.name in self._results
        }

    def add(self, query: Query, *, from_now: bool) -> dict[str, int]:
        """Add a query, whose results begin at the runner's cut.

        Args:
            from_now: it sees no earlier tuple; otherwise it sees those that are stored, unless it aggregates.

        Returns:
            By the query's aliases the least ts of tuples that it sees, where it does not see all.

        Raises:
            UsageError: the group cannot take it; nothing has changed.
        """
        for table in query.tables():
            if table.name not in self._inputs:
                raise UsageError(f"query {query.name!r} reads {table}, which no query of the group has read so far")
        from_now = from_now or query.aggregation is not None
        seen = self._executor.add(query, from_now=from_now, cut=self._cut)
        if self._budget is not None:
            self._budget.spans[query.name] = self._cut, FOREVER
        self._regrouped()
        alias_of = {name: alias for alias, name in self._members[query.name].input_of().items()}
        return {alias_of[name]: ts for name, ts in seen.items()}

    def drop(self, name: str) -> None:
        """Drop a query. Its pending results are found like those of others. Until then it stays in the operator under
        another name, since a query of the same name may be added.

        Raises:
            UsageError: there is no such query.
        """
        budget, ended = self._budget, ended_name(name, self._cut)
        if budget is not None:
            began, _ = budget.spans.pop(name, ALWAYS)
            if began < self._cut and budget.has_pending(self._cut):
                self._executor.rename(name, ended, cut=self._cut)
                budget.spans[ended] = began, self._cut
                self._ended.append(ended)
                self._regrouped()
                return
        self._remove(name)

    def _remove(self, name: str) -> None:
        """Remove a query without pending results."""
        if len(self.group.members) > 1:
            self._executor.drop(name, cut=self._cut)
            self._regrouped()
        else:
            self.names = ()

    def _regrouped(self) -> None:
        self._regroup(self._executor.group)
        if self._budget is not None:
            self._budget.queries_changed()

    def _remove_ended(self) -> None:
        """Remove ended queries that have no pending results any more."""
        budget = self._budget
        if budget is not None:
            for name in [name for name in self._ended if not budget.has_pending(budget.spans[name][1])]:
                self._ended.remove(name)
                del budget.spans[name]
                self._remove(name)

    @property
    def finished(self) -> bool:
        """Whether no query runs and nothing is pending."""
        return not self.names and not self._ended

    def resume(self, spans: Mapping[str, tuple[int, int]]) -> None:
        """Restore the spans of queries from an earlier incarnation, see `CleanupQueries`; before anything is
        processed."""
        if self._budget is not None:
            self._budget.spans |= spans
            self._ended += [name for name, (_, ended) in spans.items() if ended < FOREVER]
            self._regroup(self.group)

    def _load(self, tables: Mapping[str, Batch]) -> None:
        """Process the tables' rows first."""
        epoch: dict[str, Tuples] = {}
        for table in self.group.query.tables():
            if table.name not in tables:
                raise InvariantError(f"the rows of {table} are not given")
            rows = tables[table.name]
            epoch |= self._sources.enter({table.name: Batch(np.full(len(rows), TABLE_TS), rows.columns)})
        if epoch:
            self._executor.process(epoch, TABLE_TS)

    def process(self, epoch: Mapping[str, Batch], cut: int) -> dict[str, Batch]:
        """Process an epoch up to the event time `cut`."""
        mine = {stream: batch for stream, batch in epoch.items() if stream in self._streams}
        made_per_tuple = self._executor.intermediate_results() / max(self._input_tuples, 1)
        found: dict[str, list[Tuples]] = {}
        out: dict[str, list[Batch]] = {}
        waiting = 0
        budget = self._budget
        min_slices = 0 if budget is None else budget.min_slices(sum(len(batch) for batch in mine.values()))
        for piece, at in slices(
            mine,
            cut,
            made_per_tuple=made_per_tuple,
            window=self._shortest,
            rows=(self._shortest_rows,),
            min_slices=min_slices,
            min_tuples=MIN_WINDOW_SLICE_TUPLES,
        ):
            began = self._clock()
            for name, tuples in self._slice(piece, at).items():
                if len(tuples) and name not in self._ended:
                    found.setdefault(name, []).append(tuples)
                    waiting += len(tuples)
            arrived = sum(len(batch) for batch in piece.values())
            waiting += arrived
            if waiting >= WAITING_TUPLES or at == cut or budget is not None:
                self._finish(found, out, at)
                self._sources.purge(at if budget is None else budget.kept_from(at))
                found, waiting = {}, 0
                if budget is not None:
                    budget.keep(at, arrived)
            self._busy_s += self._clock() - began
        self._input_tuples += sum(len(batch) for batch in mine.values())
        self._remove_ended()
        return {name: Batch.concat(out[name]) if name in out else self._nothing[name] for name in self.names}

    def _slice(self, batches: Mapping[str, Batch], cut: int) -> Mapping[str, Tuples]:
        """Store and join; dead tuples stay in the stores until results have been read from them."""
        tuples = self._sources.enter(batches, self._executor.wanted(batches))
        now = min((int(batch.ts[0]) for batch in batches.values()), default=cut)
        self._sources.cut = cut
        found = self._executor.process(tuples, now)
        self._peak_tuples = max(self._peak_tuples, self._executor.state_tuples())
        self._peak_bytes = max(self._peak_bytes, self._size_bytes())
        self._executor.purge(cut)
        self._cut = cut
        return found

    def _finish(self, found: Mapping[str, list[Tuples]], out: dict[str, list[Batch]], cut: int) -> None:
        """Compute the SELECT lists of results, and aggregates; everything before `cut` has been processed."""
        for name, aggregated in self._aggregated.items():
            emitted = aggregated.process(found.get(name, ()), cut)
            if len(emitted):
                out.setdefault(name, []).append(emitted)
                self._results[name] += len(emitted)
        same_output: dict[int, list[str]] = {}
        for name in found:
            if name not in self._aggregated:
                same_output.setdefault(self._same_output[name], []).append(name)
        for names in same_output.values():
            for name, results in self._outputs(names, found):
                out.setdefault(name, []).append(results)
                self._results[name] += len(results)

    def _outputs(self, names: Sequence[str], found: Mapping[str, list[Tuples]]) -> Iterator[tuple[str, Batch]]:
        """Results of queries with the same SELECT expressions over the same inputs: every column is computed once for
        all."""
        first = self._members[names[0]]
        tuples = Tuples.concat([part for name in names for part in found[name]], first.inputs)
        columns = list(self._output(first, tuples).columns.values())
        begin = 0
        for name in names:
            end = begin + sum(map(len, found[name]))
            chosen = zip(self._members[name].over_inputs.outputs, columns, strict=True)
            yield name, Batch(tuples.ts[begin:end], {o.name: column.slice(begin, end) for o, column in chosen})
            begin = end

    def _output(self, member: Member, found: Tuples, sources: GroupSources | None = None) -> Batch:
        """Results with the SELECT list's columns; the rows are of `sources`, or of the runner's own stores where
        None."""
        resolve = (sources or self._sources).resolver(found.aliases, found.rows)
        columns = {o.name: evaluate(o.expr, resolve, len(found)) for o in member.over_inputs.outputs}
        return Batch(found.ts, columns)

    def nothing(self) -> dict[str, Batch]:
        """No results, per query."""
        return dict(self._nothing)

    def horizon(self, stream: str) -> int | None:
        """The smallest ts whose tuples of the stream some window still needs; None where no query reads it."""
        if stream not in self._streams:
            return None
        above = [aggregate.horizon(stream, self._cut) for aggregate in self._aggregated.values()]
        budget_horizon = None if self._budget is None else self._budget.horizon(stream)
        here = self._sources.horizon(stream, self._cut) if budget_horizon is None else budget_horizon
        return min([here, *(ts for ts in above if ts is not None)])

    def clean(self, most: int | None = None) -> bool:
        """Produce pending results; `cleaned` returns them. See `QueryRunner.clean`."""
        found = self._budget is not None and self._budget.clean(self._cut, most)
        self._remove_ended()
        return found

    def cleaned(self) -> dict[str, list[Batch]]:
        """By query, the late results found since the last call: each batch ascending by ts, and each result once."""
        late: dict[str, list[Batch]] = {}
        for name, batches in ({} if self._budget is None else self._budget.take()).items():
            own = name_of(name)
            late.setdefault(own, []).extend(batches)
            self._results[own] = self._results.get(own, 0) + sum(len(batch) for batch in batches)
        return late

    def least_budget(self) -> int:
        """See `GroupBudget.least_bytes`."""
        return 0 if self._budget is None else self._budget.least_bytes(self._cut)

    def play_spills(self, events: Sequence[SpillEvent], until: int) -> None:
        """See `GroupBudget.replay`."""
        if self._budget is not None:
            self._budget.replay(events, until)

    def spill_events(self) -> list[SpillEvent]:
        """See `GroupBudget.events`."""
        return [] if self._budget is None else self._budget.events()

    def spills_needed_from(self) -> int:
        """Events up to this time need not be replayed."""
        return self._cut if self._budget is None else self._budget.needed_from(self._cut)

    def count_beside(self, size_bytes: int) -> None:
        """Set the bytes outside the operator that count against the budget, and cannot be spilled."""
        if self._budget is not None:
            self._budget.count_beside(size_bytes)

    def _size_bytes(self) -> int:
        above = sum(aggregate.size_bytes() for aggregate in self._aggregated.values())
        return self._executor.size_bytes() + self._sources.size_bytes() + above

    def _used_bytes(self) -> int:
        """The memory of the operator that counts against a budget. Aggregates do not: with a budget, aggregate queries
        are standalone."""
        return self._executor.touched_bytes() + self._sources.touched_bytes()

    def statistics(self) -> RunnerStatistics:
        """Counters and sizes as of now."""
        tuples, size = self._executor.state_tuples(), self._size_bytes()
        shared, budget = len(self.names) > 1, self._budget
        return RunnerStatistics(
            queries=tuple(QueryStatistics(n, self._results[n], self._name, "", shared) for n in self.names),
            comparisons=self._executor.comparisons() + (0 if budget is None else budget.comparisons),
            intermediate_results=self._executor.intermediate_results(),
            state_tuples=tuples,
            state_bytes=size,
            peak_state_tuples=max(self._peak_tuples, tuples),
            peak_state_bytes=max(self._peak_bytes, size, 0 if budget is None else budget.peak_bytes),
            busy_s=self._busy_s,
            spill=None if budget is None else budget.statistics(self._cut),
            feedback=self._executor.feedback(),
        )
