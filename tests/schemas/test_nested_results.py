"""Outputs with dots in their alias are members of objects in each other, in every format of results.

What is expected comes from a few lines of Python over the SELECT list (`tests.oracle.nested`). Foreign readers read the
records: fastavro, Google's Protobuf, Python's json, Arrow.
"""

from __future__ import annotations

import io
import json
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
import numpy as np
import pyarrow.parquet as pq
import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from ops.spark.results import open_results, result_stream
from schemas.avro.decoder import AvroDecoder
from schemas.avro.encoder import AvroKeys, AvroValues
from schemas.avro.result_schema import key_schema, same_field, value_schema
from schemas.avro.schema import parse_avro
from schemas.codecs.decoded import Decoded
from schemas.codecs.encode import Encoded, key_paths
from schemas.codecs.json_codec import JsonDecoder
from schemas.codecs.json_schema import key_json_schema, value_json_schema
from schemas.codecs.results import JsonKeys, JsonValues, KeyEncoder, ResultRecords, ValueEncoder
from schemas.codecs.wanted import Wanted
from schemas.columns import Batch, Column
from schemas.errors import QueryError
from schemas.language.program import parse_program
from schemas.members import columns_in_order, members_of, result_members, value_members
from schemas.protobuf.compiler import compile_text
from schemas.protobuf.decoder import ProtobufDecoder
from schemas.protobuf.encoder import ProtobufKeys, ProtobufValues, key_proto, value_proto
from schemas.query import CLEANUP_PHASE, OP_KEY, Query, ResultFormat, Stream, Type
from services.files.sources import SourceFile
from tests.oracle import nested
from tests.profiles import examples

TYPES = {"i": Type.BIGINT, "d": Type.DOUBLE, "s": Type.STRING, "b": Type.BOOLEAN, "t": Type.TIMESTAMP}
VALUES: dict[Type, st.SearchStrategy[Any]] = {
    Type.BIGINT: st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200),
    Type.TIMESTAMP: st.integers(0, 4_000_000_000_000),
    Type.DOUBLE: st.floats(allow_nan=False, allow_infinity=False).map(lambda x: x + 0.0),
    Type.BOOLEAN: st.booleans(),
    Type.STRING: st.text() | st.text("ä", min_size=60, max_size=70),
}
STREAM = "CREATE STREAM T (i BIGINT, d DOUBLE, s STRING, b BOOLEAN, t TIMESTAMP, at TIMESTAMP) WITH (timestamp = 'at');"
PARTS = ["a", "b", "a_b", "a_type", "long"]


def parsed(outputs: str, insert: str = "", rest: str = "") -> Query:
    return parse_program(f"{STREAM}\n{insert} SELECT {outputs} FROM T [ROWS 1] {rest}").queries[0]


@st.composite
def lists(draw: st.DrawFn) -> str:
    """A SELECT list with outputs in objects in each other, and without."""
    paths: list[list[str]] = []
    for path in draw(st.lists(st.lists(st.sampled_from(PARTS), min_size=1, max_size=4), min_size=1, max_size=6)):
        if all(path != other[: len(path)] and other != path[: len(other)] for other in paths):
            paths.append(path)
    items = [f'T.{draw(st.sampled_from(list(TYPES)))} AS "{".".join(path)}"' for path in paths]
    items += draw(st.sampled_from([[], ["T.i"], ["T.s", "T.t"]]))
    return ", ".join(draw(st.permutations(items)))


@st.composite
def batches(draw: st.DrawFn) -> tuple[Query, Batch, list[dict[str, Any]]]:
    """A query, its results, and what they are as objects."""
    query = parsed(draw(lists()))
    types = {output.name: output.expr.type for output in query.outputs}  # type: ignore[union-attr]
    count = draw(st.integers(0, 3))
    rows = [{name: draw(st.none() | VALUES[type]) for name, type in types.items()} for _ in range(count)]
    times = draw(st.lists(st.integers(0, 2**40), min_size=count, max_size=count))
    columns = {name: Column.from_values([row[name] for row in rows], type) for name, type in types.items()}
    return query, Batch(np.array(times, np.int64), columns), [nested(query, row) for row in rows]


def records(found: Encoded, head: int = 0) -> list[bytes]:
    return [found.data[begin + head : end - 1] for begin, end in pairwise(found.offsets.tolist())]


