"""`weir bench cleanup`: this process and Spark clean up the same backlog, from the same parts.

Three streams are joined by keys of their own, each key about once in each stream, in windows that never end. The memory
budget fits a small share of the state. So results are pending among tuples from the whole run. This process and Spark
merge parts with the same code. Spark has to start, to read the parts from Parquet, and to move each group's parts to
one executor.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from operators.engine.engine import Engine
from operators.plan.plan import parse_plan
from operators.spill.cleanup.offline import OfflineCleanup, clean_up_all
from operators.spill.spilling import MemoryBudget
from operators.spill.strategies import DEFAULT_STRATEGY
from ops.bench.measuring.measure import Progress, clocked, repeat
from ops.bench.measuring.report import Report
from ops.spark.cleanup import Cluster, results_of_backlog
from schemas.columns import Batch, Column
from schemas.errors import InvariantError
from schemas.language.program import parse_program
from schemas.query import Type
from services.spill.backlog import OpenBacklog, open_backlog, save_backlog
from services.spill.block_store import SpillStore

TEXT = """\
CREATE STREAM a (k BIGINT, at TIMESTAMP) WITH (topic = 'a', timestamp = 'at');
CREATE STREAM b (k BIGINT, v BIGINT, at TIMESTAMP) WITH (topic = 'b', timestamp = 'at');
CREATE STREAM c (v BIGINT, at TIMESTAMP) WITH (topic = 'c', timestamp = 'at');
SELECT A.k AS k, B.v AS v, C.at AS last FROM a A, b B, c C WHERE A.k = B.k AND B.v = C.v WINDOW UNBOUNDED;
"""
PLAN = "((A B) C)"
FIELDS = {"a": ("k",), "b": ("k", "v"), "c": ("v",)}
PUSHED = 20_000
"""Tuples per stream that are pushed at once."""

LEAST_BUDGET = 4 << 20
BUDGET_BYTES = 8
"""The budget per source tuple, unless a minimum applies: a tenth of what the tuple takes, or less."""


@dataclass(frozen=True, slots=True)
class CleanupSettings:
    """Sizes of `weir bench cleanup`.

    Attributes:
        tuples: of all streams.
    """

    tuples: int = 1_000_000
    master: str = "local[*]"
    runs: int = 3
    seed: int = 1


@dataclass(frozen=True, slots=True)
class CleanupOutcome:
    """The results of a cleanup: how many, and a sum that distinguishes them from other results."""

    results: int
    digest: int


def bench_cleanup(settings: CleanupSettings, progress: Progress) -> Report:
    """Make a backlog and clean it up in both ways, again and again.

    Raises:
        InvariantError: the two find different results.
        WeirError: the backlog cannot be made, or Spark fails.
    """
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
        path = Path(folder) / "backlog"
        with clocked() as made:
            _make(settings, path, progress)
        with open_backlog(path) as debt:
            outcomes: dict[str, list[float]] = {"this process": [], "Spark": []}

            def one() -> None:
                found = []
                for name, pay in (("this process", _locally), ("Spark", lambda own: _by_spark(own, settings, folder))):
                    progress.say(f"{name} cleans up")
                    with clocked() as took:
                        found.append(pay(debt))
                    outcomes[name].append(took[0].seconds)
                if found[0] != found[1]:
                    raise InvariantError(f"this process found {found[0]}, Spark {found[1]}")
                nonlocal results
                results = found[0].results

            results = 0
            repeat(settings.runs, "cleanup", progress, one)
            contents = debt.manifest.pending
            keys = {p.key for g in contents.groups for q in g.parts for p in (*q.left, *q.right)}
            stored = sum(len(debt.blocks.get(key)) for key in keys)
            report = Report(
                "The cleanup of a backlog, by one process and by Spark",
                ("On one machine this process should win, having nothing to move; Spark's handicap falls with size.",),
                {
                    "source tuples": f"{settings.tuples:,}",
                    "spilled parts": (
                        f"{contents.tuples():,} tuples in {len(contents.groups):,} groups, {stored / 1e6:,.0f} MB"
                    ),
                    "pending results": f"{results:,}",
                    "run that left them": f"{made[0].seconds:.1f} s",
                    "master": settings.master,
                    "seed": settings.seed,
                },
            )
        for name, seconds in outcomes.items():
            report.add(f"{name}, whole cleanup", "s", seconds)
            report.add(f"{name}, spilled tuples", "tuples/s", [contents.tuples() / own for own in seconds])
        ratios = [own / other for own, other in zip(*reversed(outcomes.values()), strict=True)]
        report.add("Spark to this process", "x the time", ratios, note="start of Spark included")
        return report


def _make(settings: CleanupSettings, path: Path, progress: Progress) -> None:
    """Run the query and leave its backlog in a folder."""
    (query,) = parse_program(TEXT).queries
    per_stream = settings.tuples // 3
    budget = MemoryBudget(max(LEAST_BUDGET, settings.tuples * BUDGET_BYTES), DEFAULT_STRATEGY)
    store = SpillStore(path)
    engine = Engine(query, plan=parse_plan(PLAN, query), budget=budget, blocks=store)
    rng = np.random.default_rng(settings.seed)
    for begin in range(0, per_stream, PUSHED):
        progress.say(f"the run that leaves the backlog, {begin / per_stream:.0%}")
        times = np.arange(begin, min(begin + PUSHED, per_stream), dtype=np.int64)
        for name, fields in FIELDS.items():
            engine.push(name, 0, _rows(fields, times, per_stream, rng))
        engine.advance()
        engine.cleaned()
    for name in FIELDS:
        engine.close(name, 0)
    engine.advance()
    debt = engine.write_backlog()
    if debt is None:
        raise InvariantError(f"{settings.tuples:,} tuples in {budget.limit_bytes:,} bytes leave no results pending")
    save_backlog(path, store, TEXT, query, debt, owed_pairs=0)
    store.close()


def _rows(fields: tuple[str, ...], times: np.ndarray, keys: int, rng: np.random.Generator) -> Batch:
    columns = {name: Column(Type.BIGINT, rng.integers(0, keys, len(times))) for name in fields}
    return Batch(times, {**columns, "at": Column(Type.TIMESTAMP, times)})


def _locally(debt: OpenBacklog) -> CleanupOutcome:
    contents = debt.manifest.pending
    return _summed(clean_up_all(OfflineCleanup(debt.query, contents), contents, debt.blocks))


def _by_spark(debt: OpenBacklog, settings: CleanupSettings, folder: str) -> CleanupOutcome:
    with tempfile.TemporaryDirectory(dir=folder) as share:
        return _summed(results_of_backlog(debt, Cluster(settings.master, share), lambda text: None))


def _summed(groups: Iterable[tuple[int, Iterable[Batch]]]) -> CleanupOutcome:
    results, digest = 0, 0
    for _, batches in groups:
        for batch in batches:
            results += len(batch)
            mixed = np.zeros(len(batch), np.uint64)
            for column in batch.columns.values():
                mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + column.values.astype(np.uint64)
            digest = (digest + int(np.sum(mixed * mixed, dtype=np.uint64))) % 2**64
    return CleanupOutcome(results, digest)
