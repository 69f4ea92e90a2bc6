"""Twenty plan changes by every strategy under load, workers and coordinator killed at random steps: exact output."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from operators.migration.strategies import AUTO, STRATEGIES
from schemas.errors import BrokerError
from services.control.plan_requests import Withdrawn
from tests.broker_fixture import Topics
from tests.plan_changes import PER_PARTITION, PLANS, Control, FollowedRequest, Load
from tests.worker_harness import Case, CoordinatorProcess, WorkerProcess, Workers, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

CHANGES = 20
PACE_S = 0.1

STEPS: tuple[Callable[[Control, FollowedRequest], object], ...] = (
    lambda control, asked: True,
    lambda control, asked: control.view.open,
    lambda control, asked: control.view.answers,
    lambda control, asked: asked.decided(),
    lambda control, asked: asked.seen.started,
    lambda control, asked: asked.seen.done,
)
"""The progress of a migration at which a fault happens."""


class Service:
    """Two workers with a task each, and a coordinator."""

    def __init__(self, workers: Workers, case: Case) -> None:
        self._start = workers
        self.case = case
        self.workers: list[WorkerProcess] = [self.worker(0), self.worker(1)]
        self.leader: CoordinatorProcess = workers.coordinator(case)
        first = self.workers[0]
        wait_for(lambda: all(worker.running_tasks() for worker in self.workers), first.with_log("a task each"))
        self.leader.wait_running()

    def worker(self, plan: int) -> WorkerProcess:
        return self._start.start(self.case, "--plan", PLANS[plan])

    def hit(self, rng: random.Random) -> str:
        """Kill one process and restart it; returns which."""
        if rng.random() < 0.4:
            self.leader.kill()
            self.leader = self._start.coordinator(self.case)
            return "coordinator"
        which = rng.randrange(2)
        self.workers[which].kill()
        self.workers[which] = self.worker(rng.randrange(len(PLANS)))
        return f"worker {which}"


@pytest.mark.parametrize("strategy", [AUTO, *STRATEGIES])
def test_twenty_changes(topics: Topics, tmp_path: Path, strategy: str) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rng = random.Random(seed)
    workers = Workers(tmp_path)
    try:
        case = Case.make(topics, tmp_path, PER_PARTITION, partitions=2)
        service = Service(workers, case)
        load, control = Load(case, service.workers[0], pace_s=PACE_S), Control(case)
        faults: list[str] = []
        withdrawn = 0
        while len(control.view.changes) < CHANGES:
            asked = control.ask(rng.choice(PLANS), strategy)
            if rng.random() < 0.6:
                step = rng.randrange(len(STEPS))
                load.until(lambda step=step, asked=asked: asked.ended() or STEPS[step](control, asked), "a step")
                faults.append(f"{service.hit(rng)} at step {step}")
                load.worker = service.workers[0]
            load.until(asked.ended, "the end of a change")
            if asked.error is not None:
                assert isinstance(asked.error, Withdrawn | BrokerError), asked.error
                withdrawn += 1
        print(f"{len(control.view.changes)} changes, {withdrawn} withdrawn; {len(faults)} faults: {', '.join(faults)}")
        load.end()
    finally:
        workers.end()
