"""Which queries a group's task runs: those that are registered, from a cut on that it chooses and writes down.

A query begins and ends between two epochs, at the event time that the task has come to. That is written to the
group's topic of members in the transaction of the next results, so what a query's topic holds is exactly its results
from `began` on, and before `ended`. The task's next life runs what is written there, of the tuples that it saw
(`since`), and finds by itself what has been registered since. A query that has ended may be owed results for want of
memory, and so may one of the same name that ended before it: these are found as others' are, and given late. A task
that has committed offsets and finds nothing written, not even that it began, does not go on: without the topic it
cannot know what it owes.

A new query is to see what its windows hold of the past, and the group may have kept less: no tuples that nobody
selects, no columns that nobody reads, no windows that nobody has. As long as the log has them, the task writes down
that the query sees them, commits, and begins anew (`Again`): its next life reads the longest window again. Where
partitions can fall idle, what was late then is not in the log, and the query sees what the group has kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from operators.groups.engine import Gone, GroupEngine
from schemas.errors import UsageError
from schemas.messages.control import Member, encode_control
from schemas.query import Query
from services.delivery.epoch_output import BlockRecord
from services.files.query_files import pick_query
from services.kafka.topics import Lane as Place
from services.process.logs import Log
from services.registry.group_watch import Wanted
from services.registry.member_log import BEGAN
from services.task.spec import Again


@dataclass(frozen=True, slots=True)
class Running:
    """A query that runs."""

    member: Member
    query: Query


class GroupMembers:
    """One life of a group's task; used by its thread alone.

    Args:
        known: what earlier lives have written; None where there was none.
        wanted: what is registered now; called between epochs.
        readable: whether the log still has everything from these offsets on.

    Attributes:
        version, doubted: a group has no plan to change, and no other life in the log (see
            `services.task.query_program.Changes`).
    """

    version = 0
    doubted = False

    def __init__(
        self,
        task: int,
        topic: str,
        known: Iterable[Member] | None,
        wanted: Callable[[], tuple[Wanted, ...]],
        readable: Callable[[Mapping[Place, int]], bool],
        log: Log,
    ) -> None:
        self._task = task
        self._topic = topic
        self._wanted = wanted
        self._readable = readable
        self._log = log
        self._again = ""
        self._partitions: Mapping[str, Sequence[int]] = {}
        self._seen: tuple[Wanted, ...] | None = None
        self._unsaid: list[Member] = []
        self._refused: set[str] = set()
        self._running: dict[str, Running] = {}
        # Those that ended in an earlier life.
        self._ended: list[Running] = []
        self._engine: GroupEngine | None = None
        if known is None:
            self._unsaid.append(Member(task=task, name=BEGAN, id="", text=""))
            for one in wanted():
                self._begun(one, 0, {})
            return
        for member in known:
            if member.error:
                self._refused.add(member.id)
            elif member.name != BEGAN:
                query = pick_query(member.text, member.pick, f"query {member.name}, which the group runs,")
                one = Running(member, query)
                if member.ended is None:
                    self._running[member.name] = one
                else:
                    self._ended.append(one)

    @property
    def queries(self) -> tuple[Query, ...]:
        """What runs."""
        return tuple(one.query for one in self._running.values())

    @property
    def since(self) -> dict[str, dict[str, int]]:
        """What each of them sees; see `GroupEngine`."""
        return {name: one.member.since for name, one in self._running.items()}

    @property
    def began(self) -> dict[str, int]:
        """At which cut each of them began."""
        return {name: one.member.began or 0 for name, one in self._running.items()}

    def gone(self, settled: int) -> list[Gone]:
        """Those that ended in earlier lives, which gave all results of before an event time, and may be owed more."""
        return [
            Gone(one.query, one.member.since, one.member.began or 0, one.member.ended)
            for one in self._ended
            if one.member.ended is not None and one.member.ended > settled
        ]

    def attach(self, engine: GroupEngine, partitions: Mapping[str, Sequence[int]]) -> None:
        """Change this engine from here on, which runs `queries` over these partitions of streams."""
        self._engine = engine
        self._partitions = partitions

    def glance(self, committed: float, now: float) -> None:
        """Nothing: queries come and go between epochs."""

    def look(self, committed: float, now: float) -> None:
        """Begin and end what has been registered and dropped.

        Raises:
            Again: the task is to begin anew; what it has changed was committed at the end of the last epoch.
        """
        if self._again:
            raise Again(f"query {self._again!r} sees tuples that are to be read again")
        wanted = self._wanted()
        if wanted is self._seen:
            return
        self._seen = wanted
        ids = {one.message.id for one in wanted}
        for name in [name for name, one in self._running.items() if one.member.id not in ids]:
            self._end(name)
        for one in wanted:
            if one.message.name not in self._running and one.message.id not in self._refused:
                self._begin(one)

    def limit(self, watermark: int, now: float) -> int:
        """As far as the watermark; no further where the task is to begin anew."""
        return self._of.cut if self._again else watermark

    def ended(self, cut: int) -> bool:
        """Never."""
        return False

    def conclude(self, now: float) -> None:
        """Nothing: it never ends by itself."""

    @property
    def owes(self) -> bool:
        """Whether something has changed that is not written yet."""
        return bool(self._unsaid)

    def records(self) -> list[BlockRecord]:
        """What has changed since the last time, to be written in the next transaction."""
        unsaid, self._unsaid = self._unsaid, []
        said: list[BlockRecord] = []
        for one in unsaid:
            # What has ended is told beside who comes with its name: it may be owed something.
            keys = [f"{self._task}/{one.name}"] + ([] if one.ended is None else [f"{self._task}/{one.name}/{one.id}"])
            said += [BlockRecord(self._topic, 0, encode_control(one), 0, key.encode()) for key in keys]
        return said

    @property
    def _of(self) -> GroupEngine:
        assert self._engine is not None, "attached before anything is looked at"
        return self._engine

    def _end(self, name: str) -> None:
        self._of.drop(name)
        gone = self._running.pop(name)
        self._unsaid.append(msgspec.structs.replace(gone.member, ended=self._of.cut))
        self._log.info("query ended", name=name, event_time=self._of.cut)

    def _begin(self, one: Wanted) -> None:
        try:
            since = self._of.add(one.query, from_now=one.message.from_now)
        except UsageError as error:
            self._refused.add(one.message.id)
            self._unsaid.append(msgspec.structs.replace(self._member(one), error=str(error)))
            self._log.error("query left out", name=one.message.name, reason=str(error))
            return
        if not one.message.from_now:
            since = self._seeing_more(one, since)
        self._begun(one, self._of.cut, since)
        self._log.info("query begun", name=one.message.name, event_time=self._of.cut, since=since)

    def _seeing_more(self, one: Wanted, since: dict[str, int]) -> dict[str, int]:
        """What a query sees that may be read again, if that is more than what it sees of what is held."""
        past = self._of.past(one.query)
        most = {alias: min(ts, past[alias]) for alias, ts in since.items() if alias in past}
        if most == since or not self._readable(self._places(one.query)):
            return since
        self._again = one.message.name
        return most

    def _places(self, query: Query) -> dict[Place, int]:
        """Where the log is read again for a query."""
        return {
            (stream.topic, number): self._of.replay_point(stream.name, number, self._of.horizon(stream.name)).offset
            for stream in query.streams()
            for number in self._partitions[stream.name]
        }

    def _begun(self, one: Wanted, cut: int, since: dict[str, int]) -> None:
        member = msgspec.structs.replace(self._member(one), began=cut, since=since)
        self._running[one.message.name] = Running(member, one.query)
        self._unsaid.append(member)

    def _member(self, one: Wanted) -> Member:
        message = one.message
        return Member(task=self._task, name=message.name, id=message.id, text=message.text, pick=message.pick)
