"""Watermarks: how far event time has certainly come.

A partition's watermark is the largest timestamp seen in it minus its declared disorder. Lateness is
judged against the tuple's own partition only, so a log classifies the same way in every run, whatever
the interleaving of partitions, and recovery can replay it.
"""

from __future__ import annotations

import numpy as np

from schemas.columns import I64, Mask

END = 2**63 - 1
"""The watermark of an input that has ended."""

NEVER = -(2**62)
"""The clock of a partition that has shown no tuple yet; far from int64's edge, so arithmetic is safe."""


class PartitionClock:
    """The largest timestamp seen in one partition, and what follows from it.

    Attributes:
        max_ts: the largest timestamp seen, NEVER before the first.
        idle: True while the partition is excluded from the task's watermark.
        closed: True when the partition has ended.
    """

    def __init__(self, disorder_ms: int) -> None:
        self.disorder_ms = disorder_ms
        self.max_ts = NEVER
        self.idle = False
        self.closed = False

    def observe(self, ts: I64) -> Mask:
        """Advance over tuples in arrival order.

        Args:
            ts: (n,) int64 timestamps in arrival order.

        Returns:
            (n,) bool: True where the tuple is late, that is ts < largest before it - disorder. A late
            tuple never moves the clock.
        """
        if len(ts) == 0:
            return np.zeros(0, np.bool_)
        seen = np.maximum.accumulate(ts)
        late = np.empty(len(ts), np.bool_)
        late[0] = ts[0] < self.max_ts - self.disorder_ms
        np.less(ts[1:], np.maximum(seen[:-1], self.max_ts) - self.disorder_ms, out=late[1:])
        self.max_ts = max(self.max_ts, int(seen[-1]))
        return late

    def watermark(self) -> int:
        """No tuple that comes later and is not late has a timestamp below this; -1 before the first tuple."""
        if self.closed:
            return END
        if self.max_ts == NEVER:
            return -1
        return max(self.max_ts - self.disorder_ms, 0)
