"""How the queries of a group are executed: which of them share an operator, and the engine over all.

`juggler` runs all of them in one operator; `apart` runs every query as it runs alone, each by the executor that suits
it; the name of any other executor runs every query apart by that one. Where nothing is said, the queries that a group
can take share an operator, and the others run apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from operators.engine.engine import Engine
from operators.engine.executors import EXECUTORS, cheapest_executor, check_executor
from operators.feedback.feedback import check_feedback
from operators.groups.blocks import Within
from operators.groups.engine import Gone, GroupEngine
from operators.groups.shared import SharedQueries
from operators.groups.spill import GroupSpill
from operators.groups.standalone import ApartQuery
from operators.join.executor import JUGGLER, XJOIN
from operators.juggler.operator import Juggler
from operators.plan.choose import choose_plan, declared_statistics, sample_statistics
from operators.spill.block_store import BlockStore
from operators.spill.plan_spilling import check_spillable
from operators.spill.spilling import Budget
from operators.spill.strategies import DEFAULT_STRATEGY
from schemas.columns import Batch
from schemas.errors import InvariantError, UsageError
from schemas.groups import check_member, query_group, streams_of
from schemas.query import Query, Stream

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
    return tuple(query for query in queries if _can_share(query, executor))


def _can_share(query: Query, executor: str | None) -> bool:
    if executor is not None:
        return executor == JUGGLER
    try:
        check_member(query)
    except UsageError:
        return False
    return True


def check_group_spillable(queries: Sequence[Query], executor: str | None) -> None:
    """Refuse what cannot be kept within a memory budget.

    Raises:
        UsageError: says which query, and why.
    """
    for query in queries:
        if query.aggregation is not None or not _can_share(query, executor):
            try:
                check_spillable(query, executor if executor in EXECUTORS else XJOIN)
            except UsageError as error:
                raise UsageError(f"query {query.name!r}: {error}") from None


def check_group_feedback(queries: Sequence[Query], executor: str | None) -> None:
    """Refuse feedback where there can be none.

    Raises:
        UsageError: says which query, and why.
    """
    for query in queries:
        if not _can_share(query, executor):
            try:
                check_feedback(query)
            except UsageError as error:
                raise UsageError(f"query {query.name!r}: {error}") from None


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """What a group may use: each query has its share, and those that share an operator have theirs together.

    Attributes:
        limit_bytes: of all of the first queries; who comes later has as much as one of them.
        queries: how many those are.
        blocks: where what leaves memory goes.
        strategy: what leaves of queries apart; of a shared operator the oldest tuples do.
    """

    limit_bytes: int
    queries: int
    blocks: BlockStore
    strategy: str = DEFAULT_STRATEGY

    def share(self, queries: int) -> int:
        """What so many queries have."""
        return max(1, self.limit_bytes * queries // max(self.queries, 1))


@dataclass(frozen=True, slots=True)
class Parts:
    """Makes the parts of a group's engine; see `group_engine` for what it takes."""

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
        """The queries in one operator, which begins at `cut`."""
        spill = None
        if self.memory is not None:
            spill = GroupSpill(self.memory.share(len(queries)), Within(self.memory.blocks, "shared/"))
        return SharedQueries(
            query_group(queries),
            partial(Juggler, feedback=self.feedback, clock=self.clock),
            name=JUGGLER,
            tables=self.tables,
            clock=self.clock,
            cut=cut,
            spill=spill,
        )

    def apart(self, query: Query) -> ApartQuery:
        """A query in an engine of its own."""
        if self.samples is None:
            statistics = declared_statistics(query, self.tables)
        else:
            statistics = sample_statistics(query, {**self.samples, **self.tables})
        plan = choose_plan(query, statistics)
        given = self.executor if self.executor in EXECUTORS else None
        budget = blocks = None
        if self.memory is not None:
            # No other executor keeps to a budget.
            given = given or XJOIN
            budget = Budget(self.memory.share(1), self.memory.strategy)
            blocks = Within(self.memory.blocks, f"{query.name}/")
        engine = Engine(
            query,
            plan=plan,
            statistics=statistics,
            tables=self.tables,
            executor=given or cheapest_executor(query, plan, statistics),
            clock=self.clock,
            budget=budget,
            blocks=blocks,
            feedback=self.feedback,
        )
        return ApartQuery(engine)


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
    gone: Sequence[Gone] = (),
    clock: Callable[[], float] = lambda: 0.0,
    budget: Budget | None = None,
    blocks: BlockStore | None = None,
    feedback: bool = False,
) -> GroupEngine:
    """The engine of several queries, which have different names.

    Args:
        executor: see above.
        samples: by stream name, tuples that are like those to come; without them plans go by declared statistics.
        streams: all that queries may read, those to come included; None for those of `queries`.
        tables: the rows of each of the queries' tables, by name.
        partitions: partition numbers per stream name; one partition 0 each when None.
        since, began, gone: see `GroupEngine`.
        budget: of all states and source tuples; with it `blocks`, where what leaves memory goes.
        feedback: whether queries are executed with it (`check_group_feedback`), those that share an operator too
            (`operators.juggler.feedback.demand`).
    """
    if feedback:
        check_group_feedback(queries, executor)
    if len({query.name for query in queries}) < len(queries):
        raise InvariantError(f"two queries of a group have one name: {[query.name for query in queries]}")
    if executor is not None:
        check_group_executor(executor, queries)
    memory = None
    if budget is not None and blocks is not None:
        check_group_spillable(queries, executor)
        memory = GroupMemory(budget.limit_bytes, len(queries), blocks, budget.strategy)
    maker = Parts(executor, samples, tables or {}, clock, memory, feedback)
    streams = streams_of(queries) if streams is None else streams
    return GroupEngine(queries, streams, maker, partitions, since, began, gone)
