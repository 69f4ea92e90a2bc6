"""The service end to end on a real broker: whatever happens, the sink holds the oracle's results once each."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.broker_fixture import Topics
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

SENSORS = """
CREATE STREAM temperature (mote BIGINT, room STRING, celsius DOUBLE, at TIMESTAMP)
  WITH (topic = '{temperature}', format = 'json', timestamp = 'at', disorder = '200 MILLISECONDS');
CREATE STREAM humidity (mote BIGINT, room STRING, percent DOUBLE, at TIMESTAMP)
  WITH (topic = '{humidity}', format = 'json', timestamp = 'at', disorder = '200 MILLISECONDS');
CREATE STREAM light (mote BIGINT, lux DOUBLE, at TIMESTAMP)
  WITH (topic = '{light}', format = 'json', timestamp = 'at', disorder = '200 MILLISECONDS');
INSERT INTO '{sink}'
SELECT T.mote AS mote, T.room, T.celsius, H.percent, L.lux
FROM temperature T [RANGE 800 MILLISECONDS], humidity H [RANGE 500 MILLISECONDS], light L [RANGE 800 MILLISECONDS]
WHERE T.mote = H.mote AND T.room = H.room AND L.mote = H.mote AND T.celsius > 10
"""

PARTITIONED = SENSORS.rstrip() + "\nPARTITION BY T.mote, H.mote, L.mote"

CLOSING: dict[str, Row] = {
    "temperature": {"mote": -1, "room": "-", "celsius": 0.0},
    "humidity": {"mote": -2, "room": "-", "percent": 0.0},
    "light": {"mote": -3, "lux": 0.0},
}

MEASURES = {"temperature": "celsius", "humidity": "percent", "light": "lux"}

BASE = 1_700_000_000_000


def sensors(rng: random.Random, start: int, count: int) -> dict[str, list[Row]]:
    """`count` rows per stream over 5 ms each, up to 200 ms out of order, with nulls and late ones."""
    rows: dict[str, list[Row]] = {"temperature": [], "humidity": [], "light": []}
    for i in range(start, start + count):
        at = BASE + 5 * i
        for stream in rows:
            mote = rng.choice([*range(40), None])
            row: Row = {"mote": mote, "at": at - rng.choice([0, 0, 7, 60, 199, 450 if i % 50 == 49 else 0])}
            if stream != "light":
                row["room"] = rng.choice(["a", "b", "ä"])
            row[MEASURES[stream]] = rng.uniform(0, 40)
            rows[stream].append(row)
    return rows


def send(feed: Feed, rng: random.Random, start: int, count: int) -> None:
    """Write some rows to all streams, by key where there are several partitions."""
    for stream, rows in sensors(rng, start, count).items():
        feed.spread(stream, rows, lambda row: row["mote"] or 0)
    feed.flush()


def test_results_equal_the_oracle(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Three topics in, one out; late tuples and dead letters are elsewhere, with their reasons."""
    case = Case.make(topics, tmp_path, SENSORS)
    feed, rng = Feed(case), random.Random(1)
    send(feed, rng, 0, 400)
    feed.raw("light", b"{not json")
    feed.raw("light", None)
    feed.raw("light", b'{"mote": "x", "lux": 1.5, "at": 1700000000000}', key=b"k")
    feed.raw("light", b'{"mote": 1, "lux": 1.5}')
    feed.raw("light", b'{"mote": 1, "lux": 1.5, "at": 253370764800000}')
    worker = workers.start(case).wait_running()
    send(feed, rng, 400, 400)
    feed.finish(CLOSING)
    reader = Reader(case.bootstrap, case.sink)
    assert_exact(case, reader, worker)

    from tests import oracle

    late = oracle.late(case.query, case.rows)
    letters = Reader(case.bootstrap, f"{case.sink}.late")
    letters.wait_for_count(sum(map(len, late.values())))
    assert canonical(letters.rows()) == canonical(row for rows in late.values() for row in rows)
    assert {r.headers["reason"] for r in letters.records} == {"late"}
    first = letters.records[0]
    assert first.headers["topic"] == case.topic(first.headers["stream"])
    dead = Reader(case.bootstrap, f"{case.sink}.dead")
    dead.wait_for_count(5)
    assert [r.headers["topic"] for r in dead.records] == [case.topic("light")] * 5
    assert [int(r.headers["offset"]) for r in dead.records] == [400, 401, 402, 403, 404]
    assert [r.value for r in dead.records][:2] == [b"{not json", None]
    assert dead.records[2].key == b"k"
    assert all(r.headers["reason"] and r.headers["partition"] == "0" for r in dead.records)
    assert worker.metric("late_tuples_total") == sum(map(len, late.values()))
    assert worker.metric("dead_letters_total") == 5
    assert worker.stop() == 0


