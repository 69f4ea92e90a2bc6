"""Delivers epochs to Kafka: what both guarantees have in common, and at least once as a whole.

Exactly once is in `services.delivery.transactional`.

**At least once.** An idempotent producer without transactions; results are visible as soon as they are
written, and offsets follow when they are. What was written after the last commit comes again after a crash.

What can go wrong ends in one of three ways: `Fenced` (another worker has the task: drop it), `Aborted` (go
back to the last commit and on from there), or `BrokerError` (this worker cannot go on).
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from schemas.codecs.encode import Encoded
from schemas.errors import BrokerError, WeirError
from services.delivery.epoch_output import BlockRecord, Delivery, Letter
from services.delivery.transaction_log import TransactionLog
from services.kafka.topics import Lane, OutputTopics
from services.process.logs import get_log
from services.process.rights import reason
from services.process.security import KafkaClients
from services.recovery.committed_offsets import TRANSIENT, ask
from services.recovery.starting_point import Committed

ATTEMPT_S = 5.0
"""How long one call to a coordinator may take before we look whether to give up."""

PATIENCE_S = 60.0
"""How long a producer's call may be repeated. Then another producer is needed: one may find no broker any more
(`services.process.security.TRANSACTIONAL`)."""

ASKING_S = 10.0
"""How long one consumer asks for committed offsets before another does, for the same reason."""

HEADER_BYTES = 512
"""Room kept below a topic's record limit for what Kafka adds to a record."""

CHUNK_RECORDS = 2_000

Headers = list[tuple[str, bytes]]


class Fenced(WeirError):
    """A newer worker has taken the task over."""


class Aborted(WeirError):
    """The epoch was not delivered; nothing of it is visible."""


@dataclass(frozen=True, slots=True)
class Repair:
    """What had to be done about transactions that Kafka had not ended everywhere.

    Attributes:
        records: written again, by partition.
        commits: whose offsets were committed.
        ended: partitions with records that Kafka had left open, which are now aborted.
    """

    records: Mapping[Lane, int] = field(default_factory=dict)
    commits: int = 0
    ended: tuple[Lane, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.records or self.commits or self.ended)


class Sink(Protocol):
    """Where a task delivers.

    Attributes:
        incarnation: what its commits are signed with; empty where nothing needs to tell them apart.
    """

    incarnation: str

    def open(self) -> Repair:
        """Take the task over from whoever had it; what of its last transactions had to be completed."""

    def committed(self, lanes: Iterable[Lane]) -> dict[Lane, Committed]:
        """Committed offsets and messages; partitions without are absent."""

    def mark_end(self, lanes: Iterable[Lane]) -> dict[Lane, int]:
        """Per partition an offset behind all that earlier incarnations of the task have written and committed.

        To be read up to: a broker that its peers have cut off tells an earlier end. Empty where nothing proves it.
        """

    def deliver(self, delivery: Delivery) -> Counter[str]:
        """Deliver and commit; by topic, how many results were too large for it and became dead letters."""

    def settlement(self) -> Callable[[], Mapping[Lane, int] | None]:
        """A question that another thread may ask Kafka: are the transactions up to now complete everywhere?

        The answer is None when they are not yet, or what may be deleted of the sink's own log when they are.
        """

    def close(self) -> None:
        """Release connections; an open transaction is left to be aborted."""