def encoded(batch: Batch, values: ValueEncoder, phase: str | None, head: int = 0) -> list[bytes]:
    return records(ResultRecords(values).encode(batch, phase), head)


def field(name: str) -> str:
    return name.replace(".", "_")


def renamed(value: Any) -> Any:
    """With names as Avro has them."""
    return {field(name): renamed(one) for name, one in value.items()} if isinstance(value, dict) else value


def check_read(query: Query, batch: Batch, decoded: Decoded) -> None:
    """What Weir reads of its own results, for an audit."""
    assert not decoded.dead
    assert decoded.batch.ts.tolist() == batch.ts.tolist()
    for output in query.outputs:
        assert decoded.batch.columns[output.name].to_values() == batch.columns[output.name].to_values()


def fields_of(stream: Stream) -> list[Wanted]:
    return [Wanted(one.name, one.place, one.type) for one in stream.fields]


@given(batches(), st.sampled_from([None, CLEANUP_PHASE]))
@examples(200)
def test_json(given: tuple[Query, Batch, list[dict[str, Any]]], phase: str | None) -> None:
    """Members are in the order of the SELECT list, an object where its first member is."""
    query, batch, rows = given
    raw = encoded(batch, JsonValues(result_members(query)), phase)
    for one, row, ts in zip(raw, rows, batch.ts.tolist(), strict=True):
        expected = row | {"_ts": ts} | ({} if phase is None else {"_phase": phase})
        assert json.loads(one, object_pairs_hook=list) == in_pairs(expected)
    check_read(query, batch, JsonDecoder(result_stream(query)).decode_values(raw))


def in_pairs(value: Any) -> Any:
    return [(name, in_pairs(one)) for name, one in value.items()] if isinstance(value, dict) else value


@given(batches(), st.sampled_from([None, CLEANUP_PHASE]))
@examples(200)
def test_avro(given: tuple[Query, Batch, list[dict[str, Any]]], phase: str | None) -> None:
    query, batch, rows = given
    if same_field(result_members(query)) is not None:
        return
    schema = value_schema(query, "com.acme.Out")
    plain = schema.replace(',"logicalType":"timestamp-millis"', "")  # fastavro would make times of them
    made = fastavro.parse_schema(json.loads(plain))
    encoder = AvroValues(7, phase=True, order=tuple(columns_in_order(result_members(query))))
    raw = encoded(batch, encoder, phase)
    for one, row, ts in zip(raw, rows, batch.ts.tolist(), strict=True):
        stream = io.BytesIO(one[5:])
        read = fastavro.schemaless_reader(stream, made, None)
        assert stream.read() == b""
        assert in_pairs(read) == in_pairs(renamed(row) | {"_ts": ts, "_phase": phase})
    own = result_stream(query, ResultFormat("avro"))
    check_read(query, batch, AvroDecoder(own, fields_of(own), lambda _: parse_avro(schema)).decode_values(raw))


def plain_message(message: Any) -> dict[str, Any]:
    """A message as objects; None for a field that is not there."""
    found: dict[str, Any] = {}
    for one in message.DESCRIPTOR.fields:
        value = getattr(message, one.name) if message.HasField(one.name) else None
        if value is not None and one.message_type is not None:
            is_time = one.message_type.full_name == "google.protobuf.Timestamp"
            value = value.seconds * 1000 + value.nanos // 1_000_000 if is_time else plain_message(value)
        found[one.name] = value
    return found


MADE: dict[str, Any] = {}
"""Message types by their text: compiling one takes a process."""


@given(batches(), st.sampled_from([None, CLEANUP_PHASE]))
@examples(60, quick=25)
def test_protobuf(given: tuple[Query, Batch, list[dict[str, Any]]], phase: str | None) -> None:
    query, batch, rows = given
    members = result_members(query)
    if same_field(members, as_json=True) is not None:
        return
    text = value_proto(query, "com.acme.Out")
    if text not in MADE:
        MADE[text] = compile_text(text).named(None)
    raw = encoded(batch, ProtobufValues(258, members), phase, head=6)
    made = GetMessageClass(MADE[text])
    for one, row, ts in zip(raw, rows, batch.ts.tolist(), strict=True):
        message = made.FromString(one)
        assert message.SerializeToString() == one, "nothing is there that Google's parser does not know"
        assert in_pairs(plain_message(message)) == in_pairs(renamed(row) | {"_ts": ts, "_phase": phase})
    own = result_stream(query, ResultFormat("protobuf"))
    check_read(query, batch, ProtobufDecoder(own, fields_of(own), MADE[text]).decode_values(raw))


