"""The health problem of a task: since when it fails, how often, and why. `web.Pages` shows it at /healthz.

A task with a full disk goes back to its last commit, runs until it has to spill, and fails again. At nearly any moment
it is running. So the problem is not over when the task runs. It is over when the task has committed the work at which
it failed, or has run for a while without failing and without a stall: there may be no input that would take it further.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

ANY_COMMIT = 0
"""The `over_at` of a task that could not be opened, in ms: any commit shows that it works again."""


@dataclass(slots=True)
class HealthProblem:
    """A series of failures of one task.

    Attributes:
        first_failure_s: time of the first failure, in monotonic seconds.
        first_failure_clock_s: the same by the wall clock, in seconds since 1970.
        reason: why the task failed last, and what can be done about it.
        over_at: the event time from which on a commit shows that the task has got past all its failures, in ms.
        failures: their number.
    """

    first_failure_s: float
    first_failure_clock_s: float
    reason: str
    over_at: int
    failures: int = 1

    def failed_again(self, reason: str, over_at: int) -> None:
        """The task has failed once more."""
        self.reason = reason
        self.over_at = max(self.over_at, over_at)
        self.failures += 1

    def is_over(self, committed: int, ran_s: float, stalled_s: float, patience_s: float) -> bool:
        """Whether the task is healthy again.

        Args:
            committed: event time that the task has committed, in ms.
            ran_s: for how long it has been running.
            stalled_s: for how long it has had work and made no progress.
            patience_s: a stall longer than this is unhealthy.
        """
        return committed >= self.over_at or (ran_s > patience_s and stalled_s <= patience_s)

    def lasts_too_long(self, now_s: float, patience_s: float) -> bool:
        """Whether the first failure was more than `patience_s` ago."""
        return now_s - self.first_failure_s > patience_s

    @property
    def since(self) -> str:
        """The time of the first failure, in the log's format."""
        return shown_time(self.first_failure_clock_s)


def shown_time(clock_s: float) -> str:
    """A wall-clock time in seconds since 1970, in the log's format, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(clock_s))
