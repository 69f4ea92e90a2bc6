"""One run of Juggler's workloads: a query by one plan, or a group by one operator or apart, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from operators.engine import Engine
from operators.executor import JUGGLER
from operators.groups.apart import ApartQuery
from operators.groups.engine import GroupEngine
from operators.groups.parts import APART, group_engine
from operators.groups.shared import SharedQueries
from operators.juggler.flight import QUERIES
from operators.juggler.operator import Juggler
from operators.juggler.sources import GroupSources
from operators.kernels.hashing import combine_words, mix_words
from operators.plan import parse_plan
from operators.watermark import END
from ops.bench.paper_juggler_workloads import STEP_MS, Group
from schemas.columns import Batch
from schemas.errors import InvariantError
from schemas.groups import QueryGroup, query_group, streams_of
from schemas.query import Query


@dataclass(slots=True)
class Trace:
    """What one run did.

    Attributes:
        seconds: processor seconds of each step.
        results: of each step, all queries together.
        comparisons, intermediate: so far, at the end of each step.
        peak_bytes: of states and stores.
        digest: of all queries' results in their order.
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
    """Of a run.

    Attributes:
        length: of the input, in units of `STEP_MS`.
        steps: it is given in so many.
    """

    length: int
    steps: int


def run_plan(group: Group, plan: str | None, executor: str, size: Size, seed: int) -> Trace:
    """The group's one query, by a plan."""
    (query,) = group.queries()
    tree = None if plan is None else parse_plan(plan, query, several=True)
    return _run(Engine(query, plan=tree, executor=executor), group, size, seed)


def run_group(group: Group, how: str, size: Size, seed: int, encoding: str = QUERIES) -> Trace:
    """All queries of the group.

    Args:
        how: an order of predicate types or `adaptive`, in one operator; or `apart`, each query in an engine of its own.
    """
    if how == APART:
        return _run(group_engine(group.queries(), executor=APART), group, size, seed)
    return run_with(group, lambda sources, of: Juggler(sources, of, how, encoding), size, seed)


def run_with(group: Group, operator: Callable[[GroupSources, QueryGroup], Juggler], size: Size, seed: int) -> Trace:
    """All queries of the group in one operator, which is made when the group is."""
    queries = group.queries()
    return _run(GroupEngine(queries, streams_of(queries), _Together(operator)), group, size, seed)


@dataclass(frozen=True, slots=True)
class _Together:
    """Makes a group's parts: all queries in one operator."""

    operator: Callable[[GroupSources, QueryGroup], Juggler]

    def can_share(self, query: Query) -> bool:
        return True

    def shared(self, queries: Sequence[Query]) -> SharedQueries:
        return SharedQueries(query_group(queries), self.operator, name=JUGGLER)

    def apart(self, query: Query) -> ApartQuery:
        raise InvariantError(f"query {query.name!r} has an engine of its own")


def _run(engine: Engine | GroupEngine, group: Group, size: Size, seed: int) -> Trace:
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
    return trace


def _digest(results: Batch) -> int:
    acc = mix_words(results.ts.view(np.uint64))
    for column in results.columns.values():
        acc = combine_words(acc, mix_words(np.ascontiguousarray(column.values).view(np.uint64)))
    return int(acc.sum(dtype=np.uint64))
