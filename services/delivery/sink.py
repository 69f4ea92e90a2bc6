"""Delivers epochs to Kafka: the parts that both guarantees share, and the at-least-once sink.

`services.worker.task_opener` makes a task's sink. `services.task.commits` calls `Sink.deliver` for each epoch that has
output or is to be committed. The exactly-once sink is in `services.delivery.transactional`.

**At least once.** An idempotent producer without transactions. Results are visible as soon as they are written; offsets
are committed afterwards. After a crash, everything that was written after the last commit is written again.

Every failure is one of three errors: `Fenced` (another worker has the task: drop it), `Aborted` (restart from the last
commit), or `BrokerError` (this worker cannot go on).
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from schemas.codecs.encode import Encoded
from schemas.errors import BrokerError, WeirError
from services.delivery.epoch_output import BlockRecord, Delivery, RejectedRecord
from services.delivery.transaction_log import TransactionLog
from services.kafka.topics import Lane, OutputTopics
from services.process.logs import get_log
from services.process.rights import reason
from services.process.security import KafkaClients
from services.recovery.committed_offsets import CommittedOffsets
from services.recovery.starting_point import Committed

ATTEMPT_S = 5.0
"""How long one call to a coordinator may take before the sink checks whether to give up."""

PATIENCE_S = 60.0
"""How long a producer's call may be repeated. Then a new producer is needed, because a producer may lose all brokers
for good (`services.process.security.TRANSACTIONAL`)."""

HEADER_BYTES = 512
"""Bytes kept free below a topic's record limit for what Kafka adds to a record."""

CHUNK_RECORDS = 2_000

POLL_S = 0.05

Headers = list[tuple[str, bytes]]


class Fenced(WeirError):
    """A newer worker has taken the task over."""


class Aborted(WeirError):
    """The epoch was not delivered; nothing of it is visible."""


@dataclass(frozen=True, slots=True)
class Repair:
    """The repair of transactions that Kafka had not ended everywhere. False if nothing needed repair.

    Attributes:
        records: how many records were written again, by partition.
        commits: how many transactions' offsets were committed.
        ended: partitions with records that Kafka had left open; these records are now aborted.
    """

    records: Mapping[Lane, int] = field(default_factory=dict)
    commits: int = 0
    ended: tuple[Lane, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.records or self.commits or self.ended)


class Sink(Protocol):
    """Delivers a task's output to Kafka. What it does by default is right for a sink without transactions."""

    @property
    def incarnation(self) -> str:
        """The name of this incarnation, which its commits carry."""

    def open(self) -> Repair:
        """Take the task over from its former worker; returns the repair of its last transactions."""
        return Repair()

    def committed(self, lanes: Iterable[Lane]) -> dict[Lane, Committed]:
        """Read committed offsets and messages; partitions without a commit are absent."""

    def mark_end(self, lanes: Iterable[Lane]) -> dict[Lane, int]:
        """Find, per partition, an offset behind everything that earlier incarnations have written and committed.

        Readers must read up to this offset: a broker that its peers have cut off reports an earlier end. The result is
        empty for a sink that cannot prove the end. Without transactions every written record is visible.
        """
        return {}

    def deliver(self, delivery: Delivery) -> Counter[str]:
        """Deliver and commit; returns by topic how many results became dead letters: those that are too large, or that
        have no place in their schema."""

    def completion_check(self) -> Callable[[], Mapping[Lane, int] | None]:
        """Return a function that asks Kafka whether all transactions up to now are complete in every partition.

        Any thread may call the function. It returns None while some are incomplete. Otherwise it returns, per partition
        of the sink's own log, the offset before which records may be deleted.
        """
        return dict

    def close(self) -> None:
        """Release connections; an open transaction is left to be aborted."""


