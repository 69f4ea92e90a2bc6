"""What Weir asks of a cluster about topics."""

from __future__ import annotations

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
