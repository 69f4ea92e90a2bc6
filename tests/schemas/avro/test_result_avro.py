"""Results in Avro: any reader finds in them what JSON would have, under the schema that describes them."""

from __future__ import annotations

import io
import json
import math
from itertools import pairwise
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.avro.decoder import AvroDecoder
from schemas.avro.encoder import AvroKeys, AvroValues
from schemas.avro.result_schema import field_name, key_schema, record_name, same_field, value_schema
from schemas.avro.schema import parse_avro
from schemas.codecs.encode import Encoded
from schemas.codecs.results import ResultRecords
from schemas.codecs.wanted import Wanted
from schemas.columns import Batch, Column
from schemas.language.program import parse_program
from schemas.members import flat_members
from schemas.query import CLEANUP_PHASE, ColumnRef, Field, Output, Query, Stream, Subtraction, Type
from tests.profiles import examples

VALUES: dict[Type, st.SearchStrategy[Any]] = {
    Type.BIGINT: st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200),
    Type.TIMESTAMP: st.integers(-(2**62), 2**62),
    Type.DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
    Type.BOOLEAN: st.booleans(),
    Type.STRING: st.text() | st.text("ä", min_size=60, max_size=70),
}
TIMES = st.integers(-(2**62), 2**62)
ENCODER = ResultRecords(AvroValues(7, phase=True))


def records(found: Encoded) -> list[bytes]:
    """What goes to Kafka."""
    return [found.data[begin : end - 1] for begin, end in pairwise(found.offsets.tolist())]


def plain(schema: str) -> Any:
    """The schema, parsed, with numbers for times: fastavro would make datetimes, which end in the year 9999."""
    return fastavro.parse_schema(
        json.loads(
            schema.replace('"logicalType":"timestamp-millis",', "").replace(',"logicalType":"timestamp-millis"', "")
        )
    )


def read(schema: str, raw: bytes, number: int) -> dict[str, Any]:
    """A framed record as fastavro reads it, to its end."""
    assert raw[:5] == b"\0" + number.to_bytes(4, "big")
    stream = io.BytesIO(raw[5:])
    found = fastavro.schemaless_reader(stream, plain(schema), None)
    assert stream.read() == b""
    assert isinstance(found, dict)
    return found


def query_of(types: list[Type]) -> Query:
    outputs = tuple(Output(f"T.c{n}", ColumnRef("T", f"c{n}", type)) for n, type in enumerate(types))
    return Query("out", "out", (), (), outputs)


def columns_of(query: Query) -> tuple[tuple[str, Type], ...]:
    return tuple((output.name, output.expr.type) for output in query.outputs if isinstance(output.expr, ColumnRef))


@st.composite
def batches(draw: st.DrawFn) -> tuple[Query, Batch, list[list[Any]]]:
    """A query, its results, and their values by row."""
    types = draw(st.lists(st.sampled_from(list(Type)), max_size=5))
    count = draw(st.integers(0, 4))
    rows = [[draw(st.none() | VALUES[type]) for type in types] for _ in range(count)]
    query = query_of(types)
    columns = {
        name: Column.from_values([row[n] for row in rows], type) for n, (name, type) in enumerate(columns_of(query))
    }
    times = draw(st.lists(TIMES, min_size=count, max_size=count))
    return query, Batch(np.array(times, np.int64), columns), rows


@given(batches(), st.sampled_from([None, CLEANUP_PHASE]), st.data())
@examples(400)
def test_what_fastavro_reads(
    given: tuple[Query, Batch, list[list[Any]]], phase: str | None, data: st.DataObject
) -> None:
    """Of whole batches and of slices of them."""
    query, batch, rows = given
    schema = value_schema(query, "out")
    begin = data.draw(st.integers(0, len(batch)))
    found = ENCODER.encode(batch.slice(begin, len(batch)), phase)
    assert found.keys is None
    raw = records(found)
    assert len(raw) == len(batch) - begin
    for record, row, ts in zip(raw, rows[begin:], batch.ts[begin:].tolist(), strict=True):
        values = read(schema, record, 7)
        assert values.pop("_ts") == ts
        assert values.pop("_phase") == phase
        assert list(values) == [f"T_c{n}" for n in range(len(row))]
        for value, expected in zip(values.values(), row, strict=True):
            assert value == expected
            assert type(value) is type(expected)
            assert not isinstance(value, float) or math.copysign(1, value) == math.copysign(1, expected)


