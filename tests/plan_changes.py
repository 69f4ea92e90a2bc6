"""A join of three streams under load whose plan can be changed, with its own coordinator if needed."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator

from schemas.errors import WeirError
from services.control.barrier import View
from services.control.control_log import ControlLog
from services.control.coordinator import Coordinator, CoordinatorSettings
from services.control.plan_requests import MigrationProgress, PlanRequest
from services.kafka.topics import ControlTopics
from services.process.security import KafkaClients
from tests.worker_harness import Case, Feed, Reader, Row, WorkerProcess, assert_exact, wait_for

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
STEP_MS = 20


class Load:
    """Sends rows continuously, some at each step, so that the watermark advances; their keys choose the partition."""

    def __init__(self, case: Case, worker: WorkerProcess, *, seed: int = 1, pace_s: float = 0.0) -> None:
        """Args: `pace_s` the least wall-clock time of a step of event time."""
        self.case = case
        self.worker = worker
        self.feed = Feed(case)
        self.reader = Reader(case.bootstrap, case.sink)
        self._rng = random.Random(seed)
        self._step = 0
        self._pace_s = pace_s
        self._next = 0.0
        self.more(30)

    def more(self, steps: int = 1) -> None:
        """Send so many steps of event time; in each step every partition of every stream gets a row."""
        rng, parts = self._rng, self.case.partitions
        for step in range(self._step, self._step + steps):
            for stream in self.case.rows:
                for part in range(parts):
                    at = BASE + STEP_MS * step - rng.choice([0, 0, 30, 90])
                    row = {"x": part + parts * rng.randrange(8), ("n" if stream == "a" else "y"): step, "at": at}
                    self.feed.send(stream, [row], part)
        self._step += steps
        self.feed.flush()

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Send rows until a condition holds."""

        def look() -> object:
            now = time.monotonic()
            if now >= self._next:
                self._next = now + self._pace_s
                self.more()
            return condition()

        wait_for(look, lambda: self.worker.with_log(what))

    def in_a_second(self) -> int:
        """An event time that the input reaches soon."""
        return BASE + STEP_MS * self._step + 1_000

    def end(self) -> None:
        """Close the input, and compare the results with the oracle."""
        self.feed.finish(CLOSING)
        assert_exact(self.case, self.reader, self.worker)


class Control:
    """The query's control topic; the test reads and writes it alongside the workers."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.group = f"weir-{case.sink}"
        self.clients = KafkaClients(case.bootstrap)
        self.log = ControlLog(self.clients, ControlTopics.of(self.group).control, "test").start()

    @property
    def view(self) -> View:
        return self.log.view

    def ask(self, plan: str, strategy: str, *, at: int | None = None, timeout_ms: int = 20_000) -> FollowedRequest:
        """Request another plan, and follow the change."""
        return FollowedRequest(self, plan, strategy, at, timeout_ms)

    @contextlib.contextmanager
    def coordinator(self) -> Iterator[None]:
        """A coordinator in a thread of this process."""
        stop = threading.Event()
        running = Coordinator(self.case.query, CoordinatorSettings(self.clients, self.group))
        thread = threading.Thread(target=running.run, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


class FollowedRequest:
    """A request for another plan, which a thread follows."""

    def __init__(self, control: Control, plan: str, strategy: str, at: int | None, timeout_ms: int) -> None:
        self.seen = MigrationProgress()
        self.error: WeirError | None = None
        request = PlanRequest(control.case.query, control.clients, control.group, self._watch)

        def run() -> None:
            try:
                request.run(plan, strategy, prefer="work", at=at, timeout_ms=timeout_ms, wait=True)
            except WeirError as error:
                self.error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def _watch(self, progress: MigrationProgress) -> None:
        self.seen = progress

    def ended(self) -> bool:
        """Whether every task is done, or the request has failed."""
        return not self._thread.is_alive()

    def decided(self) -> bool:
        """Whether the cut is known."""
        return self.seen.change is not None

    def exact(self) -> MigrationProgress:
        """The outcome, after checking that every task has changed plans at the cut."""
        assert self.error is None, self.error
        assert self.seen.change is not None
        assert self.seen.finished
        cut = self.seen.change.cut
        assert [(s.task, s.began_at, s.exact) for s in self.seen.started] == [
            (task, cut, True) for task in range(self.seen.tasks)
        ]
        return self.seen
