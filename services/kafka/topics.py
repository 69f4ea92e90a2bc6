"""Topics of a query: wait for its inputs, create its outputs, know their limits and offsets."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from schemas.errors import BrokerError, StateError
from services.process.logs import get_log
from services.process.rights import REFUSED, reason
from services.process.security import KafkaClients

Lane = tuple[str, int]
"""A topic and a partition number."""

LETTER_MAX_BYTES = 64 * 1024 * 1024
"""`max.message.bytes` of the late and dead-letter topics that Weir creates: a record too large for others
must still find a place there."""

REGISTRY = "weir.queries"
"""The topic of registered queries."""

_ATTEMPT_S = 1.0
"""How long the first attempt to reach Kafka takes before we look why there is no answer; each next takes twice that."""

_TIMEOUT_S = 10.0
_LOOK_S = 3.0
"""How long one look takes of those that are repeated: nobody can stop it meanwhile."""

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
    """Where the workers and the coordinator of a group meet; see `schemas.messages.control`."""

    control: str
    statistics: str
    feedback: str
    spills: str
    members: str
    transactions: str

    @staticmethod
    def of(group: str) -> ControlTopics:
        """Their names. A group may be called what a topic may not."""
        stem = re.sub(r"[^A-Za-z0-9._-]", "_", group)[:200]
        if stem != group:
            stem += "-" + hashlib.sha256(group.encode()).hexdigest()[:8]
        names = ("control", "statistics", "feedback", "spills", "members", "transactions")
        return ControlTopics(*(f"{stem}.{name}" for name in names))


def pause(seconds: float) -> bool:
    """Wait; nobody wants to give up."""
    time.sleep(seconds)
    return False


class Refused(BrokerError):
    """Kafka, or what answers in its place, refuses the password, or the TLS handshake."""


class Unreachable(BrokerError):
    """No broker answers."""


class TopicAdmin:
    """Asks and tells the cluster about topics. Blocking; for start-up and recovery."""

    def __init__(self, clients: KafkaClients) -> None:
        self._clients = clients
        self._events: list[KafkaError] = []
        self._trouble: KafkaError | None = None
        self._told: set[str] = set()
        self._admin = self._client()
        self._log = get_log("topics")

    def _client(self) -> AdminClient:
        return AdminClient(self._clients.librdkafka(log_level=0, error_cb=self._note))

    def _answers(self, ask: Callable[[AdminClient], dict[Any, Future[Any]]]) -> dict[Any, Future[Any]]:
        """What Kafka has answered. The client is kept until then: another thread may replace it, and a client that goes
        leaves its futures open for ever."""
        client = self._admin
        futures = ask(client)
        wait(futures.values())
        return futures

    def _note(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._events.append(error)

    def _metadata(self, seconds: float = _TIMEOUT_S) -> ClusterMetadata:
        """What the cluster says of itself, within so many seconds.

        Raises:
            Refused: it does not let us in.
            Unreachable: no broker answers.
        """
        deadline, attempt_s = time.monotonic() + seconds, _ATTEMPT_S
        while True:
            left = deadline - time.monotonic()
            try:
                found = self._admin.list_topics(timeout=max(0.1, min(attempt_s, left)))
                break
            except KafkaException as error:
                problem = self._trouble_with(error.args[0])
            # A client may find no broker any more (`services.process.security.LASTING`): the next call has another one.
            self._admin = self._client()
            # The call itself would go on when we are refused.
            if left <= attempt_s or isinstance(problem, Refused):
                raise problem
            attempt_s *= 2
        self._events, self._trouble = [], None
        return found

    def _trouble_with(self, error: KafkaError) -> Refused | Unreachable:
        """Why a call had no answer. It knows only that there was no connection; the reason is in an error event, and
        not every call has its own."""
        self._admin.poll(0)
        events, self._events = self._events, []
        telling = [event for event in events if _refuses(event)] or events[-1:]
        self._trouble = max(telling, key=lambda event: len(event.str()), default=self._trouble)
        place, trouble = f"Kafka at {self._clients.bootstrap}", self._trouble
        if trouble is None:
            return Unreachable(
                f"no answer from {place}: {error.str()}; is it up, and does it expect --security-protocol "
                f"{self._clients.protocol}?"
            )
        why = self._clients.explain(trouble.str())
        if _refuses(trouble):
            return Refused(
                f"{place} refuses the connection: {why}; check --security-protocol, user name, password and "
                "certificates"
            )
        return Unreachable(f"no answer from {place}: {why}")

    def cluster_id(self) -> str:
        """The cluster's id.

        Raises:
            BrokerError: no broker answers.
        """
        return str(self._metadata().cluster_id)

    def inputs(
        self,
        topics: Iterable[str],
        wait: bool | None = None,
        patience_ms: int = 60_000,
        stopped: Callable[[float], bool] = pause,
        tell: Callable[[str], None] = lambda _: None,
    ) -> dict[str, int]:
        """Partition counts of the input topics; waits for missing ones, and for a broker.

        Args:
            wait: for ever; False: not at all; None: for ever, but for at most `patience_ms` while Kafka refuses us.
            stopped: waits the given seconds; True when the caller wants to give up.
            tell: told what is waited for, whenever that is asked for again.

        Raises:
            Refused: Kafka does not let us in.
            BrokerError: a topic is missing or no broker answers, and `wait` is False or `stopped`.
        """
        names = sorted(set(topics))
        shown = ""
        refused_s = None
        tell(f"an answer from Kafka at {self._clients.bootstrap}")
        while True:
            try:
                return self._partitions(names, _TIMEOUT_S if wait is False else _LOOK_S)
            except BrokerError as error:
                problem, now = error, time.monotonic()
            refused_s = (refused_s or now) if isinstance(problem, Refused) else None
            overdue = refused_s is not None and now - refused_s > patience_ms / 1000 and wait is None
            if wait is False or overdue:
                raise problem
            # Brokers take turns in being unreachable, each with words of its own.
            said = type(problem).__name__ if isinstance(problem, Refused | Unreachable) else str(problem)
            if said != shown:
                shown = said
                tell(str(problem))
                trying = wait is None and isinstance(problem, Refused)
                self._log.warning(f"{problem}; {f'trying for {patience_ms / 1000:g} s' if trying else 'waiting'}")
            if stopped(_RETRY_S):
                raise BrokerError(f"stopped while waiting: {problem}")

    def _partitions(self, names: list[str], seconds: float) -> dict[str, int]:
        known = self._metadata(seconds).topics
        found = {n: len(known[n].partitions) for n in names if n in known and known[n].partitions}
        missing = [n for n in names if n not in found]
        if hidden := [name for name in missing if self._hidden(name)]:
            raise BrokerError(f"cannot read: Kafka refuses it, this user needs READ on topic {hidden[0]!r}")
        if missing:
            raise BrokerError(f"missing input topic{'s' if len(missing) > 1 else ''}: {', '.join(missing)}")
        return found

    def _hidden(self, topic: str) -> bool:
        """Whether a topic that is not listed may be there: Kafka lists those that the user has some right to."""
        # Not `list_topics` of this one topic, which makes it where brokers make topics by themselves.
        asked = TopicCollection([topic])
        try:
            self._answers(lambda client: client.describe_topics(asked, request_timeout=_TIMEOUT_S))[topic].result()
        except KafkaException as error:
            return error.args[0].code() in REFUSED
        return False

    def not_writable(self, topics: Iterable[str]) -> list[str]:
        """Those topics that this user may not write to."""
        denied = []
        asked = TopicCollection(sorted(set(topics)))
        options = {"include_authorized_operations": True, "request_timeout": _TIMEOUT_S}
        found = self._answers(lambda client: client.describe_topics(asked, **options))
        for name, future in found.items():
            try:
                if AclOperation.WRITE not in (future.result().authorized_operations or ()):
                    denied.append(name)
            except KafkaException:
                denied.append(name)
        return denied

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
        it (`services.control.barrier`), and a worker that comes back years later must fold what all others have
        folded. That
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
        """Create the topics between the operators of a plan where missing.

        See `services.placement.distributed` for how long they keep their records.

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
        return self._per_task(ControlTopics.of(group).spills, tasks, replication)

    def transactions(self, group: str, tasks: int, replication: int) -> str:
        """Create the transaction log of a query where missing (`services.delivery.transaction_log`), as `spills`.

        Raises:
            BrokerError: it cannot be created or enlarged.
        """
        return self._per_task(ControlTopics.of(group).transactions, tasks, replication)

    def _per_task(self, topic: str, tasks: int, replication: int) -> str:
        config = {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "max.message.bytes": str(LETTER_MAX_BYTES),
        }
        if self._create([NewTopic(topic, tasks, replication, config=config)])[topic] < tasks:
            try:
                self._answers(lambda client: client.create_partitions([NewPartitions(topic, tasks)]))[topic].result()
            except KafkaException as error:
                if self._listed().get(topic, 0) < tasks:
                    why = reason(error.args[0], f"ALTER on topic {topic!r}")
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
        wanted = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items() if offset > 0]
        if not wanted:
            return
        deleted = self._answers(lambda client: client.delete_records(wanted, request_timeout=_TIMEOUT_S))
        for tp, future in deleted.items():
            try:
                future.result()
            except KafkaException as error:
                cause = error.args[0]
                # A right that is missing will be missing the next time too, while the topic grows.
                tell = self._log.warning if cause.code() in REFUSED and tp.topic not in self._told else self._log.debug
                self._told.add(tp.topic)
                tell("records not deleted", topic=tp.topic, reason=reason(cause, f"DELETE on topic {tp.topic!r}"))

    def delete(self, names: Iterable[str]) -> None:
        """Delete topics that nobody uses any more, if they are there. What fails is left behind."""
        there = self._listed()
        wanted = [name for name in names if name in there]
        deleted = self._answers(lambda client: client.delete_topics(wanted) if wanted else {})
        for name, future in deleted.items():
            try:
                future.result()
                self._log.info("topic deleted", topic=name)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue  # another worker was first
                why = reason(error.args[0], f"DELETE on topic {name!r}")
                self._log.warning("topic not deleted", topic=name, reason=why)

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

    def check(self) -> None:
        """Return when Kafka answers.

        Raises:
            Refused: it does not let us in.
            Unreachable: no broker answers.
        """
        self._metadata(_LOOK_S)

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
        created = self._answers(
            lambda client: client.create_topics(missing, request_timeout=_TIMEOUT_S) if missing else {}
        )
        for name, future in created.items():
            try:
                future.result()
                self._log.info("topic created", topic=name)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    why = reason(error.args[0], f"CREATE on topic {name!r}, or WRITE if it is there")
                    raise BrokerError(f"topic {name!r} cannot be created: {why}") from None
        names = [topic.topic for topic in wanted]
        deadline = time.monotonic() + _UNTIL_SHOWN_S
        while any(not existing.get(name) for name in names):
            if hidden := [name for name in names if name not in existing and self._hidden(name)]:
                raise BrokerError(f"cannot write: Kafka refuses it, this user needs WRITE on topic {hidden[0]!r}")
            if time.monotonic() > deadline:
                raise BrokerError(f"topics {', '.join(names)} do not show up within {_UNTIL_SHOWN_S:g} s")
            time.sleep(0.05)
            existing = self._listed()
        return {name: existing[name] for name in names}

    def _listed(self) -> dict[str, int]:
        topics = self._metadata().topics
        return {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}

    def _limits(self, names: Iterable[str]) -> dict[str, int]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        limits: dict[str, int] = {}
        described = self._answers(lambda client: client.describe_configs(resources, request_timeout=_TIMEOUT_S))
        for resource, future in described.items():
            try:
                limits[resource.name] = int(future.result()["max.message.bytes"].value)
            except KafkaException as error:
                # Without the right to describe, Kafka's default is the safe assumption.
                why = reason(error.args[0], f"DESCRIBE_CONFIGS on topic {resource.name!r}")
                self._log.warning("topic limits unknown, taking a megabyte", topic=resource.name, reason=why)
                limits[resource.name] = 1_000_000
        return limits

    def log_ranges(self, lanes: Iterable[Lane]) -> dict[Lane, tuple[int, int]]:
        """First offset and end of each partition's log.

        Raises:
            BrokerError: Kafka does not say.
        """
        wanted = list(lanes)

        def found() -> dict[Lane, tuple[int, int]]:
            first, end = (self._offsets(wanted, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))
            return {lane: (first[lane], end[lane]) for lane in wanted}

        return self._until_known(wanted, found)

    def stable_ends(self, lanes: Iterable[Lane]) -> dict[Lane, tuple[int, int]]:
        """Where committed records end, and where the log does; topics that do not exist are left out.

        Raises:
            BrokerError: Kafka does not say.
        """
        asked = list(lanes)

        def found() -> dict[Lane, tuple[int, int]]:
            there = self._listed()
            wanted = [lane for lane in asked if lane[1] < there.get(lane[0], 0)]
            end = self._offsets(wanted, OffsetSpec.latest())
            stable = self._offsets(wanted, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
            return {lane: (stable[lane], end[lane]) for lane in wanted}

        return self._until_known(asked, found)

    def _until_known(
        self, lanes: list[Lane], ask: Callable[[], dict[Lane, tuple[int, int]]]
    ) -> dict[Lane, tuple[int, int]]:
        """The answer about partitions that may be on their way to another broker."""
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            # Refreshes what librdkafka believes of leaders: after a broker's restart it would ask with the old leader
            # epoch again and again, and be refused.
            self._listed()
            try:
                return ask()
            except KafkaException as error:
                cause = error.args[0]
                if cause.code() not in MOVING or time.monotonic() > deadline:
                    topics = ", ".join(sorted({topic for topic, _ in lanes}))
                    why = reason(cause, f"READ on topics {topics}")
                    raise BrokerError(f"offsets of topics {topics} are unknown: {why}") from None
            time.sleep(0.1)

    def _offsets(
        self, lanes: list[Lane], spec: OffsetSpec, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[Lane, int]:
        if not lanes:
            return {}
        asked = {TopicPartition(topic, number): spec for topic, number in lanes}
        options = {"isolation_level": isolation, "request_timeout": _TIMEOUT_S}
        found = self._answers(lambda client: client.list_offsets(asked, **options))
        offsets = {(tp.topic, tp.partition): int(future.result().offset) for tp, future in found.items()}
        if min(offsets.values()) < 0:
            # Answered so, without an error, where a partition had just lost its leader.
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return offsets


def _refuses(error: KafkaError) -> bool:
    """Whether librdkafka was let down by a password or a TLS handshake; of the latter it has no error code."""
    return error.code() in REFUSALS or "SSL_HANDSHAKE" in error.str()


REFUSALS = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED})

MOVING = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._TRANSPORT,
        # The client has dropped the broker that it asked, and will find others.
        KafkaError._DESTROY_BROKER,
    }
)
"""A partition is on its way to another broker: it pays to ask again."""
