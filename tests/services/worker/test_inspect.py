"""`weir inspect` on topics of a real broker, in JSON and, by a real registry, in Avro."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import orjson
import pytest
from confluent_kafka import Producer
from confluent_kafka.serialization import MessageField, SerializationContext

from schemas.language.program import parse_program
from schemas.query import Stream
from tests.broker_fixture import Topics
from tests.registry_fixture import serializer_of

pytestmark = pytest.mark.kafka

BASE = 1_772_359_200_000


def inspected(topics: Topics, topic: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.cli", "inspect", topic, "--bootstrap", topics.bootstrap, *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_REGISTRY")}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=60)


def stream_in(text: str) -> Stream:
    name = text.partition("CREATE STREAM ")[2].partition(" (")[0]
    stream = parse_program(f"{text} SELECT * FROM {name} [RANGE 1 HOUR]").queries[0].streams()[0]
    assert isinstance(stream, Stream)
    return stream


def test_the_last_records_of_all_partitions(topics: Topics) -> None:
    topic = topics("readings", 3)
    producer = Producer({"bootstrap.servers": topics.bootstrap})
    for i in range(300):
        value = {"mote": i % 7, "at": BASE + 1_000 * (i // 3)} if i >= 90 else {"old": True}
        producer.produce(topic, orjson.dumps(value), partition=i % 3)
    producer.flush()
    done = inspected(topics, topic, "--records", "150")
    assert done.returncode == 0, done.stderr
    assert "-- The last 150 of about 300 records" in done.stdout
    stream = stream_in(done.stdout)
    assert [field.name for field in stream.fields] == ["mote", "at"]
    assert (stream.topic, stream.timestamp, dict(stream.distinct)) == (topic, "at", {"mote": 7})


def test_no_topic_and_no_records(topics: Topics) -> None:
    done = inspected(topics, "no-such-topic")
    assert done.returncode == 1
    assert "no-such-topic" in done.stderr
    assert "Traceback" not in done.stderr
    done = inspected(topics, topics("empty"))
    assert done.returncode == 2
    assert "has no records to look at" in done.stderr


def test_avro_by_a_registry(topics: Topics, registry: str) -> None:
    topic = topics("orders")
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        ],
    }
    serialize = serializer_of(registry, json.dumps(schema))
    producer = Producer({"bootstrap.servers": topics.bootstrap})
    for i in range(50):
        value = serialize({"id": i % 5, "at": BASE + i}, SerializationContext(topic, MessageField.VALUE))
        producer.produce(topic, value)
    producer.flush()
    assert "add --registry" in inspected(topics, topic).stderr
    done = inspected(topics, topic, "--registry", registry)
    assert done.returncode == 0, done.stderr
    stream = stream_in(done.stdout)
    assert (stream.format, stream.timestamp, dict(stream.distinct)) == ("avro", "at", {"id": 5})
