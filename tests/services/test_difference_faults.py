"""A set difference on a real broker: killed at any moment, by snapshot or from the log, its changes come once each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tests import oracle
from tests.broker_fixture import Topics
from tests.worker_harness import Case, Feed, Reader, Row, Workers, wait_for

pytestmark = pytest.mark.kafka

QUERY = """
CREATE STREAM orders (id BIGINT, item STRING, at TIMESTAMP)
  WITH (topic = '{orders}', timestamp = 'at', disorder = '50 MILLISECONDS');
CREATE STREAM paid (id BIGINT, at TIMESTAMP) WITH (topic = '{paid}', timestamp = 'at', disorder = '50 MILLISECONDS');
CREATE STREAM held (id BIGINT, at TIMESTAMP) WITH (topic = '{held}', timestamp = 'at', disorder = '50 MILLISECONDS');
INSERT INTO '{sink}'
SELECT O.id AS id, O.item, O.at AS since FROM orders O [RANGE 800 MILLISECONDS]
EXCEPT paid P [RANGE 500 MILLISECONDS] ON P.id = O.id
EXCEPT held H [RANGE 90 MILLISECONDS] ON H.id = O.id
"""

CLOSING: dict[str, Row] = {"orders": {"id": -1, "item": "-"}, "paid": {"id": -2}, "held": {"id": -3}}

BASE = 1_700_000_000_000


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """Starts workers; kills those that a test leaves behind."""
    started = Workers(tmp_path)
    yield started
    started.end()


def send(feed: Feed, rng: random.Random, start: int, count: int) -> None:
    """Rows every 10 ms, some out of order, some late, over ids that are used again and again."""
    for i in range(start, start + count):
        at = BASE + 10 * i
        for stream in ("orders", "paid", "held"):
            row: Row = {"id": rng.choice([*range(12), None]), "at": at - rng.choice([0, 0, 7, 49, 120])}
            if stream == "orders":
                row["item"] = rng.choice(["a", "b", "ä"])
            elif rng.random() < 0.6:
                continue
            feed.send(stream, [row])
    feed.flush()


def test_killed_and_restarted(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """By snapshot, then from the log alone: what was told is not told again, and what ends meanwhile is told."""
    case = Case.make(topics, tmp_path, QUERY)
    feed, rng = Feed(case), random.Random(9)
    reader = None
    for life, (state, source) in enumerate([("disk", "fresh"), ("disk", "snapshot"), ("empty", "window")]):
        worker = workers.start(case, "--snapshot", "200ms", state=tmp_path / state).wait_running()
        assert f"source={source}" in worker.text(), worker.said("recovery")
        for part in range(3):
            send(feed, rng, 120 * life + 40 * part, 40)
        reader = reader or Reader(case.bootstrap, case.sink)
        seen = worker.metric("results_total")
        wait_for(lambda w=worker, n=seen: w.metric("results_total") > n, worker.said("results"))
        if life == 0:
            wait_for(
                lambda w=worker: w.metric("snapshot_watermark_milliseconds") == case.watermark(),
                worker.said("a snapshot"),
            )
        worker.kill()
    worker = workers.start(case, state=tmp_path / "last")
    feed.finish(CLOSING)
    expected = oracle.results(case.query, case.rows)
    assert reader is not None
    reader.wait_for_count(len(expected), worker._alive)
    assert reader.rows() == expected, worker.said("the changes, in order")
    keys = orjson.loads(reader.records[0].value or b"").keys()
    assert list(keys) == ["id", "O.item", "since", "_op", "_ts"]
    assert worker.stop() == 0
