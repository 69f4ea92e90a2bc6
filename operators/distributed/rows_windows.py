"""Rewrites a query with ROWS windows so that joins in tasks of their own can execute it.

Only a task that reads all streams can count tuples. It gives each tuple its horizon in every counted stream
(`operators.distributed.intake`), a column named HORIZON and the stream. In its own stream that is the tuple's number. A
tuple a in a window `[ROWS n]` over stream S matches a tuple b only if fewer than n later tuples of S precede b:

    horizon of b in S - n < number of a

That holds whenever a is the later of the two. So the window becomes a predicate between a and each other alias, and
the joins need not know of it but for purging their states (`operators.state.numbered`).
"""

from __future__ import annotations

from dataclasses import replace

from operators.state.sources import HORIZON
from schemas.query import Arithmetic, ColumnRef, Compare, Expr, Literal, Query, Type, Window


def counted_windows(query: Query) -> dict[str, int]:
    """The largest ROWS window over each stream that has one, by the stream's name, in the streams' order."""
    found: dict[str, int] = {}
    for stream in query.streams():
        sizes = [s.window.size for s in query.sources if s.stream.name == stream.name and s.window.kind == "ROWS"]
        if sizes:
            found[stream.name] = max(sizes)
    return found


def horizon_column(alias: str, stream: str) -> ColumnRef:
    """The column with the horizon of an alias's tuples in a stream."""
    return ColumnRef(alias, HORIZON + stream, Type.BIGINT)


def with_horizons(query: Query) -> Query:
    """The query with predicates instead of ROWS windows; the query itself if it has none."""
    counted = counted_windows(query)
    if not counted:
        return query
    predicates: list[Expr] = []
    for own in query.sources:
        if own.window.kind != "ROWS":
            continue
        stream, size = own.stream.name, Literal(own.window.size, Type.BIGINT)
        for other in query.sources:
            if other is not own and not other.is_static:
                before = Arithmetic("-", horizon_column(other.alias, stream), size, Type.BIGINT)
                predicates.append(Compare("<", before, horizon_column(own.alias, stream)))
    endless = Window("UNBOUNDED")
    sources = tuple(replace(s, window=endless) if s.window.kind == "ROWS" else s for s in query.sources)
    return replace(query, sources=sources, predicates=(*query.predicates, *predicates))
