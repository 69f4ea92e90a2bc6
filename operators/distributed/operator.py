"""The operators of a distributed plan and the edges between them, as `operators.distributed.decompose` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from operators.data.tuples import FOREVER
from operators.distributed.feedback.kinds import EdgeKind
from operators.plan.plan import Leaf, Plan
from operators.plan.predicates import Operand
from operators.state.numbered import NumberColumn
from schemas.columns import Batch, Column
from schemas.errors import InvariantError
from schemas.query import ColumnRef, Expr, Field, Query, Stream, Table, Type, columns_of, qualified

AGGREGATES = "aggregates of the results"
POSITION = "@position"
EXPIRY = "@expiry"
CHANNEL = "@channel"

MAX_CHANNELS = 64
"""The most tasks that may feed one partition: the reader's commit message has an entry for each."""


@dataclass(frozen=True, slots=True)
class Edge:
    """What travels from one operator to the next.

    Attributes:
        topic: The internal topic.
        aliases: The aliases of the components.
        columns: The columns of the whole query that travel; column i is named `c<i>` on the edge.
        lifetimes: How long a tuple of each alias is alive, in ms.
        partitions: The partitions of the topic: as many as the reader has tasks.
        channels: The number of tasks that write into one partition.
        forward: Task p writes to partition p only. Otherwise `keys` determine the partition.
        keys: The operands that determine a tuple's partition, over the columns of the query; empty with one partition.
        keeps_nulls: A tuple with a null among its keys is sent, too, to the first partition: it matches nothing, but it
            may be in a set difference, and it has a group.
        predicates: The predicates that a tuple must satisfy to be sent: an intake's selections.
        kinds: The kinds by which the reader and the readers above it suspend tuples; empty without feedback.
        above: The topics of edges towards the top whose readers own some of the `kinds`.
        on_demand: The numbers of the kinds by which results from before the plan's start are requested
            (`operators.distributed.feedback.on_demand`), the reader's own first; empty if all of them are sent.
        producer: The sub-plan whose results travel.
        consumer: The sub-plan that reads them.
    """

    topic: str
    aliases: tuple[str, ...]
    columns: tuple[ColumnRef, ...]
    lifetimes: tuple[int, ...]
    partitions: int
    channels: int
    forward: bool
    keys: tuple[Operand, ...]
    keeps_nulls: bool = False
    predicates: tuple[Expr, ...] = ()
    kinds: tuple[EdgeKind, ...] = ()
    above: tuple[str, ...] = ()
    on_demand: tuple[int, ...] = ()
    producer: str = ""
    consumer: str = ""

    @property
    def marks_channels(self) -> bool:
        """Whether the reader stores each tuple's channel: a channel may take back the tuples that it sent."""
        return bool(self.kinds) and self.channels > 1

    @property
    def expires(self) -> bool:
        """Whether the expiry travels too, as the last column. For a single component it follows from ts."""
        return len(self.aliases) > 1 and min(self.lifetimes) < FOREVER

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns under their names on the edge."""
        own = tuple(Field(f"c{i}", column.type) for i, column in enumerate(self.columns))
        return (*own, Field(EXPIRY, Type.TIMESTAMP)) if self.expires else own


@dataclass(frozen=True, slots=True)
class OperatorInput:
    """One input of an operator.

    Attributes:
        source: The stream or table that the sub-query reads. A table in a topic is a stream of versions.
        edge: The edge that feeds it; None for a source that is read directly.
        position: For such a source, the name of the column with the position of a tuple's record in the log, or a
            row's number; empty for versions, which have none.
        in_order: The operator takes the tuples of an edge in their order only. It waits until no late tuple can follow.
    """

    source: Stream | Table
    edge: Edge | None
    position: str = ""
    in_order: bool = False

    @property
    def is_static(self) -> bool:
        """Whether it is a table in a file, whose rows never change."""
        return isinstance(self.source, Table)

    @property
    def stream(self) -> Stream:
        """The source of an input that is no table."""
        if not isinstance(self.source, Stream):
            raise InvariantError(f"{self.source} is no stream")
        return self.source


@dataclass(frozen=True, slots=True)
class TracedJoin:
    """A join to whose partition groups a task traces results (`operators.distributed.lineage`).

    Attributes:
        name: The sub-plan.
        aliases: Its aliases.
        key: What the join hashes, over the columns of the tracing operator's sub-query; empty without a key.
        tasks: The number of its tasks.
    """

    name: str
    aliases: tuple[str, ...]
    key: tuple[Operand, ...]
    tasks: int

    @property
    def columns(self) -> tuple[ColumnRef, ...]:
        """The columns that the key reads."""
        return tuple(column for operand in self.key for column in columns_of(operand.expr))


@dataclass(frozen=True, slots=True)
class DistributedOperator:
    """One operator of a distributed plan.

    Attributes:
        name: Its part of the plan: the sub-plan, the streams and tables that an intake reads, or AGGREGATES.
        query: The sub-query that it computes. Its outputs are the columns that travel, named by `output_name`. The top
            operator has the query's own outputs, then the `ranks` columns.
        plan: The plan of the sub-query.
        tasks: The number of tasks that share its work.
        forward: Task p reads partition p of every input.
        inputs: Its inputs, left first.
        outputs: The edges that its results take; empty for the top operator.
        ranks: The number of columns that order results of equal ts; 0 unless the top operator is a join.
        kept: Per stream that it reads directly, how long the query needs a tuple of the stream, in ms: for its windows,
            and beyond them for the changes that follow when the tuple dies.
        columns: For a join, the name in the sub-query of each column of the query.
        numbered: By stream, the columns with horizons of a join's inputs, for ROWS windows.
        traced: For a join whose results are traced, the joins whose results it reads, directly or not, children before
            parents, and last itself; else empty.
    """

    name: str
    query: Query
    plan: Plan
    tasks: int
    forward: bool
    inputs: tuple[OperatorInput, ...]
    outputs: tuple[Edge, ...]
    ranks: int = 0
    kept: tuple[tuple[str, int], ...] = ()
    columns: Mapping[ColumnRef, ColumnRef] = field(default_factory=dict, hash=False, compare=False)
    numbered: Mapping[str, tuple[NumberColumn, ...]] = field(default_factory=dict, hash=False, compare=False)
    traced: tuple[TracedJoin, ...] = ()

    @property
    def is_intake(self) -> bool:
        """Whether it only passes sources on (`operators.distributed.intake`)."""
        return isinstance(self.plan, Leaf) and bool(self.outputs) and self.inputs[0].edge is None

    @property
    def streams(self) -> tuple[OperatorInput, ...]:
        """The inputs that are no tables."""
        return tuple(given for given in self.inputs if not given.is_static)

    def with_row_numbers(self, tables: Mapping[str, Batch]) -> dict[str, Batch]:
        """Return the tables that the operator reads, by name, with the column of row numbers.

        Args:
            tables: All tables of the query, by name.
        """
        found: dict[str, Batch] = {}
        for given in self.inputs:
            if given.is_static:
                rows = tables[given.source.name]
                numbers = Column(Type.BIGINT, np.arange(len(rows), dtype=np.int64))
                found[given.source.name] = Batch(rows.ts, {**rows.columns, given.position: numbers})
        return found


def output_name(column: ColumnRef) -> str:
    """Return the name of a query's column in an operator's results."""
    return qualified(column.alias, column.name)
