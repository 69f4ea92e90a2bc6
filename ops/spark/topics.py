"""Reads the history of topics: a query's input, its tasks' commits, and the results that it wrote.

**A consistent cut.** A task commits its input offsets, and with them the event time before which its results have been
written (`schemas.messages.commits`), in the transaction that contains these results. So the committed offsets are read
first. The output that is read after that has every result before the cut, and the input records before the offsets
determine those results. So a query can be audited while it runs. Readers of committed records see nothing behind an
open transaction, which may be another task's: so the output is read once no transaction is open before its end.

With PARTITION BY, task p has a cut of its own, writes the sink's partition p, and is responsible for the tuples of
partition p. Where joins are distributed (placement per-operator), the operators' cuts differ. Those of the last
operator are lower than or equal to the others: the least of all is used.

Tuples that were late only because the query had stopped waiting for their partition (idle timeouts) are no function of
the log; the late topic identifies them by partition and offset.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from ops.spark.compare import FoundResults
from ops.spark.results import result_stream
from ops.spark.sources import RecordCounts
from ops.spark.stage import Stage
from schemas.columns import I64, Batch, Column, Mask
from schemas.errors import BrokerError, StateError
from schemas.messages.commits import Commit
from schemas.query import Query, Type
from services.formats.decoders import Decoders
from services.kafka.log_consumer import log_consumer
from services.kafka.records import last_header
from services.kafka.topics import ControlTopics, Lane, TopicAdmin
from services.placement.tasks import Layout, lay_out
from services.process.fingerprint import fingerprint
from services.process.rights import reason
from services.process.security import KafkaClients
from services.recovery.committed_offsets import read_commits

BATCH = 20_000
_WAIT_S = 1.0
_TIMEOUT_S = 30.0
_OPEN_S = 90.0
"""How long a transaction may be open in a topic of output; Kafka aborts those of dead workers after a minute."""
_POLL_S = 0.2
_SILENCE_S = 60.0
"""Kafka counts as dead after that long without a record where one is known to exist."""


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """The progress of a running query.

    Attributes:
        offsets: the tasks have read the input records before these.
        end: all results with a smaller timestamp have been written.
        ends: by task of a query with PARTITION BY, in place of `end`; else None.
        tables: hex digests of the tables' contents, in the order of `Query.tables`.
    """

    offsets: Mapping[Lane, int]
    end: int
    ends: Mapping[int, int] | None = None
    tables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IdleLateTuples:
    """Tuples that were refused although their partition's clock did not say so: offsets by (stream, partition)."""

    offsets: Mapping[tuple[str, int], I64]

    def refused(self, stream: str, partition: int, offsets: I64) -> Mask | None:
        """(n,) bool: which of the tuples are among them; None where the partition has none."""
        known = self.offsets.get((stream, partition))
        return None if known is None else np.isin(offsets, known)


def layout_of(clients: KafkaClients, query: Query) -> Layout:
    """The tasks that a query has over its topics as they are now.

    Raises:
        BrokerError: a topic is missing or no broker answers.
    """
    counts = TopicAdmin(clients).inputs((stream.topic for stream in query.streams()), wait=False)
    return lay_out(query, counts)


def committed_cut(clients: KafkaClients, group: str, query: Query, layout: Layout) -> QueryProgress:
    """The cut of the last commits of a query's tasks.

    Raises:
        BrokerError: Kafka does not answer.
        StateError: nothing is committed, or by another query.
    """
    lanes = [lane for task in range(layout.tasks) for lane in layout.lanes(task)]
    found = read_commits(clients, group, lanes, stable=True)
    if not found:
        raise StateError(
            f"group {group!r} has committed nothing of {', '.join(sorted(layout.partitions))}: the query has not run, "
            "or in another group (--group)"
        )
    offsets = {lane: each.offset for lane, each in found.items()}
    messages = {lane: each.message for lane, each in found.items()}
    inner = _internal(clients, group, layout)
    if inner:
        return QueryProgress(offsets, distributed_cut(messages | inner))
    own = fingerprint(query)
    for (topic, number), message in messages.items():
        if message.fingerprint != own:
            control = ControlTopics.of(group).control
            placed = "its joins have tasks of their own, and this user needs DESCRIBE on topics"
            hint = f"; or {placed} '{control.removesuffix('control')}*'" if TopicAdmin(clients).hidden(control) else ""
            raise StateError(
                f"{topic}[{number}]: what group {group!r} has committed is of another query; its windows, streams or "
                f"predicates were different (--group names another group){hint}"
            )
    ends: dict[int, int] = {}
    for task in range(layout.tasks):
        committed = [messages[lane] for lane in layout.lanes(task) if lane in messages]
        ends[task] = max(committed, key=lambda message: message.epoch).cut if committed else 0
    tables = max(messages.values(), key=lambda message: message.epoch).tables
    return QueryProgress(offsets, max(ends.values()), ends if layout.copartitioned else None, tables)


