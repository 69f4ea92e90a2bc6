"""A stopwatch that measures how long detection takes, on a given clock, since operators have no clock of their own."""

from __future__ import annotations

from collections.abc import Callable


class Stopwatch:
    """Adds up the time inside its `with` blocks, which do not nest. A block reads the clock twice, so use it for whole
    batches.

    Args:
        clock: Returns seconds.

    Attributes:
        seconds: The total so far.
    """

    __slots__ = ("_began", "_clock", "seconds")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = 0.0
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._began = self._clock()

    def __exit__(self, *_: object) -> None:
        self.seconds += self._clock() - self._began
