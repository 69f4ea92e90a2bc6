"""Names lookups of several queries by what they look up, so that equal lookups are one.

A query calls what it looks up by an alias of its own, and two queries may use one alias for different things. In a
group, `rates FOR SYSTEM_TIME AS OF O._ts AS R WHERE R.cur = O.cur` is called `rates(cur)`, in every query. Its column
`R.rate` is the column `rates(cur).rate` of the stream. The name follows from the stream's declaration, the table and
the key alone, so it stays the same whichever queries come and go.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace

from schemas.query import ColumnRef, Expr, Lookup, Query, Stream, Table, columns_of, looked_up, substitute

ANY_SOURCE = ""
"""The alias of a stream's columns in keys that are compared."""

DIGITS = 16


def with_shared_names(query: Query) -> Query:
    """The query with other names for its lookups; an alias and its lookups need not be unique any more, but alias and
    stream tell them apart."""
    if not query.lookups:
        return query
    names: dict[ColumnRef, ColumnRef] = {}

    def over(column: ColumnRef) -> ColumnRef:
        return names.get(column, column)

    lookups: list[Lookup] = []
    for lookup in query.lookups:
        key = tuple(over_columns(expr, over) for expr in lookup.key)
        alias = _name(query.source(lookup.of).stream, lookup.table, key)
        shared = replace(lookup, alias=alias, key=key)
        for before, after in zip(lookup.fields(), shared.fields(), strict=True):
            names[ColumnRef(lookup.of, before.name, before.type)] = ColumnRef(lookup.of, after.name, after.type)
        lookups.append(shared)
    return replace(replace_columns(query, over), lookups=tuple({(one.of, one.alias): one for one in lookups}.values()))


def _name(stream: Stream | Table, table: Stream, key: tuple[Expr, ...]) -> str:
    """What a lookup is called: the table and the columns of its key, or a hash of a key of another form."""
    key = tuple(over_columns(expr, lambda column: replace(column, alias=ANY_SOURCE)) for expr in key)
    plain = [expr.name for expr in key if isinstance(expr, ColumnRef) and re.fullmatch(r"\w+", expr.name)]
    told = ", ".join(plain) if len(plain) == len(key) else f"#{hashlib.sha256(repr(key).encode()).hexdigest()[:DIGITS]}"
    name = f"{table.name}({told})"
    while any(stream.field(looked_up(name, field.name)) is not None for field in table.fields):
        name += "'"
    return name


def over_columns(expr: Expr, over: Callable[[ColumnRef], ColumnRef]) -> Expr:
    """The expression with other columns."""
    return substitute(expr, {column: over(column) for column in columns_of(expr)})


def replace_columns(query: Query, over: Callable[[ColumnRef], ColumnRef]) -> Query:
    """The query with other columns in its conditions, its SELECT list and its aggregation.

    Args:
        over: leaves columns that read the groups of an aggregation as they are.
    """

    def expr(expr: Expr) -> Expr:
        return over_columns(expr, over)

    aggregation = query.aggregation
    return replace(
        query,
        predicates=tuple(map(expr, query.predicates)),
        outputs=tuple(replace(output, expr=expr(output.expr)) for output in query.outputs),
        partition_by=tuple(map(over, query.partition_by)),
        aggregation=None
        if aggregation is None
        else replace(
            aggregation,
            group_by=tuple(map(expr, aggregation.group_by)),
            aggregates=tuple(
                one if one.argument is None else replace(one, argument=expr(one.argument))
                for one in aggregation.aggregates
            ),
        ),
        subtracted=tuple(replace(part, on=tuple(map(expr, part.on))) for part in query.subtracted),
    )
