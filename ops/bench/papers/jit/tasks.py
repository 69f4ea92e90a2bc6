"""Further workloads for `weir bench jit`, besides the paper's cliques; feedback cannot help some of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from operators.plan.choose import choose_plan, sample_statistics
from operators.plan.plan import Plan
from ops.bench.papers.jisc.runs import Star
from ops.bench.workloads import BEGIN_MS, Workload
from schemas.columns import Batch, Column
from schemas.query import Query, Type


@dataclass(frozen=True, slots=True)
class AllMatch:
    """JISC's star: every tuple has one partner in every other stream, so all intermediate results are demanded.

    Attributes:
        window: tuples per stream.
    """

    joins: int
    window: int

    @property
    def _star(self) -> Star:
        return Star(self.joins, self.window)

    @property
    def label(self) -> str:
        """A name for people."""
        return f"all tuples match, {self.joins} joins"

    @property
    def window_ms(self) -> int:
        """The window."""
        return self.window * self._star.step_ms

    def query(self) -> Query:
        """The star."""
        return self._star.query()

    def plan(self, query: Query) -> Plan:
        """The left-deep plan."""
        return self._star.plan()

    def batches(self, windows: float, seed: int) -> dict[str, Batch]:
        """One tuple of each stream, one stream after the other."""
        star = self._star
        keys = star.keys(round(windows * self.window), seed)
        found = {}
        for number, name in enumerate(star.streams):
            ts = np.arange(keys.shape[1], dtype=np.int64) * star.step_ms + number
            found[name] = Batch(ts, {"ts": Column(Type.TIMESTAMP, ts), "k": Column(Type.BIGINT, keys[number])})
        return found


@dataclass(frozen=True, slots=True, eq=False)
class FromEngineBench:
    """A workload of `weir bench engine`, with the plan that Weir chooses."""

    workload: Workload

    @property
    def label(self) -> str:
        """A name for people."""
        return f"{self.workload.name} of weir bench engine"

    @property
    def window_ms(self) -> int:
        """The window."""
        return self.workload.window_ms

    def query(self) -> Query:
        """Its query."""
        return self.workload.query()

    def plan(self, query: Query) -> Plan:
        """The plan from a sample of the events."""
        return choose_plan(query, sample_statistics(query, self.workload.second(0, 0)))

    def batches(self, windows: float, seed: int) -> dict[str, Batch]:
        """Its events, which begin at event time 0 here."""
        found = {}
        for name, batch in self.workload.seconds(0, -(-round(windows * self.window_ms) // 1000), seed).items():
            ts = batch.ts - BEGIN_MS
            found[name] = Batch(ts, {**batch.columns, "ts": Column(Type.TIMESTAMP, ts)})
        return found
