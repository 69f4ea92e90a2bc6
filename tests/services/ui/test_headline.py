"""The first line about a query: how far results are, and which task or partition holds them back."""

from __future__ import annotations

import pytest

from operators.data.watermark import END
from schemas.messages.control import COMPUTING, DELIVERING
from services.ui.watch.headline import ABSENT_S, TaskView, Tone, duration, headline

NOON = 1_795_953_600_000
"""2026-11-29T12:00:00Z, in ms."""


def task(number: int = 0, behind_ms: int = 3_100, **more: object) -> TaskView:
    known: dict[str, object] = {"cut": NOON - behind_ms, "reported_ms": NOON, "state": "running"}
    return TaskView(number, **{**known, **more})  # type: ignore[arg-type]


def said(*tasks: TaskView, expected: int | None = None, now_ms: int = NOON) -> str:
    return headline(tasks, len(tasks) if expected is None else expected, now_ms).text


def test_where_nothing_holds_results_back_it_says_how_far_they_are() -> None:
    assert said(task()) == "Final up to 11:59:56, 3.1 s behind."
    assert (headline([task()], 1, NOON).tone, headline([task()], 1, NOON).advice) == (Tone.WELL, "")


def test_when_all_sources_have_ended_everything_is_final() -> None:
    assert said(task(cut=END, state="ended")) == "All results are final."


def test_a_silent_partition_is_named() -> None:
    silent = [("humidity", 2, 41.0), ("humidity", 0, 7.0)]
    found = headline([task(), task(1, 60_000, silent=silent)], 2, NOON)
    assert found.reached == "Final up to 11:59:00, 1 min 0 s behind"
    assert found.held == "humidity partition 2 and 1 more, silent for 41.0 s"
    assert "idle_timeout" in found.advice
    assert found.tone is Tone.HELD


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"problem": "disk full", "state": "opening"}, "held by task 1, which failed: disk full"),
        ({"state": "recovering", "waits_for": "9 records"}, "held by task 1, which recovers: 9 records"),
        ({"state": "opening"}, "held by task 1, which is being opened"),
        ({"step": DELIVERING, "step_s": 3.0}, "held by task 1, which has been delivering to Kafka for 3.0 s"),
        ({"step": COMPUTING, "step_s": 65.0}, "held by task 1, which has been computing an epoch for 1 min 5 s"),
        ({"busy": 0.97}, "held by task 1, which takes 97% of a core: input comes faster than it is processed"),
        ({"owed": 1200}, "held by results on disk: at most 1,200 pairs of tuples wait for cleanup"),
    ],
)
def test_the_slowest_task_says_what_holds_it(more: dict[str, object], words: str) -> None:
    assert words in said(task(busy=0.99), task(1, 9_000, **more))


def test_partitions_whose_events_are_older_are_named_once_results_are_far_behind() -> None:
    slowest = [("light", 3), ("light", 4)]
    assert said(task(behind_ms=9_000, slowest=slowest)) == "Final up to 11:59:51, 9.0 s behind."
    assert said(task(behind_ms=11_000, slowest=slowest)) == (
        "Final up to 11:59:49, 11.0 s behind, held by light partition 3 and 1 more, whose events are older than those "
        "of other partitions."
    )


def test_a_task_that_failed_is_told_even_where_another_one_is_slower() -> None:
    assert "task 0, which failed: no space" in said(task(problem="no space"), task(1, 9_000))


def test_a_task_without_a_worker_holds_results() -> None:
    assert "held by task 1, which no worker runs" in said(task(), expected=2)
    gone = task(2, reported_ms=NOON - int(ABSENT_S * 1000) - 1)
    assert "held by tasks 1, 2, which no worker runs" in said(task(), gone, expected=3)
    assert said(gone, expected=1) == "No task has reported for 6.0 s: no worker runs this query."
    assert headline([], 0, NOON).tone is Tone.ILL


def test_old_events_are_not_behind_the_clock() -> None:
    assert said(task(behind_ms=86_400_000 * 400)) == "Final up to 2025-10-25 12:00:00 of event time."
    assert said(task(cut=0)) == "No result is final yet."


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (-3, "0 ms"),
        (40.4, "40 ms"),
        (3_100, "3.1 s"),
        (59_980, "1 min 0 s"),
        (125_000, "2 min 5 s"),
        (11_520_000, "3 h 12 min"),
    ],
)
def test_durations_are_written_for_people(ms: float, text: str) -> None:
    assert duration(ms) == text
