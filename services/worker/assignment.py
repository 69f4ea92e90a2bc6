"""A task that the group has assigned to this worker, running or not yet opened, and the task's health.

`task_manager.TaskManager` keeps one `TaskAssignment` per task; /healthz reads them. A task is healthy when it makes
progress or has no work. Its work is input that was delivered to it and is not committed, and pending results. Progress
is a commit that changes offsets, event time or the number of pending results. While a task recovers, input that it
reads again is progress too, unless it has failed before: it might read the same input for ever. A task that makes no
progress for a minute (`WorkerSettings.patience_ms`) is unhealthy. Input that stays in Kafka while the query waits for a
silent partition is not work yet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from services.kafka.topics import Lane
from services.task.task import Task
from services.worker.health_problem import HealthProblem, shown_time

REPORTED_S = 2.0
"""The statistics topic has the partitions that have been silent for longer and delay results."""

SILENT_S = 10.0
"""After a partition has been silent for so long, /healthz reports that the task waits for it."""

MAX_NAMED_LANES = 3
"""A message names at most this many silent partitions."""


@dataclass(slots=True)
class PartitionReader:
    """How far this worker has read one partition for its task.

    Attributes:
        offset: the next offset to deliver.
        seek: the number of the seek that led there; batches of earlier seeks are stale.
        last_record_s: when the last record arrived, in monotonic seconds; 0 while the task has not run.
        idle_reported_s: when the task was last notified that the partition is idle, in monotonic seconds.
    """

    offset: int
    seek: int = 0
    last_record_s: float = 0.0
    idle_reported_s: float = 0.0


@dataclass(slots=True)
class TaskProgress:
    """When a task last made progress or had no work. The next incarnation of the task continues this record.

    If the task has work now, it has had it since then without making progress.

    Attributes:
        since_s: that time, in monotonic seconds.
    """

    since_s: float = field(default_factory=time.monotonic)
    _first_look: bool = True
    _committed: tuple[int, int] | None = None
    _pending: int = 0
    _read: int = 0

    def end_incarnation(self) -> None:
        """The task has ended: do not compare what its next incarnation reads and has pending with this one's."""
        self._first_look = True

    def update(self, task: Task, failing: bool, now: float) -> None:
        """Compare the task with the previous call, and note whether it has made progress.

        Args:
            failing: the task has failed and has not got past that point since, so it only reads the same input again.
        """
        committed, pending, read = task.commit_progress, task.committed_pending, task.read
        got_on = committed != self._committed and self._committed is not None
        got_on &= not task.missing_schema  # other partitions are read on while one waits
        if not self._first_look:
            got_on |= pending != self._pending or (read != self._read and not task.running and not failing)
        self._first_look, self._committed, self._pending, self._read = False, committed, pending, read
        if got_on or not task.has_work:
            self.since_s = now


