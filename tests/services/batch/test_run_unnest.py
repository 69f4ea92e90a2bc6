"""`weir run` over arrays against the oracle: joins, ROWS windows, differences, aggregates, disorder, late records."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import UsageError
from schemas.groups import streams_of
from schemas.language.program import parse_program
from services.batch.file_run import Outputs
from services.batch.group_run import GroupRun
from services.files.sinks import LineSink
from services.files.sources import SourceFile
from tests import oracle
from tests.profiles import examples
from tests.services.batch.test_run import run, write_csv

Row = dict[str, Any]

DECLARED = """
CREATE STREAM orders (id BIGINT, items ARRAY<ROW(sku STRING, qty BIGINT)>, tags ARRAY<STRING>, at TIMESTAMP)
  WITH (timestamp = 'at', disorder = '5 MILLISECONDS');
CREATE STREAM moves (sku STRING, n BIGINT, at TIMESTAMP) WITH (timestamp = 'at', disorder = '5 MILLISECONDS');
"""
UNNESTED = "orders O {window} CROSS JOIN UNNEST(O.items) AS I"
QUERIES = [
    f"SELECT O.id AS id, I.sku AS sku, I._ordinal AS place, M.n AS n FROM {UNNESTED}, moves M {{window}} "
    "WHERE I.sku = M.sku AND I.qty > 0",
    f'SELECT O.id AS id, I.qty AS "item.qty", P.id AS other FROM {UNNESTED}, orders P {{window}} '
    "CROSS JOIN UNNEST(P.items) AS J WHERE I.sku = J.sku AND O.id < P.id AND J._ordinal = 1",
    f"SELECT O.id AS id, I.sku AS sku, I._ordinal AS place FROM {UNNESTED} EXCEPT moves M {{window}} ON M.sku = I.sku",
    f"SELECT I.sku AS sku, COUNT(*) AS n, SUM(I.qty) AS qty FROM {UNNESTED} GROUP BY I.sku EMIT EVERY 7 MILLISECONDS",
    f"SELECT O.id AS id, M.n AS n FROM moves M {{window}}, {UNNESTED} WHERE I.qty = M.n",
    f"SELECT O.id AS id, I._ordinal AS place, T.value AS tag, T._ordinal AS other, M.n AS n FROM {UNNESTED} "
    "CROSS JOIN UNNEST(O.tags) AS T, moves M {window} WHERE T.value = M.sku AND I.qty >= M.n",
]
SKUS = st.sampled_from(["a", "b", None])


@st.composite
def streams(draw: st.DrawFn) -> dict[str, list[Row]]:
    def times(count: int) -> list[int]:
        at, found = 1000, []
        for _ in range(count):
            at += draw(st.sampled_from([4, 0, 1, 6]))
            found.append(at - draw(st.sampled_from([0, 9, 3, 5, 30, 0])))
        return found

    item = st.none() | st.fixed_dictionaries({"sku": SKUS, "qty": st.integers(-1, 3)})
    orders = [
        {
            "id": draw(st.sampled_from([n, 0, 1])),
            "items": draw(st.none() | st.lists(item, max_size=3)),
            "tags": draw(st.none() | st.lists(SKUS, max_size=2)),
            "at": at,
        }
        for n, at in enumerate(times(draw(st.integers(0, 12))))
    ]
    moves = [{"sku": draw(SKUS), "n": draw(st.integers(0, 3)), "at": at} for at in times(draw(st.integers(0, 12)))]
    return {"orders": orders, "moves": moves}


def lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@examples(150, quick=40)
@given(
    streams(),
    st.sampled_from(QUERIES),
    st.sampled_from(["[RANGE 9 MILLISECONDS]", "[ROWS 1]", "[ROWS 2]", "[ROWS 4]", "[UNBOUNDED]"]),
    st.sampled_from([1, 40, 1 << 20]),
    st.sampled_from([1, 10, 1000]),
    st.sampled_from(["", ", deduplicate = 'id', deduplicate_within = '9 MILLISECONDS'"]),
)
def test_results_equal_the_oracle(
    rows: dict[str, list[Row]], text: str, window: str, block_bytes: int, epoch_ms: int, more: str
) -> None:
    declared = DECLARED.replace("'5 MILLISECONDS'", f"'5 MILLISECONDS'{more}", 1)
    query = parse_program(declared + text.format(window=window)).queries[0]
    with TemporaryDirectory() as name:
        folder = Path(name)
        paths = {}
        for stream in query.streams():
            paths[stream.name] = folder / f"{stream.name}.jsonl"
            paths[stream.name].write_text("".join(f"{json.dumps(row)}\n" for row in rows[stream.name]))
        _, out = run(query, paths, folder, block_bytes=block_bytes, epoch_ms=epoch_ms)
        late = lines(folder / "late.jsonl")
    found = [json.loads(line) for line in out.splitlines()]
    expected = [oracle.nested(query, row) for row in oracle.results(query, rows)]
    assert sorted(map(json.dumps, found)) == sorted(map(json.dumps, expected))
    assert [row["_ts"] for row in found] == sorted(row["_ts"] for row in found)
    # A late record is written once, whatever its elements.
    wanted = {json.dumps({k: v for k, v in row.items() if "." not in k}) for row in oracle.late(query, rows)["orders"]}
    assert sorted(json.dumps(row) for row in late if "id" in row) == sorted(wanted)


@pytest.mark.parametrize("executor", [None, "apart"])
def test_a_group_of_queries(tmp_path: Path, executor: str | None) -> None:
    """Each has the bytes that it gives alone, whatever it calls the elements."""
    texts = [QUERIES[0], QUERIES[4].replace("I.", "J.").replace("AS I", "AS J (name, qty)"), QUERIES[3]]
    inserts = (f"INSERT INTO q{n} {text.format(window='[RANGE 30 MILLISECONDS]')};" for n, text in enumerate(texts))
    queries = parse_program(DECLARED + "".join(inserts)).queries
    rows = [{"id": n, "items": [{"sku": "ab"[n % 2], "qty": n % 4}] * (n % 3), "at": 9 * n} for n in range(40)]
    moves = [{"sku": "abc"[n % 3], "n": n % 4, "at": 7 * n} for n in range(40)]
    paths = {"orders": tmp_path / "orders.jsonl", "moves": tmp_path / "moves.jsonl"}
    for name, given_rows in (("orders", rows), ("moves", moves)):
        paths[name].write_text("".join(f"{json.dumps(row)}\n" for row in given_rows))
    files = {stream.name: SourceFile(stream, str(paths[stream.name])) for stream in streams_of(queries)}
    sinks = [LineSink("--out", str(tmp_path / f"{query.name}.jsonl")) for query in queries]
    GroupRun(queries, files, Outputs(sinks), epoch_ms=20, executor=executor).run()
    for query, sink in zip(queries, sinks, strict=True):
        sink.close()
        _, alone = run(query, paths, tmp_path, epoch_ms=20)
        assert alone.count(b"\n") > 10
        assert (tmp_path / f"{query.name}.jsonl").read_bytes() == alone


def test_a_late_record_is_written_once(tmp_path: Path) -> None:
    query = parse_program(f"{DECLARED}SELECT O.id FROM {UNNESTED.format(window='[ROWS 1]')}").queries[0]
    rows = [{"id": n, "items": [{}, {}], "at": at} for n, at in enumerate([50, 20, 60, 20])]
    path = tmp_path / "orders.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    _, out = run(query, {"orders": path}, tmp_path)
    assert [json.loads(line)["O.id"] for line in out.splitlines()] == [0, 0, 2, 2]
    assert lines(tmp_path / "late.jsonl") == [rows[1], rows[3]]


def test_a_file_without_arrays_is_refused(tmp_path: Path) -> None:
    (stream,) = parse_program(f"{DECLARED}SELECT O.id FROM {UNNESTED.format(window='[ROWS 1]')}").queries[0].streams()
    path = write_csv(tmp_path / "orders", parse_program(DECLARED).streams[0], [])
    with pytest.raises(UsageError, match="source 'orders': arrays are read from JSON lines, not from"):
        SourceFile(stream, str(path))
