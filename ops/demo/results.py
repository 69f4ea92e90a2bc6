"""Reads the demonstration's results from the output topic, and decides when no more results can follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from schemas.errors import BrokerError
from services.kafka.log_consumer import log_consumer
from services.kafka.topics import Lane
from services.process.security import KafkaClients
from services.recovery.committed_offsets import CommittedOffsets

_TIMEOUT_S = 10.0
_MOST = 10_000


class ResultReader:
    """The committed results of one topic, from its beginning.

    Attributes:
        lines: every result so far; those of one partition in their order.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.bootstrap = bootstrap
        self.lines: list[bytes] = []
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._lanes = [TopicPartition(topic, number, 0) for number in range(partitions)]
        self._ends: dict[int, int] = {}
        more = {"isolation__level": "read_committed", "fetch__wait__max__ms": 50}
        self._consumer = log_consumer(KafkaClients(bootstrap), topic, **more)
        self._consumer.assign(self._lanes)

    def poll(self, seconds: float) -> int:
        """Read the available results, waiting up to `seconds` for some.

        Returns:
            how many results arrived.
        """
        before = len(self.lines)
        for message in self._consumer.consume(_MOST, seconds):
            error, value, partition, offset = (
                message.error(),
                message.value(),
                message.partition(),
                message.offset(),
            )
            if error is None and value is not None:
                self.lines.append(value)
            elif error is None or partition is None or offset is None:
                raise BrokerError(f"{self._lanes[0].topic}[{partition}]: no result at offset {offset}")
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ends[partition] = offset
            elif not error.retriable():
                raise BrokerError(f"results cannot be read: {error.str()}")
        return len(self.lines) - before

    def settled_ends(self) -> dict[int, int] | None:
        """The end of the log per partition, or None while a transaction on it is open.

        Offsets committed in a transaction may be seen a moment before its results are.
        """
        committed = self._end_offsets(IsolationLevel.READ_COMMITTED)
        return committed if committed == self._end_offsets(IsolationLevel.READ_UNCOMMITTED) else None

    def _end_offsets(self, isolation: IsolationLevel) -> dict[int, int]:
        lanes = {TopicPartition(lane.topic, lane.partition): OffsetSpec.latest() for lane in self._lanes}
        asked = self._admin.list_offsets(lanes, isolation_level=isolation, request_timeout=_TIMEOUT_S)
        return {lane.partition: int(end.result(_TIMEOUT_S).offset) for lane, end in asked.items()}

    def has_read(self, ends: Mapping[int, int]) -> bool:
        """True when everything before the given offsets has been read."""
        return all(end == 0 or self._ends.get(partition, 0) >= end for partition, end in ends.items())

    def close(self) -> None:
        """Leave Kafka."""
        self._consumer.close()


class Progress:
    """The progress of a worker's consumer group, from its tasks' commits."""

    def __init__(self, bootstrap: str, group: str, lanes: Sequence[Lane]) -> None:
        self._offsets = CommittedOffsets(KafkaClients(bootstrap), group, stable=False)
        self._lanes = list(lanes)
        self._positions: dict[Lane, int] = {}
        self._cuts: dict[int, int] = {}

    def look(self) -> None:
        """Update the progress from Kafka."""
        for lane, found in self._offsets.read_once(self._lanes).items():
            self._positions[lane] = found.offset
            self._cuts[lane[1]] = max(found.message.cut, self._cuts.get(lane[1], 0))

    def behind(self, ends: Mapping[Lane, int]) -> int:
        """How many records before `ends` no task has read yet."""
        return sum(max(end - self._positions.get(lane, 0), 0) for lane, end in ends.items())

    def reached(self, watermarks: Mapping[int, int]) -> bool:
        """True when every task, by its partition number, has delivered all results before its watermark.

        A task commits its watermark with the results up to there, in one transaction.
        """
        return all(self._cuts.get(partition, 0) >= ts for partition, ts in watermarks.items())
