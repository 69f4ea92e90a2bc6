"""Groups of queries whose workers, or whose broker, die while queries are added and dropped: every topic is exact."""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from services.kafka.topics import ControlTopics
from tests.broker_fixture import RestartableBroker, Topics
from tests.faults.trial import no_traceback
from tests.group_workers import GroupTrial, select
from tests.services.worker.test_exactly_once import CLOSING, send
from tests.worker_harness import Feed, WorkerProcess, Workers, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

QUICK = ("--session-timeout", "6s")


def flow(feed: Feed, rng: random.Random, part: int) -> None:
    """Send the next piece of the input."""
    send(feed, rng, 100 * part, 100)


class Flow:
    """The input of a trial, in pieces."""

    def __init__(self, feed: Feed, seed: int) -> None:
        self._feed, self._rng, self._parts = feed, random.Random(seed), itertools.count()

    def more(self) -> None:
        """Send the next piece."""
        flow(self._feed, self._rng, next(self._parts))

    def until(self, worker: WorkerProcess, metric: str, least: int) -> None:
        """Send a piece every few seconds until a metric of the worker exceeds a value."""
        sent_s = time.monotonic()

        def reached() -> bool:
            nonlocal sent_s
            if time.monotonic() - sent_s > 5.0:
                self.more()
                sent_s = time.monotonic()
            return worker.metric(metric) > least

        wait_for(reached, lambda: worker.with_log(metric))


def finish(trial: GroupTrial, feed: Feed, worker: WorkerProcess) -> None:
    """Send the rest of the input, and check all outputs."""
    trial.wait_begun(worker)
    feed.finish(CLOSING)
    assert trial.judge(worker) > 1_000


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """Starts workers; those that are left are killed."""
    started = Workers(tmp_path)
    yield started
    started.end()


def test_killed_when_a_change_has_just_been_written(
    topics: Topics, tmp_path: Path, workers: Workers, fault_seed: int
) -> None:
    """kill -9 when a task has written that a query begins or ends, before that is surely committed."""
    trial, rng = GroupTrial.make(topics, tmp_path), random.Random(fault_seed)
    feed = Feed(trial.case)
    trial.register({f"q{n}": select(rng) for n in range(4)})
    log = ControlTopics.of(f"weir-{trial.name}").members
    for number in range(8):
        worker = workers.start(trial.case, *QUICK).wait_running()
        flow(feed, rng, number)
        reader = Consumer(
            {"bootstrap.servers": trial.case.bootstrap, "group.id": "w", "isolation.level": "read_uncommitted"}
        )
        reader.assign([TopicPartition(log, 0, OFFSET_END)])
        reader.poll(1.0)
        if number % 2:
            trial.drop(rng.choice(sorted(trial.selects)).removeprefix(f"{trial.name}-"))
        else:
            trial.register({f"q{4 + number}": select(rng), f"q{rng.randrange(4)}": select(rng)}, from_now=number == 4)
        wait_for(lambda r=reader: r.poll(0.05) is not None, lambda w=worker: w.with_log("a change"))
        worker.kill()
        reader.close()
        no_traceback(worker)
    finish(trial, feed, workers.start(trial.case, *QUICK))


def test_killed_at_random(topics: Topics, tmp_path: Path, workers: Workers, fault_seed: int) -> None:
    """kill -9 at any time, also during start and recovery; two partitions per topic."""
    trial, rng = GroupTrial.make(topics, tmp_path, partitions=2), random.Random(fault_seed + 1)
    feed = Feed(trial.case)
    pieces = Flow(feed, fault_seed + 1)
    trial.register({f"q{n}": select(rng) for n in range(5)})
    for _ in range(10):
        worker = workers.start(trial.case, *QUICK)
        pieces.more()
        trial.register({f"q{rng.randrange(8)}": select(rng)}, from_now=rng.random() < 0.3)
        if rng.random() < 0.7:
            worker.wait_running()
            pieces.until(worker, *rng.choice([("input_tuples_total", rng.randrange(200)), ("commits_total", 0)]))
        else:
            wait_for(lambda w=worker: "task opening" in w.text(), worker.with_log("a start"))
        worker.kill()
        no_traceback(worker)
    finish(trial, feed, workers.start(trial.case, *QUICK))


