"""A task's own log of numbered records: `NumberedLog` writes it, and `read_span` reads what the last commit names.

The keys of such a log number its records in order, across incarnations. A commit names the span of the records that a
recovery from it needs, so a deleted or truncated log is noticed. A number can occur twice if a consumer group was
restarted; the later record counts. Without transactions, the log also holds what was written after the last commit, and
what a former incarnation that hangs writes later. So each record names its writer, and a commit does, too. Records that
no recovery needs are deleted in the background. `services.spill.spill_log` and `services.delivery.repeats_log` are such
logs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from schemas.errors import StateError
from services.delivery.epoch_output import BlockRecord
from services.kafka.readback import read_to_end
from services.kafka.topics import Lane
from services.process.security import KafkaClients

UNKNOWN = -1
"""The offset of a record that Kafka has not confirmed yet."""


@dataclass(slots=True)
class NumberedRecord:
    """A record of a log. Subclasses say what is kept of its content.

    Attributes:
        number: its position in the log, which is its key.
        offset: where Kafka has stored it; UNKNOWN before Kafka's confirmation.
    """

    number: int
    offset: int = field(default=UNKNOWN, kw_only=True)

    def set_offset(self, offset: int) -> None:
        """Store the offset at which Kafka has confirmed the record."""
        self.offset = offset


N = TypeVar("N", bound=NumberedRecord)


class NumberedLog(Generic[N]):
    """One task's log, limited to the records that a recovery from its last commit needs.

    Args:
        lane: the partition of the topic.
        known: records of earlier incarnations, in order.
        following: number of the next record.
    """

    def __init__(self, lane: Lane, known: Iterable[N], following: int) -> None:
        self._lane = lane
        self._records = list(known)
        self._following = following
        self._deletable: int | None = None

    @property
    def span(self) -> tuple[int, int]:
        """The number of the first record that is needed, and that of the next record to write."""
        return self._records[0].number if self._records else self._following, self._following

    def deletable(self) -> dict[Lane, int]:
        """The offset before which records may be deleted, by partition; empty if unchanged since the last call."""
        offset, self._deletable = self._deletable, None
        return {} if offset is None else {self._lane: offset}

    def _append(self, record: N, raw: bytes) -> BlockRecord:
        """Append a record; returns what to write with the next commit."""
        self._records.append(record)
        self._following += 1
        return BlockRecord(*self._lane, raw, 0, str(record.number).encode(), record.set_offset)

    def _drop_while(self, needless: Callable[[N], bool]) -> list[N]:
        """Drop the first records, as long as they are needless; returns them."""
        dropped = list(itertools.takewhile(needless, self._records))
        del self._records[: len(dropped)]
        for record in dropped:
            if record.offset != UNKNOWN:
                self._deletable = record.offset + 1
        return dropped


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
