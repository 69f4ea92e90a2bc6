"""Columns of keys, headers and of records themselves in CREATE STREAM."""

from __future__ import annotations

import pytest

from schemas.errors import QueryError
from schemas.language.program import parse_program
from schemas.query import KEY, VALUE, Field, Stream, Type
from services.process.fingerprint import fingerprint


def stream_of(columns: str, options: str = "") -> Stream:
    written = f" WITH ({options})" if options else ""
    return parse_program(f"CREATE STREAM s ({columns}){written}; SELECT * FROM s [ROWS 1]").streams[0]


def test_parts_of_a_record() -> None:
    fields = stream_of(
        "a BIGINT, k BIGINT key, key STRING, h STRING FROM '_headers[\"x.y\"]', _key STRING, o BIGINT FROM '_offset', "
        "n BIGINT FROM 'x._offset'"
    ).fields
    assert [field.part for field in fields] == [VALUE, KEY, VALUE, "_headers", "_key", "_offset", VALUE]
    assert fields[1] == Field("k", Type.BIGINT, key=True)
    assert fields[3].place == ("_headers", "x.y")


@pytest.mark.parametrize(
    ("columns", "options", "format"),
    [
        ("a BIGINT", "", None),
        ("a BIGINT KEY", "", "string"),
        ("a BIGINT KEY FROM 'x.a'", "", "json"),
        ("a BIGINT KEY, b STRING KEY", "", "json"),
        ("a BIGINT KEY, b STRING KEY", "key_format = 'CSV'", "csv"),
        ("a BIGINT KEY, b STRING KEY FROM 'x'", "key_format = 'avro'", "avro"),
    ],
)
def test_formats_of_keys(columns: str, options: str, format: str | None) -> None:
    assert stream_of(columns, options).key_format == format


def test_the_event_time() -> None:
    """The only TIMESTAMP, unless it is in the key; it may be the record's own time under a name."""
    assert stream_of("a BIGINT, at TIMESTAMP FROM '_timestamp'").timestamp == "at"
    assert stream_of("a BIGINT, at TIMESTAMP KEY").timestamp is None
    assert stream_of("at TIMESTAMP KEY, t TIMESTAMP").timestamp == "t"
    assert stream_of("x TIMESTAMP, _timestamp TIMESTAMP", "timestamp = '_timestamp'").timestamp == "_timestamp"


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("a BIGINT FROM '_partition.x'", "", "'_partition' of a record has no parts; write FROM '_partition'"),
        ("a STRING FROM '_partition'", "", "'_partition' of a record is BIGINT, column 'a' is declared STRING"),
        ("_offset DOUBLE", "", "'_offset' of a record is BIGINT, column '_offset' is declared DOUBLE"),
        ("a STRING FROM '_headers'", "", "column 'a' is one header of a record: FROM '_headers[\"trace-id\"]'"),
        ("a STRING FROM '_headers[0]'", "", "column 'a' is one header of a record"),
        ("a STRING FROM '_headers.b.c'", "", "column 'a' is one header of a record"),
        ("a STRING KEY FROM '_key'", "", "'_key' is not a part of the key; leave KEY out"),
        ("a BIGINT", "key_format = 'json'", "option 'key_format' is for columns in the record's key: id BIGINT KEY"),
        ("a BIGINT KEY", "key_format = 'xml'", "option 'key_format' is one of string, json, json-schema, csv"),
        ("a BIGINT KEY, b BIGINT KEY", "key_format = 'string'", "takes a whole key as a column, and there are 2"),
        ("a BIGINT KEY FROM 'b'", "key_format = 'csv'", "has no names, so FROM of column 'a' means nothing"),
        ("a BIGINT KEY, b BIGINT", "timestamp = 'a'", "takes a column of the record's value, or its own time FROM"),
        ("_offset BIGINT, b BIGINT", "timestamp = '_offset'", "'_offset' is in _offset"),
        ("a BIGINT, _key STRING", "format = 'string'", "takes a whole record as a column"),
    ],
)
def test_what_makes_no_sense(columns: str, options: str, message: str) -> None:
    with pytest.raises(QueryError) as found:
        stream_of(columns, options)
    assert message in str(found.value)


def test_a_string_may_have_a_key_beside_it() -> None:
    assert stream_of("line STRING, k STRING KEY", "format = 'string'").format == "string"


def test_raw_is_another_name_of_string() -> None:
    assert stream_of("line STRING", "format = 'RAW'") == stream_of("line STRING", "format = 'string'")


def test_rows_of_tables_have_no_keys() -> None:
    text = "CREATE STREAM s (a BIGINT); CREATE TABLE t (k BIGINT {}) WITH (path = 't.csv'); SELECT * FROM s [ROWS 1]"
    with pytest.raises(QueryError, match="the rows of a table's file have no keys; leave KEY out"):
        parse_program(text.format("KEY"))
    assert parse_program(text.format("").replace("k BIGINT", "_key BIGINT")).tables[0].fields[0].type is Type.BIGINT


def test_a_query_is_another_when_a_column_moves() -> None:
    made = {
        fingerprint(parse_program(f"CREATE STREAM s ({columns}) {options}; SELECT * FROM s [ROWS 1]").queries[0])
        for columns, options in (
            ("a BIGINT", ""),
            ("a BIGINT KEY", ""),
            ("a BIGINT KEY", "WITH (key_format = 'json')"),
            ("a BIGINT FROM '_offset'", ""),
        )
    }
    assert len(made) == 4
