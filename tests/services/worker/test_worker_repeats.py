"""Streams without repeats in workers: exactly the oracle's results, whatever dies, also on empty disks.

Few ids come all the time, so chains of repeats hardly have a gap, and no stretch of the input tells which tuples are
firsts. They last much longer than windows.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from services.process.security import KafkaClients
from services.recovery.committed_offsets import read_commits
from tests import oracle
from tests.broker_fixture import Topics
from tests.group_workers import STREAMS, GroupTrial, select
from tests.services.worker.test_exactly_once import CLOSING as SENSORS_END
from tests.services.worker.test_exactly_once import send as sensors
from tests.worker_harness import (
    Case,
    Feed,
    Reader,
    Row,
    WorkerProcess,
    Workers,
    assert_exact,
    canonical,
    wait_for,
)

pytestmark = [pytest.mark.kafka, pytest.mark.unmeasured]

PAIRS = """
CREATE STREAM l (k BIGINT, id STRING FROM 'nested.id', n BIGINT, at TIMESTAMP)
  WITH (topic = '{l}', format = 'json', timestamp = 'at', disorder = '60 MILLISECONDS',
        deduplicate = 'id', deduplicate_within = '700 MILLISECONDS');
CREATE STREAM r (k BIGINT, v BIGINT, at TIMESTAMP)
  WITH (topic = '{r}', format = 'json', timestamp = 'at', disorder = '60 MILLISECONDS',
        deduplicate = 'k', deduplicate_within = '35 MILLISECONDS');
