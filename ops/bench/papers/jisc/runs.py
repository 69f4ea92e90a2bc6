"""The workload of JISC's experiments, and an engine that runs it.

The paper joins n + 1 streams, data uniform and spread uniformly over the streams, windows of 10,000 tuples per
stream (JISC 6). Here each stream has one tuple every n + 1 ms, the streams one after another, so that a time
window of w (n + 1) ms is a window of exactly w tuples. A window has every key once, in an order of its own per
stream: a tuple finds one partner in every other stream, and each tuple makes one result. The paper does not describe
its keys, but its CACQ takes 0.8 microseconds per tuple and join, so its tuples do not fail early.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle, permutations

import numpy as np

from operators.engine.engine import Engine
from operators.migration.schedule import MigrationRecord
from operators.plan.plan import Plan, left_deep
from schemas.columns import I64, Batch, Column
from schemas.language.program import parse_program
from schemas.query import Query, Type

EPOCH_TUPLES = 32_768
"""Source tuples between two calls of `advance`, at most; the engine divides them further as needed."""

EPOCHS_PER_WINDOW = 8
"""The least number of epochs, so that the end of a migration is noticed."""


@dataclass(frozen=True, slots=True)
class Star:
    """S0 joined with S1 .. Sn by one key.

    Attributes:
        window: tuples per stream.
        theta: write the equality as two inequalities, so that nested loops evaluate it.
    """

    joins: int
    window: int
    theta: bool = False

    @property
    def streams(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(f"S{number}" for number in range(self.joins + 1))

    @property
    def step_ms(self) -> int:
        """Event time between two tuples of a stream."""
        return self.joins + 1

    @property
    def epoch_rows(self) -> int:
        """Rows between two calls of `advance`."""
        return max(1, min(EPOCH_TUPLES // (self.joins + 1), self.window // EPOCHS_PER_WINDOW))

    @property
    def warm_rows(self) -> int:
        """Tuples per stream until the state has its final size: tuples before the last window leave no trace."""
        return self.window + self.window // 8

    def query(self) -> Query:
        """The query."""
        hub, *others = self.streams
        lines = [
            f"CREATE STREAM {name} (ts TIMESTAMP, k BIGINT) WITH (topic = '{name}', timestamp = 'ts');"
            for name in self.streams
        ]
        equal = "{0}.k <= {1}.k AND {0}.k >= {1}.k" if self.theta else "{0}.k = {1}.k"
        lines.append(f"SELECT {hub}.k AS k FROM {', '.join(self.streams)}")
        # One step less than w steps: a window includes both its ends.
        lines.append(f"WINDOW RANGE {self.window * self.step_ms - 1} MILLISECONDS")
        lines.append("WHERE " + " AND ".join(equal.format(hub, other) for other in others) + ";")
        return parse_program("\n".join(lines)).queries[0]

    def plan(self) -> Plan:
        """The plan that joins S0 with S1, then S2, ..."""
        return left_deep(self.streams)

    def best(self) -> Plan:
        """The plan with the last two joins exchanged: one state is incomplete, that below the root (JISC, Fig. 5)."""
        *first, one, other = self.streams
        return left_deep((*first, other, one))

    def worst(self) -> Plan:
        """The plan that joins the last stream first: no intermediate state of the other plan helps."""
        hub, *middle, last = self.streams
        return left_deep((hub, last, *middle))

    def keys(self, rows: int, seed: int) -> I64:
        """(streams, rows) int64, the key of each stream's tuples."""
        rng = np.random.default_rng((seed, self.joins, self.window))
        orders = [rng.permutation(self.window) for _ in self.streams]
        return np.array([np.resize(order, rows) for order in orders], np.int64)


class Feed:
    """An engine that is fed rows of the workload; row r of all streams arrives together.

    Attributes:
        seconds: processor time spent in the engine so far.
        results: results so far.
    """

    def __init__(self, star: Star, keys: I64, plan: Plan | None = None, executor: str = "xjoin") -> None:
        self.star = star
        self.seconds = 0.0
        self.results = 0
        self.engine = Engine(star.query(), plan=plan or star.plan(), executor=executor, clock=time.perf_counter)
        self._keys = keys

    def rows(self, start: int, stop: int) -> float:
        """Feed rows start .. stop, epoch by epoch; the processor seconds that the engine took."""
        before = self.seconds
        step = self.star.epoch_rows
        for row in range(start, stop, step):
            self._epoch(row, min(row + step, stop))
        return self.seconds - before

    def _epoch(self, start: int, stop: int) -> None:
        step_ms = self.star.step_ms
        batches = []
        for number, name in enumerate(self.star.streams):
            ts = np.arange(start, stop, dtype=np.int64) * step_ms + number
            key = Column(Type.BIGINT, self._keys[number, start:stop])
            batches.append((name, Batch(ts, {"ts": Column(Type.TIMESTAMP, ts), "k": key})))
        began = time.process_time()
        for name, batch in batches:
            self.engine.push(name, 0, batch)
        self.results += len(self.engine.advance(stop * step_ms))
        self.seconds += time.process_time() - began

    def migrate(self, plan: Plan, strategy: str, row: int) -> MigrationRecord:
        """Change plans before a row; returns the record that the migration will fill."""
        self.engine.migrate(plan, strategy, row * self.star.step_ms)
        return self.engine.migrations[-1]

    @property
    def comparisons(self) -> int:
        """Predicate evaluations so far."""
        return self.engine.statistics().comparisons


class Turns:
    """Several engines that are fed the same rows, epoch by epoch in turn: other load on the machine affects all of
    them.

    Each order of the engines occurs equally often, since an engine that runs after itself, or after a smaller engine,
    finds more of its states in the processor's cache.
    """

    def __init__(self, feeds: Mapping[str, Feed]) -> None:
        self._feeds = feeds
        self._orders = cycle(list(permutations(feeds)))

    def rows(self, start: int, stop: int) -> dict[str, float]:
        """Feed rows start .. stop to each engine; returns the processor seconds that each took."""
        took = dict.fromkeys(self._feeds, 0.0)
        step = next(iter(self._feeds.values())).star.epoch_rows
        for row in range(start, stop, step):
            for name in next(self._orders):
                took[name] += self._feeds[name].rows(row, min(row + step, stop))
        return took
