"""The log of repeats: which tuples of its input a task has dropped as repeats. One partition of `<group>.repeats`.

What is a repeat can depend on a chain of tuples that begins any time ago (`operators.engine.repeats`), so a task that
reads its input again cannot find out. It reads here what was found before. Positions of the repeats of an epoch are
delivered with its results and offsets. A commit names the records that a recovery from it needs (`Commit.repeats`): all
that have a position at or behind the offsets from which its partitions are read again. `services.task.commits` writes
the log; `services.worker.task_opener` reads it when a task starts. For its numbers and writers see
`services.delivery.numbered_records`.

A task that takes over its input from the tasks of a former plan, or that writes without transactions, first writes
again what it still needs, in its own log and its own name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from operators.data.positions import partition_and_offset
from schemas.columns import I64
from schemas.messages.repeats import RepeatsRecord, decode_repeats, encode_repeats
from services.delivery.epoch_output import BlockRecord
from services.delivery.numbered_records import UNKNOWN, NumberedLog, NumberedRecord, read_span
from services.kafka.topics import Lane
from services.process.security import KafkaClients

RECORD_POSITIONS = 50_000
"""Upper limit of positions in one record, so that the record stays within Kafka's usual limit, a megabyte."""

MOST_KEPT = 4096
"""Beyond so many records they are forgotten in pairs, so that the log of an endless window takes bounded memory."""

Places = Mapping[tuple[str, int], int]
"""An offset by stream and partition."""


@dataclass(slots=True)
class _Kept(NumberedRecord):
    """Records that follow each other in the log; their number is that of the first, their offset that of the last.

    Attributes:
        last: by stream and partition the largest offset of a repeat.
    """

    last: dict[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class KnownRepeats:
    """What earlier incarnations have written, and a recovery needs.

    Attributes:
        positions: of repeats, by stream.
        until: by stream, the event time before which all repeats are among them.
        records: the number, the offset and the content of each record of the task's own log.
        following: the number of the next record.
        own: whether the task's own log has all of it, in this writer's name.
    """

    positions: Mapping[str, I64] = field(default_factory=dict)
    until: Mapping[str, int] = field(default_factory=dict)
    records: Sequence[tuple[int, int, Mapping[str, I64]]] = ()
    following: int = 0
    own: bool = True


class RepeatsLog(NumberedLog[_Kept]):
    """The log of repeats of one task.

    Args:
        lane: the partition of the topic.
        writer: of the records to write; empty if they are written in transactions.
    """

    def __init__(self, lane: Lane, known: KnownRepeats, writer: str = "") -> None:
        kept = (_Kept(number, _largest(positions), offset=offset) for number, offset, positions in known.records)
        super().__init__(lane, kept, known.following)
        self._writer = writer
        self._inherited: Mapping[str, I64] | None = None if known.own else known.positions

    def add(self, found: Mapping[str, I64]) -> list[BlockRecord]:
        """Append the ascending positions of repeats, by stream; returns the records to write with the next commit."""
        records: list[BlockRecord] = []
        if self._inherited is not None:
            self._drop_while(lambda _: True)
            records += self._write(self._inherited)
            self._inherited = None
        return records + self._write(found)

    def _write(self, found: Mapping[str, I64]) -> list[BlockRecord]:
        return [
            self._append(_Kept(self._following, _largest(piece)), encode_repeats(piece, self._writer))
            for piece in _pieces(found)
        ]

    def forget(self, needed: Places) -> None:
        """Drop the first records that hold only repeats before the offsets from which a recovery reads. What is said of
        no partition is not needed."""
        self._drop_while(lambda kept: all(last < needed.get(place, last + 1) for place, last in kept.last.items()))
        records = self._records
        if len(records) > MOST_KEPT and all(kept.offset != UNKNOWN for kept in records[:-1]):
            newest = records.pop()
            pairs = zip(records[::2], [*records[1::2], records[-1]], strict=False)
            self._records = [*(_merged(a, b) for a, b in pairs), newest]


def _pieces(found: Mapping[str, I64]) -> Iterator[dict[str, I64]]:
    for stream, positions in found.items():
        for begin in range(0, len(positions), RECORD_POSITIONS):
            yield {stream: positions[begin : begin + RECORD_POSITIONS]}


def _largest(positions: Mapping[str, I64]) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for stream, own in positions.items():
        partitions, offsets = partition_and_offset(own)
        for partition in np.unique(partitions).tolist():
            found[stream, partition] = int(offsets[partitions == partition].max())
    return found


def _merged(a: _Kept, b: _Kept) -> _Kept:
    places = a.last.keys() | b.last.keys()
    last = {place: max(a.last.get(place, 0), b.last.get(place, 0)) for place in places}
    return _Kept(a.number, last, offset=b.offset)


def read_repeats(
    clients: KafkaClients, lane: Lane, span: tuple[int, int], marked: int = 0, *, former: str = "", writer: str = ""
) -> KnownRepeats:
    """Read the log of a task that starts at a commit.

    Args:
        span: the record numbers in the commit; see `RepeatsLog.span`.
        marked: an offset behind everything that the task has written (`services.delivery.sink.Sink.mark_end`).
        former: the incarnation that made the commit.
        writer: of the records to write.

    Raises:
        BrokerError: Kafka does not answer.
        StateError: a record is missing or cannot be read.
    """
    tells = "which tuples are repeats"
    read = read_span(clients, lane, span, marked, former, decode_repeats, tells)
    records = [(number, offset, _positions(record, lane, offset)) for number, offset, record in read]
    own = all(record.writer == writer for _, _, record in read)
    return KnownRepeats(joined(positions for _, _, positions in records), {}, records, span[1], own)


def _positions(record: RepeatsRecord, lane: Lane, offset: int) -> dict[str, I64]:
    return record.positions(f"{lane[0]}[{lane[1]}]@{offset}")


def joined(parts: Iterator[Mapping[str, I64]]) -> dict[str, I64]:
    """All positions, by stream, ascending."""
    found: dict[str, list[I64]] = {}
    for part in parts:
        for stream, positions in part.items():
            found.setdefault(stream, []).append(positions)
    return {stream: np.unique(np.concatenate(pieces)) for stream, pieces in found.items()}
