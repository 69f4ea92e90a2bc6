"""How the queries of a group are executed: which of them share an operator, and the engine over all.

`juggler` shares one operator between the queries that can, and runs the others apart; `apart` runs every query as it
runs alone, each by the executor that suits it; the name of any other executor runs every query apart by that one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from operators.choose import choose_plan, declared_statistics, sample_statistics
from operators.engine import Engine
from operators.executors import EXECUTORS, cheapest_executor, check_executor
from operators.group_apart import ApartQuery
from operators.group_engine import Clock, GroupEngine, Part
from schemas.columns import Batch
from schemas.errors import InvariantError
from schemas.groups import streams_of
from schemas.query import Query

APART = "apart"
"""Every query by the executor that suits it."""


def check_group_executor(executor: str, queries: Sequence[Query]) -> None:
    """Refuse an executor that cannot execute the queries.

    Raises:
        UsageError: says which query it cannot execute.
    """
    if executor != APART:
        for query in queries:
            check_executor(executor, query)


def group_engine(
    queries: Sequence[Query],
    *,
    executor: str | None = None,
    samples: Mapping[str, Batch] | None = None,
    tables: Mapping[str, Batch] | None = None,
    partitions: Mapping[str, Sequence[int]] | None = None,
    clock: Clock = lambda: 0.0,
) -> GroupEngine:
    """The engine of several queries, which have different names.

    Args:
        executor: see above; None for `apart`.
        samples: by stream name, tuples that are like those to come; without them plans go by declared statistics.
        tables: the rows of each of the queries' tables, by name.
        partitions: partition numbers per stream name; one partition 0 each when None.
    """
    if len({query.name for query in queries}) < len(queries):
        raise InvariantError(f"two queries of a group have one name: {[query.name for query in queries]}")
    executor = executor or APART
    check_group_executor(executor, queries)
    parts: list[Part] = [_apart(query, executor, samples, tables or {}, clock) for query in queries]
    return GroupEngine(streams_of(queries), parts, partitions)


def _apart(
    query: Query, executor: str, samples: Mapping[str, Batch] | None, tables: Mapping[str, Batch], clock: Clock
) -> ApartQuery:
    if samples is None:
        statistics = declared_statistics(query, tables)
    else:
        statistics = sample_statistics(query, {**samples, **tables})
    plan = choose_plan(query, statistics)
    chosen = executor if executor in EXECUTORS else cheapest_executor(query, plan, statistics)
    return ApartQuery(Engine(query, plan=plan, statistics=statistics, tables=tables, executor=chosen, clock=clock))
