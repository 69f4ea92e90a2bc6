"""The same rows are the same tuples in every format, flat and nested, by one schema and by several that are mixed."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from random import Random
from typing import Any

import fastavro
from hypothesis import given
from hypothesis import strategies as st

from schemas.avro.decoder import AvroDecoder
from schemas.avro.schema import parse_avro
from schemas.codecs.csv_codec import CsvDecoder
from schemas.codecs.json_codec import JsonDecoder
from schemas.codecs.wanted import Wanted
from schemas.query import Field, Stream, Type
from schemas.timestamps import MAX_TIMESTAMP_MS
from tests.profiles import examples
from tests.schemas.codecs.decoding import bits, tuples

Row = dict[str, Any]

FLAT = (
    Field("i", Type.BIGINT),
    Field("d", Type.DOUBLE),
    Field("s", Type.STRING),
    Field("b", Type.BOOLEAN),
    Field("at", Type.TIMESTAMP),
)
PLACES = {"i": ("x", "i"), "d": ("x", "y", "d"), "s": ("s",), "b": ("x", "y", "b"), "at": ("meta", "at")}
NESTED = tuple(Field(field.name, field.type, PLACES[field.name]) for field in FLAT)

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "i": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
            "d": st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
            "s": st.one_of(st.none(), st.text(st.characters(codec="utf-8"), max_size=8)),
            "b": st.one_of(st.none(), st.booleans()),
            "at": st.integers(0, MAX_TIMESTAMP_MS - 1),
        }
    ),
    max_size=8,
)

OPTIONAL = {name: ["null", kind] for name, kind in {"i": "long", "d": "double", "s": "string", "b": "boolean"}.items()}


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields.items()]}


FLAT_SCHEMA = record("F", **OPTIONAL, at="long")
REVERSED_SCHEMA = record("R", at="long", more={"type": "array", "items": "string"}, **dict(reversed(OPTIONAL.items())))
NESTED_SCHEMA = record(
    "N",
    meta=record("M", at="long"),
    s=OPTIONAL["s"],
    x=["null", record("X", i=OPTIONAL["i"], y=["null", record("Y", b=OPTIONAL["b"], d=OPTIONAL["d"])])],
)


def nested(row: Mapping[str, Any]) -> Row:
    inner = {"b": row["b"], "d": row["d"]}
    return {"meta": {"at": row["at"]}, "s": row["s"], "x": {"i": row["i"], "y": inner}}


def avro(schema: dict[str, Any], row: Mapping[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def csv(row: Mapping[str, Any]) -> bytes:
    def text(value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, str):
            return '"' + value.replace('"', '""') + '"'
        return json.dumps(value)

    return ",".join(text(row[field.name]) for field in FLAT).encode()


def stream(fields: tuple[Field, ...]) -> Stream:
    return Stream("S", fields, "s", timestamp="at")


def wanted(fields: tuple[Field, ...]) -> list[Wanted]:
    return [Wanted(field.name, field.place, field.type) for field in fields]


FLAT_JSON, NESTED_JSON, CSV = JsonDecoder(stream(FLAT)), JsonDecoder(stream(NESTED)), CsvDecoder(stream(FLAT))
FLAT_AVRO = AvroDecoder(stream(FLAT), wanted(FLAT), parse_avro(json.dumps(FLAT_SCHEMA)))
NESTED_AVRO = AvroDecoder(stream(NESTED), wanted(NESTED), parse_avro(json.dumps(NESTED_SCHEMA)))
REGISTERED = [parse_avro(json.dumps(schema)) for schema in (FLAT_SCHEMA, REVERSED_SCHEMA)]
FRAMED = AvroDecoder(stream(FLAT), wanted(FLAT), REGISTERED.__getitem__)


@examples(300)
@given(ROWS, st.integers(0, 2**32 - 1))
def test_the_same_rows_are_the_same_tuples(rows: list[Row], seed: int) -> None:
    rng = Random(seed)
    schemas = [rng.randrange(2) for _ in rows]
    more = [{**row, "more": ["a"] * rng.randrange(3)} for row in rows]
    framed = [
        b"\0" + struct.pack(">I", number) + avro((FLAT_SCHEMA, REVERSED_SCHEMA)[number], row)
        for number, row in zip(schemas, more, strict=True)
    ]
    found = {
        "json": FLAT_JSON.decode_values([json.dumps(row).encode() for row in rows]),
        "nested json": NESTED_JSON.decode_values([json.dumps(nested(row)).encode() for row in rows]),
        "csv": CSV.decode_values(list(map(csv, rows))),
        "avro": FLAT_AVRO.decode_values([avro(FLAT_SCHEMA, row) for row in rows]),
        "nested avro": NESTED_AVRO.decode_values([avro(NESTED_SCHEMA, nested(row)) for row in rows]),
        "framed avro": FRAMED.decode_values(framed),
    }
    expected = [[bits(row[field.name]) for field in FLAT] for row in rows]
    for name, decoded in found.items():
        assert decoded.dead == [], name
        assert tuples(decoded) == expected, name
        assert decoded.batch.ts.tolist() == [row["at"] for row in rows], name
