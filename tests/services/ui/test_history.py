"""The day of statistics that the page goes back in."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.messages.control import TaskStatistics
from services.ui.watch import history
from services.ui.watch.history import APART_MS, KEPT_MS, History


def report(
    sent_ms: int, task: int = 0, incarnation: str = "a", plan_version: int = 0, **engine: Any
) -> TaskStatistics:
    return TaskStatistics(
        query="q",
        task=task,
        tasks=2,
        incarnation=incarnation,
        sent_ms=sent_ms,
        seconds=1.0,
        plan_version=plan_version,
        engine=engine,
    )


def test_a_moment_has_the_last_report_of_each_task_and_the_one_before() -> None:
    kept = History()
    for number in range(5):
        kept.add(report(number * APART_MS))
        kept.add(report(number * APART_MS + 10_000, task=1))
    assert kept.at(2 * APART_MS + 5) == [
        (report(2 * APART_MS), report(APART_MS)),
        (report(APART_MS + 10_000, task=1), report(10_000, task=1)),
    ]
    assert kept.at(-1) == []


def test_reports_come_half_a_minute_apart_unless_a_task_begins_anew() -> None:
    kept = History()
    for second in range(0, 60):
        kept.add(report(second * 1000))
    kept.add(report(60_500, incarnation="b"))
    assert kept.at(59_999) == [(report(30_000), report(0))]
    assert kept.at(60_500) == [(report(60_500, incarnation="b"), None)]


def test_a_change_of_plan_is_shown_at_once() -> None:
    """A reader who went back to just after a change saw the former plan, and doubted the time of the change."""
    kept = History()
    kept.add(report(0))
    kept.add(report(9_000))
    kept.add(report(10_000, plan_version=1))
    kept.add(report(11_000, plan_version=1))
    assert kept.at(9_999) == [(report(0), None)]
    assert kept.at(12_000) == [(report(10_000, plan_version=1), report(0))]


def test_a_task_that_has_not_reported_for_a_while_is_absent() -> None:
    kept = History()
    kept.add(report(0))
    assert kept.at(3 * APART_MS - 1) == [(report(0), None)]
    assert kept.at(3 * APART_MS) == []


def test_a_day_is_kept_and_no_more_bytes_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = History()
    for number in range(KEPT_MS // APART_MS + 10):
        kept.add(report(number * APART_MS))
    assert kept.at(9 * APART_MS) == []
    assert kept.at(10 * APART_MS) == [(report(10 * APART_MS), None)]
    monkeypatch.setattr(history, "KEPT_BYTES", 10_000)
    last = (KEPT_MS // APART_MS + 10) * APART_MS
    kept.add(report(last))
    assert kept._bytes == sum(len(one.body) for one in kept._tasks[0]) <= 10_000
    assert kept.at(last) == [(report(last), report(last - APART_MS))]
