"""Results by schemas of one's own: fastavro and Google's Protobuf read what is written; wrong schemas are refused.

The schemas are made around random queries with outputs in objects in each other (`tests.schemas.test_nested_results`):
fields in any order, of any type that takes the output, and others that no output has.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
import numpy as np
import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from schemas.avro.given import GivenAvroValues
from schemas.avro.given import given_values as given_avro
from schemas.avro.schema import parse_avro
from schemas.codecs.results import JsonKeys, ResultRecords, TextKeys
from schemas.columns import Batch, Column
from schemas.errors import DataError
from schemas.members import Member, flat_members, result_members
from schemas.protobuf.compiler import compile_text
from schemas.protobuf.given import given_values as given_protobuf
from schemas.query import CLEANUP_PHASE, Query, Type
from tests.oracle import nested
from tests.profiles import examples
from tests.schemas.test_nested_results import batches, field, parsed, records, renamed

INT_32 = range(-(2**31), 2**31)
SYMBOLS = ["a", "b", "c"]
EXTRA: list[tuple[Any, Any, Any]] = [
    ("long", -70, -70),
    ("int", 3, 3),
    (["null", "string"], None, None),
    (["string", "null"], "zwölf", "zwölf"),
    ("double", 2, 2.0),
    ("float", 0.5, 0.5),
    ("boolean", True, True),
    ("bytes", "\u00ff\u0000", b"\xff\x00"),
    ({"type": "array", "items": "int"}, [1, -2], [1, -2]),
    ({"type": "array", "items": "int"}, [], []),
    ({"type": "map", "values": ["null", "double"]}, {"k": None}, {"k": None}),
    ({"type": "map", "values": "double"}, {}, {}),
    ({"type": "enum", "name": "E{n}", "symbols": ["x", "y"]}, "y", "y"),
    ({"type": "fixed", "name": "F{n}", "size": 2}, "ab", b"ab"),
    (
        {"type": "record", "name": "R{n}", "fields": [{"name": "p", "type": "long", "default": 1}]},
        {},
        {"p": 1},
    ),
]
AVRO_TYPES: dict[Type, list[Any]] = {
    Type.BIGINT: ["long", "int"],
    Type.DOUBLE: ["double"],
    Type.STRING: ["string", "bytes", {"type": "enum", "name": "E{n}", "symbols": SYMBOLS}],
    Type.BOOLEAN: ["boolean"],
    Type.TIMESTAMP: [
        "long",
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "long", "logicalType": "timestamp-micros"},
        {"type": "long", "logicalType": "local-timestamp-nanos"},
    ],
}


class Avro:
    """Makes the schema of a query, and what a result is by it.

    Attributes:
        misfit: set by `value` where a value has no place.
    """

    def __init__(self, draw: st.DrawFn, query: Query) -> None:
        self._draw = draw
        self._number = 0
        types = [output.expr.type for output in query.outputs]  # type: ignore[union-attr]
        members = [*result_members(query), *([Member("_ts", len(types))] if draw(st.booleans()) else [])]
        self.schema, self.of = self.record(members, [*types, Type.TIMESTAMP])
        self.misfit = False

    def named(self, schema: Any) -> Any:
        self._number += 1
        return json.loads(json.dumps(schema).replace("{n}", str(self._number)))

    def record(self, members: Any, types: list[Type]) -> tuple[Any, Callable[[Any], Any]]:
        made = [self.field(member, types) for member in members]
        for n in range(self._draw(st.integers(0, 2))):
            kind, default, expected = self._draw(st.sampled_from(EXTRA))
            about = {} if default is None and self._draw(st.booleans()) else {"default": default}
            name = f"extra{n}"
            made.append(({"name": name, "type": self.named(kind), **about}, lambda row, e=expected: e, name))
        made = self._draw(st.permutations(made))
        schema = self.named({"type": "record", "name": "N{n}"}) | {"fields": [one for one, _, _ in made]}
        return schema, lambda row: {name: of(row) for _, of, name in made}

    def field(self, member: Member, types: list[Type]) -> tuple[Any, Callable[[Any], Any], str]:
        name = field(member.name)
        if member.members:
            kind, of = self.record(member.members, types)
            kind = ["null", kind] if self._draw(st.booleans()) else kind
            return {"name": name, "type": kind}, lambda row: of(row[member.name]), name
        kind = self.named(self._draw(st.sampled_from(AVRO_TYPES[types[member.column]])))
        union = self._draw(st.sampled_from([[0], [None, 0], [0, None], [1, 0, None], [1, 0]]))
        other = self.named({"type": "fixed", "name": "F{n}", "size": 3})
        if union != [0]:
            branches = ["null" if one is None else (kind, other)[one] for one in union]
        else:
            branches = kind
        return {"name": name, "type": branches}, lambda row: self.value(row[member.name], kind, None in union), name

    def value(self, value: Any, kind: Any, nullable: bool) -> Any:
        if value is None:
            self.misfit |= not nullable
            return None
        name = kind if isinstance(kind, str) else kind.get("logicalType", kind["type"])
        if name == "int":
            self.misfit |= value not in INT_32
        elif name == "enum":
            self.misfit |= value not in SYMBOLS
        elif name == "bytes":
            return value.encode()
        per_ms = {"timestamp-micros": 1_000, "local-timestamp-nanos": 1_000_000}.get(name, 1)
        found = value * per_ms if per_ms > 1 else value
        self.misfit |= per_ms > 1 and found >= 2**63
        return found


Given = tuple[Query, Batch, list[dict[str, Any]]]


@st.composite
def cases(draw: st.DrawFn) -> Given:
    """A query, its results, and what they are as objects; texts are symbols of an enum in half of them."""
    query, batch, rows = draw(batches())
    if draw(st.booleans()):
        return query, batch, rows
    columns = {
        name: column
        if column.type is not Type.STRING
        else Column.from_values(
            [None if text is None else SYMBOLS[len(str(text)) % 3] for text in column.to_values()], Type.STRING
        )
        for name, column in batch.columns.items()
    }
    values = [
        dict(zip(columns, row, strict=True)) for row in zip(*(c.to_values() for c in columns.values()), strict=True)
    ]
    return query, Batch(batch.ts, columns), [nested(query, row) for row in values]


def without_logical(schema: Any) -> Any:
    if isinstance(schema, list):
        return [without_logical(one) for one in schema]
    if isinstance(schema, dict):
        return {name: without_logical(one) for name, one in schema.items() if name != "logicalType"}
    return schema


@given(cases(), st.data(), st.sampled_from([None, CLEANUP_PHASE]))
@examples(300)
def test_avro(given: Given, data: st.DataObject, phase: str | None) -> None:
    query, batch, rows = given
    made = Avro(data.draw, query)
    expected, refused = [], []
    for row, ts in zip(rows, batch.ts.tolist(), strict=True):
        made.misfit = False
        wanted = made.of(row | {"_ts": ts})
        (refused if made.misfit else expected).append(row | {"_ts": ts} if made.misfit else wanted)
    values = given_avro(parse_avro(json.dumps(made.schema)), query)(7)
    found = ResultRecords(values).encode(batch, phase)
    read = fastavro.parse_schema(without_logical(made.schema))
    raw = records(found)
    assert all(one[:5] == b"\0\0\0\0\7" for one in raw)
    assert [fastavro.schemaless_reader(io.BytesIO(one[5:]), read, None) for one in raw] == expected
    assert [nested(query, json.loads(text)) for text, _ in found.refused] == [
        row | ({} if phase is None else {"_phase": phase}) for row in refused
    ]
    assert all("of the results' schema cannot have" in why for _, why in found.refused)


PROTOBUF_TYPES: dict[Type, list[str]] = {
    Type.BIGINT: [
        *("int64", "int32", "uint64", "uint32", "sint64", "sint32", "fixed64", "sfixed64"),
        *("google.protobuf.Int64Value", "google.protobuf.UInt32Value"),
    ],
    Type.DOUBLE: ["double", "google.protobuf.DoubleValue"],
    Type.STRING: ["string", "bytes", "kind", "google.protobuf.StringValue"],
    Type.BOOLEAN: ["bool", "google.protobuf.BoolValue"],
    Type.TIMESTAMP: ["int64", "google.protobuf.Timestamp"],
}
RANGES = {
    "int32": INT_32,
    "sint32": INT_32,
    "uint32": range(2**32),
    "google.protobuf.UInt32Value": range(2**32),
    "uint64": range(2**63),
    "fixed64": range(2**63),
}


class Protobuf:
    """As `Avro`, of a message type in another."""

    def __init__(self, draw: st.DrawFn, query: Query) -> None:
        self._draw = draw
        self._version = draw(st.sampled_from([2, 3]))
        types = [output.expr.type for output in query.outputs]  # type: ignore[union-attr]
        members = [*result_members(query), *([Member("_ts", len(types))] if draw(st.booleans()) else [])]
        lines, self.of = self.message("own", members, [*types, Type.TIMESTAMP])
        self.path = draw(st.sampled_from([(0,), (1,), (1, 0)]))
        imported = [f'import "google/protobuf/{name}.proto";' for name in ("timestamp", "wrappers")]
        enum = ["enum kind { a = 0; b = 1; c = -3; }"]
        before = ["message before {}"] if self.path[0] else []
        if len(self.path) > 1:
            lines = ["message around {", *lines, "}"]
        self.name = "shop.around.own" if len(self.path) > 1 else "shop.own"
        head = [f'syntax = "proto{self._version}";', "package shop;", *imported, *before, *enum]
        self.text = "\n".join([*head, *lines])
        self.misfit = False

    def message(self, name: str, members: Any, types: list[Type]) -> tuple[list[str], Callable[[Any, Any], None]]:
        lines, checks = [], []
        numbers = self._draw(st.permutations([1, 2, 3, 15, 16, 200, 3000, 2**29 - 1]))
        for member, number in zip(self._draw(st.permutations(members)), numbers, strict=False):
            one = field(member.name)
            if member.members:
                inside, check = self.message(f"in_{one}", member.members, types)
                lines += inside
                kind, label = f"in_{one}", "optional "
            else:
                kind = self._draw(st.sampled_from(PROTOBUF_TYPES[types[member.column]]))
                labels = ["optional ", "required "] if self._version == 2 else ["optional ", ""]
                label = self._draw(st.sampled_from(labels))
                check = self.checks(kind, label)
            lines.append(f"{label}{kind} {one} = {number};")
            checks.append((one, member.name, check))
        lines.append(f"optional string more_{name} = 50; repeated int64 many = 51;")

        def check_all(row: Any, read: Any) -> None:
            for one, key, check in checks:
                check(row[key], None if read is None else (read, one))

        return [f"message {name} {{", *lines, "}"], lambda row, read: check_all(
            row, read if read is None or not isinstance(read, tuple) else getattr(*read)
        )

    def checks(self, kind: str, label: str) -> Callable[[Any, Any], None]:
        def check(value: Any, read: Any) -> None:
            if value is None:
                self.misfit |= label == "required "
            elif kind in RANGES:
                self.misfit |= value not in RANGES[kind]
            elif kind == "kind":
                self.misfit |= value not in SYMBOLS
            if read is None:
                return
            message, name = read
            found = getattr(message, name)
            if label or "." in kind:
                assert message.HasField(name) == (value is not None)
            if value is None:
                assert "." in kind or not found
                return
            if kind == "google.protobuf.Timestamp":
                found = found.ToMilliseconds()
            elif "." in kind:
                found = found.value
            elif kind == "kind":
                found = {0: "a", 1: "b", -3: "c"}[found]
            elif kind == "bytes":
                found = found.decode()
            assert found == value

        return check


@given(cases(), st.data())
@examples(60, quick=10)
def test_protobuf(given: Given, data: st.DataObject) -> None:
    query, batch, rows = given
    made = Protobuf(data.draw, query)
    type = compile_text(made.text).named(made.name)
    found = ResultRecords(given_protobuf(type, query)(7)).encode(batch)
    expected, refused = [], 0
    for row, ts in zip(rows, batch.ts.tolist(), strict=True):
        made.misfit = False
        made.of(row | {"_ts": ts}, None)
        refused += made.misfit
        expected += [] if made.misfit else [row | {"_ts": ts}]
    indexes = b"\0" if made.path == (0,) else bytes([2 * len(made.path), *(2 * one for one in made.path)])
    head = b"\0\0\0\0\7" + indexes
    for raw, row in zip(records(found), expected, strict=True):
        assert raw.startswith(head)
        message = GetMessageClass(type).FromString(raw[len(head) :])
        assert not message.FindInitializationErrors()
        made.of(row, message)
    assert len(found.refused) == refused


def test_late_results_and_keys() -> None:
    """What does not fit has no key, and the rest keeps its own. It is JSON as results in JSON are: nested values
    had names with dots."""
    query = parsed('T.i AS "k.i", T.s AS s', "INSERT INTO 'x' KEY (k.i)")
    batch = Batch(
        np.array([1, 2, 3]),
        {
            "k.i": Column.from_values([2**40, 5, 6], Type.BIGINT),
            "s": Column.from_values(["x", None, "y"], Type.STRING),
        },
    )
    text = """{"type": "record", "name": "r", "fields": [
      {"name": "_phase", "type": ["null", "string"]},
      {"name": "s", "type": ["null", "string"]},
      {"name": "k", "type": {"type": "record", "name": "k", "fields": [{"name": "i", "type": "int"}]}}]}"""
    values = given_avro(parse_avro(text), query)(300)
    assert isinstance(values, GivenAvroValues)
    encoder = ResultRecords(values, TextKeys(), ("k.i",), (("h", "s"),), result_members(query))
    found = encoder.encode(batch, CLEANUP_PHASE)
    assert records(found) == [
        b"\0\0\0\1\x2c" + b"\2\x0ecleanup" + b"\0" + b"\x0a",
        b"\0\0\0\1\x2c" + b"\2\x0ecleanup" + b"\2\2y" + b"\x0c",
    ]
    assert found.keys is not None
    assert found.hashes is not None
    assert (records(found.keys), len(found.hashes)) == ([b"5", b"6"], 2)
    assert found.headers[0][1].missing is not None
    why = "field 'k.i' of the results' schema cannot have 1099511627776"
    assert found.refused == ((b'{"k":{"i":1099511627776},"s":"x","_ts":1,"_phase":"cleanup"}', why),)
    groups = ResultRecords(values, JsonKeys(flat_members(["g"])))
    found = groups.encode(Batch(batch.ts, batch.columns, (Column.from_values([7, 8, 9], Type.BIGINT),)))
    assert found.keys is not None
    assert records(found.keys) == [b'{"g":8}', b'{"g":9}']


def avro_record(*fields: Any) -> str:
    return json.dumps({"type": "record", "name": "r", "fields": list(fields)})


@pytest.mark.parametrize(
    ("outputs", "schema", "message"),
    [
        ("T.i AS a", '"long"', "the schema is long, and results have a record there"),
        ("T.i AS a", avro_record(), "the schema has no field 'a', which results have"),
        ('T.i AS "o.a"', avro_record({"name": "o", "type": "long"}), "field 'o' is long, and results have a record"),
        (
            'T.i AS "o.a"',
            avro_record({"name": "o", "type": {"type": "record", "name": "o", "fields": []}}),
            "the schema has no field 'o.a', which results have",
        ),
        (
            "T.i AS a",
            avro_record({"name": "a", "type": "long"}, {"name": "b", "type": "string"}),
            "no output is called 'b', and that field of the schema has no default and is never null",
        ),
        ("T.i AS a", avro_record({"name": "a", "type": "string"}), "field 'a' of the schema is string, and the"),
        ("T.d AS a", avro_record({"name": "a", "type": ["null", "float"]}), "'a' of the schema is null or float, and"),
        (
            "T.i AS a",
            avro_record({"name": "a", "type": "long"}, {"name": "b", "type": "int", "default": "x"}),
            "the default of field 'b' is none: 'x' is no int",
        ),
        (
            "T.i AS a",
            avro_record({"name": "a", "type": "long"}, {"name": "_phase", "type": "string"}),
            "field '_phase' of the schema is never null",
        ),
    ],
)
def test_avro_that_does_not_fit(outputs: str, schema: str, message: str) -> None:
    with pytest.raises(DataError) as found:
        given_avro(parse_avro(schema), parsed(outputs))
    assert message in str(found.value)


def test_the_branch_that_takes_every_value_is_chosen() -> None:
    """Large numbers were dead letters where `int` came before `long`."""
    schema = parse_avro(avro_record({"name": "a", "type": ["null", "int", "long"]}))
    batch = Batch(np.array([1, 2]), {"a": Column.from_values([3_000_000_000, 4], Type.BIGINT)})
    found = ResultRecords(given_avro(schema, parsed("T.i AS a"))(7)).encode(batch)
    assert not found.refused
    assert [one[5:6] for one in records(found)] == [b"\x04"] * 2


@pytest.mark.parametrize(
    ("outputs", "fields", "message"),
    [
        ("T.i AS a", "optional int64 b = 1;", "the schema has no field 'a', which results have; it has b"),
        ("T.i AS a", "optional string a = 1;", "field 'a' of the schema is string, and the output is BIGINT"),
        ("T.i AS a", "repeated int64 a = 1;", "field 'a' of the schema is repeated int64, and the output is BIGINT"),
        ("T.d AS a", "optional float a = 1;", "field 'a' of the schema is float, and the output is DOUBLE"),
        ("T.i AS a", "optional int64 a = 1; required int64 b = 2;", "no output is called 'b', and that field of the s"),
        ('T.i AS "a.b"', "optional int64 a = 1;", "field 'a' of the schema is int64, and results have a message there"),
        ("T.i AS a", "optional m a = 1;", "field 'a' of the schema is m, and the output is BIGINT"),
        ("T.i AS a, T.i AS b", "oneof x { int64 a = 1; int64 b = 2; }", "'a' and 'b' of the schema are of one oneof"),
        ("T.i AS a", "optional int64 a = 1; repeated string _phase = 2;", "'_phase' of the schema is no optional"),
    ],
)
def test_protobuf_that_does_not_fit(outputs: str, fields: str, message: str) -> None:
    type = compile_text(f'syntax = "proto2"; message m {{ {fields} }}').named(None)
    with pytest.raises(DataError) as found:
        given_protobuf(type, parsed(outputs))
    assert message in str(found.value)


def test_names_are_those_of_avro() -> None:
    query = parsed('T.i, T.s AS "a.b c"')
    inside = {"type": "record", "name": "a", "fields": [{"name": "b_c", "type": ["null", "string"]}]}
    text = avro_record({"name": "a", "type": inside}, {"name": "T_i", "type": ["null", "long"]})
    batch = Batch(
        np.array([1]), {"T.i": Column.from_values([1], Type.BIGINT), "a.b c": Column.from_values(["x"], Type.STRING)}
    )
    found = ResultRecords(given_avro(parse_avro(text), query)(7)).encode(batch)
    assert renamed({"T.i": 1}) == {"T_i": 1}
    assert records(found, 5) == [b"\2\2x\2\2"]
