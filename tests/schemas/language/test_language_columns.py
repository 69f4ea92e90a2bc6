"""Streams that are declared without a list of columns, which come from the schema of their records."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from schemas.avro.columns import arrays_of, columns_of
from schemas.avro.schema import parse_avro
from schemas.codecs.json_schema import arrays_of_json_schema, columns_of_json_schema
from schemas.errors import QueryError, UsageError
from schemas.language.columns import with_columns
from schemas.language.program import parse_program
from schemas.query import ELEMENT, Array, Field, Stream, Type

COLUMNS = [
    Field("id", Type.BIGINT),
    Field("city", Type.STRING, ("customer", "city")),
    Field("select", Type.DOUBLE),
    Field("a b", Type.STRING, ("it's", 'a"b')),
    Field("at", Type.TIMESTAMP),
    Field("_ts", Type.BIGINT),
]
TAGS = Array("tags", (Field(ELEMENT, Type.STRING),), rows=False)
ORDERS = "CREATE STREAM orders WITH (format = 'avro', timestamp = 'at');"
asked: list[Stream] = []


def known(stream: Stream) -> Sequence[Field]:
    asked.append(stream)
    return COLUMNS


def test_only_columns_that_the_text_may_use_are_written() -> None:
    text = with_columns(f"{ORDERS} SELECT O.id AS city_of FROM orders O [RANGE 1 HOUR]", known)
    assert text.startswith("CREATE STREAM orders (at TIMESTAMP, id BIGINT) WITH (format")
    text = with_columns(f"{ORDERS} SELECT id FROM orders [RANGE 1 HOUR] WHERE city = 'at'", known)
    assert "orders (at TIMESTAMP, city STRING FROM 'customer.city', id BIGINT) WITH" in text


def test_names_of_other_streams_and_of_outputs_do_not_count() -> None:
    text = (
        f'{ORDERS} CREATE STREAM b (city BIGINT, at TIMESTAMP); SELECT O.id AS city, B.at AS "select" '
        "FROM orders O [RANGE 1 HOUR], b B [RANGE 1 HOUR] WHERE O.id = B.city;"
        "SELECT O.city AS x FROM b O [RANGE 1 HOUR]"
    )
    assert "orders (at TIMESTAMP, id BIGINT) WITH" in with_columns(text, known)
    assert "select" in with_columns(text, known, everything=True).partition("WITH")[0]


def test_a_field_that_no_column_may_be_called_after_is_left_out() -> None:
    text = f"{ORDERS} SELECT O.* FROM orders O [RANGE 1 HOUR]"
    assert with_columns(text, lambda _: [*COLUMNS, Field("#b", Type.BIGINT)]) == with_columns(text, known)


ARRAYS = [
    Array(
        "items", (Field("sku", Type.STRING), Field("qty", Type.BIGINT), Field("a b", Type.DOUBLE, ("a", 0))), rows=True
    ),
    Array("labels_tags", (Field("value", Type.STRING),), rows=False, path=("labels", "tags")),
]


@pytest.mark.parametrize(
    ("select", "written"),
    [
        ("O.id AS x FROM {}", "items ARRAY<ROW(\"a b\" DOUBLE FROM 'a[0]')>"),
        ("I.sku AS x FROM {}", "items ARRAY<ROW(sku STRING)>"),
        ("sku AS x, I.qty AS y FROM {}", "items ARRAY<ROW(qty BIGINT, sku STRING)>"),
        ("I.* FROM {}", "items ARRAY<ROW(sku STRING, qty BIGINT, \"a b\" DOUBLE FROM 'a[0]')>"),
        ("* FROM {}", "items ARRAY<ROW(sku STRING, qty BIGINT, \"a b\" DOUBLE FROM 'a[0]')>"),
        ("I.a AS x FROM {} (a, b, c)", "items ARRAY<ROW(sku STRING, qty BIGINT, \"a b\" DOUBLE FROM 'a[0]')>"),
    ],
)
def test_arrays_that_are_unnested_are_written(select: str, written: str) -> None:
    unnested = "orders O [ROWS 1] CROSS JOIN UNNEST(O.items) AS I"
    text = with_columns(f"{ORDERS} SELECT {select.format(unnested)}", lambda _: [*COLUMNS, *ARRAYS])
    assert written in text
    assert "labels" not in text
    (stream,) = parse_program(text).queries[0].streams()
    assert [array.name for array in stream.unnested] == ["items"]


def test_an_array_of_values_is_written_where_it_is() -> None:
    text = f"{ORDERS} SELECT T.tag AS x FROM orders O [ROWS 1] CROSS JOIN UNNEST(O.labels_tags) AS T (tag)"
    text = with_columns(text, lambda _: [*COLUMNS, *ARRAYS])
    assert "orders (at TIMESTAMP, labels_tags ARRAY<STRING> FROM 'labels.tags') WITH" in text
    text = with_columns(f"{ORDERS} SELECT O.id FROM orders O [ROWS 1]", lambda _: [*COLUMNS, *ARRAYS])
    assert "ARRAY" not in text
    whole = with_columns(f"{ORDERS} SELECT O.id FROM orders O [ROWS 1]", lambda _: [*COLUMNS, *ARRAYS], everything=True)
    assert len(parse_program(whole).streams[0].arrays) == 2


def test_columns_that_options_name_are_written() -> None:
    options = "WITH (format = 'avro', timestamp = 'at', distinct = 'city:7')"
    text = with_columns(f"CREATE STREAM orders {options}; SELECT O.id AS i FROM orders O [RANGE 1 HOUR]", known)
    assert parse_program(text).queries[0].streams()[0].distinct == (("city", 7),)
    options = "WITH (format = 'avro', timestamp = 'at', deduplicate = 'city, id', deduplicate_within = '1 DAY')"
    text = with_columns(f"CREATE STREAM orders {options}; SELECT O.at AS i FROM orders O [RANGE 1 HOUR]", known)
    assert parse_program(text).queries[0].streams()[0].deduplicate == ("city", "id")


@pytest.mark.parametrize("items", ["*", "O.*", 'O."a b", O."select", O.id, O.city'])
def test_what_is_written_means_what_the_schema_says(items: str) -> None:
    (query,) = parse_program(with_columns(f"{ORDERS} SELECT {items} FROM orders O [RANGE 1 HOUR]", known)).queries
    fields = list(query.streams()[0].fields)
    assert fields == (COLUMNS[:-1] if "*" in items else sorted(COLUMNS[:-1], key=lambda one: one.name))


def test_several_streams_and_those_with_columns() -> None:
    asked.clear()
    text = with_columns(
        "CREATE STREAM a WITH (topic = 't', format = 'avro', timestamp = 'at', registry = 'http://r');"
        "CREATE STREAM b (id BIGINT, at TIMESTAMP) WITH (format = 'avro');"
        "CREATE STREAM c WITH (format = 'avro', timestamp = 'at', schema = 'c.avsc');"
        "SELECT A.id AS id FROM a A, b B, c C WINDOW RANGE 1 HOUR WHERE A.id = B.id AND B.id = C.id",
        known,
    )
    (query,) = parse_program(text).queries
    assert {stream.name: len(stream.fields) for stream in query.streams()} == {"a": 2, "b": 2, "c": 2}
    assert [(s.name, s.topic, s.registry, s.schema) for s in asked] == [
        ("a", "t", "http://r", None),
        ("c", "c", None, "c.avsc"),
    ]


def test_a_text_with_all_columns_stays_as_it_is() -> None:
    text = "CREATE STREAM b (id BIGINT, at TIMESTAMP); -- *\nSELECT * FROM b [RANGE 1 HOUR]"
    assert with_columns(text, known) is text


@pytest.mark.parametrize(
    ("declaration", "reason"),
    [
        ("CREATE STREAM x WITH (timestamp = 'at')", "needs a list of its columns: format 'json' has no schema"),
        ("CREATE STREAM x", "needs a list of its columns: format 'json' has no schema"),
        ("CREATE STREAM x WITH (format = 'csv')", "needs a list of its columns: format 'csv' has no schema"),
        ("CREATE STREAM x WITH (format = 'avro')", "names its event time"),
        ("CREATE STREAM x WITH (format = 'avro', timestamp = 'on')", "no column 'on' for its event time; it has id"),
    ],
)
def test_errors_point_at_the_stream(declaration: str, reason: str) -> None:
    with pytest.raises(QueryError) as failed:
        with_columns(f"{declaration}; SELECT * FROM x [RANGE 1 HOUR]", known)
    assert reason in str(failed.value)
    assert (failed.value.line, failed.value.column) == (1, 15)


def test_an_unknown_schema_is_an_error_at_the_stream() -> None:
    def unknown(_: Stream) -> Sequence[Field]:
        raise UsageError("nobody knows")

    with pytest.raises(QueryError, match="the columns of stream 'orders' are unknown: nobody knows") as failed:
        with_columns(ORDERS, unknown)
    assert failed.value.column == 15


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("citty", "stream 'orders' has no column 'citty'; did you mean city?"),
        ("zzz", "stream 'orders' has no column 'zzz'; it has id, city, select, a b, at (line 1, column 73)"),
    ],
)
def test_a_name_that_no_column_has_is_an_error_that_knows_all_columns(name: str, reason: str) -> None:
    """Regression: only those were known that the text uses elsewhere."""
    with pytest.raises(QueryError) as failed:
        with_columns(f"{ORDERS} SELECT O.{name} FROM orders O [RANGE 1 HOUR]", known)
    assert reason in str(failed.value)
    with_columns(f"{ORDERS} SELECT O.id FROM orders O [RANGE 1 HOUR] WINDOW O.ts < O._ts", known)


def test_an_array_that_is_taken_for_a_column_is_written_for_the_binder_to_refuse() -> None:
    text = with_columns(f"{ORDERS} SELECT O.tags FROM orders O [ROWS 1]", lambda _: [*COLUMNS, TAGS])
    with pytest.raises(QueryError, match=r"O\.tags is an array, and no value"):
        parse_program(text)


def test_a_program_is_bound_with_columns_only() -> None:
    with pytest.raises(QueryError, match="stream 'orders' needs a list of its columns"):
        parse_program(f"{ORDERS} SELECT * FROM orders [RANGE 1 HOUR]")


def test_columns_of_a_schema() -> None:
    schema = parse_avro(
        """{"type": "record", "name": "R", "fields": [
            {"name": "i", "type": "int"}, {"name": "l", "type": ["null", "long"]}, {"name": "f", "type": "float"},
            {"name": "s", "type": "string"}, {"name": "b", "type": "boolean"}, {"name": "raw", "type": "bytes"},
            {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A"]}},
            {"name": "d", "type": {"type": "int", "logicalType": "date"}},
            {"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "m", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "c", "type": ["null", {"type": "record", "name": "C", "fields": [
                {"name": "x", "type": "long"}, {"name": "again", "type": ["null", "R"]}]}]},
            {"name": "c_x", "type": "string"}, {"name": "u", "type": ["int", "string"]},
            {"name": "a", "type": {"type": "array", "items": "int"}},
            {"name": "k", "type": {"type": "map", "values": "int"}}
        ]}"""
    )
    assert columns_of(schema) == [
        Field("i", Type.BIGINT),
        Field("l", Type.BIGINT),
        Field("f", Type.DOUBLE),
        Field("s", Type.STRING),
        Field("b", Type.BOOLEAN),
        Field("e", Type.STRING),
        Field("d", Type.TIMESTAMP),
        Field("t", Type.TIMESTAMP),
        Field("m", Type.DOUBLE),
        Field("c_x", Type.STRING),
    ]
    assert columns_of(parse_avro('"string"')) == []


def test_arrays_of_a_schema() -> None:
    schema = parse_avro(
        """{"type": "record", "name": "R", "fields": [
        {"name": "items", "type": ["null", {"type": "array", "items": ["null",
          {"type": "record", "name": "I", "fields": [
            {"name": "sku", "type": "string"},
            {"name": "qty", "type": ["null", "int"]},
            {"name": "more", "type": {"type": "map", "values": "int"}},
            {"name": "from", "type": {"type": "record", "name": "F", "fields": [{"name": "city", "type": "string"}]}},
            {"name": "parts", "type": {"type": "array", "items": "I"}},
            {"name": "_ordinal", "type": "long"}]}]}]},
        {"name": "labels", "type": {"type": "record", "name": "L", "fields": [
            {"name": "tags", "type": {"type": "array", "items": "string"}}]}},
        {"name": "maps", "type": {"type": "array", "items": {"type": "map", "values": "int"}}},
        {"name": "either", "type": {"type": "array", "items": ["int", "string"]}},
        {"name": "id", "type": "long"}]}"""
    )
    assert [field.name for field in columns_of(schema)] == ["id"]
    city = Field("from_city", Type.STRING, ("from", "city"))
    assert arrays_of(schema) == [
        Array("items", (Field("sku", Type.STRING), Field("qty", Type.BIGINT), city), rows=True),
        Array("labels_tags", (Field("value", Type.STRING),), rows=False, path=("labels", "tags")),
    ]


def test_arrays_of_a_json_schema() -> None:
    text = """{"type": "object", "properties": {
        "id": {"type": "integer"},
        "items": {"type": "array", "items": {"$ref": "#/definitions/item"}},
        "labels": {"type": "object", "properties": {"tags": {"type": ["null", "array"], "items": {"type": "string"}}}},
        "any": {"type": "array"},
        "deep": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}}},
      "definitions": {"item": {"type": "object", "properties": {
        "at": {"type": "string", "format": "date-time"}, "list": {"type": "array"},
        "parts": {"type": "array", "items": {"$ref": "#/definitions/item"}},
        "from": {"type": "object", "properties": {"city": {"type": "string"}}}}}}}"""
    assert columns_of_json_schema(text) == [Field("id", Type.BIGINT)]
    assert arrays_of_json_schema(text) == [
        Array("items", (Field("at", Type.TIMESTAMP), Field("from_city", Type.STRING, ("from", "city"))), rows=True),
        Array("labels_tags", (Field("value", Type.STRING),), rows=False, path=("labels", "tags")),
    ]
