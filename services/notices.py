"""Reads a task's own last notices back from the topic that it writes to (`operators.placed.withholding`)."""

from __future__ import annotations

import time
from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from operators.placed.decompose import Edge
from schemas.codecs.notice import Notice, decode_notice, is_notice
from schemas.errors import BrokerError
from services.security import KafkaClients

FIRST_LOOK = 512
"""Records of a partition's end that are read first; each time WIDER times as many, until a whole notice is among
them."""

WIDER = 8

TIMEOUT_S = 60.0
"""Longer than somebody else's open transaction hides what comes after it."""


def read_back(clients: KafkaClients, edge: Edge, partitions: Iterable[int], channel: int) -> dict[int, list[Notice]]:
    """Per partition a channel's notices from the last whole one on, or all.

    Raises:
        BrokerError: Kafka does not answer.
        StateError: somebody else writes to the topic.
    """
    consumer = Consumer(
        clients.librdkafka(
            # Never joined; librdkafka wants a name.
            group__id=f"{edge.topic}.writers",
            enable__auto__commit=False,
            auto__offset__reset="earliest",
            enable__partition__eof=True,
            isolation__level="read_committed",
            log_level=0,
        )
    )
    try:
        return {partition: _last(consumer, edge, partition, channel) for partition in partitions}
    except KafkaException as error:
        raise BrokerError(f"topic {edge.topic} cannot be read: {error.args[0].str()}") from None
    finally:
        consumer.close()


def _last(consumer: Consumer, edge: Edge, partition: int, channel: int) -> list[Notice]:
    place = TopicPartition(edge.topic, partition)
    low, high = consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)
    look = FIRST_LOOK
    while True:
        begin = max(low, high - look)
        found = _between(consumer, edge, partition, channel, begin, high)
        for at in range(len(found) - 1, -1, -1):
            if found[at].whole:
                return found[at:]
        if begin == low:
            return found
        look *= WIDER


def _between(
    consumer: Consumer, edge: Edge, partition: int, channel: int, begin: int, end: int
) -> list[Notice]:
    """A channel's notices between two offsets."""
    found: list[Notice] = []
    deadline = time.monotonic() + TIMEOUT_S
    consumer.assign([TopicPartition(edge.topic, partition, begin)])
    at = begin
    while at < end:
        if time.monotonic() > deadline:
            raise BrokerError(f"topic {edge.topic}[{partition}] could not be read to offset {end} in {TIMEOUT_S:g} s")
        message = consumer.poll(0.2)
        if message is None:
            continue
        error = message.error()
        if error is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            # Behind the last record there may be marks of transactions.
            at = max(at, message.offset() or 0)
            continue
        at = (message.offset() or 0) + 1
        raw = message.value() or b""
        if is_notice(raw):
            notice = decode_notice(edge.fields, raw, f"{edge.topic}[{partition}]@{at - 1}")
            if notice.channel == channel:
                found.append(notice)
    return found
