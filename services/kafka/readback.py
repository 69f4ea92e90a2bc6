"""Reads the committed records of a range of offsets: what earlier incarnations of a task have written.

Entries: `read_to_end` for a whole partition, `reading` for parts of it. The caller has fenced the earlier writer
(`services.delivery.sink`), so a transaction that was open has been aborted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from schemas.errors import BrokerError
from services.kafka.log_consumer import log_consumer
from services.kafka.topics import MOVING, Lane
from services.process.rights import reason
from services.process.security import KafkaClients

TIMEOUT_S = 60.0
"""Longer than an open transaction of another producer can hide the records after it."""

POLL_S = 0.2


class Readback:
    """Reads partitions of one topic."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self._consumer = consumer
        self._topic = topic

    def ends(self, partition: int, marked: int = 0) -> tuple[int, int]:
        """The first offset, and the offset after the last record.

        Args:
            marked: an offset that the log is known to reach. A broker that its peers have cut off acts for some seconds
                as if it still led the partition, and reports an earlier end (`services.delivery.sink.Sink.mark_end`).
        """
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                found = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() not in MOVING or time.monotonic() > deadline:
                    raise
                # After a broker's restart the client's knowledge of leaders is out of date until it asks again.
                self._consumer.list_topics(self._topic, timeout=TIMEOUT_S)
                time.sleep(POLL_S)
                continue
            if found is None:
                raise BrokerError(f"topic {self._topic}[{partition}] could not be read: its ends are not known")
            return found[0], max(found[1], marked)

    def between(self, partition: int, begin: int, end: int) -> Iterator[tuple[int, Message]]:
        """The records from `begin` up to, not including, `end`, each with its offset.

        Raises:
            BrokerError: Kafka brings nothing for TIMEOUT_S.
        """
        deadline = time.monotonic() + TIMEOUT_S
        self._consumer.assign([TopicPartition(self._topic, partition, begin)])
        at = begin
        while at < end:
            if time.monotonic() > deadline:
                lane = f"topic {self._topic}[{partition}]"
                raise BrokerError(f"{lane} brought nothing more for {TIMEOUT_S:g} s before offset {end}")
            message = self._consumer.poll(POLL_S)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                reached = message.offset() or 0
                if reached <= at:
                    continue
                # After the last record there may be transaction markers.
                at = reached
            else:
                at = (message.offset() or 0) + 1
                if at <= end:
                    yield at - 1, message
            # A stall is limited, not a long log or a slow reader.
            deadline = time.monotonic() + TIMEOUT_S


@contextmanager
def reading(clients: KafkaClients, topic: str) -> Iterator[Readback]:
    """A reader of a topic.

    Raises:
        BrokerError: Kafka does not answer.
    """
    consumer = log_consumer(clients, topic, isolation__level="read_committed")
    try:
        yield Readback(consumer, topic)
    except KafkaException as error:
        why = reason(error.args[0], f"READ on topic {topic!r}")
        raise BrokerError(f"topic {topic} cannot be read: {why}") from None
    finally:
        consumer.close()


def read_to_end(clients: KafkaClients, lane: Lane, marked: int = 0) -> Iterator[tuple[int, Message]]:
    """All records of a partition up to its present end, each with its offset.

    Args:
        marked: as in `Readback.ends`.

    Raises:
        BrokerError: Kafka does not answer, or brings nothing for TIMEOUT_S.
    """
    topic, partition = lane
    with reading(clients, topic) as readback:
        yield from readback.between(partition, *readback.ends(partition, marked))