@given(batches())
@examples(100)
def test_weir_reads_its_own_results(given: tuple[Query, Batch, list[list[Any]]]) -> None:
    """By the columns of a stream over the topic."""
    query, batch, _ = given
    small = Batch(np.abs(batch.ts) % 2**40, batch.columns)
    schema = parse_avro(value_schema(query, "out"))
    names = {name: field_name(name) for name in batch.columns}
    fields = [Field(new, batch.columns[old].type) for old, new in names.items()]
    stream = Stream("s", (*fields, Field("_ts", Type.TIMESTAMP)), "s", "avro", "_ts")
    wanted = [Wanted(field.name, field.place, field.type) for field in stream.fields]
    decoded = AvroDecoder(stream, wanted, lambda _: schema).decode_values(records(ENCODER.encode(small)))
    times = [name for name, column in batch.columns.items() if column.type is Type.TIMESTAMP]
    if not times:  # a time before 1970, or after the year 9999, is no event time, but may be a value
        assert not decoded.dead
        assert decoded.batch.ts.tolist() == small.ts.tolist()
        for old, new in names.items():
            assert decoded.batch.columns[new].to_values() == batch.columns[old].to_values()


TEXT = "CREATE STREAM a (k BIGINT, s STRING); INSERT INTO 'x.sums' SELECT {} FROM a [ROWS 1] {} EMIT EVERY 1 SECOND"


def test_upserts_have_keys() -> None:
    """Where all results are one group, a key has one field, which is null; none of them comes late."""
    for outputs, names, types, keys in (
        ("GROUP BY a.s, a.k", ("a.s", "a.k"), (Type.STRING, Type.BIGINT), [["ä", None], [None, -(2**63)]]),
        ("", (), (), [[], []]),
    ):
        query = parse_program(TEXT.format("COUNT(*) AS n", outputs)).queries[0]
        encoder = ResultRecords(AvroValues(2**31 - 1, phase=False), AvroKeys(3))
        columns = tuple(Column.from_values(list(v), t) for v, t in zip(zip(*keys, strict=True), types, strict=True))
        batch = Batch(np.array([5, 6]), {"n": Column.from_values([1, 2], Type.BIGINT)}, columns)
        found = encoder.encode(batch)
        schema = value_schema(query, "x.sums")
        assert [read(schema, raw, 2**31 - 1) for raw in records(found)] == [{"n": 1, "_ts": 5}, {"n": 2, "_ts": 6}]
        assert found.keys is not None
        made = key_schema(flat_members(names), types, "x.sums_key")
        read_keys = [read(made, raw, 3) for raw in records(found.keys)]
        expected = [field_name(name) for name in names] or ["group"]
        assert [list(key) for key in read_keys] == [expected] * 2
        assert [list(key.values()) for key in read_keys] == (keys if names else [[None], [None]])
        assert all(len(raw) > 5 for raw in records(found.keys)), "what deserializers demand"


def test_what_enters_and_leaves_an_answer() -> None:
    query = Query("out", "out", (), (), query_of([Type.BIGINT]).outputs, subtracted=(Subtraction("B", ()),))
    encoder = ResultRecords(AvroValues(1, phase=False))
    columns = {"T.c0": Column.from_values([1, None], Type.BIGINT), "_op": Column.from_values(["+", "-"], Type.STRING)}
    found = encoder.encode(Batch(np.array([5, 6]), columns))
    assert [read(value_schema(query, "out"), raw, 1) for raw in records(found)] == [
        {"T_c0": 1, "_op": "+", "_ts": 5},
        {"T_c0": None, "_op": "-", "_ts": 6},
    ]


def test_the_schema() -> None:
    """Every output may be null. It changes only on purpose: registries compare it with the former one."""
    text = "CREATE STREAM t (mote BIGINT, at TIMESTAMP); INSERT INTO 'x' SELECT t.mote, t.at AS \"when\" FROM t"
    assert json.loads(value_schema(parse_program(f"{text} [ROWS 1]").queries[0], "com.Alarm")) == {
        "type": "record",
        "name": "com.Alarm",
        "fields": [
            {"name": "t_mote", "type": ["null", "long"], "default": None},
            {"name": "when", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
            {"name": "_ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "_phase", "type": ["null", "string"], "default": None},
        ],
    }


@pytest.mark.parametrize(
    ("name", "made"),
    [("a", "a"), ("T.celsius", "T_celsius"), ("2nd", "_2nd"), ("größe", "gr__e"), ("a b", "a_b"), ("", "_")],
)
def test_names_of_fields(name: str, made: str) -> None:
    assert field_name(name) == made


@pytest.mark.parametrize(
    ("topic", "record"),
    [
        ("alarms", "alarms"),
        ("sensors.room-1.alarms", "sensors.room_1.alarms"),
        ("9.a", "_9.a"),
        (".a..b.", "a.b"),
        ("x.long", "x.long_"),
    ],
)
def test_names_of_records(topic: str, record: str) -> None:
    assert record_name(topic) == record


def test_two_names_of_one_field() -> None:
    assert same_field(flat_members(["a.b", "a_c"])) is None
    assert same_field(flat_members(["a.b", "c", "a_b"])) == ("a.b", "a_b")
    assert same_field(flat_members([".ts"])) == ("_ts", ".ts")
