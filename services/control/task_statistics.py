"""Publishes to the statistics topic, about once a second for each task: its statistics, and how its worker sees it.

The history topic gets the statistics, too, but only every HISTORY_S, so that a day of them is small enough to keep.
Workers use `Publisher`; `observations` reads the topic. Nothing depends on a message, so a lost one is not sent again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from operators.data.statistics import EngineStatistics
from operators.groups.statistics import GroupStatistics
from schemas.messages.control import GroupTaskStatistics, TaskHealth, TaskStatistics
from services.control.control_log import ControlLog
from services.kafka.topics import ControlTopics

HISTORY_S = 30.0
"""How often the history gets the statistics of a task."""


class Publisher:
    """Publishes for the tasks of one worker.

    Args:
        worker: the worker's client id.
    """

    def __init__(self, control: ControlLog, topics: ControlTopics, query: str, tasks: int, worker: str) -> None:
        self._control = control
        self._topics = topics
        self._query = query
        self._tasks = tasks
        self._worker = worker

    def of(self, task: int, incarnation: str) -> Callable[[EngineStatistics, int], None]:
        """The function that one incarnation of a task calls with its engine's statistics and its plan's version."""
        send = self._sender(TaskStatistics, task, incarnation)
        return lambda engine, plan_version: send(engine=engine.document(), plan_version=plan_version)

    def of_group(self, task: int, incarnation: str) -> Callable[[GroupStatistics], None]:
        """The same for a task of a group of queries."""
        send = self._sender(GroupTaskStatistics, task, incarnation)
        return lambda engine: send(engine=engine.document())

    def _sender(
        self, kind: type[TaskStatistics | GroupTaskStatistics], task: int, incarnation: str
    ) -> Callable[..., None]:
        """What publishes the statistics of one incarnation of a task, given the fields that are the kind's own."""
        began, kept_s = time.monotonic(), -HISTORY_S

        def send(**own: Any) -> None:
            nonlocal kept_s
            message = kind(
                query=self._query,
                task=task,
                tasks=self._tasks,
                incarnation=incarnation,
                sent_ms=int(time.time() * 1000),
                seconds=time.monotonic() - began,
                **own,
            )
            self._control.publish(self._topics.statistics, str(task), message)
            if message.seconds >= kept_s + HISTORY_S:
                kept_s = message.seconds
                self._control.publish(self._topics.history, str(task), message)

        return send

    def health(self, task: int, report: Mapping[str, Any]) -> None:
        """Publish how the worker sees a task.

        Args:
            report: the fields of `TaskHealth` that describe the task.
        """
        message = TaskHealth(
            query=self._query,
            task=task,
            worker=self._worker,
            sent_ms=int(time.time() * 1000),
            **report,
        )
        self._control.publish(self._topics.statistics, str(task), message)
