"""Rows in sorted runs: new ones are a run of their own, merged whenever the one before is less than twice as large, so
a row is sorted O(log n) times, in whatever order rows come."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schemas.columns import I64

GROWTH = 2


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Rows in the order of their values; (n,) each. Values are int64 or float64."""

    values: I64
    rows: I64
    ts: I64

    def __len__(self) -> int:
        return len(self.rows)

    def merged(self, other: Run, least_ts: int) -> Run:
        """Both, without what is older than `least_ts`."""
        values = np.concatenate([self.values, other.values])
        rows, ts = np.concatenate([self.rows, other.rows]), np.concatenate([self.ts, other.ts])
        kept = ts >= least_ts
        if not kept.all():
            values, rows, ts = values[kept], rows[kept], ts[kept]
        order = np.argsort(values, kind="stable")
        return Run(values[order], rows[order], ts[order])

    def size_bytes(self) -> int:
        """Bytes of all three."""
        return self.values.nbytes + self.rows.nbytes + self.ts.nbytes


class Runs:
    """Rows by a value each.

    Attributes:
        parts: the runs, the largest first.
    """

    def __init__(self) -> None:
        self.parts: list[Run] = []

    def __len__(self) -> int:
        return sum(len(run) for run in self.parts)

    def insert(self, values: I64, rows: I64, ts: I64, least_ts: int) -> None:
        """Enter rows, in any order; what is older than `least_ts` may go."""
        if not len(rows):
            return
        order = np.argsort(values, kind="stable")
        self.parts.append(Run(values[order], rows[order], ts[order]))
        while len(self.parts) > 1 and len(self.parts[-2]) < GROWTH * len(self.parts[-1]):
            last = self.parts.pop()
            self.parts[-1] = self.parts[-1].merged(last, least_ts)

    def purge(self, least_ts: int) -> None:
        """Drop runs of which nothing is left; others lose their oldest rows when they are merged."""
        self.parts = [run for run in self.parts if len(run) and int(run.ts.max()) >= least_ts]

    def size_bytes(self) -> int:
        """Bytes of all runs."""
        return sum(run.size_bytes() for run in self.parts)
