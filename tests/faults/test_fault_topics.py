"""Topics and queries with errors: empty, missing, recreated, with unknown columns."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.conftest import MakeTrial
from tests.faults.trial import Trial, logged_once, no_traceback, problems
from tests.faults.workload import PARTITIONED, QUERY, STREAMS, Workload, workload

pytestmark = pytest.mark.kafka


def run_worker(query: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a worker that is expected to end by itself."""
    command = [sys.executable, "-m", "services.cli", "worker", str(query), "--state-dir", "none", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_empty_topics(make_trial: MakeTrial) -> None:
    """No record anywhere: the worker is healthy, produces nothing, and stops cleanly."""
    trial = make_trial(Workload([], 3))
    worker = trial.start().wait_running()
    assert worker.health()["status"] == "ok"
    assert worker.stop() == 0
    trial.check()
    assert problems(worker) == []


def test_one_empty_topic_holds_results_back(make_trial: MakeTrial, fault_seed: int) -> None:
    """While one input has no tuple its event time is unknown: all results wait, also over a kill -9 with the
    disk deleted, and are delivered exactly when it starts."""
    whole = workload(fault_seed, 300, 2)
    late_starter = [record for record in whole.records if record.stream == "c"]
    others = [record for record in whole.records if record.stream != "c"]
    trial = make_trial(Workload([*others, *late_starter], 2))
    trial.send(len(others))
    first = trial.start("--session-timeout", "6s")
    trial.wait_caught_up(first)
    assert trial.read(trial.sink) == []
    first.kill()
    second = trial.start("--session-timeout", "6s", state=trial.folder / "empty").wait_running()
    trial.wait(lambda: second.metric("pending_tuples") > 0, "tuples wait for the empty topic", second)
    trial.finish(second)
    no_traceback(second)


def test_missing_topics_are_named(make_trial: MakeTrial) -> None:
    """--no-wait: exit code 1 and one line that names what is missing, and only that."""
    trial = make_trial(Workload([], 1))
    query = trial.folder / "missing.sql"
    text = trial.case.path.read_text()
    query.write_text(text.replace(trial.topic("b"), "no-such-b").replace(trial.topic("c"), "no-such-c"))
    done = run_worker(query, "--bootstrap", trial.bootstrap, "--no-wait")
    assert done.returncode == 1, done.stderr
    assert done.stderr.strip() == "weir: missing input topics: no-such-b, no-such-c"


def test_missing_topic_is_waited_for(make_trial: MakeTrial, fault_seed: int) -> None:
    """By default the worker waits, logs once for what, stops on request, and continues when the topic exists."""
    trial = make_trial(workload(fault_seed, 300, 1))
    trial.delete_topic(trial.topic("b"))
    worker = trial.start()
    trial.wait(lambda: "missing input topic" in worker.text(), "the worker says what is missing", worker)
    assert worker.stop() in (0, -15)
    no_traceback(worker)
    worker = trial.start()
    trial.wait(lambda: "missing input topic" in worker.text(), "the worker says what is missing", worker)
    trial.make_topic(trial.topic("b"))
    trial.finish(worker)
    logged_once(worker, f"warning .*missing input topic: {trial.topic('b')}; waiting")
    no_traceback(worker)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (("A.x > B.y", "A.x > B.yy"), r"yy.*\bline \d+, column \d+\b"),
        (("FROM a A", "FROM aa A"), r"aa.*\bline \d+, column \d+\b"),
        (("B.y AS y", "B.q AS y"), r"B\.q|'q'.*\bline \d+, column \d+\b"),
        (("A.k = B.k", "A.k = B.s"), r"\bline \d+, column \d+\b"),
        (("INSERT INTO '", "INSERT IN '"), r"\bline \d+, column \d+\b"),
    ],
    ids=["column", "stream", "output", "types", "syntax"],
)
def test_wrong_query_ends_before_it_starts(tmp_path: Path, broken: tuple[str, str], says: str) -> None:
    """Exit code 2 without contacting a broker; the message points at the position with a caret."""
    text = QUERY.format(a="a", b="b", c="c", sink="out")
    assert broken[0] in text
    query = tmp_path / "wrong.sql"
    query.write_text(text.replace(*broken))
    done = run_worker(query, "--bootstrap", "127.0.0.1:1")
    assert done.returncode == 2, done.stderr
    assert re.search(says, done.stderr.splitlines()[0]), done.stderr
    assert re.fullmatch(r" *\^+", done.stderr.rstrip().splitlines()[-1]), done.stderr
    assert "Traceback" not in done.stderr


