"""Serves the pages of all registered queries and groups of a Kafka cluster, with an overview: `serve_cluster`.

The overview follows the newest statistics of all of them with one consumer. A query is followed with its history once
its page is opened, and for as long as it is among the MOST_OPEN that were opened last.
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

POLL_S = 0.5
MESSAGES = 1_000


@dataclass(frozen=True, slots=True)
class _Registered:
    """A registered query or group.

    Attributes:
        name: in the registry.
        entry: of a group; None of a query.
        query: None of a group.
        live: its newest statistics.
    """

    name: str
    entry: GroupEntry | None
    query: Query | None
    live: LiveQuery

    @property
    def group(self) -> str:
        """The consumer group of its workers, unless these have a --group of their own."""
        return f"weir-{self.name if self.query is None else self.query.name}"

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
        self._open: OrderedDict[str, tuple[Page, ExitStack]] = OrderedDict()
        self._assigned: dict[str, _Registered] = {}
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
            if name not in self._open:
                stack = ExitStack()
                if one.query is None:
                    page = stack.enter_context(group_page(self._clients, name, one.group))
                else:
                    options = replace(self._options, query=(name,))
                    page = stack.enter_context(query_page(self._clients, one.query, one.group, options))
                self._open[name] = page, stack
            self._open.move_to_end(name)
            while len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)[1][1].close()
            return self._open[name][0]

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
        there = consumer.list_topics(timeout=10).topics
        topics = {ControlTopics.of(one.group).statistics: one for one in found.values()}
        topics = {topic: one for topic, one in topics.items() if topic in there}
        if topics.keys() != self._assigned.keys():
            known = {one.topic: one.offset for one in consumer.position(consumer.assignment())}
            consumer.assign([TopicPartition(t, 0, max(known.get(t, OFFSET_END), OFFSET_END)) for t in topics])
        self._assigned = topics

    def _known(self, name: str, entry: GroupEntry | None = None, query: Query | None = None) -> _Registered:
        """Return it with what has been seen of it."""
        known = self._registered.get(name)
        same = known is not None and known.query == query
        live = known.live if known is not None and same else LiveQuery(name if query is None else query.name)
        return _Registered(name, entry, query, live)

    def _read(self, consumer: LogConsumer) -> None:
        for record in consumer.consume(MESSAGES, POLL_S):
            one = self._assigned.get(record.topic() or "")
            if record.error() is not None or one is None:
                continue
            try:
                message = decode_control(record.value(), position_of(record))
            except StateError:
                continue  # damaged, or another program's
            if isinstance(message, TaskStatistics | GroupTaskStatistics | TaskHealth):
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
