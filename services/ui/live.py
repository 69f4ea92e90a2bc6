"""Follows a running query through its topics: the newest statistics of each task, and a history by the second.

Entry: `LiveQuery`. Kafka keeps what tasks publish for ten minutes, so that much history is there at once; from then on
it grows for as long as the process runs.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from operators.data.statistics import EngineStatistics
from operators.explain.analyze import Observation
from schemas.errors import BrokerError, DataError, StateError
from schemas.messages.control import Decision, TaskHealth, TaskStatistics, decode_control
from services.kafka.log_consumer import LogBatch, LogFollower, position_of
from services.kafka.topics import ControlTopics, TopicAdmin
from services.process.security import KafkaClients
from services.ui.headline import ABSENT_S, Headline, TaskView, headline
from services.ui.timeline import Gain, Gauges, Timeline

POLL_S = 0.2

LOOK_S = 5.0
"""How often the topic of decisions is looked for while it is missing."""


@dataclass(slots=True)
class _Task:
    latest: tuple[TaskStatistics, EngineStatistics] | None = None
    before: tuple[TaskStatistics, EngineStatistics] | None = None
    health: TaskHealth | None = None
    busy: float | None = None

    @property
    def reported_ms(self) -> int:
        """When it or its worker reported last."""
        sent = [message.sent_ms for message in (self.health, self.latest and self.latest[0]) if message]
        return max(sent, default=0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known at one moment.

    Attributes:
        now_ms: the wall clock.
        observations: of the tasks that have reported statistics lately, by number.
        views: of the tasks that they or their workers have reported lately.
        workers: by task, the client id of its worker.
        expected: how many tasks the query has; 0 while unknown.
        decisions: changes of plans that were weighed, by number.
        problem: why nothing can be read from Kafka now; empty if it can.
    """

    now_ms: int
    observations: tuple[Observation, ...]
    views: tuple[TaskView, ...]
    workers: Mapping[int, str]
    expected: int
    decisions: Mapping[int, dict[str, Any]]
    problem: str

    @property
    def headline(self) -> Headline:
        """How far results are, and what holds them back."""
        return headline(self.views, self.expected, self.now_ms)