def distributed_cut(messages: Mapping[Lane, Commit]) -> int:
    """The least cut of all tasks of distributed joins, from the commit of each partition.

    A task's newest message holds for all its partitions. The commits of one operator have one fingerprint. Where an
    operator has several tasks, each reads one partition of each topic, all with the same number.
    """
    operators: dict[str, dict[Lane, Commit]] = {}
    for lane, message in messages.items():
        operators.setdefault(message.fingerprint, {})[lane] = message
    newest: dict[tuple[str, int], Commit] = {}
    for name, lanes in operators.items():
        for (_, number), message in lanes.items():
            task = name, number if message.partitions < len(lanes) else 0
            if task not in newest or newest[task].epoch < message.epoch:
                newest[task] = message
    return min(message.cut for message in newest.values())


def _internal(clients: KafkaClients, group: str, layout: Layout) -> dict[Lane, Commit]:
    """A group's commits of topics that are not the query's: those between distributed joins."""
    admin = AdminClient(clients.librdkafka(log_level=0))
    request = [ConsumerGroupTopicPartitions(group)]
    try:
        (future,) = admin.list_consumer_group_offsets(request, request_timeout=_TIMEOUT_S).values()
        known: Any = future.result(_TIMEOUT_S).topic_partitions
        there = admin.list_topics(timeout=_TIMEOUT_S).topics
    except KafkaException as error:
        why = reason(error.args[0], f"DESCRIBE on group {group!r}")
        raise BrokerError(f"committed offsets of group {group!r}: {why}") from None
    lanes = [
        (tp.topic, tp.partition)
        for tp in known
        if tp.offset >= 0 and tp.topic not in layout.partitions and tp.topic in there
    ]
    found = read_commits(clients, group, lanes, stable=True) if lanes else {}
    return {lane: each.message for lane, each in found.items()}


def ends_of(clients: KafkaClients, lanes: Iterable[Lane]) -> dict[Lane, tuple[int, int]]:
    """First offset and end of each log; the end is that of the committed transactions.

    Raises:
        BrokerError: Kafka does not answer.
    """
    wanted = list(lanes)
    ranges = TopicAdmin(clients).log_ranges(wanted)
    admin = AdminClient(clients.librdkafka(log_level=0))
    asked = {TopicPartition(topic, number): OffsetSpec.latest() for topic, number in wanted}
    try:
        stable = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_TIMEOUT_S)
        found = {(tp.topic, tp.partition): int(future.result().offset) for tp, future in stable.items()}
    except KafkaException as error:
        names = ", ".join(sorted({topic for topic, _ in wanted}))
        why = reason(error.args[0], f"READ on topics {names}")
        raise BrokerError(f"ends of topics are unknown: {why}") from None
    return {lane: (ranges[lane][0], found[lane]) for lane in wanted}


def settled_ends(clients: KafkaClients, lanes: Iterable[Lane]) -> dict[Lane, tuple[int, int]]:
    """First offset and present end of each log, as soon as no transaction is open before that end.

    Raises:
        BrokerError: Kafka does not answer, or a transaction stays open.
    """
    admin, wanted = TopicAdmin(clients), list(lanes)
    ranges = admin.log_ranges(wanted)
    deadline = time.monotonic() + _OPEN_S
    while hidden := [lane for lane, (stable, _) in admin.stable_ends(wanted).items() if stable < ranges[lane][1]]:
        if time.monotonic() > deadline:
            shown = ", ".join(f"{topic}[{number}]" for topic, number in hidden)
            raise BrokerError(
                f"a transaction has been open in {shown} for {_OPEN_S:g} s, and hides the records behind it; see "
                "`kafka-transactions.sh find-hanging`"
            )
        time.sleep(_POLL_S)
    return ranges


def stage_topics(
    stage: Stage,
    clients: KafkaClients,
    query: Query,
    decoders: Decoders,
    ranges: Mapping[Lane, tuple[int, int]],
    idle: IdleLateTuples,
) -> RecordCounts:
    """Read the records of a query's topics within offset ranges.

    Raises:
        BrokerError: Kafka or a schema registry does not answer.
        UsageError: it is not known where a stream's schemas are.
        StateError: the staging folder is full.
    """
    own = {stream.name: decoders.records_of(stream) for stream in query.streams()}
    intake = RecordCounts()
    for (topic, partition), messages in records(clients, ranges):
        found = _Messages(partition, messages)
        offsets = found.offsets()
        for stream in query.streams():
            if stream.topic != topic:
                continue
            decoded = own[stream.name].decode(found)
            places = offsets[decoded.rows]
            refused = idle.refused(stream.name, partition, places)
            late = stage.add(stream, partition, decoded.batch, places, refused)
            intake.tuples += len(places)
            intake.late += int(np.count_nonzero(late if refused is None else late | refused))
            if decoded.dead:
                first = decoded.dead[0]
                where = f"{topic}[{partition}] offset {offsets[first.row]}"
                intake.count_dead(len(decoded.dead), f"{where}: {first.reason}")
    return intake


