"""What Weir asks of a cluster about topics."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from services.security import KafkaClients
from services.topics import TopicAdmin
from tests.broker_fixture import Topics

pytestmark = pytest.mark.kafka


def test_trim_deletes_what_it_can(topics: Topics) -> None:
    """Nothing is deleted of a partition that ends before the offset, and an unknown topic is no error."""
    topic = topics("trimmed", partitions=2)
    producer = Producer({"bootstrap.servers": topics.bootstrap})
    for number in (0, 1):
        for value in range(5):
            producer.produce(topic, str(value), partition=number)
    assert producer.flush(30) == 0
    admin = TopicAdmin(KafkaClients(topics.bootstrap))
    admin.trim({})
    admin.trim({(topic, 0): 3, (topic, 1): 6, ("nobody-has-it", 0): 1})
    reader = Consumer({"bootstrap.servers": topics.bootstrap, "group.id": topic})
    ranges = [reader.get_watermark_offsets(TopicPartition(topic, number), 30) for number in (0, 1)]
    reader.close()
    assert ranges == [(3, 5), (0, 5)]


def test_an_offset_that_no_leader_has_told_is_asked_for_again(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka answers -1, and no error, where a partition has just lost its leader. A task that took it for an offset was
    never opened, or read nothing. Found by torture."""
    topic = topics("moving")
    admin = TopicAdmin(KafkaClients(topics.bootstrap))
    answers = [-1, -1, -1]
    asked = TopicAdmin._answers

    def without_leader(admin: TopicAdmin, ask: Any) -> dict[Any, Future[Any]]:
        found = asked(admin, ask)
        if answers and any(hasattr(each.result(), "offset") for each in found.values()):
            told: Future[Any] = Future()
            told.set_result(SimpleNamespace(offset=answers.pop()))
            return dict.fromkeys(found, told)
        return found

    monkeypatch.setattr(TopicAdmin, "_answers", without_leader)
    assert admin.log_ranges([(topic, 0)]) == {(topic, 0): (0, 0)}
    assert answers == []
