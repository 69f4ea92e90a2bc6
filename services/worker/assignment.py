"""A task that the group has assigned to this worker, whether it runs or is yet to be opened, and how it fares.

The roster keeps the seats; /healthz asks them. A task is healthy when it makes progress, or has nothing to do. What it
has to do is input that was handed to it and is not committed, and results that it owes. Progress is a commit that moves
offsets, event time or what is owed. While a task recovers, progress is also input that it reads again, but not when it
failed before: it would read the same again and again. A task without progress for a minute (`WorkerSettings`,
`patience_ms`) is ill. Input that stays in Kafka while the query waits for a silent partition is nothing to do yet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from services.kafka.topics import Lane
from services.task.task import Task
from services.worker.health import Trouble, shown_time

SILENT_S = 10.0
"""For how long nothing has come from a partition before it is said that a task waits for it."""

NAMED = 3
"""So many partitions are named where several are silent."""


@dataclass(slots=True)
class Reader:
    """The feeding side of one partition: what comes next, and when something last came, in monotonic seconds."""

    offset: int
    seek: int = 0
    last_s: float = 0.0
    told_idle_s: float = 0.0


@dataclass(slots=True)
class Progress:
    """Since when a task has had work and has got on with none of it. Outlives the task: its next life goes on here.

    Attributes:
        since_s: when it last got on, or had nothing to do, in monotonic seconds.
    """

    since_s: float = field(default_factory=time.monotonic)
    _begins: bool = True
    _committed: tuple[int, int] | None = None
    _owed: int = 0
    _read: int = 0

    def leave(self) -> None:
        """The task has ended; what its next life reads again and owes is not compared with what this one did."""
        self._begins = True

    def look(self, task: Task, failing: bool, now: float) -> None:
        """Note how far the task has come.

        Args:
            failing: it has failed, and has not come further since: what it reads again it has read before.
        """
        committed, owed, read = task.committed_to, task.committed_owed, task.read
        got_on = committed != self._committed and self._committed is not None
        if not self._begins:
            got_on |= owed != self._owed or (read != self._read and not task.running and not failing)
        self._begins, self._committed, self._owed, self._read = False, committed, owed, read
        if got_on or not task.works:
            self.since_s = now


@dataclass(slots=True)
class Seat:
    """See the module.

    Attributes:
        since_s: when its task was opened or, while it has none, given up.
        problem: why it has no task.
        stands: that it makes no progress has been logged.
    """

    number: int
    task: Task | None = None
    readers: dict[Lane, Reader] = field(default_factory=dict)
    member: str = ""
    since_s: float = field(default_factory=time.monotonic)
    failures: int = 0
    opening: asyncio.Task[None] | None = None
    problem: str = "opening"
    fenced: bool = False
    complained_s: float = float("-inf")
    trouble: Trouble | None = None
    progress: Progress = field(default_factory=Progress)
    stands: bool = False

    def vacate(self) -> None:
        """It has no task any more."""
        self.task, self.since_s = None, time.monotonic()
        self.progress.leave()

    def ail(self, reason: str, failed_at: int) -> None:
        """Its task has failed."""
        if self.trouble is None:
            self.trouble = Trouble(time.monotonic(), time.time(), reason, failed_at)
        else:
            self.trouble.again(reason, failed_at)

    def look(self, patience_s: float) -> None:
        """See how the task fares. On the event loop, every now and then."""
        task, trouble, now = self.task, self.trouble, time.monotonic()
        if task is None:
            return
        self.progress.look(task, trouble is not None, now)
        # One that has just ended ran until now.
        ran_s = now - self.since_s if task.running or task.outcome is not None else 0.0
        if trouble is not None and trouble.over(task.committed, ran_s, now - self.progress.since_s, patience_s):
            self.trouble = None

    # --- For any thread, as of the last look --------------------------------------------------------

    def illness(self, patience_s: float) -> str:
        """What has kept the task from its work for too long; empty when it is well."""
        trouble, now = self.trouble, time.monotonic()
        stood_s = now - self.progress.since_s
        failing = trouble is not None and trouble.ill(now, patience_s)
        if stood_s <= patience_s and not failing:
            return ""
        if trouble is not None:
            return f"task {self.number}: {trouble.reason} (since {trouble.since}, failed {trouble.failures} times)"
        return f"task {self.number}: {self._standing()} (since {shown_time(time.time() - stood_s)})"

    def _standing(self) -> str:
        """What a task that does not get on is at."""
        task = self.task
        if task is None:
            return self.problem
        if not task.running:
            return f"the recovery makes no progress: it waits for {self.waits_for()}"
        work = "input waits" if task.has_input else "results are owed"
        return f"{work}, and nothing was committed: the task is {task.step}; a restart goes on from the last commit"

    def silent(self, least_s: float, now: float) -> list[tuple[Lane, float]]:
        """Partitions that hold back what the task has read, and when something last came from each."""
        task = self.task
        if task is None or not task.running or not task.pending_tuples:
            return []
        slowest = task.slowest
        return [
            (lane, reader.last_s)
            for lane, reader in self.readers.items()
            if lane in slowest and reader.last_s and now - reader.last_s > least_s
        ]

    def waits_for(self) -> str:
        """What the task waits for; empty when it does not."""
        task = self.task
        if task is None:
            return self.problem
        if not task.running:
            return f"{task.unread:,} records of {shown_lanes(task.replaying)} that are to be read again"
        now = time.monotonic()
        silent = self.silent(SILENT_S, now)
        if not silent:
            return ""
        since = shown_time(time.time() - (now - min(last_s for _, last_s in silent)))
        return f"held back by {shown_lanes(lane for lane, _ in silent)}, silent since {since}"

    def seen(self) -> dict[str, Any]:
        """What /healthz tells of the task; `problem` too while it runs, until it has come further than where it
        failed. `cut` is null while nothing has been read."""
        task, trouble = self.task, self.trouble
        return {
            "task": self.number,
            **({} if task is None or task.spec.part is None else {"operator": task.spec.part.name}),
            "state": self._state(),
            "cut": task.cut or None if task else None,
            "waits_for": self.waits_for(),
            "problem": self.problem if trouble is None else trouble.reason,
            "since": None if trouble is None else trouble.since,
            "failures": 0 if trouble is None else trouble.failures,
        }

    def _state(self) -> str:
        task = self.task
        if task is None:
            return "opening"
        if task.outcome is not None:
            return "ended"
        return "running" if task.running else "recovering"


def shown_lanes(lanes: Iterable[Lane]) -> str:
    """Partitions, the first few by name."""
    names = [f"{topic}[{partition}]" for topic, partition in sorted(lanes)]
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
