"""The operator's view: graceful stops, metrics, health."""

from __future__ import annotations

import json
import signal
import urllib.request

import pytest

from tests.faults.conftest import MakeTrial
from tests.faults.trial import no_traceback, problems
from tests.faults.workload import workload

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_graceful_stop_commits_the_open_epoch(make_trial: MakeTrial, fault_seed: int, number: int) -> None:
    """An epoch of an hour is delivered when the worker is told to stop, with its offsets; the next incarnation reads
    none of it again."""
    trial = make_trial(workload(fault_seed, 500, 2))
    trial.send(0.6)
    first = trial.start("--epoch", "1h", "--commit", "1h")
    first.wait_running()
    wanted = sum(record.row is not None for record in trial.workload.records[: trial.sent])
    trial.wait(lambda: first.metric("input_tuples_total") == wanted, "all input is taken", first)
    assert trial.taken() == 0
    first.signal(number)
    assert first.stop() == 0
    assert trial.caught_up(), first.with_log("offsets of the open epoch are not committed")
    assert len(trial.read(trial.sink)) > 0
    second = trial.start()
    trial.finish(second)
    for worker in (first, second):
        no_traceback(worker)
        assert problems(worker) == []


def test_metrics_and_health(make_trial: MakeTrial, fault_seed: int) -> None:
    """/metrics counts the records of the outputs; /healthz reports the tasks that run."""
    trial = make_trial(workload(fault_seed, 500, 2))
    trial.send()
    worker = trial.start().wait_running()
    trial.wait_caught_up(worker)
    expected = trial.workload.expected
    counts = {
        "results_total": expected.results.total(),
        "late_tuples_total": len(expected.late),
        "dead_letters_total": len(expected.dead),
        "input_tuples_total": sum(record.row is not None for record in trial.workload.records),
        "tasks": 1,
        "snapshot_failures_total": 0,
        "task_restarts_total": 0,
    }
    for name, count in counts.items():
        assert worker.metric(name) == count, name
    assert worker.metric("commits_total") > 0
    last = max(record.row["at"] for record in trial.workload.records if record.row is not None)
    trial.wait(lambda: last - 1000 < worker.metric("watermark_milliseconds") <= last, "the watermark is shown", worker)
    with urllib.request.urlopen(f"http://127.0.0.1:{worker.port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
        assert answer.headers["Content-Type"].startswith("text/plain")
    assert text.count("# HELP weir_") == text.count("# TYPE weir_") > 15
    with urllib.request.urlopen(f"http://127.0.0.1:{worker.port}/healthz", timeout=30) as answer:
        health = json.load(answer)
    assert health["status"] == "ok"
    assert health["query"] == trial.sink
    assert [(task["task"], task["state"]) for task in health["tasks"]] == [(0, "running")]
    trial.finish(worker)
