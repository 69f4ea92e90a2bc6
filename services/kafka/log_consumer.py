"""Consumers that read given partitions without a group: they join none and commit nothing.

`log_consumer` makes one; `LogReader` follows a one-partition topic for as long as the process runs.
"""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from services.process.logs import get_log
from services.process.security import KafkaClients

WAIT_MS = 100
"""How long the broker delays the answer that there is nothing more. A starting worker waits for that answer."""

SILENCE_S = 10.0
"""After so long without a message, Kafka is asked whether there is one."""

ANSWER_S = 1.0
"""How long Kafka may take to answer, and then to deliver that message."""

MESSAGES = 1_000
"""At most so many messages are read at once."""


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
    """A consumer that reads a topic from its beginning and reports the ends of partitions.

    Args:
        more: of its configuration, see `KafkaClients.librdkafka`.
    """
    return LogConsumer(
        clients.librdkafka(
            group__id=f"{topic}.readers",
            enable__auto__commit=False,
            auto__offset__reset="earliest",
            enable__partition__eof=True,
            log_level=0,
            **{"fetch__wait__max__ms": WAIT_MS, **more},
        )
    )


class LogReader:
    """Follows the first partition of a topic for as long as the process runs.

    A librdkafka consumer can stop delivering messages, for ever and without an error, after all brokers were
    unreachable for a moment (`services.process.security.LASTING`). So a consumer that has delivered nothing for
    `SILENCE_S` is checked. If Kafka does not answer it, or has messages that it does not deliver, a new consumer
    continues from the same offset.

    Args:
        begin: the first offset, or `OFFSET_END` for later messages only.
        more: as in `log_consumer`.
    """

    def __init__(self, clients: KafkaClients, topic: str, begin: int = 0, **more: Any) -> None:
        self._clients = clients
        self._topic = topic
        self._next = begin
        self._more = more
        self._consumer = self._assigned()
        self._last_message_s = time.monotonic()

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def read(self, seconds: float) -> list[Message]:
        """The next messages and events, `PARTITION_EOF` among them, as soon as there are some.

        Raises:
            KafkaException: the topic cannot be read now.
        """
        messages = self._read(seconds)
        if messages or time.monotonic() - self._last_message_s < SILENCE_S:
            return messages
        self._last_message_s = time.monotonic()
        return [] if self._at_end() else self._read(ANSWER_S) or self._replace()

    def _read(self, seconds: float) -> list[Message]:
        first = self._consumer.poll(seconds)
        messages = [] if first is None else [first, *self._consumer.consume(MESSAGES, 0)]
        for message in messages:
            error = message.error()
            if error is None or error.code() == KafkaError._PARTITION_EOF:
                self._next = (message.offset() or 0) + (error is None)
                self._last_message_s = time.monotonic()
        return messages

    def _at_end(self) -> bool:
        """Whether Kafka reports that there is nothing to read."""
        try:
            ends = self._consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=ANSWER_S)
        except KafkaException:
            return False
        return ends is not None and 0 <= ends[1] <= self._next

    def _replace(self) -> list[Message]:
        get_log("kafka").warning("a topic brings nothing, reading it with another consumer", topic=self._topic)
        former, self._consumer = self._consumer, self._assigned()
        former.close()
        return []

    def _assigned(self) -> LogConsumer:
        consumer = log_consumer(self._clients, self._topic, **self._more)
        consumer.assign([TopicPartition(self._topic, 0, self._next)])
        return consumer
