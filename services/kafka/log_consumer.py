"""Consumers that read given partitions without a group: they join none and commit nothing.

`log_consumer` makes one. `LogReader` follows a one-partition topic for as long as the process runs, and `LogFollower`
does so in a thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from services.process.logs import get_log
from services.process.rights import reason
from services.process.security import KafkaClients

WAIT_MS = 100
"""How long the broker delays the answer that there is nothing more. A starting worker waits for that answer."""

SILENCE_S = 10.0
"""After so long without a message, Kafka is asked whether there is one."""

ANSWER_S = 1.0
"""How long Kafka may take to answer, and then to deliver that message."""

MESSAGES = 1_000
"""At most so many messages are read at once."""

RETRY_S = 0.1
"""How long a follower waits after the client has failed."""


class LogConsumer(Consumer):
    """A consumer that needs no rights on groups.

    librdkafka requires the name of a group and looks for its coordinator, though this consumer joins none. If Kafka
    refuses that, librdkafka reports it among the messages and continues to read; this class drops that report.
    """

    def poll(self, timeout: float = -1) -> Message | None:
        """The next message or event."""
        message = super().poll(timeout)
        return None if message is not None and _of_the_group(message) else message

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """The next messages and events."""
        return [message for message in super().consume(num_messages, timeout) if not _of_the_group(message)]


def _of_the_group(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def log_consumer(clients: KafkaClients, topic: str, **more: Any) -> LogConsumer:
    """A consumer that reads topics from their beginning and reports the ends of partitions.

    Args:
        topic: what is read; it names the group that librdkafka requires.
        more: of its configuration, see `KafkaClients.librdkafka`.
    """
    return LogConsumer(
        clients.librdkafka(
            group__id=f"{topic}.readers",
            enable__auto__commit=False,
            enable__partition__eof=True,
            log_level=0,
            **{"auto__offset__reset": "earliest", "fetch__wait__max__ms": WAIT_MS, **more},
        )
    )


def position_of(message: Message) -> str:
    """Where a record is, for error messages."""
    return f"{message.topic()}[{message.partition()}]@{message.offset()}"


@dataclass(frozen=True, slots=True)
class LogBatch:
    """What one read of a topic has brought. False if that is nothing.

    Attributes:
        records: in the order of their offsets.
        at_end: whether Kafka has reported that nothing follows what has been read.
        problem: why the topic cannot be read; empty if it can.
    """

    records: list[Message]
    at_end: bool = False
    problem: str = ""

    def __bool__(self) -> bool:
        return bool(self.records or self.at_end or self.problem)


class LogReader:
    """Follows the first partition of a topic for as long as the process runs.

    A librdkafka consumer can stop delivering messages, for ever and without an error, after all brokers were
    unreachable for a moment (`services.process.security.LASTING`). So a consumer that has delivered nothing for
    `SILENCE_S` is checked. If Kafka does not answer it, or has messages that it does not deliver, a new consumer
    continues from the same offset.

    Args:
        begin: the first offset, or `OFFSET_END` for later messages only.
        more: as in `log_consumer`.

    Attributes:
        position: the offset after what was read.
    """

    def __init__(self, clients: KafkaClients, topic: str, begin: int = 0, **more: Any) -> None:
        self.position = begin
        self._clients = clients
        self._topic = topic
        self._more = more
        self._consumer = self._assigned()
        self._last_message_s = time.monotonic()

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def read(self, seconds: float) -> LogBatch:
        """What follows, as soon as there is something.

        Raises:
            KafkaException: the topic cannot be read now.
        """
        batch = self._read(seconds)
        if batch or time.monotonic() - self._last_message_s < SILENCE_S:
            return batch
        self._last_message_s = time.monotonic()
        return batch if self._at_end() else self._read(ANSWER_S) or self._replace()

    def _read(self, seconds: float) -> LogBatch:
        first = self._consumer.poll(seconds)
        records: list[Message] = []
        at_end, problem = False, ""
        for message in [] if first is None else [first, *self._consumer.consume(MESSAGES, 0)]:
            error = message.error()
            if error is None:
                records.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end = True
            else:
                problem = reason(error, f"READ on topic {self._topic!r}")
                continue
            self.position = (message.offset() or 0) + (error is None)
            self._last_message_s = time.monotonic()
        return LogBatch(records, at_end, problem)

    def _at_end(self) -> bool:
        """Whether Kafka reports that there is nothing to read."""
        try:
            ends = self._consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=ANSWER_S)
        except KafkaException:
            return False
        return ends is not None and 0 <= ends[1] <= self.position

    def _replace(self) -> LogBatch:
        get_log("kafka").warning("a topic brings nothing, reading it with another consumer", topic=self._topic)
        former, self._consumer = self._consumer, self._assigned()
        former.close()
        return LogBatch([])

    def _assigned(self) -> LogConsumer:
        consumer = log_consumer(self._clients, self._topic, **self._more)
        consumer.assign([TopicPartition(self._topic, 0, self.position)])
        return consumer


class LogFollower:
    """Follows the first partition of a topic in a thread until it is stopped, whatever fails meanwhile.

    Args:
        name: of the thread.
        take: is called in the thread with everything that is read, and with an empty batch after `poll_s` of silence.
        poll_s: how often `take` and `before` are called at least.
        before: is called in the thread before each read. If it fails, that counts as a failed read.
        begin, more: as in `LogReader`.

    Attributes:
        stopped: True once `stop` was called.
        position: the offset after what was read; for `take`.
    """

    def __init__(
        self,
        clients: KafkaClients,
        topic: str,
        name: str,
        take: Callable[[LogBatch], None],
        *,
        poll_s: float,
        before: Callable[[], object] = lambda: None,
        begin: int = 0,
        **more: Any,
    ) -> None:
        self._reader = LogReader(clients, topic, begin, **more)
        self._take = take
        self._poll_s = poll_s
        self._before = before
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    @property
    def position(self) -> int:
        return self._reader.position

    def start(self) -> None:
        """Start to read."""
        self._thread.start()

    def stop(self) -> None:
        """Read no more. Any thread may call this, also from `take`."""
        self._stop.set()

    def close(self) -> None:
        """Stop, wait for the thread, and close the consumer."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join()
        self._reader.close()

    def _run(self) -> None:
        while not self.stopped:
            try:
                self._before()
                batch = self._reader.read(self._poll_s)
            except (KafkaException, RuntimeError) as error:
                batch = LogBatch([], problem=str(error))
                self._stop.wait(RETRY_S)
            self._take(batch)
