"""Consumers that read partitions by themselves, as they are assigned: they join no group and commit nothing."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from services.process.logs import get_log
from services.process.security import KafkaClients

WAIT_MS = 100
"""How long the broker keeps back the answer that there is nothing more: at its start a worker waits for it."""

SILENCE_S = 10.0
"""After so long without a message, Kafka is asked whether there is one."""

ANSWER_S = 1.0
"""How long it may take to answer, and then to bring that message."""

MESSAGES = 1_000
"""Read at once at most."""


class LogConsumer(Consumer):
    """A consumer to whom rights on groups are nothing.

    librdkafka wants the name of a group, and looks for the group's coordinator, though nobody joins. Where Kafka
    refuses that, it says so among the messages and reads on.
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
    """A consumer of a topic from its beginning, which tells where partitions end.

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
    """Follows the first partition of a topic for as long as a process lives.

    A consumer of librdkafka can stop bringing messages, for ever and without an error, after all brokers were gone for
    a moment (`services.process.security.LASTING`). One that has been silent for `SILENCE_S` is therefore looked at.
    Where Kafka does not answer it, or has messages that it does not bring, another one reads on from the same offset.

    Args:
        begin: the first offset, or `OFFSET_END` for what is yet to come.
        more: as in `log_consumer`.
    """

    def __init__(self, clients: KafkaClients, topic: str, begin: int = 0, **more: Any) -> None:
        self._clients = clients
        self._topic = topic
        self._next = begin
        self._more = more
        self._consumer = self._assigned()
        self._heard_s = time.monotonic()

    def close(self) -> None:
        """Read no more."""
        self._consumer.close()

    def read(self, seconds: float) -> list[Message]:
        """The next messages and events, `PARTITION_EOF` among them, as soon as there are some.

        Raises:
            KafkaException: it cannot be read now.
        """
        messages = self._read(seconds)
        if messages or time.monotonic() - self._heard_s < SILENCE_S:
            return messages
        self._heard_s = time.monotonic()
        return [] if self._at_end() else self._read(ANSWER_S) or self._replace()

    def _read(self, seconds: float) -> list[Message]:
        first = self._consumer.poll(seconds)
        messages = [] if first is None else [first, *self._consumer.consume(MESSAGES, 0)]
        for message in messages:
            error = message.error()
            if error is None or error.code() == KafkaError._PARTITION_EOF:
                self._next = (message.offset() or 0) + (error is None)
                self._heard_s = time.monotonic()
        return messages

    def _at_end(self) -> bool:
        """Whether Kafka says that there is nothing to read."""
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
