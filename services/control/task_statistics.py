"""Publishes to the statistics topic, about once a second for each task: its statistics, and how its worker sees it.

Workers use `Publisher`; `observations` reads the topic. Nothing depends on a message, so a lost one is not sent again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from operators.data.statistics import EngineStatistics
from schemas.messages.control import TaskHealth, TaskStatistics
from services.control.control_log import ControlLog


class Publisher:
    """Publishes for the tasks of one worker.

    Args:
        worker: the worker's client id.
    """

    def __init__(self, control: ControlLog, topic: str, query: str, tasks: int, worker: str) -> None:
        self._control = control
        self._topic = topic
        self._query = query
        self._tasks = tasks
        self._worker = worker

    def of(self, task: int, incarnation: str) -> Callable[[EngineStatistics, int], None]:
        """The function that one incarnation of a task calls with its engine's statistics and its plan's version."""
        began = time.monotonic()

        def publish(engine: EngineStatistics, plan_version: int) -> None:
            message = TaskStatistics(
                query=self._query,
                task=task,
                tasks=self._tasks,
                life=incarnation,
                sent_ms=int(time.time() * 1000),
                seconds=time.monotonic() - began,
                plan_version=plan_version,
                engine=engine.document(),
            )
            self._control.publish(self._topic, str(task), message)

        return publish

    def health(self, task: int, status: dict[str, Any], step: str, silent: list[tuple[str, int, float]]) -> None:
        """Publish how the worker sees a task; see `TaskHealth`."""
        message = TaskHealth(
            query=self._query,
            task=task,
            worker=self._worker,
            sent_ms=int(time.time() * 1000),
            status=status,
            step=step,
            silent=silent,
        )
        self._control.publish(self._topic, str(task), message)
