"""Topics of a query: wait for its inputs, create its outputs, know their limits and offsets."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec, ResourceType

from schemas.errors import BrokerError, StateError
from services.logs import get_log
from services.security import KafkaClients
from services.trimming import delete_before

Lane = tuple[str, int]
"""A topic and a partition number."""

LETTER_MAX_BYTES = 64 * 1024 * 1024
"""`max.message.bytes` of the late and dead-letter topics that Weir creates: a record too large for others
must still find a place there."""

REGISTRY = "weir.queries"
"""The topic of registered queries."""

_TIMEOUT_S = 10.0
_RETRY_S = 1.0
_UNTIL_SHOWN_S = 30.0


@dataclass(frozen=True, slots=True)
class OutputTopics:
    """Where a query writes.

    Attributes:
        sink: of results; empty for a group, whose queries have one each.
        partitions: how many each topic has.
        limits: largest record of each topic, in bytes.
    """

    sink: str
    late: str
    dead: str
    partitions: dict[str, int]
    limits: dict[str, int]


@dataclass(frozen=True, slots=True)
class ControlTopics:
    """Where the workers and the coordinator of a group meet; see `schemas.control`."""

    control: str
    statistics: str
    feedback: str
    spills: str
    members: str

    @staticmethod
    def of(group: str) -> ControlTopics:
        """Their names. A group may be called what a topic may not."""
        stem = re.sub(r"[^A-Za-z0-9._-]", "_", group)[:200]
        if stem != group:
            stem += "-" + hashlib.sha256(group.encode()).hexdigest()[:8]
        return ControlTopics(*(f"{stem}.{name}" for name in ("control", "statistics", "feedback", "spills", "members")))


class TopicAdmin:
    """Asks and tells the cluster about topics. Blocking; for start-up and recovery."""

    def __init__(self, clients: KafkaClients) -> None:
        self._admin = AdminClient(clients.librdkafka(log_level=0, error_cb=self._note))
        self._trouble = ""
        self._log = get_log("topics")

    def _note(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._trouble = error.str().partition(" (after ")[0]

    def _why(self, error: KafkaException) -> str:
        """What librdkafka's last error event says of a failed call, such as a refused password; the call itself
        knows only that there was no connection, and not every call has an event of its own."""
        self._admin.poll(0)
        return self._trouble or str(error.args[0].str())

    def cluster_id(self) -> str:
        """The cluster's id.

        Raises:
            BrokerError: no broker answers.
        """
        try:
            return str(self._admin.list_topics(timeout=_TIMEOUT_S).cluster_id)
        except KafkaException as error:
            raise BrokerError(f"no answer from Kafka: {self._why(error)}") from None

    def inputs(
        self, topics: Iterable[str], wait: bool, stopped: Callable[[float], bool] = lambda _: False
    ) -> dict[str, int]:
        """Partition counts of the input topics; waits for missing ones, and for a broker, if `wait`.

        Args:
            stopped: waits the given seconds; True when the caller wants to give up.

        Raises:
            BrokerError: a topic is missing or no broker answers, and `wait` is False or `stopped`.
        """
        names = sorted(set(topics))
        shown = ""
        while True:
            counts, problem = self._partitions(names)
            if not problem:
                return counts
            if not wait:
                raise BrokerError(problem)
            if problem != shown:
                self._log.warning(f"{problem}; waiting")
                shown = problem
            if stopped(_RETRY_S):
                raise BrokerError(f"stopped while waiting: {problem}")

    def _partitions(self, names: list[str]) -> tuple[dict[str, int], str]:
        try:
            known = self._admin.list_topics(timeout=_TIMEOUT_S).topics
        except KafkaException as error:
            return {}, f"no answer from Kafka: {self._why(error)}"
        found = {n: len(known[n].partitions) for n in names if n in known and known[n].partitions}
        missing = [n for n in names if n not in found]
        if missing:
            return {}, f"missing input topic{'s' if len(missing) > 1 else ''}: {', '.join(missing)}"
        return found, ""

    def outputs(self, query: str, sink: str, tasks: int, replication: int) -> OutputTopics:
        """Create the sink (a partition per task), if it has a name, late and dead-letter topics where missing.

        Raises:
            BrokerError: a topic cannot be created.
        """
        late, dead = f"{query}.late", f"{query}.dead"
        letters = {"max.message.bytes": str(LETTER_MAX_BYTES)}
        wanted = [
            *([NewTopic(sink, tasks, replication)] if sink else []),
            NewTopic(late, tasks, replication, config=letters),
            NewTopic(dead, tasks, replication, config=letters),
        ]
        partitions = self._create(wanted)
        return OutputTopics(sink, late, dead, partitions, self._limits(partitions))

    def add_output(self, topics: OutputTopics, sink: str, tasks: int, replication: int) -> None:
        """Create one more sink where missing, and add it to the topics that are written to.

        Raises:
            BrokerError: it cannot be created.
        """
        partitions = self._create([NewTopic(sink, tasks, replication)])
        topics.limits.update(self._limits(partitions))
        topics.partitions.update(partitions)

    def control(self, group: str, replication: int) -> ControlTopics:
        """Create the control and statistics topics of a group where missing.

        The control topic keeps everything for ever, uncompacted: whether a cut counts depends on the answers before
        it (`services.barrier`), and a worker that comes back years later must fold what all others have folded. That
        is some 500 bytes per task and plan change and 100 per task start: a change an hour in ten tasks makes 50 MB a
        year, which is read in a second. Statistics are kept for minutes.

        Raises:
            BrokerError: a topic cannot be created.
        """
        topics = ControlTopics.of(group)
        for_ever = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        for_minutes = {"cleanup.policy": "delete", "retention.ms": "600000", "segment.ms": "300000"}
        self._create(
            [
                NewTopic(topics.control, 1, replication, config=for_ever),
                NewTopic(topics.statistics, 1, replication, config=for_minutes),
            ]
        )
        return topics

    def internal(self, partitions: Mapping[str, int], replication: int) -> None:
        """Create the topics between the operators of a plan where missing. See `services.placed` for how long they
        keep their records.

        Raises:
            BrokerError: one cannot be created.
            StateError: one is there with another number of partitions.
        """
        config = {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "max.message.bytes": str(LETTER_MAX_BYTES),
        }
        found = self._create([NewTopic(name, n, replication, config=config) for name, n in partitions.items()])
        for name, n in partitions.items():
            if found[name] != n:
                raise StateError(
                    f"topic {name!r} has {found[name]} partitions, not {n}: it was made for joins split otherwise; "
                    "give the query a new group (--group)"
                )

    def feedback(self, group: str, replication: int) -> str:
        """Create the topic in which the joins of a plan ask each other where missing; records are kept for minutes.

        Raises:
            BrokerError: it cannot be created.
        """
        topic = ControlTopics.of(group).feedback
        for_minutes = {"cleanup.policy": "delete", "retention.ms": "600000", "segment.ms": "300000"}
        self._create([NewTopic(topic, 1, replication, config=for_minutes)])
        return topic

    def spills(self, group: str, tasks: int, replication: int) -> str:
        """Create the topic of a query's spill events where missing, a partition per task; partitions that tasks were
        given since then are added. Nothing is deleted but by `trim`.

        Raises:
            BrokerError: it cannot be created or enlarged.
        """
        topic = ControlTopics.of(group).spills
        config = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        if self._create([NewTopic(topic, tasks, replication, config=config)])[topic] < tasks:
            try:
                self._admin.create_partitions([NewPartitions(topic, tasks)])[topic].result()
            except KafkaException as error:
                if self._listed().get(topic, 0) < tasks:
                    why = error.args[0].str()
                    raise BrokerError(f"topic {topic!r} cannot have a partition per task, {tasks}: {why}") from None
        return topic

    def members(self, group: str, replication: int) -> str:
        """Create the topic of what the tasks of a group run where missing: one partition, the newest record per task
        and query.

        Raises:
            BrokerError: it cannot be created.
        """
        topic = ControlTopics.of(group).members
        self._create([NewTopic(topic, 1, replication, config={"cleanup.policy": "compact"})])
        return topic

    def trim(self, offsets: Mapping[Lane, int]) -> None:
        """Delete the records before the given offsets. What fails is tried again with the next call."""
        wanted = {lane: offset for lane, offset in offsets.items() if offset > 0}
        for (topic, _), error in delete_before(self._admin, wanted, _TIMEOUT_S).items():
            self._log.debug("records not deleted", topic=topic, reason=error.str())

    def delete(self, names: Iterable[str]) -> None:
        """Delete topics that nobody uses any more, if they are there. What fails is left behind."""
        there = self._listed()
        wanted = [name for name in names if name in there]
        for name, future in (self._admin.delete_topics(wanted) if wanted else {}).items():
            try:
                future.result()
                self._log.info("topic deleted", topic=name)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue  # another worker was first
                self._log.warning("topic not deleted", topic=name, reason=error.args[0].str())

    def registry(self, replication: int) -> str:
        """Create the topic of registered queries where missing: one partition, the newest message per name.

        Raises:
            BrokerError: it cannot be created.
        """
        self._create([NewTopic(REGISTRY, 1, replication, config={"cleanup.policy": "compact"})])
        return REGISTRY

    def cleanup(self, query: str, replication: int) -> str:
        """Create the topic of what is delivered of a query's debts where missing: one partition, the newest record
        per debt and group.

        Raises:
            BrokerError: it cannot be created.
        """
        topic = f"{query}.cleanup"
        self._create([NewTopic(topic, 1, replication, config={"cleanup.policy": "compact"})])
        return topic

    def exists(self, topic: str) -> bool:
        """Whether there is a topic of that name.

        Raises:
            BrokerError: no broker answers.
        """
        return topic in self._listed()

    def _create(self, wanted: list[NewTopic]) -> dict[str, int]:
        """Create topics where missing, and wait until they show up; their partition counts."""
        existing = self._listed()
        missing = [topic for topic in wanted if topic.topic not in existing]
        for name, created in (
            self._admin.create_topics(missing, request_timeout=_TIMEOUT_S) if missing else {}
        ).items():
            try:
                created.result()
                self._log.info("topic created", topic=name)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise BrokerError(f"topic {name!r} cannot be created: {error.args[0].str()}") from None
        names = [topic.topic for topic in wanted]
        deadline = time.monotonic() + _UNTIL_SHOWN_S
        while any(not existing.get(name) for name in names):
            if time.monotonic() > deadline:
                raise BrokerError(f"topics {', '.join(names)} do not show up within {_UNTIL_SHOWN_S:g} s")
            time.sleep(0.05)
            existing = self._listed()
        return {name: existing[name] for name in names}

    def _listed(self) -> dict[str, int]:
        try:
            topics = self._admin.list_topics(timeout=_TIMEOUT_S).topics
        except KafkaException as error:
            raise BrokerError(f"no answer from Kafka: {self._why(error)}") from None
        return {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}

    def _limits(self, names: Iterable[str]) -> dict[str, int]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        limits: dict[str, int] = {}
        for resource, future in self._admin.describe_configs(resources, request_timeout=_TIMEOUT_S).items():
            try:
                limits[resource.name] = int(future.result()["max.message.bytes"].value)
            except KafkaException as error:
                # Without the right to describe, Kafka's default is the safe assumption.
                self._log.warning("topic limits unknown", topic=resource.name, reason=error.args[0].str())
                limits[resource.name] = 1_000_000
        return limits

    def log_ranges(self, lanes: Iterable[Lane]) -> dict[Lane, tuple[int, int]]:
        """First offset and end of each partition's log.

        Raises:
            BrokerError: Kafka does not say.
        """
        wanted = list(lanes)
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            # Refreshes what librdkafka believes of leaders: after a broker's restart it would ask with the old leader
            # epoch again and again, and be refused.
            self._listed()
            try:
                first, end = (self._offsets(wanted, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))
                return {lane: (first[lane], end[lane]) for lane in wanted}
            except KafkaException as error:
                cause = error.args[0]
                if cause.code() not in MOVING or time.monotonic() > deadline:
                    raise BrokerError(f"offsets of input topics are unknown: {cause.str()}") from None
            time.sleep(0.1)

    def _offsets(self, lanes: list[Lane], spec: OffsetSpec) -> dict[Lane, int]:
        asked = {TopicPartition(topic, number): spec for topic, number in lanes}
        found = self._admin.list_offsets(asked, request_timeout=_TIMEOUT_S)
        return {(tp.topic, tp.partition): int(future.result().offset) for tp, future in found.items()}


MOVING = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
"""A partition is on its way to another broker: it pays to ask again."""
