"""The driver over files against the oracle: formats, disorder, late records, dead letters, block sizes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.columns import ARROW_TYPES
from schemas.language.program import parse_program
from schemas.query import OP_KEY, Field, Query, Stream, Table, Type
from services.batch.file_run import Outputs
from services.batch.query_run import Run
from services.files.sinks import LineSink
from services.files.sources import SourceFile
from services.files.tables import read_tables
from services.formats.changelogs import with_operation
from tests import oracle
from tests.cases import Case, cases
from tests.profiles import examples

Row = dict[str, Any]


def read_lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def canonical(rows: list[Row]) -> list[str]:
    """Rows as texts that tell -0.0 from 0.0 and 1 from 1.0, sorted: a multiset."""
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def write_jsonl(path: Path, stream: Stream | Table, rows: list[Row]) -> Path:
    path = path.with_suffix(".jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_jsonl_gz(path: Path, stream: Stream | Table, rows: list[Row]) -> Path:
    path = path.with_suffix(".jsonl.gz")
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\r\n" for row in rows).encode()))
    return path


def fields_of(stream: Stream | Table) -> tuple[Field, ...]:
    """The fields of a file's records: those of a table in a topic say which rows end."""
    return (with_operation(stream) if isinstance(stream, Stream) and stream.is_versioned else stream).fields


def write_csv(path: Path, stream: Stream | Table, rows: list[Row]) -> Path:
    """Quotes strings and nothing else, so that None is an empty field without quotes."""
    path = path.with_suffix(".csv")
    names = [field.name for field in fields_of(stream)]
    lines = [",".join(names), *(",".join(_csv_field(row.get(name)) for name in names) for row in rows)]
    path.write_text("\r\n".join(lines), newline="")
    return path