class ProducerSink(Sink):
    """The parts that both sinks share: the producer, and reading committed offsets.

    `_transactions` tracks where records are written; None for a sink without transactions.
    """

    def __init__(
        self,
        clients: KafkaClients,
        group: str,
        task: int,
        topics: OutputTopics,
        give_up: threading.Event,
        **more: Any,
    ) -> None:
        self._log = get_log("producer")
        quiet = logging.getLogger("weir.librdkafka")
        quiet.setLevel(logging.CRITICAL)
        self._topics = topics
        # One partition per task, unless results have a key: a task's results stay in the order of their timestamps.
        self._task = task
        self._group = group
        self._failed = ""
        self._give_up = give_up
        self._transactions: TransactionLog | None = None
        self._producer = Producer(
            clients.librdkafka(
                linger__ms=5,
                # Kafka refuses a batch that is larger than its topic's records may be.
                batch__size=max(min([512 * 1024, *(most - HEADER_BYTES for most in topics.limits.values())]), 1),
                compression__type="lz4",
                message__max__bytes=1_000_000_000 // 10,
                queue__buffering__max__messages=100_000,
                queue__buffering__max__kbytes=256 * 1024,
                # A transaction that closely follows another is refused until Kafka has ended that one, which takes
                # some 10 ms: with the defaults of 100 and 1,000 ms, it would wait that long.
                retry__backoff__ms=5,
                retry__backoff__max__ms=10,
                enable__idempotence=True,
                client__id=f"weir-{group}",
                **more,
            ),
            logger=quiet,
        )
        self._offsets = CommittedOffsets(clients, group, stable=True)

    def committed(self, lanes: Iterable[Lane]) -> dict[Lane, Committed]:
        reported = False

        def again(what: str, cause: KafkaError, overdue: bool) -> None:
            nonlocal reported
            if self._give_up.is_set():
                raise Aborted(f"{what}: {cause.str()}; stopped trying")
            if overdue and not reported:
                reported = True
                self._log.warning(
                    "committed offsets cannot be read yet, retrying",
                    task=self._task,
                    group=self._group,
                    reason=cause.str(),
                )

        return self._offsets.read(lanes, again)

    def _produce(self, delivery: Delivery) -> Counter[str]:
        """Hand everything to the producer's queue; returns how many results became dead letters, by topic."""
        refused = [(topic, self._produce_results(topic, encoded)) for topic, encoded in delivery.results]
        for rejected in (*delivery.rejected, *(rejected for _, records in refused for rejected in records)):
            self._produce_rejected(rejected)
        for block in delivery.blocks:
            self._produce_block(block)
        return Counter(topic for topic, records in refused for _ in records)

    def _produce_block(self, block: BlockRecord) -> None:
        self._produce_one((block.topic, block.partition), block.value, block.key, written=block.written)

    def _produce_one(
        self,
        lane: Lane,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None = None,
        *,
        timestamp: int = 0,
        written: Callable[[int], None] | None = None,
    ) -> None:
        """Hand a record to the producer's queue. Kafka's confirmation calls `written` with the offset.

        A timestamp of 0 stands for the current time.
        """
        self._queue(lane, value, key, headers, self._confirmed(lane, 1, written), timestamp)

    def _queue(
        self,
        lane: Lane,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        on_delivery: Callable[[KafkaError | None, Message], None],
        timestamp: int = 0,
    ) -> None:
        while True:
            try:
                self._producer.produce(
                    lane[0],
                    value,
                    key,
                    partition=lane[1],
                    headers=headers,
                    timestamp=timestamp,
                    on_delivery=on_delivery,
                )
                return
            except BufferError:
                self._make_room()
            except KafkaException as error:
                raise self._refusal(error, f"record not accepted by {lane[0]}") from None

    def _produce_results(self, topic: str, encoded: Encoded) -> list[RejectedRecord]:
        refused = [self._refused(topic, value, None, why) for value, why in encoded.refused]
        values = encoded.texts()
        keys = [None] * len(values) if encoded.keys is None else _texts(encoded.keys)
        headers = _headers(encoded, len(values)) if encoded.headers else None
        for partition, rows in self._partitions(topic, encoded).items():
            if headers is not None:
                chosen = range(len(values)) if rows is None else rows
                self._produce_with_headers(
                    (topic, partition), ((values[row], keys[row], headers[row]) for row in chosen), refused
                )
                continue
            pairs = zip(values, keys, strict=True) if rows is None else ((values[row], keys[row]) for row in rows)
            self._produce_to((topic, partition), pairs, refused)
        return refused

    def _partitions(self, topic: str, encoded: Encoded) -> dict[int, list[int] | None]:
        """The rows for each partition; None for all. A record without a key goes to the task's partition."""
        count = self._topics.partitions[topic]
        own = self._task % count
        if encoded.hashes is None or count == 1 or not len(encoded.hashes):
            return {own: None}
        chosen = encoded.hashes % count
        if encoded.keys is not None and encoded.keys.missing is not None:
            chosen = np.where(encoded.keys.missing, own, chosen)
        order = np.argsort(chosen, kind="stable")
        partitions, begins = np.unique(chosen[order], return_index=True)
        return dict(zip(partitions.tolist(), (part.tolist() for part in np.split(order, begins[1:])), strict=True))

    def _produce_to(
        self, lane: Lane, pairs: Iterable[tuple[bytes, bytes | None]], refused: list[RejectedRecord]
    ) -> None:
        """Hand results to the producer's queue, in order; adds those that are too large to `refused`."""
        limit = self._limit(lane[0])
        chunk: list[dict[str, Any]] = []
        for value, key in pairs:
            size = len(value) if key is None else len(value) + len(key)
            if size > limit:
                refused.append(self._too_large(lane[0], size, value, key))
                continue
            chunk.append({"value": value} if key is None else {"value": value, "key": key})
            if len(chunk) == CHUNK_RECORDS:
                self._produce_chunk(lane, chunk)
                chunk = []
        if chunk:
            self._produce_chunk(lane, chunk)

    def _produce_with_headers(
        self, lane: Lane, records: Iterable[tuple[bytes, bytes | None, Headers]], refused: list[RejectedRecord]
    ) -> None:
        """As `_produce_to`, of results with headers, one call for each: the client takes no headers in batches."""
        limit = self._limit(lane[0])
        fine: list[tuple[bytes, bytes | None, Headers]] = []
        for value, key, headers in records:
            size = len(value) + len(key or b"") + sum(len(name.encode()) + len(text) for name, text in headers)
            if size > limit:
                refused.append(self._too_large(lane[0], size, value, key))
            else:
                fine.append((value, key, headers))
        confirmed = self._confirmed(lane, len(fine), None) if fine else self._delivered
        for row, (value, key, headers) in enumerate(fine, 1):
            self._queue(lane, value, key, headers, confirmed if row == len(fine) else self._delivered)

    def _limit(self, topic: str) -> int:
        """How many bytes a record of a topic may have."""
        return self._topics.limits[topic] - HEADER_BYTES

    def _too_large(self, topic: str, size: int, value: bytes, key: bytes | None) -> RejectedRecord:
        return self._refused(topic, value, key, f"result of {size} bytes, topic {topic!r} takes {self._limit(topic)}")

    def _refused(self, topic: str, value: bytes, key: bytes | None, why: str) -> RejectedRecord:
        """A result that does not reach its topic."""
        return RejectedRecord(self._topics.dead, value, key, (("reason", why.encode()), ("topic", topic.encode())))

    def _produce_chunk(self, lane: Lane, chunk: list[dict[str, Any]]) -> None:
        todo = chunk
        topic, partition = lane
        chunk[-1]["callback"] = self._confirmed(lane, len(chunk), None)
        while todo:
            # A full queue marks the messages that it refused. They are the last ones, so the order stays. A producer
            # that cannot go on marks all of them.
            try:
                self._producer.produce_batch(topic, todo, partition=partition, on_delivery=self._delivered)
            except BufferError:
                pass
            except KafkaException as error:
                raise self._refusal(error, "result not accepted") from None
            errors = (message["_error"] for message in todo if "_error" in message)
            if (final := next((error for error in errors if error.code() != KafkaError._QUEUE_FULL), None)) is not None:
                raise self._refusal(KafkaException(final), "result not accepted")
            todo = [
                {name: message[name] for name in ("value", "key", "callback") if name in message}
                for message in todo
                if "_error" in message
            ]
            if todo:
                self._make_room()

    def _refusal(self, error: KafkaException, what: str) -> WeirError:
        """Classify the error with which the producer has refused a record."""
        return delivery_error(error, what)

    def _produce_rejected(self, rejected: RejectedRecord) -> None:
        limit = self._limit(rejected.topic)
        value, headers = rejected.value, list(rejected.headers)
        key = rejected.key
        if rejected.size_bytes > limit:
            room = max(0, limit - (rejected.size_bytes - len(value or b"")))
            headers.append(("truncated", str(len(value or b"")).encode()))
            value = (value or b"")[:room]
            if len(key or b"") > limit:
                key = None
        lane = rejected.topic, self._task % self._topics.partitions[rejected.topic]
        self._produce_one(lane, value, key, headers)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and not self._failed:  # later failures follow from the first
            self._failed = reason(error, f"WRITE on topic {message.topic()!r}")

    def _confirmed(
        self, lane: Lane, records: int, written: Callable[[int], None] | None
    ) -> Callable[[KafkaError | None, Message], None]:
        """Make the callback for the last of `records` records to a partition, called once Kafka has it."""
        transactions = self._transactions
        if transactions is None and written is None:
            return self._delivered
        if transactions is not None:
            transactions.writes(lane, records)

        def delivered(error: KafkaError | None, message: Message) -> None:
            self._delivered(error, message)
            if error is not None:
                return
            offset = message.offset()
            if transactions is not None:
                transactions.written(lane, offset)
            if written is not None:
                written(offset or 0)

        return delivered

    def _flush(self, before: str) -> None:
        """Wait until Kafka has confirmed or refused every record.

        Raises:
            KafkaException: the producer cannot go on.
        """
        # Not by `flush`: after raising a fatal error it still runs callbacks, and then raises arbitrary exceptions.
        while len(self._producer):
            self._producer.poll(POLL_S)
            if self._give_up.is_set():
                raise Aborted(f"stopped before {before}")

    def _make_room(self) -> None:
        if self._give_up.is_set():
            raise Aborted("stopped while the producer's queue was full")
        self._producer.poll(POLL_S)

    def close(self) -> None:
        self._producer.purge()
        # Unconfirmed records keep their callbacks alive, and the callbacks keep the producer and its threads alive.
        while True:
            try:
                self._producer.poll(0)
                break
            except KafkaException:
                pass  # The next call raises a fatal error once; callbacks of the records behind it are still due.
        self._offsets.close()


