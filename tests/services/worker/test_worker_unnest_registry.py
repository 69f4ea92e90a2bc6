"""A worker whose arrays are in Avro and Protobuf records of a registry: writers change their schema, a worker without
state on disk is killed, and each result, late record and bad record is there once."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka.schema_registry import Schema
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message_factory import GetMessageClass

from services.formats.registry_access import RegistryAccess
from services.formats.schema_kinds import PROTOBUF
from services.formats.schema_registry import SchemaRegistry
from tests import oracle
from tests.broker_fixture import Topics
from tests.registry_fixture import client_of, serializer_of
from tests.worker_harness import FAR, Case, Feed, Reader, Row, Workers, assert_exact, wait_for

pytestmark = pytest.mark.kafka

BASE = 1_700_000_000_000
TEXT = """
CREATE STREAM orders (id BIGINT, items ARRAY<ROW(sku STRING, qty BIGINT)> FROM 'body.items',
                      tags ARRAY<STRING> FROM 'body.tags', at TIMESTAMP)
  WITH (topic = '{orders}', format = 'FORMAT', timestamp = 'at', disorder = '100 MILLISECONDS');
CREATE STREAM moves (sku STRING, n BIGINT, at TIMESTAMP)
  WITH (topic = '{moves}', timestamp = 'at', disorder = '100 MILLISECONDS');