@given(batches())
@examples(60)
def test_parquet(given: tuple[Query, Batch, list[dict[str, Any]]]) -> None:
    """What `weir backfill` writes, and `weir audit` reads: objects are structs."""
    query, batch, rows = given
    with TemporaryDirectory() as folder:
        path = str(Path(folder) / "out.parquet")
        file = open_results(path, query)
        file.write(batch)
        file.close()
        read = pq.read_table(path).to_pylist()
        assert in_pairs(dict(enumerate(read))) == in_pairs(
            {n: row | {"_ts": ts} for n, (row, ts) in enumerate(zip(rows, batch.ts.tolist(), strict=True))}
        )
        blocks = [block.decoded for block in SourceFile(result_stream(query), path).blocks()]
        for decoded in blocks:
            check_read(query, batch, decoded)
        assert sum(decoded.rows.size for decoded in blocks) == len(rows)


def test_the_schemas() -> None:
    """They change only on purpose: registries compare them with the former ones."""
    query = parsed('T.i AS "c.id", T.t AS t, T.s AS "c.name.full", T.d, T.b AS "c_name"')
    assert json.loads(value_schema(query, "com.Out"))["fields"][0] == {
        "name": "c",
        "type": {
            "type": "record",
            "name": "Out_c",
            "fields": [
                {"name": "id", "type": ["null", "long"], "default": None},
                {
                    "name": "name",
                    "type": {
                        "type": "record",
                        "name": "Out_c_name",
                        "fields": [{"name": "full", "type": ["null", "string"], "default": None}],
                    },
                },
            ],
        },
    }
    assert value_proto(query, "com.Out").splitlines()[3:] == [
        "message Out {",
        "  message c_type {",
        "    message name_type {",
        "      optional string full = 1;",
        "    }",
        "    optional int64 id = 1;",
        "    name_type name = 2;",
        "  }",
        "  c_type c = 1;",
        "  .google.protobuf.Timestamp t = 2;",
        "  optional double T_d = 3;",
        "  optional bool c_name = 4;",
        "  .google.protobuf.Timestamp _ts = 5;",
        "  optional string _phase = 6;",
        "}",
    ]
    schema = json.loads(value_json_schema(query, "com.Out"))
    assert list(schema["properties"]) == ["c", "t", "T.d", "c_name", "_ts", "_phase"]
    assert schema["required"] == ["c", "t", "T.d", "c_name", "_ts"]
    full = {"oneOf": [{"type": "null"}, {"type": "string"}]}
    number = {"oneOf": [{"type": "null"}, {"type": "integer"}]}
    name = {"type": "object", "properties": {"full": full}, "required": ["full"]}
    assert schema["properties"]["c"] == {
        "type": "object",
        "properties": {"id": number, "name": name},
        "required": ["id", "name"],
    }


def test_records_of_one_name() -> None:
    """Of "a_b.c" and "a.b.c"; fastavro refuses a name that is given twice."""
    query = parsed('T.i AS "a_b.c", T.d AS "a.b.c"')
    fastavro.parse_schema(json.loads(value_schema(query, "Out")))


def test_keys() -> None:
    """Named in KEY or by GROUP BY, and laid out like values."""
    outputs = 'T.i AS "a.i", T.s AS s, T.b AS "a.b"'
    assert parsed(outputs, "INSERT INTO 'x' KEY (a.b, s)").result_format.key == ("a.b", "s")
    grouped = parsed(f"{outputs}, COUNT(*) AS n", "", "GROUP BY T.b, T.s, T.i, T.d EMIT EVERY 1 SECOND")
    paths = key_paths(grouped)
    assert paths == (("a", "b"), ("s",), ("a", "i"), ("T.d",))
    members, types = members_of(paths), [Type.BOOLEAN, Type.STRING, Type.BIGINT, Type.DOUBLE]
    columns = [Column.from_values([value], type) for value, type in zip([True, "x", 5, None], types, strict=True)]
    expected = {"a": {"b": True, "i": 5}, "s": "x", "T_d": None}

    def read(encoder: KeyEncoder) -> bytes:
        (raw,) = records(encoder.encode(columns, 1))
        return raw

    assert renamed(json.loads(read(JsonKeys(members)))) == expected
    schema = fastavro.parse_schema(json.loads(key_schema(members, types, "k")))
    raw = read(AvroKeys(1, tuple(columns_in_order(members))))
    assert fastavro.schemaless_reader(io.BytesIO(raw[5:]), schema, None) == expected
    made = GetMessageClass(compile_text(key_proto(members, types, "k")).named("k"))
    assert plain_message(made.FromString(read(ProtobufKeys(1, members))[6:])) == expected
    assert json.loads(key_json_schema(members, types, "k"))["properties"]["a"]["required"] == ["b", "i"]


