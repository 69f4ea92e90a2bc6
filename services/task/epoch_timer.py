"""Decides when a task's epochs begin: at a fixed interval, later under load, and earlier if a reader waits for one.

`services.task.epochs` uses an `EpochTimer` between epochs. Under load an epoch takes longer than the interval. Reading
then gets as much time as the epoch took, so that the epoch's fixed costs are spread over more input. A requested early
epoch keeps this rule, too, and replaces the next regular epoch: the interval counts from its beginning. So early epochs
hardly increase the number of epochs. While another plan waits for this task's epochs, reading ends when all that has
come is read.
"""

from __future__ import annotations

MAX_GATHER_S = 1.0
"""Upper limit of the reading time after a slow epoch."""


class EpochTimer:
    """Computes when the next epoch begins. All times are seconds of one arbitrary clock.

    Args:
        every: the interval between epochs.
        now: when the first epoch may begin.
    """

    def __init__(self, every: float, now: float) -> None:
        self._every = every
        self._due = self._regular = self._began = now
        self._requested = False
        self.epoch_ended(now)

    def request(self) -> None:
        """Request an early epoch, for a reader that waits."""
        self._requested = True

    def seconds_left(self, now: float) -> float:
        """Seconds until the next epoch begins; 0 or less if it is due."""
        return (self._soonest if self._requested else self._due) - now

    def epoch_began(self, now: float) -> None:
        """Note that an epoch has begun."""
        self._began = now

    def epoch_ended(self, now: float, least: float = 0.0) -> None:
        """Note that the epoch has ended and reading begins.

        Args:
            least: the interval until the next one is at least so long.
        """
        self._soonest = now + min(now - self._began, MAX_GATHER_S)
        self._regular = max((self._began if self._requested else self._due) + max(self._every, least), now)
        self._due = max(self._regular, self._soonest)
        self._requested = False

    def hurry(self) -> None:
        """Keep the interval under load, too: nothing waits to be read, and another plan waits for the next epoch."""
        self._soonest, self._due = 0.0, self._regular