def test_partition_counts_that_differ(make_trial: MakeTrial) -> None:
    """PARTITION BY over topics of 2 and 3 partitions would lose results: exit code 2, with the counts."""
    trial = make_trial(Workload([], 2), text=PARTITIONED)
    trial.delete_topic(trial.topic("b"))
    trial.make_topic(trial.topic("b"), partitions=3)
    done = run_worker(trial.case.path, "--bootstrap", trial.bootstrap)
    assert done.returncode == 2, done.stderr
    assert f"'{trial.topic('a')}' has 2" in done.stderr
    assert f"'{trial.topic('b')}' has 3" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_input_topic_made_anew_is_refused(make_trial: MakeTrial, fault_seed: int) -> None:
    """Committed offsets of another topic: continuing would skip or repeat input, so one line and exit code 1."""
    trial = make_trial(workload(fault_seed, 300, 1))
    trial.send(0.5)
    worker = trial.start()
    trial.wait_caught_up(worker)
    assert worker.stop() == 0
    before = trial.read(trial.sink)
    trial.delete_topic(trial.topic("a"))
    trial.make_topic(trial.topic("a"))
    worker = trial.start()
    trial.wait(lambda: worker.process.poll() is not None, "the worker refuses")
    assert worker.process.returncode == 1
    logged_once(
        worker,
        r"^weir: (topic .* was deleted and made anew since commit \d+|no committed offset for ).*--group",
    )
    no_traceback(worker)
    assert trial.read(trial.sink) == before


def grown(trial: Trial, streams: str = "abc") -> None:
    """Give topics, which were made with one partition, their second one."""
    for stream in streams:
        trial.add_partitions(trial.topic(stream), 2)


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_partitions_are_added(make_trial: MakeTrial, fault_seed: int, start: str) -> None:
    """A running worker reads them from their beginning, whatever --from is, and results are exact.

    Before, it never read them; and a worker that was restarted with `--from latest` left out their older records.
    """
    whole = workload(fault_seed, 600, 2, dirty=False)
    middle = len(whole.records) // 2
    first = [dataclasses.replace(record, partition=0) for record in whole.records[:middle]]
    rest = sorted(whole.records[middle:], key=lambda record: -record.partition)
    noticed = middle + sum(record.partition == 1 for record in rest)
    trial = make_trial(Workload([*first, *rest], 2))
    for stream in STREAMS:
        trial.delete_topic(trial.topic(stream))
        trial.make_topic(trial.topic(stream))
    worker = trial.start("--from", start)
    trial.wait(worker.running_tasks, "the worker runs", worker)
    trial.send(middle)
    trial.wait(lambda: trial.read(trial.sink), "results", worker)
    grown(trial)
    trial.send(noticed)
    trial.wait(lambda: "partitions were added" in worker.text(), "the worker notices", worker)
    trial.finish(worker)
    logged_once(worker, r"info    weir.worker: partitions were added \(.* has 2, had 1\): tasks begin anew with them")
    no_traceback(worker)


def test_partitions_are_added_to_what_is_partitioned(make_trial: MakeTrial, fault_seed: int) -> None:
    """With PARTITION BY each new partition is a task, once all topics have it."""
    trial = make_trial(Workload([], 1, PARTITIONED), text=PARTITIONED)
    worker = trial.start().wait_running()
    grown(trial, "ab")
    trial.wait(lambda: "are not read yet" in worker.text(), "the worker says what it waits for", worker)
    grown(trial, "c")
    worker.wait_running([0, 1])
    logged_once(worker, r"warning .*partitions were added and are not read yet \(.*\): PARTITION BY needs topics")
    logged_once(worker, r"warning .*tasks begin anew with them; a key that has changed its partition does not join its")
    assert worker.stop() == 0
    no_traceback(worker)


def test_partitions_are_added_to_joins_that_run_apart(make_trial: MakeTrial) -> None:
    """Their topics are made for the partitions at the start: one line, and exit code 1."""
    trial = make_trial(Workload([], 1))
    worker = trial.start("--placement", "per-operator").wait_running([0, 1])
    grown(trial, "a")
    trial.wait(lambda: worker.process.poll() is not None, "the worker ends")
    assert worker.process.returncode == 1
    logged_once(worker, r"^weir: partitions were added \(.* has 2, had 1\): with --placement per-operator .*--group")
    no_traceback(worker)
