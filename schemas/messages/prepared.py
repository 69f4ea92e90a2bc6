"""The transaction record: what a transaction writes and commits, stored inside the transaction itself.

A task appends one such record per transaction to its partition of the group's transaction log
(`services.delivery.transaction_log`). With it, the task's next incarnation can tell which parts of a transaction Kafka
has completed, and can complete the others: the records are still in the log of each partition, whether or not they are
visible.

Format: JSON, keyed by transactional id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from schemas.errors import StateError
from schemas.messages.formats import check_format

PREPARED_VERSION = 1

Partition = tuple[str, int]
"""A topic and a partition number."""


@dataclass(frozen=True, slots=True)
class WrittenRecords:
    """The records of one transaction in one partition.

    Attributes:
        since: an offset at or before the first of them; no earlier transaction of the task has records after it.
        records: how many there are.
    """

    since: int
    records: int


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """One transaction, just before it is committed.

    Attributes:
        incarnation: of the task; its transactions follow each other, and each begins only when Kafka has confirmed
            the one before.
        written: by partition.
        offsets: for each input partition, the offset that is committed (the next record to read), and the message
            (`schemas.messages.commits`).
    """

    incarnation: str
    written: Mapping[Partition, WrittenRecords] = field(default_factory=dict)
    offsets: Mapping[Partition, tuple[int, str]] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The record's value."""
        message = _Message(
            PREPARED_VERSION,
            self.incarnation,
            [(topic, number, part.since, part.records) for (topic, number), part in self.written.items()],
            [(topic, number, offset, text) for (topic, number), (offset, text) in self.offsets.items()],
        )
        return msgspec.json.encode(message)


class _Message(msgspec.Struct, frozen=True):
    v: int
    i: str
    w: list[tuple[str, int, int, int]]
    o: list[tuple[str, int, int, str]]


class _Version(msgspec.Struct, frozen=True):
    v: int


def decode_prepared(raw: bytes, place: str) -> PreparedTransaction:
    """Read a record back. `place` is its topic, partition and offset, for errors.

    Raises:
        NewerFormatError: a newer Weir wrote it.
        StateError: it is damaged, or no record of Weir.
    """
    try:
        check_format(msgspec.json.decode(raw, type=_Version).v, PREPARED_VERSION, f"transaction record {place}")
        message = msgspec.json.decode(raw, type=_Message)
    except msgspec.DecodeError as error:
        raise StateError(f"{place} holds {raw[:80]!r}, no transaction record of Weir: {error}") from None
    return PreparedTransaction(
        message.i,
        {(topic, number): WrittenRecords(since, records) for topic, number, since, records in message.w},
        {(topic, number): (offset, text) for topic, number, offset, text in message.o},
    )
