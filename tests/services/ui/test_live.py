"""What is known of a query that runs, from what its tasks and workers publish."""

from __future__ import annotations

import pytest

from schemas.messages.control import Decision, TaskHealth
from services.control.control_log import ControlLog
from services.kafka.topics import ControlTopics, TopicAdmin
from services.process.security import KafkaClients
from services.ui.headline import ABSENT_S
from services.ui.live import LiveQuery
from tests.broker_fixture import Topics
from tests.services.ui.running import BEGIN_MS, Running
from tests.worker_harness import wait_for


def test_rates_are_those_between_two_reports_of_one_incarnation() -> None:
    running = Running()
    for _ in range(4):
        running.second()
    found = running.live.timeline(0)
    assert found["inputs"] == pytest.approx([8000.0, 8000.0], rel=0.01), "later seconds are not complete"
    observed = running.live.snapshot().observations[0]
    assert observed.apart_s == pytest.approx(1.0)
    running.report(0, life="b")
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
    status = {"state": "opening", "problem": "the disk is full", "cut": None, "waits_for": ""}
    running.live.take(TaskHealth(query=running.query.name, task=0, worker="w", sent_ms=BEGIN_MS, status=status))
    found = running.live.snapshot()
    assert found.observations == ()
    assert found.workers == {0: "w"}
    assert found.headline.held == "task 0, which failed: the disk is full"


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
    live = LiveQuery(clients, group, "q").start()
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
        live.close()
