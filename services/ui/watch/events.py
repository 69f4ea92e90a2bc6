"""Notices what happens to the tasks of a query, from what tasks and workers publish: failures, restarts, silent input.

`services.ui.watch.live` calls these functions and keeps what they return in the history of the query.
"""

from __future__ import annotations

from schemas.messages.control import TaskHealth, TaskStatistics
from schemas.timestamps import format_iso
from services.ui.watch.history import Report

MOST_LETTERS = 300
"""The text of a failure is cut after so many."""

SILENT_S = 10.0
"""Partitions that are silent for less are not worth a mark."""

Event = tuple[int, str, str]
"""When it happened, in ms of the wall clock; its kind, `failure`, `restart` or `silence`; and a sentence about it."""


def failure(before: TaskHealth | None, now: TaskHealth) -> Event | None:
    """Return that a task has failed, where its worker tells it for the first time; otherwise None.

    Args:
        before: what a worker has said of the task before; None if nothing.
    """
    problem, since = _problem(now)
    if not since or (before is not None and (problem, since) == _problem(before)):
        return None
    return now.sent_ms, "failure", f"Task {now.task} on {now.worker} failed: {problem[:MOST_LETTERS]}"


def silence(before: TaskHealth | None, now: TaskHealth) -> Event | None:
    """Return that silent partitions have begun, or have ceased, to hold a task's results; otherwise None."""
    held, was = _longest_silence(now), None if before is None else _longest_silence(before)
    if (held is None) == (was is None):
        return None
    if held is None:
        return now.sent_ms, "silence", f"Results of task {now.task} go on"
    topic, partition, seconds = held
    since_ms = now.sent_ms - int(seconds * 1000)
    place, since = f"{topic} partition {partition}", format_iso(since_ms)[11:19]
    return since_ms, "silence", f"Results of task {now.task} wait for {place}, silent since {since}"


def _longest_silence(health: TaskHealth) -> tuple[str, int, float] | None:
    longest = max(health.silent, key=lambda one: one[2], default=None)
    return None if longest is None or longest[2] < SILENT_S else longest


def _problem(health: TaskHealth) -> tuple[str, str]:
    """Return why a task has failed, and since when it has failed; the latter is empty for one that only waits."""
    return str(health.status.get("problem") or ""), str(health.status.get("since") or "")


def restart(before: Report, now: Report, former_worker: str, worker: str) -> Event:
    """Return that an incarnation of a task runs after another one.

    Args:
        before, now: reports of the two.
        former_worker, worker: that ran them; empty where unknown.
    """
    where = f" on {worker}" if worker else ""
    moved = f", before on {former_worker}" if former_worker and former_worker != worker else ""
    # Where each join has tasks of its own, they begin anew with each plan.
    what = "started again" if _plan_version(before) == _plan_version(now) else "began with another plan"
    return now.sent_ms, "restart", f"Task {now.task} {what}{where}{moved}"


def _plan_version(report: Report) -> int:
    return report.plan_version if isinstance(report, TaskStatistics) else 0