@dataclass(slots=True)
class TaskAssignment:
    """One assigned task; see the module.

    Attributes:
        task: None while the task is being opened or waits to be opened again.
        readers: of each partition that the task reads.
        member: this worker's member id in the group when the task was opened.
        since_s: when the task was opened or, while there is none, when it was given up; monotonic seconds.
        failures: recent failures; they decide the pause before the next attempt.
        opening: the coroutine that opens the task.
        no_task_reason: why there is no task, if that is known; empty while there is one.
        fenced: another worker has taken the task over; it is opened again only when the group assigns it again.
        spill_error_logged_s: when an error of the spill directory was last logged, in monotonic seconds.
        health_problem: the task's recent failures, also while it runs again; None once it has got past them.
        stall_logged: the log says that the task makes no progress.
    """

    number: int
    task: Task | None = None
    readers: dict[Lane, PartitionReader] = field(default_factory=dict)
    member: str = ""
    since_s: float = field(default_factory=time.monotonic)
    failures: int = 0
    opening: asyncio.Task[None] | None = None
    no_task_reason: str = "opening"
    fenced: bool = False
    spill_error_logged_s: float = float("-inf")
    health_problem: HealthProblem | None = None
    progress: TaskProgress = field(default_factory=TaskProgress)
    stall_logged: bool = False

    def clear_task(self) -> None:
        """There is no task any more."""
        self.task, self.since_s = None, time.monotonic()
        self.progress.end_incarnation()

    def record_failure(self, reason: str, over_at: int) -> None:
        """The task has failed.

        Args:
            over_at: the event time from which on a commit shows that it has got past this failure, in ms.
        """
        if self.health_problem is None:
            self.health_problem = HealthProblem(time.monotonic(), time.time(), reason, over_at)
        else:
            self.health_problem.failed_again(reason, over_at)

    def update(self, patience_s: float) -> None:
        """Bring `progress` and `health_problem` up to date. Called regularly on the event loop."""
        task, health_problem, now = self.task, self.health_problem, time.monotonic()
        if task is None:
            return
        self.progress.update(task, health_problem is not None, now)
        # A task that has just ended ran until now.
        ran_s = now - self.since_s if task.running or task.outcome is not None else 0.0
        stalled_s = now - self.progress.since_s
        if health_problem is not None and health_problem.is_over(task.committed, ran_s, stalled_s, patience_s):
            self.health_problem = None

    # --- For any thread, as of the last update ------------------------------------------------------

    def unhealthy_reason(self, patience_s: float) -> str:
        """What has kept the task from its work for longer than `patience_s`; empty when the task is healthy."""
        health_problem, now = self.health_problem, time.monotonic()
        stood_s = now - self.progress.since_s
        failing = health_problem is not None and health_problem.lasts_too_long(now, patience_s)
        if stood_s <= patience_s and not failing:
            return ""
        if health_problem is not None:
            failed = f"since {health_problem.since}, failed {health_problem.failures} times"
            return f"task {self.number}: {health_problem.reason} ({failed})"
        return f"task {self.number}: {self._stall_reason()} (since {shown_time(time.time() - stood_s)})"

    def _stall_reason(self) -> str:
        """What a task that makes no progress is doing."""
        task = self.task
        if task is None:
            return self.no_task_reason
        if not task.running:
            return f"the recovery makes no progress: it waits for {self.waits_for()}"
        work = "input waits" if task.has_input else "results are pending"
        return f"{work}, and nothing was committed: the task is {task.step}; a restart continues from the last commit"

    def silent_lanes(self, least_s: float, now: float) -> list[tuple[Lane, float]]:
        """Partitions that delay the input that the task has read, and when the last record of each arrived.

        Args:
            least_s: only partitions that have been silent for longer than this.
        """
        task = self.task
        if task is None or not task.running or not task.pending_tuples:
            return []
        slowest = task.slowest
        return [
            (lane, reader.last_record_s)
            for lane, reader in self.readers.items()
            if lane in slowest and reader.last_record_s and now - reader.last_record_s > least_s
        ]

    def waits_for(self) -> str:
        """What the task waits for; empty when it waits for nothing."""
        task = self.task
        if task is None:
            return self.no_task_reason
        if task.missing_schema:
            return task.missing_schema
        if not task.running:
            return f"{task.unread:,} records of {shown_lanes(task.replaying)} that are to be read again"
        now = time.monotonic()
        silent = self.silent_lanes(SILENT_S, now)
        if not silent:
            return ""
        since = shown_time(time.time() - (now - min(last_record_s for _, last_record_s in silent)))
        return f"held back by {shown_lanes(lane for lane, _ in silent)}, silent since {since}"

    def status(self) -> dict[str, Any]:
        """What /healthz reports of the task.

        `problem` is why the task failed last. It stays while the task runs again, until the task has got past the point
        where it failed. Without a failure it is why there is no task, or empty. `cut` is null while nothing has been
        read.
        """
        task, health_problem = self.task, self.health_problem
        return {
            "task": self.number,
            **({} if task is None or task.spec.part is None else {"operator": task.spec.part.name}),
            "state": self._state(),
            "cut": task.cut or None if task else None,
            "waits_for": self.waits_for(),
            "problem": self.no_task_reason if health_problem is None else health_problem.reason,
            "since": None if health_problem is None else health_problem.since,
            "failures": 0 if health_problem is None else health_problem.failures,
        }

    def report(self) -> dict[str, Any]:
        """What the statistics topic has of the task: the fields of `TaskHealth` that describe it."""
        task, now = self.task, time.monotonic()
        commits, commit_s = (0, 0.0) if task is None else task.commits
        return {
            "status": self.status(),
            "step": "" if task is None else task.step,
            "silent": [(*lane, round(now - last_s, 1)) for lane, last_s in self.silent_lanes(REPORTED_S, now)],
            "slowest": self._slowest(),
            "commits": commits,
            "commit_s": round(commit_s, 4),
            "dead_letters": 0 if task is None else task.dead_letters,
        }

    def _slowest(self) -> list[Lane]:
        """The first few partitions that the tuples of others wait for."""
        task = self.task
        if task is None or not task.running or not task.pending_tuples:
            return []
        slowest = [lane for lane in self.readers if lane in task.slowest]
        return slowest[:MAX_NAMED_LANES] if len(slowest) < len(self.readers) else []

    def _state(self) -> str:
        task = self.task
        if task is None:
            return "opening"
        if task.outcome is not None:
            return "ended"
        return "running" if task.running else "recovering"


def shown_lanes(lanes: Iterable[Lane]) -> str:
    """Partitions for a message: the names of the first few, and how many more there are."""
    names = [f"{topic}[{partition}]" for topic, partition in sorted(lanes)]
    more = len(names) - MAX_NAMED_LANES
    return ", ".join(names[:MAX_NAMED_LANES]) + (f" and {more} more" if more > 0 else "")
