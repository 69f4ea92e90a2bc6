"""Random query groups and their input (Hypothesis strategies), and a function that feeds them to a group's engine.

Queries of a group read streams of one small set under few aliases, so that they share inputs, join a stream with
itself, use several windows on one input, and have similar predicates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from operators.groups.engine import GroupEngine
from schemas.columns import Batch
from schemas.groups import streams_of
from schemas.query import (
    Arithmetic,
    ColumnRef,
    Compare,
    Expr,
    Literal,
    Output,
    Query,
    Source,
    Stream,
    Table,
    Type,
    Window,
    columns_of,
)
from tests.cases import (
    FIELDS,
    ORDER,
    VALUES,
    aggregating,
    column,
    deduplication,
    join_predicate,
    lookup_column,
    lookups,
    make_versions,
    over_lookups,
    selection,
    versioned_table,
    window,
)
from tests.feeding import Rows, to_batch, to_rows

ALIASES = ("A", "B", "C", "D")


@dataclass(frozen=True)
class GroupCase:
    """Queries, their input in arrival order per stream and partition, the rows of tables, and how to feed them."""

    queries: tuple[Query, ...]
    rows: Rows
    push_sizes: list[int]
    epoch_ms: int
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def rows_of(self, query: Query) -> Rows:
        """The rows of the streams that a query reads."""
        return {stream.name: self.rows[stream.name] for stream in query.streams()}

    def given(self, query: Query) -> dict[str, Any]:
        """The rows of a query's streams and tables, for the oracle."""
        return {**self.rows_of(query), **{table.name: self.tables[table.name] for table in query.tables()}}

    def batches(self) -> dict[str, Batch]:
        """The rows of all tables, for an engine."""
        tables = {table.name: table for query in self.queries for table in query.tables()}
        return {name: to_batch(table, self.tables[name]) for name, table in tables.items()}


def similar(aliases: list[str]) -> st.SearchStrategy[Expr]:
    """A predicate that many queries have, with other constants, factors or addends."""

    def scaled(name: str, alias: str, factor: int, addend: int) -> Expr:
        times = Arithmetic("*", Literal(factor, Type.BIGINT), column(alias, name), Type.BIGINT)
        return Arithmetic("+", times, Literal(addend, Type.BIGINT), Type.BIGINT)

    def between(op: str, name: str, pair: list[str], factor: int, addend: int) -> Expr:
        return Compare(op, column(pair[0], name), scaled(name, pair[1], factor, addend))  # type: ignore[arg-type]

    name = st.sampled_from(["k", "v"])
    number = st.sampled_from([-2, -1, 0, 1, 2, 3])
    constant = st.builds(
        lambda op, alias, name, value: Compare(op, column(alias, name), Literal(value, Type.BIGINT)),
        ORDER,
        st.sampled_from(aliases),
        name,
        number,
    )
    if len(aliases) == 1:
        return constant
    pairs = st.permutations(aliases).map(lambda order: order[:2])
    times = st.builds(lambda op, pair: Compare(op, column(pair[0], "_ts"), column(pair[1], "_ts")), ORDER, pairs)
    return st.one_of(constant, times, st.builds(between, ORDER, name, pairs, number, number))


