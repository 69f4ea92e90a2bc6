"""Plan changes of a running query on a real broker: exact results whatever strategy, whatever dies meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.control_log import ControlLog
from services.security import KafkaClients
from services.topics import ControlTopics
from tests.broker_fixture import Topics
from tests.worker_harness import Case, Feed, Reader, Row, WorkerProcess, Workers, assert_exact, wait_for

pytestmark = pytest.mark.kafka

THREE = """
CREATE STREAM a (x BIGINT, n BIGINT, at TIMESTAMP)
  WITH (topic = '{a}', format = 'json', timestamp = 'at', disorder = '100 MILLISECONDS');
CREATE STREAM b (x BIGINT, y BIGINT, at TIMESTAMP)
  WITH (topic = '{b}', format = 'json', timestamp = 'at', disorder = '100 MILLISECONDS');
CREATE STREAM c (x BIGINT, y BIGINT, at TIMESTAMP)
  WITH (topic = '{c}', format = 'json', timestamp = 'at', disorder = '100 MILLISECONDS');
INSERT INTO '{sink}'
SELECT A.x AS x, A.n AS n, B.y AS y
FROM a A, b B, c C WINDOW RANGE 400 MILLISECONDS
WHERE A.x = B.x AND B.x = C.x PARTITIONED
"""
ONE_TASK = THREE.replace(" PARTITIONED", "")
PER_PARTITION = THREE.replace("PARTITIONED", "PARTITION BY A.x, B.x, C.x")

CLOSING: dict[str, Row] = {"a": {"x": -1, "n": 0}, "b": {"x": -2, "y": 0}, "c": {"x": -3, "y": 0}}
BASE = 1_700_000_000_000
PLANS = ("((A B) C)", "((B C) A)", "((A C) B)", "(A (B C))")
STEP_MS = 10


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """Starts processes; kills those that a test leaves behind."""
    started = Workers(tmp_path)
    yield started
    started.end()


class Load:
    """Rows that keep coming, a few per look, so that the watermark goes on; keys choose the partition."""

    def __init__(self, case: Case, seed: int = 1) -> None:
        self.case = case
        self.feed = Feed(case)
        self._rng = random.Random(seed)
        self._step = 0
        self.more(100)

    def more(self, steps: int = 5) -> None:
        """So many steps of event time; in each every partition of every stream gets a row."""
        rng, parts = self._rng, self.case.partitions
        for step in range(self._step, self._step + steps):
            for stream in self.case.rows:
                for part in range(parts):
                    at = BASE + STEP_MS * step - rng.choice([0, 0, 30, 90])
                    row = {"x": part + parts * rng.randrange(6), ("n" if stream == "a" else "y"): step, "at": at}
                    self.feed.send(stream, [row], part)
        self._step += steps
        self.feed.flush()

    def until(self, condition: Callable[[], object], what: str, worker: WorkerProcess | None = None) -> None:
        """Keep on until a condition holds."""

        def look() -> object:
            self.more(2)
            return condition()

        wait_for(look, lambda: what if worker is None else worker.said(what))


def log_of(case: Case) -> ControlLog:
    """The query's control topic, to read beside the others."""
    topic = ControlTopics.of(f"weir-{case.sink}").control
    return ControlLog(KafkaClients(case.bootstrap), topic, "test").start()


@pytest.mark.parametrize("strategy", ["jisc", "moving-state"])
def test_a_plan_changes_under_load(topics: Topics, tmp_path: Path, workers: Workers, strategy: str) -> None:
    case = Case.make(topics, tmp_path, ONE_TASK)
    worker = workers.start(case, "--plan", PLANS[0]).wait_running()
    workers.coordinator(case).wait_running()
    load, reader = Load(case), Reader(case.bootstrap, case.sink)
    for version, plan in enumerate(PLANS[1:3], 1):
        asked = workers.migrate(case, plan, strategy, "--wait")
        load.until(asked.ended, "an answer", worker)
        code, out, err = asked.finish()
        assert code == 0, worker.said(err)
        said = out.splitlines()
        assert said[0].startswith(f"plan {version}: {plan} by {strategy}, from 2023-")
        assert said[1].startswith("task 0: changed at ")
        assert "first result after" in said[1]
        assert worker.metric("plan_version") == version
    assert worker.metric("migrations_total") == 2
    load.feed.finish(CLOSING)
    assert_exact(case, reader, worker)
    assert worker.stop() == 0
    assert "changes later than at its cut" not in worker.text()
