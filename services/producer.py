"""Delivers epochs to Kafka: results, letters and offsets, exactly once or at least once.

**Exactly once.** One transactional producer per task. Its transactional id names the group and the task, so
`open` (init_transactions) makes Kafka refuse every older producer of the same task: a worker that was cut
off, paused or believed dead cannot add anything afterwards. Only then are committed offsets read. An epoch
is one transaction. Offsets are sent with the group but without a member generation: Apache Kafka accepts
that from transactions while the group has members, and fencing rests on the transactional id alone, which
holds also when group and task disagree about who is who.

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
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from schemas.codecs.encode import Encoded
from schemas.commits import decode_commit
from schemas.errors import BrokerError, WeirError
from services.call_thread import CallThread
from services.delivery import BlockRecord, Delivery, Letter
from services.logs import get_log
from services.recovery import Committed
from services.security import KafkaClients
from services.topics import Lane, OutputTopics

ATTEMPT_S = 5.0
"""How long one call to the transaction coordinator may take before we look whether to give up."""

OVERDUE_S = 2 * ATTEMPT_S
"""When an attempt that has not returned is given up: librdkafka does not always keep to its time limits."""

HEADER_BYTES = 512
"""Room kept below a topic's record limit for what Kafka adds to a record."""

CHUNK_RECORDS = 2_000


class Fenced(WeirError):
    """A newer worker has taken the task over."""


class Aborted(WeirError):
    """The epoch was not delivered; nothing of it is visible."""


class Sink(Protocol):
    """Where a task delivers."""

    def open(self) -> None:
        """Take the task over from whoever had it."""

    def committed(self, lanes: Iterable[Lane]) -> dict[Lane, Committed]:
        """Committed offsets and messages; partitions without are absent."""

    def deliver(self, delivery: Delivery) -> Counter[str]:
        """Deliver and commit; by topic, how many results were too large for it and became dead letters."""

    def close(self) -> None:
        """Release connections; an open transaction is left to be aborted."""


class _Client:
    """What both sinks share: the producer, and reading committed offsets."""

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
        # One partition per task: a task's results stay in the order of their timestamps.
        self._task = task
        self._failed: KafkaError | None = None
        self._give_up = give_up
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
        self._offsets = Consumer(
            clients.librdkafka(
                group__id=group, enable__auto__commit=False, isolation__level="read_committed", log_level=0
            )
        )

    def committed(self, lanes: Iterable[Lane]) -> dict[Lane, Committed]:
        asked = [TopicPartition(topic, number) for topic, number in lanes]
        while True:
            try:
                found = self._offsets.committed(asked, ATTEMPT_S)
                break
            except KafkaException as error:
                self._check_patience(error, "committed offsets cannot be read")
        out: dict[Lane, Committed] = {}
        for tp in found:
            if tp.error is not None:
                raise BrokerError(f"committed offset of {tp.topic}[{tp.partition}]: {tp.error.str()}")
            if tp.offset >= 0:
                message = decode_commit(tp.metadata, f"{tp.topic}[{tp.partition}]")
                out[(tp.topic, tp.partition)] = Committed(tp.offset, message)
        return out

    def _check_patience(self, error: KafkaException, what: str) -> None:
        """Return when it is worth trying again."""
        cause = error.args[0]
        if cause.fatal() or not (cause.retriable() or cause.code() in _TRANSIENT):
            raise BrokerError(f"{what}: {cause.str()}") from None
        if self._give_up.is_set():
            raise Aborted(f"{what}: {cause.str()}; stopped trying")
        time.sleep(0.05)

    def _produce(self, delivery: Delivery) -> Counter[str]:
        """Hand everything to the producer's queue; results over their topic's limit become dead letters, counted."""
        refused = [(topic, self._produce_results(topic, encoded)) for topic, encoded in delivery.results]
        for letter in (*delivery.letters, *(letter for _, letters in refused for letter in letters)):
            self._produce_letter(letter)
        for block in delivery.blocks:
            self._produce_block(block)
        return Counter(topic for topic, letters in refused for _ in letters)

    def _produce_block(self, block: BlockRecord) -> None:
        delivered = self._delivered if block.written is None else self._telling(block.written)
        while True:
            try:
                self._producer.produce(
                    block.topic, block.value, block.key, partition=block.partition, on_delivery=delivered
                )
                return
            except BufferError:
                self._make_room()
            except KafkaException as error:
                raise _sorted(error, f"block not accepted by {block.topic}") from None

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
        while todo:
            # A full queue marks the messages that found no place; they stay in order, being the last ones.
            try:
                self._producer.produce_batch(topic, todo, partition=partition, on_delivery=self._delivered)
            except BufferError:
                pass
            except KafkaException as error:
                raise _sorted(error, "result not accepted") from None
            todo = [
                {name: message[name] for name in ("value", "key") if name in message}
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
        while True:
            try:
                self._producer.produce(
                    letter.topic,
                    value,
                    key,
                    partition=self._task % self._topics.partitions[letter.topic],
                    headers=headers,
                    on_delivery=self._delivered,
                )
                return
            except BufferError:
                self._make_room()
            except KafkaException as error:
                raise _sorted(error, f"letter not accepted by {letter.topic}") from None

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed = error

    def _telling(self, written: Callable[[int], None]) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            self._delivered(error, message)
            if error is None:
                written(message.offset() or 0)

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


_TRANSIENT = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    }
)
_FENCED = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})


