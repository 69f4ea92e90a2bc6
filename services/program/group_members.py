"""Decides which queries a group's task runs: the registered ones, each from a cut that the task chooses and records.

`services.program.group_program` runs these queries. `services.worker.group_tasks` makes a `GroupMembers` for each task.
`services.task.epochs` calls it between epochs, as the task's `TaskChanges`.

A query begins and ends between two epochs, at the task's cut. The task writes that to the group's topic of members, in
the transaction of the next results. So a query's topic holds exactly its results from `began` on and before `ended`.
Without transactions the topic of members may say more than was committed, and results may be missing. So the next
incarnation undoes what happened after the last commit: a query that ended then runs on until it ends again, and one
that began then, perhaps in place of another of its name, has not begun. A topic holds at least the results that it
should.

The task's next incarnation runs the queries that are written there, on the tuples that they saw (`since`), and looks up
by itself what has been registered since. A query that has ended may still have pending results for lack of memory, and
so may one of the same name that ended before it. These results are produced like others, and delivered late. A task
that has committed offsets but finds no record, not even of its own beginning, refuses to run: without the topic it
cannot know its pending results.

Kafka compacts the topic by key. The record of an ended query has a second key beside its name, which a new query may
take: a *slot*. That is a number, and a later incarnation uses it again if no results of that query are pending when it
starts. So the topic does not grow with every query that comes and goes. Without transactions, a former incarnation
could still write to a slot that is used again, and a query whose end is undone may be followed by another of its name.
There each registration has a single key of its own, with its id.

A new query should see the recent tuples that its windows cover, but the group may have kept less: no tuples that no
query selects, no columns that no query reads, no windows that no query has. If the log still has these tuples, the task
records that the query sees them, commits, and restarts (`RereadNeeded`); its next incarnation reads the longest window
again. If partitions can fall idle, the log does not tell which tuples were late, and the query sees only what the group
has kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from operators.data.watermark import END
from operators.groups.engine import EndedQuery, GroupEngine
from schemas.errors import UsageError
from schemas.messages.control import MemberRecord, RegisteredQuery, encode_control
from schemas.query import Query
from services.delivery.epoch_output import BlockRecord
from services.files.query_files import pick_query
from services.kafka.topics import Lane
from services.process.logs import Log
from services.registry.group_watch import WantedQuery
from services.registry.member_log import BEGAN
from services.task.program import TaskChanges
from services.task.spec import RereadNeeded


@dataclass(frozen=True, slots=True)
class RunningQuery:
    """A query of the group, with its record in the topic of members."""

    member: MemberRecord
    query: Query


class StartingQueries:
    """The queries with which an incarnation of a group's task starts. The engine is made for them.

    Args:
        task: the task's number.
        known: the records that earlier incarnations have written; None if there was none.
        until: the cut of the last commit.
        registered: the registered queries; a task without earlier incarnations starts with those that do not wait.
        delivered_before: event time before which earlier incarnations have delivered all results.

    Attributes:
        running: by name.
        unwritten: records that are still to be written.
        refused: ids of the queries that the group cannot run.
        ended: the queries that ended in earlier incarnations and may have pending results.
        slots: the slots of their records.
    """

    def __init__(
        self,
        task: int,
        known: Iterable[MemberRecord] | None,
        until: int,
        registered: Iterable[WantedQuery],
        delivered_before: int = END,
    ) -> None:
        self.unwritten: list[MemberRecord] = []
        self.refused: set[str] = set()
        self.running: dict[str, RunningQuery] = {}
        self.ended: list[EndedQuery] = []
        self.slots: set[int] = set()
        if known is None:
            self.unwritten.append(MemberRecord(task=task, name=BEGAN, id="", text=""))
            for wanted in registered:
                if wanted.query is not None:
                    member = _begun(task, wanted.message, 0, {})
                    self.running[member.name] = RunningQuery(member, wanted.query)
                    self.unwritten.append(member)
            return
        resumed: list[MemberRecord] = []
        for member in known:
            if member.error:
                self.refused.add(member.id)
            elif member.began is not None and member.began > until:
                self.unwritten.append(msgspec.structs.replace(member, ended=member.began))
            elif member.name != BEGAN:
                if member.ended is not None and member.ended > until:
                    member = msgspec.structs.replace(member, ended=None)
                    resumed.append(member)
                if member.ended is None:
                    self.running[member.name] = RunningQuery(member, _query_of(member))
                elif member.ended > delivered_before:
                    self.ended.append(EndedQuery(_query_of(member), member.since, member.began or 0, member.ended))
                    if isinstance(member.slot, int):
                        self.slots.add(member.slot)
        # Of the records of one name, the last shows whether a query of that name runs.
        self.unwritten += resumed

    @property
    def queries(self) -> tuple[Query, ...]:
        """The queries that run."""
        return tuple(running.query for running in self.running.values())

    @property
    def since(self) -> dict[str, dict[str, int]]:
        """By query and alias, the event time from which on the query sees tuples; see `GroupEngine`."""
        return {name: running.member.since for name, running in self.running.items()}

    @property
    def began(self) -> dict[str, int]:
        """The cut at which each query began."""
        return {name: running.member.began or 0 for name, running in self.running.items()}


class GroupMembers(TaskChanges):
    """The queries of one incarnation of a group's task; used by its thread alone.

    Args:
        engine: the engine, which runs the queries of `start`.
        start: the queries with which the incarnation starts; taken over.
        partitions: of each stream, those that the task reads.
        task: the task's number.
        topic: the group's topic of members.
        wanted: returns the registered queries; called between epochs.
        readable: whether the log still has everything from the given offsets on.
        transactional: whether nobody else can write to the topic for this task.
    """

    # Queries begin and end only between epochs.
    looks_within_epochs = False

    def __init__(
        self,
        engine: GroupEngine,
        start: StartingQueries,
        partitions: Mapping[str, Sequence[int]],
        *,
        task: int,
        topic: str,
        wanted: Callable[[], tuple[WantedQuery, ...]],
        readable: Callable[[Mapping[Lane, int]], bool],
        transactional: bool,
        log: Log,
    ) -> None:
        self._engine = engine
        self._slots = start.slots
        self._transactional = transactional
        self._running = start.running
        self._unwritten = start.unwritten
        self._refused = start.refused
        self._partitions = partitions
        self._task = task
        self._topic = topic
        self._wanted = wanted
        self._readable = readable
        self._log = log
        self._reread_for = ""
        self._seen: tuple[WantedQuery, ...] | None = None

    @property
    def queries(self) -> tuple[Query, ...]:
        """The queries that run."""
        return tuple(running.query for running in self._running.values())

    def look(self, committed: float, now: float) -> None:
        """Begin registered queries and end dropped ones. Those that wait do not begin, and none ends for them.

        Raises:
            RereadNeeded: the task must restart; its changes were committed at the end of the last epoch.
        """
        if self._reread_for:
            raise RereadNeeded(f"query {self._reread_for!r} sees tuples that are to be read again")
        wanted = self._wanted()
        if wanted is self._seen:
            return
        self._seen = wanted
        named = {registered.message.name: registered for registered in wanted}
        for name, running in list(self._running.items()):
            registered = named.get(name)
            # One that waits is not ready to take the place of another.
            if registered is None or (registered.query is not None and registered.message.id != running.member.id):
                self._end(name)
        for registered in wanted:
            message, query = registered.message, registered.query
            if query is not None and message.name not in self._running and message.id not in self._refused:
                self._begin(message, query)

    def limit(self, watermark: int, now: float) -> int:
        """The watermark; the present cut if the task must restart."""
        return self._engine.cut if self._reread_for else watermark

    @property
    def must_commit(self) -> bool:
        """Whether a change has not been written yet."""
        return bool(self._unwritten)

    def records(self) -> list[BlockRecord]:
        """The changes since the last call, as records for the next transaction."""
        unwritten, self._unwritten = self._unwritten, []
        records: list[BlockRecord] = []
        for member in unwritten:
            keys = [f"{self._task}/{member.name}" if self._transactional else f"{self._task}/{member.name}/{member.id}"]
            if isinstance(member.slot, int):
                keys.append(f"{self._task}//{member.slot}")  # no query's name is empty
            records += [BlockRecord(self._topic, 0, encode_control(member), 0, key.encode()) for key in keys]
        return records

    def _end(self, name: str) -> None:
        """End a query; with transactions, the first slot that is free is its record's."""
        self._engine.drop(name)
        ended = self._running.pop(name)
        slot: int | msgspec.UnsetType = msgspec.UNSET
        if self._transactional:
            slot = next(number for number in itertools.count() if number not in self._slots)
            self._slots.add(slot)
        self._unwritten.append(msgspec.structs.replace(ended.member, ended=self._engine.cut, slot=slot))
        self._log.info("query ended", name=name, event_time=self._engine.cut)

    def _begin(self, message: RegisteredQuery, query: Query) -> None:
        try:
            since = self._engine.add(query, from_now=message.from_now)
        except UsageError as error:
            self._refused.add(message.id)
            self._unwritten.append(msgspec.structs.replace(_member(self._task, message), error=str(error)))
            self._log.error("query left out", name=message.name, reason=str(error))
            return
        if not message.from_now:
            since = self._extended_since(query, since)
        member = _begun(self._task, message, self._engine.cut, since)
        self._running[message.name] = RunningQuery(member, query)
        self._unwritten.append(member)
        self._log.info("query begun", name=message.name, event_time=self._engine.cut, since=since)

    def _extended_since(self, query: Query, since: dict[str, int]) -> dict[str, int]:
        """What a new query sees: what the group has kept or, if the log can be read again and has more, that."""
        replayable = self._engine.replayable_since(query)
        most = {alias: min(ts, replayable[alias]) for alias, ts in since.items() if alias in replayable}
        if most == since or not self._readable(self._replay_offsets(query)):
            return since
        self._reread_for = query.name
        return most

    def _replay_offsets(self, query: Query) -> dict[Lane, int]:
        """The offsets from which the log would be read again for a query."""
        engine = self._engine
        return {
            (stream.topic, number): engine.replay_point(stream.name, number, engine.horizon(stream.name)).offset
            for stream in query.streams()
            for number in self._partitions[stream.name]
        }


def _query_of(member: MemberRecord) -> Query:
    return pick_query(member.text, member.pick, f"query {member.name}, which the group runs,")


def _begun(task: int, message: RegisteredQuery, cut: int, since: dict[str, int]) -> MemberRecord:
    return msgspec.structs.replace(_member(task, message), began=cut, since=since)


def _member(task: int, message: RegisteredQuery) -> MemberRecord:
    return MemberRecord(task=task, name=message.name, id=message.id, text=message.text, pick=message.pick)
