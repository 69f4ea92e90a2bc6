"""What keeps a task from its work: since when, how often it has failed, and why, for whoever looks after the worker.

A task with a full disk goes back to its last commit, runs until it has to spill, and fails again. Nearly whenever
somebody looks, it runs. So trouble is not over when the task runs, but when it has come further than where it failed,
or has run for a while without failing and has got on: there may be no input that would take it further.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

HEALTHY_S = 60.0
"""A task that ran this long has not failed lately."""

NOWHERE = -1
"""How far a task has come that could not be opened."""


@dataclass(slots=True)
class Trouble:
    """One task's, from its first failure on.

    Attributes:
        since_s, began_s: of the first failure, monotonic and by the wall clock.
        reason: the last failure's, with what can be done about it.
        failed_at: the largest event time that it had come to when it failed, in ms.
    """

    since_s: float
    began_s: float
    reason: str
    failed_at: int
    failures: int = 1

    def again(self, reason: str, failed_at: int) -> None:
        """It has failed once more."""
        self.reason = reason
        self.failed_at = max(self.failed_at, failed_at)
        self.failures += 1

    def over(self, committed: int, ran_s: float, stalled_s: float, patience_s: float) -> bool:
        """Whether the task is well again.

        Args:
            committed: event time that it has committed, in ms.
            ran_s: for how long it has been running.
            stalled_s: for how long it has had work and got on with none of it.
            patience_s: how long is too long.
        """
        return committed > self.failed_at or (ran_s > patience_s and stalled_s <= patience_s)

    def ill(self, now_s: float, patience_s: float) -> bool:
        """Whether it has lasted for too long."""
        return now_s - self.since_s > patience_s

    @property
    def since(self) -> str:
        """When it began, as in the log."""
        return shown_time(self.began_s)


def shown_time(clock_s: float) -> str:
    """A time of the wall clock as in the log, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(clock_s))
