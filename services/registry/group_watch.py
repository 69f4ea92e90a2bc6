"""`GroupWatch` follows the registry in a thread while a group's worker runs: which queries should the worker run now?

A query is ready when everything that can fail outside a task is done: its text is bound, its output topic exists, and
the schema of its results is registered where their format has one. A query that cannot be made ready, because of its
text or since the schema registry refuses it, is logged once and left out: it does not begin here, but where it runs it
is not ended, since it is still registered. A query whose topic or schema cannot be had now waits, and is tried again;
the others do not wait for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from schemas.errors import BrokerError, NewerFormatError, UsageError, WeirError
from schemas.messages.control import ControlMessage, RegisteredQuery
from schemas.query import Query
from services.files.query_files import pick_query
from services.formats.encoders import Encoders
from services.kafka.log_consumer import LogBatch, LogFollower
from services.kafka.topics import REGISTRY, OutputTopics, TopicAdmin
from services.process.logs import get_log
from services.process.security import KafkaClients
from services.registry.group_registration import check_group_queries, check_partitions
from services.registry.group_registry import groups_of
from services.registry.query_registry import fold, key_of

POLL_S = 0.2
"""About how soon a change of the registry is noticed."""

BEGIN_S = 60.0
"""How long reading the registry, and waiting for the topics and schemas of its queries, may take at the start."""

CATCH_UP_S = 30.0
"""How long a task that is opened waits until the registry has been read."""

RETRY_S = 1.0
"""How soon a query that waits is tried again."""


@dataclass(frozen=True, slots=True)
class WantedQuery:
    """A registered query.

    Attributes:
        query: it, ready to run; None while it waits for its topic or the schema of its results, and if it is left out.
    """

    message: RegisteredQuery
    query: Query | None


@dataclass(frozen=True, slots=True)
class _Wait:
    """A query that waits: why, and from when on it is tried again."""

    problem: str
    until_s: float


class GroupWatch:
    """Follows one group.

    Args:
        streams: the group's declared streams, as one query.
        topics: where the group writes; the topics of new queries are added to it.
        tasks: how many tasks write to each topic.
        encoders: of results; is told of new queries.

    Attributes:
        wanted: the queries to run, also those that wait or are left out. Replaced, never changed: any thread may read
            it. None until the registry has been read once.
        refused: set when a newer Weir has registered something for this group; then reading ends.
    """

    def __init__(
        self,
        clients: KafkaClients,
        streams: Query,
        topics: OutputTopics,
        tasks: int,
        replication: int,
        encoders: Encoders | None = None,
    ) -> None:
        self.wanted: tuple[WantedQuery, ...] | None = None
        self.refused: NewerFormatError | None = None
        self._streams = streams
        self._topics = topics
        self._tasks = tasks
        self._replication = replication
        self._encoders = encoders or Encoders()
        self._admin = TopicAdmin(clients)
        self._log = get_log("group", group=streams.name)
        self._known: dict[str, ControlMessage] = {}
        self._ready: dict[str, WantedQuery] = {}
        self._refused: set[str] = set()
        self._waits: dict[str, _Wait] = {}
        self._stale = False
        self._read = False
        self._begun = threading.Event()
        self._taken = 0
        self._taken_further = threading.Condition()
        self._follower = LogFollower(clients, REGISTRY, "group", self._take, poll_s=POLL_S)

    def start(self) -> GroupWatch:
        """Start to follow; returns when everything that is registered now is ready, or after `BEGIN_S` if some is.

        Raises:
            BrokerError: Kafka does not answer, or no query is ready.
            NewerFormatError: a newer Weir has registered something.
        """
        self._follower.start()
        if not self._begun.wait(BEGIN_S):
            wanted = self.wanted or ()
            waits = [one for one in wanted if not one.query and one.message.id not in self._refused]
            waiting = f"query {waits[0].message.name} waits: {self._why(waits[0])}" if waits else ""
            if not self._read or not any(one.query for one in wanted):
                self.close()
                raise BrokerError(waiting or f"topic {REGISTRY} could not be read within {BEGIN_S:g} s")
            self._log.warning("the group begins without a query", reason=waiting)
        if self.refused is not None:
            self.close()
            raise self.refused
        return self

    def close(self) -> None:
        """Stop following."""
        self._stop()
        self._follower.close()

    def _stop(self) -> None:
        """Read no more, and let nobody wait for it."""
        self._follower.stop()
        with self._taken_further:
            self._taken_further.notify_all()

    def catch_up(self) -> None:
        """Wait until `wanted` has all that is registered now. Another worker, which ran a task before, may have read of
        more: the task would end queries that have begun, and begin queries that have ended.

        Raises:
            BrokerError: the registry cannot be read now.
        """
        end = self._admin.log_ranges([(REGISTRY, 0)])[REGISTRY, 0][1]
        with self._taken_further:
            self._taken_further.wait_for(lambda: self._taken >= end or self._follower.stopped, CATCH_UP_S)
            if self._taken < end:
                raise BrokerError(f"topic {REGISTRY} has been read up to offset {self._taken}, and it ends at {end}")

    def _take(self, batch: LogBatch) -> None:
        """Fold what has been read, and prepare the queries once it seems complete."""
        for message in batch.records:
            try:
                fold(self._known, message)
            except NewerFormatError as problem:
                if key_of(message).startswith(f"{self._streams.name}/"):
                    self.refused = problem
                    self._begun.set()
                    self._stop()
                    return
            except WeirError as problem:
                self._log.warning("registered query passed over", reason=str(problem))
            self._stale = True
        self._read = self._read or batch.at_end
        if batch.at_end or not batch:
            if self._stale:
                self._update()
            with self._taken_further:
                self._taken = self._follower.position
                self._taken_further.notify_all()
        if self._read and not self._stale:
            self.wanted = self.wanted or ()
            self._begun.set()

    def _update(self) -> None:
        """Prepare the registered queries that are not ready, and set `wanted`.

        At most one fails in a call: each may take seconds, and the registry has to be read meanwhile. So that none is
        forgotten, those come first that have waited the longest.
        """
        entry = groups_of(self._known).get(self._streams.name)
        queries: Mapping[str, RegisteredQuery] = {} if entry is None else entry.queries
        ids = {query.id for query in queries.values()}
        ready = self._ready = {id_: found for id_, found in self._ready.items() if id_ in ids}
        waits = self._waits = {id_: wait for id_, wait in self._waits.items() if id_ in ids}
        missing = [query for query in queries.values() if query.id not in ready and query.id not in self._refused]
        for query in sorted(missing, key=lambda query: waits[query.id].until_s if query.id in waits else 0.0):
            former = waits.get(query.id)
            if former is not None and time.monotonic() < former.until_s:
                break
            try:
                ready[query.id] = self._prepare(query)
            except UsageError as problem:
                self._refused.add(query.id)
                self._log.error("query left out", name=query.name, reason=str(problem))
            except BrokerError as problem:
                waits[query.id] = _Wait(str(problem), time.monotonic() + RETRY_S)
                if former is None or former.problem != str(problem):
                    self._log.warning("query waits for its topic or schema", name=query.name, reason=str(problem))
                break
            waits.pop(query.id, None)
        self._stale = any(query.id not in ready and query.id not in self._refused for query in queries.values())
        wanted = tuple(ready.get(query.id) or WantedQuery(query, None) for query in queries.values())
        if wanted != self.wanted:
            self.wanted = wanted

    def _why(self, waiting: WantedQuery) -> str:
        wait = self._waits.get(waiting.message.id)
        return "it has not been tried" if wait is None else wait.problem

    def _prepare(self, message: RegisteredQuery) -> WantedQuery:
        query = pick_query(message.text, message.pick, f"query {message.name} of group {message.group}")
        check_group_queries(message.group, self._streams.streams(), [query])
        check_partitions(message.group, {column.alias: column for column in self._streams.partition_by}, [query])
        assert query.sink is not None, "checked"
        self._encoders.prepare(query)
        keyed = bool(query.result_format.key)
        self._admin.add_output(self._topics, query.sink, self._tasks, self._replication, spread=keyed)
        return WantedQuery(message, query)
