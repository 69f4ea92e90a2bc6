"""Produces the demonstration's records in the order of their reports: a year within the requested number of seconds.

Records are keyed by airport, and partition p has the records of AIRPORTS[p], in every topic: the co-partitioning that
`PARTITION BY` in flights.sql relies on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ops.demo.flights import AIRPORTS, Feed
from schemas.errors import BrokerError
from schemas.query import Stream
from services.kafka.topics import Lane, TopicAdmin
from services.process.security import KafkaClients

_TICK_S = 0.05
_TIMEOUT_S = 30.0


def lanes_of(topics: Sequence[str]) -> list[Lane]:
    """All partitions of topics that have one per airport."""
    return [(topic, number) for topic in topics for number in range(len(AIRPORTS))]


def create_topics(bootstrap: str, streams: Sequence[Stream]) -> int:
    """Create the topics of the streams where missing, a partition per airport.

    Returns:
        how many records they have already.

    Raises:
        BrokerError: Kafka refuses or does not answer, or a topic has another number of partitions.
    """
    names = [stream.topic for stream in streams]
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    existing = []
    try:
        wanted = [NewTopic(name, len(AIRPORTS), 1) for name in names]
        for name, created in admin.create_topics(wanted, request_timeout=_TIMEOUT_S).items():
            try:
                created.result(_TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise BrokerError(f"topic {name!r} cannot be created: {error.args[0].str()}") from None
                existing.append(name)
        counts = _partition_counts(admin, names)
    except KafkaException as error:
        raise BrokerError(f"no answer from Kafka at {bootstrap}: {error.args[0].str()}") from None
    for name, found in counts.items():
        if found != len(AIRPORTS):
            raise BrokerError(
                f"topic {name!r} has {found} partition(s), the demonstration needs {len(AIRPORTS)}"
            )
    ranges = TopicAdmin(KafkaClients(bootstrap)).log_ranges(lanes_of(existing)) if existing else {}
    return sum(end - first for first, end in ranges.values())


def _partition_counts(admin: AdminClient, names: Sequence[str]) -> dict[str, int]:
    """The partition counts, once every topic is listed with leaders, which is a moment after its creation."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        known = admin.list_topics(timeout=_TIMEOUT_S).topics
        shown = {n: known[n].partitions.values() for n in names if n in known}
        if len(shown) == len(names) and all(p and all(q.leader >= 0 for q in p) for p in shown.values()):
            return {name: len(partitions) for name, partitions in shown.items()}
        if time.monotonic() > deadline:
            raise BrokerError(f"topics {', '.join(names)} do not show up within {_TIMEOUT_S:g} s")
        time.sleep(_TICK_S)


class Replay:
    """Produces all feeds, merged by arrival.

    Attributes:
        total, sent: records to produce, and records given to Kafka so far.
        now_ms: event time that the replay has reached.
        span_ms: the first and the last arrival.
    """

    def __init__(
        self, bootstrap: str, feeds: Sequence[Feed], topics: Mapping[str, str], seconds: float
    ) -> None:
        """Args: `topics` by stream name; `seconds` for the whole replay, 0 for as fast as possible."""
        self.total = sum(len(feed) for feed in feeds)
        self.sent = 0
        self._seconds = seconds
        self._failure = ""
        self._stop = threading.Event()
        arrival = np.concatenate([feed.arrival for feed in feeds])
        order = np.argsort(arrival, kind="stable")
        partition = {airport: number for number, airport in enumerate(AIRPORTS)}
        lanes = [
            (topics[feed.stream], airport.encode(), partition[airport])
            for feed in feeds
            for airport in feed.rows["airport"]
        ]
        values = [value for feed in feeds for value in feed.ndjson()]
        self._arrival = arrival[order]
        self._records = [(values[i], *lanes[i]) for i in order.tolist()]
        self.span_ms = (int(self._arrival[0]), int(self._arrival[-1]))
        self.now_ms = self.span_ms[0]
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": 0,
                "enable.idempotence": True,
                "linger.ms": 20,
                "queue.buffering.max.messages": 1_000_000,
                "delivery.report.only.error": True,
            }
        )

    def run(self) -> None:
        """Produce everything and wait until Kafka has it.

        Raises:
            BrokerError: a record was not delivered.
        """
        began = time.monotonic()
        while self.sent < self.total and not self._stop.is_set():
            share = 1.0 if not self._seconds else min((time.monotonic() - began) / self._seconds, 1.0)
            self.now_ms = int(self.span_ms[0] + share * (self.span_ms[1] - self.span_ms[0]))
            self._send(int(np.searchsorted(self._arrival, self.now_ms, side="right")))
            if self._failure:
                break
            self._stop.wait(_TICK_S)
        left = self._producer.flush(_TIMEOUT_S)
        if self._failure or left:
            raise BrokerError(
                f"records were not delivered: {self._failure or f'{left} after {_TIMEOUT_S:g} s'}"
            )

    def stop(self) -> None:
        """End `run` early."""
        self._stop.set()

    def _send(self, until: int) -> None:
        for value, topic, key, partition in self._records[self.sent : until]:
            while True:
                try:
                    self._producer.produce(topic, value, key, partition, on_delivery=self._reported)
                    break
                except BufferError:
                    self._producer.poll(_TICK_S)
        self.sent = until
        self._producer.poll(0)

    def _reported(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failure = f"{message.topic()}[{message.partition()}]: {error.str()}"
