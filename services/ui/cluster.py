"""Serves the pages of all registered queries and groups of a Kafka cluster, with an overview: `serve_cluster`.

The overview follows the newest statistics of all consumer groups with one consumer. They name their query, so a query
whose workers have a `--group` of their own is found, too. A query is followed with its history once its page is opened,
and for as long as it is among the MOST_OPEN that were opened last.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from confluent_kafka import OFFSET_END, KafkaException, TopicPartition

from schemas.errors import StateError, UsageError
from schemas.messages.control import (
    GroupTaskStatistics,
    RegisteredQuery,
    TaskHealth,
    TaskStatistics,
    decode_control,
)
from schemas.query import Query
from services.files.query_files import pick_query
from services.kafka.log_consumer import LogConsumer, log_consumer, position_of
from services.kafka.topics import ControlTopics
from services.process.security import KafkaClients
from services.registry.group_registry import GroupEntry, groups_of
from services.registry.query_registry import newest
from services.ui.documents.picture import Document
from services.ui.options import PageOptions
from services.ui.serve import group_page, query_page
from services.ui.server import Page, PageServer
from services.ui.watch.live import LiveQuery

MOST_OPEN = 16
LOOK_S = 5.0
"""How often the registry is read."""

SILENT_S = 10.0
"""The workers of another group count as those of a query once the former ones have been silent for so long."""

_STATISTICS = ControlTopics.of("").statistics
"""How the names of the topics end."""

POLL_S = 0.5
MESSAGES = 1_000


@dataclass(slots=True)
class _Registered:
    """A registered query or group.

    Attributes:
        name: in the registry.
        entry: of a group; None of a query.
        query: None of a group.
        group: the consumer group of its workers.
        live: its newest statistics.
        heard_s: when it has last reported.
    """

    name: str
    entry: GroupEntry | None
    query: Query | None
    group: str
    live: LiveQuery
    heard_s: float = float("-inf")

    @property
    def reports_as(self) -> str:
        """The name in its workers' statistics."""
        return self.name if self.query is None else self.query.name

    def document(self) -> Document:
        """Return its line in the overview."""
        head = self.live.snapshot().headline
        if self.query is not None:
            about = f"results in topic {self.query.sink}" if self.query.sink else ""
        else:
            about = f"a group of {0 if self.entry is None else len(self.entry.queries)} queries"
        headline = {"tone": head.tone, "reached": head.reached, "held": head.held}
        return {"name": self.name, "about": about, "headline": headline}


class Cluster:
    """All registered queries and groups. Methods may be called from any thread."""

    def __init__(self, clients: KafkaClients, options: PageOptions) -> None:
        self._clients = clients
        self._options = options
        self._lock = threading.Lock()
        self._registered: dict[str, _Registered] = {}
        self._open: OrderedDict[tuple[str, str], tuple[Page, ExitStack]] = OrderedDict()
        self._problem = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="cluster", daemon=True)

    def start(self) -> Cluster:
        """Start to follow."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop following, and close all pages."""
        self._ended.set()
        self._thread.join()
        with self._lock:
            for _, stack in self._open.values():
                stack.close()
            self._open.clear()

    def overview(self) -> Document:
        """Return what is registered, with each one's headline."""
        with self._lock:
            registered = list(self._registered.values())
        return {"problem": self._problem, "queries": [one.document() for one in registered]}

    def find(self, name: str) -> Page | None:
        """Return the page of a query or group, which is opened if it is not; None if nothing has that name."""
        with self._lock:
            one = self._registered.get(name)
            if one is None:
                return None
            key = name, one.group
            if key not in self._open:
                stack = ExitStack()
                if one.query is None:
                    page = stack.enter_context(group_page(self._clients, name, one.group, self._options))
                else:
                    options = replace(self._options, query=(name,))
                    page = stack.enter_context(query_page(self._clients, one.query, one.group, options))
                self._open[key] = page, stack
            self._open.move_to_end(key)
            while len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)[1][1].close()
            return self._open[key][0]

    def _follow(self) -> None:
        consumer, looked_s = log_consumer(self._clients, "weir.overview"), float("-inf")
        try:
            while not self._ended.is_set():
                try:
                    if time.monotonic() >= looked_s + LOOK_S:
                        looked_s = time.monotonic()
                        self._look(consumer)
                    self._read(consumer)
                    self._problem = ""
                except (KafkaException, RuntimeError, StateError, OSError) as error:
                    self._problem = str(error)
                    self._ended.wait(POLL_S)
        finally:
            consumer.close()

    def _look(self, consumer: LogConsumer) -> None:
        """Read the registry, and follow the statistics of what is there."""
        messages = newest(self._clients)
        found = {name: self._known(name, entry=entry) for name, entry in groups_of(messages).items()}
        for name, message in messages.items():
            if isinstance(message, RegisteredQuery) and not message.group:
                try:
                    query = pick_query(message.text, message.pick, f"registered query {name}")
                except UsageError:
                    continue  # of another version
                found[name] = self._known(name, query=query)
        with self._lock:
            self._registered = dict(sorted(found.items()))
        topics = {topic for topic in consumer.list_topics(timeout=10).topics if topic.endswith(_STATISTICS)}
        known = {one.topic: one.offset for one in consumer.position(consumer.assignment())}
        if topics != known.keys():
            consumer.assign([TopicPartition(t, 0, max(known.get(t, OFFSET_END), OFFSET_END)) for t in topics])

    def _known(self, name: str, entry: GroupEntry | None = None, query: Query | None = None) -> _Registered:
        """Return it with what has been seen of it."""
        known = self._registered.get(name)
        if known is not None and known.query == query:
            return replace(known, entry=entry)
        reports_as = name if query is None else query.name
        return _Registered(name, entry, query, f"weir-{reports_as}", LiveQuery(reports_as))

    def _read(self, consumer: LogConsumer) -> None:
        for record in consumer.consume(MESSAGES, POLL_S):
            if record.error() is not None:
                continue
            try:
                message = decode_control(record.value(), position_of(record))
            except StateError:
                continue  # damaged, or another program's
            if isinstance(message, TaskStatistics | GroupTaskStatistics | TaskHealth):
                self._take(message, record.topic() or "")

    def _take(self, message: TaskStatistics | GroupTaskStatistics | TaskHealth, topic: str) -> None:
        now = time.monotonic()
        for one in self._registered.values():
            if one.reports_as != message.query:
                continue
            if ControlTopics.of(one.group).statistics != topic:
                if now < one.heard_s + SILENT_S:
                    continue
                one.group, one.live = topic.removesuffix(_STATISTICS), LiveQuery(one.reports_as)
            one.heard_s = now
            one.live.take(message)


@contextmanager
def serve_cluster(clients: KafkaClients, options: PageOptions) -> Iterator[PageServer]:
    """Serve the overview and the pages while the context lasts.

    Raises:
        WeirError: the port cannot be opened.
    """
    cluster = Cluster(clients, options).start()
    try:
        with PageServer(
            options.bind,
            options.port,
            cluster.find,
            options.names,
            overview=cluster.overview,
            changes=options.changes,
        ) as server:
            yield server
    finally:
        cluster.close()
