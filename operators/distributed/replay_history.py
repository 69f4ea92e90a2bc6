"""Records how far a log's clock had advanced at which offset, to find where to read again from an event time on.

`operators.distributed.edge_reader` and `services.task.lane` use it. A stretch of records is stored as its first offset
and the clock before and after it. The clocks ascend, so bisection finds the first stretch that may contain a wanted
tuple.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from operators.engine.intake import ReplayPoint

MAX_STRETCHES = 4096
"""The most stretches that are stored; beyond that, pairs of stretches are merged."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    offset: int
    before: int
    after: int


class ReplayHistory:
    """The history of one partition's tuples of one stream, or of one channel."""

    def __init__(self) -> None:
        self._stretches: list[_Stretch] = []

    def remember(self, offset: int, before: int, after: int) -> None:
        """Record that the records from `offset` on advanced the clock from `before` to `after`."""
        stretches = self._stretches
        stretches.append(_Stretch(offset, before, after))
        if len(stretches) > MAX_STRETCHES:
            pairs = zip(stretches[::2], [*stretches[1::2], stretches[-1]], strict=False)
            self._stretches = [_Stretch(a.offset, a.before, b.after) for a, b in pairs]

    def extend(self, after: int) -> None:
        """Record that the clock advanced within the last stretch."""
        last = self._stretches[-1]
        self._stretches[-1] = _Stretch(last.offset, last.before, max(last.after, after))

    @property
    def last(self) -> ReplayPoint:
        """The start of the last stretch."""
        return ReplayPoint(self._stretches[-1].offset, self._stretches[-1].before)

    def point(self, horizon_ms: int) -> ReplayPoint | None:
        """Return the latest known point from which reading again yields every tuple with ts >= horizon. None if no
        recorded stretch has such a tuple."""
        first = self._first(horizon_ms)
        if first == len(self._stretches):
            return None
        return ReplayPoint(self._stretches[first].offset, self._stretches[first].before)

    def forget(self, horizon_ms: int) -> None:
        """Drop what no later horizon will need; the last stretch stays."""
        del self._stretches[: min(self._first(horizon_ms), len(self._stretches) - 1)]

    def _first(self, horizon_ms: int) -> int:
        return bisect_left(self._stretches, horizon_ms, key=lambda stretch: stretch.after)
