"""`weir bench engine` at tiny sizes: it runs, its table is complete, all its programs agree."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from operators.engine.engine import Engine
from ops.bench.engine import EngineSettings, bench_engine
from ops.bench.engine_runs import run_engine
from ops.bench.measuring.measure import Progress, Spread, growth, tells_memory
from ops.bench.measuring.report import Limit, Report
from ops.bench.naive import NaiveJoin
from ops.bench.references import duckdb_join, duckdb_version
from ops.bench.workloads import Workload, clique, three_way
from schemas.columns import Batch
from tests import oracle


@pytest.fixture(params=["three-way", "clique"])
def workload(request: pytest.FixtureRequest) -> Workload:
    whole = three_way() if request.param == "three-way" else clique()
    small = whole.scaled(0.002 if request.param == "three-way" else 0.02)
    return Workload(small.name, small.streams, small.rate, 2000, max(4, small.values // 16))


def test_a_second_is_the_same_in_every_run() -> None:
    one, other = three_way().seconds(0, 2, 7), three_way().second(1, 7)
    for stream, batch in other.items():
        assert batch.columns["ts"].values.tolist() == one[stream].columns["ts"].values[10_000:].tolist()
        for name, column in batch.columns.items():
            assert (column.values == one[stream].columns[name].values[10_000:]).all()


def test_the_workloads_are_those_of_the_issue() -> None:
    whole = three_way()
    assert whole.live_tuples == 300_000
    assert whole.sql(sink="out", topics={"A": "a", "B": "b", "C": "c"}).count("topic = '") == 3
    query = clique().query()
    assert len(query.predicates) == 6
    assert {source.window.size for source in query.sources} == {10_000}
    assert three_way(4).values == 400_000
    assert three_way(4, scale_values=True).values == 1_600_000


def rows_of(batch: Batch) -> list[dict[str, int]]:
    columns = {name: column.values.tolist() for name, column in batch.columns.items()}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def test_all_programs_give_the_oracles_results(workload: Workload) -> None:
    events = workload.seconds(0, 3, seed=5)
    rows = {stream: rows_of(batch) for stream, batch in events.items()}
    names = [output.name for output in workload.query().outputs]
    expected = sorted(tuple(r[name] for name in names) for r in oracle.results(workload.query(), rows))
    assert len(expected) > 20

    engine = Engine(workload.query())
    for stream, batch in events.items():
        engine.push(stream, 0, batch)
        engine.close(stream, 0)
    found = engine.advance()
    columns = [found.columns[name].values.tolist() for name in names]
    assert sorted(zip(*columns, strict=True)) == expected

    join = NaiveJoin(workload.streams, workload.window_ms)
    naive = []
    for number in range(3 * workload.rate):
        for stream, own in rows.items():
            naive += [tuple(event["id"] for event in result) for result in join.push(stream, own[number])]
    assert sorted(naive) == expected
    if duckdb_version() is not None:
        assert duckdb_join(workload, events, threads=1)[0] == len(expected)


def test_a_run_counts_what_it_made(workload: Workload) -> None:
    outcome = run_engine(workload, 2, seed=3, epoch_ms=250)
    assert outcome.tuples == 2 * workload.events_per_second
    assert outcome.all_results >= outcome.results > 0
    assert outcome.handled >= outcome.tuples + outcome.results


def test_the_benchmark_runs_and_prints_its_table() -> None:
    settings = EngineSettings(runs=1, seconds=1, minutes=0.07, quick=True, share=0.01)
    with Progress() as progress:
        report = bench_engine(settings, progress)
    out = io.StringIO()
    report.show(Console(file=out, width=200))
    text = out.getvalue()
    for heading in ("commit:", "machine:", "should win", "should lose", "asked", "DuckDB"):
        assert heading in text
    stored = json.loads(report.to_json())
    asked = {row["name"]: row for row in stored["rows"] if row["limit"] is not None}
    assert asked["three-way, epochs of 1000 ms"]["limit"] == {"value": 2_000_000, "at_least": True}
    assert asked["4x window, same values"]["limit"] == {"value": 1.5, "at_least": False}
    assert asked["warm start to first result"]["met"] is not None
    if tells_memory():
        assert asked["resident memory of the process"]["limit"]["value"] == 120
    if duckdb_version() is not None:
        batch = next(row for row in stored["rows"] if row["name"].startswith("DuckDB"))
        assert "the same" in batch["note"]


def test_spread_growth_and_limits() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, 3)
    assert growth([5, 9, 100, 100, 3, 4, 101, 101]) == pytest.approx(0.01)
    assert growth([7.0]) == 0.0
    assert Limit(2.0).met(2.0)
    assert not Limit(2.0).met(1.9)
    assert Limit(2.0, at_least=False).met(2.0)
    assert not Limit(2.0, at_least=False).met(2.1)
    report = Report("t", (), {}, machine={})
    report.add("a", "s", [1.0, 5.0, 3.0], at_most=2)
    report.add("b", "s", [1.0])
    assert [row.met for row in report.rows] == [False, None]
