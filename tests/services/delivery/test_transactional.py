"""Transactions that Kafka has ended in part only, in every combination of parts, on a real broker."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from confluent_kafka import KafkaError, KafkaException

from schemas.codecs.encode import Encoded
from schemas.messages.commits import Commit, StreamPoint
from services.delivery.epoch_output import BlockRecord, Delivery, RejectedRecord
from services.delivery.sink import Aborted, Fenced, Repair
from services.delivery.transactional import TransactionalSink
from services.kafka.readback import read_to_end
from services.kafka.topics import ControlTopics, Lane, OutputTopics, TopicAdmin
from services.process.security import KafkaClients
from services.recovery.committed_offsets import read_commits
from tests.broker_fixture import RestartableBroker, Topics
from tests.transaction_tearing import Outcome, Torn, hanging, offsets_part, tear
from tests.worker_harness import Reader, wait_for

pytestmark = pytest.mark.kafka

OUTCOMES: tuple[Outcome, ...] = ("commit", "abort", "hang")


class Unended:
    """A producer that dies when it is to end its transaction: records and offsets are in Kafka, the end is not."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def commit_transaction(self, *args: Any) -> None:
        assert self._real.flush(60) == 0
        raise KafkaException(KafkaError(KafkaError._FAIL, "died"))


@dataclass(frozen=True)
class Group:
    """The tasks of one group: task n reads partition n of one topic, and writes partition n of all others."""

    bootstrap: str
    name: str
    source: str
    out: str
    late: str
    dead: str
    inner: str

    @classmethod
    def make(cls, topics: Topics, tasks: int) -> Group:
        names = [topics(stem, partitions=tasks) for stem in ("source", "out", "late", "dead", "inner")]
        return cls(topics.bootstrap, names[0], *names)

    @property
    def clients(self) -> KafkaClients:
        return KafkaClients(self.bootstrap)

    @property
    def log(self) -> str:
        return ControlTopics.of(self.name).transactions

    def data(self, task: int) -> list[Lane]:
        """The partitions to which a task's transactions write what others read."""
        return [(topic, task) for topic in (self.out, self.late, self.dead, self.inner)]

    def sink(self, admin: TopicAdmin, task: int, tasks: int) -> TransactionalSink:
        names = self.out, self.late, self.dead
        topics = OutputTopics(*names, dict.fromkeys(names, tasks), dict.fromkeys(names, 1 << 20))
        writes = [(self.inner, task)]
        stop = threading.Event()
        return TransactionalSink(self.clients, self.name, task, topics, stop, 600_000, admin, (self.log, task), writes)

    def epoch(self, sink: TransactionalSink, task: int, number: int, results: int = 3) -> Delivery:
        """An epoch with something for every partition, and its offset; `results` 0 for the offset alone."""
        lines = [b"%d\n" % (10 * number + i) for i in range(results)]
        encoded = Encoded(b"".join(lines), np.cumsum([0, *map(len, lines)]))
        text = b"%d" % number
        rejected = [RejectedRecord(topic, text, b"key", (("reason", b"because"),)) for topic in (self.late, self.dead)]
        message = Commit(
            "query", number, number, 0, 1, (StreamPoint(number, number),), incarnation=sink.incarnation
        ).encode()
        offsets = {(self.source, task): (number, message)}
        if not results:
            return Delivery([], [], offsets)
        return Delivery([(self.out, encoded)], rejected, offsets, [BlockRecord(self.inner, task, text, 1)])

    def expected(self, numbers: Sequence[int]) -> dict[str, list[bytes]]:
        once = [b"%d" % number for number in numbers]
        results = [b"%d" % (10 * number + i) for number in numbers for i in range(3)]
        return {self.out: results, self.late: once, self.dead: once, self.inner: once}


def die_in(sink: TransactionalSink, delivery: Delivery) -> None:
    """Deliver up to the end of the transaction, which is never asked for."""
    sink._producer = Unended(sink._producer)  # type: ignore[assignment]
    with pytest.raises(Aborted, match="died"):
        sink.deliver(delivery)