def test_a_set_difference() -> None:
    text = f'{STREAM} SELECT A.i AS "x.i", A.s AS s, A.d AS "x.d" FROM T A [ROWS 1] EXCEPT T B [ROWS 1] ON A.i = B.i'
    members = result_members(parse_program(text).queries[0])
    columns = {"x.i": [1], "s": ["a"], "x.d": [0.5], OP_KEY: ["+"]}
    types = {"x.i": Type.BIGINT, "s": Type.STRING, "x.d": Type.DOUBLE, OP_KEY: Type.STRING}
    batch = Batch(np.array([7]), {name: Column.from_values(v, types[name]) for name, v in columns.items()})
    (found,) = encoded(batch, JsonValues(members), None)
    assert found == b'{"x":{"i":1,"d":0.5},"s":"a","_op":"+","_ts":7}'


@pytest.mark.parametrize("outputs", ["T.i", "T.*", '"T"."i"', "T.i, T.s AS s"])
def test_names_without_an_alias_stay_flat(outputs: str) -> None:
    assert all(len(output.path) == 1 for output in parsed(outputs).outputs)


@pytest.mark.parametrize(
    ("outputs", "message", "column"),
    [
        (
            'T.i AS "a..b"',
            "dots are between the names of objects in each other, as in AS \"customer.id\"; got 'a..b'",
            16,
        ),
        ('T.i AS ".a"', "got '.a'", 16),
        ('T.i AS "a."', "got 'a.'", 16),
        ('T.i AS "."', "got '.'", 16),
        ('T.i AS a, T.s AS "a.b"', "'a' would be a value and an object; rename one with AS", 19),
        ('T.s AS "a.b.c", T.i AS "a.b"', "'a.b' would be a value and an object; rename one with AS", 25),
        ('T.s AS "a.b", T.i AS "a.b"', "two results are called 'a.b'; rename one with AS", 23),
        ('T.i, T.s AS "T.i"', "two results are called 'T.i'; rename one with AS", 14),
        ('T.i AS "_ts.a"', "'_ts' is a key that Weir writes itself", 9),
        (f'T.i AS "{".".join("a" * 33)}"', "objects in results are at most 32 deep, got 33", 16),
    ],
)
def test_names_that_are_refused(outputs: str, message: str, column: int) -> None:
    with pytest.raises(QueryError) as found:
        parsed(outputs)
    assert message in str(found.value)
    assert (found.value.line, found.value.column) == (2, column)


def test_fields_that_would_be_one_in_an_object() -> None:
    outputs = 'T.i AS "a.x y", T.s AS "a.x_y"'
    assert parsed(outputs).outputs
    with pytest.raises(QueryError, match=r"in avro 'a.x y' and 'a.x_y' would be one field"):
        parsed(outputs, "INSERT INTO 'x' WITH (format = 'avro')")
    assert parsed('T.i AS "a._ts"', "INSERT INTO 'x' WITH (format = 'avro')").outputs


@pytest.mark.parametrize("format", ["json", "json-schema", "avro", "protobuf"])
def test_headers_are_in_no_value(format: str) -> None:
    """Schemas and values are those of the query without its headers, and so are the keys of groups."""
    rest = "GROUP BY T.i, T.s EMIT EVERY 1 SECOND"
    query = parsed('T.i AS "a.i", MAX(T.t) AS m, T.s AS "_headers.x", T.s AS "_headers.y.z"', rest=rest)
    plain = parsed('T.i AS "a.i", MAX(T.t) AS m', rest=rest)
    assert value_members(query) == value_members(plain)
    made = {"avro": value_schema, "protobuf": value_proto}.get(format, value_json_schema)
    assert made(query, "x") == made(plain, "x")
    assert key_paths(query) == key_paths(plain) == (("a", "i"), ("T.s",))
    assert nested(query, {"a.i": 1, "_headers.y.z": "b"}) == {"a": {"i": 1}, "_headers": {"y.z": "b"}}