def _csv_field(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return '"' + value.replace('"', '""') + '"' if isinstance(value, str) else repr(value)


def write_csv_gz(path: Path, stream: Stream | Table, rows: list[Row]) -> Path:
    plain = write_csv(path, stream, rows)
    packed = plain.with_suffix(".csv.gz")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    return packed


def write_parquet(path: Path, stream: Stream | Table, rows: list[Row]) -> Path:
    path = path.with_suffix(".parquet")
    arrays = {
        field.name: pa.array([row.get(field.name) for row in rows], ARROW_TYPES[field.type])
        for field in fields_of(stream)
    }
    pq.write_table(pa.table(arrays), path, row_group_size=7)
    return path


WRITERS: dict[str, Callable[[Path, Stream | Table, list[Row]], Path]] = {
    "jsonl": write_jsonl,
    "jsonl.gz": write_jsonl_gz,
    "csv": write_csv,
    "csv.gz": write_csv_gz,
    "parquet": write_parquet,
}


def without_plus(row: Row) -> Row:
    """A late version of a table's row that does not end it: JSON lines may leave out what other formats say."""
    return {name: value for name, value in row.items() if (name, value) != (OP_KEY, "+")}


def run(
    query: Query, paths: Mapping[str, Path], folder: Path, *, block_bytes: int = 1 << 20, **options: Any
) -> tuple[Run, bytes]:
    """Run to the end; the job and the results' bytes. late.jsonl and dead.jsonl lie in the folder."""
    sources = {
        stream.name: SourceFile(stream, str(paths[stream.name]), block_bytes=block_bytes)
        for stream in query.streams()
    }
    names = ("out", "late", "dead")
    sinks = [LineSink(f"--{name}", str(folder / f"{name}.jsonl")) for name in names]
    options = {"epoch_ms": 1000, "keep_timeline": True} | options
    job = Run(query, sources, Outputs(sinks[:1], *sinks[1:]), **options)
    job.run()
    for sink in sinks:
        sink.close()
    return job, (folder / "out.jsonl").read_bytes()


@examples(150, quick=15)
@given(
    cases(partitions=1, most_aliases=3, in_files=True),
    st.sampled_from(sorted(WRITERS)),
    st.sampled_from([1, 30, 200, 1 << 20]),
    st.sampled_from([0, 5, 100_000]),
)
def test_results_equal_the_oracle(case: Case, format: str, block_bytes: int, least_tuples: int) -> None:
    rows = {name: parts[0] for name, parts in case.rows.items()}
    with TemporaryDirectory() as name:
        folder = Path(name)
        write = WRITERS[format]
        paths = {
            stream.name: write(folder / stream.name, stream, rows[stream.name]) for stream in case.query.streams()
        }
        tables = {t.name: str(write(folder / t.name, t, case.tables[t.name])) for t in case.query.tables()}
        job, out = run(
            case.query,
            paths,
            folder,
            block_bytes=block_bytes,
            least_tuples=least_tuples,
            epoch_ms=case.epoch_ms,
            plan=case.plan,
            tables=read_tables(case.query, tables),
        )
        found = [json.loads(line) for line in out.splitlines()]
        late = [without_plus(row) for row in read_lines(folder / "late.jsonl")]
    assert canonical(found) == canonical(oracle.results(case.query, case.given))
    assert [row["_ts"] for row in found] == sorted(row["_ts"] for row in found)
    assert canonical(late) == canonical(
        [row for rows_ in oracle.late(case.query, rows).values() for row in rows_]
    )
    assert job.statistics.dead_letters == 0
    assert job.engine is not None
    counters = job.engine.statistics()
    assert counters.results == len(found)
    assert counters.input_tuples == sum(map(len, rows.values()))
    timeline = job.statistics.timeline
    assert sum(entry["results"] for entry in timeline) == len(found)
    assert [entry["event_time"] for entry in timeline] == sorted({entry["event_time"] for entry in timeline})


@examples(20, quick=5)
@given(cases(partitions=1, most_aliases=2, in_files=True), st.data())
def test_outputs_in_objects(case: Case, data: st.DataObject) -> None:
    """Aliases with dots, of headers too: of joins, aggregates and set differences."""
    around = st.sampled_from(["a", "a.b", "c", "_headers", "_headers.x"])
    outputs = [
        replace(output, name=f"{data.draw(around)}.{n}", nested=True)
        if data.draw(st.booleans())
        else output
        for n, output in enumerate(case.query.outputs)
    ]
    query = replace(case.query, outputs=tuple(outputs))
    rows = {name: parts[0] for name, parts in case.rows.items()}
    with TemporaryDirectory() as name:
        folder = Path(name)
        paths = {s.name: write_jsonl(folder / s.name, s, rows[s.name]) for s in query.streams()}
        tables = {t.name: str(write_jsonl(folder / t.name, t, case.tables[t.name])) for t in query.tables()}
        _, out = run(query, paths, folder, epoch_ms=case.epoch_ms, tables=read_tables(query, tables))
    found = [json.loads(line) for line in out.splitlines()]
    expected = [oracle.nested(query, row) for row in oracle.results(query, case.given)]
    assert sorted(json.dumps(row) for row in found) == sorted(json.dumps(row) for row in expected)


QUERY = """
CREATE STREAM temperature (mote BIGINT, room STRING, celsius DOUBLE, at TIMESTAMP)
  WITH (topic = 't', timestamp = 'at', disorder = '2 SECONDS');
CREATE STREAM humidity (mote BIGINT, room STRING, percent DOUBLE, at TIMESTAMP)
  WITH (topic = 'h', timestamp = 'at', disorder = '2 SECONDS');
INSERT INTO 'alarms'
SELECT T.mote AS mote, T.room, T.celsius, H.percent, T.at
FROM temperature T [RANGE 5 SECONDS], humidity H [RANGE 5 SECONDS] WHERE T.mote = H.mote;
"""
SENSORS = parse_program(QUERY).queries[0]


def sensor_rows(count: int, seed: int) -> dict[str, list[Row]]:
    """Two streams within the declared disorder, with a tuple in fifty that is late."""
    made: dict[str, list[Row]] = {"temperature": [], "humidity": []}
    for i in range(count):
        for name, value in (("temperature", "celsius"), ("humidity", "percent")):
            spread = (i * 7919 + seed * 31 + len(name)) % 2000
            at = 1_700_000_000_000 + i * 100 - spread - (5000 if i % 50 == 49 else 0)
            made[name].append(
                {"mote": (i * 31 + seed) % 20, "room": f'röom "{i % 5}"', value: i / 7, "at": at}
            )
    return made


@pytest.mark.parametrize("format", sorted(WRITERS))
def test_disorder_and_late_records(format: str, tmp_path: Path) -> None:
    rows = sensor_rows(400, 3)
    streams = {stream.name: stream for stream in SENSORS.streams()}
    paths = {name: WRITERS[format](tmp_path / name, streams[name], rows[name]) for name in rows}
    job, out = run(SENSORS, paths, tmp_path, block_bytes=4096, least_tuples=50)
    assert canonical([json.loads(x) for x in out.splitlines()]) == canonical(oracle.results(SENSORS, rows))
    late = oracle.late(SENSORS, rows)
    assert len(late["humidity"]) > 0
    assert canonical(read_lines(tmp_path / "late.jsonl")) == canonical(late["temperature"] + late["humidity"])
    assert job.engine is not None
    assert job.engine.statistics().late == len(late["temperature"]) + len(late["humidity"])


def test_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    rows = sensor_rows(500, 1)
    paths = {s.name: write_jsonl(tmp_path / s.name, s, rows[s.name]) for s in SENSORS.streams()}
    runs = [run(SENSORS, paths, tmp_path, block_bytes=2000, least_tuples=n) for n in (40, 40, 100_000)]
    assert runs[0][1] == runs[1][1] == runs[2][1] != b""
    assert runs[0][0].statistics.timeline == runs[1][0].statistics.timeline
    assert len(runs[0][0].statistics.timeline) > 3 > len(runs[2][0].statistics.timeline)


def test_a_run_keeps_no_timeline_that_nobody_wants(tmp_path: Path) -> None:
    """Without `--stats` it was kept, too: a run over an endless pipe took more and more memory."""
    rows = sensor_rows(500, 1)
    paths = {s.name: write_jsonl(tmp_path / s.name, s, rows[s.name]) for s in SENSORS.streams()}
    job, out = run(SENSORS, paths, tmp_path, block_bytes=2000, least_tuples=40, keep_timeline=False)
    assert out != b""
    assert job.statistics.timeline == []


def test_late_lines_of_json_sources_are_given_back_as_they_were(tmp_path: Path) -> None:
    first = '{"at": 1700000009000, "mote": 1}'
    late = ' {"mote":1e0 ,"at":1700000000000}', '{"at":1700000000000,"mote":2,"unknown":[1,2],"celsius":1}'
    (tmp_path / "t.jsonl").write_text("\n".join([first, *late]))
    (tmp_path / "h.jsonl").write_text("")
    paths = {"temperature": tmp_path / "t.jsonl", "humidity": tmp_path / "h.jsonl"}
    job, _ = run(SENSORS, paths, tmp_path)
    assert (tmp_path / "late.jsonl").read_text() == late[1] + "\n"
    assert job.statistics.dead_by_stream == {"temperature": 1}


LOOKING_UP = """
CREATE STREAM s (k BIGINT, at TIMESTAMP) WITH (topic = 's', timestamp = 'at');
CREATE TABLE t (k BIGINT PRIMARY KEY, v BIGINT, at TIMESTAMP) WITH (topic = 't', timestamp = 'at');
INSERT INTO 'out' SELECT S.k, T.v FROM s S [RANGE 1 SECOND], t FOR SYSTEM_TIME AS OF S._ts AS T WHERE T.k = S.k;
"""


@pytest.mark.parametrize("format", sorted(WRITERS))
def test_late_versions_of_rows_can_be_read_as_a_table(format: str, tmp_path: Path) -> None:
    """Those of CSV and Parquet had the engine's own column in place of `_op`: as a source, ends of rows were rows."""
    (query,) = parse_program(LOOKING_UP).queries
    rows = [{"k": 1, "v": 1, "at": 9}, {"k": 1, "v": 2, "at": 1}, {"k": 1, "v": None, "at": 2, "_op": "-"}]
    rows += [{"k": 1, "v": 3, "at": 4, "_op": "+"}]
    streams = {stream.name: stream for stream in query.streams()}
    paths = {"s": write_jsonl(tmp_path / "s", streams["s"], [{"k": 1, "at": at} for at in (1, 3, 5)])}
    run(query, paths | {"t": WRITERS[format](tmp_path / "t", streams["t"], rows)}, tmp_path)
    late = read_lines(tmp_path / "late.jsonl")
    assert [without_plus(row) for row in late] == [without_plus(row) for row in rows[1:]]
    (tmp_path / "late.jsonl").rename(tmp_path / "rest.jsonl")
    _, out = run(query, paths | {"t": tmp_path / "rest.jsonl"}, tmp_path)
    assert [json.loads(line) for line in out.splitlines()] == [
        {"S.k": 1, "T.v": 2, "_ts": 1},
        {"S.k": 1, "T.v": 3, "_ts": 5},
    ]


@pytest.mark.parametrize("block_bytes", [16, 1 << 20])
def test_dead_letters_say_source_file_line_and_reason(block_bytes: int, tmp_path: Path) -> None:
    lines = [
        b'\xef\xbb\xbf{"at":1,"mote":1}',
        b"",
        b"not json",
        b'{"at":2,"mote":1.0}\r',
        b'{"at":3,"mote":1,"room":"\xff"}',
        b'{"mote":1}',
        b'{"at":-1}',
        b'{"at":"9999-01-01T00:00:00Z"}',
        b'{"at":4,"mote":1}',
    ]
    (tmp_path / "t.jsonl").write_bytes(b"\n".join(lines))
    (tmp_path / "h.csv").write_bytes(
        b'mote,room,percent,at\r\n1,"a\nb",2.5,5\r\n\r\n1,x,nan,6\r\n1,"unclosed,2,3\r\n'
    )
    paths = {"temperature": tmp_path / "t.jsonl", "humidity": tmp_path / "h.csv"}
    job, out = run(SENSORS, paths, tmp_path, block_bytes=block_bytes)
    assert [json.loads(line) for line in out.splitlines()] == [
        {"mote": 1, "T.room": None, "T.celsius": None, "H.percent": 2.5, "T.at": at, "_ts": 5}
        for at in (1, 4)
    ]
    dead = read_lines(tmp_path / "dead.jsonl")
    found = {(d["source"], d["line"]): (d["reason"], d["raw"]) for d in dead}
    assert sorted(found) == [("humidity", 5), ("humidity", 6), *(("temperature", n) for n in range(3, 9))]
    assert found["temperature", 3][0].startswith("broken JSON")
    assert found["temperature", 4][1] == '{"at":2,"mote":1.0}'
    assert found["temperature", 5][1] == r'{"at":3,"mote":1,"room":"\xff"}'
    assert found["temperature", 6][0].startswith("timestamp field 'at' is missing")
    assert "field 'percent' is 'nan'" in found["humidity", 5][0]
    assert "no closing quote" in found["humidity", 6][0]
    assert {d["file"] for d in dead} == {str(path) for path in paths.values()}
    assert job.statistics.dead_letters == len(dead) == 8
    assert job.first_dead.startswith(str(tmp_path / "t.jsonl") + ":3: broken JSON")


@examples(60)
@given(
    st.lists(st.binary(max_size=60), max_size=5),
    st.sampled_from(["jsonl", "csv"]),
    st.sampled_from([8, 1 << 20]),
)
def test_garbage_is_accounted_for(chunks: list[bytes], format: str, block_bytes: int) -> None:
    """Whatever the bytes are: the run ends, and every line is a tuple, a dead letter, or blank."""
    body = b"\n".join(chunks)
    good = b'{"at":7,"mote":1}' if format == "jsonl" else b"1,,,7"
    header = b"" if format == "jsonl" else b"mote,room,celsius,at\n"
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / f"t.{format}").write_bytes(header + good + b"\n" + body)
        (folder / "h.jsonl").write_bytes(b'{"at":7,"mote":1}\n')
        paths = {"temperature": folder / f"t.{format}", "humidity": folder / "h.jsonl"}
        job, out = run(SENSORS, paths, folder, block_bytes=block_bytes)
        dead = read_lines(folder / "dead.jsonl")
    assert len(out.splitlines()) == 1
    assert job.engine is not None
    assert job.engine.statistics().input_tuples == 2
    if format == "jsonl":
        lines = [i for i, line in enumerate(body.split(b"\n"), 2) if line.strip(b" \t\r")]
        assert [d["line"] for d in dead] == lines


