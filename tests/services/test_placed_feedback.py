"""Joins in tasks of their own that tell each other what is not demanded, on a real broker, with what can go wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker_fixture import Topics
from tests.services.test_placed_workers import spread
from tests.worker_harness import Case, Feed, Reader, Row, WorkerProcess, Workers, assert_exact, wait_for

pytestmark = pytest.mark.kafka

FOUR = """
CREATE STREAM a (k BIGINT, x BIGINT, at TIMESTAMP)
  WITH (topic = '{a}', format = 'json', timestamp = 'at', disorder = '20 MILLISECONDS');
CREATE STREAM b (k BIGINT, y BIGINT, at TIMESTAMP)
  WITH (topic = '{b}', format = 'json', timestamp = 'at', disorder = '20 MILLISECONDS');
CREATE STREAM c (y BIGINT, z BIGINT, at TIMESTAMP)
  WITH (topic = '{c}', format = 'json', timestamp = 'at', disorder = '20 MILLISECONDS');
CREATE STREAM d (x BIGINT, w BIGINT, at TIMESTAMP)
  WITH (topic = '{d}', format = 'json', timestamp = 'at', disorder = '20 MILLISECONDS');
INSERT INTO '{sink}'
SELECT A.k AS k, A.x, B.y, C.z, D.w
FROM a A [RANGE 400 MILLISECONDS], b B [RANGE 400 MILLISECONDS], c C [RANGE 100 MILLISECONDS],
     d D [RANGE 60 MILLISECONDS]
WHERE A.k = B.k AND B.y = C.y AND A.x = D.x
"""
CLOSING: dict[str, Row] = {
    "a": {"k": -1, "x": -1},
    "b": {"k": -2, "y": -1},
    "c": {"y": -2, "z": 0},
    "d": {"x": -2, "w": 0},
}
BASE = 1_700_000_000_000
PLACED = ("--placement", "per-operator", "--session-timeout", "6s", "--jit", "on")
LEFT_DEEP = ("--plan", "(((A B) C) D)")


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """Starts workers; kills those that a test leaves behind."""
    started = Workers(tmp_path)
    yield started
    started.end()


def send(feed: Feed, rng: random.Random, start: int, count: int) -> None:
    """`count` rows of a and b, 10 ms apart; c and d have few, of few values that change as time goes on."""
    for i in range(start, start + count):
        at = BASE + 10 * i - rng.choice([0, 0, 5, 19])
        rows: dict[str, Row] = {
            "a": {"k": rng.randrange(4), "x": rng.randrange(8), "at": at},
            "b": {"k": rng.choice([*range(4), None]), "y": rng.randrange(6), "at": at},
        }
        if i % 4 == 0:
            rows["c"] = {"y": rng.choice([i // 60 % 6, rng.randrange(6)]), "z": i, "at": at}
        if i % 10 == 0:
            rows["d"] = {"x": i // 40 % 8, "w": i, "at": at}
        for stream, row in rows.items():
            feed.send(stream, [row], i % feed.case.partitions)
    feed.flush()


def said(team: list[WorkerProcess], name: str) -> float:
    """The sum of a counter over the workers' tasks."""
    return sum(worker.metric(name) for worker in team)


def test_joins_in_three_workers_tell_each_other(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """One of three is killed in the middle; what is not demanded is kept back, and comes when it is."""
    case = Case.make(topics, tmp_path, FOUR)
    feed, rng = Feed(case), random.Random(1)
    team = [workers.start(case, *PLACED, *LEFT_DEEP) for _ in range(3)]
    send(feed, rng, 0, 150)
    spread(team, 3)
    reader = Reader(case.bootstrap, case.sink)
    wait_for(lambda: said(team, "feedback_requests_total") > 5, lambda: team[0].said("feedback"))
    send(feed, rng, 150, 100)
    team.pop().kill()
    send(feed, rng, 250, 100)
    feed.finish(CLOSING)
    assert_exact(case, reader, team[0])
    times = [row["_ts"] for row in reader.rows()]
    assert times == sorted(times), "one task writes them"
    assert [worker.stop() for worker in team] == [0, 0]
