"""What one epoch delivers: results, letters, and the offsets that make them final."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from schemas.codecs.encode import Encoded
from services.kafka.records import RecordBatch
from services.kafka.topics import Lane


@dataclass(frozen=True, slots=True)
class Letter:
    """A record that went elsewhere than into a window, with where it came from and why, as headers."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]

    @property
    def size_bytes(self) -> int:
        """Roughly what it takes on the wire."""
        headers = sum(len(name) + len(value) for name, value in self.headers)
        return len(self.value or b"") + len(self.key or b"") + headers


@dataclass(slots=True)
class Letters:
    """Collects an epoch's late tuples and dead letters.

    Attributes:
        late_topic, dead_topic: where they go.
        late, dead: how many of each were added.
    """

    late_topic: str
    dead_topic: str
    letters: list[Letter] = field(default_factory=list)
    size_bytes: int = 0
    late: int = 0
    dead: int = 0

    def add_late(self, batch: RecordBatch, row: int, stream: str, idle: bool) -> None:
        """A tuple behind its partition's watermark, or (`idle`) only behind the task's."""
        self.late += 1
        self._add(self.late_topic, batch, row, stream, "idle" if idle else "late")

    def add_dead(self, batch: RecordBatch, row: int, stream: str, reason: str) -> None:
        """A record that is no tuple of `stream`."""
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
        letter = Letter(topic, record.value, record.key, headers)
        self.letters.append(letter)
        self.size_bytes += letter.size_bytes

    def take(self) -> list[Letter]:
        """What has been collected; afterwards the collection is empty."""
        letters, self.letters, self.size_bytes, self.late, self.dead = self.letters, [], 0, 0, 0
        return letters


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """A record of an internal topic: a block of intermediate results, or a spill event.

    Attributes:
        written: told the record's offset once it is in the log.
    """

    topic: str
    partition: int
    value: bytes
    tuples: int
    key: bytes | None = None
    written: Callable[[int], None] | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """One commit.

    Attributes:
        results: with the topic that they go to, in order per topic.
        offsets: per partition the next record to take, and its commit message.
        blocks: to other operators and to the log of spills, in order.
    """

    results: Sequence[tuple[str, Encoded]]
    letters: Sequence[Letter]
    offsets: Mapping[Lane, tuple[int, str]]
    blocks: Sequence[BlockRecord] = ()