class LiveQuery:
    """One query. Methods may be called from any thread.

    Args:
        name: the query's name; messages about others are passed over.
        clock_ms: the wall clock.
    """

    def __init__(
        self,
        clients: KafkaClients,
        group: str,
        name: str,
        clock_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._name = name
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._tasks: dict[int, _Task] = {}
        self._decisions: dict[int, dict[str, Any]] = {}
        self._problem = ""
        self._timeline = Timeline()
        self._second = 0
        self._clients = clients
        self._topics = topics = ControlTopics.of(group)
        self._followers = [LogFollower(clients, topics.statistics, "statistics", self._follow, poll_s=POLL_S)]
        self._looks_s = 0.0

    def start(self) -> LiveQuery:
        """Start to read."""
        for follower in self._followers:
            follower.start()
        return self

    def close(self) -> None:
        """Stop reading."""
        # The first one's thread starts the second one.
        for follower in self._followers:
            follower.close()

    def snapshot(self) -> Snapshot:
        """Return what is known now."""
        now_ms = self._clock_ms()
        with self._lock:
            lately = {
                number: task
                for number, task in sorted(self._tasks.items())
                if now_ms - task.reported_ms <= ABSENT_S * 1000
            }
            tasks = lately or dict(sorted(self._tasks.items()))
            newest = max((task.latest[0] for task in tasks.values() if task.latest), key=_sent, default=None)
            expected = max(newest.tasks if newest else 0, max(lately, default=-1) + 1)
            observations = [_observation(n, task) for n, task in lately.items() if n < expected]
            return Snapshot(
                now_ms,
                tuple(one for one in observations if one is not None),
                tuple(_view(n, task) for n, task in tasks.items() if n < expected),
                {n: task.health.worker for n, task in lately.items() if task.health is not None},
                expected,
                dict(sorted(self._decisions.items())),
                self._problem,
            )

    def timeline(self, since: int = 0, most: int = 0) -> dict[str, list[float]]:
        """Return the seconds after `since` as columns; see `Timeline.columns`."""
        with self._lock:
            return self._timeline.columns(since, self._clock_ms() // 1000, most)

    def take(self, message: TaskStatistics | TaskHealth | Decision) -> None:
        """Take a message. One about another query changes nothing."""
        if message.query != self._name:
            return
        with self._lock:
            if isinstance(message, Decision):
                self._decisions[message.number] = message.adaptation
                return
            task = self._tasks.setdefault(message.task, _Task())
            if isinstance(message, TaskHealth):
                task.health = message
            else:
                self._report(task, message)

    def _report(self, task: _Task, message: TaskStatistics) -> None:
        """Take the statistics of a task, and compare them with its report before."""
        try:
            latest = EngineStatistics.from_document(message.engine)
        except DataError:
            return  # another version's
        before, task.latest, task.before = task.latest, (message, latest), None
        if before is not None and before[0].life == message.life:
            task.before = before
            seconds, then = message.seconds - before[0].seconds, before[1]
            if seconds > 0:
                task.busy = (latest.busy_s - then.busy_s) / seconds
                self._timeline.add(
                    Gain(
                        before[0].sent_ms,
                        message.sent_ms,
                        latest.input_tuples - then.input_tuples,
                        latest.results - then.results,
                        latest.late - then.late,
                        latest.busy_s - then.busy_s,
                    )
                )
        second = message.sent_ms // 1000
        if second != self._second:
            self._second = second
            since_ms = message.sent_ms - ABSENT_S * 1000
            self._timeline.set(message.sent_ms, [_gauges(t) for t in self._tasks.values() if t.reported_ms >= since_ms])

    def _follow(self, batch: LogBatch) -> None:
        self._problem = batch.problem
        self._take(batch)
        if len(self._followers) == 1 and time.monotonic() >= self._looks_s:
            self._follow_decisions()

    def _follow_decisions(self) -> None:
        """Follow the decisions, too, once their topic is there: no worker may ever adapt the plan."""
        self._looks_s = time.monotonic() + LOOK_S
        topic = self._topics.decisions
        with contextlib.suppress(BrokerError):
            if TopicAdmin(self._clients).exists(topic) and not self._followers[0].stopped:
                self._followers.append(LogFollower(self._clients, topic, "decisions", self._take, poll_s=POLL_S))
                self._followers[-1].start()

    def _take(self, batch: LogBatch) -> None:
        for record in batch.records:
            try:
                message = decode_control(record.value(), position_of(record))
            except StateError:
                continue  # damaged, or another program's
            if isinstance(message, TaskStatistics | TaskHealth | Decision):
                self.take(message)


def _sent(message: TaskStatistics) -> int:
    return message.sent_ms


def _gauges(task: _Task) -> Gauges:
    if task.latest is None:
        return Gauges(0, 0, 0, 0)
    latest = task.latest[1]
    owed = 0 if latest.spill is None else latest.spill.owed
    return Gauges(latest.cut, latest.pending_tuples, latest.state_bytes, owed)


def _observation(number: int, task: _Task) -> Observation | None:
    if task.latest is None:
        return None
    message, latest = task.latest
    then = None if task.before is None else task.before[1]
    apart_s = 0.0 if task.before is None else message.seconds - task.before[0].seconds
    return Observation(number, latest, then, apart_s, message.plan_version)


def _view(number: int, task: _Task) -> TaskView:
    status: dict[str, Any] = {} if task.health is None else task.health.status
    latest = None if task.latest is None else task.latest[1]
    return TaskView(
        number,
        latest.cut if latest else int(status.get("cut") or 0),
        task.reported_ms,
        str(status.get("state", "")),
        str(status.get("problem", "")),
        str(status.get("waits_for", "")),
        () if task.health is None else tuple(task.health.silent),
        task.busy,
        latest.pending_tuples if latest else 0,
        latest.spill.owed if latest and latest.spill else 0,
    )
