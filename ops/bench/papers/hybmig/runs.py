"""The workload of HybMig's experiments, and one migration under a simulated clock.

A clique: n streams with a join predicate between each pair, by nested loops. Values are uniform in 1 .. 20, so that
a pair is joined with the paper's selectivity of 0.05; those of the rare stream in 1 .. 400, so that it is joined with
0.0025. Before the migration the first stream is rare, from then on the last (HybMig 5.1).

The paper does not say on which attributes. Its text fits two readings, each in some parts, so the benchmark has both:

- `shared`: all predicates are on one attribute. The states grow with every join, to a million tuples at the default.
  That fits the memory that the paper ran out of, and HybMig's lead over Parallel Track.
- else every pair has an attribute of its own. The states shrink with every join, and Moving State compares as much as
  Parallel Track does in 50 seconds. That fits what the paper says about saturation. So many independent predicates
  would let no result through, so there are events that all streams report: every tenth tuple of a stream (one in 200
  where the stream is rare) carries the values of one of `KINDS` kinds, which match in every attribute.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from math import inf, isinf

import numpy as np

from operators.aggregate.aggregator import Aggregator
from operators.data.tuples import Tuples
from operators.join.executor import Executor
from operators.join.tree import XJoinTree
from operators.migration.black_box import GeneralizedHybrid, GeneralizedMovingState, GeneralizedParallelTrack
from operators.migration.hybmig import HybMig
from operators.migration.jisc.strategy import Jisc
from operators.migration.migration import Migration, all_states
from operators.migration.moving_state import MovingState
from operators.migration.parallel_track import ParallelTrack
from operators.plan.plan import Join, Leaf, Plan, left_deep
from operators.state.sources import Sources
from ops.bench.papers.hybmig.simulated_clock import SimulatedClock
from schemas.columns import I64, Batch, Column
from schemas.language.program import parse_program
from schemas.query import Query, Type

VALUES, RARE_VALUES = 20, 400
KINDS, EVERY = 10, 10
"""Kinds of events, and at which distance in tuples a stream reports an event, kind after kind."""

SLICE_MS = 500
"""Event time that is processed together: no result waits longer for its slice."""

WARM_WINDOWS = 1.1
"""The paper warms up for five windows; tuples before the last window leave no trace."""


@dataclass(frozen=True, slots=True)
class Clique:
    """The default task: w = 3 minutes, 1 tuple per second and stream, 6 streams (HybMig, Table 3).

    Attributes:
        shared: whether all pairs' predicates are on one and the same attribute.
        median: whether a sliding median is above the join, every second (HybMig 5.3).
    """

    minutes: float = 3.0
    rate: float = 1.0
    streams: int = 6
    shared: bool = False
    median: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The streams."""
        return tuple("ABCDEFGH"[: self.streams])

    @property
    def window_ms(self) -> int:
        """The window w."""
        return round(self.minutes * 60_000)

    @property
    def cut_ms(self) -> int:
        """When the migration begins."""
        return round(WARM_WINDOWS * self.window_ms)

    def attributes(self, name: str) -> list[str]:
        """A stream's join columns: one per other stream, or one for all."""
        return list(dict.fromkeys(self._attribute(*pair) for pair in combinations(self.names, 2) if name in pair))

    def _attribute(self, one: str, other: str) -> str:
        return "k" if self.shared else f"{one}{other}".lower()

    def query(self) -> Query:
        """The clique."""
        lines = []
        for name in self.names:
            fields = ", ".join(f"{column} BIGINT" for column in self.attributes(name))
            lines.append(
                f"CREATE STREAM {name} (ts TIMESTAMP, v BIGINT, {fields}) WITH (topic = '{name}', timestamp = 'ts');"
            )
        chosen = "MEDIAN(A.v) AS median" if self.median else "A.ts AS ts"
        lines.append(f"SELECT {chosen} FROM {', '.join(self.names)} WINDOW RANGE {self.window_ms} MILLISECONDS WHERE")
        lines.append(
            " AND ".join(
                f"{one}.{self._attribute(one, other)} {op} {other}.{self._attribute(one, other)}"
                for one, other in combinations(self.names, 2)
                for op in ("<=", ">=")
            )
        )
        every = " EMIT EVERY 1 SECOND;" if self.median else ";"
        return parse_program("\n".join(lines) + every).queries[0]

    def old(self) -> Plan:
        """The left-deep plan."""
        return left_deep(self.names)

    def right_deep(self) -> Plan:
        """The right-deep plan, which joins the last stream first."""
        return _right_deep(self.names)

    def bushy(self) -> Plan:
        """Like right-deep, but the streams n - 4 and n - 3 are joined with each other first."""
        first, pair, last = self.names[:-4], self.names[-4:-2], self.names[-2:]
        plan: Plan = Join(_right_deep(pair), _right_deep(last))
        for name in reversed(first):
            plan = Join(Leaf(name), plan)
        return plan

    def sharing(self) -> Plan:
        """The old plan, except that the last two streams are joined with each other first (Fig. 20)."""
        return Join(left_deep(self.names[:-2]), _right_deep(self.names[-2:]))

    def batches(self, seconds: float, seed: int) -> dict[str, Batch]:
        """All tuples from the start of the warm-up (0) to so many seconds after the start of the migration."""
        rng = np.random.default_rng((seed, self.streams))
        kinds = {self._attribute(*pair): rng.integers(1, VALUES + 1, KINDS) for pair in combinations(self.names, 2)}
        cut = self.cut_ms
        count = int((cut + seconds * 1000) / 1000 * self.rate)
        out = {}
        for number, name in enumerate(self.names):
            ts = ((np.arange(count) + number / self.streams) * 1000 / self.rate).astype(np.int64)
            rare = (ts < cut) if name == self.names[0] else (ts >= cut) & (name == self.names[-1])
            turn, place = np.divmod(np.arange(count) + rng.integers(0, EVERY * KINDS), EVERY)
            rarely, left_out = np.divmod(turn, RARE_VALUES // VALUES)
            seen = (place == 0) & (~rare | (left_out == 0)) & (not self.shared)
            kind = np.where(rare, rarely, turn) % KINDS
            columns = {"ts": Column(Type.TIMESTAMP, ts), "v": Column(Type.BIGINT, rng.integers(0, 1_000_000, count))}
            for column in self.attributes(name):
                values = rng.integers(1, np.where(rare, RARE_VALUES, VALUES) + 1, count)
                columns[column] = Column(Type.BIGINT, np.where(seen, kinds[column][kind], values))
            out[name] = Batch(ts, columns)
        return out


def _right_deep(names: tuple[str, ...]) -> Plan:
    plan: Plan = Leaf(names[-1])
    for name in reversed(names[:-1]):
        plan = Join(Leaf(name), plan)
    return plan


Begin = Callable[[Executor, Plan, int], Migration]


def _black_box(strategy: Callable[[Executor, Executor, int], Migration]) -> Begin:
    return lambda old, plan, cut: strategy(old, XJoinTree(old.sources, plan), cut)


def _held_back(old: Executor, new: Executor, cut: int) -> Migration:
    return ParallelTrack(old, new, cut, hold_back=True)


def _ghm(old: Executor, new: Executor, cut: int) -> Migration:
    return GeneralizedHybrid(old, new, cut, share=0.0, piece_tuples=8)


STRATEGIES: dict[str, Begin] = {
    "MS": MovingState,
    "PT": _black_box(_held_back),
    "HybMig": lambda old, plan, cut: HybMig(old, plan, cut, background=False),
    "HybMig without sharing": lambda old, plan, cut: HybMig(old, plan, cut, background=False, decompose=False),
    "HybMig+BSC": lambda old, plan, cut: HybMig(old, plan, cut, background=True, share=0.0),
    "JISC": Jisc,
    "GMS": _black_box(GeneralizedMovingState),
    "GPT": _black_box(GeneralizedParallelTrack),
    "GHM": _black_box(_ghm),
}
"""As in the paper: PT holds the new plan's output back, and background work takes the spare time."""

BACKGROUND = {"HybMig+BSC", "GHM"}
"""The strategies that work in the background."""


@dataclass(slots=True)
class Trace:
    """One migration, in seconds since it began, by the simulated clock.

    Attributes:
        outputs: results by the second in which they left.
        compared: predicate evaluations by the second in which they were done.
        memory: tuples in all states, and those that wait, at the end of each second.
        finished_s: when the old plan, and everything else of the migration, was gone.
        caught_up_s: when, for the first time after the migration had finished, no tuple waited.
        longest_delay_s: the longest time from a result's timestamp to its output.
        silent_s: from the start of the migration to the first result.
        results: how many in all.
    """

    outputs: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    compared: dict[int, float] = field(default_factory=dict)
    memory: dict[int, int] = field(default_factory=dict)
    finished_s: float = inf
    caught_up_s: float = inf
    longest_delay_s: float = 0.0
    silent_s: float = inf
    results: int = 0

    @property
    def comparisons(self) -> float:
        """The number of all predicate evaluations."""
        return sum(self.compared.values())

    @property
    def peak_tuples(self) -> int:
        """The most tuples in memory at the end of any second."""
        return max(self.memory.values())


def run(
    clique: Clique, target: Plan, strategy: str, *, capacity: float = inf, windows: float = 1.2, seed: int = 1
) -> Trace:
    """Warm up, migrate, and go on until `windows` windows have passed and all their tuples are processed.

    Args:
        capacity: comparisons per second.
    """
    return _Run(clique, target, strategy, capacity, windows, seed).trace


class _Run:
    """The engine's loop with a simulated clock: slices wait while the processor is busy."""

    def __init__(self, clique: Clique, target: Plan, strategy: str, capacity: float, windows: float, seed: int) -> None:
        query = clique.query()
        self._cut = clique.cut_ms
        self._end = self._cut + round(windows * clique.window_ms)
        self._per_second = clique.rate * clique.streams
        self._sources = Sources(query)
        self._executor: Executor = XJoinTree(self._sources, clique.old())
        self._aggregator = Aggregator(query, self._sources) if clique.median else None
        self._batches = clique.batches(windows * clique.minutes * 60, seed)
        self._place = dict.fromkeys(self._batches, 0)
        self._clock = SimulatedClock(capacity)
        self._noted = -1
        self.trace = Trace()
        for at in _slices(0, self._cut):
            self._slice(at)
            self._purge(at)
        self._migrate(target, strategy)

    def _slice(self, at: int) -> I64:
        """Process the tuples with ts < at that have not been processed; returns the ts of the results."""
        epoch = {}
        now = at
        for name, batch in self._batches.items():
            start = self._place[name]
            stop = self._place[name] = int(np.searchsorted(batch.ts, at))
            if stop == start:
                continue
            part = batch.slice(start, stop)
            rows = self._sources.stores[name].append(part)
            epoch[name] = Tuples((name,), rows[np.newaxis], part.ts, self._sources.expiry(name, rows, part.ts))
            now = min(now, int(part.ts[0]))
        self._sources.cut = at
        found = self._executor.process(epoch, now)
        return found.ts if self._aggregator is None else self._aggregator.process(found, at).ts

    def _purge(self, at: int) -> None:
        self._executor.purge(at)
        self._sources.purge(at if self._aggregator is None else self._aggregator.needed_from(at))

    def _migrate(self, target: Plan, strategy: str) -> None:
        trace, clock = self.trace, self._clock
        before = self._executor.comparisons()
        migration = STRATEGIES[strategy](self._executor, target, self._cut)
        self._executor = migration
        clock.work(migration.comparisons() - before)
        running: Migration | None = migration
        for at in _slices(self._cut, self._end):
            arrived = (at - self._cut) / 1000
            if running is not None and running.finished:
                self._executor, running = running.current, None
                trace.finished_s = clock.now
            clock.wait_until(arrived)
            compared = self._executor.comparisons()
            out = self._slice(at)
            clock.work(self._executor.comparisons() - compared)
            self._note_results(out)
            self._purge(at)
            if running is not None and strategy in BACKGROUND:
                self._use_spare_time(running, at, arrived + SLICE_MS / 1000)
            if running is None and isinf(trace.caught_up_s) and clock.now < arrived + SLICE_MS / 1000:
                trace.caught_up_s = clock.now
            self._note_memory(at)
        trace.compared = dict(clock.spent)

    def _use_spare_time(self, migration: Migration, at: int, until: float) -> None:
        """Do background work while the processor is idle, a tuple at a time."""
        while not migration.finished and self._clock.now < until:
            compared = migration.comparisons()
            if isinstance(migration, HybMig):
                migration.work(1, at - 1)
            elif isinstance(migration, GeneralizedHybrid):
                migration.work(1)
                migration.purge(at)
            self._clock.work(migration.comparisons() - compared)

    def _note_results(self, ts: I64) -> None:
        """Note results that leave now; their ts is when they could have left."""
        trace = self.trace
        if len(ts) == 0:
            return
        trace.results += len(ts)
        trace.silent_s = min(trace.silent_s, self._clock.now)
        trace.outputs[int(self._clock.now)] += len(ts)
        delay = self._clock.now - (int(ts[0]) - self._cut) / 1000
        trace.longest_delay_s = max(trace.longest_delay_s, delay)

    def _note_memory(self, at: int) -> None:
        """Note the living tuples of all states, and the waiting tuples since `at`, for the seconds that are now
        over."""
        if int(self._clock.now) <= self._noted:
            return
        executor = self._executor
        executors = executor.executors() if isinstance(executor, Migration) else (executor,)
        states = {id(state): state for one in executors for state in all_states(one)}
        held = sum(int(np.count_nonzero(state.tuples().expiry >= at)) for state in states.values())
        for second in range(self._noted + 1, int(self._clock.now) + 1):
            waiting = (min(second, (self._end - self._cut) / 1000) - (at - self._cut) / 1000) * self._per_second
            self.trace.memory[second] = held + max(0, round(waiting))
            self._noted = second


def _slices(start: int, end: int) -> Iterator[int]:
    """The ends of the slices between two times."""
    return iter([*range(start + SLICE_MS, end, SLICE_MS), end])