@pytest.mark.parametrize(
    ("disk", "deaths"),
    [("kept", 2), pytest.param("kept", 4, marks=pytest.mark.deep), pytest.param("lost", 4, marks=pytest.mark.deep)],
)
def test_killed_and_restarted(topics: Topics, tmp_path: Path, workers: Workers, disk: str, deaths: int) -> None:
    """kill -9 between and within epochs; recovery by snapshot, or by window replay on an empty disk."""
    case = Case.make(topics, tmp_path, SENSORS)
    feed, rng = Feed(case), random.Random(2)
    reader = None
    for life in range(deaths):
        state = tmp_path / ("state" if disk == "kept" else f"state-{life}")
        worker = workers.start(case, "--snapshot", "300ms", state=state)
        if life:
            worker.wait_running()
        for part in range(4):
            send(feed, rng, 400 * life + 100 * part, 100)
        reader = reader or Reader(case.bootstrap, case.sink)
        seen = worker.metric("results_total")
        wait_for(lambda w=worker, n=seen: w.metric("results_total") > n, worker.with_log("results"))
        if life:
            source = "snapshot" if disk == "kept" else "window"
            assert f"source={source}" in worker.text(), worker.with_log("recovery")
        if disk == "kept":
            wait_for(lambda w=worker: _on_disk(case, w), worker.with_log("a snapshot"))
        worker.kill()
    worker = workers.start(case)
    feed.finish(CLOSING)
    assert reader is not None
    assert_exact(case, reader, worker)


def _on_disk(case: Case, worker: WorkerProcess) -> bool:
    """All that was sent is committed and in a snapshot."""
    cuts = worker.metric("watermark_milliseconds"), worker.metric("snapshot_watermark_milliseconds")
    return set(cuts) == {case.watermark()}


@pytest.mark.deep
def test_workers_share_partitions(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Two workers with four partition sets; one leaves, a third joins, one is killed."""
    case = Case.make(topics, tmp_path, PARTITIONED, partitions=4)
    feed, rng = Feed(case), random.Random(3)
    send(feed, rng, 0, 200)
    first = workers.start(case, "--session-timeout", "6s").wait_running([0, 1, 2, 3])
    second = workers.start(case, "--session-timeout", "6s")
    wait_for(lambda: len(second.running_tasks()) == 2 and len(first.running_tasks()) == 2, second.with_log("half"))
    assert first.running_tasks() | second.running_tasks() == {0, 1, 2, 3}
    send(feed, rng, 200, 200)
    assert first.stop() == 0
    send(feed, rng, 400, 200)
    second.wait_running([0, 1, 2, 3])
    third = workers.start(case, "--session-timeout", "6s")
    wait_for(lambda: len(third.running_tasks()) == 2, third.with_log("half"))
    send(feed, rng, 600, 200)
    second.kill()
    third.wait_running([0, 1, 2, 3])
    send(feed, rng, 800, 200)
    feed.finish(CLOSING)
    assert_exact(case, Reader(case.bootstrap, case.sink), third)


@pytest.mark.deep
def test_single_task_fails_over(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Without PARTITION BY one worker reads all partitions; the other stands by and takes over."""
    case = Case.make(topics, tmp_path, SENSORS, partitions=3)
    feed, rng = Feed(case), random.Random(4)
    first = workers.start(case, "--session-timeout", "6s").wait_running()
    second = workers.start(case, "--session-timeout", "6s")
    wait_for(lambda: second.health().get("status") == "ok", second.with_log("health"))
    send(feed, rng, 0, 200)
    reader = Reader(case.bootstrap, case.sink)
    wait_for(lambda: first.metric("results_total") or second.metric("results_total"), first.with_log("results"))
    active, standby = (first, second) if first.running_tasks() else (second, first)
    assert standby.running_tasks() == set()
    active.kill()
    send(feed, rng, 200, 200)
    standby.wait_running()
    feed.finish(CLOSING)
    assert_exact(case, reader, standby)


@pytest.mark.deep
def test_zombie_is_fenced(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """A worker that stood still while another took over adds nothing when it wakes."""
    case = Case.make(topics, tmp_path, SENSORS)
    feed, rng = Feed(case), random.Random(5)
    zombie = workers.start(case, "--session-timeout", "6s", state=tmp_path / "zombie").wait_running()
    send(feed, rng, 0, 200)
    reader = Reader(case.bootstrap, case.sink)
    reader.wait_for_count(1)
    zombie.signal(signal.SIGSTOP)
    send(feed, rng, 200, 200)
    successor = workers.start(case, "--session-timeout", "6s", state=tmp_path / "successor").wait_running()
    send(feed, rng, 400, 200)
    wait_for(lambda: successor.metric("results_total") > 0, successor.with_log("results"))
    zombie.signal(signal.SIGCONT)
    wait_for(
        lambda: zombie.health().get("tasks") == [] or successor.health().get("tasks") == [],
        zombie.with_log("hand over"),
    )
    send(feed, rng, 600, 200)
    feed.finish(CLOSING)
    assert_exact(case, reader, successor)
    assert successor.stop() == 0
    assert zombie.stop() == 0


@pytest.mark.deep
def test_at_least_once_loses_nothing(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """After kill -9 results may come twice, none is missing."""
    case = Case.make(topics, tmp_path, SENSORS)
    feed, rng = Feed(case), random.Random(6)
    options = ("--guarantee", "at-least-once", "--commit", "500ms")
    for life in range(2):
        worker = workers.start(case, *options).wait_running()
        send(feed, rng, 200 * life, 200)
        wait_for(lambda w=worker: w.metric("results_total") > 0, worker.with_log("results"))
        worker.kill()
    worker = workers.start(case, *options)
    feed.finish(CLOSING)
    expected = case.expected()
    reader = Reader(case.bootstrap, case.sink, "read_uncommitted")
    wait_for(lambda: not expected - canonical(reader.rows()), worker.with_log("all results"))
    assert set(canonical(reader.rows())) == set(expected)
    assert worker.stop() == 0
