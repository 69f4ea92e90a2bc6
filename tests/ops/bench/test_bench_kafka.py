"""`weir bench kafka` at tiny sizes against the session's broker: it runs, its results are right."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ops.bench.kafka.failover import FailoverSettings, bench_failover
from ops.bench.kafka.formats import bench_formats
from ops.bench.kafka.migrations import MigrationSettings, bench_migrations
from ops.bench.kafka.topic_to_topic import KafkaSettings, bench_kafka
from ops.bench.measuring.measure import Progress, tells_memory
from tests.broker_fixture import SessionBroker


@pytest.mark.kafka
def test_the_benchmark_runs_and_prints_its_table(broker: SessionBroker) -> None:
    settings = KafkaSettings(
        bootstrap=broker.bootstrap,
        runs=1,
        seconds=12,
        latency_seconds=1.0,
        minutes=0.03,
        share=0.05,
        window_ms=1000,
    )
    with Progress() as progress:
        report = bench_kafka(settings, progress)
    out = io.StringIO()
    report.show(Console(file=out, width=200))
    asked = {row.name: row for row in report.rows if row.limit is not None}
    assert asked["weir worker, exactly once"].limit.value == 200_000  # type: ignore[union-attr]
    assert "results, the same" in asked["weir worker, exactly once"].note
    assert [row.limit.value for name, row in asked.items() if name.startswith("latency")] == [150, 500]  # type: ignore[union-attr]
    assert sorted(row.limit.value for row in asked.values())[0] == 0.4  # type: ignore[union-attr]
    assert "naive program on Kafka" in out.getvalue()
    assert "WRONG" not in out.getvalue()
    if tells_memory():
        assert "bytes per live source tuple" in {row.unit for row in report.rows}


@pytest.mark.kafka
def test_formats_are_measured(broker: SessionBroker, registry: str) -> None:
    settings = KafkaSettings(bootstrap=broker.bootstrap, runs=1, seconds=12, share=0.05)
    pairs = [("json", "json"), ("avro", "protobuf"), ("protobuf", "avro")]
    with Progress() as progress:
        report = bench_formats(settings, progress, registry, pairs)
    assert report.skipped == []
    rows = {row.name: row for row in report.rows}
    assert all(rows[f"{one} to {other}"].spread.median > 0 for one, other in pairs)
    for name in ("avro to protobuf", "protobuf to avro"):
        assert rows[f"{name}, share of json to json"].limit.value == 0.8  # type: ignore[union-attr]


@pytest.mark.kafka
def test_plan_changes_are_measured(broker: SessionBroker) -> None:
    settings = MigrationSettings(
        bootstrap=broker.bootstrap, runs=1, rate=600, window_ms=300, quiet_s=1.1, strategies=("jisc", "parallel-track")
    )
    with Progress() as progress:
        report = bench_migrations(settings, progress)
    rows = {row.name: row for row in report.rows}
    assert rows["jisc: longest silence of the task"].limit is not None
    assert 0 <= rows["parallel-track: longest silence of the task"].spread.median < 60_000
    assert 0 < rows["parallel-track: longest time without results"].spread.median < 60_000


@pytest.mark.slow
def test_plan_changes_between_tasks_are_measured(broker: SessionBroker) -> None:
    settings = MigrationSettings(
        bootstrap=broker.bootstrap, runs=1, rate=600, window_ms=300, quiet_s=5.0, per_operator=True
    )
    with Progress() as progress:
        report = bench_migrations(settings, progress)
    rows = {row.name: row.spread.median for row in report.rows}
    assert rows.keys() >= {f"{name}: longest time without results" for name in ("jisc", "hybmig-bsc", "moving-state")}
    assert 0 < rows["hybmig-bsc: longest time without results"] < 60_000
    assert rows["hybmig-bsc: processor time"] > 0


@pytest.mark.slow
def test_kills_are_measured(broker: SessionBroker) -> None:
    settings = FailoverSettings(bootstrap=broker.bootstrap, runs=1, rate=600, windows_ms=(1_000,), session_s=6.0)
    with Progress() as progress:
        report = bench_failover(settings, progress)
    rows = {row.name: row.spread.median for row in report.rows}
    assert 0 < rows["in place, 0 MB: first result"] < 60
    assert 3 <= rows["taken over, 0 MB: first result"] < 60
    assert all(seconds >= 0 for name, seconds in rows.items() if name.startswith("- "))
