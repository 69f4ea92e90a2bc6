"""The engine of one task of a query group: one intake and one watermark, results per query.

Push tuples as they arrive and advance to the watermark, as with `operators.engine.engine`. The results of an epoch are
returned per query; each query's are exactly those that it produces alone, in its order. *Runners* execute the queries.
All queries that share an operator have one runner (`operators.groups.shared`). Every other query has its own: an engine
that takes its tuples from the common intake (`operators.groups.standalone`).

Tuples are looked up in tables in topics before any runner has them, once for all queries that look up the same
(`schemas.shared_lookups`). Tables are kept whole, from their topics' beginning on, whether a query reads them or not.
So a query that is added finds in them what it would have found if it had always run.

Invariants: every runner has been advanced to `cut`; whether a tuple is late depends on its own partition only, so the
same tuples are late for all queries as for each alone.

Queries are added and dropped between epochs (`add`, `drop`), at the group's present cut. The history that a query sees
is exact: `add` returns from which ts on it sees tuples. With that, the task's next incarnation rebuilds the query's
state from the log.

Limits: the watermark is that of all streams, so results of a query wait for streams that it does not read. A query that
is added reads streams and tables that the group was made with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from operators.data.tuples import FOREVER
from operators.data.watermark import END, NEVER
from operators.engine.intake import Intake, IntakeMethods, LateRows
from operators.engine.lookups import TableLookups
from operators.groups.shared import ended_name
from operators.groups.statistics import GroupStatistics, RunnerStatistics
from schemas.columns import I64, Batch
from schemas.errors import UsageError, listed
from schemas.groups import seeing
from schemas.messages.spills import SpillEvent
from schemas.query import Query, Stream

REACH_WINDOWS = 4
REACH_MS = 3_600_000
"""How far back positions in the log are known at least, in longest windows and in ms: for added queries with longer
windows."""


class QueryRunner(Protocol):
    """Executes one query or several, at least one.

    Attributes:
        names: of its queries.
        queries: which look up what its tuples need, with the group's names for it; also those that have ended.
    """

    names: tuple[str, ...]
    queries: tuple[Query, ...]

    def process(self, epoch: Mapping[str, Batch], cut: int) -> Mapping[str, Batch]:
        """Process an epoch up to the event time `cut`.

        Args:
            epoch: per stream, ascending in the total order; it may contain streams that the runner does not read.

        Returns:
            The results of every query by its name, in their order.
        """
        ...

    def nothing(self) -> Mapping[str, Batch]:
        """No results, per query."""
        ...

    def clean(self, most: int | None = None) -> bool:
        """Produce pending results; `cleaned` returns them. False when nothing was pending.

        Args:
            most: partition groups, or steps; None for everything that is pending.
        """
        ...

    def cleaned(self) -> Mapping[str, list[Batch]]:
        """By query, the late results found since the last call: each batch ascending by ts, and each result once."""
        ...

    def horizon(self, stream: str) -> int | None:
        """The smallest ts whose tuples of the stream some window still needs; None where no query reads it."""
        ...

    def count_beside(self, size_bytes: int) -> None:
        """Set the bytes outside the runner that count against its budget, and cannot be spilled."""
        ...

    def statistics(self) -> RunnerStatistics:
        """Counters and sizes as of now."""
        ...


class SharedRunner(QueryRunner, Protocol):
    """A runner whose queries can be added and dropped.

    Attributes:
        names: of queries that run: none, where only ended queries with pending results are left.
    """

    @property
    def finished(self) -> bool:
        """Whether no query is left, not even one that has ended and has pending results."""
        ...

    def resume(self, spans: Mapping[str, tuple[int, int]]) -> None:
        """Restore queries from an earlier incarnation: the begin and the end of the event times of each one's
        results."""
        ...

    def add(self, query: Query, *, from_now: bool) -> dict[str, int]:
        """Add a query; return by its aliases the least ts of tuples that it sees, where it does not see all."""
        ...

    def drop(self, name: str) -> None:
        """Drop a query; `cleaned` still returns its pending results."""
        ...

    def least_budget(self) -> int:
        """See `GroupEngine`."""
        ...

    def play_spills(self, events: Sequence[SpillEvent], until: int) -> None:
        """See `GroupEngine`."""
        ...

    def spill_events(self) -> list[SpillEvent]:
        """See `GroupEngine`."""
        ...

    def spills_needed_from(self) -> int:
        """See `GroupEngine`."""
        ...


@dataclass(frozen=True, slots=True)
class EndedQuery:
    """A query that has ended: its results are those from `began` on and before `ended`.

    Attributes:
        since: what `add` returned for it.
    """

    query: Query
    since: Mapping[str, int]
    began: int
    ended: int


class RunnerFactory(Protocol):
    """Makes runners, and decides which queries can share one."""

    def can_share(self, query: Query) -> bool:
        """Whether the query is executed together with others."""
        ...

    def shared(self, queries: Sequence[Query], cut: int = 0) -> SharedRunner:
        """A runner of queries that share an operator, which begins at `cut`."""
        ...

    def standalone(self, query: Query) -> QueryRunner:
        """A runner of one query."""
        ...


class GroupEngine(IntakeMethods):
    """Runs the queries of a group over the given partitions of their streams.

    Args:
        streams: all that queries may read, including queries added later.
        factory: see `operators.groups.sharing`.
        partitions: partition numbers per stream name; one partition 0 each when None.
        since: for queries added in an earlier incarnation of the group, what `add` returned for them.
        began: and at which cut they were added.
        ended: queries that ended in an earlier incarnation, and may have pending results.

    Attributes:
        hold: END: nothing needs expired tuples.
        load: the share of its time that the engine is busy; its task sets it.
    """

    def __init__(
        self,
        queries: Sequence[Query],
        streams: Sequence[Stream],
        factory: RunnerFactory,
        partitions: Mapping[str, Sequence[int]] | None = None,
        since: Mapping[str, Mapping[str, int]] | None = None,
        began: Mapping[str, int] | None = None,
        ended: Sequence[EndedQuery] = (),
    ) -> None:
        self.hold = END
        self.load = 0.0
        self._factory = factory
        queries = [seeing(query, (since or {}).get(query.name, {})) for query in queries]
        ended_by_name = {ended_name(closed.query.name, closed.ended): closed for closed in ended}
        shared = [query for query in queries if factory.can_share(query)]
        shared += [replace(seeing(closed.query, closed.since), name=name) for name, closed in ended_by_name.items()]
        self._shared: SharedRunner | None = factory.shared(shared) if shared else None
        if self._shared is not None:
            spans = {name: (cut, FOREVER) for name, cut in (began or {}).items()}
            self._shared.resume(spans | {name: (closed.began, closed.ended) for name, closed in ended_by_name.items()})
        alone = [query for query in queries if not factory.can_share(query)]
        self._standalone: dict[str, QueryRunner] = {query.name: factory.standalone(query) for query in alone}
        self._intake = Intake(streams, partitions or {stream.name: (0,) for stream in streams})
        self._lookups = TableLookups((), [stream for stream in streams if stream.is_versioned])
        self._input_tuples = 0
        # Late results of standalone queries that were dropped, and of a shared runner that is finished.
        self._final_results: dict[str, list[Batch]] = {}

    @property
    def runners(self) -> tuple[QueryRunner, ...]:
        """All runners, the shared one first."""
        return (*(() if self._shared is None else (self._shared,)), *self._standalone.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Of all queries."""
        return tuple(name for runner in self.runners for name in runner.names)

    def add(self, query: Query, *, from_now: bool = False) -> dict[str, int]:
        """Run one more query, whose results begin at `cut`.

        Args:
            from_now: its results are of tuples with ts >= `cut` alone; otherwise also of earlier ones that are still
                stored.

        Returns:
            By the query's aliases the least ts of tuples that it sees; absent where it sees the whole of its window. A
                standalone query sees no earlier tuples.

        Raises:
            UsageError: the group cannot take it; nothing has changed.
        """
        if query.name in self.names:
            raise UsageError(f"the group has a query {query.name!r} already; drop it first, or choose another name")
        known = {stream.name: stream for stream in self._intake.streams}
        for stream in query.streams():
            if known.get(stream.name) != stream:
                raise UsageError(f"query {query.name!r} reads {stream}, and the group reads {', '.join(known)}")
        if self._shared is not None and self._factory.can_share(query):
            # A replay may hold only part of the window it started from.
            floors = self._first_read(query)
            seen = self._shared.add(seeing(query, floors), from_now=from_now)
            return seen | {alias: max(ts, seen.get(alias, ts)) for alias, ts in floors.items()}
        begun: QueryRunner
        if self._factory.can_share(query):
            begun = self._shared = self._factory.shared([query], self.cut)
        else:
            begun = self._standalone[query.name] = self._factory.standalone(query)
        begun.process({}, self.cut)
        return {source.alias: self.cut for source in query.sources if not source.is_static}

    def drop(self, name: str) -> None:
        """Stop running a query: its results are those before `cut`. `cleaned` returns those of them that are still
        pending, when they are found; a query of the same name may be added meanwhile.

        Raises:
            UsageError: there is no such query.
        """
        if name not in self.names:
            raise UsageError(f"the group has no query {name!r}, it has {listed(self.names) or 'none'}")
        standalone = self._standalone.pop(name, None)
        if standalone is not None:
            standalone.clean()
            self._keep(standalone.cleaned())
        elif self._shared is not None:
            self._shared.drop(name)
            self._remove_finished()

    def _remove_finished(self) -> None:
        """Remove the shared runner when nothing is left of it."""
        if self._shared is not None and self._shared.finished:
            self._keep(self._shared.cleaned())
            self._shared = None

    def _keep(self, found: Mapping[str, Sequence[Batch]]) -> None:
        for name, batches in found.items():
            self._final_results.setdefault(name, []).extend(batches)

    def push(
        self,
        stream: str,
        partition: int,
        batch: Batch,
        offsets: I64 | None = None,
        *,
        floor: int | None = None,
        remembered: int | None = None,
    ) -> LateRows:
        """Take tuples of one partition in arrival order. See `Intake.push`."""
        found = self._intake.push(stream, partition, batch, offsets, floor, remembered)
        self._input_tuples += len(batch)
        return found

    def advance(self, cut: int | None = None) -> dict[str, Batch]:
        """Process all tuples with ts < cut (default: the watermark); return the results of every query by its name."""
        cut = self.watermark() if cut is None else cut
        found: dict[str, Batch] = {}
        if cut <= self.cut:
            for runner in self.runners:
                found |= runner.nothing()
            return found
        self._lookups.change([query for runner in self.runners for query in runner.queries])
        epoch = self._lookups.look_up(self._intake.take(cut))
        self._divide_fixed()
        for runner in self.runners:
            found |= runner.process(epoch, cut)
        for stream in self._intake.streams:
            if cut < END and not stream.is_versioned:
                reach = cut - max(REACH_MS, REACH_WINDOWS * (cut - self.replay_horizon(stream.name)))
                self._intake.forget(stream.name, reach)
        self._remove_finished()
        return found

    def _divide_fixed(self) -> None:
        """Count the tables and what is remembered of deduplicated streams, which are all queries', against the budgets
        of the runners: a part for each query."""
        size = self._lookups.used_bytes() + self._intake.repeats_bytes()
        queries = max(sum(len(runner.names) for runner in self.runners), 1)
        for runner in self.runners:
            runner.count_beside(size * len(runner.names) // queries)

    def take_versions(self) -> int:
        """See `Engine.take_versions`."""
        return self._lookups.take_versions(self._intake, self.cut)

    def clean(self, most: int | None = None) -> bool:
        """Produce pending results; `cleaned` returns them. False when nothing was pending.

        Args:
            most: of each runner partition groups, or steps; None for everything that is pending.

        Raises:
            StateError: a block cannot be read or written.
        """
        found = [runner.clean(most) for runner in self.runners]
        self._remove_finished()
        return any(found)

    def cleaned(self) -> dict[str, list[Batch]]:
        """By query, the late results found since the last call: each batch ascending by ts, and each result once."""
        found, self._final_results = self._final_results, {}
        for runner in self.runners:
            for name, batches in runner.cleaned().items():
                found.setdefault(name, []).extend(batches)
        return found

    def least_budget(self) -> int:
        """About the least memory budget, in bytes, with which the backlog does not keep growing at the rates of the
        input; 0 if the present budget suffices."""
        return 0 if self._shared is None else self._shared.least_budget()

    def spill_events(self) -> list[SpillEvent]:
        """The spill events since the last call, for a replay after a death."""
        return [] if self._shared is None else self._shared.spill_events()

    def play_spills(self, events: Sequence[SpillEvent], until: int) -> None:
        """Replay exactly these spill events up to the event time `until`; late results of that time were delivered
        before.

        To be called before anything is processed, on a group without standalone queries.
        """
        if self._shared is not None:
            self._shared.play_spills(events, until)

    def replay_limit(self, read: Mapping[str, int]) -> int:
        """No limit: a group reads no late results of other tasks. See `Engine.replay_limit`."""
        return END

    def leave_budget(self) -> None:
        """Nothing: a group shares its budget with nobody."""

    def spills_needed_from(self) -> int:
        """Events up to this event time need not be replayed: the tuples that they spilled have expired."""
        return self.cut if self._shared is None else self._shared.spills_needed_from()

    def replayable_since(self, query: Query) -> dict[str, int]:
        """What `add` would return for a query that the group has taken, if the log was read again from the present
        replay points; at least as much as `add` can give from what is stored in memory."""
        # How far back the tuples of a ROWS window lie is unknown before they are read.
        counted = {source.alias: self.cut for source in query.sources if source.window.kind == "ROWS"}
        return self._first_read(query) | counted

    def _first_read(self, query: Query) -> dict[str, int]:
        """By alias, the least ts from which on all tuples have been read since this engine began, or could be read
        again; absent where the alias's window reaches no further back."""
        since: dict[str, int] = {}
        for source in query.sources:
            if not source.is_static:
                known = self._intake.known_from(source.stream.name)
                if known > (self.cut - source.window.size if source.window.kind == "RANGE" else NEVER):
                    since[source.alias] = known
        return since

    def horizon(self, stream: str) -> int:
        """The smallest ts whose tuples of `stream` some window still needs; 0 of a table that tuples are looked up
        in."""
        if stream in self._lookups:
            return 0
        horizons = [runner.horizon(stream) for runner in self.runners]
        return min((horizon for horizon in horizons if horizon is not None), default=self.cut)

    def statistics(self) -> GroupStatistics:
        """Counters and sizes as of now."""
        return GroupStatistics(
            input_tuples=self._input_tuples,
            late=self._intake.late_tuples,
            pending_tuples=self.pending_tuples,
            lookup_bytes=self._lookups.size_bytes(),
            cut=self.cut,
            runners=tuple(runner.statistics() for runner in self.runners),
            deduplicated=self._intake.repeats,
        )
