"""What Weir asks of a cluster about topics."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from services.kafka.readback import Readback
from services.kafka.topics import TopicAdmin
from services.process.security import KafkaClients
from tests.broker_fixture import Topics, wait_until

pytestmark = pytest.mark.kafka


def test_a_topic_made_anew_has_another_id(topics: Topics) -> None:
    admin = TopicAdmin(KafkaClients(topics.bootstrap))
    client = AdminClient({"bootstrap.servers": topics.bootstrap})
    kept, gone = topics("kept"), topics("gone")
    before = admin.topic_ids([kept, gone, "none.such"])
    assert set(before) == {kept, gone}
    assert "" not in before.values()
    client.delete_topics([gone])[gone].result(30)
    assert set(admin.topic_ids([kept, gone])) == {kept}
    client.create_topics([NewTopic(gone, 1)])[gone].result(30)
    wait_until(lambda: gone in admin.topic_ids([gone]), "it is there again")
    after = admin.topic_ids([kept, gone])
    assert (after[kept], after[gone] != before[gone]) == (before[kept], True)


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


def test_offsets_that_a_leader_does_not_know_yet_are_asked_for_again(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka says so, or answers -1 without an error. A task that took that for an offset was never opened, or read
    nothing. Found by torture."""
    topic = topics("moving")
    admin = TopicAdmin(KafkaClients(topics.bootstrap))
    unknown: Future[Any] = Future()
    unknown.set_result(SimpleNamespace(offset=-1))
    refused: Future[Any] = Future()
    refused.set_exception(KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE)))
    answers = [unknown, refused, unknown]
    monkeypatch.setattr(
        admin,
        "_answers",
        lambda ask: dict.fromkeys(ask(admin._admin), answers.pop()) if answers else ask(admin._admin),
    )
    assert admin.log_ranges([(topic, 0)]) == {(topic, 0): (0, 0)}
    assert answers == []


def test_limits_of_a_topic_that_a_broker_does_not_know_yet_are_asked_for_again(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's default was taken for them, and long late tuples were cut. Without the right to ask it still is. Found by
    torture."""
    topic = topics("limited", max_message_bytes="5000000")
    admin = TopicAdmin(KafkaClients(topics.bootstrap))

    def refused(code: int) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_exception(KafkaException(KafkaError(code)))
        return answer

    answers = [refused(KafkaError.UNKNOWN_TOPIC_OR_PART)]
    true_answers = admin._answers

    def answered(ask: Callable[[Any], Any]) -> Any:
        found = true_answers(ask)
        return dict.fromkeys(found, answers.pop()) if answers else found

    monkeypatch.setattr(admin, "_answers", answered)
    assert admin._limits([topic]) == {topic: 5_000_000}
    assert answers == []
    answers.append(refused(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert admin._limits([topic]) == {topic: 1_000_000}


def test_the_ends_of_a_partition_that_moves_are_asked_for_again(topics: Topics) -> None:
    """A worker that was starting ended with `Leader high watermark is not caught up`, another one, whose broker had
    been frozen, with `Local: Unknown partition`. Found by torture."""
    topic = topics("moving")
    errors = [KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._UNKNOWN_PARTITION]

    class Moving(Consumer):
        def get_watermark_offsets(self, *args: Any, **options: Any) -> Any:
            if errors:
                raise KafkaException(KafkaError(errors.pop()))
            return super().get_watermark_offsets(*args, **options)

    consumer = Moving({"bootstrap.servers": topics.bootstrap, "group.id": topic})
    assert Readback(consumer, topic).ends(0) == (0, 0)
    consumer.close()
