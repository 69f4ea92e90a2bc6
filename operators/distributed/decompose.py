"""Decomposes a query's plan into operators: what each operator computes, and what travels between them.

`services.control.plan_versions` calls `decompose`. Workers check a plan by `check_distributable` before they start.

The sub-query of an operator has one source per input. A source of the query that is read directly keeps its stream,
with one more column for the tuple's position in its log. A table is an input of the join that reads it, with one more
column for the row's number; every task of that join has all of its rows. The results of another operator are a stream
with the columns `c0, c1, ...`. If they have several components they also have `expiry`, an upper bound for the `_ts` of
the tuples that they join with. The window of such a stream is the least of its components' windows, a bound that expiry
only tightens.

A predicate acts at the same join as in the fused plan (`operators.plan.predicates`). This includes equalities that
follow from others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from operators.data.tuples import FOREVER
from operators.distributed.kinds import MAX_KINDS, EdgeKind, own_kinds, passed_on
from operators.feedback.watch import suppressed_side
from operators.plan.equalities import equality_classes
from operators.plan.plan import Join, Leaf, Plan, postorder
from operators.plan.predicates import Operand, constants, join_condition, selections
from operators.state.sources import life_of
from schemas import refusals
from schemas.columns import Batch, Column
from schemas.errors import InvariantError, UsageError
from schemas.query import (
    ColumnRef,
    Compare,
    Expr,
    Field,
    Output,
    Query,
    Source,
    Stream,
    Table,
    Type,
    Window,
    aliases_of,
    columns_of,
    substitute,
)

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
        predicates: The predicates that a tuple must satisfy to be sent: an intake's selections.
        kinds: The kinds by which the reader and the readers above it suspend tuples; empty without feedback.
        above: The topics of edges towards the top whose readers own some of the `kinds`.
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
    predicates: tuple[Expr, ...] = ()
    kinds: tuple[EdgeKind, ...] = ()
    above: tuple[str, ...] = ()
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
        source: The stream or table that the sub-query reads.
        edge: The edge that feeds it; None for a source that is read directly.
        position: For such a source, the name of the column with a tuple's position in the log, or a row's number.
    """

    source: Stream | Table
    edge: Edge | None
    position: str = ""

    @property
    def is_table(self) -> bool:
        """Whether it is a table, whose rows are there from the start."""
        return isinstance(self.source, Table)

    @property
    def stream(self) -> Stream:
        """The source of an input that is no table."""
        if not isinstance(self.source, Stream):
            raise InvariantError(f"{self.source} is no stream")
        return self.source


