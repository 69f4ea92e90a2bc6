"""Workers that end without warning: kill -9 at random points, with their disk intact, lost or shared."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.faults.conftest import MakeTrial
from tests.faults.trial import Trial, no_traceback
from tests.faults.workload import workload
from tests.worker_harness import WorkerProcess

pytestmark = pytest.mark.kafka

Reached = Callable[[], bool]
Moment = Callable[[Trial, WorkerProcess, random.Random], AbstractContextManager[Reached]]
"""Prepares a condition; the worker is killed when it holds."""


@contextmanager
def some_time_after_start(trial: Trial, worker: WorkerProcess, rng: random.Random) -> Iterator[Reached]:
    """At any time from the import of modules to the first epochs."""
    at = time.monotonic() + rng.uniform(0.2, 6.0)
    yield lambda: time.monotonic() >= at


@contextmanager
def some_time_after_running(trial: Trial, worker: WorkerProcess, rng: random.Random) -> Iterator[Reached]:
    """At any time in the flow of epochs."""
    pause, since = rng.uniform(0.0, 1.0), [0.0]

    def reached() -> bool:
        if not since[0] and "task running" in worker.text():
            since[0] = time.monotonic()
        return since[0] > 0 and time.monotonic() - since[0] >= pause

    yield reached


@contextmanager
def while_recovering(trial: Trial, worker: WorkerProcess, rng: random.Random) -> Iterator[Reached]:
    """Between the takeover of the task and the end of its recovery."""
    line = rng.choice(["worker starting", "task opening", "task running"])
    yield lambda: line in worker.text()


@contextmanager
def within_a_transaction(trial: Trial, worker: WorkerProcess, rng: random.Random) -> Iterator[Reached]:
    """Results of an epoch are in the log, but its commit is not: the critical instant of exactly-once delivery."""
    topic = rng.choice([trial.sink, f"{trial.sink}.late", f"{trial.sink}.dead"])
    with trial.watch(topic) as appeared:
        yield lambda: appeared(0.05)


@contextmanager
def after_some_commits(trial: Trial, worker: WorkerProcess, rng: random.Random) -> Iterator[Reached]:
    """When a random number of records has been committed."""
    least = trial.taken() + rng.randrange(1, 200)
    yield lambda: trial.taken() >= least


@contextmanager
def while_writing_a_snapshot(trial: Trial, worker: WorkerProcess, rng: random.Random) -> Iterator[Reached]:
    """As soon as the state folder's tables change."""

    def tables() -> set[Path]:
        return set(trial.folder.glob("state/**/*.sst"))

    before = tables()
    yield lambda: bool(tables() - before)


MOMENTS: tuple[Moment, ...] = (
    some_time_after_start,
    some_time_after_running,
    while_recovering,
    within_a_transaction,
    within_a_transaction,
    after_some_commits,
    while_writing_a_snapshot,
)


def kill_again_and_again(trial: Trial, kills: int, rng: random.Random) -> set[str]:
    """Records flow while workers are killed one after the other; returns the ways in which they recovered."""
    sources: set[str] = set()
    moments = [moment for _ in range(kills) for moment in rng.sample(MOMENTS, len(MOMENTS))]
    for number in range(kills):
        share = (number + 1) / (kills + 1)
        worker = trial.start("--snapshot", "200ms", "--epoch", "20ms")
        moment = moments[number]
        print(f"incarnation {number}: {moment.__name__}, {trial.sent} records sent, {trial.taken()} committed")
        every = round(share * len(trial.workload.records))
        with moment(trial, worker, rng) as reached:

            def over(reached: Reached = reached, every: int = every) -> bool:
                return reached() or (trial.sent >= every and trial.caught_up())

            trial.wait(over, moment.__name__, worker, flow=share)
            worker.kill()
        print(f"  killed with {trial.open_records()} records in an open transaction")
        no_traceback(worker)
        sources |= {source for source in ("fresh", "snapshot", "window") if f"source={source}" in worker.text()}
    return sources


def test_killed_at_five_random_points(make_trial: MakeTrial, fault_seed: int) -> None:
    """kill -9 five times while records flow: the outputs equal the oracle's, each result once."""
    trial = make_trial(workload(fault_seed, 700, 2))
    kill_again_and_again(trial, 5, random.Random(fault_seed))
    trial.finish(trial.start())


@pytest.mark.slow
@pytest.mark.parametrize("run", range(3))
def test_killed_at_twenty_random_points(make_trial: MakeTrial, fault_seed: int, run: int) -> None:
    """The same with twenty kills and more records; every way of recovery occurs."""
    seed = fault_seed + 1 + run
    trial = make_trial(workload(seed, 5000, 3))
    assert kill_again_and_again(trial, 20, random.Random(seed)) >= {"snapshot"}
    trial.finish(trial.start())


def test_state_folder_deleted_between_incarnations(make_trial: MakeTrial, fault_seed: int) -> None:
    """Without its disk a worker reads the windows again from the input topics."""
    trial = make_trial(workload(fault_seed, 700, 2))
    trial.send(0.4)
    first = trial.start("--session-timeout", "6s", "--snapshot", "200ms")
    trial.wait_taken(round(0.3 * len(trial.workload.records)), first)
    first.kill()
    shutil.rmtree(trial.folder / "state")
    second = trial.start("--session-timeout", "6s").wait_running()
    assert "source=window" in second.text(), second.with_log("recovery")
    assert second.metric("replayed_tuples_total") > 0
    trial.finish(second)


def test_state_folder_deleted_under_a_running_worker(make_trial: MakeTrial, fault_seed: int) -> None:
    """Results never depend on the disk; the next incarnation recovers without the deleted files."""
    trial = make_trial(workload(fault_seed, 700, 2))
    trial.send(0.3)
    first = trial.start("--session-timeout", "6s", "--snapshot", "200ms")
    trial.wait(lambda: any(trial.folder.glob("state/**/*.sst")), "a snapshot", first)
    state = trial.folder / "state"
    while state.exists():  # the worker makes and deletes files meanwhile
        shutil.rmtree(state, ignore_errors=True)
    trial.send(0.6)
    trial.wait_caught_up(first)
    first.kill()
    second = trial.start("--session-timeout", "6s")
    trial.finish(second)


def test_at_least_once_has_every_result(make_trial: MakeTrial, fault_seed: int) -> None:
    """A worker is killed twice. At-least-once delivery repeats some results and rejected records, but loses and invents
    none."""
    trial = make_trial(workload(fault_seed, 700, 2))
    options = ("--guarantee", "at-least-once", "--commit", "300ms")
    for share in (0.3, 0.6):
        worker = trial.start(*options)
        least = round((share - 0.2) * len(trial.workload.records))
        trial.wait(lambda least=least: trial.taken() >= least, f"{least} are committed", worker, flow=share)
        worker.kill()
    worker = trial.start(*options)
    trial.send()
    trial.wait_caught_up(worker)
    assert worker.stop() == 0
    trial.check(at_least_once=True)