def test_ten_megabyte_records(tmp_path: Path) -> None:
    room = "x" * 10_000_000
    good = json.dumps({"at": 5, "mote": 1, "room": room})
    (tmp_path / "t.jsonl").write_text(
        f'{{"at":4,"mote":1}}\n{good}\n{{"at":6,"room":"{room}\n{{"at":7,"mote":1}}\n'
    )
    (tmp_path / "h.csv").write_text(f'mote,room,percent,at\n1,"{room[:3]}\n{room}",1.5,5\n1,,2.5,6\n')
    paths = {"temperature": tmp_path / "t.jsonl", "humidity": tmp_path / "h.csv"}
    job, out = run(SENSORS, paths, tmp_path)
    rooms = [len(json.loads(line)["T.room"] or "") for line in out.splitlines()]
    assert sorted(rooms) == [0, 0, 0, 0, 10_000_000, 10_000_000]
    assert job.statistics.dead_letters == 1
    assert len((tmp_path / "dead.jsonl").read_bytes()) > 10_000_000


def test_empty_sources(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b"")
    (tmp_path / "h.csv").write_bytes(b"mote,room,percent,at")
    job, out = run(SENSORS, {"temperature": tmp_path / "t.jsonl", "humidity": tmp_path / "h.csv"}, tmp_path)
    assert out == b""
    assert job.engine is not None
    assert job.engine.statistics().input_tuples == 0


