"""Runs Juggler's workloads step by step: a query by one plan, or a group by one operator or by one engine per query.

Runs that are compared take their steps in turn, so that other load on the machine slows all of them down:
one after the other, the same run took up to half as long again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from operators.data.watermark import END
from operators.engine.engine import Engine
from operators.groups.engine import GroupEngine
from operators.groups.shared import SharedQueries
from operators.groups.sharing import APART, group_engine
from operators.groups.standalone import StandaloneQuery
from operators.join.executor import JUGGLER
from operators.juggler.operator import Juggler
from operators.juggler.routing.tuples_in_flight import QUERIES
from operators.juggler.state.sources import GroupSources
from operators.kernels.hashing import combine_words, mix_words
from operators.plan.plan import parse_plan
from ops.bench.papers.juggler.workloads import STEP_MS, Group
from schemas.columns import Batch
from schemas.errors import InvariantError
from schemas.groups import QueryGroup, query_group, streams_of
from schemas.query import Query


@dataclass(slots=True)
class Trace:
    """The measurements of one run.

    Attributes:
        seconds: processor seconds of each step.
        results: of each step, all queries together.
        comparisons, intermediate: so far, at the end of each step.
        peak_bytes: of states and stores.
        digest: of all queries' results so far, in their order.
    """

    input_tuples: int
    seconds: list[float] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    comparisons: list[int] = field(default_factory=list)
    intermediate: list[int] = field(default_factory=list)
    peak_bytes: int = 0
    digest: int = 0

    @property
    def total_s(self) -> float:
        """Processor seconds of the whole run."""
        return sum(self.seconds)

    @property
    def pace(self) -> float:
        """Source tuples per processor second."""
        return self.input_tuples / self.total_s


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a run.

    Attributes:
        length: of the input, in units of `STEP_MS`.
        steps: how many steps the input is divided into.
    """

    length: int
    steps: int


Steps = Iterator[Trace]
"""A run in progress: yields its trace after every step, always the same object."""


def in_turn(runs: Mapping[str, Steps]) -> dict[str, Trace]:
    """Run all with the same number of steps: each step by all before the next, each time starting with another run."""
    found: dict[str, Trace] = {}
    waiting = list(runs)
    while waiting:
        # Either all runs have another step, or all have ended.
        after = {name: next(runs[name], None) for name in waiting}
        found |= {name: trace for name, trace in after.items() if trace is not None}
        waiting = [name for name in (*waiting[1:], waiting[0]) if after[name] is not None]
    return {name: found[name] for name in runs}


def one_by_one(runs: Mapping[str, Steps]) -> dict[str, Trace]:
    """Finish every run before the next: a step finds the processor's caches as the run's last step has left them."""
    return {name: in_turn({name: steps})[name] for name, steps in runs.items()}


def plan_steps(group: Group, plan: str | None, executor: str, size: Size, seed: int) -> Steps:
    """Run the group's one query by a plan."""
    (query,) = group.queries()
    tree = None if plan is None else parse_plan(plan, query, multiway=True)
    return _steps(Engine(query, plan=tree, executor=executor), group, size, seed)


def group_steps(group: Group, how: str, size: Size, seed: int, encoding: str = QUERIES) -> Steps:
    """Run all queries of the group.

    Args:
        how: an order of predicate types or `adaptive`, in one operator; or `apart`, each query in an engine of its own.
    """
    if how == APART:
        return _steps(group_engine(group.queries(), executor=APART), group, size, seed)
    return steps_with(group, lambda sources, of: Juggler(sources, of, how, encoding), size, seed)


def run_group(group: Group, how: str, size: Size, seed: int, encoding: str = QUERIES) -> Trace:
    """Run all steps of `group_steps`."""
    return in_turn({how: group_steps(group, how, size, seed, encoding)})[how]


def run_with(group: Group, operator: Callable[[GroupSources, QueryGroup], Juggler], size: Size, seed: int) -> Trace:
    """Run all queries of the group in one operator, which `operator` makes; all steps."""
    return in_turn({JUGGLER: steps_with(group, operator, size, seed)})[JUGGLER]


def steps_with(group: Group, operator: Callable[[GroupSources, QueryGroup], Juggler], size: Size, seed: int) -> Steps:
    """Run all queries of the group in one operator, which `operator` makes."""
    queries = group.queries()
    return _steps(GroupEngine(queries, streams_of(queries), _Together(operator)), group, size, seed)


@dataclass(frozen=True, slots=True)
class _Together:
    """Builds a group's engine: all queries in one operator."""

    operator: Callable[[GroupSources, QueryGroup], Juggler]

    def can_share(self, query: Query) -> bool:
        return True

    def shared(self, queries: Sequence[Query]) -> SharedQueries:
        return SharedQueries(query_group(queries), self.operator, name=JUGGLER)

    def standalone(self, query: Query) -> StandaloneQuery:
        raise InvariantError(f"query {query.name!r} has an engine of its own")


def _steps(engine: Engine | GroupEngine, group: Group, size: Size, seed: int) -> Steps:
    length, steps = size.length, size.steps
    batches = group.batches(length, seed)
    trace = Trace(sum(map(len, batches.values())))
    sums: dict[str, int] = {}
    at = dict.fromkeys(batches, 0)
    for step in range(steps + 1):
        cut = length * (step + 1) // steps * STEP_MS if step < steps else END
        pieces = {}
        for name, batch in batches.items():
            begin, at[name] = at[name], int(np.searchsorted(batch.ts, cut))
            pieces[name] = batch.slice(begin, at[name])
        began = time.process_time()
        for name, piece in pieces.items():
            engine.push(name, 0, piece)
        out = engine.advance(cut)
        trace.seconds.append(time.process_time() - began)
        found = out if isinstance(out, dict) else {"q1": out}
        trace.results.append(sum(map(len, found.values())))
        for name, results in found.items():
            sums[name] = (sums.get(name, 0) + _digest(results)) % 2**64
        seen = engine.statistics()
        trace.comparisons.append(seen.comparisons)
        trace.intermediate.append(seen.intermediate_results)
        trace.peak_bytes = max(trace.peak_bytes, seen.state_bytes)
        trace.digest = sum(value * (n + 1) for n, (_, value) in enumerate(sorted(sums.items()))) % 2**64
        yield trace


def _digest(results: Batch) -> int:
    acc = mix_words(results.ts.view(np.uint64))
    for column in results.columns.values():
        acc = combine_words(acc, mix_words(np.ascontiguousarray(column.values).view(np.uint64)))
    return int(acc.sum(dtype=np.uint64))
