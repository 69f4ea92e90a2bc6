"""Observes a running query for `weir explain --analyze`: reads the statistics topic for a few seconds.

Entry: `read_observations`.
"""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaException, TopicPartition

from operators.data.statistics import EngineStatistics
from operators.explain.analyze import Observation
from schemas.errors import BrokerError, DataError, StateError
from schemas.messages.control import TaskStatistics, decode_control
from services.kafka.log_consumer import log_consumer, position_of
from services.kafka.topics import ControlTopics, TopicAdmin
from services.process.rights import REFUSED, reason
from services.process.security import KafkaClients

RECENT_S = 6.0
"""Tasks publish every second. A task that has not published for so long does not run."""

APART_S = 1.5
"""Least time between the two messages that rates are computed from."""

PATIENCE_S = 4.0
"""How long to wait for more messages."""

TIMEOUT_S = 15.0


def read_observations(clients: KafkaClients, group: str) -> tuple[list[Observation], int]:
    """Observations of the running tasks of a group, in the order of their numbers, and how many tasks the query has.

    Raises:
        NewerFormatError: a newer worker has published statistics.
        BrokerError: no task runs, or Kafka does not answer.
    """
    topic = ControlTopics.of(group).statistics
    if not TopicAdmin(clients).exists(topic):
        raise BrokerError(
            f"no worker of group {group!r} has ever run on {clients.bootstrap} (topic {topic} is missing): "
            "start `weir worker`, or give its --group"
        )
    consumer = log_consumer(clients, topic)
    try:
        since = TopicPartition(topic, 0, int((time.time() - RECENT_S) * 1000))
        consumer.assign(consumer.offsets_for_times([since], timeout=TIMEOUT_S))
        statistics = _collect(consumer)
    except KafkaException as error:
        why = reason(error.args[0], f"READ on topic {topic!r}")
        raise BrokerError(f"topic {topic} cannot be read: {why}") from None
    finally:
        consumer.close()
    if not statistics:
        raise BrokerError(f"no task of group {group!r} has reported anything for {RECENT_S:g} s: does a worker run?")
    tasks = max(messages[-1].tasks for messages in statistics.values())
    return [_observation(messages) for _, messages in sorted(statistics.items())], tasks


def _collect(consumer: Consumer) -> dict[int, list[TaskStatistics]]:
    """Messages per task, oldest first. Returns when each task has sent two that are far enough apart.

    Raises:
        KafkaException: Kafka refuses to deliver them.
    """
    found: dict[int, list[TaskStatistics]] = {}
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for message in consumer.consume(1_000, 0.2):
            error = message.error()
            if error is not None:
                if error.code() in REFUSED:
                    raise KafkaException(error)
                continue
            try:
                decoded = decode_control(message.value(), position_of(message))
            except StateError:
                continue  # damaged, or another program's
            if isinstance(decoded, TaskStatistics):
                found.setdefault(decoded.task, []).append(decoded)
        enough = found and len(found) >= max(messages[-1].tasks for messages in found.values())
        if enough and all(_before(messages) is not None for messages in found.values()):
            break
    return found


def _before(messages: list[TaskStatistics]) -> TaskStatistics | None:
    """The latest message of the same incarnation that is far enough from the last one."""
    last = messages[-1]
    same = [m for m in messages if m.incarnation == last.incarnation and last.seconds - m.seconds >= APART_S]
    return same[-1] if same else None


def _observation(messages: list[TaskStatistics]) -> Observation:
    last, before = messages[-1], _before(messages)
    try:
        now = EngineStatistics.from_document(last.engine)
        then = None if before is None else EngineStatistics.from_document(before.engine)
    except DataError as error:
        raise BrokerError(f"task {last.task} runs another version of Weir: {error}") from None
    apart = 0.0 if before is None else last.seconds - before.seconds
    return Observation(last.task, now, then, apart, last.plan_version)