def _texts(encoded: Encoded) -> list[bytes | None]:
    """The keys, or the texts of one header, of records; None where there is none."""
    found: list[bytes | None] = [*encoded.texts()]
    if encoded.missing is not None:
        for row in np.flatnonzero(encoded.missing).tolist():
            found[row] = None
    return found


def _headers(encoded: Encoded, rows: int) -> list[Headers]:
    """The headers of each record."""
    found: list[Headers] = [[] for _ in range(rows)]
    for name, texts in encoded.headers:
        for headers, text in zip(found, _texts(texts), strict=True):
            if text is not None:
                headers.append((name, text))
    return found


_FENCED = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})


def delivery_error(error: KafkaException, what: str, right: str = "more rights") -> WeirError:
    """Classify a Kafka error by what the task can do about it; `right` is the permission that may be missing."""
    cause = error.args[0]
    if cause.code() in _FENCED:
        return Fenced(f"{what}: {cause.str()}")
    if cause.fatal():
        return BrokerError(f"{what}: {reason(cause, right)}")
    return Aborted(f"{what}: {reason(cause, right)}")


class IdempotentSink(ProducerSink):
    """At least once.

    Args:
        commit: commits offsets with their metadata as the group's member; False when the group refused.
    """

    def __init__(
        self,
        clients: KafkaClients,
        group: str,
        task: int,
        topics: OutputTopics,
        give_up: threading.Event,
        commit: Callable[[Mapping[Lane, tuple[int, str]]], bool],
    ) -> None:
        super().__init__(clients, group, task, topics, give_up, message__timeout__ms=int(PATIENCE_S * 1000))
        self._commit = commit
        self._incarnation = uuid.uuid4().hex[:8]

    @property
    def incarnation(self) -> str:
        return self._incarnation

    def deliver(self, delivery: Delivery) -> Counter[str]:
        """Write, wait until Kafka confirms, then commit the offsets if there are any."""
        try:
            refused = self._produce(delivery)
            self._flush("its records were written")
        except KafkaException as error:
            raise delivery_error(error, "records not written") from None
        if self._failed:
            raise Aborted(f"records not written: {self._failed}")
        if delivery.offsets and not self._commit(delivery.offsets):
            raise Aborted("offsets not accepted by the group")
        return refused
