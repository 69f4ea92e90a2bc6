"""Watermarks: the event time up to which a partition's input is complete. `Intake` keeps one clock per partition.

A partition's watermark is the largest timestamp seen in it minus its declared disorder. A clock judges lateness against
the tuple's own partition only. So a log is classified the same way in every run, however partitions interleave, and
recovery can replay it. `Intake` makes the one exception: tuples behind the engine's cut after an idle partition.
"""

from __future__ import annotations

import numpy as np

from schemas.columns import I64, Mask

END = 2**63 - 1
"""The watermark of an input that has ended."""

NEVER = -(2**62)
"""Before every event time, such as the clock of a partition without any tuple yet. It is far from int64's edge, so
arithmetic is safe."""


class PartitionClock:
    """The largest timestamp seen in one partition, and the watermark that follows from it.

    Attributes:
        disorder_ms: by how much a timestamp may lag behind the largest one before it without being late.
        max_ts: the largest timestamp seen; NEVER before the first.
        idle: True while the partition is excluded from the task's watermark.
        closed: True when the partition has ended.
    """

    def __init__(self, disorder_ms: int) -> None:
        self.disorder_ms = disorder_ms
        self.max_ts = NEVER
        self.idle = False
        self.closed = False

    def observe(self, ts: I64) -> Mask:
        """Advance the clock over tuples in arrival order.

        Args:
            ts: (n,) int64 timestamps in arrival order.

        Returns:
            (n,) bool: True where the tuple is late, that is, ts < largest ts before it - disorder. A late tuple never
            advances the clock.
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
        """Return the watermark: no future tuple that is not late has a smaller timestamp. -1 before the first tuple."""
        if self.closed:
            return END
        if self.max_ts == NEVER:
            return -1
        return max(self.max_ts - self.disorder_ms, 0)
