"""Workers that read Protobuf: by a registry, with and without columns, and by a file, while writers change."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka.schema_registry import Schema
from google.protobuf import descriptor_pb2, text_format
from google.protobuf.message_factory import GetMessageClass

from schemas.protobuf.descriptors import ProtobufSchema, parse_file
from services.formats.registry_access import RegistryAccess
from services.formats.schema_kinds import PROTOBUF
from services.formats.schema_registry import SchemaRegistry
from tests.broker_fixture import Topics
from tests.registry_fixture import client_of
from tests.worker_harness import FAR, Case, Feed, Reader, Row, Workers, assert_exact

pytestmark = pytest.mark.kafka

DECLARED = """
CREATE STREAM l (k BIGINT, body_note STRING FROM 'body.note', at TIMESTAMP)
  WITH (topic = '{l}', format = 'protobuf', timestamp = 'at', disorder = '100 MILLISECONDS');
CREATE STREAM r (k BIGINT, v BIGINT, at TIMESTAMP)
  WITH (topic = '{r}', timestamp = 'at', disorder = '100 MILLISECONDS');
INSERT INTO '{sink}'
SELECT L.k AS k, L.body_note AS note, R.v AS v FROM l L [RANGE 1 SECOND], r R [RANGE 1 SECOND] WHERE L.k = R.k
"""
COLUMNS = " (k BIGINT, body_note STRING FROM 'body.note', at TIMESTAMP)"
BASE = 1_700_000_000_000

FIRST = """
syntax = "proto3"; package p;
import "google/protobuf/timestamp.proto";
message Body { optional string note = 1; }
message L { sint32 k = 1; Body body = 2; google.protobuf.Timestamp at = 3; }
"""
SECOND = """
syntax = "proto3"; package p;
import "google/protobuf/timestamp.proto";
message L {
  message Body { repeated double more = 7; optional string note = 1; }
  google.protobuf.Timestamp at = 3; bytes raw = 9; sint32 k = 1; Body body = 2;
}
"""


def first_file() -> descriptor_pb2.FileDescriptorProto:
    """FIRST as protoc would compile it."""
    text = """
    name: "l.proto" package: "p" syntax: "proto3" dependency: "google/protobuf/timestamp.proto"
    message_type {
      name: "Body"
      field { name: "note" number: 1 type: TYPE_STRING proto3_optional: true oneof_index: 0 }
      oneof_decl { name: "_note" }
    }
    message_type {
      name: "L"
      field { name: "k" number: 1 type: TYPE_SINT32 }
      field { name: "body" number: 2 type: TYPE_MESSAGE type_name: ".p.Body" }
      field { name: "at" number: 3 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" }
    }
    """
    return text_format.Parse(text, descriptor_pb2.FileDescriptorProto())


Write = Callable[[Mapping[str, Any]], bytes]


def writer() -> Write:
    """What writes rows as FIRST, and as far as the fields go also as SECOND."""
    made = GetMessageClass(parse_file(first_file().SerializeToString()).named("p.L"))

    def write(row: Mapping[str, Any]) -> bytes:
        message: Any = made(k=row["k"])
        message.body.SetInParent()
        if row["note"] is not None:
            message.body.note = row["note"]
        message.at.FromMilliseconds(row["at"])
        return bytes(message.SerializeToString())

    return write


def run(case: Case, feed: Feed, write: Write) -> None:
    """Write rows to both streams, and close them."""
    rng = random.Random(4)
    for i in range(150):
        row: Row = {"k": rng.randrange(-10, 10), "body_note": rng.choice([None, f"n{i}", "ä"]), "at": BASE + 10 * i}
        case.rows["l"][0].append(row)
        feed.raw("l", write({"k": row["k"], "note": row["body_note"], "at": row["at"]}))
        feed.send("r", [{"k": rng.randrange(-10, 10), "v": i, "at": BASE + 10 * i}])
    feed.raw("l", write({"k": 99, "note": None, "at": BASE + FAR}))
    feed.raw("r", orjson.dumps({"k": -99, "v": 0, "at": BASE + 2 * FAR}))
    feed.flush()


@pytest.mark.parametrize("declared", [True, False])
def test_by_a_registry(declared: bool, topics: Topics, tmp_path: Path, workers: Workers, registry: str) -> None:
    """Two schemas mixed, whose message types are at other places; a frame that names none; garbage."""
    case = Case.make(topics, tmp_path, DECLARED)
    if not declared:
        text = case.path.read_text().replace(COLUMNS, "")
        case.path.write_text(text.replace("'protobuf'", "'protobuf', message = 'p.L'"))
    client, subject = client_of(registry), f"{case.topic('l')}-value"
    first, second = (client.register_schema(subject, Schema(text, "PROTOBUF")) for text in (FIRST, SECOND))
    frames = [b"\0" + first.to_bytes(4, "big") + b"\2\2", b"\0" + second.to_bytes(4, "big") + b"\0"]
    rng, write, more = random.Random(5), writer(), b"\x4a\x03abc"
    worker = workers.start(case, env={"WEIR_REGISTRY": registry}).wait_running()
    feed = Feed(case)
    feed.raw("l", b'{"k": 1}')
    feed.raw("l", frames[0][:-2] + b"\2\x10")
    feed.raw("l", frames[0] + b"\xff")

    def framed(row: Mapping[str, Any]) -> bytes:
        which = rng.randrange(2)
        return frames[which] + write(row) + (more if which else b"")

    run(case, feed, framed)
    assert_exact(case, Reader(case.bootstrap, case.sink), worker)
    dead = Reader(case.bootstrap, f"{case.query.name}.dead").wait_for_count(3)
    reasons = [record.headers["reason"] for record in dead]
    assert "no frame of a schema registry" in reasons[0]
    assert reasons[1] == "the schema has no message type at [8]"
    assert reasons[2].startswith("broken Protobuf")
    assert worker.stop() == 0


def test_results(topics: Topics, tmp_path: Path, workers: Workers, registry: str) -> None:
    """A consumer that has the registered schema reads them, through a kill -9."""
    text = DECLARED.replace("INSERT INTO '{sink}'", f"INSERT INTO '{{sink}}' KEY (k) WITH ({RESULTS.format(registry)})")
    text = text.replace("format = 'protobuf', timestamp", FILE)
    case = Case.make(topics, tmp_path, text)
    (tmp_path / "l.desc").write_bytes(descriptor_pb2.FileDescriptorSet(file=[first_file()]).SerializeToString())
    worker = workers.start(case).wait_running()
    run(case, Feed(case), writer())
    registered = SchemaRegistry(registry, RegistryAccess(), PROTOBUF, 30.0)
    values, keys = (message_of(registered, registry, f"{case.sink}-{part}") for part in ("value", "key"))
    reader = Reader(case.bootstrap, case.sink, decode=values)
    reader.wait_for_count(1, worker.alive)
    worker.kill()
    worker = workers.start(case).wait_running()
    assert_exact(case, reader, worker)
    assert all(keys(one.key or b"") == {"k": values(one.value or b"")["k"]} for one in reader.records)
    assert worker.stop() == 0


FILE = "format = 'protobuf', schema = 'l.desc', message = 'p.L', timestamp"
RESULTS = "format = 'protobuf', key_format = 'protobuf', registry = '{}'"


def message_of(registered: SchemaRegistry[ProtobufSchema], url: str, subject: str) -> Callable[[bytes], Row]:
    """What reads the records whose schema is the latest of a subject."""
    number = client_of(url).get_latest_version(subject).schema_id or 0
    made = GetMessageClass(registered.schema(number).named(None))

    def row(raw: bytes) -> Row:
        assert raw[:6] == b"\0" + number.to_bytes(4, "big") + b"\0"
        message: Any = made.FromString(raw[6:])
        fields = [one for one in made.DESCRIPTOR.fields if one.name != "_phase" or message.HasField("_phase")]
        found = {one.name: getattr(message, one.name) if message.HasField(one.name) else None for one in fields}
        if "_ts" in found:
            found["_ts"] = message._ts.ToMilliseconds()
        return found

    return row


def test_one_schema_in_a_file(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Through a kill -9."""
    options = "format = 'protobuf', schema = 'l.desc', message = 'p.L'"
    case = Case.make(topics, tmp_path, DECLARED.replace("format = 'protobuf'", options))
    (tmp_path / "l.desc").write_bytes(descriptor_pb2.FileDescriptorSet(file=[first_file()]).SerializeToString())
    worker = workers.start(case).wait_running()
    run(case, Feed(case), writer())
    reader = Reader(case.bootstrap, case.sink)
    reader.wait_for_count(1, worker.alive)
    worker.kill()
    worker = workers.start(case).wait_running()
    assert_exact(case, reader, worker)
    assert worker.stop() == 0