@dataclass(frozen=True, slots=True)
class _Messages:
    """Messages of one partition: `services.formats.records.TopicRecords`."""

    partition: int
    messages: Sequence[Message]

    def values(self) -> list[bytes | None]:
        return [message.value() for message in self.messages]

    def keys(self) -> list[bytes | None]:
        return [message.key() for message in self.messages]

    def headers(self, name: str) -> list[bytes | None]:
        return [last_header(message.headers(), name) for message in self.messages]

    def offsets(self) -> I64:
        return np.array([message.offset() for message in self.messages], np.int64)

    def timestamps(self) -> I64:
        return np.array([message.timestamp()[1] for message in self.messages], np.int64)


def read_results(clients: KafkaClients, query: Query, decoders: Decoders, sink: str, found: FoundResults) -> list[str]:
    """Stage all committed results of a topic.

    Returns:
        where records were that are no results of the query, and why.

    Raises:
        BrokerError: Kafka or a schema registry does not answer.
    """
    stream = result_stream(query, query.result_format)
    headers = {output.name: output.header for output in query.outputs if output.header is not None}
    decoder = decoders.of(replace(stream, fields=tuple(field for field in stream.fields if field.name not in headers)))
    wrong: list[str] = []
    for (topic, partition), messages in records(clients, settled_ends(clients, lanes_of(clients, sink))):
        read = _Messages(partition, messages)
        offsets, decoded = read.offsets(), decoder.decode_values(read.values())
        columns = {**decoded.batch.columns}
        for name, header in headers.items():
            texts = read.headers(header)
            raw = [texts[row] for row in decoded.rows.tolist()]
            own = [None if text is None else text.decode(errors="replace") for text in raw]
            columns[name] = Column.from_values(own, Type.STRING)
        found.add(Batch(decoded.batch.ts, columns), partition, offsets[decoded.rows])
        wrong += [f"{topic}[{partition}] offset {offsets[dead.row]}: {dead.reason}" for dead in decoded.dead]
    return wrong


def read_idle_late(clients: KafkaClients, query: Query) -> IdleLateTuples:
    """The tuples in the query's late topic that arrived after the query had stopped waiting for their partition.

    Raises:
        BrokerError: Kafka does not answer.
    """
    topic = f"{query.name}.late"
    found: dict[tuple[str, int], list[int]] = {}
    if not TopicAdmin(clients).exists(topic):
        return IdleLateTuples({})
    for _, messages in records(clients, settled_ends(clients, lanes_of(clients, topic))):
        for message in messages:
            headers = dict(message.headers() or [])
            if headers.get("reason") == b"idle":
                place = headers["stream"].decode(), int(headers["partition"])
                found.setdefault(place, []).append(int(headers["offset"]))
    return IdleLateTuples({place: np.array(offsets, np.int64) for place, offsets in found.items()})


def lanes_of(clients: KafkaClients, topic: str) -> list[Lane]:
    """The partitions of a topic.

    Raises:
        BrokerError: it is missing or no broker answers.
    """
    return [(topic, number) for number in range(TopicAdmin(clients).inputs([topic], wait=False)[topic])]


def records(clients: KafkaClients, ranges: Mapping[Lane, tuple[int, int]]) -> Iterator[tuple[Lane, list[Any]]]:
    """Committed records within offset ranges, begin <= offset < end; those of one partition are in order.

    Raises:
        BrokerError: Kafka does not answer any more.
    """
    left = {lane: end for lane, (begin, end) in ranges.items() if begin < end}
    consumer = log_consumer(clients, "weir-history", isolation__level="read_committed", auto__offset__reset="error")
    consumer.assign([TopicPartition(*lane, ranges[lane][0]) for lane in left])
    last = time.monotonic()
    try:
        while left:
            batches: dict[Lane, list[Any]] = {}
            done: set[Lane] = set()
            messages: list[Any] = consumer.consume(BATCH, _WAIT_S)
            for message in messages:
                lane, error = (message.topic(), message.partition()), message.error()
                if error is None:
                    if lane in left and message.offset() < left[lane]:
                        batches.setdefault(lane, []).append(message)
                    if lane in left and message.offset() >= left[lane] - 1:
                        done.add(lane)
                elif error.code() == KafkaError._PARTITION_EOF:
                    done.add(lane)
                elif not error.retriable():
                    why = reason(error, f"READ on topic {lane[0]!r}")
                    raise BrokerError(f"{lane[0]}[{lane[1]}] cannot be read: {why}")
            yield from batches.items()
            finished = [lane for lane in done if left.pop(lane, None) is not None]
            if finished:
                consumer.pause([TopicPartition(*lane) for lane in finished])
            if batches or finished:
                last = time.monotonic()
            elif time.monotonic() - last > _SILENCE_S:
                shown = ", ".join(f"{topic}[{number}]" for topic, number in left)
                raise BrokerError(f"no answer from Kafka for {_SILENCE_S:g} s while reading {shown}")
    finally:
        consumer.close()
