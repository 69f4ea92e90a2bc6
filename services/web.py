"""The worker's pages: /metrics for Prometheus, /healthz for whoever restarts sick workers."""

from __future__ import annotations

from typing import Any

from services.metrics import WorkerMetrics
from services.roster import Roster, Seat


def add_pages(app: Any, roster: Roster, metrics: WorkerMetrics, query: str) -> None:
    """Add them to a Faust app."""

    @app.page("/metrics")  # type: ignore[untyped-decorator]
    async def metrics_page(view: Any, request: Any) -> Any:
        return view.bytes(metrics.page(), content_type="text/plain; version=0.0.4")

    @app.page("/healthz")  # type: ignore[untyped-decorator]
    async def health_page(view: Any, request: Any) -> Any:
        illness = roster.illness()
        tasks = [seen(seat) for seat in roster.seats()]
        body = {"status": "ill" if illness else "ok", "query": query, "tasks": tasks, "problem": illness}
        return view.json(body, status=503 if illness else 200)


def seen(seat: Seat) -> dict[str, Any]:
    """What is told of a task; `problem` too while it runs, until it has come further than where it failed."""
    task, trouble = seat.task, seat.look()
    return {
        "task": seat.number,
        **({} if task is None or task.spec.part is None else {"operator": task.spec.part.name}),
        "state": _state(task),
        "cut": task.cut if task else None,
        "problem": seat.problem if trouble is None else trouble.reason,
        "since": None if trouble is None else trouble.since,
        "failures": 0 if trouble is None else trouble.failures,
    }


def _state(task: Any) -> str:
    if task is None:
        return "opening"
    if task.outcome is not None:
        return "ended"
    return "running" if task.running else "recovering"
