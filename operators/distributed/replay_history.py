"""Where a log stood when: from where to read it again to see what came since some event time.

A stretch of records is remembered by its first offset and the clock before and after it; the clocks ascend, so the
stretch that may hold the first tuple wanted is found by bisection.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from operators.engine.intake import ReplayPoint

MAX_STRETCHES = 4096
"""Stretches that are remembered one by one; where windows reach further back they are joined in pairs."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    offset: int
    before: int
    after: int


class History:
    """Of one partition's tuples of one stream, or of one channel."""

    def __init__(self) -> None:
        self._stretches: list[_Stretch] = []

    def remember(self, offset: int, before: int, after: int) -> None:
        """Records from `offset` on have moved the clock from `before` to `after`."""
        stretches = self._stretches
        stretches.append(_Stretch(offset, before, after))
        if len(stretches) > MAX_STRETCHES:
            pairs = zip(stretches[::2], [*stretches[1::2], stretches[-1]], strict=False)
            self._stretches = [_Stretch(a.offset, a.before, b.after) for a, b in pairs]

    def extend(self, after: int) -> None:
        """The clock has moved on within the last stretch."""
        last = self._stretches[-1]
        self._stretches[-1] = _Stretch(last.offset, last.before, max(last.after, after))

    @property
    def last(self) -> ReplayPoint:
        """Where the last stretch begins."""
        return ReplayPoint(self._stretches[-1].offset, self._stretches[-1].before)

    def point(self, horizon_ms: int) -> ReplayPoint | None:
        """The latest known place from which reading again shows every tuple with ts >= horizon; None when what is
        remembered has none."""
        first = self._first(horizon_ms)
        if first == len(self._stretches):
            return None
        return ReplayPoint(self._stretches[first].offset, self._stretches[first].before)

    def forget(self, horizon_ms: int) -> None:
        """Drop what no later horizon will ask for; the last stretch stays."""
        del self._stretches[: min(self._first(horizon_ms), len(self._stretches) - 1)]

    def _first(self, horizon_ms: int) -> int:
        return bisect_left(self._stretches, horizon_ms, key=lambda stretch: stretch.after)
