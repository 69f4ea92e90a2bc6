"""A partition whose next record has an unknown schema waits, and nothing of it is taken."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from schemas.codecs.decoded import Decoded
from schemas.codecs.json_codec import JsonDecoder
from schemas.columns import I64
from services.formats.schema_registry import SchemaUnavailable
from services.kafka.records import RecordBatch
from services.process.metrics import WorkerMetrics
from services.task.alignment import Alignment
from services.task.context import TaskContext
from services.task.spec import TaskEnd, TaskOutcome
from tests.services.one_task import Kafka, Row, make_context, open_task
from tests.worker_harness import wait_for


class Registry:
    """Knows a schema or not, as the test decides."""

    answers = False


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Stands between records and their decoder: this is how one behaves whose registry is away."""
    found, decode = Registry(), JsonDecoder.decode_values

    def decode_values(self: Any, values: Sequence[bytes | None], record_ts: I64 | None = None) -> Decoded:
        if values and not found.answers:
            raise SchemaUnavailable("schema 7 is unknown")
        return decode(self, values, record_ts)

    monkeypatch.setattr(JsonDecoder, "decode_values", decode_values)
    return found


def context_of() -> TaskContext:
    with ThreadPoolExecutor(1) as executor:
        return make_context(Kafka(), executor, WorkerMetrics("q"))


def batch(first: int, stop: int) -> RecordBatch:
    records = [Row(offset, b'{"k": %d, "at": %d}' % (offset, 1_000 + offset)) for offset in range(first, stop)]
    return RecordBatch("l", 0, first, stop, 0, records, 1)


def test_the_partition_waits_until_the_schema_is_known(registry: Registry) -> None:
    context = context_of()
    lane, alignment = context.lanes["l", 0], Alignment(context, lambda: None)
    for first in (0, 5):
        lane.retained.append(batch(first, first + 5))
        context.take(lane)
        assert (lane.waits_for, lane.position, len(lane.retained)) == ("schema 7 is unknown", 0, 1 + first // 5)
    alignment.pause_lanes_ahead()
    assert alignment.paused == {("l", 0)}
    registry.answers = True
    context.take(lane)
    assert (lane.waits_for, lane.position, len(lane.retained)) == ("", 10, 0)
    alignment.pause_lanes_ahead()
    assert alignment.paused == set()


def test_a_task_that_waits_can_be_flushed_and_stopped(registry: Registry) -> None:
    outcomes: list[TaskOutcome] = []
    with ThreadPoolExecutor(1) as executor:
        kafka = Kafka()
        for stops_while_it_waits in (True, False):
            registry.answers = False
            task = open_task(
                kafka, executor, WorkerMetrics("q"), threading.Event(), lambda _, outcome: outcomes.append(outcome)
            )
            task.start()
            wait_for(lambda task=task: task.running, "a task that runs")
            task.offer(("l", 0), batch(0, 5))
            wait_for(lambda task=task: task.missing_schema, "a task that waits")
            assert task.has_work
            wait_for(lambda task=task: task.step == "schema 7 is unknown", "what it waits for")
            wait_for(task.flush(), "a delivery, since others need not wait for it")
            assert task.outcome is None
            assert task.read == 0
            if not stops_while_it_waits:
                registry.answers = True
                wait_for(lambda task=task: task.read == 5, "the records")
                assert task.missing_schema == ""
            task.finish()
            assert task.join(10)
    assert [outcome.end for outcome in outcomes] == [TaskEnd.FINISHED] * 2


def test_a_partition_that_waits_is_not_silent(registry: Registry) -> None:
    """Otherwise the watermark would pass its records, and they would be late."""
    context = context_of()
    lane, other = context.lanes["l", 0], context.lanes["r", 0]
    lane.set_idle(context.engine, True)
    lane.retained.append(batch(0, 5))
    context.take(lane)
    assert not lane.idle
    registry.answers = True
    other.retained.append(RecordBatch("r", 0, 0, 1, 0, [Row(0, b'{"k": 1, "at": 900000}')], 1))
    context.take(other)
    assert context.engine.watermark() < 1_000
    context.take(lane)
    assert context.engine.watermark() == 1_004
