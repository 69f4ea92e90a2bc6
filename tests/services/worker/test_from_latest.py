"""`--from latest`: what arrives once the query has begun is read, whatever ends or begins before its first record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from services.placement.tasks import Layout
from services.worker.task_opener import ActivePlan
from tests.broker_fixture import Topics
from tests.worker_harness import Case, Feed, Reader, Row, Workers, assert_exact, wait_for

QUERY = """
CREATE STREAM l (k BIGINT, n BIGINT, at TIMESTAMP) WITH (topic = '{l}', timestamp = 'at');
CREATE STREAM r (k BIGINT, n BIGINT, at TIMESTAMP) WITH (topic = '{r}', timestamp = 'at');
INSERT INTO '{sink}' SELECT L.n AS l, R.n AS r FROM l L [RANGE 1 SECOND], r R [RANGE 1 SECOND] WHERE L.k = R.k
"""
PARTITIONED = QUERY.rstrip() + "\nPARTITION BY L.k, R.k"
BASE = 1_700_000_000_000
CLOSING: dict[str, Row] = {"l": {"k": -1, "n": -1}, "r": {"k": -2, "n": -1}}


def rows(count: int) -> list[Row]:
    return [{"k": n % 3, "n": n, "at": BASE + 10 * n} for n in range(count)]


@pytest.mark.kafka
@pytest.mark.parametrize(("guarantee", "is_killed"), [("exactly-once", True), ("at-least-once", False)])
def test_what_arrives_while_no_worker_runs_is_read(
    topics: Topics, tmp_path: Path, workers: Workers, guarantee: str, is_killed: bool
) -> None:
    """The first worker of a silent query committed nothing. The next one began at the end of that time, and what had
    arrived between the two was lost without a word."""
    case = Case.make(topics, tmp_path, QUERY)
    feed, reader = Feed(case), Reader(case.bootstrap, case.sink)
    for stream in ("l", "r"):
        feed.raw(stream, orjson.dumps({"k": 1, "n": -7, "at": BASE}))  # before the query begins
    feed.flush()
    options = ("--from", "latest", "--guarantee", guarantee, "--session-timeout", "6s")
    first = workers.start(case, *options).wait_running()
    wait_for(lambda: first.metric("commits_total") > 0, lambda: first.with_log("its start is committed"))
    if is_killed:
        first.kill()
    else:
        assert first.stop() == 0
    for stream in ("l", "r"):
        feed.send(stream, rows(20))
    feed.finish(CLOSING)
    second = workers.start(case, *options).wait_running()
    assert_exact(case, reader, second)
    assert second.stop() == 0


def grow(case: Case, stream: str) -> None:
    """Give the topic of a stream its second partition."""
    admin, topic = AdminClient({"bootstrap.servers": case.bootstrap}), case.topic(stream)
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
    wait_for(lambda: len(admin.list_topics(topic, 5).topics[topic].partitions) == 2, f"{topic} has 2 partitions")
    case.rows[stream].append([])


@pytest.mark.kafka
@pytest.mark.deep
def test_an_added_partition_is_read_from_its_beginning(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """With PARTITION BY it is a task of its own, which has committed nothing: it began at the partition's end, so
    what was there before the worker noticed the partition was lost."""
    case = Case.make(topics, tmp_path, PARTITIONED)
    reader = Reader(case.bootstrap, case.sink)
    worker = workers.start(case, "--from", "latest").wait_running()
    grow(case, "l")
    early = Feed(case)
    early.send("l", rows(20), 1)  # no task reads it before both topics have it
    early.flush()
    grow(case, "r")
    case.partitions = 2
    feed = Feed(case)
    feed.send("r", rows(20), 1)
    feed.flush()
    worker.wait_running([0, 1])
    feed.finish(CLOSING)
    assert_exact(case, reader, worker)
    assert worker.stop() == 0


def test_partitions_were_added_if_the_worker_began_without_them() -> None:
    spec: Any = None
    active = ActivePlan(0, "g", Layout({"l": 3, "r": 3}, True), spec, first_counts={"l": 1, "r": 2})
    lanes = [("l", 0), ("l", 1), ("r", 1), ("r", 2), ("between tasks", 5)]
    assert active.added(lanes) == [("l", 1), ("r", 2)]
