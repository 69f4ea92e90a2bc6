"""What the tasks of a query have measured for the choice of its plan, on the statistics topic.

Each task publishes through a `SurveyPublisher`: the one that decides (`services.program.leader`) by itself, each other
one by its `Surveyor`. `SurveyLog` keeps the newest of the others for the one that decides, and `services.ui.watch.live`
those of all tasks for people. A lost message is made good by the next one.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from confluent_kafka import OFFSET_END

from operators.autopilot.survey import Survey, Surveyed
from operators.engine.engine import Engine
from schemas.errors import StateError, WeirError
from schemas.messages.control import Measured, decode_control
from schemas.query import Query
from services.control.barrier import View
from services.control.control_log import ControlLog
from services.kafka.log_consumer import LogBatch, LogFollower, position_of
from services.process.security import KafkaClients

REPEAT_S = 5.0
"""How often a task publishes its last measurement again, since messages may be lost."""

PATIENCE_S = 6.0
"""How long a task that begins to decide waits for the others' measurements; they repeat them when they see it begin."""

LEADER = 0
"""The task that decides."""

POLL_S = 0.1


class SurveyPublisher:
    """Publishes what one task has measured; used by its thread, between epochs."""

    def __init__(self, engine: Engine, task: int, control: ControlLog, topic: str) -> None:
        self._engine = engine
        self._task = task
        self._control = control
        self._topic = topic
        self._found: Surveyed | None = None
        self._message: Measured | None = None
        self._sent_s = float("-inf")

    def publish(self, found: Surveyed | None, now: float, *, at_once: bool = False) -> None:
        """Publish what has been measured last, if there was no message in the last REPEAT_S.

        Args:
            at_once: even if there was one.
        """
        if found is None or (now - self._sent_s < REPEAT_S and not at_once):
            return
        if self._message is None or found is not self._found:
            survey = replace(found, statistics=self._engine.statistics(links=True)).document()
            self._found, self._message = found, Measured(query=self._engine.query.name, task=self._task, survey=survey)
        self._sent_s = now
        self._control.publish(self._topic, str(self._task), self._message)


class Surveyor:
    """Measures for a task that does not decide; used by its thread, between epochs."""

    def __init__(self, engine: Engine, task: int, control: ControlLog, topic: str) -> None:
        self._survey = Survey(engine)
        self._publisher = SurveyPublisher(engine, task, control, topic)
        self._told: tuple[Surveyed | None, str] = None, ""
        self._version = 0

    def observe(self) -> None:
        """Measure, if that is worth it; called after each epoch."""
        if self._survey.look() is not None:
            self._survey.measure()

    def look(self, view: View, now: float) -> None:
        """Publish what has been measured."""
        if len(view.changes) > self._version:
            self._version = len(view.changes)
            self._survey.changed()
        found, leader = self._survey.found, view.incarnations.get(LEADER, "")
        known = found is self._told[0] and leader == self._told[1]
        self._told = found, leader
        self._publisher.publish(found, now, at_once=not known)

    def close(self) -> None:
        """Do nothing."""


class SurveyLog:
    """The newest measurements of the other tasks.

    Args:
        task: the one that decides.
        tasks: how many there are.
    """

    def __init__(self, clients: KafkaClients, topic: str, query: Query, task: int, tasks: int) -> None:
        self._query = query
        self._task = task
        self._tasks = tasks
        self._complete_s = time.monotonic() + PATIENCE_S
        self._lock = threading.Lock()
        self._newest: dict[int, tuple[Measured, Surveyed]] = {}
        self._found: list[Surveyed] = []
        self._follower = LogFollower(clients, topic, "surveys", self._take, poll_s=POLL_S, begin=OFFSET_END)

    def start(self) -> SurveyLog:
        """Start to read."""
        self._follower.start()
        return self

    def close(self) -> None:
        """Stop reading."""
        self._follower.close()

    def found(self) -> list[Surveyed] | None:
        """What each other task has measured last, in the order of their numbers; None while some may still tell."""
        with self._lock:
            if len(self._newest) < self._tasks - 1 and time.monotonic() < self._complete_s:
                return None
            return self._found

    def _take(self, batch: LogBatch) -> None:
        for record in batch.records:
            try:
                message = decode_control(record.value(), position_of(record))
            except StateError:
                continue  # damaged, or another program's
            if isinstance(message, Measured) and message.task != self._task:
                self.add(message)

    def add(self, message: Measured) -> None:
        """Take a message; a repetition changes nothing, and one about another query is passed over."""
        known = self._newest.get(message.task)
        if message.query != self._query.name or (known is not None and known[0] == message):
            return
        found = read_survey(message, self._query)
        if found is None:
            return
        with self._lock:
            self._newest[message.task] = message, found
            self._found = [found for _, (_, found) in sorted(self._newest.items(), key=lambda one: one[0])]


def read_survey(message: Measured, query: Query) -> Surveyed | None:
    """Return what a task has measured; None if the message is damaged, or about another query of that name."""
    try:
        return Surveyed.from_document(message.survey, query)
    except (KeyError, TypeError, ValueError, WeirError):
        return None
