"""Reference tables from files: formats, what they contain, bad records, and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.columns import Batch
from schemas.errors import DataError, UsageError
from schemas.language.program import parse_program
from schemas.query import TABLE_TS, Table
from services.files.query_files import table_paths
from services.files.tables import Tables, read_table, read_tables
from services.process.fingerprint import fingerprint
from tests.services.batch.test_run import WRITERS
from tests.services.batch.test_run_cli import Weir, weir

__all__ = ["weir"]

DECLARED = """\
CREATE STREAM temperature (mote BIGINT, room STRING, at TIMESTAMP) WITH (timestamp = 'at');
CREATE TABLE rooms (room STRING, floor BIGINT, area DOUBLE, lab BOOLEAN, since TIMESTAMP) WITH (path = 'rooms.csv');
"""
QUERY = DECLARED + (
    "SELECT T.mote AS mote, R.floor AS floor FROM temperature T [RANGE 5 SECONDS], rooms R WHERE T.room = R.room"
)
ROOMS = parse_program(DECLARED).tables[0]
ROWS: list[dict[str, Any]] = [
    {"room": "hall", "floor": 1, "area": 41.5, "lab": False, "since": 0},
    {"room": "lab \"3\", x", "floor": None, "area": None, "lab": True, "since": -86_400_000},
    {"room": "lab", "floor": 3, "area": 7.0, "lab": None, "since": None},
]


def values(batch: Batch) -> list[dict[str, Any]]:
    """The rows of a batch."""
    columns = {name: column.to_values() for name, column in batch.columns.items()}
    return [{name: columns[name][n] for name in columns} for n in range(len(batch))]


def contents(path: Path, table: Table = ROOMS) -> str:
    """What a file contains, for one table."""
    query = parse_program(QUERY).queries[0]
    assert query.tables() == (table,)
    return read_tables(query, {"rooms": str(path)}).contents["rooms"]


@pytest.mark.parametrize("format", sorted(WRITERS))
def test_every_format_gives_the_same_table(format: str, tmp_path: Path) -> None:
    """Also times before 1970, which no event time may be. Neither format nor name changes what it contains."""
    path = WRITERS[format](tmp_path / "rooms", ROOMS, ROWS)
    batch = read_table(ROOMS, str(path))
    assert values(batch) == ROWS
    assert set(batch.ts.tolist()) == {TABLE_TS}
    assert contents(path) == contents(WRITERS["jsonl"](tmp_path / "other", ROOMS, ROWS))


@pytest.mark.parametrize("format", sorted(WRITERS))
def test_an_empty_file_is_an_empty_table(format: str, tmp_path: Path) -> None:
    assert len(read_table(ROOMS, str(WRITERS[format](tmp_path / "rooms", ROOMS, [])))) == 0


def test_a_changed_value_a_missing_row_and_another_order_are_other_contents(tmp_path: Path) -> None:
    changed = [{**ROWS[0], "floor": 2}, *ROWS[1:]]
    written = [ROWS, changed, ROWS[:2], ROWS[::-1], []]
    found = {contents(WRITERS["csv"](tmp_path / str(n), ROOMS, rows)) for n, rows in enumerate(written)}
    assert len(found) == len(written)


def test_the_declared_format_goes_before_the_name(tmp_path: Path) -> None:
    path = tmp_path / "rooms.txt"
    path.write_text("room,floor\nhall,1\n")
    table = parse_program(
        f"CREATE TABLE rooms (room STRING, floor BIGINT) WITH (path = '{path}', format = 'csv')"
    ).tables[0]
    assert values(read_table(table, str(path))) == [{"room": "hall", "floor": 1}]
    with pytest.raises(UsageError, match=r"table 'rooms': the name of .*rooms.txt tells no format"):
        read_table(ROOMS, str(path))


def test_a_bad_record_says_where_it_is(tmp_path: Path) -> None:
    """A table is configuration: nothing of it is set aside."""
    good = "hall,1,1.5,true,0\n"
    path = tmp_path / "rooms.csv"
    path.write_text("room,floor,area,lab,since\n" + good * 3 + 'hall,"first\nfloor",1,true,0\n' + good)
    with pytest.raises(DataError, match=rf"^{path}:5: field 'floor' is 'first\\nfloor', BIGINT .* row of table"):
        read_table(ROOMS, str(path))
    path = tmp_path / "rooms.jsonl"
    path.write_text('{"room":"hall"}\n\n{"room":5}\n')
    with pytest.raises(DataError, match=rf"^{path}:3: field 'room' is 5, STRING accepts"):
        read_table(ROOMS, str(path))
    path = WRITERS["parquet"](tmp_path / "rooms", ROOMS, [*ROWS * 3, {**ROWS[0], "area": float("nan")}])
    with pytest.raises(DataError, match=rf"^{path}:row 10: field 'area' is NaN or infinite"):
        read_table(ROOMS, str(path))


@pytest.mark.parametrize(
    ("path", "stderr"),
    [
        ("none.csv", "table 'rooms': cannot open .*none.csv: No such file"),
        (".", "table 'rooms': .* is a folder, expected a file"),
        ("short.csv", "short.csv: table 'rooms' declares column 'lab', which the header does not have"),
        ("empty.csv", "empty.csv is empty, expected a CSV header"),
    ],
)
def test_a_file_that_is_no_table(tmp_path: Path, path: str, stderr: str) -> None:
    (tmp_path / "short.csv").write_text("room,floor,area,since\n")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(DataError, match=stderr):
        read_table(ROOMS, str(tmp_path / path))


def test_standard_input_is_no_table() -> None:
    with pytest.raises(UsageError, match="table 'rooms': a table is read from a file, not from standard input"):
        read_table(ROOMS, "-")


def test_paths_lie_beside_the_query_unless_they_are_given(tmp_path: Path) -> None:
    query = parse_program(QUERY).queries[0]
    file = tmp_path / "q.sql"
    assert table_paths(query, file, []) == {"rooms": "rooms.csv"}  # a registered query: beside where it is run
    file.write_text(QUERY)
    assert table_paths(query, file, []) == {"rooms": str(tmp_path / "rooms.csv")}
    assert table_paths(query, file, ["rooms=x=y.csv"]) == {"rooms": "x=y.csv"}
    absolute = parse_program(QUERY.replace("'rooms.csv'", "'/data/rooms.csv'")).queries[0]
    assert table_paths(absolute, file, []) == {"rooms": "/data/rooms.csv"}
    for given, stderr in [
        (["rooms"], "--table 'rooms' is not of the form NAME=PATH"),
        (["rums=x"], "--table rums: the query reads no such table, it reads 'rooms', did you mean 'rooms'"),
        (["R=x"], "it reads 'rooms'; 'R' is an alias of table 'rooms'"),
        (["temperature=x"], "--table temperature: the query reads no such table"),
        (["rooms=x", "rooms=y"], "--table rooms is given twice: x and y"),
    ]:
        with pytest.raises(UsageError, match=stderr):
            table_paths(query, file, given)


def test_where_its_rows_are_is_no_part_of_a_query_and_its_columns_are() -> None:
    def of(text: str) -> str:
        return fingerprint(parse_program(text).queries[0])

    assert of(QUERY) == of(QUERY.replace("'rooms.csv'", "'/data/rooms.parquet', format = 'parquet'"))
    assert of(QUERY) != of(QUERY.replace("area DOUBLE", "area BIGINT"))


def test_no_tables_are_none() -> None:
    assert Tables() == Tables({}, {})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A query with its table in a folder of their own, and a source in the current one."""
    monkeypatch.chdir(tmp_path)
    Path("conf").mkdir()
    Path("conf/q.sql").write_text(QUERY)
    Path("conf/rooms.csv").write_text("room,floor,area,lab,since\nhall,1,,,\nlab,3,,,\n")
    Path("t.jsonl").write_text('{"mote":1,"room":"lab","at":1000}\n{"mote":2,"room":"x","at":9000}\n')
    return tmp_path


