"""Binds a SELECT list with aggregates: the grouping expressions, the aggregates, and the outputs per group.

An item of such a list is computed per group: it reads the group's expressions, aggregates, and expressions over
both, such as `ROUND(AVG(T.celsius))` or `SUM(A.x) / COUNT(*)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lark import Token, Tree

from schemas.errors import InvariantError, QueryError
from schemas.language.clauses import Clauses
from schemas.language.expressions import Scope
from schemas.language.functions import AGGREGATES, NUMBERS
from schemas.language.query_text import Node, QueryText, tree
from schemas.query import (
    Aggregate,
    Aggregation,
    ColumnRef,
    Expr,
    Literal,
    Type,
    aggregate_column,
    columns_of,
    group_column,
    type_of,
)

_ORDERED = NUMBERS | {Type.TIMESTAMP}


def aggregates_in(node: Node) -> Iterator[Tree[Token]]:
    """The calls of aggregate functions in a piece of the tree."""
    if isinstance(node, Tree):
        for call in node.find_pred(lambda piece: piece.data in ("call", "call_star")):
            if str(call.children[0]).upper() in AGGREGATES:
                yield call


@dataclass(frozen=True, slots=True)
class GroupedScope(Scope):
    """The names that an item of a SELECT list with aggregates may use.

    Attributes:
        group_by: the expressions of GROUP BY.
        aggregates: those found so far; binding an item adds the item's own.
    """

    group_by: tuple[Expr, ...] = ()
    aggregates: dict[Aggregate, None] = field(default_factory=dict)

    def bind(self, piece: Node, depth: int = 0) -> Expr:
        """The expression over a group's columns; see `Scope.bind`."""
        node = tree(piece)
        if node.data in ("call", "call_star") and str(node.children[0]).upper() in AGGREGATES:
            return self._aggregate(node, depth)
        if next(aggregates_in(node), None) is None:
            bound = self._of_results().bind(node, depth)
            if bound in self.group_by:
                return group_column(self.group_by.index(bound), type_of(bound))
            if isinstance(bound, Literal):
                return bound
            if isinstance(bound, ColumnRef):
                shown = self.text.shown(node)
                raise self.text.error(
                    f"{shown} is neither in GROUP BY nor inside an aggregate; write GROUP BY {shown}, or an "
                    f"aggregate such as MAX({shown})",
                    node,
                )
        # Not super().bind: a dataclass with slots is replaced by a new class, so super() looks for the old class.
        return Scope.bind(self, node, depth)

    def _of_results(self) -> Scope:
        return Scope(self.text, self.sources)

    def _aggregate(self, node: Tree[Token], depth: int) -> ColumnRef:
        name, arguments = str(node.children[0]).upper(), node.children[1:]
        argument: Expr | None = None
        if node.data == "call":
            if len(arguments) != 1:
                raise self.text.error(f"{name} takes one argument, got {len(arguments)}", node)
            for nested in aggregates_in(arguments[0]):
                raise self.text.error(f"aggregates do not nest: this one stands inside {name}", nested)
            argument = self._of_results().value(arguments[0], depth + 1)
        aggregate = self._checked(name, argument, node)
        self.aggregates.setdefault(aggregate)
        return aggregate_column(list(self.aggregates).index(aggregate), aggregate.type)

    def _checked(self, name: str, argument: Expr | None, node: Tree[Token]) -> Aggregate:
        if argument is None and name != "COUNT":
            raise self.text.error(f"{name} takes an expression; only COUNT takes *", node)
        given = Type.BIGINT if argument is None else type_of(argument)
        accepted = NUMBERS if name in ("SUM", "AVG", "MEDIAN") else _ORDERED
        if name != "COUNT" and given not in accepted:
            kinds = "a number (BIGINT or DOUBLE)" + (" or a TIMESTAMP" if accepted is _ORDERED else "")
            what = self.text.shown(node.children[1])
            raise self.text.error(f"{name} takes {kinds}, but {what} is {given}", node.children[1])
        match name:
            case "COUNT":
                return Aggregate("COUNT", argument, Type.BIGINT)
            case "SUM" | "MIN" | "MAX":
                return Aggregate(name, argument, given)
            case "AVG" | "MEDIAN":
                return Aggregate(name, argument, Type.DOUBLE)
        raise InvariantError(f"no rule for aggregate {name}")


def grouped_scope(items: Tree[Token], clauses: Clauses, scope: Scope) -> GroupedScope | None:
    """The scope of a SELECT list with aggregates; None for one without.

    Raises:
        QueryError: GROUP BY or EMIT EVERY without aggregates, aggregates without EMIT EVERY.
    """
    text = scope.text
    first = next(aggregates_in(items), None)
    every = clauses.keyword("emit_every")
    if first is None:
        for place, clause in ((clauses.keyword("group_by"), "GROUP BY"), (every, "EMIT EVERY")):
            if place is not None:
                known = ", ".join(AGGREGATES)
                raise text.error(f"{clause} goes with an aggregate in the SELECT list ({known}); there is none", place)
        return None
    if every is None:
        raise text.error(
            "aggregates slide in event time and need to know when to be emitted: write EMIT EVERY 1 MINUTE at the end",
            first,
        )
    for item in items.children:
        if tree(item).data in ("every_column", "columns_of_alias"):
            raise text.error("'*' has no meaning beside aggregates; list what is grouped by and aggregated", item)
    return GroupedScope(text, scope.sources, group_by=tuple(_group_by(clauses.group_by(), scope)))


MOST_GROUPED = 62
"""The nulls of a group's key are bits of one word."""


def _group_by(nodes: Sequence[Node], scope: Scope) -> Iterator[Expr]:
    seen: set[Expr] = set()
    for node in nodes:
        expr = scope.value(node)
        if not columns_of(expr):
            raise scope.text.error(f"GROUP BY takes expressions that read a column; got {scope.text.shown(node)}", node)
        if expr in seen:
            raise scope.text.error(f"GROUP BY names {scope.text.shown(node)} twice", node)
        seen.add(expr)
        if len(seen) > MOST_GROUPED:
            raise scope.text.error(f"GROUP BY takes at most {MOST_GROUPED} expressions", node)
        yield expr


def bind_aggregation(scope: GroupedScope, clauses: Clauses) -> Aggregation:
    """The aggregation of a SELECT list whose items have all been bound in `scope`."""
    every_ms = clauses.every_ms()
    if every_ms is None:
        raise InvariantError("aggregates without EMIT EVERY have been refused before")
    return Aggregation(every_ms, scope.group_by, tuple(scope.aggregates))


def check_partitions(
    aggregation: Aggregation, partition: frozenset[ColumnRef], clauses: Clauses, text: QueryText
) -> None:
    """Refuse groups that would span several partitions: each partition is a task of its own.

    Args:
        partition: the columns of PARTITION BY, and those that the query equates with them.

    Raises:
        QueryError: GROUP BY names none of them.
    """
    if partition and not partition & set(aggregation.group_by):
        raise _spread(clauses, text)


def _spread(clauses: Clauses, text: QueryText) -> QueryError:
    place = clauses.group_by()[0] if clauses.group_by() else clauses.partition_by()[0]
    column = text.shown(clauses.partition_by()[0])
    return text.error(
        f"with PARTITION BY a group must lie in one partition: name {column} in GROUP BY, or drop PARTITION BY", place
    )
