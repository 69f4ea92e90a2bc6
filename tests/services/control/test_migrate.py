"""Plan changes of a running query on a real broker: exact results whatever strategy, whatever dies meanwhile."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from schemas.errors import BrokerError
from schemas.messages.control import Propose
from services.control.plan_requests import Withdrawn
from services.process.fingerprint import fingerprint
from tests.broker_fixture import Topics
from tests.plan_changes import CLOSING, ONE_TASK, PER_PARTITION, PLANS, Control, Load
from tests.worker_harness import Case, Workers, canonical, wait_for

pytestmark = pytest.mark.kafka


def test_the_command_changes_a_plan_under_load(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    case = Case.make(topics, tmp_path, ONE_TASK)
    worker = workers.start(case, "--plan", PLANS[0])
    coordinator = workers.coordinator(case)
    worker.wait_running()
    coordinator.wait_running()
    load = Load(case, worker)
    load.until(load.reader.poll, "a result")
    asked = workers.migrate(case, PLANS[1], "jisc", "--wait")
    load.until(asked.ended, "an answer")
    code, out, err = asked.finish()
    assert code == 0, worker.with_log(err)
    stderr = out.splitlines()
    assert stderr[0].startswith(f"plan 1: {PLANS[1]} by jisc, from 2023-")
    assert stderr[1].startswith("task 0: changed at 2023-")
    assert "first result after" in stderr[1]
    assert worker.metric("plan_version") == 1
    assert worker.metric("migrations_total") == 1
    assert worker.metric("migrations_in_progress") == 0
    assert err == ""
    load.end()
    assert worker.stop() == 0
    coordinator.process.send_signal(signal.SIGTERM)
    assert coordinator.process.wait(30) == 0


@pytest.mark.deep
def test_one_plan_after_another(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Two at once wait in line, before two coordinators; a later worker begins with the last plan."""
    case = Case.make(topics, tmp_path, ONE_TASK)
    worker = workers.start(case, "--plan", PLANS[0]).wait_running()
    load, control = Load(case, worker), Control(case)
    with control.coordinator(), control.coordinator():
        asked = [control.ask(PLANS[1], "moving-state"), control.ask(PLANS[2], "parallel-track")]
        load.until(lambda: all(each.ended() for each in asked), "both are done")
    changes = [each.seen.change for each in asked if each.seen.finished and each.seen.change is not None]
    assert sorted(change.version for change in changes) == [1, 2]
    last = max(changes, key=lambda change: change.version)
    assert worker.stop() == 0
    load.worker = successor = workers.start(case, "--plan", PLANS[0]).wait_running()
    assert f'plan query={case.sink} task=0 version=2 plan="{last.plan}"' in successor.text()
    load.end()