def run_next(group: Group, admin: TopicAdmin, task: int, tasks: int, until: int) -> Repair:
    """Run the next incarnation of a task, which delivers what is not committed, up to an epoch; returns its repair."""
    sink = group.sink(admin, task, tasks)
    repair = sink.open()
    lane = group.source, task
    committed = sink.committed([lane])
    for number in range(committed[lane].offset + 1 if committed else 1, until + 1):
        sink.deliver(group.epoch(sink, task, number))
    assert sink.committed([lane])[lane].offset == until
    log = group.log, task
    assert sink.completion_check()() == {log: admin.log_ranges([log])[log][1] - 2}
    sink.close()
    return repair


def assert_exact(group: Group, tasks: int, numbers: Sequence[int]) -> None:
    """Each record once and in order in every partition, and nothing open anywhere."""
    for topic, expected in group.expected(numbers).items():
        reader = Reader(group.bootstrap, topic)
        found: dict[int, list[bytes | None]] = {}
        for record in reader.wait_for_count(tasks * len(expected)):
            found.setdefault(record.partition, []).append(record.value)
        wrong = {task: found.get(task) for task in range(tasks) if found.get(task) != expected}
        assert not wrong, f"{topic}: {wrong}, expected {expected}"
        assert not any(hanging(group.bootstrap, topic, task) for task in range(tasks))


