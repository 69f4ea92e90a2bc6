"""Workers of one group that join, leave, are killed and freeze, while records flow."""

from __future__ import annotations

import signal

import pytest

from tests.faults.conftest import MakeTrial
from tests.faults.trial import logged_once, no_traceback
from tests.faults.workload import PARTITIONED, workload

pytestmark = pytest.mark.kafka

SHORT = ("--session-timeout", "6s")
"""Kafka's least session timeout: how long the group waits for a member that disappeared without leaving."""


def test_partitions_move_between_workers(make_trial: MakeTrial, fault_seed: int) -> None:
    """One worker, two, one left gracefully, a third, one killed: some worker runs each of the four tasks at any
    time."""
    trial = make_trial(workload(fault_seed, 900, 4, by_key=True), text=PARTITIONED)
    trial.send(0.1)
    first = trial.start(*SHORT).wait_running([0, 1, 2, 3])
    second = trial.start(*SHORT)

    def shared(*workers: object) -> bool:
        tasks = [worker.running_tasks() for worker in (first, second)]
        return tasks[0] | tasks[1] == {0, 1, 2, 3} and len(tasks[0]) == len(tasks[1]) == 2

    trial.wait(shared, "the second worker has half of the tasks", second, flow=0.3)
    assert first.stop() == 0, first.with_log("stop")
    trial.wait(lambda: second.running_tasks() == {0, 1, 2, 3}, "the second worker has all tasks", second, flow=0.5)
    first = trial.start(*SHORT)
    trial.wait(shared, "the third worker has half of the tasks", first, flow=0.7)
    second.kill()
    trial.wait(lambda: first.running_tasks() == {0, 1, 2, 3}, "the third worker has all", first, flow=0.9)
    trial.finish(first)
    for worker in (first, second):
        no_traceback(worker)


def test_worker_that_stood_still_is_fenced(make_trial: MakeTrial, fault_seed: int) -> None:
    """SIGSTOP within a transaction, beyond the session timeout: the next incarnation continues from the last commit,
    and the half epoch of the resumed worker never becomes visible. It logs why it dropped its task, unless the group
    tells it first that another worker has the task."""
    trial = make_trial(workload(fault_seed, 700, 2))
    zombie = trial.start(*SHORT, state=trial.folder / "zombie").wait_running()
    trial.pause_within_transaction(zombie, flow=0.7)
    successor = trial.start(*SHORT, state=trial.folder / "successor").wait_running()
    assert trial.open_records() == 0, "the successor has taken over and the zombie's transaction is still open"
    trial.send(0.8)
    trial.wait_caught_up(successor)
    zombie.signal(signal.SIGCONT)
    trial.wait(
        lambda: "task dropped" in zombie.text() or "re-joining group" in zombie.text(),
        "the zombie learns what it missed",
        zombie,
        flow=0.9,
    )
    trial.finish(successor, zombie)
    if "task dropped" in zombie.text():
        logged_once(zombie, "warning weir.tasks: task dropped: another worker has taken it over")
    assert "task dropped" not in successor.text(), successor.with_log("the zombie fenced the successor")
    no_traceback(zombie)


def test_worker_that_stood_still_alone_goes_on(make_trial: MakeTrial, fault_seed: int) -> None:
    """SIGSTOP within a transaction until Kafka has aborted it, without another worker: back to the last commit."""
    trial = make_trial(workload(fault_seed, 700, 2))
    worker = trial.start("--transaction-timeout", "1s").wait_running()
    trial.pause_within_transaction(worker, flow=0.7)
    trial.wait(lambda: trial.open_records() == 0, "Kafka aborts the transaction")
    worker.signal(signal.SIGCONT)
    trial.finish(worker)
    # Records in flight when it was frozen may be given up before Kafka reports that the transaction is gone.
    logged_once(
        worker,
        "warning weir.tasks: task (dropped: .* stood still beyond its transaction timeout"
        "|goes back to its last commit .*message.s. timed out)",
    )
    no_traceback(worker)


def test_worker_killed_within_a_transaction_beside_another(make_trial: MakeTrial, fault_seed: int) -> None:
    """A query is one task: a second worker stands by, and takes over when the first is killed."""
    trial = make_trial(workload(fault_seed, 700, 3))
    first = trial.start(*SHORT).wait_running()
    second = trial.start(*SHORT)
    trial.wait(lambda: second.health().get("status") == "ok", "the second worker stands by", second, flow=0.2)
    trial.wait(lambda: len(first.running_tasks()) + len(second.running_tasks()) == 1, "one of them works", first)
    active, standby = (first, second) if first.running_tasks() else (second, first)
    trial.pause_within_transaction(active, flow=0.8)
    active.kill()
    trial.wait(lambda: standby.running_tasks() == {0}, "the other has taken over", standby, flow=0.9)
    trial.finish(standby)
    no_traceback(standby)
