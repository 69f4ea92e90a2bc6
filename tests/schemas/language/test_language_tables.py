"""Reference tables in the query language: CREATE TABLE, tables in FROM, and uses that make no sense."""

from __future__ import annotations

import pytest

from schemas.language.program import parse_program
from schemas.query import ColumnRef, Field, Query, Stream, Table, Type, Window
from tests.schemas.language.refusals import refused

DECLARED = """CREATE STREAM temperature (mote BIGINT, room STRING, celsius DOUBLE, at TIMESTAMP);
CREATE STREAM light (mote BIGINT, room STRING, lux DOUBLE, at TIMESTAMP);
CREATE TABLE rooms (room STRING, floor BIGINT, since TIMESTAMP) WITH (path = 'rooms.csv', format = 'CSV');
CREATE TABLE floors (floor BIGINT, name STRING) WITH (path = '/data/floors.parquet');
"""


def query(text: str) -> Query:
    """The query of a text that declares the streams and tables above."""
    return parse_program(DECLARED + text).queries[0]


def test_a_table_is_declared_with_the_file_of_its_rows() -> None:
    program = parse_program(DECLARED)
    fields = (Field("room", Type.STRING), Field("floor", Type.BIGINT), Field("since", Type.TIMESTAMP))
    assert program.tables[0] == Table("rooms", fields, "rooms.csv", "csv")
    assert program.tables[1].path == "/data/floors.parquet"
    assert program.tables[1].format is None
    assert [stream.name for stream in program.streams] == ["temperature", "light"]


def test_a_table_joins_without_a_window() -> None:
    found = query(
        "SELECT T.celsius, R.floor, F.name FROM temperature T [RANGE 5 MINUTES], rooms R JOIN floors F "
        "ON R.floor = F.floor WHERE T.room = R.room"
    )
    assert [source.is_static for source in found.sources] == [False, True, True]
    assert [source.window for source in found.sources[1:]] == [Window("UNBOUNDED")] * 2
    assert [stream.name for stream in found.streams()] == ["temperature"]
    assert [table.name for table in found.tables()] == ["rooms", "floors"]
    assert isinstance(found.sources[0].stream, Stream)
    assert found.outputs[1].expr == ColumnRef("R", "floor", Type.BIGINT)


def test_the_window_of_all_streams_is_none_of_a_table() -> None:
    found = query("SELECT * FROM temperature T, rooms WHERE T.room = rooms.room MAXWINDOW 6 SECONDS")
    assert found.sources[0].window == Window("RANGE", 6000)
    assert found.sources[1].window == Window("UNBOUNDED")
    assert [output.name for output in found.outputs][-3:] == ["rooms.room", "rooms.floor", "rooms.since"]


def test_an_unqualified_event_time_is_the_streams() -> None:
    found = query("SELECT _ts AS time, R.floor FROM temperature T [ROWS 5], rooms R WHERE T.room = R.room")
    assert found.outputs[0].expr == ColumnRef("T", "_ts", Type.TIMESTAMP)


def test_streams_are_partitioned_and_tables_are_not() -> None:
    """The equality of the streams' keys may go through a table."""
    found = query(
        "SELECT T.celsius, L.lux FROM temperature T [ROWS 5], rooms R, light L [ROWS 5] "
        "WHERE T.room = R.room AND L.room = R.room PARTITION BY T.room, L.room"
    )
    assert found.partition_by == (ColumnRef("T", "room", Type.STRING), ColumnRef("L", "room", Type.STRING))


def test_a_table_may_be_taken_away() -> None:
    found = query("SELECT T.mote FROM temperature T [RANGE 1 MINUTE] EXCEPT rooms R ON T.room = R.room")
    assert found.subtracted[0].alias == "R"
    assert found.sources[1].is_static


JOIN = "SELECT T.mote FROM temperature T [RANGE 5 MINUTES], rooms R WHERE T.room = R.room"

CASES = [
    (
        "SELECT * FROM temperature T [ROWS 1], rooms R [RANGE 5 MINUTES] WHERE T.room = R.room",
        "[RANGE 5 MINUTES]",
        "table 'rooms' takes no window: its rows are there from the start and for ever; write rooms R",
    ),
    ("SELECT * FROM temperature [ROWS 1], rooms [UNBOUNDED]", "[UNBOUNDED]", "takes no window"),
    ("SELECT * FROM rooms R, floors F WHERE R.floor = F.floor", "rooms R", "a query needs a stream"),
    (
        "SELECT R.room FROM rooms R EXCEPT temperature T [ROWS 1] ON T.room = R.room",
        "rooms R",
        "EXCEPT takes from a stream: table 'rooms' does not change",
    ),
    (f"{JOIN} AND R._ts > T._ts", "_ts", "the rows of table 'rooms' have no event time; it has room, floor, since"),
    (f"{JOIN} WINDOW R.ts > T.ts", "ts", "table 'rooms' has no column 'ts'"),
    (f"{JOIN} WINDOW R.floor > T.ts", "R.floor", "a WINDOW condition compares times; R.floor is BIGINT"),
    (f"{JOIN} AND R.flor = 1", "flor", "table 'rooms' has no column 'flor'; did you mean floor?"),
    (f"{JOIN} AND rooms.floor = 1", "rooms", "table 'rooms' is read here as R; use the alias"),
    (f"{JOIN} AND R > 1", "R", "'R' is an alias; write a column of it, such as R.room"),
    (
        f"{JOIN} PARTITION BY T.room, R.room",
        "R.room",
        "PARTITION BY takes columns of streams; every task reads the whole of table 'rooms'",
    ),
    ("CREATE TABLE x (a BIGINT)", "x", "table 'x' needs the file or the topic of its rows: CREATE TABLE x (...)"),
    ("CREATE TABLE x (a BIGINT) WITH (path = '')", "''", "option 'path' names a file"),
    ("CREATE TABLE x (a BIGINT) WITH (path = 5)", "5", "option 'path' takes a string, as in path = 'rooms.csv'"),
    (
        "CREATE TABLE x (a BIGINT) WITH (path = 'x', format = 'avro')",
        "'avro'",
        "is one of json, csv, parquet, as in format = 'csv'",
    ),
    (
        "CREATE TABLE x (a BIGINT) WITH (path = 'x', topic = 'x')",
        "path",
        "unknown option 'path'; accepted: topic, format",
    ),
    ("CREATE STREAM x (a BIGINT) WITH (path = 'x')", "path", "unknown option 'path'; accepted: topic, format"),
    ("CREATE TABLE rooms (a BIGINT) WITH (path = 'x')", "rooms", "table 'rooms' is declared twice"),
    ("CREATE TABLE light (a BIGINT) WITH (path = 'x')", "light", "table 'light' is declared twice, first as a stream"),
    ("CREATE STREAM rooms (a BIGINT)", "rooms", "stream 'rooms' is declared twice, first as a table"),
    ("CREATE TABEL x (a BIGINT)", "TABEL", "expected STREAM or TABLE; got 'TABEL'; did you mean TABLE?"),
    ("CREATE TABLE (a BIGINT)", "(", "expected the table's name; got '('"),
    ("SELECT * FROM temperature [ROWS 1], roms", "roms", "unknown stream 'roms'; did you mean rooms?"),
]


@pytest.mark.parametrize(("text", "place", "piece"), CASES)
def test_errors_say_where_and_what(text: str, place: str, piece: str) -> None:
    refused(DECLARED + text, place, piece)
