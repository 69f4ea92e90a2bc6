"""Feeds a `LiveQuery` with what the tasks of a query publish on Kafka: `QueryFollower`.

Kafka keeps a day of what tasks publish every half minute, and ten minutes of what they publish every second. Both are
read at the start; from then on the history grows for as long as the process runs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from schemas.errors import BrokerError, StateError
from schemas.messages.control import (
    ControlMessage,
    Decision,
    GroupTaskStatistics,
    Measured,
    TaskHealth,
    TaskStatistics,
    decode_control,
)
from services.kafka.log_consumer import LogBatch, LogFollower, position_of
from services.kafka.topics import ControlTopics, TopicAdmin
from services.process.security import KafkaClients
from services.ui.watch.live import STATISTICS_MS, LiveQuery

POLL_S = 0.2

LOOK_S = 5.0
"""How often the topic of decisions is looked for while it is missing."""


class QueryFollower:
    """Follows the topics of a consumer group in threads.

    Args:
        group: the consumer group of the query's workers.
        live: is fed.
    """

    def __init__(self, clients: KafkaClients, group: str, live: LiveQuery) -> None:
        self._clients = clients
        self._live = live
        self._topics = topics = ControlTopics.of(group)
        self._past = LogFollower(clients, topics.history, "history", self._take_past, poll_s=POLL_S)
        self._now = LogFollower(clients, topics.statistics, "statistics", self._follow, poll_s=POLL_S)
        self._admin = TopicAdmin(clients)
        self._decided: LogFollower | None = None
        self._looks_s = 0.0
        self._seam_ms = 0

    def start(self) -> QueryFollower:
        """Start to read: first the past, then what is published now."""
        self._past.start()
        return self

    def close(self) -> None:
        """Stop reading."""
        # Each one's thread may start the next one.
        self._past.close()
        self._now.close()
        if self._decided is not None:
            self._decided.close()

    def _take_past(self, batch: LogBatch) -> None:
        """Take what the statistics topic has no more, to its end; then follow that one."""
        self._seam_ms = self._seam_ms or self._live.clock_ms() - STATISTICS_MS
        for message in _decoded(batch):
            if isinstance(message, TaskStatistics | GroupTaskStatistics) and message.sent_ms < self._seam_ms:
                self._live.take(message)
        # A worker from before there was a history has not made the topic.
        if (batch.at_end or batch.problem) and not self._past.stopped:
            self._seam_ms = 0 if batch.problem else self._seam_ms
            self._past.stop()
            self._now.start()

    def _follow(self, batch: LogBatch) -> None:
        self._live.problem = batch.problem
        self._take(batch)
        if self._decided is None and time.monotonic() >= self._looks_s:
            self._follow_decisions()

    def _follow_decisions(self) -> None:
        """Follow the decisions, too, once their topic is there: no worker may ever adapt the plan."""
        self._looks_s = time.monotonic() + LOOK_S
        topic = self._topics.decisions
        with contextlib.suppress(BrokerError):
            if self._admin.exists(topic) and not self._now.stopped:
                self._decided = LogFollower(self._clients, topic, "decisions", self._take, poll_s=POLL_S)
                self._decided.start()

    def _take(self, batch: LogBatch) -> None:
        for message in _decoded(batch):
            if isinstance(message, TaskStatistics | GroupTaskStatistics):
                if message.sent_ms >= self._seam_ms:
                    self._live.take(message)
            elif isinstance(message, TaskHealth | Decision | Measured):
                self._live.take(message)


def _decoded(batch: LogBatch) -> Iterator[ControlMessage]:
    for record in batch.records:
        with contextlib.suppress(StateError):  # damaged, or another program's
            yield decode_control(record.value(), position_of(record))
