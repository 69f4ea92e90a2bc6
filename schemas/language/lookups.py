"""Binds `rates FOR SYSTEM_TIME AS OF O._ts AS R` in FROM to a `Lookup`: a table in a topic, read as of a tuple's time.

While a query is bound, R is a name like that of any source. Afterwards the conditions `R.cur = O.cur` on the table's
primary key become the lookup's key, and every other column of R becomes a column of O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lark import Token, Tree

from schemas.errors import InvariantError
from schemas.language.expressions import EVENT_TIME, Scope
from schemas.language.query_text import Node, QueryText, identifier, tree
from schemas.query import (
    Aggregation,
    ColumnRef,
    Compare,
    Expr,
    IsNull,
    Lookup,
    Output,
    Source,
    Stream,
    Subtraction,
    Type,
    aliases_of,
    columns_of,
    looked_up,
    substitute,
    type_of,
)

_WHOLE = frozenset({Type.BIGINT, Type.TIMESTAMP})
"""Types whose values are equal when their numbers are."""


@dataclass(frozen=True, slots=True)
class TableInFrom:
    """A table in FROM that is read as of a time.

    Attributes:
        source: its name while the query is bound.
        of: the alias of the stream whose tuples' times count.
        node: its text, for errors.
        on: the condition of LEFT JOIN ... ON, by which tuples without a row stay; None where they are dropped.
    """

    source: Source
    of: str
    node: Node
    on: Node | None

    @property
    def table(self) -> Stream:
        """The table."""
        stream = self.source.stream
        if not isinstance(stream, Stream):
            raise InvariantError(f"{stream} is in a file")
        return stream


def bind_time(node: Tree[Token], sources: Mapping[str, Source], text: QueryText) -> str:
    """The alias of the stream whose tuples' times count, by AS OF.

    Args:
        sources: the streams and tables of FROM but those that are read as of a time.

    Raises:
        QueryError: it is no stream's event time.
    """
    column = tree(node.children[1])
    first, second = column.children
    name = identifier(first) if second is not None else ""
    source = sources.get(name)
    if second is None or identifier(second) != EVENT_TIME or source is None or source.is_static:
        streams = [alias for alias, one in sources.items() if not one.is_static]
        raise text.error(
            f"FOR SYSTEM_TIME AS OF takes the event time of a stream in FROM: {streams[0]}.{EVENT_TIME}"
            if streams
            else "FOR SYSTEM_TIME AS OF takes the event time of a stream, and FROM has none",
            column,
        )
    return name


class Lookups:
    """The lookups of one query, and what becomes of its expressions.

    Attributes:
        lookups: in FROM order. Each may use columns that earlier ones have looked up.
    """

    def __init__(self, tables: Sequence[TableInFrom], scope: Scope) -> None:
        self.lookups: tuple[Lookup, ...] = ()
        self._tables = tables
        self._scope = scope
        self._of = {one.source.alias: one.of for one in tables}
        self._check_names()

    def _check_names(self) -> None:
        taken: dict[tuple[str, str], str] = {}
        for one in self._tables:
            stream = self._scope.sources[one.of].stream
            for name in (looked_up(one.source.alias, field.name) for field in one.table.fields):
                other = str(stream) if stream.field(name) is not None else taken.get((stream.name, name))
                if other is not None:
                    raise self._scope.text.error(
                        f"{name!r} is a column of {other}; give the table another alias", one.node
                    )
                taken[stream.name, name] = str(one.table)

    def split(
        self, predicates: Sequence[Expr], subtracted: Sequence[Subtraction]
    ) -> tuple[tuple[Expr, ...], tuple[Subtraction, ...]]:
        """Take the conditions on primary keys out of a query's conditions, and return the others.

        Those of a table for a subtracted stream are in its EXCEPT ... ON.

        Raises:
            QueryError: a primary key is not compared with its stream's columns.
        """
        rest = list(predicates)
        on = {part.alias: list(part.on) for part in subtracted}
        for one in self._tables:
            if one.on is None:
                conditions, where = on.get(one.of, rest), f" in ON after EXCEPT {one.of}" if one.of in on else ""
                key = self._key(one, conditions, where)
                # A row's key is never null, so that it is null where there is no row.
                there = ColumnRef(one.source.alias, one.table.primary_key[0], type_of(key[0]))
                conditions.append(IsNull(there, negated=True))
            else:
                conditions = list(self._scope.conjuncts(one.on))
                key = self._key(one, conditions, " in the ON of LEFT JOIN")
                if conditions:
                    raise self._scope.text.error(
                        "ON after LEFT JOIN equates the primary key and nothing else; move other conditions to WHERE",
                        one.on,
                    )
            expressions = tuple(self.over_streams(part) for part in key)
            self.lookups = (*self.lookups, Lookup(one.source.alias, one.table, one.of, expressions))
        return tuple(map(self.over_streams, rest)), tuple(
            replace(part, on=tuple(map(self.over_streams, on[part.alias]))) for part in subtracted
        )

    def _key(self, one: TableInFrom, conditions: list[Expr], where: str) -> list[Expr]:
        """What the columns of the primary key equal; takes the conditions that say so out of the list.

        Args:
            where: the clause that has them, for errors.
        """
        usable = {one.of, *(lookup.alias for lookup in self.lookups if lookup.of == one.of)}
        found: list[Expr] = []
        for name in one.table.primary_key:
            condition = next((c for c in conditions if _equated(c, one.source.alias, name, usable) is not None), None)
            if condition is None:
                column = f"{one.source.alias}.{name}"
                raise self._scope.text.error(
                    f"{one.table} is read by its primary key: write {column} = ..., with columns of {one.of}{where}",
                    one.node,
                )
            conditions.remove(condition)
            value = _equated(condition, one.source.alias, name, usable)
            field = one.table.field(name)
            if value is None or field is None:
                raise InvariantError(f"{one.table} has no column {name!r}")
            if type_of(value) is not field.type and not {type_of(value), field.type} <= _WHOLE:
                raise self._scope.text.error(
                    f"{one.source.alias}.{name} is {field.type}, and what it equals here is {type_of(value)}: "
                    "a primary key is looked up by values of its type",
                    one.node,
                )
            found.append(value)
        return found

    def over_streams(self, expr: Expr) -> Expr:
        """The expression with columns of looked-up rows as those of the tuples that they belong to."""
        return substitute(expr, {column: self._column(column) for column in columns_of(expr)})

    def _column(self, column: ColumnRef) -> ColumnRef:
        of = self._of.get(column.alias)
        return column if of is None else ColumnRef(of, looked_up(column.alias, column.name), column.type)

    def outputs(self, outputs: Sequence[Output]) -> tuple[Output, ...]:
        """The SELECT list, likewise."""
        return tuple(replace(output, expr=self.over_streams(output.expr)) for output in outputs)

    def aggregation(self, aggregation: Aggregation) -> Aggregation:
        """The aggregation, likewise."""
        return replace(
            aggregation,
            group_by=tuple(map(self.over_streams, aggregation.group_by)),
            aggregates=tuple(
                one if one.argument is None else replace(one, argument=self.over_streams(one.argument))
                for one in aggregation.aggregates
            ),
        )

    def partition_by(self, columns: Sequence[ColumnRef], node: Node | None) -> tuple[ColumnRef, ...]:
        """The columns of PARTITION BY without those of the tables.

        Raises:
            QueryError: a table's topic is not partitioned by the column.
        """
        for column in columns:
            one = next((one for one in self._tables if one.source.alias == column.alias), None)
            if one is not None and one.table.primary_key != (column.name,):
                key = ", ".join(one.table.primary_key)
                raise self._scope.text.error(
                    f"the topic of {one.table} is partitioned by its primary key ({key}), not by {column.name}",
                    node or one.node,
                )
            if one is not None and column.type is not columns[0].type:
                raise self._scope.text.error(
                    f"PARTITION BY columns must have one type, since keys are compared as bytes: {column.alias}."
                    f"{column.name} is {column.type}, and {columns[0].alias}.{columns[0].name} is {columns[0].type}",
                    node or one.node,
                )
        return tuple(column for column in columns if column.alias not in self._of)


def _equated(condition: Expr, alias: str, name: str, usable: set[str]) -> Expr | None:
    """What a condition says that a column equals, over usable aliases; None if it says nothing of the kind."""
    if not isinstance(condition, Compare) or condition.op != "=":
        return None
    for column, other in ((condition.left, condition.right), (condition.right, condition.left)):
        named = isinstance(column, ColumnRef) and (column.alias, column.name) == (alias, name)
        if named and aliases_of(other) <= usable:
            return other
    return None
