"""Beginnings of partitions are deleted, and nothing of the process's memory."""

from __future__ import annotations

import ast
import gc
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from services.trimming import delete_before
from tests.broker_fixture import Topics

ROOT = Path(__file__).resolve().parents[2]


class Watched(AdminClient):
    """Keeps the lists that it is asked to delete."""

    def __init__(self, conf: dict[str, Any]) -> None:
        super().__init__(conf)
        self.asked: list[Any] = []

    def delete_records(self, topic_partition_offsets: Any, **kwargs: Any) -> Any:
        self.asked.append(topic_partition_offsets)
        return super().delete_records(topic_partition_offsets, **kwargs)


@pytest.mark.parametrize("calls", [1, 5])
def test_a_call_takes_and_gives_no_reference(calls: int) -> None:
    """confluent-kafka gives one back that it never took. When this fails after an upgrade it no longer does, and what
    `services.trimming` adds for it has to go."""
    admin = Watched({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    for _ in range(calls):
        assert set(delete_before(admin, {("topic", 0): 1}, 0.05)) == {("topic", 0)}
    gc.collect()  # what failed has left a trace with its frame
    usual: list[list[int]] = [[] for _ in range(calls)]
    assert [sys.getrefcount(asked) for asked in admin.asked] == [sys.getrefcount(one) for one in usual]


def test_nobody_else_asks_for_it() -> None:
    callers = {
        path.relative_to(ROOT).as_posix()
        for folder in ("schemas", "operators", "services", "ops", "tests")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "delete_records"
    }
    assert callers == {"services/trimming.py", Path(__file__).relative_to(ROOT).as_posix()}


@pytest.mark.kafka
def test_what_is_deleted_and_what_cannot_be(topics: Topics) -> None:
    topic = topics("trimmed", partitions=2)
    producer = Producer({"bootstrap.servers": topics.bootstrap})
    for number in (0, 1):
        for value in range(5):
            producer.produce(topic, str(value), partition=number)
    assert producer.flush(30) == 0
    admin = AdminClient({"bootstrap.servers": topics.bootstrap, "log_level": 0})
    assert delete_before(admin, {}, 30) == {}
    failed = delete_before(admin, {(topic, 0): 3, (topic, 1): 6, ("nobody-has-it", 0): 1}, 30)
    assert {lane: error.code() for lane, error in failed.items()} == {
        (topic, 1): KafkaError.OFFSET_OUT_OF_RANGE,
        ("nobody-has-it", 0): KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
    reader = Consumer({"bootstrap.servers": topics.bootstrap, "group.id": topic})
    ranges = [reader.get_watermark_offsets(TopicPartition(topic, number), 30) for number in (0, 1)]
    reader.close()
    assert ranges == [(3, 5), (0, 5)]
