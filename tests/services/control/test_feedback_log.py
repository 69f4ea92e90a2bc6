"""What tasks ask of each other through the feedback topic, and a task's own notices read back, on a real broker."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from confluent_kafka import Producer

from operators.distributed.decompose import decompose
from operators.distributed.feedback.consumer import ConsumerFeedback
from operators.distributed.operator import Edge
from operators.engine.engine import Engine
from operators.plan.plan import parse_plan
from schemas.codecs.exchange import encode_exchange
from schemas.codecs.notice import Notice, Words, encode_notice
from schemas.columns import Batch, Column
from schemas.messages.control import Demanded
from schemas.query import ColumnRef, Type
from services.broker.background import free_port
from services.control.control_log import ControlLog
from services.control.feedback_log import FeedbackLog
from services.kafka.log_consumer import LogBatch
from services.kafka.topics import TopicAdmin
from services.placement.distributed import Part
from services.process.logs import get_log
from services.process.metrics import TaskMetrics, WorkerMetrics
from services.process.security import KafkaClients
from services.task import notices
from services.task.feedback import TaskFeedback
from services.task.notices import read_back
from tests.broker_fixture import Topics
from tests.operators.distributed.test_distributed_feedback import query_of
from tests.worker_harness import wait_for

pytestmark = pytest.mark.kafka

WORDS = np.array([7, 2**63], np.uint64)
NONE = WORDS[:0]


def edge_over(topic: str) -> Edge:
    """One column, two channels in each of two partitions."""
    return Edge(topic, ("A", "B"), (ColumnRef("A", "x", Type.BIGINT),), (5, 5), 2, 2, False, ())


def nothing(edge: Edge) -> Batch:
    """No rows of an edge."""
    columns = {field.name: Column(field.type, np.zeros(0, np.int64)) for field in edge.fields}
    return Batch(np.zeros(0, np.int64), columns)


def test_who_writes_to_a_topic_hears_what_is_asked_of_it(topics: Topics) -> None:
    """From now on, and nothing that is asked of others; garbage is passed over."""
    clients = KafkaClients(topics.bootstrap)
    group = topics("group")
    topic = TopicAdmin(clients).feedback(group, -1)
    control = ControlLog(clients, group, "test").start()
    log = FeedbackLog(clients, topic, "test", control).start()
    waited = threading.Event()
    mine, others = log.open(["mine", "above"], waited.set), log.open(["others"])
    said = Demanded(topic="mine", partition=3, need=5, suspend=struct.pack("<2Q", 7, 2**63))
    try:
        # The reader begins at the end, wherever that is when it first asks.
        wait_for(lambda: log.send(said) or not mine.empty(), "the first message")
        heard = mine.get_nowait()
        assert heard == said
        producer = Producer({"bootstrap.servers": topics.bootstrap, "log_level": 0})
        producer.produce(topic, b"garbage", partition=0)
        assert producer.flush(10) == 0
        log.send(Demanded(topic="mine", partition=4, need=6, resume=b"seven b"))
        last = Demanded(topic="mine", partition=4, need=6)
        log.send(last)
        found = [heard]
        wait_for(lambda: found.append(mine.get(timeout=10)) or found[-1] == last, "the last message")
        assert all(one in (said, last) for one in found), "half a signature is none"
        assert others.empty()
        assert not waited.is_set(), "nobody waits for an answer"
        log.send(Demanded(topic="above", partition=0, need=0, resume=struct.pack("<Q", 7)))
        assert waited.wait(10)
        assert mine.get(timeout=10).topic == "above"
        log.leave(mine)
    finally:
        log.close()
        control.close()


def test_a_second_failure_to_read_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Also if the first one had the same reason: only the first one was logged, whatever had been read since."""
    clients = KafkaClients(f"127.0.0.1:{free_port()}")
    control = ControlLog(clients, "control", "test")
    log = FeedbackLog(clients, "feedback", "test", control)
    failed = LogBatch([], problem="Kafka is away")
    for batch in (failed, LogBatch([]), failed, LogBatch([], at_end=True), failed):
        log._take(batch)
    log.close()
    control.close()
    assert len(caplog.records) == 2


