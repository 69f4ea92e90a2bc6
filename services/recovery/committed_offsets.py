"""Reads what a consumer group has committed: offsets, and the commit message beside each.

Entries: `read_commits` asks once; `CommitReader` is for those who ask again and again, and `CommittedOffsets` for those
who decide themselves how long.

**Stable or not.** While a transaction that moves an offset is open, Kafka refuses to report the offset to a consumer of
isolation level read_committed, and reports the last committed offset to any other. A task that starts from the offsets
must wait. A caller that only needs the group's certain progress must not wait: a transaction that a broker has
forgotten stays open until a worker takes over its task (`services.delivery.transactional`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import closing

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

ASKING_S = 10.0
"""How long one consumer is asked before a new consumer replaces it, because a consumer may lose all brokers for good
(`services.process.security.LASTING`)."""

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


Again = Callable[[str, KafkaError, bool], None]
"""Is called when Kafka has not answered: what could not be read, why, and whether a new consumer asks next. Raises an
error to give up."""


class CommittedOffsets:
    """Asks Kafka what one group has committed. For one thread.

    Args:
        stable: see the module.

    Attributes:
        consumer: the consumer that asks now.
    """

    def __init__(self, clients: KafkaClients, group: str, *, stable: bool) -> None:
        self._group = group
        isolation = "read_committed" if stable else "read_uncommitted"
        self._settings = clients.librdkafka(
            group__id=group, enable__auto__commit=False, isolation__level=isolation, log_level=0
        )
        self.consumer = Consumer(self._settings)

    def close(self) -> None:
        """Close the consumer."""
        self.consumer.close()

    def read(self, lanes: Iterable[Lane], again: Again) -> dict[Lane, Committed]:
        """Read what is committed; partitions without a commit are absent.

        Raises:
            BrokerError: Kafka refuses.
            StateError: another program commits in this group.
        """
        asked, since_s = list(lanes), time.monotonic()
        while True:
            try:
                return self.read_once(asked)
            except KafkaException as error:
                cause: KafkaError = error.args[0]
            what = f"committed offsets of group {self._group!r} cannot be read"
            if not transient(cause):
                raise BrokerError(f"{what}: {reason(cause, f'READ on group {self._group!r}')}")
            overdue = time.monotonic() - since_s > ASKING_S
            again(what, cause, overdue)
            if overdue:
                self.consumer.close()
                self.consumer, since_s = Consumer(self._settings), time.monotonic()
            time.sleep(POLL_S)

    def read_once(self, lanes: Iterable[Lane]) -> dict[Lane, Committed]:
        """As `read`, in one attempt.

        Raises:
            KafkaException: the whole request failed.
            BrokerError: Kafka refuses to report one of the offsets.
            StateError: another program commits in this group.
        """
        found: dict[Lane, Committed] = {}
        for tp in self.consumer.committed([TopicPartition(*lane) for lane in lanes], ATTEMPT_S):
            where = f"{tp.topic}[{tp.partition}]"
            if tp.error is not None:
                raise BrokerError(f"committed offset of {where}: {reason(tp.error, f'READ on topic {tp.topic!r}')}")
            if tp.offset >= 0:
                try:
                    message = decode_commit(tp.metadata, where)
                except StateError as error:
                    raise StateError(f"group {self._group!r}: {error}") from None
                found[tp.topic, tp.partition] = Committed(tp.offset, message)
        return found


def transient(error: KafkaError) -> bool:
    """Whether the same request may succeed later."""
    return not error.fatal() and (error.retriable() or error.code() in TRANSIENT)


class CommitReader:
    """Asks Kafka again and again what some groups have committed, with a consumer per group. For one thread at a time.

    Args:
        stable: wait while a transaction that moves an offset is open.
    """

    def __init__(self, clients: KafkaClients, *, stable: bool = False) -> None:
        self._clients = clients
        self._stable = stable
        self._offsets: dict[str, CommittedOffsets] = {}

    def read(self, group: str, lanes: Iterable[Lane]) -> dict[Lane, Committed]:
        """Read what a group has committed; partitions without a commit are absent.

        Raises:
            BrokerError: Kafka does not answer within TIMEOUT_S.
            StateError: another program commits in this group.
        """
        deadline = time.monotonic() + TIMEOUT_S
        if group not in self._offsets:
            self._offsets[group] = CommittedOffsets(self._clients, group, stable=self._stable)
        offsets = self._offsets[group]

        def again(what: str, cause: KafkaError, _: bool) -> None:
            # The exception may only report a timeout; an event then holds the cause.
            event = offsets.consumer.poll(0)
            if event is not None and (error := event.error()) is not None:
                cause = error
            if not transient(cause) or time.monotonic() > deadline:
                raise BrokerError(f"{what}: {reason(cause, f'READ on group {group!r}')}")

        return offsets.read(lanes, again)

    def close(self) -> None:
        """Close the consumers."""
        while self._offsets:
            self._offsets.popitem()[1].close()


def read_commits(
    clients: KafkaClients, group: str, lanes: Iterable[Lane], *, stable: bool = False
) -> dict[Lane, Committed]:
    """As `CommitReader.read`, once."""
    with closing(CommitReader(clients, stable=stable)) as reader:
        return reader.read(group, lanes)
