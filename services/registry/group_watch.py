"""What a group's worker is to run, as the registry says now: followed by a thread of its own while the worker runs.

A query is wanted when all that can fail beside a task is done: its text is bound, its output topic is there. One that
cannot be read is reported once and left out; what Kafka refuses is tried again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError

from schemas.errors import BrokerError, NewerFormatError, UsageError, WeirError
from schemas.messages.control import ControlMessage, RegisteredQuery
from schemas.query import Query
from services.files.query_files import pick_query
from services.kafka.log_consumer import LogReader
from services.kafka.topics import REGISTRY, OutputTopics, TopicAdmin
from services.process.logs import get_log
from services.process.security import KafkaClients
from services.process.settings import Guarantee, Placement, WorkerSettings
from services.registry.group_registration import check_group_queries
from services.registry.group_registry import groups_of
from services.registry.query_registry import fold, key_of

POLL_S = 0.2
"""How soon a change of the registry is seen, about."""

BEGIN_S = 60.0
"""How long reading the registry may take at the start."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A registered query, ready to run."""

    message: RegisteredQuery
    query: Query


def check_group_settings(settings: WorkerSettings) -> None:
    """Refuse what a group cannot do.

    Raises:
        UsageError: the message says why.
    """
    if settings.guarantee is not Guarantee.EXACTLY_ONCE:
        raise UsageError(
            f"--guarantee {settings.guarantee} with a group: when a query has begun is written in one transaction with "
            f"its results; use --guarantee {Guarantee.EXACTLY_ONCE}"
        )
    for given, option, why in (
        (settings.plan is not None, "--plan", "its queries share an operator that has no join order"),
        (
            settings.placement is not Placement.FUSED,
            "--placement",
            "its queries share an operator, which is in one task",
        ),
        (settings.jit, "--jit on", "only weir run has feedback between the streams of a shared operator"),
    ):
        if given:
            raise UsageError(f"{option} is not for a group: {why}")


class GroupWatch:
    """Follows one group.

    Args:
        streams: the group's declared streams, as one query.
        topics: where the group writes; gets the topics of queries that come.
        tasks: how many write to each.

    Attributes:
        wanted: replaced, never changed: any thread may read it. None until the registry has been read once.
        refused: a newer Weir has registered something; nothing more is read then.
    """

    def __init__(
        self, clients: KafkaClients, streams: Query, topics: OutputTopics, tasks: int, replication: int
    ) -> None:
        self.wanted: tuple[Wanted, ...] | None = None
        self.refused: NewerFormatError | None = None
        self._streams = streams
        self._topics = topics
        self._tasks = tasks
        self._replication = replication
        self._admin = TopicAdmin(clients)
        self._log = get_log("group", group=streams.name)
        self._known: dict[str, ControlMessage] = {}
        self._ready: dict[str, Wanted] = {}
        self._refused: set[str] = set()
        self._stale = False
        self._stop = threading.Event()
        self._begun = threading.Event()
        self._reader = LogReader(clients, REGISTRY)
        self._thread = threading.Thread(target=self._run, name="group", daemon=True)

    def start(self) -> GroupWatch:
        """Begin to follow; returns when all that is registered now is known.

        Raises:
            BrokerError: Kafka does not answer.
            NewerFormatError: a newer Weir has registered something.
        """
        self._thread.start()
        if not self._begun.wait(BEGIN_S):
            self.close()
            raise BrokerError(f"topic {REGISTRY} could not be read within {BEGIN_S:g} s")
        if self.refused is not None:
            self.close()
            raise self.refused
        return self

    def close(self) -> None:
        """Follow no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._reader.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            messages = self._reader.read(POLL_S)
            at_end = False
            for message in messages:
                error = message.error()
                if error is not None:
                    at_end = at_end or error.code() == KafkaError._PARTITION_EOF
                    continue
                try:
                    fold(self._known, message, message.offset() or 0)
                except NewerFormatError as problem:
                    if key_of(message).startswith(f"{self._streams.name}/"):
                        self.refused = problem
                        self._begun.set()
                        return
                except WeirError as problem:
                    self._log.warning("registered query passed over", reason=str(problem))
                self._stale = True
            if self._stale and (at_end or not messages):
                self._look()
            if at_end and (not self._stale or self.wanted is not None):
                self.wanted = self.wanted or ()
                self._begun.set()

    def _look(self) -> None:
        """Make ready what is registered."""
        name = self._streams.name
        entry = groups_of(self._known).get(name)
        queries: Mapping[str, RegisteredQuery] = {} if entry is None else entry.queries
        ready = {one.id: self._ready[one.id] for one in queries.values() if one.id in self._ready}
        for query in queries.values():
            if query.id in ready or query.id in self._refused:
                continue
            try:
                ready[query.id] = self._made_ready(query)
            except UsageError as problem:
                self._refused.add(query.id)
                self._log.error("query left out", name=query.name, reason=str(problem))
            except BrokerError as problem:
                self._log.warning("query waits for its topic", name=query.name, reason=str(problem))
                return  # still stale: tried again
        self._ready = ready
        self._stale = False
        self.wanted = tuple(ready[query.id] for query in queries.values() if query.id in ready)

    def _made_ready(self, message: RegisteredQuery) -> Wanted:
        query = pick_query(message.text, message.pick, f"query {message.name} of group {message.group}")
        check_group_queries(message.group, self._streams.streams(), [query])
        assert query.sink is not None, "checked"
        self._admin.add_output(self._topics, query.sink, self._tasks, self._replication)
        return Wanted(message, query)
