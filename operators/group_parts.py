"""How the queries of a group are executed: which of them share an operator, and the engine over all.

`juggler` runs all of them in one operator; `apart` runs every query as it runs alone, each by the executor that suits
it; the name of any other executor runs every query apart by that one. Where nothing is said, the queries that a group
can take share an operator, and the others run apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from operators.choose import choose_plan, declared_statistics, sample_statistics
from operators.engine import Engine
from operators.executors import EXECUTORS, cheapest_executor, check_executor
from operators.group_apart import ApartQuery
from operators.group_engine import Clock, GroupEngine, Part
from operators.group_shared import SharedQueries
from operators.juggler.operator import Juggler
from schemas.columns import Batch
from schemas.errors import InvariantError, UsageError
from schemas.groups import check_member, query_group, streams_of
from schemas.query import Query

JUGGLER = "juggler"
"""One operator for all queries."""

APART = "apart"
"""Every query by the executor that suits it."""


def check_group_executor(executor: str, queries: Sequence[Query]) -> None:
    """Refuse an executor that cannot execute the queries.

    Raises:
        UsageError: says which query it cannot execute.
    """
    if executor == JUGGLER:
        query_group(queries)
    elif executor != APART:
        for query in queries:
            check_executor(executor, query)


def sharing(queries: Sequence[Query], executor: str | None) -> tuple[Query, ...]:
    """Those of the queries that share an operator."""
    if executor == JUGGLER:
        return tuple(queries)
    shared = [] if executor is not None else [query for query in queries if _can_share(query)]
    return tuple(shared) if len(shared) > 1 else ()


def _can_share(query: Query) -> bool:
    try:
        check_member(query)
    except UsageError:
        return False
    return True


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
        executor: see above.
        samples: by stream name, tuples that are like those to come; without them plans go by declared statistics.
        tables: the rows of each of the queries' tables, by name.
        partitions: partition numbers per stream name; one partition 0 each when None.
    """
    if len({query.name for query in queries}) < len(queries):
        raise InvariantError(f"two queries of a group have one name: {[query.name for query in queries]}")
    if executor is not None:
        check_group_executor(executor, queries)
    shared = sharing(queries, executor)
    tables = tables or {}
    parts: list[Part] = []
    if shared:
        parts.append(SharedQueries(query_group(shared), Juggler, name=JUGGLER, tables=tables, clock=clock))
    parts += [_apart(query, executor, samples, tables, clock) for query in queries if query not in shared]
    return GroupEngine(streams_of(queries), parts, partitions)


def _apart(
    query: Query, executor: str | None, samples: Mapping[str, Batch] | None, tables: Mapping[str, Batch], clock: Clock
) -> ApartQuery:
    if samples is None:
        statistics = declared_statistics(query, tables)
    else:
        statistics = sample_statistics(query, {**samples, **tables})
    plan = choose_plan(query, statistics)
    chosen = executor if executor in EXECUTORS else cheapest_executor(query, plan, statistics)
    return ApartQuery(Engine(query, plan=plan, statistics=statistics, tables=tables, executor=chosen, clock=clock))
