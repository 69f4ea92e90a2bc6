"""Decomposes a query's plan into operators: what each operator computes, and what travels between them.

`services.control.plan_versions` calls `decompose`.

The sub-query of an operator has one source per input. A source of the query that is read directly keeps its stream,
with one more column for the position of a tuple's record in its log. A table is an input of the join that reads it,
with one more column for the row's number; every task of that join has all of its rows. The results of another operator
are a stream with the columns `c0, c1, ...`. If they have several components they also have `expiry`, an upper bound for
the `_ts` of the tuples that they join with. The window of such a stream is the least of its components' windows, a
bound that expiry only tightens.

A predicate acts at the same join as in the fused plan (`operators.plan.predicates`). This includes equalities that
follow from others.

**Aggregates** are an operator above the top join. Its tasks share the groups; a result's `expiry` is when it dies.

**Tables in topics** are read where tuples are looked up: by the intake of the stream. An intake reads all streams that
are looked up in the same table, since a partition is read by one task. What is looked up travels like other columns.

**A set difference** is one operator that reads all sources. Its tasks share the keys that every subtracted stream is
compared by; without such a key there is one task.

**ROWS windows** of joins become predicates over columns that an intake of all streams computes
(`operators.distributed.rows_windows`). Aggregates and set differences need to know when each tuple leaves its window,
even if nothing joins it. With ROWS windows, such a query is one operator.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from operators.data.tuples import FOREVER
from operators.distributed.feedback.kinds import MAX_KINDS, EdgeKind, own_kinds, passed_on
from operators.distributed.operator import (
    AGGREGATES,
    CHANNEL,
    EXPIRY,
    MAX_CHANNELS,
    POSITION,
    DistributedOperator,
    Edge,
    OperatorInput,
    TracedJoin,
    output_name,
)
from operators.distributed.rows_windows import counted_windows, horizon_column, with_horizons
from operators.feedback.watch import suppressed_side
from operators.plan.equalities import EqualityClass, equality_classes
from operators.plan.plan import Join, Leaf, Plan, postorder
from operators.plan.predicates import Operand, conjuncts, constants, join_condition, selections
from operators.state.numbered import NumberColumn
from operators.state.sources import HORIZON, life_of
from schemas.errors import InvariantError, UsageError
from schemas.query import (
    ORDINAL,
    Aggregate,
    ColumnRef,
    Compare,
    Expr,
    Field,
    Lookup,
    Output,
    Query,
    Source,
    Stream,
    Subtraction,
    Table,
    Type,
    Window,
    aliases_of,
    columns_of,
    substitute,
)


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
    return all(query.source(alias).is_static for alias in plan.aliases)


def decompose(
    query: Query,
    plan: Plan,
    partitions: Mapping[str, int],
    split: int | None = None,
    prefix: str = "",
    *,
    feedback: bool = False,
    lineage: bool = False,
    on_demand: bool = False,
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
        lineage: Results carry what is needed to trace them to the partition groups of the joins below.
        on_demand: Where possible, joins make results from before the plan's start on demand only.

    Raises:
        UsageError: The query cannot be distributed; the message gives the reason.
    """
    plan = without_joins_of_tables(query, plan)
    return _Decomposition(query, plan, partitions, split, prefix, feedback, lineage, on_demand).operators()