class ProducerSink:
    """What both sinks share: the producer, and reading committed offsets.

    `_transactions` notes where records are written; None where nobody will look for them.
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
        self._clients = clients
        self._topics = topics
        # One partition per task: a task's results stay in the order of their timestamps.
        self._task = task
        self._group = group
        self._failed = ""
        self._give_up = give_up
        self._transactions: TransactionLog | None = None
        self._producer = Producer(
            clients.librdkafka(
                linger__ms=5,
                batch__size=512 * 1024,
                compression__type="lz4",
                message__max__bytes=1_000_000_000 // 10,
                queue__buffering__max__messages=100_000,
                queue__buffering__max__kbytes=256 * 1024,
                # The default of 100 ms is what a transaction waits when it follows the last one closely.
                retry__backoff__ms=5,
                retry__backoff__max__ms=250,
                enable__idempotence=True,
                client__id=f"weir-{group}",
                **more,
            ),
            logger=quiet,
        )
        self._offsets = self._consumer()

    def committed(self, lanes: Iterable[Lane]) -> dict[Lane, Committed]:
        asked, begun_s, told = list(lanes), time.monotonic(), False
        while True:
            try:
                return ask(self._offsets, self._group, asked)
            except KafkaException as error:
                cause, what = error.args[0], f"committed offsets of group {self._group!r} cannot be read"
                if cause.fatal() or not (cause.retriable() or cause.code() in TRANSIENT):
                    raise BrokerError(f"{what}: {reason(cause, f'READ on group {self._group!r}')}") from None
                if self._give_up.is_set():
                    raise Aborted(f"{what}: {cause.str()}; stopped trying") from None
            if time.monotonic() - begun_s > ASKING_S:
                if not told:
                    self._log.warning(f"{what} yet, trying on", task=self._task, reason=cause.str())
                self._offsets.close()
                self._offsets, begun_s, told = self._consumer(), time.monotonic(), True
            time.sleep(0.05)

    def _consumer(self) -> Consumer:
        """Who asks for committed offsets."""
        more = {"group__id": self._group, "isolation__level": "read_committed"}
        return Consumer(self._clients.librdkafka(**more, enable__auto__commit=False, log_level=0))

    def _produce(self, delivery: Delivery) -> Counter[str]:
        """Hand everything to the producer's queue; results over their topic's limit become dead letters, counted."""
        refused = [(topic, self._produce_results(topic, encoded)) for topic, encoded in delivery.results]
        for letter in (*delivery.letters, *(letter for _, letters in refused for letter in letters)):
            self._produce_letter(letter)
        for block in delivery.blocks:
            self._produce_block(block)
        return Counter(topic for topic, letters in refused for _ in letters)

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
        """Hand a record to the producer's queue; `written` is told its offset. A timestamp of 0 is now."""
        confirmed = self._confirmed(lane, 1, written)
        while True:
            try:
                self._producer.produce(
                    lane[0],
                    value,
                    key,
                    partition=lane[1],
                    headers=headers,
                    timestamp=timestamp,
                    on_delivery=confirmed,
                )
                return
            except BufferError:
                self._make_room()
            except KafkaException as error:
                raise sorted_error(error, f"record not accepted by {lane[0]}") from None

    def _produce_results(self, topic: str, encoded: Encoded) -> list[Letter]:
        limit = self._topics.limits[topic] - HEADER_BYTES
        refused: list[Letter] = []
        chunk: list[dict[str, Any]] = []
        values = _records(encoded)
        keys = [None] * len(values) if encoded.keys is None else _records(encoded.keys)
        for value, key in zip(values, keys, strict=True):
            size = len(value) if key is None else len(value) + len(key)
            if size > limit:
                reason = f"result of {size} bytes, topic {topic!r} takes {limit}"
                headers = (("reason", reason.encode()), ("topic", topic.encode()))
                refused.append(Letter(self._topics.dead, value, key, headers))
                continue
            chunk.append({"value": value} if key is None else {"value": value, "key": key})
            if len(chunk) == CHUNK_RECORDS:
                self._produce_chunk(topic, chunk)
                chunk = []
        if chunk:
            self._produce_chunk(topic, chunk)
        return refused

    def _produce_chunk(self, topic: str, chunk: list[dict[str, Any]]) -> None:
        todo = chunk
        partition = self._task % self._topics.partitions[topic]
        chunk[-1]["callback"] = self._confirmed((topic, partition), len(chunk), None)
        while todo:
            # A full queue marks the messages that found no place; they stay in order, being the last ones.
            try:
                self._producer.produce_batch(topic, todo, partition=partition, on_delivery=self._delivered)
            except BufferError:
                pass
            except KafkaException as error:
                raise sorted_error(error, "result not accepted") from None
            todo = [
                {name: message[name] for name in ("value", "key", "callback") if name in message}
                for message in todo
                if "_error" in message
            ]
            if todo:
                self._make_room()

    def _produce_letter(self, letter: Letter) -> None:
        limit = self._topics.limits[letter.topic] - HEADER_BYTES
        value, headers = letter.value, list(letter.headers)
        key = letter.key
        if letter.size_bytes > limit:
            room = max(0, limit - (letter.size_bytes - len(value or b"")))
            headers.append(("truncated", str(len(value or b"")).encode()))
            value = (value or b"")[:room]
            if len(key or b"") > limit:
                key = None
        lane = letter.topic, self._task % self._topics.partitions[letter.topic]
        self._produce_one(lane, value, key, headers)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and not self._failed:  # what fails after the first fails because of it
            self._failed = reason(error, f"WRITE on topic {message.topic()!r}")

    def _confirmed(
        self, lane: Lane, records: int, written: Callable[[int], None] | None
    ) -> Callable[[KafkaError | None, Message], None]:
        """What is called with the last of some records for a partition, once Kafka has it."""
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

    def _make_room(self) -> None:
        if self._give_up.is_set():
            raise Aborted("stopped while the producer's queue was full")
        self._producer.poll(0.05)

    def close(self) -> None:
        self._producer.purge()
        # Records that nobody was told of keep their callbacks, and these the producer with its threads, for ever.
        while True:
            try:
                self._producer.poll(0)
                break
            except KafkaException:
                pass  # A fatal error, told once by whatever asks next; the records behind it have still to be told.
        self._offsets.close()


def _records(encoded: Encoded) -> list[bytes]:
    data = encoded.data
    return [data[begin : end - 1] for begin, end in itertools.pairwise(encoded.offsets.tolist())]


_FENCED = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})


def sorted_error(error: KafkaException, what: str, right: str = "more rights") -> WeirError:
    """The error in our terms, by what the task can do about it; `right` is what Kafka may have refused."""
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

    incarnation = ""

    def open(self) -> Repair:
        """Nothing to take over."""
        return Repair()

    def mark_end(self, lanes: Iterable[Lane]) -> dict[Lane, int]:
        """Nothing: what is written here, everybody reads."""
        return {}

    def settlement(self) -> Callable[[], Mapping[Lane, int] | None]:
        """There are no transactions, and no log."""
        return dict

    def deliver(self, delivery: Delivery) -> Counter[str]:
        """Write, wait until written, then commit offsets if there are any."""
        refused = self._produce(delivery)
        while self._producer.flush(0.5):
            if self._give_up.is_set():
                raise Aborted("stopped while records were not yet written")
        if self._failed:
            raise Aborted(f"records not written: {self._failed}")
        if delivery.offsets and not self._commit(delivery.offsets):
            raise Aborted("offsets not accepted by the group")
        return refused