def test_killed_at_random_within_a_budget(topics: Topics, tmp_path: Path, workers: Workers, fault_seed: int) -> None:
    """kill -9 at any time, while tuples are spilled and pending results are produced, with queries added and dropped
    and with changing budgets."""
    trial, rng = GroupTrial.make(topics, tmp_path), random.Random(fault_seed + 4)
    feed = Feed(trial.case)
    pieces = Flow(feed, fault_seed + 4)
    trial.register({f"q{n}": select(rng, joins=True) for n in range(5)})
    for number in range(10):
        budget = rng.choice(["1KiB", "64KiB", "256KiB"])
        worker = workers.start(trial.case, *QUICK, "--memory", budget)
        pieces.more()
        trial.register({f"q{rng.randrange(8)}": select(rng, joins=True)}, from_now=rng.random() < 0.3)
        if number % 3 == 2:
            trial.drop(rng.choice(sorted(trial.selects)).removeprefix(f"{trial.name}-"))
        if rng.random() < 0.8:
            worker.wait_running()
            # A larger budget would take much more input to fill.
            spilling = [("spills_total", 2), ("cleanup_results_total", 0)] if budget == "1KiB" else []
            pieces.until(worker, *rng.choice([("input_tuples_total", 150), *spilling]))
        else:
            wait_for(lambda w=worker: "task opening" in w.text(), worker.with_log("a start"))
        worker.kill()
        no_traceback(worker)
    finish(trial, feed, workers.start(trial.case, *QUICK, "--memory", "64KiB"))


def test_another_worker_takes_over(topics: Topics, tmp_path: Path, workers: Workers, fault_seed: int) -> None:
    """One worker freezes and resumes, one stops, one is killed, while queries are added and dropped."""
    trial, rng = GroupTrial.make(topics, tmp_path), random.Random(fault_seed + 2)
    feed = Feed(trial.case)
    trial.register({f"q{n}": select(rng) for n in range(5)})
    first = workers.start(trial.case, *QUICK).wait_running()
    second = workers.start(trial.case, *QUICK).wait_running([])
    flow(feed, rng, 0)
    trial.wait_begun(first)
    first.signal(signal.SIGSTOP)
    trial.register({"q5": select(rng), "q0": select(rng)})
    second.wait_running()
    flow(feed, rng, 1)
    trial.drop("q1")
    trial.wait_begun(second)
    first.signal(signal.SIGCONT)
    flow(feed, rng, 2)
    first.wait_running([])
    assert second.stop() == 0
    first.wait_running()
    flow(feed, rng, 3)
    third = workers.start(trial.case, *QUICK).wait_running([])
    trial.register({"q6": select(rng)})
    first.kill()
    third.wait_running()
    flow(feed, rng, 4)
    finish(trial, feed, third)
    for worker in (first, second, third):
        no_traceback(worker)


def test_the_broker_is_restarted(
    restartable_broker: RestartableBroker, tmp_path: Path, workers: Workers, fault_seed: int
) -> None:
    """Workers continue to follow the registry, and the output being written is written once."""
    trial, rng = GroupTrial.make(restartable_broker.topics, tmp_path), random.Random(fault_seed + 3)
    feed = Feed(trial.case)
    trial.register({f"q{n}": select(rng) for n in range(5)})
    worker = workers.start(trial.case).wait_running()
    for part, end in enumerate((restartable_broker.kill, restartable_broker.stop)):
        flow(feed, rng, 2 * part)
        trial.register({f"q{5 + part}": select(rng)})
        end()
        restartable_broker.start()
        trial.register({f"q{part}": select(rng)})
        flow(feed, rng, 2 * part + 1)
        trial.wait_begun(worker)
    finish(trial, feed, worker)
    no_traceback(worker)