INSERT INTO '{sink}'
SELECT O.id AS id, I.sku AS sku, I.qty AS qty, I._ordinal AS place, M.n AS n MORE
FROM orders O [WINDOW] CROSS JOIN UNNEST(O.items) AS I, moves M [WINDOW] WHERE I.sku = M.sku
"""
RANGE, ROWS = "RANGE 60 MILLISECONDS", "ROWS 9"
TAGS = (", T.tag AS tag, T._ordinal AS second", "AS I CROSS JOIN UNNEST(O.tags) AS T (tag)")
"""What a query has for a second array: in SELECT and in FROM."""


def text(format: str, window: str, tags: bool) -> str:
    more, arrays = TAGS if tags else ("", "AS I")
    return TEXT.replace("FORMAT", format).replace("WINDOW", window).replace("MORE", more).replace("AS I,", f"{arrays},")


Write = Callable[[Mapping[str, Any]], bytes]
"""Serializes a row of `orders`."""

AVRO_ITEM = {"name": "Item", "type": "record", "fields": [{"name": "sku", "type": "string"}]}
AVRO_AT = {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}


def avro_writers(url: str, topic: str) -> tuple[Write, Write]:
    """Of two schemas: the second has other places, types and fields, and elements that may be null."""
    qty: Any = {"name": "qty", "type": "int"}
    items: Any = {"type": "array", "items": {**AVRO_ITEM, "fields": [*AVRO_ITEM["fields"], qty]}}
    tags: Any = {"name": "tags", "type": {"type": "array", "items": "string"}}
    body: Any = {"name": "Body", "type": "record", "fields": [{"name": "items", "type": items}, tags]}
    first = {
        "name": "Order",
        "type": "record",
        "fields": [{"name": "id", "type": "int"}, {"name": "body", "type": body}, AVRO_AT],
    }
    more: Any = {"name": "more", "type": {"type": "map", "values": {"type": "array", "items": "bytes"}}}
    qty = {"name": "qty", "type": ["null", "long"]}
    items = {"type": "array", "items": ["null", {**AVRO_ITEM, "fields": [more, qty, *AVRO_ITEM["fields"]]}]}
    fields = [{**tags, "type": ["null", tags["type"]]}, more, {"name": "items", "type": ["null", items]}]
    second = {
        "name": "Order",
        "type": "record",
        "fields": [
            AVRO_AT,
            {"name": "body", "type": ["null", {**body, "fields": fields}]},
            {"name": "id", "type": "long"},
        ],
    }
    context = SerializationContext(topic, MessageField.VALUE)
    writes = [serializer_of(url, json.dumps(schema)) for schema in (first, second)]
    bytes_of = {"more": {"x": [b"\0", b""], "y": []}}

    def write_first(row: Mapping[str, Any]) -> bytes:
        body = {"items": row["items"], "tags": row["tags"]}
        return writes[0]({"id": row["id"], "body": body, "at": row["at"]}, context) or b""

    def write_second(row: Mapping[str, Any]) -> bytes:
        items = row["items"] and [item and {**item, **bytes_of} for item in row["items"]]
        body = {"items": items, "tags": row["tags"], **bytes_of} if items or row["tags"] else None
        return writes[1]({"id": row["id"], "body": body, "at": row["at"]}, context) or b""

    return write_first, write_second


PROTO = """
syntax = "proto3"; package p;
import "google/protobuf/timestamp.proto";
message Item { string sku = 1; sint32 qty = 2; }
message Body { repeated Item items = 1; repeated string tags = 2; }
message Order { sint32 id = 1; Body body = 2; google.protobuf.Timestamp at = 3; }
"""
SECOND_PROTO = """
syntax = "proto3"; package p;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Order {
  message Body {
    message Item { repeated double more = 7; google.protobuf.Int64Value qty = 1; optional string sku = 9; }
    repeated string tags = 300; repeated Item items = 2;
  }
  google.protobuf.Timestamp at = 1; repeated int64 numbers = 6; fixed64 id = 5; Body body = 3;
}
"""


def protobuf_writers(url: str, topic: str) -> tuple[Write, Write]:
    """Of two schemas: the second has other numbers and types of fields, and messages in messages."""
    client, registered = client_of(url), SchemaRegistry(url, RegistryAccess(), PROTOBUF, 30.0)

    def writer(schema: str, index: bytes) -> Write:
        number = client.register_schema(f"{topic}-value", Schema(schema, "PROTOBUF"))
        made = GetMessageClass(registered.schema(number).named("p.Order"))

        def write(row: Mapping[str, Any]) -> bytes:
            message: Any = made(id=row["id"])
            message.at.FromMilliseconds(row["at"])
            message.body.tags.extend(row["tags"] or [])
            for item in row["items"] or []:
                element = message.body.items.add()
                if "more" in element.DESCRIPTOR.fields_by_name:
                    element.more.extend([1.5, 2.5])
                    message.numbers.extend([7, 300])
                if item is not None:
                    element.sku = item["sku"]
                    if schema is PROTO:
                        element.qty = item["qty"]
                    elif item["qty"] is not None:
                        element.qty.value = item["qty"]
            return b"\0" + number.to_bytes(4, "big") + index + bytes(message.SerializeToString())

        return write

    return writer(PROTO, b"\2\4"), writer(SECOND_PROTO, b"\0")


WRITERS = {"avro": avro_writers, "protobuf": protobuf_writers}


class Orders:
    """Writes records to both streams, 5 ms each: some out of order, and some of those late."""

    def __init__(self, case: Case, feed: Feed, writers: tuple[Write, Write]) -> None:
        self.case, self.feed, self.writers = case, feed, writers
        self.chance = random.Random(21)
        self.written: dict[int, bytes] = {}

    def send(self, start: int, count: int, schemas: tuple[int, ...]) -> None:
        """Write records, each by one of the schemas."""
        chance = self.chance
        for n in range(start, start + count):
            at, which, partition = BASE + 5 * n, chance.choice(schemas), n % self.case.partitions
            item: Callable[[], Row | None] = lambda: {"sku": chance.choice("abcdefgh"), "qty": chance.randrange(-9, 9)}  # noqa: E731
            items = [item() for _ in range(chance.choice([0, 1, 2, 3]))]
            if which and items and chance.random() < 0.3:
                items[0] = chance.choice([None, {"sku": "a", "qty": None}])
            tags: list[str] = [chance.choice(["x", "ä", ""]) for _ in range(chance.choice([0, 1, 2]))]
            row: Row = {"id": n, "items": items, "tags": tags, "at": at - chance.choice([0, 0, 7, 99, 300])}
            if n % 10 != 9:
                row["at"] = max(row["at"], at - 99)
            self.written[n] = self.writers[which](row)
            self.case.rows["orders"][partition].append(row)
            self.feed.raw("orders", self.written[n], partition)
            moved = {"sku": chance.choice("abcdefgh"), "n": n, "at": at - chance.choice([0, 60])}
            self.feed.send("moves", [moved], partition)
        self.feed.flush()

    def finish(self) -> None:
        """Close every partition."""
        last = max(row["at"] for parts in self.case.rows.values() for part in parts for row in part)
        for partition in range(self.case.partitions):
            row = {"id": -1, "items": [{"sku": "-", "qty": 0}], "tags": ["-"], "at": last + FAR}
            self.feed.raw("orders", self.writers[0](row | {"id": 1}), partition)
            self.feed.raw("moves", orjson.dumps({"sku": "+", "n": -1, "at": last + 2 * FAR}), partition)
        self.feed.flush()


@pytest.mark.parametrize(
    ("format", "window", "tags", "partitions", "options"),
    [
        ("avro", RANGE, True, 2, ()),
        pytest.param("avro", ROWS, False, 1, (), marks=pytest.mark.deep),
        pytest.param("protobuf", RANGE, True, 2, (), marks=pytest.mark.deep),
        pytest.param("protobuf", ROWS, False, 1, ("--commit", "50ms"), marks=pytest.mark.deep),
        pytest.param("protobuf", RANGE, False, 1, ("--memory", "20KiB"), marks=pytest.mark.deep),
    ],
)
def test_writers_change_their_schema(
    format: str,
    window: str,
    tags: bool,
    partitions: int,
    options: tuple[str, ...],
    topics: Topics,
    tmp_path: Path,
    workers: Workers,
    registry: str,
) -> None:
    """One schema, then both mixed, then the second: a kill -9 in between, so the next worker reads records of both."""
    case = Case.make(topics, tmp_path, text(format, window, tags), partitions=partitions)
    orders = Orders(case, Feed(case), WRITERS[format](registry, case.topic("orders")))
    state = tmp_path / "state" if "--memory" in options else "none"
    given: dict[str, Any] = {"state": state, "env": {"WEIR_REGISTRY": registry}}
    reader = Reader(case.bootstrap, case.sink)
    worker = workers.start(case, *options, **given).wait_running()
    orders.send(0, 80, (0,))
    orders.send(80, 40, (0, 1))
    wait_for(lambda: reader.poll(), lambda: worker.with_log("results"))
    worker.kill()
    worker = workers.start(case, *options, **given)
    bad = orders.written[0][:-2]
    orders.feed.raw("orders", bad)
    orders.send(120, 40, (0, 1))
    orders.send(160, 40, (1,))
    orders.finish()
    assert case.expected().total() > 100
    assert_exact(case, reader, worker)
    numbers = {row["id"] for row in oracle.late(case.query, case.rows)["orders"]}
    late = Counter(orders.written[number] for number in numbers)
    assert late
    letters = Reader(case.bootstrap, f"{case.sink}.late")
    letters.wait_for_count(late.total(), worker.alive)
    assert Counter(record.value for record in letters.records) == late
    dead = Reader(case.bootstrap, f"{case.sink}.dead").wait_for_count(1)
    assert [record.value for record in dead] == [bad]
    assert dead[0].headers["reason"].startswith(f"broken {format.title()}")
    assert worker.stop() == 0