class _Decomposition:
    def __init__(
        self,
        query: Query,
        plan: Plan,
        partitions: Mapping[str, int],
        split: int | None,
        prefix: str,
        feedback: bool,
        lineage: bool,
        on_demand: bool,
    ) -> None:
        self.original = query
        self.counted = counted_windows(query)
        self.query = query = with_horizons(query)
        self.prefix = prefix
        self.plan = plan
        self.forward = bool(query.partition_by)
        # Changes of an answer follow from the answer before them.
        self.beyond = 1 if query.subtracted else 0 if query.aggregation is None else query.aggregation.every_ms
        most = max(partitions[s.topic] for s in query.joined_streams())
        self.split = most if self.forward else split or most
        if query.subtracted:
            self.classes: Mapping[Expr, EqualityClass] = {}
            self.sides: dict[Join, tuple[Plan, ...]] = {_as_join(plan): tuple(Leaf(alias) for alias in plan.aliases)}
        else:
            self.classes = equality_classes(query.predicates)
            self.sides = {node: (node.left, node.right) for node in postorder(plan) if isinstance(node, Join)}
        self.joins = list(self.sides)
        self.lineage = lineage and not query.subtracted
        self.keys = {node: self._difference_keys(node) if query.subtracted else self._keys(node) for node in self.joins}
        self.tasks = {node: self.split if self.forward or self.keys[node][0] else 1 for node in self.joins}
        self.predicates_at = {node: self._predicates_at(node) for node in self.joins}
        self.numbered = 0
        self.kinds: dict[Plan, tuple[EdgeKind, ...]] = {}
        self.on_demand: dict[Plan, tuple[int, ...]] = {}
        on_demand = on_demand and not query.subtracted and query.aggregation is None
        for node in reversed(self.joins) if feedback or on_demand else ():
            self._assign_kinds(node)
        for node in reversed(self.joins) if on_demand else ():
            self._assign_on_demand(node)
        if not feedback:
            self.kinds = {
                node: tuple(kind for kind in kinds if kind.number in self.on_demand.get(node, ()))
                for node, kinds in self.kinds.items()
            }
        readers: dict[str, set[Join]] = {}
        for node in self.joins:
            for side in self.sides[node]:
                if isinstance(side, Leaf) and not query.source(side.alias).is_static:
                    readers.setdefault(self._stream(side.alias).name, set()).add(node)
        topics = Counter(stream.topic for stream in query.streams())
        self.taken_in = [
            stream
            for stream in query.joined_streams()
            if self.counted
            or topics[stream.topic] > 1
            or query.lookups_of(stream.name)
            or len(readers[stream.name]) > 1
            or any(self.tasks[node] > 1 and not self.forward for node in readers[stream.name])
        ]
        self.intakes = [self.taken_in] if self.counted else self._reading_alike()

    def _reading_alike(self) -> list[list[Stream]]:
        """Return the streams that are taken in, those together that share a topic, or a table to be looked up in."""
        found: list[tuple[set[str], list[Stream]]] = []
        for stream in self.taken_in:
            topics, streams = {stream.topic, *(one.table.topic for one in self.query.lookups_of(stream.name))}, [stream]
            for other in [other for other in found if other[0] & topics]:
                found.remove(other)
                topics, streams = topics | other[0], streams + other[1]
            found.append((topics, streams))
        order = self.taken_in.index
        return sorted((sorted(streams, key=order) for _, streams in found), key=lambda streams: order(streams[0]))

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

    def _assign_on_demand(self, reader: Join) -> None:
        """Determine by which kinds a join requests results of its inputs from before the plan's start, for itself and
        for the joins above it."""
        asked = self.on_demand.get(reader, ())
        if reader is not self.plan and not asked:
            return
        for side, child in enumerate((reader.left, reader.right)):
            kinds = self.kinds.get(child, ())
            own = [kind.number for kind in kinds if kind.opposite is not None and kind.own]
            passed = [kind.number for kind in self.kinds.get(reader, ()) if kind.number in asked and kind.home == side]
            if own and {*passed} <= {kind.number for kind in kinds}:
                self.on_demand[child] = (own[0], *passed)

    # --- What acts where ----------------------------------------------------------------------------

    def _keys(self, node: Join) -> tuple[tuple[Operand, ...], ...]:
        """Return the operands by which the two inputs of a join are partitioned."""
        condition = join_condition(self.query.predicates, node.left.aliases, node.right.aliases, self.classes)
        return tuple(t.left for t in condition.keys), tuple(t.right for t in condition.keys)

    def _difference_keys(self, node: Join) -> tuple[tuple[Operand, ...], ...]:
        """Return the operands by which the inputs of a set difference are partitioned: those of the first input to
        which every subtracted stream has an equal."""
        first, *subtracted = node.aliases
        equal = [
            {term.left: term.right for term in join_condition(conjuncts(self.query), (first,), (alias,)).keys}
            for alias in subtracted
        ]
        shared = tuple(operand for operand in equal[0] if all(operand in terms for terms in equal))
        return shared, *(tuple(terms[operand] for operand in shared) for terms in equal)

    def _predicates_at(self, node: Join) -> tuple[Expr, ...]:
        """Return the predicates that act at a join. One predicate of each class of equalities is enough.

        At a set difference, these are the conditions of all subtractions that read other sources than the subtracted.
        """
        if self.query.subtracted:
            given = [p for part in self.query.subtracted for p in part.on]
            return tuple(p for p in given if aliases_of(p) & {self.query.sources[0].alias})
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
        place first."""
        aliases = frozenset(node.aliases)
        found: dict[ColumnRef, None] = {}
        for alias in node.aliases:
            if len(aliases) > 1:
                found[ColumnRef(alias, "_ts", Type.TIMESTAMP)] = None
            found |= dict.fromkeys(self._place(alias))
            if self.original.source(alias).window.kind == "ROWS":
                # Also where nothing compares it any more: states are purged by it.
                found[horizon_column(alias, self.query.source(alias).stream.name)] = None
        above = [join for join in self.joins if aliases < frozenset(join.aliases)]
        exprs = [expr for join in above for expr in self.predicates_at[join]]
        exprs += [operand.expr for join in self._traced(node) for operand in self.keys[join][0]]
        for expr in (*exprs, *self.query.result_expressions()):
            for column in columns_of(expr):
                if column.alias in aliases and not (len(aliases) == 1 and column.name == "_ts"):
                    found[column] = None
        return tuple(found)

    def _place(self, alias: str) -> tuple[ColumnRef, ...]:
        """Return the columns that order tuples of an alias that have one ts: the position of a tuple's record, and the
        ordinals of its elements of unnested arrays."""
        stream = self.query.source(alias).stream
        arrays = stream.unnested if isinstance(stream, Stream) else ()
        names = (_position_name(stream), *(array.column(ORDINAL) for array in arrays))
        return tuple(ColumnRef(alias, name, Type.BIGINT) for name in names)

    def _traced(self, node: Plan) -> list[Join]:
        """Return the joins to which a sub-plan's results are traced."""
        if not self.lineage:
            return []
        return [join for join in self.joins if frozenset(join.aliases) <= frozenset(node.aliases)]

    # --- Operators ----------------------------------------------------------------------------------

    def operators(self) -> tuple[DistributedOperator, ...]:
        if self.counted and (self.query.subtracted or self.query.aggregation is not None):
            return (self._whole(),)
        joins: list[DistributedOperator] = []
        edges: dict[Plan, Edge] = {}
        intake_edges: dict[str, list[Edge]] = {stream.name: [] for stream in self.taken_in}
        for number, node in enumerate(self.joins):
            inputs = tuple(self._input(node, side, edges, intake_edges) for side in self.sides[node])
            outputs: tuple[Edge, ...] = ()
            if node is not self.plan:
                edges[node] = self._edge(self._topic(number + 1, node.aliases), node, self.tasks[node])
                outputs = (edges[node],)
            elif self.query.aggregation is not None:
                outputs = (self._edge_to_aggregates(self._topic(number + 1, node.aliases), node),)
            joins.append(self._join(node, inputs, outputs))
        intakes = [
            self._intake(streams, tuple(edge for stream in streams for edge in intake_edges[stream.name]))
            for streams in self.intakes
        ]
        above = [self._aggregates(joins[-1].outputs[0])] if self.query.aggregation is not None else []
        return (*above, *reversed(joins), *intakes)

    def _input(
        self, node: Join, side: Plan, edges: Mapping[Plan, Edge], intakes: Mapping[str, list[Edge]]
    ) -> OperatorInput:
        if isinstance(side, Leaf):
            source = self.query.source(side.alias)
            if isinstance(source.stream, Table):
                return _with_position(source.stream)
            stream = source.stream
            if stream not in self.taken_in:
                return _with_position(stream)
            number = len(self.joins) + 1 + self.taken_in.index(stream)
            topic = self._topic(number, (side.alias,))
            edge = self._edge(topic, side, self.split if self.forward else 1)
            edge = replace(edge, predicates=selections(self.query, side.alias))
            intakes[stream.name].append(edge)
        else:
            edge = edges[side]
        return _from_edge(edge)

    def _topic(self, number: int, aliases: Iterable[str]) -> str:
        """Return the topic of an operator's results."""
        return f"{self.prefix}{number}.{_topic_part(aliases)}"

    def _reader(self, node: Plan) -> Join:
        return next(join for join in self.joins if node in self.sides[join])

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
        """Return the edge from a sub-plan to the join, or set difference, above it."""
        above = self._reader(node)
        partitions = self.tasks[above]
        hashed = partitions > 1 and not self.forward
        edge = self._plain_edge(topic, node, self._read_above(node), partitions, producers)
        return replace(
            edge,
            keys=self.keys[above][self.sides[above].index(node)] if hashed else (),
            keeps_nulls=bool(self.query.subtracted) and node == self.sides[above][0],
            kinds=self.kinds.get(node, ()),
            above=self._above(node),
            on_demand=self.on_demand.get(node, ()),
            consumer=str(above),
        )

    def _edge_to_aggregates(self, topic: str, node: Join) -> Edge:
        """Return the edge from the top join to the aggregates of its results."""
        times = [ColumnRef(alias, "_ts", Type.TIMESTAMP) for alias in node.aliases]
        read = [column for expr in self.query.result_expressions() for column in columns_of(expr)]
        groups = () if self.query.aggregation is None else self.query.aggregation.group_by
        partitions = self.split if self.forward or groups else 1
        edge = self._plain_edge(topic, node, tuple(dict.fromkeys([*times, *read])), partitions, self.tasks[node])
        hashed = partitions > 1 and not self.forward
        keys = tuple(Operand(expr) for expr in groups) if hashed else ()
        return replace(edge, keys=keys, keeps_nulls=True, consumer=AGGREGATES)

    def _plain_edge(
        self, topic: str, node: Plan, columns: tuple[ColumnRef, ...], partitions: int, producers: int
    ) -> Edge:
        channels = 1 if self.forward else producers
        if channels > MAX_CHANNELS:
            raise UsageError(f"a join is split into at most {MAX_CHANNELS} tasks, not {channels}")
        lives = tuple(life_of(self.query.source(alias)) for alias in node.aliases)
        return Edge(topic, node.aliases, columns, lives, partitions, channels, self.forward, (), producer=str(node))

    def _source(self, name: str, side: Plan, given: OperatorInput) -> Source:
        """Return the source of a sub-query for an input."""
        life = min(life_of(self.query.source(alias)) for alias in side.aliases)
        return Source(name, given.source, Window("UNBOUNDED") if life >= FOREVER else Window("RANGE", life))

    def _join(self, node: Join, inputs: tuple[OperatorInput, ...], outputs: tuple[Edge, ...]) -> DistributedOperator:
        sides = self.sides[node]
        names = [str(side) for side in sides]
        renamed: dict[ColumnRef, ColumnRef] = {}
        for side, name, given in zip(sides, names, inputs, strict=True):
            if given.edge is None:
                alias = side.aliases[0]
                for field in self.query.source(alias).stream.fields:
                    renamed[ColumnRef(alias, field.name, field.type)] = ColumnRef(name, field.name, field.type)
                renamed[ColumnRef(alias, given.position, Type.BIGINT)] = ColumnRef(name, given.position, Type.BIGINT)
            else:
                renamed |= _on_edge(name, given.edge)
            if isinstance(side, Leaf):
                renamed[ColumnRef(side.alias, "_ts", Type.TIMESTAMP)] = ColumnRef(name, "_ts", Type.TIMESTAMP)
        plan: Plan = Leaf(names[0])
        for name in names[1:]:
            plan = Join(plan, Leaf(name))
        sources = tuple(map(self._source, names, sides, inputs))
        sub = Query(self.query.name, self.query.sink, sources, (), ())
        if self.query.subtracted:
            sub = replace(sub, subtracted=self._subtractions(names, inputs, renamed))
            acting: list[Expr] = []
        else:
            acting = [substitute(expr, renamed) for expr in self.predicates_at[node]]
        # Selections of sources that are read by way of an intake apply there.
        for side, given in zip(sides[:1] if self.query.subtracted else sides, inputs, strict=False):
            if isinstance(side, Leaf) and given.edge is None:
                acting += [substitute(expr, renamed) for expr in selections(self.query, side.alias)]
        for mine, other in () if self.query.subtracted else ((0, 1), (1, 0)):
            edge = inputs[mine].edge
            if edge is not None and edge.expires and not inputs[other].is_static:
                expiry = ColumnRef(names[mine], EXPIRY, Type.TIMESTAMP)
                acting.append(Compare("<=", ColumnRef(names[other], "_ts", Type.TIMESTAMP), expiry))
        acting += constants(self.query)
        ranks = 0
        if outputs:
            results = tuple(Output(output_name(c), substitute(c, renamed)) for c in outputs[0].columns)
        else:
            results = tuple(replace(o, expr=substitute(o.expr, renamed)) for o in self.query.outputs)
            if not self.query.subtracted:
                order = self._order(renamed)
                ranks = len(order)
                results += order
        return DistributedOperator(
            str(node),
            replace(sub, predicates=tuple(acting), outputs=results),
            plan,
            self.tasks[node],
            self.forward,
            inputs,
            outputs,
            ranks,
            self._kept(inputs),
            renamed,
            numbered={given.stream.name: self._numbered(given.edge) for given in inputs if given.edge is not None}
            if self.counted
            else {},
            traced=tuple(
                TracedJoin(
                    str(join),
                    join.aliases,
                    tuple(replace(own, expr=substitute(own.expr, renamed)) for own in self.keys[join][0]),
                    self.tasks[join],
                )
                for join in self._traced(node)
            ),
        )

    def _numbered(self, edge: Edge) -> tuple[NumberColumn, ...]:
        """Return the columns of an edge that have horizons."""
        found = []
        for number, column in enumerate(edge.columns):
            if column.name.startswith(HORIZON):
                source, counted = self.original.source(column.alias), column.name.removeprefix(HORIZON)
                own = source.window.kind == "ROWS" and source.stream.name == counted
                found.append(NumberColumn(f"c{number}", counted, source.window.size if own else None))
        return tuple(found)

    def _subtractions(
        self, names: Sequence[str], inputs: Sequence[OperatorInput], renamed: Mapping[ColumnRef, ColumnRef]
    ) -> tuple[Subtraction, ...]:
        """Return the subtractions of the sub-query, in the order of the plan."""
        found = []
        parts = {part.alias: part for part in self.query.subtracted}
        for name, given, alias in zip(names[1:], inputs[1:], self.plan.aliases[1:], strict=True):
            kept = [p for p in parts[alias].on if given.edge is None or aliases_of(p) != {alias}]
            found.append(Subtraction(name, tuple(substitute(p, renamed) for p in kept)))
        return tuple(found)

    def _order(self, renamed: Mapping[ColumnRef, ColumnRef]) -> tuple[Output, ...]:
        """Return the columns that order results of equal ts, under names that no output has."""
        order = [
            column
            for source in self.query.sources
            for column in (ColumnRef(source.alias, "_ts", Type.TIMESTAMP), *self._place(source.alias))
        ]
        mark = "@"
        while any(output.name.startswith(mark) for output in self.query.outputs):
            mark += "@"
        return tuple(Output(f"{mark}{i}", substitute(column, renamed)) for i, column in enumerate(order))

    def _aggregates(self, edge: Edge) -> DistributedOperator:
        """Return the operator that aggregates the results of the top join."""
        given, name = replace(_from_edge(edge), in_order=True), str(self.plan)
        renamed = _on_edge(name, edge)
        asked = self.query.aggregation
        if asked is None:
            raise InvariantError(f"query {self.query.name!r} has no aggregates")

        def computed(aggregate: Aggregate) -> Aggregate:
            argument = aggregate.argument
            return replace(aggregate, argument=None if argument is None else substitute(argument, renamed))

        aggregation = replace(
            asked,
            group_by=tuple(substitute(expr, renamed) for expr in asked.group_by),
            aggregates=tuple(map(computed, asked.aggregates)),
        )
        sub = Query(
            self.query.name,
            self.query.sink,
            (self._source(name, self.plan, given),),
            (),
            self.query.outputs,
            aggregation=aggregation,
            expiry=ColumnRef(name, EXPIRY, Type.TIMESTAMP) if edge.expires else None,
        )
        return DistributedOperator(AGGREGATES, sub, Leaf(name), edge.partitions, self.forward, (given,), ())

    def _kept(self, inputs: Iterable[OperatorInput]) -> tuple[tuple[str, int], ...]:
        direct = {given.stream.name for given in inputs if given.edge is None and not given.is_static}
        lives: dict[str, int] = {}
        for source in self.query.sources:
            if source.stream.name in direct:
                lives[source.stream.name] = max(lives.get(source.stream.name, 0), life_of(source) + self.beyond)
        return tuple(lives.items())

    def _intake(self, streams: Sequence[Stream], outputs: tuple[Edge, ...]) -> DistributedOperator:
        """Return the operator that reads streams once for all their aliases, and the tables that their tuples are
        looked up in. Each alias's selections apply when tuples are sent."""
        inputs = {stream.name: _with_position(stream) for stream in streams}
        lookups = tuple(one for stream in streams for one in self.query.lookups_of(stream.name))
        inputs |= _tables(lookups)
        wanted: dict[str, Output] = {}
        for edge in outputs:
            for column in (*edge.columns, *(c for expr in edge.predicates for c in columns_of(expr))):
                if column.name != "_ts":
                    wanted.setdefault(output_name(column), Output(output_name(column), column))
        sources = tuple(
            Source(source.alias, inputs[source.stream.name].stream, self._read_back(source))
            for source in self.original.sources
            if source.stream.name in inputs
        )
        name = ", ".join(inputs)
        sub = Query(self.query.name, self.query.sink, sources, (), tuple(wanted.values()), lookups=lookups)
        tasks = self.split if self.forward else 1
        return DistributedOperator(name, sub, Leaf(name), tasks, self.forward, tuple(inputs.values()), outputs)

    def _read_back(self, source: Source) -> Window:
        """Return how far an intake must read back for the operators that read a source from it."""
        life = life_of(source)
        if source.window.kind == "ROWS" or life >= FOREVER:
            return source.window
        return Window("RANGE", life + self.beyond)

    def _whole(self) -> DistributedOperator:
        """Return the operator that executes the whole query."""
        query = self.original
        inputs = {source.stream.name: _with_position(source.stream) for source in query.sources}
        sources = tuple(replace(source, stream=inputs[source.stream.name].source) for source in query.sources)
        tasks = self.split if self.forward else 1
        given = (*inputs.values(), *_tables(query.lookups).values())
        whole = replace(query, sources=sources)
        return DistributedOperator(str(self.plan), whole, self.plan, tasks, self.forward, given, ())


