"""Notices what happens to the tasks of a query, from what tasks and workers publish: failures and restarts.

`services.ui.watch.live` calls `failure` and `restart` and keeps what they return in the history of the query.
"""

from __future__ import annotations

from schemas.messages.control import TaskHealth, TaskStatistics
from services.ui.watch.history import Report

MOST_LETTERS = 300
"""The text of a failure is cut after so many."""

Event = tuple[str, str]
"""Its kind, `failure` or `restart`, and a sentence about it."""


def failure(before: TaskHealth | None, now: TaskHealth) -> Event | None:
    """Return that a task has failed, where its worker tells it for the first time; otherwise None.

    Args:
        before: what a worker has said of the task before; None if nothing.
    """
    problem, since = _problem(now)
    if not since or (before is not None and (problem, since) == _problem(before)):
        return None
    return "failure", f"Task {now.task} on {now.worker} failed: {problem[:MOST_LETTERS]}"


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
    same_plan = _plan_version(before) == _plan_version(now)
    return "restart", f"Task {now.task} {'started again' if same_plan else 'began with another plan'}{where}{moved}"


def _plan_version(report: Report) -> int:
    return report.plan_version if isinstance(report, TaskStatistics) else 0
