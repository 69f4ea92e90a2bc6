"""Publishes the statistics of running tasks to the statistics topic, about once a second each.

Workers use `Publisher`; `observations` reads the topic. Nothing depends on a message, so a lost one is not sent again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from operators.data.statistics import EngineStatistics
from schemas.messages.control import TaskStatistics
from services.control.control_log import ControlLog


class Publisher:
    """Publishes for the tasks of one worker."""

    def __init__(self, control: ControlLog, topic: str, query: str, tasks: int) -> None:
        self._control = control
        self._topic = topic
        self._query = query
        self._tasks = tasks

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