def combinations() -> Iterator[tuple[Outcome, ...]]:
    """Outcomes of results, late and dead-letter records, blocks, the log, and offsets: all combinations of results,
    late records, log and offsets; those of the others change with them."""
    for number, (out, late, log, offsets) in enumerate(itertools.product(OUTCOMES, repeat=4)):
        yield out, late, OUTCOMES[number // 2 % 3], OUTCOMES[(number + number // 9) % 3], log, offsets


@pytest.mark.deep
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_any_combination_of_parts(restartable_broker: RestartableBroker, step: int) -> None:
    """Whatever a broker has completed of a transaction, each record is there once after the task has restarted.

    Kafka 4.3.1 was seen to forget all markers of a committed transaction when it was killed: 15 results were doubled.
    """
    cases = list(combinations())[::step]
    group, admin = begin(restartable_broker, len(cases))
    torn = []
    for task, outcomes in enumerate(cases):
        sink = group.sink(admin, task, len(cases))
        sink.open()
        sink.deliver(group.epoch(sink, task, 1))
        die_in(sink, group.epoch(sink, task, 2))
        sink.close()
        parts = [*group.data(task), (group.log, task), offsets_part(group.bootstrap, group.name)]
        torn.append(Torn(sink.transactional_id, dict(zip(parts, outcomes, strict=True))))
    tear(restartable_broker, torn)
    admin = TopicAdmin(group.clients)
    for task, outcomes in enumerate(cases):
        repair = run_next(group, admin, task, len(cases), 3)
        torn_apart = set(outcomes) != {"commit"} and set(outcomes) != {"abort"}
        assert bool(repair) == torn_apart, (outcomes, repair)
    assert_exact(group, len(cases), [1, 2, 3])


@pytest.mark.deep
def test_a_task_that_went_on(restartable_broker: RestartableBroker) -> None:
    """Kafka confirms a transaction and forgets its markers; the task goes on, with offsets alone, and dies.

    Its successor used to trust the old offsets, and its first commit made the forgotten records visible beside those
    that it had written again.
    """
    group, admin = begin(restartable_broker, 1)
    sink = group.sink(admin, 0, 1)
    sink.open()
    sink.deliver(group.epoch(sink, 0, 1))
    real = sink._producer
    die_in(sink, group.epoch(sink, 0, 2))
    parts = [*group.data(0), (group.log, 0), offsets_part(group.bootstrap, group.name)]
    tear(restartable_broker, [Torn(sink.transactional_id, dict.fromkeys(parts, "hang"))])
    sink._producer = real
    sink._until_done(lambda: real.commit_transaction(30), "none", waiting="not yet", failed="not committed")
    die_in(sink, group.epoch(sink, 0, 3, results=0))
    sink.close()
    repair = run_next(group, TopicAdmin(group.clients), 0, 1, 4)
    assert repair.commits == 1
    # The markers of the last transaction, which wrote to these too, have aborted the rest.
    assert sorted(repair.ended) == sorted(group.data(0))
    assert_exact(group, 1, [1, 2, 3, 4])


@pytest.mark.deep
def test_what_was_deleted_before_a_torn_transaction_is_not_missed(restartable_broker: RestartableBroker) -> None:
    """A reader has deleted what it has read, up to the marker before a transaction whose own markers are missing.

    The transaction's records there were taken for deleted, too, and were lost. Found by torture.
    """
    group, admin = begin(restartable_broker, 1)
    sink = group.sink(admin, 0, 1)
    sink.open()
    sink.deliver(group.epoch(sink, 0, 1))
    die_in(sink, group.epoch(sink, 0, 2))
    sink.close()
    inner = group.inner, 0
    parts = [*group.data(0), (group.log, 0), offsets_part(group.bootstrap, group.name)]
    outcomes: dict[Lane, Outcome] = {**dict.fromkeys(parts, "commit"), inner: "hang"}
    tear(restartable_broker, [Torn(sink.transactional_id, outcomes)])
    restartable_broker.topics.delete_before(group.inner, 2)
    admin = TopicAdmin(group.clients)
    assert admin.log_ranges([inner]) == {inner: (2, 3)}
    repair = run_next(group, admin, 0, 1, 3)
    assert repair.records == {inner: 1}
    assert [message.value() for _, message in read_to_end(group.clients, inner)] == [b"2", b"3"]


@pytest.mark.deep
def test_what_is_committed_can_be_read_while_offsets_hang(restartable_broker: RestartableBroker) -> None:
    """A worker reads its group's commits before it takes tasks over, and only the takeover ends a hanging transaction.

    The worker used to wait for that end in vain, and stopped.
    """
    group, admin = begin(restartable_broker, 1)
    sink = group.sink(admin, 0, 1)
    sink.open()
    sink.deliver(group.epoch(sink, 0, 1))
    die_in(sink, group.epoch(sink, 0, 2, results=0))
    sink.close()
    lane, hangs = (group.source, 0), offsets_part(group.bootstrap, group.name)
    tear(restartable_broker, [Torn(sink.transactional_id, {(group.log, 0): "commit", hangs: "hang"})])
    assert read_commits(group.clients, group.name, [lane])[lane].offset == 1
    run_next(group, TopicAdmin(group.clients), 0, 1, 2)
    assert read_commits(group.clients, group.name, [lane], stable=True)[lane].offset == 2


def begin(broker: RestartableBroker, tasks: int) -> tuple[Group, TopicAdmin]:
    """A group whose tasks have not run yet."""
    group = Group.make(broker.topics, tasks)
    admin = TopicAdmin(group.clients)
    admin.transactions(group.name, tasks, 1)
    return group, admin


@pytest.mark.deep
def test_a_fenced_task_is_told_so_while_it_waits_for_its_records(restartable_broker: RestartableBroker) -> None:
    """The client raises that it is fenced while it still runs the callbacks of its records.

    That became a SystemError, and the worker ended. Found by torture (105009).
    """
    group, admin = begin(restartable_broker, 1)
    fenced, successor = group.sink(admin, 0, 1), group.sink(admin, 0, 1)
    fenced.open()
    successor.open()
    with pytest.raises(Fenced):
        fenced.mark_end([(group.log, 0), *group.data(0)])
    with pytest.raises(Fenced):
        fenced.deliver(group.epoch(fenced, 0, 1))
    fenced.close()
    successor.close()


@pytest.mark.deep
def test_a_fenced_task_is_told_so_when_a_record_is_refused(
    restartable_broker: RestartableBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has learnt that it is fenced from the first record, and refuses the second without a reason.

    A sink that did not ask for the reason asked for a new producer, which fenced the successor.
    """
    group, admin = begin(restartable_broker, 1)
    fenced, successor = group.sink(admin, 0, 1), group.sink(admin, 0, 1)
    fenced.open()
    successor.open()
    produce_one = fenced._produce_one

    def is_fenced() -> bool:
        with pytest.raises(KafkaException) as error:
            fenced._producer.begin_transaction()
        return error.value.args[0].fatal()

    def then_wait(*args: Any, **options: Any) -> None:
        produce_one(*args, **options)
        wait_for(is_fenced, "the client is told that it is fenced")

    monkeypatch.setattr(fenced, "_produce_one", then_wait)
    with pytest.raises(Fenced, match="record not accepted by"):
        fenced.mark_end([(group.log, 0), *group.data(0)])
    fenced.close()
    successor.close()