@dataclass(frozen=True, slots=True)
class DistributedOperator:
    """One operator of a distributed plan.

    Attributes:
        name: Its part of the plan: the sub-plan, or the stream that an intake reads.
        query: The sub-query that it computes. Its outputs are the columns that travel, named by `output_name`. The top
            operator has the query's own outputs, then the `ranks` columns.
        plan: The plan of the sub-query.
        tasks: The number of tasks that share its work.
        forward: Task p reads partition p of every input.
        inputs: Its inputs, left first.
        outputs: The edges that its results take; empty for the top operator.
        ranks: The number of columns that order results of equal ts; 0 except for the top operator.
        kept: Per stream that it reads directly, how long the query's windows need a tuple of the stream, in ms.
        columns: For a join, the name in the sub-query of each column of the query.
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

    @property
    def streams(self) -> tuple[OperatorInput, ...]:
        """The inputs that are no tables."""
        return tuple(given for given in self.inputs if not given.is_table)

    def with_row_numbers(self, tables: Mapping[str, Batch]) -> dict[str, Batch]:
        """Return the tables that the operator reads, by name, with the column of row numbers.

        Args:
            tables: All tables of the query, by name.
        """
        found: dict[str, Batch] = {}
        for given in self.inputs:
            if given.is_table:
                rows = tables[given.source.name]
                numbers = Column(Type.BIGINT, np.arange(len(rows), dtype=np.int64))
                found[given.source.name] = Batch(rows.ts, {**rows.columns, given.position: numbers})
        return found


def output_name(column: ColumnRef) -> str:
    """Return the name of a query's column in an operator's results; unique, since an alias with a dot is quoted."""
    return f"{Leaf(column.alias)}.{column.name}"


def without_joins_of_tables(query: Query, plan: Plan) -> Plan:
    """Return the plan with each join of tables alone resolved: its tables are joined one after the other with the other
    input. No task could compute such a join by itself, since nothing would make it proceed."""
    if isinstance(plan, Leaf):
        return plan
    left, right = (without_joins_of_tables(query, side) for side in (plan.left, plan.right))
    for joined, other in ((left, right), (right, left)):
        if isinstance(joined, Join) and _all_tables(query, joined):
            for alias in joined.aliases:
                other = Join(other, Leaf(alias))
            return other
    return Join(left, right)


def _all_tables(query: Query, plan: Plan) -> bool:
    return all(query.source(alias).is_table for alias in plan.aliases)


def decompose(
    query: Query,
    plan: Plan,
    partitions: Mapping[str, int],
    split: int | None = None,
    prefix: str = "",
    *,
    feedback: bool = False,
) -> tuple[DistributedOperator, ...]:
    """Return the operators of a plan: joins before intakes, the top operator first.

    Args:
        query: The query.
        plan: Its plan.
        partitions: The number of partitions of each source topic.
        split: The number of tasks of a join with an equality key; None for the greatest number of partitions of a
            source topic. With PARTITION BY it is always that number.
        prefix: The prefix of the names of internal topics; `<n>.<aliases>` follows.
        feedback: Joins report to each other what they do not demand (`operators.distributed.feedback`).

    Raises:
        UsageError: The query cannot be distributed; the message gives the reason.
    """
    refusals.check(query, refusals.PER_OPERATOR)
    plan = without_joins_of_tables(query, plan)
    return _Decomposition(query, plan, partitions, split, prefix, feedback).operators()


class _Decomposition:
    def __init__(
        self,
        query: Query,
        plan: Plan,
        partitions: Mapping[str, int],
        split: int | None,
        prefix: str,
        feedback: bool,
    ) -> None:
        self.query = query
        self.prefix = prefix
        self.plan = plan
        self.forward = bool(query.partition_by)
        self.split = split or max(partitions[s.topic] for s in query.streams())
        if self.forward:
            self.split = max(partitions[s.topic] for s in query.streams())
        self.classes = equality_classes(query.predicates)
        self.joins = [node for node in postorder(plan) if isinstance(node, Join)]
        self.keys = {node: self._keys(node) for node in self.joins}
        self.tasks = {node: self.split if self.forward or self.keys[node][0] else 1 for node in self.joins}
        self.predicates_at = {node: self._predicates_at(node) for node in self.joins}
        self.numbered = 0
        self.kinds: dict[Plan, tuple[EdgeKind, ...]] = {}
        for node in reversed(self.joins) if feedback else ():
            self._assign_kinds(node)
        readers: dict[str, set[Join]] = {}
        for node in self.joins:
            for side in (node.left, node.right):
                if isinstance(side, Leaf) and not query.source(side.alias).is_table:
                    readers.setdefault(self._stream(side.alias).name, set()).add(node)
        self.intakes = [
            stream
            for stream in query.streams()
            if len(readers[stream.name]) > 1
            or any(self.tasks[node] > 1 and not self.forward for node in readers[stream.name])
        ]

    def _stream(self, alias: str) -> Stream:
        stream = self.query.source(alias).stream
        if not isinstance(stream, Stream):
            raise InvariantError(f"{stream.name} is no stream")
        return stream

    def _assign_kinds(self, reader: Join) -> None:
        """Determine the kinds by which a join suspends tuples of its inputs, for itself and for the joins above it."""
        for side, child in enumerate((reader.left, reader.right)):
            if isinstance(child, Leaf):
                continue
            partitioned = self.tasks[reader] > 1 and not self.forward
            kinds: tuple[EdgeKind, ...] = ()
            # What a table lacks it will lack for ever: there is nothing to resume.
            beside_table = _all_tables(self.query, (reader.left, reader.right)[1 - side])
            if side == suppressed_side(reader) and not beside_table:
                condition = join_condition(
                    self.query.predicates, reader.left.aliases, reader.right.aliases, self.classes
                )
                whole = self.keys[reader][side] if partitioned else ()
                kinds = own_kinds(reader, side, condition, whole, _home, self.numbered)
                self.numbered += len(kinds)
                if self.numbered > MAX_KINDS:
                    kinds = ()
            if not partitioned:
                kinds += passed_on(self.kinds.get(reader, ()), reader, side, _home)
            self.kinds[child] = kinds

    # --- What acts where ----------------------------------------------------------------------------

    def _keys(self, node: Join) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
        """Return the operands by which the two inputs of a join are partitioned."""
        condition = join_condition(self.query.predicates, node.left.aliases, node.right.aliases, self.classes)
        return tuple(t.left for t in condition.keys), tuple(t.right for t in condition.keys)

    def _predicates_at(self, node: Join) -> tuple[Expr, ...]:
        """Return the predicates that act at a join. One predicate of each class of equalities is enough."""
        left, right = frozenset(node.left.aliases), frozenset(node.right.aliases)
        found: dict[Expr, None] = {}
        for predicate in self.query.predicates:
            one = self.classes.get(predicate)
            if one is not None:
                equality = one.between(left, right)
                if equality is not None:
                    found[equality] = None
                continue
            used = aliases_of(predicate)
            if used and used <= left | right and not used <= left and not used <= right:
                found[predicate] = None
        return tuple(found)

    def _read_above(self, node: Plan) -> tuple[ColumnRef, ...]:
        """Return the columns of a sub-plan's results that the rest of the plan reads, each component's time and
        position first."""
        aliases = frozenset(node.aliases)
        found: dict[ColumnRef, None] = {}
        for alias in node.aliases:
            if len(aliases) > 1:
                found[ColumnRef(alias, "_ts", Type.TIMESTAMP)] = None
            found[ColumnRef(alias, POSITION, Type.BIGINT)] = None
        above = [join for join in self.joins if aliases < frozenset(join.aliases)]
        exprs = [expr for join in above for expr in self.predicates_at[join]]
        for expr in (*exprs, *(output.expr for output in self.query.outputs)):
            for column in columns_of(expr):
                if column.alias in aliases and not (len(aliases) == 1 and column.name == "_ts"):
                    found[column] = None
        return tuple(found)

    # --- Operators ----------------------------------------------------------------------------------

    def operators(self) -> tuple[DistributedOperator, ...]:
        joins: list[DistributedOperator] = []
        edges: dict[Plan, Edge] = {}
        intake_edges: dict[str, list[Edge]] = {stream.name: [] for stream in self.intakes}
        for number, node in enumerate(self.joins):
            inputs = tuple(self._input(node, side, edges, intake_edges) for side in (node.left, node.right))
            outputs: tuple[Edge, ...] = ()
            if node is not self.plan:
                edges[node] = self._edge(self._topic(number + 1, node.aliases), node, self.tasks[node])
                outputs = (edges[node],)
            joins.append(self._join(node, inputs, outputs))
        intakes = [self._intake(stream, tuple(intake_edges[stream.name])) for stream in self.intakes]
        return (*reversed(joins), *intakes)

    def _input(
        self, node: Join, side: Plan, edges: Mapping[Plan, Edge], intakes: Mapping[str, list[Edge]]
    ) -> OperatorInput:
        if isinstance(side, Leaf):
            source = self.query.source(side.alias)
            if isinstance(source.stream, Table):
                return _with_position(source.stream)
            stream = source.stream
            if stream not in self.intakes:
                return _with_position(stream)
            number = len(self.joins) + 1 + self.intakes.index(stream)
            topic = self._topic(number, (side.alias,))
            edge = self._edge(topic, side, self.split if self.forward else 1)
            edge = replace(edge, predicates=selections(self.query, side.alias))
            intakes[stream.name].append(edge)
        else:
            edge = edges[side]
        marks = (Field(CHANNEL, Type.BIGINT),) if edge.marks_channels else ()
        return OperatorInput(Stream(edge.topic, edge.fields + marks, edge.topic), edge)

    def _topic(self, number: int, aliases: Iterable[str]) -> str:
        """Return the topic of an operator's results."""
        return f"{self.prefix}{number}.{_topic_part(aliases)}"

    def _reader(self, node: Plan) -> Join:
        return next(join for join in self.joins if node in (join.left, join.right))

    def _above(self, node: Plan) -> tuple[str, ...]:
        """Return the topics of the edges above a sub-plan's from which kinds are passed on to it, the nearest first."""
        found: list[str] = []
        reader = self._reader(node)
        while reader is not self.plan:
            if not {kind.number for kind in self.kinds.get(node, ())} & {k.number for k in self.kinds.get(reader, ())}:
                break
            found.append(self._topic(self.joins.index(reader) + 1, reader.aliases))
            reader = self._reader(reader)
        return tuple(found)

    def _edge(self, topic: str, node: Plan, producers: int) -> Edge:
        """Return the edge from a sub-plan to the join above it."""
        above = self._reader(node)
        channels = 1 if self.forward else producers
        if channels > MAX_CHANNELS:
            raise UsageError(f"a join is split into at most {MAX_CHANNELS} tasks, not {channels}")
        partitions = self.tasks[above]
        hashed = partitions > 1 and not self.forward
        keys = self.keys[above][0 if node is above.left else 1] if hashed else ()
        lives = tuple(life_of(self.query.source(alias)) for alias in node.aliases)
        return Edge(
            topic,
            node.aliases,
            self._read_above(node),
            lives,
            partitions,
            channels,
            self.forward,
            keys,
            kinds=self.kinds.get(node, ()),
            above=self._above(node),
            producer=str(node),
            consumer=str(above),
        )

    def _life(self, node: Plan) -> int:
        return min(life_of(self.query.source(alias)) for alias in node.aliases)

    def _join(self, node: Join, inputs: tuple[OperatorInput, ...], outputs: tuple[Edge, ...]) -> DistributedOperator:
        sides = (node.left, node.right)
        names = _names(node)
        renamed: dict[ColumnRef, ColumnRef] = {}
        sources: list[Source] = []
        for side, name, given in zip(sides, names, inputs, strict=True):
            life = self._life(side)
            window = Window("UNBOUNDED") if life >= FOREVER else Window("RANGE", life)
            sources.append(Source(name, given.source, window))
            if given.edge is None:
                alias = side.aliases[0]
                for field in self.query.source(alias).stream.fields:
                    renamed[ColumnRef(alias, field.name, field.type)] = ColumnRef(name, field.name, field.type)
                renamed[ColumnRef(alias, POSITION, Type.BIGINT)] = ColumnRef(name, given.position, Type.BIGINT)
            else:
                for number, column in enumerate(given.edge.columns):
                    renamed[column] = ColumnRef(name, f"c{number}", column.type)
            if isinstance(side, Leaf):
                renamed[ColumnRef(side.alias, "_ts", Type.TIMESTAMP)] = ColumnRef(name, "_ts", Type.TIMESTAMP)
        predicates = [substitute(expr, renamed) for expr in self.predicates_at[node]]
        for side, given in zip(sides, inputs, strict=True):
            if isinstance(side, Leaf) and given.edge is None:
                predicates += [substitute(expr, renamed) for expr in selections(self.query, side.alias)]
        for mine, other, given in ((0, 1, inputs[0]), (1, 0, inputs[1])):
            if given.edge is not None and given.edge.expires and not inputs[other].is_table:
                expiry = ColumnRef(names[mine], EXPIRY, Type.TIMESTAMP)
                predicates.append(Compare("<=", ColumnRef(names[other], "_ts", Type.TIMESTAMP), expiry))
        predicates += constants(self.query)
        ranks = 0
        if outputs:
            results = tuple(Output(output_name(c), substitute(c, renamed)) for c in outputs[0].columns)
        else:
            order = [
                ColumnRef(source.alias, name, type)
                for source in self.query.sources
                for name, type in (("_ts", Type.TIMESTAMP), (POSITION, Type.BIGINT))
            ]
            ranks = len(order)
            mark = "@"
            while any(output.name.startswith(mark) for output in self.query.outputs):
                mark += "@"
            results = tuple(replace(o, expr=substitute(o.expr, renamed)) for o in self.query.outputs)
            results += tuple(Output(f"{mark}{i}", substitute(c, renamed)) for i, c in enumerate(order))
        sub = Query(self.query.name, self.query.sink, tuple(sources), tuple(predicates), results)
        plan = Join(Leaf(names[0]), Leaf(names[1]))
        kept = self._kept(inputs)
        return DistributedOperator(
            str(node), sub, plan, self.tasks[node], self.forward, inputs, outputs, ranks, kept, renamed
        )

    def _kept(self, inputs: Iterable[OperatorInput]) -> tuple[tuple[str, int], ...]:
        direct = {given.stream.name for given in inputs if given.edge is None and not given.is_table}
        lives: dict[str, int] = {}
        for source in self.query.sources:
            if source.stream.name in direct:
                lives[source.stream.name] = max(lives.get(source.stream.name, 0), life_of(source))
        return tuple(lives.items())

    def _intake(self, stream: Stream, outputs: tuple[Edge, ...]) -> DistributedOperator:
        """Return the operator that reads a stream once for all its aliases. Each alias's selections apply when tuples
        are sent."""
        given = _with_position(stream)
        wanted: dict[str, Output] = {}
        for edge in outputs:
            read = [*edge.columns, *(c for expr in edge.predicates for c in columns_of(expr))]
            for column in read:
                if column.name != "_ts":
                    name = given.position if column.name == POSITION else column.name
                    wanted.setdefault(
                        output_name(column), Output(output_name(column), ColumnRef(stream.name, name, column.type))
                    )
        source = Source(stream.name, given.stream, Window("RANGE", 0))
        sub = Query(self.query.name, self.query.sink, (source,), (), tuple(wanted.values()))
        tasks = self.split if self.forward else 1
        plan, kept = Leaf(stream.name), self._kept((given,))
        return DistributedOperator(stream.name, sub, plan, tasks, self.forward, (given,), outputs, kept=kept)


def _with_position(source: Stream | Table) -> OperatorInput:
    """Return the input for a source that is read directly."""
    name = POSITION
    while source.field(name) is not None:
        name += "@"
    return OperatorInput(replace(source, fields=(*source.fields, Field(name, Type.BIGINT))), None, name)


def _home(node: Join) -> int:
    """Return the input at which a join keeps back tuples of the empty kind: the suppressed input."""
    return suppressed_side(node) or 0


def _names(node: Join) -> tuple[str, str]:
    """Return the names of a join's inputs in its sub-query."""
    return str(node.left), str(node.right)




def _topic_part(aliases: Iterable[str]) -> str:
    """Return aliases as a part of a topic's name."""
    return "-".join(re.sub(r"[^A-Za-z0-9_]", "_", alias) for alias in aliases)[:60]
