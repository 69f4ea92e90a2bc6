"""`lay_out` decides which tasks a query has: one per partition, or a single one.

Kafka puts records of equal key into equal partitions. But only the producer knows whether a stream's topic is keyed by
the column that a query joins on. So a query has a task per partition only if it declares that (`PARTITION BY`), and if
the declaration can be true: the named columns must be equated, and the topics must have equal partition counts.
Guessing from equal counts and an equality predicate would lose every result whose components were not produced under
that key. Any other query has one task, which reads all partitions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from schemas.errors import QueryError, UsageError
from schemas.query import ColumnRef, Query, Stream


@dataclass(frozen=True, slots=True)
class Layout:
    """The tasks of a query.

    Attributes:
        partitions: partition count per input topic.
        copartitioned: True: task p reads partition p of every topic. False: task 0 reads everything.
    """

    partitions: Mapping[str, int]
    copartitioned: bool

    @property
    def tasks(self) -> int:
        """How many tasks there are, numbered from 0."""
        return max(self.partitions.values()) if self.copartitioned else 1

    @property
    def name(self) -> str:
        """Distinguishes its tasks from those of a distributed query (`services.placement.distributed`)."""
        return ""

    @property
    def sinks(self) -> int:
        """How many tasks write to the sink."""
        return self.tasks

    def task_of(self, topic: str, partition: int) -> int | None:
        """The task that reads a partition."""
        return partition if self.copartitioned else 0

    def lanes(self, task: int) -> tuple[tuple[str, int], ...]:
        """The (topic, partition) pairs of a task, in a fixed order."""
        if self.copartitioned:
            return tuple((topic, task) for topic in sorted(self.partitions))
        return tuple((topic, p) for topic, n in sorted(self.partitions.items()) for p in range(n))


def lay_out(query: Query, partitions: Mapping[str, int]) -> Layout:
    """The tasks of `query` over topics with the given partition counts.

    Raises:
        QueryError: see `check_partition_by`.
        UsageError: PARTITION BY over topics of different partition counts.
    """
    check_partition_by(query)
    if query.partition_by and len(set(partitions.values())) > 1:
        counts = ", ".join(f"{topic!r} has {n}" for topic, n in sorted(partitions.items()))
        raise UsageError(
            f"PARTITION BY needs topics of equal partition counts, so that equal keys meet in one task: {counts}; "
            "repartition them or drop PARTITION BY (one task then reads all partitions)"
        )
    return Layout(dict(partitions), bool(query.partition_by))


def check_partition_by(query: Query) -> None:
    """Check that records can have been partitioned as PARTITION BY declares.

    The parser has already checked that it names a column of every stream's alias, all equated by the predicates.

    Raises:
        QueryError: a topic is named with two columns, or columns have different types.
    """
    if not query.partition_by:
        return
    named = {column.alias: column for column in query.partition_by}
    by_topic: dict[str, ColumnRef] = {}
    for source in query.sources:
        if not isinstance(source.stream, Stream):
            continue  # every task has the whole table
        column = named[source.alias]
        first = by_topic.setdefault(source.stream.topic, column)
        if first.name != column.name:
            raise _error(
                query,
                f"PARTITION BY names {first.alias}.{first.name} and {column.alias}.{column.name}, but both come from "
                f"topic {source.stream.topic!r}, whose records have one key",
            )
    if len({column.type for column in query.partition_by}) > 1:
        shown = ", ".join(f"{c.alias}.{c.name} {c.type}" for c in query.partition_by)
        raise _error(query, f"PARTITION BY columns must have one type, since keys are compared as bytes: {shown}")


def _error(query: Query, message: str) -> QueryError:
    """The error with a caret under PARTITION BY, if the text contains it."""
    found = re.search(r"\bPARTITION\s+BY\b", query.text, re.IGNORECASE)
    if found is None:
        return QueryError(message)
    line = query.text.count("\n", 0, found.start()) + 1
    column = found.start() - (query.text.rfind("\n", 0, found.start()) + 1) + 1
    return QueryError(message, text=query.text, line=line, column=column, length=len(found.group()))
