"""When a task's epochs begin: at their pace, later under load, and earlier where somebody waits for one.

Under load an epoch takes longer than the pace allows; reading then gets as much time as the epoch did, so that its
fixed costs are spread over more input. An epoch that is called for early keeps to that, too, and takes the place of
the next one: the pace counts from where it began, so that there are hardly more of them.
"""

from __future__ import annotations

MAX_GATHER_S = 1.0
"""Reading gets at most so much time for a slow epoch."""


class Pace:
    """Times are seconds of any one clock.

    Args:
        every: how long from one epoch to the next.
        now: the first may begin.
    """

    def __init__(self, every: float, now: float) -> None:
        self._every = every
        self._due = self._began = now
        self._called = False
        self.ended(now)

    def call(self) -> None:
        """Somebody waits for the next epoch."""
        self._called = True

    def left(self, now: float) -> float:
        """Seconds until the next epoch is to begin; not above 0 when it is time."""
        return (self._soonest if self._called else self._due) - now

    def begin(self, now: float) -> None:
        """An epoch begins."""
        self._began = now

    def ended(self, now: float) -> None:
        """It is over: reading begins."""
        self._soonest = now + min(now - self._began, MAX_GATHER_S)
        self._due = max((self._began if self._called else self._due) + self._every, self._soonest)
        self._called = False
