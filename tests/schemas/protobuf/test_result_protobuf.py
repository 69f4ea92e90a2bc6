"""Results in Protobuf: Google's parser finds in them what JSON would have, under the schema that protoc compiles."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from schemas.codecs.encode import Encoded
from schemas.codecs.results import ResultRecords
from schemas.codecs.wanted import Wanted
from schemas.columns import Batch, Column
from schemas.errors import DataError
from schemas.language.program import parse_program
from schemas.members import flat_members
from schemas.protobuf.compiler import compile_text
from schemas.protobuf.decoder import ProtobufDecoder
from schemas.protobuf.descriptors import ProtobufSchema
from schemas.protobuf.encoder import ProtobufKeys, ProtobufValues, key_proto, value_proto
from schemas.query import CLEANUP_PHASE, Field, Stream, Type
from tests.profiles import examples

TYPES = [*Type] * 4
"""More than 15 fields, whose tags have two bytes."""

COLUMNS = ", ".join(f"c{n} {type}" for n, type in enumerate(TYPES))
OUTPUTS = ", ".join(f"t.c{n} AS c{n}" for n in range(len(TYPES)))
VALUES: dict[Type, st.SearchStrategy[Any]] = {
    Type.BIGINT: st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200),
    Type.TIMESTAMP: st.integers(0, 4_000_000_000_000) | st.integers(-(2**40), 2**40),
    Type.DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
    Type.BOOLEAN: st.booleans(),
    Type.STRING: st.text() | st.text("ä", min_size=60, max_size=70),
}
ROW = st.tuples(*(st.none() | VALUES[type] for type in TYPES))


def records(found: Encoded, number: int) -> list[bytes]:
    """The messages in what goes to Kafka."""
    raw = [found.data[begin : end - 1] for begin, end in pairwise(found.offsets.tolist())]
    assert all(one[:6] == b"\0" + number.to_bytes(4, "big") + b"\0" for one in raw)
    return [one[6:] for one in raw]


@pytest.fixture(scope="module")
def schema() -> ProtobufSchema:
    text = f"CREATE STREAM t ({COLUMNS}, at TIMESTAMP) WITH (timestamp = 'at'); INSERT INTO 'x' SELECT {OUTPUTS} FROM t"
    return compile_text(value_proto(parse_program(f"{text} [ROWS 1]").queries[0], "com.acme.Out"))


def values_of(message: Any) -> list[Any]:
    """The fields of a message; None for one that is not there."""
    found = []
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name) if message.HasField(field.name) else None
        if field.message_type is not None and value is not None:
            value = value.seconds * 1000 + value.nanos // 1_000_000
            assert 0 <= message.__getattribute__(field.name).nanos < 1_000_000_000
        found.append(value)
    return found


@given(st.lists(st.tuples(ROW, VALUES[Type.TIMESTAMP]), max_size=4), st.sampled_from([None, CLEANUP_PHASE]), st.data())
@examples(300)
def test_what_google_reads(
    schema: ProtobufSchema, rows: list[tuple[tuple[Any, ...], int]], phase: str | None, data: st.DataObject
) -> None:
    """And Weir itself; of whole batches and of slices."""
    descriptor = schema.named("com.acme.Out")
    columns = {f"c{n}": Column.from_values([row[n] for row, _ in rows], type) for n, type in enumerate(TYPES)}
    batch = Batch(np.array([ts for _, ts in rows], np.int64), columns)
    begin = data.draw(st.integers(0, len(rows)))
    found = ResultRecords(ProtobufValues(258)).encode(batch.slice(begin, len(rows)), phase)
    raw = records(found, 258)
    made = GetMessageClass(descriptor)
    expected = [[*row, ts, phase] for row, ts in rows[begin:]]
    for one, values in zip(raw, expected, strict=True):
        message = made.FromString(one)
        assert message.SerializeToString() == one, "nothing is there that Google's parser does not know"
        for value, wanted in zip(values_of(message), values, strict=True):
            assert value == wanted
            assert not isinstance(value, float) or math.copysign(1, value) == math.copysign(1, wanted)
    fields = tuple(Field(f"c{n}", type) for n, type in enumerate(TYPES))
    stream = Stream("s", fields, "s", "protobuf")
    own = ProtobufDecoder(stream, [Wanted(one.name, one.place, one.type) for one in fields], descriptor)
    decoded = own.decode_values(raw, np.zeros(len(raw), np.int64))
    assert not decoded.dead
    for n, name in enumerate(columns):
        assert decoded.batch.columns[name].to_values() == [row[n] for row in expected]


def test_the_schema() -> None:
    text = (
        "CREATE STREAM t (mote BIGINT, room STRING, at TIMESTAMP); "
        "INSERT INTO 'x' SELECT t.mote, t.at AS at, t.room AS room FROM t [ROWS 1]"
    )
    assert value_proto(parse_program(text).queries[0], "com.acme.Alarm").splitlines() == [
        'syntax = "proto3";',
        "package com.acme;",
        'import "google/protobuf/timestamp.proto";',
        "message Alarm {",
        "  optional int64 t_mote = 1;",
        "  .google.protobuf.Timestamp at = 2;",
        "  optional string room = 3;",
        "  .google.protobuf.Timestamp _ts = 4;",
        "  optional string _phase = 5;",
        "}",
    ]


def test_keys() -> None:
    members, types = flat_members(["s", "t.k"]), [Type.STRING, Type.BIGINT]
    encoder = ResultRecords(ProtobufValues(1), ProtobufKeys(2, members))
    columns = (Column.from_values(["a", None], Type.STRING), Column.from_values([-1, 5], Type.BIGINT))
    found = encoder.encode(Batch(np.array([5, 6]), {"n": Column.from_values([1, 2], Type.BIGINT)}, columns))
    assert found.keys is not None
    made = GetMessageClass(compile_text(key_proto(members, types, "k_key")).named("k_key"))
    assert [values_of(made.FromString(one)) for one in records(found.keys, 2)] == [["a", -1], [None, 5]]
    encoder = ResultRecords(ProtobufValues(1), ProtobufKeys(2, ()))
    of_all = encoder.encode(Batch(np.array([5]), {"n": Column.from_values([1], Type.BIGINT)})).keys
    assert of_all is not None
    assert records(of_all, 2) == [b""]
    assert [field.name for field in compile_text(key_proto([], [], "k_key")).named(None).fields] == ["group"]


@pytest.mark.parametrize(
    ("text", "imported", "why"),
    [
        ("message {", [], r"main.proto:1:9: Expected message name"),
        ('syntax = "proto3"; import "other.proto"; message M {}', [], "other.proto"),
        ('syntax = "proto3"; message M {}', [("../x.proto", "")], "it imports '../x.proto'"),
        ('syntax = "proto3"; message M {}', [("/x.proto", "")], "it imports '/x.proto'"),
        ('syntax = "proto3"; message M {}', [("grpc_tools.py", "")], "it imports 'grpc_tools.py'"),
        ('syntax = "proto3"; message M {}', [("a.proto", ""), ("a.proto/b.proto", "")], "several of its files"),
        ('syntax = "proto3"; message M {}', [("a" * 300 + ".proto", "")], "no plain name"),
        ('syntax = "proto3"; message M {}', [("a.proto\0", "")], "no plain name"),
        ('syntax = "proto3"; message M { string s = "\ud800"; }', [], "it is no text"),
        ('syntax = "proto3"; package google.protobuf; message Timestamp {}', [], "google.protobuf.Timestamp"),
    ],
)
def test_texts_that_protoc_refuses(text: str, imported: list[tuple[str, str]], why: str) -> None:
    with pytest.raises(DataError, match="broken Protobuf schema") as found:
        compile_text(text, imported)
    assert why in str(found.value)


def test_names_within_a_package_that_is_called_like_googles() -> None:
    found = compile_text(value_proto(parse_program(SHORT).queries[0], "com.google.Alarm")).named(None)
    assert found.fields_by_name["_ts"].message_type.full_name == "google.protobuf.Timestamp"


SHORT = "CREATE STREAM t (k BIGINT); INSERT INTO 'x' SELECT t.k AS k FROM t [ROWS 1]"


def test_a_text_may_import_a_file_that_is_called_like_its_own() -> None:
    base = 'syntax = "proto3"; package b; message B { int32 v = 1; }'
    found = compile_text('syntax = "proto3"; import "main.proto"; message M { b.B b = 1; }', [("main.proto", base)])
    assert found.named(None).full_name == "M"
