"""`weir inspect` on topics of a real broker, in JSON and, by a real registry, in Avro, Protobuf and JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import orjson
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message_factory import GetMessageClass

from schemas.language.program import parse_program
from schemas.protobuf.compiler import compile_text
from schemas.query import Stream, Type
from services.formats.known_protos import imports_of, known_protos
from tests.broker_fixture import Topics
from tests.registry_fixture import client_of, serializer_of

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


ORDER = """syntax = "proto3";
package shop;
import "google/type/money.proto";
import "google/protobuf/timestamp.proto";
message Other { string x = 1; }
message Order {
  message Line { int64 id = 1; google.type.Money price = 2; google.protobuf.Timestamp at = 3; }
}
"""


def test_protobuf_by_a_registry(topics: Topics, registry: str) -> None:
    """The columns are those of the message type that the newest record names. What is proposed reads the records."""
    topic = topics("orders")
    number = client_of(registry).register_schema(f"{topic}-value", Schema(ORDER, "PROTOBUF"))
    line = GetMessageClass(compile_text(ORDER, (), known_protos(imports_of(ORDER))).named("shop.Order.Line"))
    frame = b"\0" + number.to_bytes(4, "big")
    producer = Producer({"bootstrap.servers": topics.bootstrap})
    producer.produce(topic, frame + b"\0\x0a\1x")
    for i in range(50):
        record = line(id=i % 5)
        record.price.units = i % 3 + 1
        record.at.FromMilliseconds(BASE + i)
        producer.produce(topic, frame + b"\4\2\0" + record.SerializeToString())
    producer.flush()
    done = inspected(topics, topic, "--registry", registry, "--records", "50")
    assert done.returncode == 0, done.stderr
    stream = stream_in(done.stdout)
    assert [(one.name, one.type) for one in stream.fields] == [
        ("id", Type.BIGINT),
        ("price_currency_code", Type.STRING),
        ("price_units", Type.BIGINT),
        ("price_nanos", Type.BIGINT),
        ("at", Type.TIMESTAMP),
    ]
    assert (stream.format, stream.timestamp) == ("protobuf", "at")
    assert {"id": 5, "price_units": 3}.items() <= dict(stream.distinct).items()
    assert f"-- columns of schema {number}" in done.stdout
    assert "cannot be decoded" not in done.stdout


@pytest.mark.parametrize("properties", [True, False])
def test_json_by_a_registry(properties: bool, topics: Topics, registry: str) -> None:
    """By its schema, with times where the records have some. A schema without properties says nothing of columns."""
    topic = topics("orders")
    inside = {"type": "object", "properties": {"city": {"type": "string"}}}
    known = {"id": {"type": "integer"}, "customer": inside, "at": {"type": "integer"}, "rare": {"type": "number"}}
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "title": "Order"}
    schema = head | ({"properties": known} if properties else {})
    number = client_of(registry).register_schema(f"{topic}-value", Schema(json.dumps(schema), "JSON"))
    producer = Producer({"bootstrap.servers": topics.bootstrap})
    for i in range(50):
        value = {"id": i % 5, "customer": {"city": "Oslo"}, "at": BASE + i}
        producer.produce(topic, b"\0" + number.to_bytes(4, "big") + orjson.dumps(value))
    producer.flush()
    done = inspected(topics, topic, "--registry", registry)
    assert done.returncode == 0, done.stderr
    stream = stream_in(done.stdout)
    assert [(one.name, one.type) for one in stream.fields] == [
        ("id", Type.BIGINT),
        ("customer_city", Type.STRING),
        ("at", Type.TIMESTAMP),
        *([("rare", Type.DOUBLE)] if properties else []),
    ]
    assert (stream.format, stream.timestamp) == ("json-schema", "at")
    assert stream.distinct == (("id", 5), ("customer_city", 1))


def test_a_schema_that_the_registry_does_not_have(topics: Topics, registry: str) -> None:
    topic = topics("orders")
    producer = Producer({"bootstrap.servers": topics.bootstrap})
    producer.produce(topic, b"\0\x7f\0\0\1\2")
    producer.flush()
    done = inspected(topics, topic, "--registry", registry)
    assert done.returncode == 2
    assert "the registry has no schema 2130706433" in done.stderr
