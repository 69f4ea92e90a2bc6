"""Topics of a query: waits for its inputs, creates its outputs, and looks up their limits and offsets.

Entry: `TopicAdmin`; `ControlTopics` and `OutputTopics` name the topics.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, fields
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
"""`max.message.bytes` of the late and dead-letter topics that Weir creates: they must also take a record that is too
large for other topics."""

HISTORY_BYTES = 64 << 20
"""So much of the history of statistics is kept: a day of some thirty tasks."""

REGISTRY = "weir.queries"
"""The topic of registered queries."""

_ATTEMPT_S = 1.0
"""How long the first attempt to reach Kafka lasts before we look for the reason; each further attempt lasts twice as
long."""

_TIMEOUT_S = 10.0
_LOOK_S = 3.0
"""How long one of several repeated look-ups may take: it cannot be stopped meanwhile."""

_RETRY_S = 1.0
_UNTIL_SHOWN_S = 30.0


@dataclass(frozen=True, slots=True)
class OutputTopics:
    """The topics that a query writes to.

    Attributes:
        sink: the topic of results; empty for a group, since each of its queries has its own.
        late: the topic of late records; empty where nothing can be late.
        dead: the dead-letter topic.
        partitions: the partition count of each topic.
        limits: the largest record of each topic, in bytes.
        spread: topics of results with keys. A task may write to all partitions of these, and to one of any other topic.
    """

    sink: str
    late: str
    dead: str
    partitions: dict[str, int]
    limits: dict[str, int]
    spread: set[str] = field(default_factory=set)

    def lanes(self, task: int) -> set[Lane]:
        """The partitions that a task may write to."""
        own = {(topic, task % count) for topic, count in self.partitions.items()}
        return own | {(topic, number) for topic in self.spread for number in range(self.partitions.get(topic, 0))}


@dataclass(frozen=True, slots=True)
class ControlTopics:
    """The topics through which the workers and the coordinator of a group communicate; see
    `schemas.messages.control`."""

    control: str
    statistics: str
    history: str
    feedback: str
    spills: str
    members: str
    transactions: str
    decisions: str
    repeats: str

    @staticmethod
    def of(group: str) -> ControlTopics:
        """The topics of a group. Characters that a topic name may not contain are replaced."""
        stem = re.sub(r"[^A-Za-z0-9._-]", "_", group)[:200]
        if stem != group:
            stem += "-" + hashlib.sha256(group.encode()).hexdigest()[:8]
        return ControlTopics(*(f"{stem}.{one.name}" for one in fields(ControlTopics)))


def pause(seconds: float) -> bool:
    """Wait; the default of `inputs`, which never gives up."""
    time.sleep(seconds)
    return False


class Refused(BrokerError):
    """Kafka, or a server that answers in its place, refuses the password or the TLS handshake."""


class Unreachable(BrokerError):
    """No broker answers."""


class TopicAdmin:
    """Looks up, creates and deletes topics. Blocking; for start-up and recovery."""

    def __init__(self, clients: KafkaClients) -> None:
        self._clients = clients
        self._events: list[KafkaError] = []
        self._last_error: KafkaError | None = None
        self._refusal_logged: set[str] = set()
        self._admin = self._client()
        self._log = get_log("topics")

    def _client(self) -> AdminClient:
        return AdminClient(self._clients.librdkafka(log_level=0, error_cb=self._note))

    def _answers(self, ask: Callable[[AdminClient], dict[Any, Future[Any]]]) -> dict[Any, Future[Any]]:
        """Make a request and wait for all answers. The local variable keeps the client until then: another thread may
        replace it, and the futures of a deleted client never end."""
        client = self._admin
        futures = ask(client)
        wait(futures.values())
        return futures

    def _note(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._events.append(error)

    def _metadata(self, seconds: float = _TIMEOUT_S) -> ClusterMetadata:
        """The metadata of the cluster, within so many seconds.

        Raises:
            Refused: Kafka does not let us in.
            Unreachable: no broker answers.
        """
        deadline, attempt_s = time.monotonic() + seconds, _ATTEMPT_S
        while True:
            left = deadline - time.monotonic()
            try:
                found = self._admin.list_topics(timeout=max(0.1, min(attempt_s, left)))
                break
            except KafkaException as error:
                problem = self._reason_of(error.args[0])
            # A client may never find a broker again (`services.process.security.LASTING`), so replace it.
            self._admin = self._client()
            # The call itself would go on when we are refused.
            if left <= attempt_s or isinstance(problem, Refused):
                raise problem
            attempt_s *= 2
        self._events, self._last_error = [], None
        return found

    def _reason_of(self, error: KafkaError) -> Refused | Unreachable:
        """Why a call had no answer. The call reports only that there was no connection. The reason is in an error
        event, and not every call causes one."""
        self._admin.poll(0)
        events, self._events = self._events, []
        candidates = [event for event in events if _refuses(event)] or events[-1:]
        self._last_error = max(candidates, key=lambda event: len(event.str()), default=self._last_error)
        cluster, cause = f"Kafka at {self._clients.bootstrap}", self._last_error
        if cause is None:
            return Unreachable(
                f"no answer from {cluster}: {error.str()}; is it up, and does it expect --security-protocol "
                f"{self._clients.protocol}?"
            )
        why = self._clients.explain(cause.str())
        if _refuses(cause):
            return Refused(
                f"{cluster} refuses the connection: {why}; check --security-protocol, user name, password and "
                "certificates"
            )
        return Unreachable(f"no answer from {cluster}: {why}")

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
            wait: True waits for ever, False not at all; None for ever, but at most `patience_ms` while Kafka refuses
            us.
            stopped: waits the given seconds; True when the caller wants to give up.
            tell: called with what this call waits for, at first and whenever it changes.

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
            # Several unreachable brokers cause messages with different texts in turn.
            kind = type(problem).__name__ if isinstance(problem, Refused | Unreachable) else str(problem)
            if kind != shown:
                shown = kind
                tell(str(problem))
                trying = wait is None and isinstance(problem, Refused)
                self._log.warning(f"{problem}; {f'trying for {patience_ms / 1000:g} s' if trying else 'waiting'}")
            if stopped(_RETRY_S):
                raise BrokerError(f"stopped while waiting: {problem}")

    def _partitions(self, names: list[str], seconds: float) -> dict[str, int]:
        known = self._metadata(seconds).topics
        found = {n: len(known[n].partitions) for n in names if n in known and known[n].partitions}
        missing = [n for n in names if n not in found]
        self._refuse_hidden(missing)
        if missing:
            raise BrokerError(f"missing input topic{'s' if len(missing) > 1 else ''}: {', '.join(missing)}")
        return found

    def _refuse_hidden(self, unlisted: Iterable[str]) -> None:
        if hidden := [name for name in unlisted if self.hidden(name)]:
            raise BrokerError(f"cannot read: Kafka refuses it, this user needs READ on topic {hidden[0]!r}")

    def hidden(self, topic: str) -> bool:
        """Whether an unlisted topic may exist: Kafka lists only topics that the user has some right to."""
        # `list_topics` of this one topic would create it where brokers create topics automatically.
        asked = TopicCollection([topic])
        try:
            self._answers(lambda client: client.describe_topics(asked, request_timeout=_TIMEOUT_S))[topic].result()
        except KafkaException as error:
            return error.args[0].code() in REFUSED
        return False

    def not_writable(self, topics: Iterable[str]) -> list[str]:
        """The given topics that this user may not write to."""
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

    def outputs(
        self, query: str, sink: str, tasks: int, replication: int, spread: int | None = None, *, late: bool = True
    ) -> OutputTopics:
        """Create missing output topics: the sink, if it has a name, the late and the dead-letter topic.

        Each gets a partition per task.

        Args:
            spread: for results with keys, how many partitions the sink gets.
            late: False where nothing can be late; then there is no late topic.

        Raises:
            BrokerError: a topic cannot be created.
        """
        of_late, dead = f"{query}.late" if late else "", f"{query}.dead"
        rejected = {"max.message.bytes": str(LETTER_MAX_BYTES)}
        wanted = [
            *([NewTopic(sink, spread or tasks, replication)] if sink else []),
            *([NewTopic(of_late, tasks, replication, config=rejected)] if late else []),
            NewTopic(dead, tasks, replication, config=rejected),
        ]
        partitions = self._create(wanted)
        spread_over = set() if spread is None else {sink}
        return OutputTopics(sink, of_late, dead, partitions, self._limits(partitions), spread_over)

    def add_output(
        self, topics: OutputTopics, sink: str, tasks: int, replication: int, *, spread: bool = False
    ) -> None:
        """Create one more sink if it is missing, and add it to `topics`; `spread` if its results have keys.

        Raises:
            BrokerError: the topic cannot be created.
        """
        partitions = self._create([NewTopic(sink, tasks, replication)])
        if spread:
            topics.spread.add(sink)
        topics.limits.update(self._limits(partitions))
        topics.partitions.update(partitions)

    def control(self, group: str, replication: int) -> ControlTopics:
        """Create the control, statistics and history topics of a group if they are missing.

        The control topic keeps everything for ever, uncompacted: whether a cut is valid depends on the answers before
        it (`services.control.barrier`), and a worker that restarts years later must fold the same messages as all
        others. That is some 500 bytes per task and plan change and 100 per task start: a change an hour in ten tasks
        makes 50 MB a year, which is read in a second. Statistics are kept for minutes, their history for a day.

        Raises:
            BrokerError: a topic cannot be created.
        """
        topics = ControlTopics.of(group)
        for_ever = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        for_minutes = {"cleanup.policy": "delete", "retention.ms": "600000", "segment.ms": "300000"}
        for_a_day = {
            "cleanup.policy": "delete",
            "retention.ms": "86400000",
            "segment.ms": "3600000",
            "retention.bytes": str(HISTORY_BYTES),
            "segment.bytes": str(HISTORY_BYTES // 8),
            "compression.type": "gzip",
        }
        self._create(
            [
                NewTopic(topics.control, 1, replication, config=for_ever),
                NewTopic(topics.statistics, 1, replication, config=for_minutes),
                NewTopic(topics.history, 1, replication, config=for_a_day),
            ]
        )
        return topics

    def internal(self, partitions: Mapping[str, int], replication: int) -> None:
        """Create the topics between the operators of a plan if they are missing.

        See `services.placement.distributed` for how long they keep their records.

        Raises:
            BrokerError: a topic cannot be created.
            StateError: a topic exists with another number of partitions.
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
        """Create the feedback topic of a distributed query if it is missing; it keeps records for minutes.

        Raises:
            BrokerError: the topic cannot be created.
        """
        topic = ControlTopics.of(group).feedback
        for_minutes = {"cleanup.policy": "delete", "retention.ms": "600000", "segment.ms": "300000"}
        self._create([NewTopic(topic, 1, replication, config=for_minutes)])
        return topic

    def spills(self, group: str, tasks: int, replication: int) -> str:
        """Create the topic of a query's spill events if it is missing, with a partition per task. If there are more
        tasks than partitions, add partitions. Only `trim` deletes records.

        Raises:
            BrokerError: the topic cannot be created or enlarged.
        """
        return self._per_task(ControlTopics.of(group).spills, tasks, replication)

    def transactions(self, group: str, tasks: int, replication: int) -> str:
        """Create the transaction log of a query (`services.delivery.transaction_log`) in the same way as `spills`.

        Raises:
            BrokerError: the topic cannot be created or enlarged.
        """
        return self._per_task(ControlTopics.of(group).transactions, tasks, replication)

    def repeats(self, group: str, tasks: int, replication: int) -> str:
        """Create the log of a query's repeats (`services.delivery.repeats_log`) in the same way as `spills`.

        Raises:
            BrokerError: the topic cannot be created or enlarged.
        """
        return self._per_task(ControlTopics.of(group).repeats, tasks, replication)

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

    def decisions(self, group: str, replication: int) -> str:
        """Create the topic that records which plan changes were weighed, if it is missing. It has one partition and
        keeps the newest record per decision.

        Raises:
            BrokerError: the topic cannot be created.
        """
        topic = ControlTopics.of(group).decisions
        self._create([NewTopic(topic, 1, replication, config={"cleanup.policy": "compact"})])
        return topic

    def members(self, group: str, replication: int) -> str:
        """Create the topic that records which queries each task of a group runs, if it is missing. It has one partition
        and keeps the newest record per task and query.

        Raises:
            BrokerError: the topic cannot be created.
        """
        topic = ControlTopics.of(group).members
        self._create([NewTopic(topic, 1, replication, config={"cleanup.policy": "compact"})])
        return topic

    def trim(self, offsets: Mapping[Lane, int]) -> None:
        """Delete the records before the given offsets. Failures are only logged; the next call tries again."""
        wanted = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items() if offset > 0]
        if not wanted:
            return
        deleted = self._answers(lambda client: client.delete_records(wanted, request_timeout=_TIMEOUT_S))
        for tp, future in deleted.items():
            try:
                future.result()
            except KafkaException as error:
                cause = error.args[0]
                # A missing right will not appear by itself, and the topic grows: warn once per topic.
                refused = cause.code() in REFUSED and tp.topic not in self._refusal_logged
                log = self._log.warning if refused else self._log.debug
                if refused:
                    self._refusal_logged.add(tp.topic)
                log("records not deleted", topic=tp.topic, reason=reason(cause, f"DELETE on topic {tp.topic!r}"))

    def delete(self, names: Iterable[str]) -> None:
        """Delete those of the topics that exist. Failures are only logged."""
        existing = self._listed()
        wanted = [name for name in names if name in existing]
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
        """Create the topic of registered queries if it is missing: one partition, the newest message per name.

        Raises:
            BrokerError: the topic cannot be created.
        """
        self._create([NewTopic(REGISTRY, 1, replication, config={"cleanup.policy": "compact"})])
        return REGISTRY

    def cleanup(self, query: str, replication: int) -> str:
        """Create the topic that records how far `weir cleanup` has delivered a query's pending results, if it is
        missing. It has one partition and keeps the newest record per backlog and group.

        Raises:
            BrokerError: the topic cannot be created.
        """
        topic = f"{query}.cleanup"
        self._create([NewTopic(topic, 1, replication, config={"cleanup.policy": "compact"})])
        return topic

    def check(self) -> None:
        """Check that Kafka answers.

        Raises:
            Refused: Kafka does not let us in.
            Unreachable: no broker answers.
        """
        self._metadata(_LOOK_S)

    def exists(self, topic: str) -> bool:
        """Whether a topic of that name exists.

        Raises:
            BrokerError: no broker answers, or this user has no right to the topic, so that Kafka does not say.
        """
        listed = topic in self._listed()
        if not listed:
            self._refuse_hidden([topic])
        return listed

    def _create(self, wanted: list[NewTopic]) -> dict[str, int]:
        """Create missing topics, and wait until they are listed; returns the partition counts."""
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
            if hidden := [name for name in names if name not in existing and self.hidden(name)]:
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
        """The longest record of each topic. Asks again while a broker does not know a topic that has just been made."""
        limits: dict[str, int] = {}
        unknown = set(names)
        deadline = time.monotonic() + _UNTIL_SHOWN_S
        while unknown:
            asked = [ConfigResource(ResourceType.TOPIC, name) for name in sorted(unknown)]
            described = self._answers(
                lambda client, asked=asked: client.describe_configs(asked, request_timeout=_TIMEOUT_S)
            )
            for resource, future in described.items():
                try:
                    limits[resource.name] = int(future.result()["max.message.bytes"].value)
                except KafkaException as error:
                    cause = error.args[0]
                    if cause.code() != KafkaError.TOPIC_AUTHORIZATION_FAILED and time.monotonic() < deadline:
                        continue
                    # Without the right to describe, Kafka's default is the safe assumption.
                    why = reason(cause, f"DESCRIBE_CONFIGS on topic {resource.name!r}")
                    self._log.warning("topic limits unknown, taking a megabyte", topic=resource.name, reason=why)
                    limits[resource.name] = 1_000_000
            unknown -= set(limits)
            if unknown:
                time.sleep(0.1)
        return limits

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The id that Kafka gave each topic when it was created; a topic made anew has another. Empty where a broker
        has none, or does not say."""
        asked = TopicCollection(sorted(set(topics)))
        found = self._answers(lambda client: client.describe_topics(asked, request_timeout=_TIMEOUT_S))
        ids: dict[str, str] = {}
        for name, future in found.items():
            try:
                topic_id = future.result().topic_id
            except KafkaException:
                continue
            is_given = topic_id.get_most_significant_bits() or topic_id.get_least_significant_bits()
            ids[name] = str(topic_id) if is_given else ""
        return ids

    def log_ranges(self, lanes: Iterable[Lane]) -> dict[Lane, tuple[int, int]]:
        """First offset and end of each partition's log.

        Raises:
            BrokerError: Kafka does not answer.
        """
        wanted = list(lanes)

        def found() -> dict[Lane, tuple[int, int]]:
            first, end = (self._offsets(wanted, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))
            return {lane: (first[lane], end[lane]) for lane in wanted}

        return self._until_known(wanted, found)

    def stable_ends(self, lanes: Iterable[Lane]) -> dict[Lane, tuple[int, int]]:
        """The ends of the committed records and of the log of each partition, without those that do not exist.

        Raises:
            BrokerError: Kafka does not answer.
        """
        asked = list(lanes)

        def found() -> dict[Lane, tuple[int, int]]:
            existing = self._listed()
            wanted = [lane for lane in asked if lane[1] < existing.get(lane[0], 0)]
            end = self._offsets(wanted, OffsetSpec.latest())
            stable = self._offsets(wanted, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
            return {lane: (stable[lane], end[lane]) for lane in wanted}

        return self._until_known(asked, found)

    def _until_known(
        self, lanes: list[Lane], ask: Callable[[], dict[Lane, tuple[int, int]]]
    ) -> dict[Lane, tuple[int, int]]:
        """Ask until Kafka answers, since partitions may just be moving to another broker."""
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            # Refreshes librdkafka's knowledge of leaders. After a broker's restart it would otherwise ask again and
            # again with the old leader epoch, and be refused.
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
            # Kafka has answered like this, without an error, when a partition had just lost its leader.
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return offsets


def _refuses(error: KafkaError) -> bool:
    """Whether the error is a refused password or TLS handshake; librdkafka has no error code for the latter."""
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
        # The client has dropped the broker that it asked, and will use others.
        KafkaError._DESTROY_BROKER,
        # The client knows of no leader, as after a broker that did not answer for a while.
        KafkaError._UNKNOWN_PARTITION,
    }
)
"""Errors of a partition that moves to another broker: it is worth asking again."""
