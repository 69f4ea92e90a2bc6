"""What is known of a query that runs, from what its tasks and workers publish."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from operators.data.statistics import SpillStatistics
from schemas.messages.control import COMPUTING, Decision, TaskHealth
from services.control.control_log import ControlLog
from services.kafka.topics import ControlTopics, TopicAdmin
from services.process.security import KafkaClients
from services.ui.watch.follow import QueryFollower
from services.ui.watch.headline import ABSENT_S
from services.ui.watch.live import HELD_S, LiveQuery
from services.ui.watch.timeline import SETTLED_S
from tests.broker_fixture import Topics
from tests.services.ui.running import BEGIN_MS, BUSY, Running
from tests.worker_harness import wait_for


def test_rates_are_those_between_two_reports_of_one_incarnation() -> None:
    running = Running()
    for _ in range(4):
        running.second()
    found = running.live.timeline(0)
    assert found["inputs"] == pytest.approx([8000.0, 8000.0], rel=0.01), "later seconds are not complete"
    observed = running.live.snapshot().observations[0]
    assert observed.apart_s == pytest.approx(1.0)
    running.report(0, incarnation="b")
    assert running.live.snapshot().observations[0].before is None


def test_a_task_that_no_longer_reports_is_missed() -> None:
    running = Running(2)
    running.second()
    for _ in range(int(ABSENT_S) + 2):
        running.second(tasks={0})
    found = running.live.snapshot()
    assert found.expected == 2
    assert [view.number for view in found.views] == [0]
    assert "held by task 1, which no worker runs" in found.headline.text
    running.now_ms += 60_000
    assert "no worker runs this query" in running.live.snapshot().headline.text


def test_the_worker_tells_of_a_task_that_does_not_run_yet() -> None:
    running = Running()
    status = {"state": "opening", "problem": "no space yet", "since": None, "cut": None, "waits_for": "no space yet"}
    running.live.take(TaskHealth(query=running.query.name, task=0, worker="w", sent_ms=BEGIN_MS, status=status))
    found = running.live.snapshot()
    assert found.observations == ()
    assert found.workers == {0: "w"}
    assert found.headline.held == "task 0, which is being opened: no space yet"


def _happened(running: Running) -> list[tuple[int, str, str]]:
    """Return what the history has noticed, once its seconds are complete."""
    running.now_ms += 10_000
    found = [event for row in running.live.timeline()["events"] for event in row]
    running.now_ms -= 10_000
    return found


def test_a_failure_is_noticed_when_it_is_told_for_the_first_time() -> None:
    running = Running()
    running.second(health={0: {"state": "opening", "problem": "opening"}})
    assert _happened(running) == [], "a task that has not failed only waits"
    for _ in range(3):
        running.second(health={0: {"problem": "disk full", "since": "2026-11-29T12:00:01Z"}})
    running.second()
    running.second(health={0: {"problem": "disk full", "since": "2026-11-29T12:00:05Z"}})
    begin_s = BEGIN_MS // 1000
    text = "Task 0 on worker-0 failed: disk full"
    assert _happened(running) == [(begin_s + 1, "failure", text), (begin_s + 5, "failure", text)]


def test_dead_letters_are_counted_now_and_not_known_of_the_past() -> None:
    running = Running()
    for number in range(40):
        running.second()
        health = TaskHealth(
            query=running.query.name, task=0, worker="w", sent_ms=running.now_ms, status={}, dead_letters=number
        )
        running.live.take(health)
    assert [view.dead_letters for view in running.live.snapshot().views] == [39]
    assert [view.dead_letters for view in running.live.past(running.now_ms - 5_000).views] == [None]


def test_silent_input_is_noticed_when_it_begins_and_ends() -> None:
    running = Running()
    for silent in ([], [("t", 1, 4.0)], [("t", 1, 12.0), ("t", 0, 7.0)], [("t", 1, 13.0)], [], []):
        running.second(health={0: {"silent": silent}})
    begin_s = BEGIN_MS // 1000
    assert _happened(running) == [
        (begin_s - 10, "silence", "Results of task 0 wait for t partition 1, silent since 11:59:50"),
        (begin_s + 4, "silence", "Results of task 0 go on"),
    ]


def test_another_incarnation_of_a_task_is_a_restart() -> None:
    running = Running(2)
    running.second()
    running.second()
    assert _happened(running) == []
    running.report(1, incarnation="b")
    assert _happened(running) == [(BEGIN_MS // 1000 + 2, "restart", "Task 1 started again on worker-1")]


def test_a_task_that_another_worker_has_taken_over_says_so() -> None:
    running = Running()
    running.second()
    running.second()
    status = {"task": 0, "state": "recovering"}
    running.live.take(TaskHealth(query=running.query.name, task=0, worker="w2", sent_ms=running.now_ms, status=status))
    running.report(0, incarnation="b")
    ((_, kind, text),) = _happened(running)
    assert (kind, text) == ("restart", "Task 0 started again on w2, before on worker-0")


def test_the_time_of_joins_adds_up_to_what_the_engines_take() -> None:
    running = Running(2)
    for _ in range(6):
        running.second()
    rows = running.live.timeline()["joins"]
    assert [sum(cores for _, cores, *_ in row) for row in rows] == pytest.approx([2 * BUSY] * len(rows), abs=0.001)
    assert {name[0] for _, _, *name in rows[0]} == {"(A B)", "((A B) C)", "(((A B) C) D)"}


def test_the_time_of_joins_is_known_while_plans_change() -> None:
    running = Running()
    for number in range(8):
        if number == 3:
            running.migrate("(((A D) C) B)", "parallel-track")
        running.second()
    found = running.live.timeline()
    rows = found["joins"]
    assert [sum(cores for _, cores, *_ in row) for row in rows] == pytest.approx([BUSY] * len(rows), abs=0.001)
    assert {name[0] for row in rows for _, _, *name in row if name} >= {"(A B)", "(A D)"}


def _computes(running: Running, state: str = "running") -> None:
    """A second in which the task computes an epoch, and only its worker reports."""
    status = {"state": state}
    health = TaskHealth(
        query=running.query.name, task=0, worker="w", sent_ms=running.now_ms, status=status, step=COMPUTING
    )
    running.live.take(health)
    running.now_ms += 1000


def test_the_seconds_of_a_long_epoch_come_when_it_is_over() -> None:
    """Who follows the history gets each second once, so none may come before all that was done in it is known."""
    running, followed = Running(), []
    for number in range(40):
        if 5 <= number < 25:
            _computes(running)
        else:
            running.second()
        found = running.live.timeline(BEGIN_MS // 1000 + len(followed) - 1)
        followed += found["inputs"]
        assert len(followed) <= (4 if number < 25 else number)
    assert followed == running.live.timeline(BEGIN_MS // 1000 - 1)["inputs"]
    assert len(followed) == 38
    assert min(followed) > 0


def test_seconds_are_not_held_back_for_ever_nor_for_a_task_that_recovers() -> None:
    running = Running()
    for _ in range(5):
        running.second()
    for _ in range(2 * HELD_S):
        _computes(running)
    now_s = running.now_ms // 1000
    assert running.live.timeline()["second"][-1] == now_s - HELD_S - SETTLED_S
    _computes(running, "recovering")
    assert running.live.timeline()["second"][-1] == now_s + 1 - SETTLED_S


def test_a_second_of_the_history_is_small() -> None:
    running = Running(4)
    for _ in range(6):
        running.second()
    found = running.live.timeline(BEGIN_MS // 1000)
    row = {name: values[-1:] for name, values in found.items()}
    assert len(json.dumps(row)) < 1000


def test_memory_is_in_the_history_where_there_is_a_budget() -> None:
    running = Running()
    running.second()
    running.report(0, spill=asdict(SpillStatistics("lazy", 100, used_bytes=30)))
    running.now_ms += 4000
    found = running.live.timeline()
    assert found["budget_bytes"] == [0, 100]
    assert found["memory_bytes"] == [0, 30]


def test_messages_about_other_queries_and_of_other_versions_are_passed_over() -> None:
    running = Running()
    status = {"state": "running"}
    running.live.take(TaskHealth(query="another", task=0, worker="w", sent_ms=BEGIN_MS, status=status))
    running.report(0, operators="damaged")
    assert running.live.snapshot().views == ()


@pytest.mark.kafka
def test_it_follows_the_topics_of_a_group(topics: Topics) -> None:
    clients, group = KafkaClients(topics.bootstrap), topics("group")
    names = TopicAdmin(clients).control(group, 1)
    assert names == ControlTopics.of(group)
    live = LiveQuery("q")
    follower = QueryFollower(clients, group, live).start()
    control = ControlLog(clients, names.control, "test").start()
    try:
        now_ms = live.snapshot().now_ms
        control.publish(
            names.statistics,
            "0",
            TaskHealth(query="q", task=0, worker="w", sent_ms=now_ms, status={"state": "recovering"}),
        )
        wait_for(lambda: live.snapshot().views, "the message")
        assert live.snapshot().headline.held == "task 0, which recovers"
        assert live.snapshot().problem == ""
        assert live.snapshot().decisions == {}
        made = Decision(query="q", number=1, adaptation={"made": True}, account={}, first_plan="(L R)")
        control.publish(TopicAdmin(clients).decisions(group, 1), "1", made)
        wait_for(lambda: live.snapshot().decisions, "the decision, whose topic was missing")
    finally:
        control.close()
        follower.close()
