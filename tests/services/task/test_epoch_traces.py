"""What a task reports of its epochs, as a collector receives it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest

from services.kafka.records import RecordBatch
from services.kafka.topics import Lane
from services.process.metrics import WorkerMetrics
from services.process.tracing import Traces, open_traces
from services.task.task import Task
from tests.broker_fixture import wait_until
from tests.services.collector import Collector
from tests.services.one_task import LANES, Kafka, Row, make_context

BEGIN = 1_700_000_000_000


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as listening:
        yield listening


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch, collector: Collector) -> Traces:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
    return open_traces("out")


def start_task(kafka: Kafka, traces: Traces, executor: ThreadPoolExecutor) -> Task:
    context = make_context(kafka, executor, WorkerMetrics("out"))
    context.trace = traces.of(0)
    kafka.give_up = threading.Event()
    task = Task(context, kafka.give_up, lambda: None, lambda task, outcome: None)
    task.start()
    return task


def batch(lane: Lane, begin: int, *times: int) -> RecordBatch:
    """Records with these times and one key."""
    rows = [Row(begin + n, orjson.dumps({"k": 1, "at": BEGIN + at})) for n, at in enumerate(times)]
    return RecordBatch(*lane, begin, begin + len(rows), 0, rows, 40 * len(rows))


def test_epochs_have_their_phases_and_counts(collector: Collector, traces: Traces) -> None:
    kafka = Kafka()
    with ThreadPoolExecutor(1) as executor:
        task = start_task(kafka, traces, executor)
        for lane in LANES:
            task.offer(lane, batch(lane, 0, 1, 2, 3))
        for lane in LANES:
            task.offer(lane, batch(lane, 3, 1_000))
        wait_until(lambda: task.committed == BEGIN + 1_000, "all is committed")
        wait_until(task.flush(), "all is delivered")
        task.finish()
        assert task.join(30)
    traces.close()
    epochs = list(collector.epochs().values())
    assert sum(epoch.attributes["weir.input_tuples"] for epoch in epochs) == 8
    assert sum(epoch.attributes["weir.results"] for epoch in epochs) == 9
    full = [collector.phases(epoch) for epoch in epochs if epoch.attributes["weir.results"]]
    assert all({"receive", "join", "commit"} <= phases.keys() for phases in full)
    assert max(epoch.attributes["weir.cut_ms"] for epoch in epochs) == BEGIN + 1_000
    assert any(epoch.attributes["weir.committed"] for epoch in epochs)
    assert len(epochs) <= len(kafka.deliveries) + 4, "an epoch without input and output has no span"


def test_an_epoch_that_kafka_refuses_is_not_committed(collector: Collector, traces: Traces) -> None:
    kafka = Kafka()
    kafka.refuses = True
    with ThreadPoolExecutor(1) as executor:
        task = start_task(kafka, traces, executor)
        for lane in LANES:
            task.offer(lane, batch(lane, 0, 1, 2, 1_000))
        assert task.join(30)
    traces.close()
    failed = [epoch for epoch in collector.epochs().values() if epoch.problem]
    assert [epoch.problem for epoch in failed] == [
        "delivering to Kafka: Aborted: epoch not committed: not enough replicas"
    ]
    assert failed[0].attributes["weir.committed"] is False
    assert failed[0].attributes["weir.results"] == 0
