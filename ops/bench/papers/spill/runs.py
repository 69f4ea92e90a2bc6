"""The workload of the state-spill experiments: five streams, three joins, values that repeat at individual rates.

State-spill 6.1: streams A, B, C, D, E of two columns each; Join1 is A.x = B.x = C.x, Join2 D.x = C.y, Join3 E.x = D.y;
a tuple every 50 ms per stream. A value appears R times for every K tuples of its column: K is the *tuple range*, R the
*range join ratio*. Values of different partitions have different ratios; their average is the *join ratio* of the join.
The paper does not say how they differ. Here a third of the partitions, picked at random per join, has twice the
average, a third two thirds and a third one third; or ratios fall by rank by Zipf's law. With `phases`, partitions
exchange their ratios `phases` - 1 times, which makes drifting data.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from operators.data.statistics import SpillStatistics
from operators.data.watermark import END
from operators.engine.engine import Engine
from operators.kernels.hashing import F64, U64, combine_words, mix_words
from operators.kernels.partition import groups_of
from operators.plan.plan import Plan, parse_plan
from operators.spill.spilling import MemoryBudget
from operators.spill.strategies import DEFAULT_STRATEGY
from schemas.columns import I64, Batch, Column
from schemas.errors import InvariantError
from schemas.language.program import parse_program
from schemas.query import Query, Type
from services.spill.block_store import SpillStore

PLAN = "((((A B) C) D) E)"
ALL_IN_MEMORY = "all in memory"
INTERARRIVAL_MS = 50
THIRDS = (2.0, 2.0 / 3.0, 1.0 / 3.0)
"""The ratio as a multiple of the average, in a third of the partitions each."""

COLUMNS = {"A": (0, None), "B": (0, None), "C": (0, 1), "D": (1, 2), "E": (2, None)}
"""The joins that each stream's x and y belong to; a column without one has the tuple's number."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One setting.

    Attributes:
        ratios: join ratios of Join1, Join2, Join3.
        tuple_range: K.
        tuples: per stream.
        partitions: values in one partition share a ratio; of the key's hash, as the engine's partition groups are.
        zipf: ratios fall with this power of the partition's rank; 0 for thirds.
        phases: parts of equal length between which partitions exchange ratios.
    """

    ratios: tuple[float, float, float]
    tuple_range: int = 6_000
    tuples: int = 12_000
    partitions: int = 300
    zipf: float = 0.0
    phases: int = 1

    @property
    def name(self) -> str:
        """The name that the paper uses: 3-1-1."""
        return "-".join(f"{ratio:g}" for ratio in self.ratios)

    @property
    def minutes(self) -> float:
        """Length of the input in minutes of event time."""
        return self.tuples * INTERARRIVAL_MS / 60_000

    def steps(self, number: int) -> Iterator[tuple[int, int]]:
        """The row ranges of each stream, divided into `number` steps."""
        for step in range(number):
            yield self.tuples * step // number, self.tuples * (step + 1) // number

    def query(self, window: str = "UNBOUNDED") -> Query:
        """The three joins."""
        declared = "\n".join(
            f"CREATE STREAM {name} (ts TIMESTAMP, x BIGINT, y BIGINT) WITH (topic = '{name}', timestamp = 'ts');"
            for name in COLUMNS
        )
        sources = ", ".join(f"{name} [{window}]" for name in COLUMNS)
        return parse_program(
            f"{declared}\nSELECT A.y AS a, B.y AS b, C.y AS c, D.y AS d, E.y AS e FROM {sources} "
            "WHERE A.x = B.x AND B.x = C.x AND C.y = D.x AND D.y = E.x;"
        ).queries[0]

    def plan(self) -> Plan:
        """The left-deep plan, with Join1 as its two binary joins."""
        return parse_plan(PLAN, self.query())

    def partition_ratios(self, join: int, seed: int, phase: int = 0) -> F64:
        """(partitions,) the ratio of each partition's values in a join."""
        rank = np.random.default_rng((seed, join)).permutation(self.partitions)
        rank = (rank + phase * (self.partitions // 3)) % self.partitions
        if self.zipf:
            shares = 1.0 / (rank + 1.0) ** self.zipf
        else:
            shares = np.array(THIRDS)[rank * 3 // self.partitions]
        found: F64 = shares * (self.ratios[join] / shares.mean())
        return found

    def values(self, join: int, seed: int, phase: int = 0) -> tuple[I64, F64]:
        """The values of a join's columns and the ratio of each, which sum to the tuple range."""
        by_partition = self.partition_ratios(join, seed, phase)
        count = max(1, round(self.tuple_range / self.ratios[join]))
        values = np.arange(count, dtype=np.int64) + (join + 1) * 1_000_000_000
        ratios = by_partition[groups_of(mix_words(values.view(np.uint64)), self.partitions)]
        return values, ratios * (self.tuple_range / ratios.sum())

    def column(self, stream: str, join: int, seed: int) -> I64:
        """(tuples,) the values of a stream's column: a value of ratio R occurs once in every K / R tuples, at
        random."""
        rng = np.random.default_rng((seed, join, ord(stream)))
        parts = []
        ends = [self.tuples * (phase + 1) // self.phases for phase in range(self.phases)]
        for phase, length in enumerate(np.diff([0, *ends]).tolist()):
            values, ratios = self.values(join, seed, phase)
            copies = length / self.tuple_range * ratios
            whole = np.ceil(copies + 1).astype(np.int64)
            which = np.repeat(np.arange(len(values)), whole)
            turn = np.arange(len(which)) - np.repeat(np.cumsum(whole) - whole, whole)
            # Each value's first interval begins anywhere before the first tuple, so that values are not in step.
            begin = rng.random(len(values))[which]
            at = (turn + rng.random(len(which)) - begin) / ratios[which]
            order = np.argsort(at, kind="stable")
            order = order[at[order] >= 0.0][:length]
            parts.append(values[which[order]])
        return np.concatenate(parts)

    def batches(self, seed: int) -> dict[str, Batch]:
        """All tuples of each stream."""
        found = {}
        number = np.arange(self.tuples, dtype=np.int64)
        for offset, (name, joins) in enumerate(COLUMNS.items()):
            ts = number * INTERARRIVAL_MS + offset
            columns = {"ts": Column(Type.TIMESTAMP, ts)}
            for label, join in zip("xy", joins, strict=True):
                values = number if join is None else self.column(name, join, seed)
                columns[label] = Column(Type.BIGINT, values)
            found[name] = Batch(ts, columns)
        return found


@dataclass(frozen=True, slots=True)
class Trace:
    """The measurements of one run.

    Attributes:
        minutes: of event time, at the end of each step.
        results: so far, at the end of each step; late ones of cleanups while it runs included.
        memory_bytes: at the end of each step: what states and source tuples take.
        seconds, cleanup_seconds: processor seconds of the run-time phase, and of the cleanup after it.
        cleanup_results: of that cleanup.
        longest_spill_s: by the wall clock.
        step_seconds: processor seconds of each step.
        waits: wall seconds that each step took: the longest wait of a tuple that arrives during the step.
        moved: of each step, whether a group left memory in it, was written, or was cleaned up.
        digest: of all results, those of cleanups included, whatever their order.
        budget_bytes: the limit of `memory_bytes`; 0 where nothing is spilled.
    """

    minutes: list[float]
    results: list[int]
    memory_bytes: list[int]
    input_tuples: int
    seconds: float
    spills: int = 0
    spilled_groups: int = 0
    spilled_tuples: int = 0
    cleanup_results: int = 0
    cleanup_seconds: float = 0.0
    longest_spill_s: float = 0.0
    step_seconds: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    moved: list[bool] = field(default_factory=list)
    digest: int = 0
    budget_bytes: int = 0


NO_LIMIT = 1 << 60
"""A budget of so many bytes is never used up: runs with all in memory are measured in the same way."""


def run(
    workload: Workload, strategy: str, budget_bytes: int, *, seed: int, steps: int, window: str = "UNBOUNDED"
) -> Trace:
    """One run of the engine; spilled state goes to a folder of its own.

    Args:
        strategy: of `operators.spill.strategies`, or ALL_IN_MEMORY.
        steps: how many steps the input is divided into; the engine divides them further as needed.
    """
    # States of the previous run reference each other; the collector, set up as in a task, would keep them for long.
    gc.collect()
    batches = workload.batches(seed)
    whole = strategy == ALL_IN_MEMORY
    budget = MemoryBudget(
        NO_LIMIT if whole else budget_bytes, DEFAULT_STRATEGY if whole else strategy, groups=workload.partitions
    )
    minutes, results, used, seconds, waits, moved = [], [], [], [], [], []
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder, closing(SpillStore(Path(folder))) as blocks:
        engine = Engine(
            workload.query(window), plan=workload.plan(), budget=budget, blocks=blocks, clock=time.perf_counter
        )
        found, sum_, before = 0, 0, spill_of(engine)
        for begin, end in workload.steps(steps):
            pieces = {name: batch.slice(begin, end) for name, batch in batches.items()}
            began, wall = time.process_time(), time.perf_counter()
            for name, piece in pieces.items():
                engine.push(name, 0, piece)
            out = [engine.advance(end * INTERARRIVAL_MS), *engine.cleaned()]
            seconds.append(time.process_time() - began)
            waits.append(time.perf_counter() - wall)
            found += sum(map(len, out))
            sum_ += sum(map(result_digest, out))
            minutes.append(end * INTERARRIVAL_MS / 60_000)
            results.append(found)
            now = spill_of(engine)
            used.append(now.used_bytes)
            moved.append(_moves(now) != _moves(before))
            before = now
        began = time.process_time()
        last = engine.advance(END)
        engine.clean()
        cleaned = engine.cleaned()
        cleanup_seconds = time.process_time() - began
        after = spill_of(engine)
    if after.owed:
        raise InvariantError(f"{after.owed} pairs are still pending after the cleanup")
    return Trace(
        minutes=minutes,
        results=results,
        memory_bytes=used,
        input_tuples=sum(map(len, batches.values())),
        seconds=sum(seconds),
        spills=after.spills,
        spilled_groups=after.spilled_groups,
        spilled_tuples=after.spilled_tuples,
        cleanup_results=len(last) + sum(map(len, cleaned)),
        cleanup_seconds=cleanup_seconds,
        longest_spill_s=after.longest_spill_s,
        step_seconds=seconds,
        waits=waits,
        moved=moved,
        digest=(sum_ + sum(map(result_digest, [last, *cleaned]))) % 2**64,
        budget_bytes=0 if whole else budget_bytes,
    )


def _moves(spilled: SpillStatistics) -> tuple[int, ...]:
    """The counters that grow with everything that is done to spilled state."""
    return spilled.spilled_groups, spilled.spilled_bytes, spilled.cleanups


def digest(columns: Iterable[I64]) -> int:
    """A number that distinguishes sets of rows, whatever their order."""
    acc: U64 | None = None
    for values in columns:
        words = np.ascontiguousarray(values).view(np.uint64)
        acc = mix_words(words) if acc is None else combine_words(acc, words)
    return 0 if acc is None else int(acc.sum(dtype=np.uint64))


def result_digest(results: Batch) -> int:
    """`digest` of results."""
    return digest(results.columns[name].values.astype(np.int64, copy=False) for name in "abcde")


def spill_of(engine: Engine) -> SpillStatistics:
    """The spill statistics of an engine with a budget."""
    found = engine.statistics().spill
    if found is None:
        raise InvariantError("the engine has no memory budget")
    return found
