"""Sliding aggregates on a real broker: whatever is killed, the sink holds the oracle's upserts once each, in order."""

from __future__ import annotations

import random
from pathlib import Path

import orjson
import pytest

from tests import oracle
from tests.broker_fixture import Topics
from tests.worker_harness import Case, Feed, Reader, Row, WorkerProcess, Workers, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.unmeasured]

QUERY = """
CREATE STREAM temperature (mote BIGINT, room STRING, celsius DOUBLE, at TIMESTAMP)
  WITH (topic = '{temperature}', timestamp = 'at', disorder = '50 MILLISECONDS');
CREATE STREAM humidity (mote BIGINT, percent DOUBLE, at TIMESTAMP)
  WITH (topic = '{humidity}', timestamp = 'at', disorder = '50 MILLISECONDS');
INSERT INTO '{sink}'
SELECT T.room AS room, COUNT(*) AS n, AVG(T.celsius) AS mean, MAX(H.percent) AS most, MEDIAN(T.celsius) AS middle
FROM temperature T [RANGE 500 MILLISECONDS], humidity H [RANGE 200 MILLISECONDS]
WHERE T.mote = H.mote GROUP BY T.room EMIT EVERY 120 MILLISECONDS
"""

CLOSING: dict[str, Row] = {
    "temperature": {"mote": -1, "room": "-", "celsius": 0.0},
    "humidity": {"mote": -2, "percent": 0.0},
}

BASE = 1_700_000_000_000


def send(feed: Feed, rng: random.Random, start: int, count: int) -> None:
    """Rows every 10 ms, some out of order, some late; now and then a room falls silent until it is forgotten."""
    for i in range(start, start + count):
        for stream in ("temperature", "humidity"):
            row: Row = {"mote": rng.choice([*range(8), None]), "at": BASE + 10 * i - rng.choice([0, 0, 7, 49, 120])}
            if stream == "temperature":
                row |= {"room": rng.choice(["a", "b", None] if i // 60 % 2 else ["b", "ä"])}
                row["celsius"] = rng.choice([None, rng.uniform(-1e3, 1e3)])
            else:
                row["percent"] = rng.uniform(0, 1)
            feed.send(stream, [row])
    feed.flush()


@pytest.mark.deep
def test_killed_between_two_emissions(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Rebuilt by snapshot, then from the log alone, a task knows what it emitted last of each group."""
    case = Case.make(topics, tmp_path, QUERY)
    feed, rng, sent = Feed(case), random.Random(11), 0

    def told(worker: WorkerProcess) -> None:
        """Send until something new has come out."""
        before = worker.metric("results_total")

        def some() -> bool:
            nonlocal sent
            send(feed, rng, sent, 4)
            sent += 4
            return worker.metric("results_total") > before

        wait_for(some, lambda: worker.with_log("emissions"))

    worker = workers.start(case, "--snapshot", "200ms").wait_running()
    told(worker)
    wait_for(
        lambda: worker.metric("snapshot_watermark_milliseconds") == case.watermark(),
        lambda: worker.with_log("a snapshot"),
    )
    told(worker)
    worker.kill()

    worker = workers.start(case).wait_running()
    assert "source=snapshot" in worker.text(), worker.with_log("recovery")
    told(worker)
    worker.kill()

    worker = workers.start(case, state=tmp_path / "empty").wait_running()
    assert "source=window" in worker.text(), worker.with_log("recovery")
    send(feed, rng, sent, 120)
    feed.finish(CLOSING)
    expected = oracle.results(case.query, case.rows)
    reader = Reader(case.bootstrap, case.sink)
    reader.wait_for_count(len(expected), worker.alive)
    assert reader.rows() == expected, worker.with_log("the emissions, in order")
    assert [record.key for record in reader.records] == [orjson.dumps({"room": row["room"]}) for row in expected]
    assert list(orjson.loads(reader.records[0].value or b"")) == ["room", "n", "mean", "most", "middle", "_ts"]
    assert expected[-1]["n"] == 0, "in the end every group is gone"
    assert worker.stop() == 0
