"""Consumers that read partitions by themselves, as they are assigned: they join no group and commit nothing."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, KafkaError, Message

from services.security import KafkaClients


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


WAIT_MS = 100
"""How long the broker keeps back the answer that there is nothing more: at its start a worker waits for it."""


def log_consumer(clients: KafkaClients, topic: str, *, news: bool = False, **more: Any) -> LogConsumer:
    """A consumer of a topic from its beginning, which tells where partitions end; or of `news` alone, which does not.

    Args:
        more: of its configuration, see `KafkaClients.librdkafka`.
    """
    return LogConsumer(
        clients.librdkafka(
            group__id=f"{topic}.readers",
            enable__auto__commit=False,
            auto__offset__reset="latest" if news else "earliest",
            enable__partition__eof=not news,
            log_level=0,
            **{"fetch__wait__max__ms": WAIT_MS, **more},
        )
    )
