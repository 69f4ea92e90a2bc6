"""Reads the numbered records of a task's own log: those that its last commit names.

The keys of such a log number its records in order, across incarnations. A commit names the span of the records that a
recovery from it needs, so a deleted or truncated log is noticed. A number can occur twice if a consumer group was
restarted; the later record counts. Without transactions, the log also holds what was written after the last commit, and
what a former incarnation that hangs writes later. So each record names its writer, and a commit does, too.
`services.spill.spill_log` and `services.delivery.repeats_log` are such logs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from schemas.errors import StateError
from services.kafka.readback import read_to_end
from services.kafka.topics import Lane
from services.process.security import KafkaClients


class Written(Protocol):
    """A decoded record."""

    @property
    def writer(self) -> str:
        """The incarnation that wrote it without a transaction; empty if it was written in one."""
        ...


R = TypeVar("R", bound=Written)


def read_span(
    clients: KafkaClients,
    lane: Lane,
    span: tuple[int, int],
    marked: int,
    former: str,
    decode: Callable[[bytes, str], R],
    tells: str,
) -> list[tuple[int, int, R]]:
    """Read the records of a span.

    Args:
        span: the number of the first record, and the number after that of the last.
        marked: an offset behind everything that the task has written (`services.delivery.sink.Sink.mark_end`).
        former: the incarnation that made the commit.
        decode: decodes a record, given its place for errors.
        tells: what the records tell, for errors.

    Returns:
        The number, the offset and the content of each record, in order.

    Raises:
        BrokerError: Kafka does not answer.
        StateError: a record is missing or cannot be read.
    """
    found: dict[int, tuple[int, int, R]] = {}
    if span[0] < span[1]:
        for offset, message in read_to_end(clients, lane, marked):
            where = f"{lane[0]}[{lane[1]}]@{offset}"
            number = _number(message.key(), where)
            if span[0] <= number < span[1]:
                record = decode(message.value() or b"", where)
                if record.writer in ("", former):
                    found[number] = number, offset, record
    missing = [number for number in range(*span) if number not in found]
    if missing:
        raise StateError(
            f"topic {lane[0]}[{lane[1]}] has no record {missing[0]}, and the records up to {span[1] - 1} tell {tells}: "
            "the topic was deleted or cut; give the query a new group (--group) to start anew"
        )
    return [found[number] for number in range(*span)]


def _number(key: bytes | str | None, where: str) -> int:
    try:
        return int(key or b"")
    except ValueError:
        raise StateError(f"record {where} has key {key!r}, no number: who else writes there?") from None
