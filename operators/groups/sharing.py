"""Decides how the queries of a group are executed: which of them share an operator; `group_engine` makes the engine.

`juggler` runs all of them in one operator. `apart` runs every query standalone, each with the executor that suits it.
The name of any other executor runs every query standalone with that executor. Without a name, the queries that a group
can take share an operator, and the others are standalone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from operators.engine.engine import Engine
from operators.engine.executors import EXECUTORS, cheapest_executor
from operators.groups.blocks import PrefixedBlocks
from operators.groups.engine import EndedQuery, GroupEngine
from operators.groups.shared import SharedQueries
from operators.groups.spill import GroupSpill
from operators.groups.standalone import StandaloneQuery, merged
from operators.join.executor import JUGGLER, XJOIN
from operators.juggler.operator import Juggler
from operators.plan.choose import choose_plan, declared_statistics, sample_statistics
from operators.spill.block_store import StateDisk
from operators.spill.spilling import MemoryBudget
from operators.spill.strategies import DEFAULT_STRATEGY
from schemas import refusals
from schemas.columns import Batch
from schemas.errors import InvariantError
from schemas.groups import query_group, streams_of
from schemas.query import Query, Stream
from schemas.shared_lookups import with_shared_names

APART = "apart"
"""Runs every query standalone, with the executor that suits it."""


def check_group_executor(executor: str, queries: Sequence[Query]) -> None:
    """Reject an executor that cannot execute the queries.

    Raises:
        UsageError: names the query that it cannot execute.
    """
    if executor == JUGGLER:
        query_group(queries)
    elif executor != APART:
        for query in queries:
            refusals.check(query, refusals.executor(executor))


def sharing(queries: Sequence[Query], executor: str | None) -> tuple[Query, ...]:
    """The queries that share an operator."""
    return tuple(query for query in queries if _can_share(query, executor))


def _can_share(query: Query, executor: str | None) -> bool:
    if executor is not None:
        return executor == JUGGLER
    return not refusals.objection(query, refusals.SHARED)


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """The memory of a group: each query has a share; the queries of a shared operator use theirs together.

    Attributes:
        limit_bytes: of all of the first queries; a query that is added later gets as much as one of them.
        queries: the number of the first queries.
        blocks: stores what is spilled.
        strategy: chooses what standalone queries spill; a shared operator spills the oldest tuples.
    """

    limit_bytes: int
    queries: int
    blocks: StateDisk
    strategy: str = DEFAULT_STRATEGY

    def share(self, queries: int) -> int:
        """The bytes for so many queries."""
        return max(1, self.limit_bytes * queries // max(self.queries, 1))


@dataclass(frozen=True, slots=True)
class QueryRunners:
    """Makes the runners of a group's engine; see `group_engine` for its fields."""

    executor: str | None
    samples: Mapping[str, Batch] | None
    tables: Mapping[str, Batch]
    clock: Callable[[], float]
    memory: GroupMemory | None = None
    feedback: bool = False

    def can_share(self, query: Query) -> bool:
        """Whether the query is executed together with others."""
        kept = self.memory is None or query.aggregation is None
        return kept and _can_share(query, self.executor)

    def shared(self, queries: Sequence[Query], cut: int = 0) -> SharedQueries:
        """A runner of queries in one operator, which begins at `cut`."""
        spill = None
        if self.memory is not None:
            spill = GroupSpill(self.memory.share(len(queries)), PrefixedBlocks(self.memory.blocks, "shared/"))
        return SharedQueries(
            query_group(queries),
            partial(Juggler, feedback=self.feedback, clock=self.clock),
            name=JUGGLER,
            tables=self.tables,
            clock=self.clock,
            cut=cut,
            spill=spill,
        )

    def standalone(self, query: Query) -> StandaloneQuery:
        """A runner of a query in an engine of its own."""
        if self.samples is None:
            statistics = declared_statistics(query, self.tables)
        else:
            statistics = sample_statistics(query, {**self.samples, **self.tables})
        plan = choose_plan(query, statistics)
        named = self.executor if self.executor in EXECUTORS else None
        budget = blocks = None
        if self.memory is not None:
            # No other executor spills.
            named = named or XJOIN
            # Aggregates would wait for pending results, and with them the end of a query that is dropped.
            in_time = query.aggregation is not None
            budget = MemoryBudget(self.memory.share(1), self.memory.strategy, in_time=in_time)
            blocks = PrefixedBlocks(self.memory.blocks, f"{query.name}/")
        shared = with_shared_names(query)
        engine = Engine(
            merged(shared),
            plan=plan,
            statistics=statistics,
            tables=self.tables,
            executor=named or cheapest_executor(query, plan, statistics),
            clock=self.clock,
            budget=budget,
            blocks=blocks,
            feedback=self.feedback,
        )
        return StandaloneQuery(engine, shared)


def group_engine(
    queries: Sequence[Query],
    *,
    executor: str | None = None,
    samples: Mapping[str, Batch] | None = None,
    streams: Sequence[Stream] | None = None,
    tables: Mapping[str, Batch] | None = None,
    partitions: Mapping[str, Sequence[int]] | None = None,
    since: Mapping[str, Mapping[str, int]] | None = None,
    began: Mapping[str, int] | None = None,
    ended: Sequence[EndedQuery] = (),
    clock: Callable[[], float] = lambda: 0.0,
    budget: MemoryBudget | None = None,
    blocks: StateDisk | None = None,
    feedback: bool = False,
) -> GroupEngine:
    """Make the engine of several queries, which have different names.

    Args:
        executor: see above.
        samples: by stream name, tuples similar to the expected input; without them, plans use declared statistics.
        streams: all that queries may read, including queries added later; None for those of `queries`.
        tables: the rows of each of the queries' tables, by name.
        partitions: partition numbers per stream name; one partition 0 each when None.
        since, began, ended: see `GroupEngine`.
        budget: of all states and source tuples; it requires `blocks`, which stores what is spilled.
        feedback: whether queries are executed with feedback, including those that share an operator
            (`operators.juggler.feedback.demand`).
    """
    if len({query.name for query in queries}) < len(queries):
        raise InvariantError(f"two queries of a group have one name: {[query.name for query in queries]}")
    if executor is not None:
        check_group_executor(executor, queries)
    memory = None
    if budget is not None and blocks is not None:
        memory = GroupMemory(budget.limit_bytes, len(queries), blocks, budget.strategy)
    factory = QueryRunners(executor, samples, tables or {}, clock, memory, feedback)
    streams = streams_of(queries) if streams is None else streams
    return GroupEngine(queries, streams, factory, partitions, since, began, ended)
