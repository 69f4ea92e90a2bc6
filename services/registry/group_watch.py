"""`GroupWatch` follows the registry in a thread while a group's worker runs: which queries should the worker run now?

A query is wanted when everything that can fail outside a task is done: its text is bound, its output topic exists,
and the schema of its results is registered where their format has one. A query whose text cannot be read is logged
once and left out. A request that Kafka refuses is tried again.
"""

from __future__ import annotations

import threading
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
"""How long reading the registry may take at the start."""


@dataclass(frozen=True, slots=True)
class WantedQuery:
    """A registered query, ready to run."""

    message: RegisteredQuery
    query: Query


class GroupWatch:
    """Follows one group.

    Args:
        streams: the group's declared streams, as one query.
        topics: where the group writes; the topics of new queries are added to it.
        tasks: how many tasks write to each topic.
        encoders: of results; is told of new queries.

    Attributes:
        wanted: the queries to run. Replaced, never changed: any thread may read it. None until the registry has been
            read once.
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
        self._stale = False
        self._waiting = ""
        self._begun = threading.Event()
        self._follower = LogFollower(clients, REGISTRY, "group", self._take, poll_s=POLL_S)

    def start(self) -> GroupWatch:
        """Start to follow; returns when everything that is registered now is known.

        Raises:
            BrokerError: Kafka does not answer.
            NewerFormatError: a newer Weir has registered something.
        """
        self._follower.start()
        if not self._begun.wait(BEGIN_S):
            self.close()
            raise BrokerError(self._waiting or f"topic {REGISTRY} could not be read within {BEGIN_S:g} s")
        if self.refused is not None:
            self.close()
            raise self.refused
        return self

    def close(self) -> None:
        """Stop following."""
        self._follower.close()

    def _take(self, batch: LogBatch) -> None:
        """Fold what has been read, and prepare the queries once it seems complete."""
        for message in batch.records:
            try:
                fold(self._known, message)
            except NewerFormatError as problem:
                if key_of(message).startswith(f"{self._streams.name}/"):
                    self.refused = problem
                    self._begun.set()
                    self._follower.stop()
                    return
            except WeirError as problem:
                self._log.warning("registered query passed over", reason=str(problem))
            self._stale = True
        if self._stale and (batch.at_end or not batch):
            self._update()
        if batch.at_end and (not self._stale or self.wanted is not None):
            self.wanted = self.wanted or ()
            self._begun.set()

    def _update(self) -> None:
        """Prepare all registered queries and set `wanted`."""
        name = self._streams.name
        entry = groups_of(self._known).get(name)
        queries: Mapping[str, RegisteredQuery] = {} if entry is None else entry.queries
        ready = {query.id: self._ready[query.id] for query in queries.values() if query.id in self._ready}
        for query in queries.values():
            if query.id in ready or query.id in self._refused:
                continue
            try:
                ready[query.id] = self._prepare(query)
            except UsageError as problem:
                self._refused.add(query.id)
                self._log.error("query left out", name=query.name, reason=str(problem))
            except BrokerError as problem:
                if self._waiting != (waiting := f"query {query.name} waits: {problem}"):
                    self._waiting = waiting
                    self._log.warning("query waits for its topic or schema", name=query.name, reason=str(problem))
                return  # still stale: tried again
        self._ready, self._waiting = ready, ""
        self._stale = False
        self.wanted = tuple(ready[query.id] for query in queries.values() if query.id in ready)

    def _prepare(self, message: RegisteredQuery) -> WantedQuery:
        query = pick_query(message.text, message.pick, f"query {message.name} of group {message.group}")
        check_group_queries(message.group, self._streams.streams(), [query])
        check_partitions(message.group, {column.alias: column for column in self._streams.partition_by}, [query])
        assert query.sink is not None, "checked"
        self._encoders.prepare(query)
        keyed = bool(query.result_format.key)
        self._admin.add_output(self._topics, query.sink, self._tasks, self._replication, spread=keyed)
        return WantedQuery(message, query)