@st.composite
def group_queries(
    draw: st.DrawFn,
    *,
    most: int = 4,
    least_aliases: int = 1,
    most_aliases: int = 3,
    tables: bool = True,
    aggregates: bool = True,
    in_files: bool = False,
) -> tuple[Query, ...]:
    """Queries `q0`, `q1`, ... over a few streams; with `in_files` those that files can have, too."""
    versioned = [draw(versioned_table(f"V{i}", in_file=in_files)) for i in range(2)]
    streams = [
        Stream(
            f"S{i}",
            FIELDS,
            f"S{i}",
            timestamp="ts",
            disorder_ms=draw(st.sampled_from([0, 2, 20])),
            **draw(deduplication()),
        )
        for i in range(draw(st.integers(1, 3)))
    ]
    table = Table("T0", FIELDS, "")

    def source(alias: str, first: bool) -> Source:
        if tables and not first and draw(st.integers(0, 7)) == 0:
            return Source(alias, table, Window("UNBOUNDED"))
        # Mostly one alias names one stream in all queries, as people write queries.
        number = ALIASES.index(alias) if draw(st.booleans()) else draw(st.integers(0, 2))
        return Source(alias, streams[number % len(streams)], draw(window()))

    def constant(alias: str) -> st.SearchStrategy[Expr]:
        return st.builds(
            lambda op, value: Compare(op, column(alias, "k"), Literal(value, Type.BIGINT)),
            st.sampled_from(["<", ">", "<="]),
            st.integers(0, 2),
        )

    # Whether every query has a condition on each single stream, so that not all tuples are stored.
    selective = draw(st.booleans())
    queries: list[Query] = []
    for number in range(draw(st.integers(1, most))):
        aliases = draw(st.permutations(ALIASES))[: draw(st.integers(least_aliases, most_aliases))]
        sources = tuple(source(alias, first) for alias, first in zip(aliases, [True, *[False] * 9], strict=False))
        alikes = st.lists(similar(list(aliases)), max_size=3)
        predicates = draw(alikes)
        for k in range(1, len(aliases)):
            if draw(st.booleans()):
                predicates.append(draw(join_predicate(list(aliases[:k]), [aliases[k]])))
        if draw(st.integers(0, 3)) == 0:
            predicates.append(draw(selection(draw(st.sampled_from(list(aliases))))))
        named = {s.alias: s.stream for s in sources}
        # A table's rows have no event time.
        predicates = [p for p in predicates if not any(_time_of_table(c, named) for c in columns_of(p))]
        if selective:
            streamed = [alias for alias in aliases if isinstance(named[alias], Stream)]
            predicates += [draw(constant(alias)) for alias in streamed]
        kept = draw(st.sampled_from([FIELDS[:4], FIELDS[:2], FIELDS[2:]]))
        outputs = [Output(f"{a}.{f.name}", column(a, f.name)) for a in aliases for f in kept]
        found = draw(lookups(sources, versioned))
        predicates += draw(over_lookups(found, aliases))
        for one in found:
            names = draw(st.sampled_from([("v",), ("s", "_ts"), ("d",)]))
            outputs += [Output(f"{one.alias}.{name}", lookup_column(one, name)) for name in names]
        query = Query(f"q{number}", f"q{number}", sources, tuple(predicates), tuple(outputs), lookups=found)
        counted = any(source.window.kind == "ROWS" for source in sources)
        if aggregates and not counted and draw(st.integers(0, 3)) == 0:
            query = draw(aggregating(query))
        queries.append(query)
    return tuple(queries)


def _time_of_table(column: ColumnRef, streams: dict[str, Stream | Table]) -> bool:
    return column.name == "_ts" and isinstance(streams[column.alias], Table)


@st.composite
def group_cases(
    draw: st.DrawFn, *, least_rows: int = 0, most_rows: int = 10, partitions: int = 2, **of: Any
) -> GroupCase:
    """A random group with input; `of` are arguments of `group_queries`."""
    queries = draw(group_queries(**of))

    def some() -> list[dict[str, Any]]:
        return [
            {"ts": draw(st.integers(0, 60)), **{name: draw(v) for name, v in VALUES.items()}}
            for _ in range(draw(st.integers(least_rows, most_rows)))
        ]

    rows: Rows = {s.name: [some() for _ in range(draw(st.integers(1, partitions)))] for s in streams_of(queries)}
    for stream in streams_of(queries):
        if stream.is_versioned:
            rows[stream.name] = [part or [{"ts": 0, **dict.fromkeys(VALUES)}] for part in rows[stream.name]]
            draw(make_versions(rows[stream.name]))
    if draw(st.booleans()):
        for parts in rows.values():
            for part in parts:
                part.sort(key=lambda row: row["ts"])
    tables = dict.fromkeys(table.name for query in queries for table in query.tables())
    return GroupCase(
        queries,
        rows,
        draw(st.lists(st.integers(1, 6), min_size=1, max_size=5)),
        draw(st.sampled_from([1, 7, 30, 1000])),
        {name: some() for name in tables},
    )


def feed_group(
    engine: GroupEngine, case: GroupCase, looked: Callable[[], None] = lambda: None
) -> dict[str, list[dict[str, Any]]]:
    """Push everything in turns, advancing when an epoch is complete; returns all results per query.

    Args:
        looked: called after every advance.
    """
    streams = {stream.name: stream for stream in streams_of(case.queries)}
    at = {(name, p): 0 for name, parts in case.rows.items() for p in range(len(parts))}
    out: dict[str, list[dict[str, Any]]] = {query.name: [] for query in case.queries}

    def advance() -> None:
        for name, batch in engine.advance().items():
            out[name] += to_rows(batch)
        looked()

    turn = 0
    while at:
        for name, p in list(at):
            begin, size = at[name, p], case.push_sizes[turn % len(case.push_sizes)]
            turn += 1
            piece = case.rows[name][p][begin : begin + size]
            if piece:
                engine.push(name, p, to_batch(streams[name], piece))
                at[name, p] = begin + len(piece)
            if begin + len(piece) >= len(case.rows[name][p]):
                engine.close(name, p)
                del at[name, p]
            if engine.watermark() - engine.cut >= case.epoch_ms:
                advance()
    advance()
    return out