INSERT INTO '{sink}'
SELECT L.k AS k, L.n AS n, R.v AS v FROM l L [RANGE 40 MILLISECONDS], r R [RANGE 300 MILLISECONDS] WHERE L.k = R.k
"""
PARTITIONED = PAIRS.rstrip() + "\nPARTITION BY L.k, R.k"
THREE = PAIRS.partition("SELECT")[0] + (
    "SELECT L.k AS k, L.n AS n, R.v AS v, S.n AS m FROM l L [RANGE 40 MILLISECONDS], r R [RANGE 300 MILLISECONDS], "
    "l S [RANGE 100 MILLISECONDS] WHERE L.k = R.k AND S.k = R.k"
)
COUNTED = THREE.replace("l S [RANGE 100 MILLISECONDS]", "l S [ROWS 9]")
PLACED = ("--placement", "per-operator")

CLOSING: dict[str, Row] = {"l": {"k": -1, "n": -1}, "r": {"k": -2, "v": 0}}
BASE = 1_700_000_000_000
KEYS = 8
IDS = 60


def send(feed: Feed, rng: random.Random, start: int, count: int) -> None:
    """Write `count` rows per stream, 5 ms apart and somewhat out of order, by key."""

    def at(i: int) -> int:
        return BASE + 5 * i - rng.choice([0, 0, 10, 55])

    for i in range(start, start + count):
        k = rng.randrange(KEYS)
        id_ = None if rng.random() < 0.05 else f"id {rng.randrange(IDS)}"
        row = {"k": k, "nested": {"id": id_}, "id": id_, "n": i, "at": at(i)}
        feed.spread("l", [row], lambda row: row["k"])
        feed.spread("r", [{"k": rng.randrange(KEYS), "v": i, "at": at(i)}], lambda row: row["k"])
    feed.flush()


def dropped(case: Case) -> int:
    """How many repeats there are, by the oracle."""
    return sum(
        sum(map(len, case.rows[stream.name])) - len(oracle.in_order(case.query, case.rows)[stream.name])
        for stream in case.query.streams()
    ) - sum(map(len, oracle.late(case.query, case.rows).values()))


def killed(
    case: Case, tmp_path: Path, workers: Workers, deaths: int, *options: str, keeps: bool = False
) -> tuple[Reader, WorkerProcess]:
    """Let workers of a case die with kill -9 while they work; the last one finishes."""
    feed, rng, reader = Feed(case), random.Random(7), None
    for life in range(deaths + 1):
        state = tmp_path / ("state" if keeps else f"state-{life}")
        worker = workers.start(case, "--snapshot", "200ms", "--commit", "100ms", *options, state=state)
        worker.wait_running(range(case.partitions) if case.query.partition_by else (0,))
        seen = worker.metric("results_total")
        for part in range(3):
            send(feed, rng, 240 * life + 80 * part, 80)
        reader = reader or Reader(case.bootstrap, case.sink)
        wait_for(lambda w=worker, n=seen: w.metric("results_total") > n, worker.with_log("results"))
        if keeps:
            wait_for(lambda w=worker: w.metric("snapshot_watermark_milliseconds"), worker.with_log("a snapshot"))
        if life < deaths:
            worker.kill()
    feed.finish(CLOSING)
    assert reader is not None
    assert_exact(case, reader, worker)
    return reader, worker


@pytest.mark.parametrize(("keeps", "text"), [(False, PAIRS), (True, PAIRS), (False, PARTITIONED)])
def test_killed_and_restarted(topics: Topics, tmp_path: Path, workers: Workers, keeps: bool, text: str) -> None:
    """On empty disks, and with snapshots. With PARTITION BY, each partition by itself."""
    case = Case.make(topics, tmp_path, text, partitions=2)
    _, worker = killed(case, tmp_path, workers, 3, keeps=keeps)
    # With a snapshot on disk the task still starts from what is less to read.
    assert keeps or "source=snapshot" not in worker.text()
    assert worker.stop() == 0


def test_repeats_are_counted_and_their_log_is_trimmed(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    case = Case.make(topics, tmp_path, PAIRS, partitions=2)
    feed, rng = Feed(case), random.Random(3)
    worker = workers.start(case, "--commit", "100ms").wait_running()
    for part in range(3):  # in commits of their own, however late the worker finds them
        seen = worker.metric("deduplicated_tuples_total")
        send(feed, rng, 200 * part, 200)
        wait_for(lambda n=seen: worker.metric("deduplicated_tuples_total") > n, worker.with_log("repeats"))
    feed.finish(CLOSING)
    assert_exact(case, Reader(case.bootstrap, case.sink), worker)
    repeats = dropped(case)
    assert repeats > 450
    wait_for(lambda: worker.metric("deduplicated_tuples_total") == repeats, worker.with_log("repeats"))
    lanes = [(case.topic(name), p) for name in "lr" for p in range(2)]
    # A commit names the partitions that have moved since the commit before. The newest one counts for the task.
    commits = read_commits(KafkaClients(case.bootstrap), f"weir-{case.sink}", lanes).values()
    newest = max((found.message for found in commits), key=lambda message: message.epoch)
    assert newest.repeats[0] > 0, "the first records are needed no more"
    assert worker.stop() == 0


@pytest.mark.deep
def test_at_least_once_invents_nothing(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """After kill -9 results may come twice; but no repeat makes a result."""
    case = Case.make(topics, tmp_path, PAIRS, partitions=2)
    feed, rng = Feed(case), random.Random(5)
    options = ("--guarantee", "at-least-once", "--commit", "300ms")
    for life in range(3):
        worker = workers.start(case, *options, state=tmp_path / f"state-{life}").wait_running()
        send(feed, rng, 240 * life, 240)
        wait_for(lambda w=worker: w.metric("results_total") > 0, worker.with_log("results"))
        worker.kill()
    worker = workers.start(case, *options)
    feed.finish(CLOSING)
    expected = case.expected()
    reader = Reader(case.bootstrap, case.sink, "read_uncommitted")
    wait_for(lambda: not expected - canonical(reader.rows()), worker.with_log("all results"))
    assert set(canonical(reader.rows())) == set(expected)
    assert worker.stop() == 0


@pytest.mark.parametrize(
    ("text", "split", "strategy"),
    [
        (THREE, "1", "moving-state"),
        # Each task took over the repeats of the former task of partition 0.
        (f"{THREE}\nPARTITION BY L.k, R.k, S.k", "2", "moving-state"),
        pytest.param(COUNTED, "2", "moving-state", marks=pytest.mark.deep),
        pytest.param(THREE, "2", "hybmig-bsc", marks=pytest.mark.deep),
        pytest.param(THREE, "2", "jisc", marks=pytest.mark.deep),
    ],
)
def test_operators_apart_take_over_from_each_other(
    topics: Topics, tmp_path: Path, workers: Workers, text: str, split: str, strategy: str
) -> None:
    """A task per operator; plans change, and workers are killed before and after that. Nobody keeps a disk."""
    case = Case.make(topics, tmp_path, text, partitions=2)
    feed, rng = Feed(case), random.Random(11)
    options = (*PLACED, "--plan", "((L R) S)", "--operator-partitions", split, "--commit", "100ms")
    worker = workers.start(case, *options, state="none")
    workers.coordinator(case).wait_running()
    send(feed, rng, 0, 120)
    wait_for(lambda: worker.metric("results_total") > 0, worker.with_log("results"))
    start = 120
    for plan in ("((S R) L)", "((L R) S)"):
        change = workers.migrate(case, plan, strategy, "--wait", "--timeout", "60s")
        while not change.ended():
            send(feed, rng, start, 20)
            start += 20
            time.sleep(0.1)
        code, _, err = change.finish()
        assert code == 0, err
        send(feed, rng, start, 60)
        worker.kill()
        worker = workers.start(case, *options, state="none")
        send(feed, rng, start + 60, 60)
        start += 120
    feed.finish(CLOSING)
    assert_exact(case, Reader(case.bootstrap, case.sink), worker)
    assert worker.stop() == 0


def test_a_group_that_is_killed_while_queries_come(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Queries that are added with the past see no repeat in it. Nobody keeps a disk."""
    without = "disorder = '200 MILLISECONDS', deduplicate = 'mote', deduplicate_within = '90 MILLISECONDS'"
    streams = STREAMS.replace("disorder = '200 MILLISECONDS'", without)
    trial = GroupTrial.make(topics, tmp_path, streams=streams)
    feed, rng = Feed(trial.case), random.Random(6)
    trial.register({f"q{n}": select(rng) for n in range(4)})
    for life in range(3):
        worker = workers.start(trial.case, "--commit", "100ms", state=tmp_path / f"state-{life}").wait_running()
        for part in range(2):
            seen = worker.metric("group_results_total")
            sensors(feed, rng, 200 * life + 100 * part, 100)
            wait_for(lambda w=worker, n=seen: w.metric("group_results_total") > n, worker.with_log("results"))
            if part == 0:
                trial.register({f"more{life}": select(rng)})
                trial.wait_begun(worker)
        worker.kill()
    worker = workers.start(trial.case, state=tmp_path / "last").wait_running()
    feed.finish(SENSORS_END)
    assert trial.judge(worker) > 500
    assert worker.stop() == 0
