"""A set difference on a real broker: whatever is killed, the sink holds its changes once each, in order."""

from __future__ import annotations

import random
from pathlib import Path

import orjson
import pytest

from tests import oracle
from tests.broker_fixture import Topics
from tests.plan_changes import Control
from tests.worker_harness import Case, Feed, Reader, Row, WorkerProcess, Workers, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.unmeasured]

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


@pytest.mark.deep
def test_killed_while_the_order_changes(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """By snapshot, then from the log alone: what was told is not told again, and what ends meanwhile is told."""
    case = Case.make(topics, tmp_path, QUERY)
    feed, rng, sent = Feed(case), random.Random(9), 0

    def more(count: int) -> None:
        nonlocal sent
        send(feed, rng, sent, count)
        sent += count

    def told(worker: WorkerProcess) -> None:
        """Send until something new has come out."""
        before = worker.metric("results_total")

        def some() -> bool:
            more(10)
            return worker.metric("results_total") > before

        wait_for(some, lambda: worker.with_log("results"))

    worker = workers.start(case, "--plan", "((O P) H)", "--snapshot", "200ms").wait_running()
    told(worker)
    wait_for(
        lambda: worker.metric("snapshot_watermark_milliseconds") == case.watermark(),
        lambda: worker.with_log("a snapshot"),
    )
    told(worker)
    worker.kill()

    worker = workers.start(case, "--plan", "((O P) H)").wait_running()
    assert "source=snapshot" in worker.text(), worker.with_log("recovery")
    control = Control(case)
    with control.coordinator():
        asked = control.ask("((O H) P)", "jisc")

        def ended() -> bool:
            more(5)
            return asked.ended()

        wait_for(ended, lambda: worker.with_log("the end of the migration"))
    asked.exact()
    told(worker)
    worker.kill()

    worker = workers.start(case, "--plan", "((O P) H)", state=tmp_path / "empty").wait_running()
    assert "source=window" in worker.text(), worker.with_log("recovery")
    assert 'plan="((O H) P)"' in worker.text(), worker.with_log("the plan")
    more(50)
    feed.finish(CLOSING)
    expected = oracle.results(case.query, case.rows)
    reader = Reader(case.bootstrap, case.sink)
    reader.wait_for_count(len(expected), worker.alive)
    assert reader.rows() == expected, worker.with_log("the changes, in order")
    assert list(orjson.loads(reader.records[0].value or b"")) == ["id", "O.item", "since", "_op", "_ts"]
    assert worker.stop() == 0
