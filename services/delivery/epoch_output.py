"""Defines what one epoch delivers: results, rejected records, and the offsets that make them final.

`services.task.commits` makes a `Delivery`; `services.delivery.sink` sends it to Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from schemas.codecs.encode import Encoded
from services.kafka.records import RecordBatch
from services.kafka.topics import Lane


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """An input record that entered no window, or a result that is too large for its topic.

    Attributes:
        topic: the late or dead-letter topic that receives the record.
        headers: the reason, and for an input record its stream, topic, partition and offset.
    """

    topic: str
    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]

    @property
    def size_bytes(self) -> int:
        """Approximate size on the wire."""
        headers = sum(len(name) + len(value) for name, value in self.headers)
        return len(self.value or b"") + len(self.key or b"") + headers


@dataclass(slots=True)
class RejectedRecords:
    """Collects an epoch's late tuples and dead letters.

    Attributes:
        late_topic, dead_topic: the topics that receive them.
        records: the collected records, in the order in which they were added.
        size_bytes: their approximate size on the wire.
        late, dead: how many of each were added.
    """

    late_topic: str
    dead_topic: str
    records: list[RejectedRecord] = field(default_factory=list)
    size_bytes: int = 0
    late: int = 0
    dead: int = 0

    def add_late(self, batch: RecordBatch, row: int, stream: str, idle: bool) -> None:
        """Add a tuple that is behind its partition's watermark or, with `idle`, only behind the task's."""
        self.late += 1
        self._add(self.late_topic, batch, row, stream, "idle" if idle else "late")

    def add_dead(self, batch: RecordBatch, row: int, stream: str, reason: str) -> None:
        """Add a record that is not a tuple of `stream`."""
        self.dead += 1
        self._add(self.dead_topic, batch, row, stream, reason)

    def _add(self, topic: str, batch: RecordBatch, row: int, stream: str, reason: str) -> None:
        record = batch.records[row]
        headers = (
            ("reason", reason.encode()),
            ("stream", stream.encode()),
            ("topic", batch.topic.encode()),
            ("partition", str(batch.partition).encode()),
            ("offset", str(record.offset).encode()),
        )
        rejected = RejectedRecord(topic, record.value, record.key, headers)
        self.records.append(rejected)
        self.size_bytes += rejected.size_bytes

    def take(self) -> list[RejectedRecord]:
        """Return the collected records and empty the collection."""
        records, self.records, self.size_bytes, self.late, self.dead = self.records, [], 0, 0, 0
        return records


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """A record of an internal topic: a block of intermediate results, or a spill event.

    Attributes:
        partition: number of the partition that receives the record.
        tuples: how many tuples the block holds; 0 for a spill event.
        written: called with the record's offset once Kafka has confirmed the record.
    """

    topic: str
    partition: int
    value: bytes
    tuples: int
    key: bytes | None = None
    written: Callable[[int], None] | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """The output of one commit.

    Attributes:
        results: encoded results with their topic, in order per topic.
        rejected: late and dead-letter records.
        offsets: per partition, the offset of the next record to take and the commit message.
        blocks: records for other operators and for the spill log, in order.
    """

    results: Sequence[tuple[str, Encoded]]
    rejected: Sequence[RejectedRecord]
    offsets: Mapping[Lane, tuple[int, str]]
    blocks: Sequence[BlockRecord] = ()