def test_only_dead_letters(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b"x\n" * 3000)
    (tmp_path / "h.jsonl").write_bytes(b'{"at":1,"mote":1}\n')
    job, out = run(SENSORS, {"temperature": tmp_path / "t.jsonl", "humidity": tmp_path / "h.jsonl"}, tmp_path)
    assert out == b""
    assert job.statistics.dead_letters == 3000
    assert [d["line"] for d in read_lines(tmp_path / "dead.jsonl")] == list(range(1, 3001))


def test_timestamps_in_every_spelling(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(
        '{"mote":1,"at":"2024-01-01T00:00:00Z"}\n{"mote":1,"at":1704067201000}\n{"mote":1,"at":"2024-01-01T01:00:02+01:00"}\n'
    )
    at = pa.array([1704067203000, 1704067204000], pa.timestamp("ms"))
    pq.write_table(
        pa.table(
            {
                "at": at.cast(pa.timestamp("us", "UTC")),
                "mote": pa.array([1, 1], pa.int32()),
                "room": pa.array(["a", "b"]).dictionary_encode(),
                "percent": pa.array([1.0, 2.0], pa.float32()),
                "other": pa.array([[1], []]),
            }
        ),
        tmp_path / "h.parquet",
    )
    paths = {"temperature": tmp_path / "t.jsonl", "humidity": tmp_path / "h.parquet"}
    _, out = run(SENSORS, paths, tmp_path)
    results = [json.loads(line) for line in out.splitlines()]
    assert [row["_ts"] for row in results] == [1704067203000] * 3 + [1704067204000] * 3
    assert sorted(row["T.at"] for row in results) == sorted([1704067200000, 1704067201000, 1704067202000] * 2)


def test_types_survive_the_way_through(tmp_path: Path) -> None:
    query = parse_program(
        "CREATE STREAM s (i BIGINT, d DOUBLE, t STRING, b BOOLEAN, at TIMESTAMP)"
        " WITH (topic = 's', timestamp = 'at');"
        "SELECT * FROM s A [RANGE 1 SECOND], s B [RANGE 1 SECOND] WHERE A.at = B.at"
    ).queries[0]
    assert {field.type for field in query.streams()[0].fields} == set(Type)
    row = {"i": -(2**63), "d": 5e-324, "t": 'ä"\\\n\x00\u2028😀', "b": True, "at": 5}
    (tmp_path / "s.jsonl").write_text(json.dumps(row, ensure_ascii=False))
    _, out = run(query, {"s": tmp_path / "s.jsonl"}, tmp_path)
    expected = {f"{alias}.{key}": value for alias in "AB" for key, value in row.items()} | {"_ts": 5}
    assert json.loads(out) == expected
    assert list(json.loads(out)) == list(expected)
