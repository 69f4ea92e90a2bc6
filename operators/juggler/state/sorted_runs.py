"""Stores rows in sorted runs, so that visits can search them by value.

`operators.juggler.state.input_state` uses `SortedRuns`. New rows form a run of their own. It is merged into the run
before it while that is less than twice as large, so a row is sorted O(log n) times, in whatever order rows arrive.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from operators.data.watermark import NEVER
from schemas.columns import I64

GROWTH = 2


@dataclass(frozen=True, slots=True, eq=False)
class SortedRun:
    """Rows in the order of their values.

    Attributes:
        values: (n,) int64 or float64, ascending.
        rows, ts: (n,) row ids and timestamps.
        newest: the largest ts.
    """

    values: I64
    rows: I64
    ts: I64
    newest: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "newest", int(self.ts.max(initial=NEVER)))

    def __len__(self) -> int:
        return len(self.rows)

    def merged(self, other: SortedRun, least_ts: int) -> SortedRun:
        """Both runs in one, without rows older than `least_ts`."""
        values = np.concatenate([self.values, other.values])
        rows, ts = np.concatenate([self.rows, other.rows]), np.concatenate([self.ts, other.ts])
        kept = ts >= least_ts
        if not kept.all():
            values, rows, ts = values[kept], rows[kept], ts[kept]
        order = np.argsort(values, kind="stable")
        return SortedRun(values[order], rows[order], ts[order])

    def size_bytes(self) -> int:
        """Bytes of the three arrays."""
        return self.values.nbytes + self.rows.nbytes + self.ts.nbytes


class SortedRuns:
    """Rows sorted by one value each.

    Attributes:
        runs: the runs, the largest first.
    """

    def __init__(self) -> None:
        self.runs: list[SortedRun] = []

    def __len__(self) -> int:
        return sum(len(run) for run in self.runs)

    def insert(self, values: I64, rows: I64, ts: I64, least_ts: int) -> None:
        """Insert rows in any order; rows older than `least_ts` may be dropped."""
        if not len(rows):
            return
        order = np.argsort(values, kind="stable")
        self.runs.append(SortedRun(values[order], rows[order], ts[order]))
        while len(self.runs) > 1 and len(self.runs[-2]) < GROWTH * len(self.runs[-1]):
            last = self.runs.pop()
            self.runs[-1] = self.runs[-1].merged(last, least_ts)

    def purge(self, least_ts: int) -> None:
        """Drop runs without live rows; other runs lose their oldest rows when they are merged."""
        self.runs = [run for run in self.runs if run.newest >= least_ts]

    def size_bytes(self) -> int:
        """Bytes of all runs."""
        return sum(run.size_bytes() for run in self.runs)