RUN = ("run", "conf/q.sql", "--source", "temperature=t.jsonl")


def test_run_reads_the_table_beside_the_query_or_the_one_given(folder: Path, weir: Weir) -> None:
    assert weir(*RUN) == (0, b'{"mote":1,"floor":3,"_ts":1000}\n', "")
    Path("mine.jsonl").write_text('{"room":"x","floor":9}\n')
    for executor in ("mjoin", "stairs"):
        given = ("--table", "rooms=mine.jsonl", "--executor", executor, "--plan", "(R T)")
        assert weir(*RUN, *given) == (0, b'{"mote":2,"floor":9,"_ts":9000}\n', "")


def test_run_says_what_is_wrong_with_a_table(folder: Path, weir: Weir) -> None:
    Path("conf/rooms.csv").write_text("room,floor,area,lab,since\nhall,ground,,,\n")
    code, out, err = weir(*RUN)
    assert (code, out) == (1, b"")
    assert err.startswith("weir: conf/rooms.csv:2: field 'floor' is 'ground', BIGINT accepts an integer")
    code, _, err = weir(*RUN, "--source", "rooms=conf/rooms.csv")
    assert code == 2
    assert "table 'rooms' has its path from CREATE TABLE, or from --table rooms=PATH" in err
    code, _, err = weir(*RUN, "--out", "conf/rooms.csv")
    assert code == 2
    assert "conf/rooms.csv" in err
    assert Path("conf/rooms.csv").read_text().startswith("room,floor")


def test_explain_knows_the_size_of_a_table_that_is_there(folder: Path, weir: Weir) -> None:
    code, out, _ = weir("explain", "conf/q.sql")
    assert code == 0
    assert "table rooms R  ~2 rows" in out.decode()
    code, out, _ = weir("explain", "conf/q.sql", "--analyze", "--source", "temperature=t.jsonl")
    assert code == 0
    assert "table rooms R  2 rows\n" in out.decode()
    Path("conf/rooms.csv").unlink()
    code, out, _ = weir("explain", "conf/q.sql")
    assert code == 0
    assert "table rooms R  ~1k rows" in out.decode()
