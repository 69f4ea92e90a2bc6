"""`weir bench jit --kafka`: workloads have their declared properties, tables show losses, a tiny run finds all
results."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest

from operators.distributed.decompose import decompose
from operators.plan.plan import parse_plan
from ops.bench.kafka.jit_kafka import (
    MEASURES,
    TASKS,
    JitKafkaSettings,
    bench_jit_kafka,
    details,
    overview,
    quantile,
    ratios,
)
from ops.bench.kafka.jit_kafka_runs import DistributedTask, Sent, Traffic, closing, expected_results, records, shown
from ops.bench.measuring.measure import Progress
from schemas.errors import UsageError
from tests import oracle
from tests.broker_fixture import SessionBroker
from tests.feeding import to_rows
from tests.papers import drawn

TINY = replace(TASKS[0].scaled(0.1), window_ms=1_000)


def sent(tuples: int, block_bytes: int, **more: int) -> Sent:
    """The costs of a worker."""
    traffic = Traffic(blocks=10, block_bytes=block_bytes, **more)
    return Sent(tuples, 5, 0, 100, traffic, 0, 2.0, 3, [10.0, 20.0, 30.0], 0.001)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.title)
def test_a_workload_has_a_plan_over_its_streams_and_joins_with_feedback(task: DistributedTask) -> None:
    query = task.query()
    plan = parse_plan(task.plan, query)
    operators = decompose(query, plan, dict.fromkeys(task.rates, 1), 1, feedback=True)
    assert len(query.predicates) == len(task.equalities)
    assert any(edge.kinds for operator in operators for edge in operator.outputs)


def test_tuples_are_made_at_their_rates_with_their_values() -> None:
    task = TASKS[0]
    found = task.batches(10.0, 1)
    assert {name: len(batch) for name, batch in found.items()} == {"A": 4000, "B": 4000, "C": 1000, "D": 20}
    assert task.columns("A") == {"k": 200, "x": 1000}
    for name, batch in found.items():
        assert bool((np.diff(batch.ts) >= 0).all())
        for column, values in task.columns(name).items():
            drawn_values = batch.columns[column].values
            assert 1 <= drawn_values.min() <= drawn_values.max() <= values
    assert found["A"].columns["k"].values.max() > 190
    again, other = task.batches(10.0, 1), task.batches(10.0, 2)
    assert again["A"].columns["x"].values.tolist() == found["A"].columns["x"].values.tolist()
    assert other["A"].columns["x"].values.tolist() != found["A"].columns["x"].values.tolist()


def test_records_are_the_tuples_in_order_and_the_closing_ones_join_nothing() -> None:
    batches = TINY.batches(2.0, 3)
    found = records(batches)
    assert [record.ts for record in found] == sorted(record.ts for record in found)
    for name, batch in batches.items():
        mine = [orjson.loads(record.value) for record in found if record.stream == name]
        assert mine == [{name: row[name] for name in row if name != "_ts"} for row in to_rows(batch)]
    last = closing(TINY)
    assert [record.stream for record in last] == list(TINY.rates)
    assert last[0].ts > found[-1].ts + TINY.window_ms
    rows = [orjson.loads(record.value) for record in last]
    values = [{row[column] for column in TINY.columns(name)} for name, row in zip(TINY.rates, rows, strict=True)]
    assert values == [{-1}, {-2}, {-3}, {-4}]


def test_expected_results_are_the_oracles() -> None:
    batches = replace(TINY, equalities={"A.k = B.k": 5, "B.y = C.y": 3, "A.x = D.x": 2}).batches(1.0, 5)
    rows = {name: [to_rows(batch)] for name, batch in batches.items()}
    found = oracle.results(TINY.query(), rows)
    assert found
    assert expected_results(TINY, batches) == Counter((r["a"], r["b"], r["c"], r["d"]) for r in found)


def test_ratios_are_of_one_run_and_of_what_is_there() -> None:
    runs = [(sent(100, 1000), sent(10, 400, notices=2, notice_bytes=100)), (sent(90, 900), sent(30, 450))]
    assert ratios(runs, MEASURES["intermediate tuples"]) == [10.0, 3.0]
    assert ratios(runs, MEASURES["bytes"]) == [2.0, 2.0]
    assert ratios(runs, MEASURES["bytes on disk"]) == []
    assert ratios(runs, lambda one: one.traffic.notices) == []
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([], 0.5) == 0.0


def test_losses_are_reported() -> None:
    saves = [(sent(100, 1000), sent(10, 100, requests=1, request_bytes=50))]
    costs = [(sent(100, 1000), sent(100, 1000, notices=5, notice_bytes=300, requests=10, request_bytes=200))]
    figure = overview([(TASKS[0], saves), (TASKS[1], costs)])
    assert figure.table[1][:4] == (TASKS[0].title, "10.00x", "0.91x", "6.67x")
    assert figure.table[2][:4] == (TASKS[1].title, "1.00x", "0.40x", "0.67x")
    claim = figure.claims[0]
    assert claim.what == "bytes: with / without feedback, worst workload"
    assert claim.measured.median == pytest.approx(1.5)
    assert [claim.met for claim in figure.claims] == [False, True, None, None]
    lines = {line[0]: line[1:] for line in details(TASKS[1], costs, 2).table}
    assert lines["bytes in all"] == ("1,000", "1,500", "0.67x")
    assert lines["bytes of notices"] == ("0", "300", "")
    assert lines["delay of a result, p50, ms"] == ("20", "20", "1.00x")


def test_missing_results_are_described() -> None:
    """A wait that failed named only its goal: neither the worker, nor whether results were lost or not read."""
    expected, read = Counter({(1, 2): 1, (1, 3): 2}), Counter({(1, 3): 1, (4, 4): 1})
    metrics = {"late_tuples_total": 2.0, "commits_total": 9.0, "pending_tuples": 0.0}
    assert shown(expected, read, expected, metrics) == (
        "2 of 3 results have come; 3 are in the sink; 2 are missing, 1 too many; first missing (1, 2); "
        "late_tuples_total 2; pending_tuples 0"
    )
    assert shown(expected, expected, None, {}) == (
        "3 of 3 results have come; the sink cannot be read; 0 are missing, 0 too many"
    )


@pytest.mark.kafka
@pytest.mark.slow
def test_a_run_finds_all_results_with_less_on_the_way(broker: SessionBroker, tmp_path: Path) -> None:
    task = replace(TASKS[0].scaled(0.5), window_ms=1_000)
    settings = JitKafkaSettings(bootstrap=broker.bootstrap, tasks=(task,), seconds=2.5, runs=1)
    with Progress() as progress:
        suite = bench_jit_kafka(settings, progress)
        with pytest.raises(UsageError, match="figure 10 is drawn without Kafka"):
            bench_jit_kafka(settings, progress, 10)
    text = drawn(suite, tmp_path)
    assert "Beyond the paper: through Kafka" in text
    lines = {line[0]: line[1:3] for line in suite.figures[1].table}
    plain, fed = ([int(lines[name][k].replace(",", "")) for name in
                   ("intermediate tuples written", "bytes in all", "requests", "notices: answers to requests")]
                  for k in (0, 1))  # fmt: skip
    assert fed[0] < plain[0]
    assert plain[2:] == [0, 0]
    assert fed[2] > 0 < fed[3]
    assert lines["results"][0] == lines["results"][1]
