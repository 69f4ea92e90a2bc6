"""Schemas of results are registered in a real registry, once, under the subjects that consumers look for."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import numpy as np
import pytest
from confluent_kafka.schema_registry import Schema
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from schemas.avro.encoder import AvroValues
from schemas.codecs.results import JsonValues, ResultRecords
from schemas.columns import Batch, Column
from schemas.errors import BrokerError, InvariantError, UsageError
from schemas.language.program import parse_program
from schemas.members import flat_members
from schemas.protobuf.compiler import compile_text
from schemas.query import Query, Type
from services.broker.background import free_port
from services.formats.encoders import Encoders
from services.formats.registry_access import RegistryAccess
from tests.registry_fixture import client_of

STREAM = "CREATE STREAM a (k BIGINT, s STRING);\n"


def query_of(topic: str, options: str = "format = 'avro'", select: str = "a.k AS k FROM a [ROWS 1]") -> Query:
    written = f" WITH ({options})" if options else ""
    return parse_program(f"{STREAM}INSERT INTO '{topic}'{written} SELECT {select}").queries[0]


def of(url: str | None) -> Encoders:
    return Encoders(RegistryAccess(url))


def one(name: str, value: object, type: Type) -> Batch:
    return Batch(np.array([5]), {name: Column.from_values([value], type)})


def number_in(data: bytes) -> int:
    return int.from_bytes(data[1:5], "big")


def test_json_needs_no_registry() -> None:
    query = query_of("x", "")
    encoders = of(None)
    encoders.check(query)
    encoders.prepare(query)
    json_records = ResultRecords(JsonValues(flat_members(["k"])))
    assert encoders.of(query) == json_records
    assert encoders.late("x", one("k", 1, Type.BIGINT)) == json_records


def test_a_registry_has_to_be_named() -> None:
    message = r"results in 'x' have a schema: name the schema registry with --registry"
    with pytest.raises(UsageError, match=message):
        of(None).check(query_of("x"))
    of(None).check(query_of("x", "format = 'avro', registry = 'http://r'"))


def test_keys_that_would_be_one_field() -> None:
    select = "COUNT(*) AS n FROM a [ROWS 1] GROUP BY a.k, a.k + 1 EMIT EVERY 1 SECOND"
    of("http://r").check(query_of("x", select=select))
    select = "COUNT(*) AS n FROM a [ROWS 1] GROUP BY a.k + 1, a.k - 1 EMIT EVERY 1 SECOND"
    with pytest.raises(UsageError, match=r"would have one field for 'a.k \+ 1' and 'a.k - 1'"):
        of("http://r").check(query_of("x", select=select))


def test_what_is_not_prepared_has_no_encoder() -> None:
    with pytest.raises(InvariantError, match="'x' is not registered"):
        of("http://r").of(query_of("x"))


def test_nobody_listens() -> None:
    with pytest.raises(BrokerError, match=r"the schema registry http://127.0.0.1:\d+ does not answer"):
        of(f"http://127.0.0.1:{free_port()}").prepare(query_of("x"))


@pytest.mark.kafka
def test_a_schema_is_registered_once(registry: str) -> None:
    topic, client = f"t-{uuid.uuid4()}", client_of(registry)
    query = query_of(topic)
    for encoders in (of(registry), of(registry), of(None)):
        given = query if encoders.access.url else query_of(topic, f"format = 'avro', registry = '{registry}'")
        encoders.prepare(given)
        encoders.prepare(given)
        found = encoders.of(given)
        assert isinstance(found.values, AvroValues)
        assert found is encoders.late(topic, one("k", 3, Type.BIGINT))
        assert client.get_versions(f"{topic}-value") == [1]
        latest = client.get_latest_version(f"{topic}-value")
        assert number_in(found.encode(one("k", 3, Type.BIGINT)).data) == latest.schema_id
    names = [field["name"] for field in json.loads(latest.schema.schema_str or "")["fields"]]
    assert names == ["k", "_ts", "_phase"]


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("topic", "{topic}-value {topic}-key"),
        ("record", "com.acme.Sum{id} com.acme.Sum{id}_key"),
        ("topic-record", "{topic}-com.acme.Sum{id} {topic}-com.acme.Sum{id}_key"),
    ],
)
def test_subjects(registry: str, subject: str, expected: str) -> None:
    id = uuid.uuid4().hex
    topic = f"t-{id}"
    options = f"format = 'avro', subject = '{subject}', record = 'com.acme.Sum{id}'"
    query = query_of(topic, options, "COUNT(*) AS n FROM a [ROWS 1] GROUP BY a.s EMIT EVERY 1 SECOND")
    of(registry).prepare(query)
    own = sorted(name for name in client_of(registry).get_subjects() if id in name)
    assert own == sorted(expected.format(topic=topic, id=id).split())


@pytest.mark.kafka
def test_a_schema_that_readers_could_not_read_is_refused(registry: str) -> None:
    topic, client = f"t-{uuid.uuid4()}", client_of(registry)
    fields = [{"name": "k", "type": "string"}, {"name": "must", "type": "long"}]
    other = json.dumps({"type": "record", "name": "Other", "fields": fields})
    client.register_schema(f"{topic}-value", Schema(other, "AVRO"))
    client.set_compatibility(f"{topic}-value", "FULL")
    with pytest.raises(UsageError, match=f"refuses the schema of the results, subject '{topic}-value': .*ncompatible"):
        of(registry).prepare(query_of(topic))


@pytest.mark.kafka
def test_a_query_replaces_another(registry: str) -> None:
    """Late results of the former one may still come, with its columns; the format is that of the newest."""
    topic, encoders = f"t-{uuid.uuid4()}", of(registry)
    first = query_of(topic)
    second = query_of(topic, select="a.s AS s FROM a [ROWS 1]")
    for query in (first, second):
        encoders.prepare(query)
    late = (one("k", 1, Type.BIGINT), one("s", "a", Type.STRING))
    numbers = [number_in(encoders.late(topic, batch).encode(batch).data) for batch in late]
    assert len(set(numbers)) == 2
    assert encoders.late(topic, one("of_json", 1, Type.BIGINT)) == ResultRecords()
    encoders.prepare(query_of(topic, ""))
    assert encoders.late(topic, late[0]) == ResultRecords(JsonValues(flat_members(["k"])))
    assert number_in(encoders.late(topic, late[1]).encode(late[1]).data) == numbers[1]
    for query in (first, second):
        encoders.prepare(query)
    assert [number_in(encoders.late(topic, batch).encode(batch).data) for batch in late] == numbers


OWN = {
    "avro": """{"type": "record", "name": "com.acme.Own", "fields": [
      {"name": "more", "type": "string", "default": "x"}, {"name": "k", "type": ["null", "int"]}]}""",
    "protobuf": 'syntax = "proto3"; package com.acme; message Other {} message Own { string more = 1; int32 k = 2; }',
}
ENDS = {"avro": {"avsc": b"\2x\2\x06"}, "protobuf": dict.fromkeys(("proto", "desc"), b"\2\2\x10\3")}
"""By format and kind of file, what is behind the frame of a record."""


def write_own(folder: Path, format: str, kind: str) -> None:
    """Write the file `own` of a schema."""
    if kind == "desc":
        files = FileDescriptorSet(file=[])
        compile_text(OWN[format]).file.CopyToProto(files.file.add())
        (folder / "own.desc").write_bytes(files.SerializeToString())
    else:
        (folder / f"own.{kind}").write_text(OWN[format])


@pytest.mark.kafka
@pytest.mark.parametrize(("format", "kind"), [(format, kind) for format in ENDS for kind in ENDS[format]])
def test_a_schema_in_a_file(registry: str, format: str, kind: str, tmp_path: Path) -> None:
    """It is registered as it is, and then found there."""
    topic, client = f"t-{uuid.uuid4()}", client_of(registry)
    write_own(tmp_path, format, kind)
    options = f"format = '{format}', schema = 'own.{kind}'"
    options += ", message = 'com.acme.Own'" if format == "protobuf" else ""
    query = query_of(topic, options)
    by_file = Encoders(RegistryAccess(registry), tmp_path)
    by_file.check(query)
    with pytest.raises(BrokerError):
        Encoders(RegistryAccess(f"http://127.0.0.1:{free_port()}"), tmp_path).prepare(query)
    by_file.prepare(query)
    latest = client.get_latest_version(f"{topic}-value")
    data = by_file.of(query).encode(one("k", 3, Type.BIGINT)).data
    assert (number_in(data), data[5:-1]) == (latest.schema_id, ENDS[format][kind])
    if format == "avro":
        assert json.loads(latest.schema.schema_str or "")["fields"] == json.loads(OWN[format])["fields"]
    registered = query_of(topic, options.replace(f"own.{kind}", "registered"))
    without = of(registry)
    without.check(registered)
    without.prepare(registered)
    assert without.of(registered).encode(one("k", 3, Type.BIGINT)).data == data


@pytest.mark.kafka
def test_a_registered_schema_that_does_not_fit(registry: str) -> None:
    topic, client = f"t-{uuid.uuid4()}", client_of(registry)
    query = query_of(topic, "format = 'avro', schema = 'registered'")
    of(registry).check(query)
    with pytest.raises(UsageError, match=f"has no schema for the subject '{topic}-value'; register one"):
        of(registry).prepare(query)
    fields = [{"name": "k", "type": "long"}, {"name": "must", "type": "long"}]
    other = json.dumps({"type": "record", "name": "Other", "fields": fields})
    client.register_schema(f"{topic}-value", Schema(other, "AVRO"))
    message = f"results in '{topic}' do not fit the subject '{topic}-value': no output is called 'must'"
    with pytest.raises(UsageError, match=message):
        of(registry).prepare(query)


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    """The check at the start needs no registry."""
    encoders = Encoders(RegistryAccess("http://127.0.0.1:1"), tmp_path)
    query = query_of("x", "format = 'avro', schema = 'own.avsc'")
    with pytest.raises(UsageError, match=r"cannot read the schema .*own\.avsc: No such file"):
        encoders.check(query)
    (tmp_path / "own.avsc").write_text('{"type": "record", "name": "r", "fields": []}')
    with pytest.raises(UsageError, match=r"results in 'x' do not fit .*own\.avsc: the schema has no field 'k'"):
        encoders.check(query)
    query = query_of("x", "format = 'protobuf', schema = 'own.proto'")
    (tmp_path / "own.proto").write_text("message {")
    with pytest.raises(UsageError, match=r"own\.proto: broken Protobuf schema: "):
        encoders.check(query)