def test_a_tasks_own_notices_are_read_back(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the last whole one of its channel on, however far back that is; of each partition."""
    monkeypatch.setattr(notices, "FIRST_LOOK", 2)
    topic = topics("internal", 2)
    edge = edge_over(topic)
    producer = Producer({"bootstrap.servers": topics.bootstrap, "log_level": 0})

    def write(partition: int, channel: int, number: int, whole: bool) -> None:
        notice = Notice(channel, number, whole, WORDS, WORDS[:1], nothing(edge))
        producer.produce(topic, encode_notice(edge.fields, notice), partition=partition)

    write(0, 1, 1, False)
    write(0, 1, 2, True)
    write(0, 1, 3, False)
    write(0, 0, 1, True)
    for watermark in range(40):
        producer.produce(topic, encode_exchange(edge.fields, 0, watermark, True, nothing(edge)), partition=0)
    write(1, 1, 1, False)
    assert producer.flush(10) == 0
    found = read_back(KafkaClients(topics.bootstrap), edge, (0, 1), 1, {})
    assert [(one.number, one.whole) for one in found[0]] == [(2, True), (3, False)]
    assert [(one.number, one.whole) for one in found[1]] == [(1, False)]
    assert found[1][0].suspended.tolist() == WORDS.tolist()
    assert read_back(KafkaClients(topics.bootstrap), edge, (1,), 0, {}) == {1: []}


@contextmanager
def top_task(topics: Topics) -> Iterator[tuple[TaskFeedback, ConsumerFeedback, TaskMetrics]]:
    """The part in feedback of the task of ((A B) C), what it says of (A B), and its metrics."""
    clients = KafkaClients(topics.bootstrap)
    group = topics("group")
    control = ControlLog(clients, group, "test").start()
    log = FeedbackLog(clients, TopicAdmin(clients).feedback(group, -1), "test", control).start()
    query = query_of([100, 100, 10], "A.k = B.k AND A.x = C.x")
    top, _ = decompose(query, parse_plan("((A B) C)", query), {f"t{a}": 1 for a in "abc"}, 1, feedback=True)
    metrics = WorkerMetrics("q").of("0")
    task = TaskFeedback(Part(top, 0), log, {}, 0, metrics, get_log("task", task=0))
    Engine(
        top.query,
        plan=top.plan,
        partitions={s.name: (0,) for s in top.query.streams()},
        feedback=task.operator_feedback.of,
    )
    task.restore()
    (demand,) = task.operator_feedback.consumer_ends.values()
    try:
        yield task, demand, metrics
    finally:
        task.close()
        log.close()
        control.close()


def note(task: TaskFeedback, demand: ConsumerFeedback, number: int, suspended: Words, resumed: Words) -> None:
    """Let the task read a notice."""
    task.operator_feedback.note(demand.stream, Notice(0, number, False, suspended, resumed, nothing(demand.edge)))


def test_who_waits_for_long_says_so(topics: Topics, caplog: pytest.LogCaptureFixture) -> None:
    """Once, and asks again every second; an answer ends it."""
    with top_task(topics) as (task, demand, metrics):
        note(task, demand, 1, WORDS, NONE)
        demand.request_resume(WORDS, 5)
        for now in (100.0, 100.5, 101.5, 131.0, 132.0):
            task.send_requests(now)
        warnings = [record for record in caplog.records if "results wait for requested tuples" in record.getMessage()]
        assert len(warnings) == 1
        assert task.limit == 5
        assert metrics.feedback_requests._value.get() == 4, "at once, then every second"
        assert not task.serve(watermark=50, now=132.1)
        note(task, demand, 2, NONE, WORDS)
        assert task.limit > 5
        assert task.serve(watermark=50, now=132.2), "the task can go on"
        assert not task.serve(watermark=50, now=132.2)
        assert task.nothing_suspended()


def test_what_is_not_demanded_is_said_together(topics: Topics) -> None:
    """Of a fifth of a second; at once with what cannot wait."""
    with top_task(topics) as (task, demand, metrics):
        said: list[float] = []
        for number, now in enumerate((100.0, 100.05, 100.1, 100.2, 100.26, 100.3, 100.47, 100.5)):
            before = metrics.feedback_requests._value.get()
            if number:
                demand.suspend(np.array([number], np.uint64), 1_000)
            if now == 100.5:
                note(task, demand, 1, WORDS, NONE)
                demand.request_resume(WORDS, 5)
            task.send_requests(now)
            if metrics.feedback_requests._value.get() > before:
                said.append(now)
        assert said == [100.0, 100.05, 100.26, 100.47, 100.5]
        assert not demand.has_requests