def _position_name(source: Stream | Table) -> str:
    """Return what the column of positions is called: as no declared column of the source is."""
    name = POSITION
    while source.field(name) is not None:
        name += "@"
    return name


def _with_position(source: Stream | Table) -> OperatorInput:
    """Return the input for a source that is read directly."""
    name = _position_name(source)
    return OperatorInput(replace(source, fields=(*source.fields, Field(name, Type.BIGINT))), None, name)


def _tables(lookups: Iterable[Lookup]) -> dict[str, OperatorInput]:
    """Return the inputs for the tables in topics of lookups, by the table's name."""
    return {one.table.name: OperatorInput(one.table, None) for one in lookups}


def _from_edge(edge: Edge) -> OperatorInput:
    """Return the input that an edge feeds."""
    marks = (Field(CHANNEL, Type.BIGINT),) if edge.marks_channels else ()
    return OperatorInput(Stream(edge.topic, edge.fields + marks, edge.topic), edge)


def _on_edge(name: str, edge: Edge) -> dict[ColumnRef, ColumnRef]:
    """Return the columns of the query that travel, with their names in a sub-query whose source is `name`."""
    return {column: ColumnRef(name, f"c{i}", column.type) for i, column in enumerate(edge.columns)}


def _as_join(plan: Plan) -> Join:
    if not isinstance(plan, Join):
        raise InvariantError(f"{plan} has no join")
    return plan


def _home(node: Join) -> int:
    """Return the input at which a join keeps back tuples of the empty kind: the suppressed input."""
    return suppressed_side(node) or 0


def _topic_part(aliases: Iterable[str]) -> str:
    """Return aliases as a part of a topic's name."""
    return "-".join(re.sub(r"[^A-Za-z0-9_]", "_", alias) for alias in aliases)[:60]
