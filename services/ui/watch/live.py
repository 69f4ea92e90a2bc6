"""Keeps what is known of a running query, or of a group of queries: each task's newest report, and the history.

Entry: `LiveQuery`, which takes messages. `follow` reads them from Kafka, `services.ui.file_run` makes them for a run
over files.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from operators.data.statistics import EngineStatistics
from operators.explain.analyze import Observation
from operators.groups.statistics import GroupStatistics
from schemas.errors import DataError
from schemas.messages.control import COMPUTING, DELIVERING, Decision, Measured, TaskHealth, TaskStatistics
from services.ui.watch.events import failure, restart, silence
from services.ui.watch.headline import ABSENT_S, Headline, TaskView, headline
from services.ui.watch.history import APART_MS, History, Report
from services.ui.watch.joins import busy_by_join
from services.ui.watch.timeline import SETTLED_S, Gain, Gauges, Timeline

STATISTICS_MS = 570_000
"""Kafka keeps for so long, and a little longer, what tasks publish every second."""

MEASURED_S = 60.0
"""Tasks repeat every few seconds what they have measured. What has come longer ago is of no task that runs."""

HELD_S = 60
"""A task tells what it has done when an epoch is over. The seconds of a long one are held back, but not for longer: who
follows the history gets each second once."""

RECENT_S = 60.0
"""What a task reads is compared with what others read over so long."""


@dataclass(frozen=True, slots=True)
class GroupObservation:
    """The reports of one task of a group.

    Attributes:
        latest: its statistics so far.
        before: its statistics `apart_s` earlier by the wall clock, of the same incarnation; None where not known.
    """

    task: int
    latest: GroupStatistics
    before: GroupStatistics | None
    apart_s: float


@dataclass(slots=True)
class _Task:
    latest: tuple[Report, EngineStatistics | GroupStatistics] | None = None
    before: tuple[Report, EngineStatistics | GroupStatistics] | None = None
    health: TaskHealth | None = None
    busy: float | None = None
    worker: str = ""
    step_ms: int = 0
    read: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def reported_ms(self) -> int:
        """When it or its worker reported last."""
        sent = [message.sent_ms for message in (self.health, self.latest and self.latest[0]) if message]
        return max(sent, default=0)

    @property
    def told_s(self) -> int:
        """The last second of which it has told all that it did."""
        return self.latest[0].sent_ms // 1000 - 1 if self.latest else 0

    def is_in_epoch(self, now_ms: int) -> bool:
        """Whether its worker says that it computes or delivers an epoch; it will tell of that afterwards."""
        health = self.health
        if self.latest is None or health is None or now_ms - health.sent_ms > ABSENT_S * 1000:
            return False
        return health.status.get("state") == "running" and health.step in (COMPUTING, DELIVERING)

    @property
    def read_per_s(self) -> float | None:
        """What it has read per second lately; None while it has reported once only."""
        if len(self.read) < 2:
            return None
        (begin_s, first), (end_s, last) = self.read[0], self.read[-1]
        return (last - first) / max(end_s - begin_s, 1e-3)

    def compare(self, before: tuple[Report, EngineStatistics | GroupStatistics] | None) -> None:
        """Take the report before the latest one, if it is the same incarnation's, and what it tells of the load."""
        assert self.latest is not None
        self.before = before if before is not None and before[0].incarnation == self.latest[0].incarnation else None
        if self.before is None:
            self.read.clear()
        elif not self.read:
            self.read.append((self.before[0].seconds, self.before[1].input_tuples))
        self.read.append((self.latest[0].seconds, self.latest[1].input_tuples))
        while self.read[-1][0] - self.read[0][0] > RECENT_S:
            self.read.popleft()
        if self.before is not None and self.latest[0].seconds > self.before[0].seconds:
            apart_s = self.latest[0].seconds - self.before[0].seconds
            self.busy = (self.latest[1].busy_s - self.before[1].busy_s) / apart_s


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known at one moment.

    Attributes:
        now_ms: the wall clock.
        observations: of a query's tasks that have reported statistics lately, by number.
        group: the same of a group of queries.
        views: of the tasks that they or their workers have reported lately.
        workers: by task, the client id of its worker.
        expected: how many tasks the query has; 0 while unknown.
        decisions: changes of plans that were weighed, by number.
        problem: why nothing can be read from Kafka now; empty if it can.
        read_per_s: by task, the tuples that it has read per second over the last RECENT_S.
        parts: by task, the operator that it runs; empty for a task that runs the whole plan.
    """

    now_ms: int
    observations: tuple[Observation, ...]
    group: tuple[GroupObservation, ...]
    views: tuple[TaskView, ...]
    workers: Mapping[int, str]
    expected: int
    decisions: Mapping[int, dict[str, Any]]
    problem: str
    read_per_s: Mapping[int, float]
    parts: Mapping[int, str]

    @property
    def headline(self) -> Headline:
        """How far results are, and what holds them back."""
        return headline(self.views, self.expected, self.now_ms)


class LiveQuery:
    """One query, or one group of queries. Methods may be called from any thread.

    Args:
        name: the query's or group's name; messages about others are passed over.
        clock_ms: the wall clock.

    Attributes:
        problem: why no messages come now; empty if they do.
        clock_ms: see above.
    """

    def __init__(self, name: str, clock_ms: Callable[[], int] = lambda: int(time.time() * 1000)) -> None:
        self.problem = ""
        self.clock_ms = clock_ms
        self._name = name
        self._lock = threading.Lock()
        self._tasks: dict[int, _Task] = {}
        self._decisions: dict[int, dict[str, Any]] = {}
        self._measured: dict[int, tuple[Measured, int]] = {}
        self._timeline = Timeline()
        self._history = History()
        self._second = 0

    def snapshot(self) -> Snapshot:
        """Return what is known now."""
        now_ms = self.clock_ms()
        with self._lock:
            lately = {
                number: task
                for number, task in sorted(self._tasks.items())
                if now_ms - task.reported_ms <= ABSENT_S * 1000
            }
            tasks = lately or dict(sorted(self._tasks.items()))
            return _snapshot(now_ms, tasks, lately, dict(sorted(self._decisions.items())), self.problem)

    def past(self, ms: int) -> Snapshot:
        """Return what was known at a moment of the last day, within half a minute."""
        with self._lock:
            found, decisions = self._history.at(ms), dict(sorted(self._decisions.items()))
        tasks: dict[int, _Task] = {}
        for latest, before in found:
            with contextlib.suppress(DataError):
                task = tasks[latest.task] = _Task((latest, _statistics(latest)))
                task.compare(None if before is None else (before, _statistics(before)))
        cut = max((task.latest[1].cut for task in tasks.values() if task.latest), default=0)
        decisions = {number: one for number, one in decisions.items() if one["at"] <= cut}
        return _snapshot(ms, tasks, tasks, decisions, "")

    def timeline(self, since: int = 0, most: int = 0) -> dict[str, list[Any]]:
        """Return the seconds after `since` as columns; see `Timeline.columns`."""
        now_ms = self.clock_ms()
        now_s = now_ms // 1000
        with self._lock:
            told_s = min((task.told_s for task in self._tasks.values() if task.is_in_epoch(now_ms)), default=now_s)
            return self._timeline.columns(since, min(now_s, max(told_s + SETTLED_S, now_s - HELD_S)), most)

    def measured(self) -> list[Measured]:
        """Return what each task has measured last, in the order of their numbers; a repetition is the same object."""
        since_ms = self.clock_ms() - MEASURED_S * 1000
        with self._lock:
            return [message for _, (message, came_ms) in sorted(self._measured.items()) if came_ms >= since_ms]

    def take(self, message: Report | TaskHealth | Decision | Measured) -> None:
        """Take a message. One about another query changes nothing."""
        if message.query != self._name:
            return
        with self._lock:
            if isinstance(message, Decision):
                self._decisions[message.number] = message.adaptation
                return
            if isinstance(message, Measured):
                known, _ = self._measured.get(message.task, (message, 0))
                self._measured[message.task] = known if known == message else message, self.clock_ms()
                return
            task = self._tasks.setdefault(message.task, _Task())
            if isinstance(message, TaskHealth):
                if task.health is None or _doing(task.health) != _doing(message):
                    task.step_ms = message.sent_ms
                if task.health is not None and message.commits >= task.health.commits:
                    gained_s = message.commit_s - task.health.commit_s
                    self._timeline.committed(message.sent_ms, message.commits - task.health.commits, gained_s)
                for event in (failure(task.health, message), silence(task.health, message)):
                    if event is not None:
                        self._timeline.happened(message.sent_ms, event)
                task.health = message
            else:
                self._report(task, message)

    def _report(self, task: _Task, message: Report) -> None:
        """Take the statistics of a task, and compare them with its report before."""
        try:
            latest = _statistics(message)
        except DataError:
            return  # another version's
        before = task.latest
        if before is not None and isinstance(latest, EngineStatistics) and latest.hot_keys is None:
            # They are looked for less often.
            latest = replace(latest, hot_keys=getattr(before[1], "hot_keys", None))
        task.latest = message, latest
        task.compare(before)
        former, task.worker = task.worker, "" if task.health is None else task.health.worker
        if before is not None and task.before is None:
            self._timeline.happened(message.sent_ms, restart(before[0], message, former, task.worker))
        self._history.add(message)
        if task.before is not None:
            then = task.before[1]
            if message.seconds > task.before[0].seconds:
                self._timeline.add(
                    Gain(
                        task.before[0].sent_ms,
                        message.sent_ms,
                        latest.input_tuples - then.input_tuples,
                        latest.results - then.results,
                        latest.late - then.late,
                        latest.busy_s - then.busy_s,
                        busy_by_join(then, latest),
                    )
                )
        second = message.sent_ms // 1000
        if second != self._second:
            self._second = second
            apart_ms = APART_MS * 2 if self.clock_ms() - message.sent_ms > STATISTICS_MS else ABSENT_S * 1000
            since_ms = message.sent_ms - apart_ms
            self._timeline.set(message.sent_ms, [_gauges(t) for t in self._tasks.values() if t.reported_ms >= since_ms])


def _statistics(message: Report) -> EngineStatistics | GroupStatistics:
    """Return the statistics in a message.

    Raises:
        DataError: they are another version's.
    """
    if isinstance(message, TaskStatistics):
        return EngineStatistics.from_document(message.engine)
    return GroupStatistics.from_document(message.engine)


def _snapshot(
    now_ms: int,
    tasks: Mapping[int, _Task],
    lately: Mapping[int, _Task],
    decisions: Mapping[int, dict[str, Any]],
    problem: str,
) -> Snapshot:
    """Return a snapshot.

    Args:
        lately: those of the tasks that have reported lately.
    """
    newest = max((task.latest[0] for task in tasks.values() if task.latest), key=_sent, default=None)
    expected = max(newest.tasks if newest else 0, max(lately, default=-1) + 1)
    running = {number: task for number, task in lately.items() if number < expected}
    observations = [_observation(number, task) for number, task in running.items()]
    return Snapshot(
        now_ms,
        tuple(one for one in observations if isinstance(one, Observation)),
        tuple(one for one in observations if isinstance(one, GroupObservation)),
        tuple(_view(number, task) for number, task in tasks.items() if number < expected),
        {number: task.health.worker for number, task in lately.items() if task.health is not None},
        expected,
        decisions,
        problem,
        {number: rate for number, task in running.items() if (rate := task.read_per_s) is not None},
        {n: str(task.health.status.get("operator", "")) for n, task in running.items() if task.health is not None},
    )


def _sent(message: Report) -> int:
    return message.sent_ms


def _gauges(task: _Task) -> Gauges:
    if task.latest is None:
        return Gauges(0, 0, 0, 0)
    latest = task.latest[1]
    known = latest.cut, latest.pending_tuples, latest.state_bytes
    spill = latest.spill
    return Gauges(*known, 0) if spill is None else Gauges(*known, spill.owed, spill.used_bytes, spill.budget_bytes)


def _observation(number: int, task: _Task) -> Observation | GroupObservation | None:
    if task.latest is None:
        return None
    message, latest = task.latest
    then = None if task.before is None else task.before[1]
    apart_s = 0.0 if task.before is None else message.seconds - task.before[0].seconds
    if isinstance(latest, GroupStatistics):
        return GroupObservation(number, latest, then if isinstance(then, GroupStatistics) else None, apart_s)
    assert isinstance(message, TaskStatistics)
    before = then if isinstance(then, EngineStatistics) else None
    return Observation(number, latest, before, apart_s, message.plan_version)


def _view(number: int, task: _Task) -> TaskView:
    status: dict[str, Any] = {} if task.health is None else task.health.status
    latest = None if task.latest is None else task.latest[1]
    return TaskView(
        number,
        latest.cut if latest else int(status.get("cut") or 0),
        task.reported_ms,
        str(status.get("state", "")),
        str(status.get("problem") or "") if status.get("since") else "",
        str(status.get("waits_for", "")),
        () if task.health is None else tuple(task.health.silent),
        task.busy,
        latest.pending_tuples if latest else 0,
        latest.spill.owed if latest and latest.spill else 0,
        "" if task.health is None else task.health.step,
        0.0 if task.health is None else (task.health.sent_ms - task.step_ms) / 1000,
        () if task.health is None else tuple(task.health.slowest),
        None if task.health is None else task.health.dead_letters,
    )


def _doing(health: TaskHealth) -> tuple[str, Any]:
    """Return what a task does, and how far it is; while that stays the same, it does it for long."""
    return health.step, health.status.get("cut")
