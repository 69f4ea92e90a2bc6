"""Reads what a consumer group has committed: offsets, and the commit message beside each. Entry: `read_commits`.

**Stable or not.** While a transaction that moves an offset is open, Kafka refuses to report the offset to a consumer of
isolation level read_committed, and reports the last committed offset to any other. A task that starts from the offsets
must wait. A caller that only needs the group's certain progress must not wait: a transaction that a broker has
forgotten stays open until a worker takes over its task (`services.delivery.transactional`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from schemas.errors import BrokerError, StateError
from schemas.messages.commits import decode_commit
from services.kafka.topics import Lane
from services.process.rights import reason
from services.process.security import KafkaClients
from services.recovery.starting_point import Committed

ATTEMPT_S = 5.0
"""How long one request may take before it is repeated."""

TIMEOUT_S = 60.0
"""How long Kafka may refuse to answer: while a broker restarts, or a dead worker's task is taken over."""

POLL_S = 0.05

TRANSIENT = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError._DESTROY_BROKER,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    }
)
"""Errors after which the request is repeated."""


def read_once(consumer: Consumer, group: str, lanes: Iterable[Lane]) -> dict[Lane, Committed]:
    """Read what the consumer's group has committed, in one attempt; partitions without a commit are absent.

    Raises:
        KafkaException: the whole request failed.
        BrokerError: Kafka refuses to report one of the offsets.
        StateError: another program commits in this group.
    """
    found: dict[Lane, Committed] = {}
    for tp in consumer.committed([TopicPartition(*lane) for lane in lanes], ATTEMPT_S):
        where = f"{tp.topic}[{tp.partition}]"
        if tp.error is not None:
            raise BrokerError(f"committed offset of {where}: {reason(tp.error, f'READ on topic {tp.topic!r}')}")
        if tp.offset >= 0:
            try:
                message = decode_commit(tp.metadata, where)
            except StateError as error:
                raise StateError(f"group {group!r}: {error}") from None
            found[tp.topic, tp.partition] = Committed(tp.offset, message)
    return found


def read_commits(
    clients: KafkaClients, group: str, lanes: Iterable[Lane], *, stable: bool = False
) -> dict[Lane, Committed]:
    """Read what a group has committed; partitions without a commit are absent.

    Args:
        stable: wait while a transaction that moves an offset is open.

    Raises:
        BrokerError: Kafka does not answer.
        StateError: another program commits in this group.
    """
    isolation = "read_committed" if stable else "read_uncommitted"
    consumer = Consumer(
        clients.librdkafka(group__id=group, enable__auto__commit=False, isolation__level=isolation, log_level=0)
    )
    asked, deadline = list(lanes), time.monotonic() + TIMEOUT_S
    try:
        while True:
            try:
                return read_once(consumer, group, asked)
            except KafkaException as error:
                # The exception may only report a timeout; an event then holds the cause.
                event = consumer.poll(0)
                cause = error.args[0] if event is None or event.error() is None else event.error()
                if cause.code() not in TRANSIENT or time.monotonic() > deadline:
                    why = reason(cause, f"READ on group {group!r}")
                    raise BrokerError(f"committed offsets of group {group!r} cannot be read: {why}") from None
                time.sleep(POLL_S)
    finally:
        consumer.close()
