"""Reads a task's own last notices back from the topic that it writes to (`operators.distributed.feedback.producer`).

`services.worker.operator_tasks` calls `read_back` when it opens a task of a distributed query with feedback.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from operators.distributed.operator import Edge
from schemas.codecs.notice import Notice, decode_notice, is_notice
from services.kafka.readback import Readback, reading
from services.kafka.topics import Lane
from services.process.security import KafkaClients

FIRST_LOOK = 512
"""How many records of a partition's end are read first. Each further attempt reads WIDER times as many, until they
include a whole notice."""

WIDER = 8


def read_back(
    clients: KafkaClients, edge: Edge, partitions: Iterable[int], channel: int, marked: Mapping[Lane, int]
) -> dict[int, list[Notice]]:
    """Read a channel's notices per partition, from the last whole notice on; all notices if none is whole.

    Args:
        marked: per partition, an offset behind everything that the task has written
            (`services.delivery.sink.Sink.mark_end`).

    Raises:
        BrokerError: Kafka does not answer.
        StateError: another program writes to the topic.
    """
    with reading(clients, edge.topic) as readback:
        return {
            partition: _last(readback, edge, partition, channel, marked.get((edge.topic, partition), 0))
            for partition in partitions
        }


def _last(readback: Readback, edge: Edge, partition: int, channel: int, marked: int) -> list[Notice]:
    low, high = readback.ends(partition, marked)
    look = FIRST_LOOK
    while True:
        begin = max(low, high - look)
        found = _between(readback, edge, partition, channel, begin, high)
        for at in range(len(found) - 1, -1, -1):
            if found[at].whole:
                return found[at:]
        if begin == low:
            return found
        look *= WIDER


def _between(readback: Readback, edge: Edge, partition: int, channel: int, begin: int, end: int) -> list[Notice]:
    """Read a channel's notices between two offsets."""
    found: list[Notice] = []
    for offset, message in readback.between(partition, begin, end):
        raw = message.value() or b""
        if is_notice(raw):
            notice = decode_notice(edge.fields, raw, f"{edge.topic}[{partition}]@{offset}")
            if notice.channel == channel:
                found.append(notice)
    return found
