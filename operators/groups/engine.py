"""The engine of one task of a query group: one intake and one watermark, results per query.

Push tuples as they arrive and advance to the watermark, as with `operators.engine.engine`; an epoch's results come per
query, each exactly what the query gives alone, in its order. Queries are executed in *parts*: those that share an
operator (`operators.groups.shared`) are one, every other is a part of its own, an engine that takes its tuples from
the common intake (`operators.groups.standalone`).

Invariants: every part has been advanced to `cut`; a tuple is late or not by its own partition, so the same tuples are
late for all queries as for each alone.

Queries come and go between epochs (`add`, `drop`), at the cut that the group has come to. What is said of a query's
past is exact: `add` returns from when on it sees tuples, and with that an heir makes the query's state of the log.

Limits: the watermark is that of all streams, so results of a query wait for streams that it does not read. Who comes
reads streams and tables that the group was made with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from operators.data.tuples import FOREVER
from operators.data.watermark import END, NEVER
from operators.engine.intake import Intake
from operators.engine.taking import Taking
from operators.groups.shared import gone_name
from operators.groups.statistics import GroupStatistics, PartStatistics
from schemas.columns import I64, Batch, Mask
from schemas.errors import UsageError
from schemas.groups import seeing
from schemas.messages.spills import SpillEvent
from schemas.query import Query, Stream

REACH_WINDOWS = 4
REACH_MS = 3_600_000
"""How far back places in the log are known at least, in longest windows and in ms: for queries with longer ones."""


class Part(Protocol):
    """Executes one query or several, at least one.

    Attributes:
        names: of its queries.
    """

    names: tuple[str, ...]

    def process(self, epoch: Mapping[str, Batch], cut: int) -> Mapping[str, Batch]:
        """Process an epoch up to the event time `cut`.

        Args:
            epoch: per stream, ascending in the total order; streams that it does not read may be there.

        Returns:
            The results of every query by its name, in their order.
        """
        ...

    def nothing(self) -> Mapping[str, Batch]:
        """No results, per query."""
        ...

    def clean(self, most: int | None = None) -> bool:
        """Find results that are owed for want of memory; `cleaned` has them. False when nothing was owed.

        Args:
            most: partition groups, or steps; None for all that is owed.
        """
        ...

    def cleaned(self) -> Mapping[str, list[Batch]]:
        """By query, what was found late since this was last asked: each ascending by ts, and each result once."""
        ...

    def horizon(self, stream: str) -> int | None:
        """The smallest ts whose tuples of the stream some window still needs; None where nobody reads it."""
        ...

    def statistics(self) -> PartStatistics:
        """Counters and sizes as of now."""
        ...


class SharedPart(Part, Protocol):
    """A part whose queries come and go.

    Attributes:
        names: of queries that run: none, where only those are left that have ended and are owed something.
        over: whether not even such are.
    """

    @property
    def over(self) -> bool:
        """See above."""
        ...

    def resume(self, spans: Mapping[str, tuple[int, int]]) -> None:
        """Queries have come and gone in an earlier life: from when on and before when the results of each are."""
        ...

    def add(self, query: Query, *, from_now: bool) -> dict[str, int]:
        """One more query; by its aliases the least ts of tuples that it sees, where it does not see all."""
        ...

    def drop(self, name: str) -> None:
        """One query less; `cleaned` goes on to have what it is owed."""
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
class Gone:
    """A query that has ended: its results are those from `began` on and before `ended`.

    Attributes:
        since: what `add` told of it.
    """

    query: Query
    since: Mapping[str, int]
    began: int
    ended: int


class Maker(Protocol):
    """Makes parts, and knows which queries can share one."""

    def can_share(self, query: Query) -> bool:
        """Whether the query is executed together with others."""
        ...

    def shared(self, queries: Sequence[Query], cut: int = 0) -> SharedPart:
        """A part of queries that share an operator, which begins at `cut`."""
        ...

    def apart(self, query: Query) -> Part:
        """A part of one query."""
        ...


class GroupEngine(Taking):
    """Runs the queries of a group over the given partitions of their streams.

    Args:
        streams: all that queries may read, those to come included.
        maker: see `operators.groups.sharing`.
        partitions: partition numbers per stream name; one partition 0 each when None.
        since: of queries that came to an earlier life of the group, what `add` told of them.
        began: and at which cut that was.
        gone: those that ended in an earlier life, and may be owed something.

    Attributes:
        hold: END: nobody asks for what has expired.
        load: the share of its time that the engine is busy; for who runs it.
    """

    def __init__(
        self,
        queries: Sequence[Query],
        streams: Sequence[Stream],
        maker: Maker,
        partitions: Mapping[str, Sequence[int]] | None = None,
        since: Mapping[str, Mapping[str, int]] | None = None,
        began: Mapping[str, int] | None = None,
        gone: Sequence[Gone] = (),
    ) -> None:
        self.hold = END
        self.load = 0.0
        self._maker = maker
        queries = [seeing(query, (since or {}).get(query.name, {})) for query in queries]
        ended = {gone_name(one.query.name, one.ended): one for one in gone}
        shared = [query for query in queries if maker.can_share(query)]
        shared += [replace(seeing(one.query, one.since), name=name) for name, one in ended.items()]
        self._shared: SharedPart | None = maker.shared(shared) if shared else None
        if self._shared is not None:
            spans = {name: (cut, FOREVER) for name, cut in (began or {}).items()}
            self._shared.resume(spans | {name: (one.began, one.ended) for name, one in ended.items()})
        alone = [query for query in queries if not maker.can_share(query)]
        self._apart: dict[str, Part] = {query.name: maker.apart(query) for query in alone}
        self._intake = Intake(streams, partitions or {stream.name: (0,) for stream in streams})
        self._input_tuples = 0
        # What those who were dropped have found late.
        self._last: dict[str, list[Batch]] = {}

    @property
    def parts(self) -> tuple[Part, ...]:
        """What is executed: what is shared first."""
        return (*(() if self._shared is None else (self._shared,)), *self._apart.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Of all queries."""
        return tuple(name for part in self.parts for name in part.names)

    def add(self, query: Query, *, from_now: bool = False) -> dict[str, int]:
        """Run one more query, whose results begin at `cut`.

        Args:
            from_now: of tuples with ts >= `cut` alone; else also with those before that are still held.

        Returns:
            By the query's aliases the least ts of tuples that it sees; absent where it sees all that its window held.
            A query that shares no operator sees none from before.

        Raises:
            UsageError: the group cannot take it; nothing has changed.
        """
        if query.name in self.names:
            raise UsageError(f"the group has a query {query.name!r} already; drop it first, or choose another name")
        known = {stream.name: stream for stream in self._intake.streams}
        for stream in query.streams():
            if known.get(stream.name) != stream:
                raise UsageError(f"query {query.name!r} reads {stream}, and the group reads {', '.join(known)}")
        if self._shared is not None and self._maker.can_share(query):
            # What a replay began with, it may have in part.
            floors = self._not_read(query)
            seen = self._shared.add(seeing(query, floors), from_now=from_now)
            return seen | {alias: max(ts, seen.get(alias, ts)) for alias, ts in floors.items()}
        begun: Part
        if self._maker.can_share(query):
            begun = self._shared = self._maker.shared([query], self.cut)
        else:
            begun = self._apart[query.name] = self._maker.apart(query)
        begun.process({}, self.cut)
        return {source.alias: self.cut for source in query.sources if not source.is_table}

    def drop(self, name: str) -> None:
        """Run a query no longer: its results are those before `cut`. What it is owed of these goes on to be found, and
        `cleaned` has it; a query of the same name may come meanwhile.

        Raises:
            UsageError: there is no such query.
        """
        if name not in self.names:
            raise UsageError(f"the group has no query {name!r}, it has {_listed(self.names)}")
        apart = self._apart.pop(name, None)
        if apart is not None:
            apart.clean()
            self._keep(apart.cleaned())
        elif self._shared is not None:
            self._shared.drop(name)
            self._look()

    def _look(self) -> None:
        """Have no part of which nothing is left."""
        if self._shared is not None and self._shared.over:
            self._keep(self._shared.cleaned())
            self._shared = None

    def _keep(self, found: Mapping[str, Sequence[Batch]]) -> None:
        for name, batches in found.items():
            self._last.setdefault(name, []).extend(batches)

    def push(self, stream: str, partition: int, batch: Batch, offsets: I64 | None = None, *, floor: int = 0) -> Mask:
        """Take tuples of one partition in arrival order; True where late. See `Intake.push`."""
        late = self._intake.push(stream, partition, batch, offsets, floor)
        self._input_tuples += len(batch)
        return late

    def advance(self, cut: int | None = None) -> dict[str, Batch]:
        """Process all tuples with ts < cut (default: the watermark); the results of every query by its name."""
        cut = self.watermark() if cut is None else cut
        found: dict[str, Batch] = {}
        if cut <= self.cut:
            for part in self.parts:
                found |= part.nothing()
            return found
        epoch = self._intake.take(cut)
        for part in self.parts:
            found |= part.process(epoch, cut)
        for stream in self._intake.streams:
            if cut < END:
                reach = cut - max(REACH_MS, REACH_WINDOWS * (cut - self.horizon(stream.name)))
                self._intake.forget(stream.name, reach)
        self._look()
        return found

    def clean(self, most: int | None = None) -> bool:
        """Find results that are owed for want of memory; `cleaned` has them. False when nothing was owed.

        Args:
            most: of each part partition groups, or steps; None for all that is owed.

        Raises:
            StateError: a block cannot be read or written.
        """
        found = [part.clean(most) for part in self.parts]
        self._look()
        return any(found)

    def cleaned(self) -> dict[str, list[Batch]]:
        """By query, what was found late since this was last asked: each ascending by ts, and each result once."""
        found, self._last = self._last, {}
        for part in self.parts:
            for name, batches in part.cleaned().items():
                found.setdefault(name, []).extend(batches)
        return found

    def least_budget(self) -> int:
        """The least memory budget with which what is owed does not become ever more at the rates of the input, in
        bytes, about; 0 where the one that there is does."""
        return 0 if self._shared is None else self._shared.least_budget()

    def spill_events(self) -> list[SpillEvent]:
        """What has happened to spilled state since this was last asked, for who must do it again after a death."""
        return [] if self._shared is None else self._shared.spill_events()

    def play_spills(self, events: Sequence[SpillEvent], until: int) -> None:
        """Do up to the event time `until` exactly this to spilled state; what came late meanwhile is out already.

        To be called before anything is processed, on a group of which no query runs apart.
        """
        if self._shared is not None:
            self._shared.play_spills(events, until)

    def spills_needed_from(self) -> int:
        """Events up to this event time need not be done again: what they were about has expired."""
        return self.cut if self._shared is None else self._shared.spills_needed_from()

    def past(self, query: Query) -> dict[str, int]:
        """What `add` would return of a query that the group has taken, if the log was read again from the replay points
        as they are now; more than `add` can give of what is held in memory, or as much.
        """
        # How far back the tuples of a ROWS window lie, nobody knows before they are read.
        counted = {source.alias: self.cut for source in query.sources if source.window.kind == "ROWS"}
        return self._not_read(query) | counted

    def _not_read(self, query: Query) -> dict[str, int]:
        """By alias, the least ts of tuples of which all have been read since this engine began, or could be read again;
        absent where the alias's window reaches no further back."""
        since: dict[str, int] = {}
        for source in query.sources:
            if not source.is_table:
                known = self._intake.known_from(source.stream.name)
                if known > (self.cut - source.window.size if source.window.kind == "RANGE" else NEVER):
                    since[source.alias] = known
        return since

    def horizon(self, stream: str) -> int:
        """The smallest ts whose tuples of `stream` some window still needs."""
        horizons = [part.horizon(stream) for part in self.parts]
        return min((horizon for horizon in horizons if horizon is not None), default=self.cut)

    def statistics(self) -> GroupStatistics:
        """Counters and sizes as of now."""
        return GroupStatistics(
            input_tuples=self._input_tuples,
            late=self._intake.late_tuples,
            pending_tuples=self.pending_tuples,
            cut=self.cut,
            parts=tuple(part.statistics() for part in self.parts),
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
