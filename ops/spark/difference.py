"""The changes of a set difference over history, by Spark (JISC 4.7). Their definition is in `ops/docs/language.md`.

A tuple lives over [ts, dead): `dead` is ts + d + 1 for a RANGE window, the ts of the n-th later tuple for a ROWS
window. It is in the answer while it lives and no living tuple of a subtracted stream matches it: during its lifetime
less the union of its matches' lifetimes. The remainder is a set of intervals; where one begins the tuple enters the
answer ("+"), where it ends the tuple leaves the answer ("-").

Spark finds the union per tuple by a window over its matches in the order of their beginnings: a match that begins after
all earlier ones have ended leaves a gap before it. The tuple's own end stands as a last match.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ops.spark.answer import (
    ENDLESS,
    RESULT_TS,
    WIDEST,
    History,
    bucket_of,
    column_name,
    output_column,
    tuples_of,
)
from ops.spark.expressions import join_key, sql_of
from schemas.query import ColumnRef, Expr, Query, Stream, Subtraction, aliases_of, columns_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RESULT_OP = "op"


def changes(spark: SparkSession, query: Query, history: History) -> DataFrame:
    """All changes.

    Returns:
        a value per output (`ops.spark.answer.output_column`), `op`, and `ts`, the instant; at each instant the exits
        before the entries, both in the total order.
    """
    first = _living(spark, query, 0, history)
    for predicate in query.predicates:
        first = first.where(_sql(query, predicate))
    kept = [name for name in first.columns if name not in ("s0_end", "s0_part")]
    matches = first.selectExpr(*kept, "s0_dead AS match", "s0_dead AS match_end")
    for number, part in enumerate(query.subtracted, 1):
        matches = matches.unionByName(_matches(spark, query, history, first, number, part, kept))
    before = "OVER (PARTITION BY s0_at ORDER BY match ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    gaps = matches.selectExpr(*kept, f"coalesce(max(match_end) {before}, s0_ts) AS comes", "match AS leaves")
    gaps = gaps.where("comes < leaves")
    outputs = [f"{_sql(query, output.expr)} AS {output_column(n)}" for n, output in enumerate(query.outputs)]
    both = "stack(2, '+', comes, '-', leaves) AS (op, ts)"
    found = gaps.selectExpr("s0_at", *outputs, both).where(history.within("ts", "s0_at.part"))
    columns = [output_column(n) for n in range(len(query.outputs))]
    # In ASCII, '-' sorts after '+'.
    return found.orderBy("ts", found["op"].desc(), "s0_at").select(*columns, RESULT_OP, RESULT_TS)


def _matches(
    spark: SparkSession,
    query: Query,
    history: History,
    first: DataFrame,
    number: int,
    part: Subtraction,
    kept: Sequence[str],
) -> DataFrame:
    """The lifetimes of one subtracted stream's tuples that match a tuple of the first source while it lives."""
    from pyspark.sql import functions

    other = _living(spark, query, number, history)
    begin, dead = f"s{number}_ts", f"s{number}_dead"
    conditions = ["s0_ts < s0_dead", f"{begin} < {dead}", f"{begin} < s0_dead", f"s0_ts < {dead}"]
    own, theirs = query.sources[0].window, query.sources[number].window
    width = own.size + theirs.size + 1
    left = first
    if own.kind == theirs.kind == "RANGE" and width < WIDEST:
        low, high = (bucket_of(text, width) for text in (f"s0_ts - {theirs.size}L", f"s0_ts + {own.size}L"))
        left = left.selectExpr("*", f"explode(sequence({low}, {high})) AS bucket")
        other = other.selectExpr("*", f"{bucket_of(begin, width)} AS s{number}_bucket")
        conditions.append(f"bucket = s{number}_bucket")
    if history.copartitioned and isinstance(query.sources[number].stream, Stream):
        conditions.append(f"s0_part = s{number}_part")
    for predicate in part.on:
        conditions.append(_sql(query, predicate))
        key = join_key(predicate, lambda column: column_name(query, column))
        if key is not None:
            conditions.append(key)
    joined = left.join(other, functions.expr(" AND ".join(f"({c})" for c in conditions)))
    return joined.selectExpr(*kept, f"{begin} AS match", f"{dead} AS match_end")


def _living(spark: SparkSession, query: Query, number: int, history: History) -> DataFrame:
    """The tuples of a source with `s{n}_dead`, the first instant at which they are dead; ENDLESS for those that
    stay."""
    source = query.sources[number]
    frame = tuples_of(spark, query, number, history, _read(query, source.alias))
    return frame.selectExpr("*", f"{dead_of(query, number)} AS s{number}_dead").drop(f"s{number}_last")


def dead_of(query: Query, number: int) -> str:
    """SQL of the first instant at which a source's tuple is dead, over the columns of `tuples_of`."""
    match query.sources[number].window.kind:
        case "RANGE":
            return f"coalesce(try_add(s{number}_end, 1L), {ENDLESS}L)"
        case "ROWS":
            return f"coalesce(s{number}_last.ts, {ENDLESS}L)"
    return f"{ENDLESS}L"


def _read(query: Query, alias: str) -> list[str]:
    """The columns of a source that an output or a condition reads."""
    exprs: list[Expr] = [*query.predicates, *query.result_expressions()]
    exprs += [p for part in query.subtracted for p in part.on if alias in aliases_of(p)]
    found: dict[ColumnRef, None] = {}
    for expr in exprs:
        found |= dict.fromkeys(column for column in columns_of(expr) if column.alias == alias)
    return [column_name(query, column) for column in found]


def _sql(query: Query, expr: Expr) -> str:
    return sql_of(expr, lambda column: column_name(query, column))
