"""Consumers that read partitions by themselves, as they are assigned: they join no group and commit nothing."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer

from services.security import KafkaClients


def log_consumer(clients: KafkaClients, topic: str, *, news: bool = False, **more: Any) -> Consumer:
    """A consumer of a topic from its beginning, which tells where partitions end; or of `news` alone, which does not.

    Args:
        more: of its configuration, see `KafkaClients.librdkafka`.
    """
    return Consumer(
        clients.librdkafka(
            # Never joined; librdkafka wants a name.
            group__id=f"{topic}.readers",
            enable__auto__commit=False,
            auto__offset__reset="latest" if news else "earliest",
            enable__partition__eof=not news,
            log_level=0,
            **more,
        )
    )