@pytest.mark.deep
def test_a_worker_is_killed_before_and_during_a_migration(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Its successor takes the cut that it had promised; the one that it had taken it takes no more."""
    case = Case.make(topics, tmp_path, ONE_TASK)
    first = workers.start(case, "--plan", PLANS[0]).wait_running()
    load, control = Load(case, first), Control(case)
    with control.coordinator():
        asked = control.ask(PLANS[1], "parallel-track", at=load.in_a_second())
        load.until(asked.decided, "a cut")
        first.kill()
        load.worker = second = workers.start(case, "--plan", PLANS[0]).wait_running()
        load.until(lambda: asked.seen.started, "the change of plans")
        # Committed with the new version, and not done before its window is over.
        load.until(lambda: second.metric("plan_version") == 1 or asked.seen.done, "the new version")
        second.kill()
        load.worker = workers.start(case, "--plan", PLANS[0]).wait_running()
        load.until(asked.ended, "the end of the migration")
    asked.exact()
    load.end()


@pytest.mark.deep
def test_a_plan_changes_where_results_come_at_least_once(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Commits are rare, so that the worker dies with results beyond the cut in the sink and the cut not committed: its
    successor takes the cut again, and no result is missing."""
    case = Case.make(topics, tmp_path, ONE_TASK)
    options = ("--plan", PLANS[0], "--guarantee", "at-least-once", "--commit", "20s")
    first = workers.start(case, *options).wait_running()
    load, control = Load(case, first), Control(case)
    with control.coordinator():
        asked = control.ask(PLANS[1], "moving-state", at=load.in_a_second())
        load.until(lambda: asked.seen.started, "the change of plans")
        assert asked.seen.change is not None
        cut = asked.seen.change.cut
        load.until(lambda: any(row["_ts"] >= cut for row in load.reader.rows()), "a result of the new plan")
        first.kill()
        load.worker = successor = workers.start(case, *options).wait_running()
        assert f": plan query={case.sink}" not in successor.text(), successor.with_log("it begins with the old plan")
        changed = f'plan changed query={case.sink} task=0 version=1 plan="{PLANS[1]}"'
        load.until(lambda: changed in successor.text(), "again")
        load.until(asked.ended, "the end of the migration")
    asked.exact()
    assert f"event_time={cut}" in next(line for line in successor.text().splitlines() if "plan changed" in line)
    load.feed.finish(CLOSING)
    expected = case.expected()
    wait_for(lambda: not expected - canonical(load.reader.rows()), successor.with_log("all results"))
    assert set(canonical(load.reader.rows())) == set(expected)
    assert successor.metric("plan_version") == 1
    assert successor.stop() == 0


@pytest.mark.deep
def test_a_coordinator_is_killed(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Between the proposal and the cut. Its successor decides; nobody has waited for long."""
    case = Case.make(topics, tmp_path, ONE_TASK)
    worker = workers.start(case, "--plan", PLANS[0])
    coordinator = workers.coordinator(case)
    worker.wait_running()
    coordinator.wait_running()
    load, control = Load(case, worker), Control(case)
    worker.signal(signal.SIGSTOP)
    asked = control.ask(PLANS[1], "jisc", timeout_ms=60_000)
    wait_for(lambda: control.view.open is not None, "a proposal")
    coordinator.kill()
    worker.signal(signal.SIGCONT)
    load.until(lambda: len(control.view.answers) == 1, "the task's answer")
    with control.coordinator():
        load.until(asked.ended, "the end of the migration")
    asked.exact()
    load.end()


@pytest.mark.deep
def test_promises_end_without_a_coordinator(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """The coordinator dies for good: the task withdraws the proposal and goes on. What nobody takes up ends too."""
    case = Case.make(topics, tmp_path, ONE_TASK)
    worker = workers.start(case, "--plan", PLANS[0]).wait_running()
    load, control = Load(case, worker), Control(case)
    orphan = Propose(
        id="orphan", plan=PLANS[1], strategy="jisc", fingerprint=fingerprint(case.query), tasks=1, timeout_ms=500
    )
    control.log.append(orphan)
    load.until(lambda: "orphan" in control.view.withdrawn, "a withdrawal")
    assert control.view.withdrawn["orphan"].by == "task 0"
    at = case.watermark()
    load.until(lambda: worker.metric("watermark_milliseconds") >= at, "progress")
    asked = control.ask(PLANS[1], "jisc")
    load.until(asked.ended, "a word that nobody answers")
    assert isinstance(asked.error, BrokerError)
    assert "no coordinator of group" in str(asked.error)
    assert control.view.changes == ()
    load.end()


@pytest.mark.deep
def test_a_task_that_does_not_answer(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """The plan is withdrawn, the others go on; then a rebalance comes between cut and change of plans."""
    case = Case.make(topics, tmp_path, PER_PARTITION, partitions=2)
    one = workers.start(case, "--plan", PLANS[0])
    one.wait_running([0, 1])
    two = workers.start(case, "--plan", PLANS[0])
    wait_for(lambda: len(one.running_tasks()) == len(two.running_tasks()) == 1, lambda: two.with_log("a task each"))
    load, control = Load(case, one), Control(case)
    with control.coordinator():
        two.signal(signal.SIGSTOP)
        asked = control.ask(PLANS[1], "jisc", timeout_ms=1_500)
        load.until(asked.ended, "a withdrawal")
        assert isinstance(asked.error, Withdrawn)
        assert "of 2 tasks did not answer within 1.5 s" in str(asked.error)
        two.signal(signal.SIGCONT)
        asked = control.ask(PLANS[2], "moving-state", at=load.in_a_second())
        load.until(asked.decided, "a cut")
        assert two.stop() == 0
        load.until(asked.ended, "the end of the migration")
    asked.exact()
    load.end()


def test_a_plan_that_cannot_be(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Before anything runs, and where the query of who asks is another one."""
    case = Case.make(topics, tmp_path, ONE_TASK)
    expected = [
        (("((A B) D)", "jisc"), 2, "unknown alias 'D'; the query has A, B, C"),
        (("((A B) C)", "quickly"), 2, "unknown migration strategy 'quickly'; there are"),
        (("((A B) C)", "jisc", "--at", "noon"), 2, "--at: 'noon' is not of the form"),
        (("((A B) C)", "jisc", "--at", "-5"), 2, "--at: the event time '-5' is before 1970"),
        (("((A B) C)", "jisc"), 1, f"no worker of group 'weir-{case.sink}' has ever run"),
    ]
    for asked, code, stderr in [(workers.migrate(case, *options), code, stderr) for options, code, stderr in expected]:
        assert asked.process.wait(60) == code
        assert stderr in asked.finish()[2]