def _sorted(error: KafkaException, what: str) -> WeirError:
    """The error in our terms, by what the task can do about it."""
    cause = error.args[0]
    if cause.code() in _FENCED:
        return Fenced(f"{what}: {cause.str()}")
    if cause.fatal():
        return BrokerError(f"{what}: {cause.str()}")
    return Aborted(f"{what}: {cause.str()}")


class TransactionalSink(_Client):
    """Exactly once."""

    def __init__(
        self,
        clients: KafkaClients,
        group: str,
        task: int,
        topics: OutputTopics,
        give_up: threading.Event,
        transaction_timeout_ms: int,
    ) -> None:
        self.transactional_id = f"{group}.{task}"
        super().__init__(
            clients,
            group,
            task,
            topics,
            give_up,
            transactional__id=self.transactional_id,
            transaction__timeout__ms=transaction_timeout_ms,
        )
        self._member = self._offsets.consumer_group_metadata()
        self._calls = CallThread(f"offsets-{task}")

    def open(self) -> None:
        """Fence every older producer of this task; an epoch that it left open is aborted or finished."""
        self._until_done(lambda: self._producer.init_transactions(ATTEMPT_S), "task cannot be taken over")

    def deliver(self, delivery: Delivery) -> Counter[str]:
        """One transaction.

        Raises:
            Fenced, Aborted, BrokerError: see the module; after Aborted the sink must be made anew.
        """
        try:
            self._producer.begin_transaction()
            refused = self._produce(delivery)
            offsets = [
                TopicPartition(topic, number, offset, metadata)
                for (topic, number), (offset, metadata) in delivery.offsets.items()
            ]
            if offsets:
                self._until_done(lambda: self._send_offsets(offsets), "offsets not accepted")
            self._until_done(lambda: self._producer.commit_transaction(ATTEMPT_S), "epoch not committed")
            return refused
        except KafkaException as error:
            raise _sorted(error, "transaction") from None

    def _send_offsets(self, offsets: list[TopicPartition]) -> None:
        """One attempt. When it does not return, the transaction stays open until the task's next producer fences this
        one: whatever still becomes of the call, nobody commits it."""
        producer, member = self._producer, self._member
        try:
            self._calls.run(lambda: producer.send_offsets_to_transaction(offsets, member, ATTEMPT_S), OVERDUE_S)
        except TimeoutError:
            raise Aborted(f"offsets not accepted: the Kafka client has not come back for {OVERDUE_S:g} s") from None

    def close(self) -> None:
        self._calls.close()
        super().close()

    def _until_done(self, call: Callable[[], Any], what: str) -> None:
        """Repeat a call that Kafka calls retriable: its outcome is unknown until it returns."""
        told = False
        while True:
            try:
                call()
                if told:
                    self._log.info("Kafka answers again", task=self._task)
                return
            except KafkaException as error:
                cause = error.args[0]
                if not cause.retriable() or cause.txn_requires_abort() or self._give_up.is_set():
                    raise _sorted(error, what) from None
                if not told:
                    told = True
                    self._log.warning(f"{what} yet, trying on", task=self._task, reason=cause.str())


class IdempotentSink(_Client):
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
        super().__init__(clients, group, task, topics, give_up)
        self._commit = commit

    def open(self) -> None:
        """Nothing to take over."""

    def deliver(self, delivery: Delivery) -> Counter[str]:
        """Write, wait until written, then commit offsets if there are any."""
        refused = self._produce(delivery)
        while self._producer.flush(0.5):
            if self._give_up.is_set():
                raise Aborted("stopped while records were not yet written")
        if self._failed is not None:
            raise Aborted(f"records not written: {self._failed.str()}")
        if delivery.offsets and not self._commit(delivery.offsets):
            raise Aborted("offsets not accepted by the group")
        return refused
