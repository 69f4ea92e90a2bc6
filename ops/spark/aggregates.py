"""Sliding aggregates over history, by Spark. Their definition is in `ops/docs/language.md`.

The multiples of EMIT EVERY in [ts, dead) see a result of the join: it enters its group at the first of them, and leaves
the group at the first multiple beyond them. Between two such events nothing of a group changes. So executors compute
its values at these multiples alone, in one pass over the group's events in order (`folding`), one group in one
executor. Where partitions are joined separately, so are their groups.

Sums are exact: a DOUBLE is an integer multiple of 2^-1074, and Python's integers do not round. MIN, MAX and
MEDIAN keep the group's values sorted.

Spark then computes the SELECT list, and leaves out a row that equals the row before it.

Limits: the living values of one group must fit the memory of an executor's Python process.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ops.spark.answer import ENDLESS, RESULT_TS, History, column_name, combinations, output_column
from ops.spark.difference import dead_of
from ops.spark.expressions import SPARK_TYPES, sql_of
from schemas.query import Aggregation, ColumnRef, Expr, Query, Type, aggregate_column, group_column, type_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_UNIT_BITS = 1074
"""Every DOUBLE is a multiple of 2 to the power of minus this number."""


def emissions(spark: SparkSession, query: Query, aggregation: Aggregation, history: History) -> DataFrame:
    """The rows that a query with aggregates emits.

    Returns:
        a value per output (`ops.spark.answer.output_column`) and `ts`, the multiple; in the order of `ts`, then of the
        groups: by column, nulls first.
    """
    by = [f"g{n}" for n in range(len(aggregation.group_by))]
    kinds = [type_of(expr) for expr in aggregation.group_by]
    groups = ["part", *by]
    rows = _events(spark, query, aggregation, history)
    ordered = rows.repartition(*groups).sortWithinPartitions(*groups, "at")
    functions = tuple((a.function, a.type is Type.DOUBLE) for a in aggregation.aggregates)
    fold = folding(len(groups), functions)
    values = [f"v{n}" for n in range(len(aggregation.aggregates))]
    fields = ["part INT", *(f"{name} {SPARK_TYPES[kind]}" for name, kind in zip(by, kinds, strict=True))]
    fields += [f"{name} {SPARK_TYPES[a.type]}" for name, a in zip(values, aggregation.aggregates, strict=True)]
    schema = ", ".join([*fields, "at BIGINT", "alive BOOLEAN"])
    with warnings.catch_warnings():
        # The warning is about pandas' version, which nothing here uses.
        warnings.simplefilter("ignore", FutureWarning)
        folded = spark.createDataFrame(ordered.rdd.mapPartitions(fold), schema)

    names = {group_column(n, kind): f"g{n}" for n, kind in enumerate(kinds)}
    names |= {aggregate_column(n, a.type): f"v{n}" for n, a in enumerate(aggregation.aggregates)}
    outputs = [
        f"{sql_of(output.expr, names.__getitem__)} AS {output_column(n)}" for n, output in enumerate(query.outputs)
    ]
    columns = [output_column(n) for n in range(len(query.outputs))]
    emitted = folded.selectExpr(*groups, *outputs, "at", "alive")
    own = f"PARTITION BY {', '.join(groups)} ORDER BY at"
    same = " AND ".join(f"{column} <=> lag({column}) OVER ({own})" for column in columns)
    emitted = emitted.selectExpr("*", f"coalesce(lag(alive) OVER ({own}), false) AS was", f"({same}) AS same")
    found = emitted.where("NOT alive OR NOT was OR NOT same")
    found = found.where(history.within("at", "part")).selectExpr(*groups, *columns, f"at AS {RESULT_TS}")
    return found.orderBy(RESULT_TS, *by).select(*columns, RESULT_TS)


def _events(spark: SparkSession, query: Query, aggregation: Aggregation, history: History) -> DataFrame:
    """A row per entry (`step` 1) and exit (-1) of a result: its group, its arguments, and the multiple `at`."""
    # Results that are alive at `begin` entered before it.
    found = combinations(spark, query, replace(history, begin=0))
    dead = ", ".join(_dead_of_joined(query, n) for n in range(len(query.sources)))
    first, beyond = (_multiple(text, aggregation.every_ms) for text in ("hi", "gone"))
    groups = [f"{_signless(query, expr)} AS g{n}" for n, expr in enumerate(aggregation.group_by)]
    arguments = [
        f"{'true' if a.argument is None else _signless(query, a.argument)} AS a{n}"
        for n, a in enumerate(aggregation.aggregates)
    ]
    part = "part" if history.copartitioned else "0 AS part"
    lifetimes = found.selectExpr("*", f"least({dead}, {ENDLESS}L) AS gone").selectExpr(
        part, *groups, *arguments, f"{first} AS enters", f"CASE WHEN gone < {ENDLESS}L THEN {beyond} END AS leaves"
    )
    # A result that enters and leaves at one multiple is never seen, and would only make work.
    seen = lifetimes.where("leaves IS NULL OR enters < leaves")
    names = ["part", *(f"g{n}" for n in range(len(groups))), *(f"a{n}" for n in range(len(arguments)))]
    both = "stack(2, enters, 1, leaves, -1) AS (at, step)"
    return seen.selectExpr(*names, both).where("at IS NOT NULL").where(replace(history, begin=0).within("at", "part"))


def _dead_of_joined(query: Query, number: int) -> str:
    """Like `dead_of`, for a source that has been joined: its RANGE window is part of `dead`."""
    if query.sources[number].window.kind == "RANGE":
        return f"CASE WHEN dead < {ENDLESS}L THEN dead + 1L ELSE {ENDLESS}L END"
    return dead_of(query, number)


def _multiple(text: str, every: int) -> str:
    """SQL of the first multiple at or after a time, which is not negative."""
    return f"(({text}) + pmod(-({text}), {every}L))"


def _signless(query: Query, expr: Expr) -> str:
    """SQL of an expression without the sign of zero: -0.0 and 0.0 are one group."""

    def name_of(column: ColumnRef) -> str:
        return column_name(query, column)

    text = sql_of(expr, name_of)
    return f"({text} + 0D)" if type_of(expr) is Type.DOUBLE else text


# --- In executors --------------------------------------------------------------------------------------


def folding(groups: int, aggregates: Sequence[tuple[str, bool]]) -> Any:
    """The function for `mapPartitions`: turns events, group by group and in order, into the values after each
    multiple."""

    def fold(rows: Iterable[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
        key: tuple[Any, ...] | None = None
        at, alive = 0, 0
        accumulators = [_accumulator(*aggregate) for aggregate in aggregates]

        def values_now() -> tuple[Any, ...]:
            return (*(key or ()), *(accumulator.value() for accumulator in accumulators), at, alive > 0)

        for row in rows:
            found, time, step = tuple(row[:groups]), row[-2], row[-1]
            if found != key or time != at:
                if key is not None:
                    yield values_now()
                if found != key:
                    key, alive = found, 0
                    accumulators = [_accumulator(*aggregate) for aggregate in aggregates]
                at = time
            alive += step
            for accumulator, value in zip(accumulators, row[groups:-2], strict=True):
                if value is not None:
                    accumulator.add(value, step)
        if key is not None:
            yield values_now()

    return fold


class _Count:
    def __init__(self) -> None:
        self.count = 0

    def add(self, value: Any, step: int) -> None:
        self.count += step

    def value(self) -> Any:
        return self.count


class _Sum(_Count):
    """SUM and AVG."""

    def __init__(self, double: bool, average: bool) -> None:
        super().__init__()
        self._total = 0
        self._scaled = False
        self._double = double
        self._average = average

    def add(self, value: Any, step: int) -> None:
        super().add(value, step)
        if isinstance(value, float):
            self._scaled = True
            numerator, denominator = value.as_integer_ratio()
            value = numerator * ((1 << _UNIT_BITS) // denominator)
        self._total += step * value

    def value(self) -> Any:
        if not self.count:
            return None
        if not self._double:
            return self._total if -(2**63) <= self._total < 2**63 else None
        try:
            total = self._total / (1 << _UNIT_BITS) if self._scaled else float(self._total)
        except OverflowError:
            return None
        return total / self.count if self._average else total


class _Sorted:
    """MIN, MAX and MEDIAN."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._values: list[Any] = []

    def add(self, value: Any, step: int) -> None:
        if step > 0:
            insort(self._values, value)
        else:
            del self._values[bisect_left(self._values, value)]

    def value(self) -> Any:
        values = self._values
        if not values:
            return None
        if self._function == "MIN":
            return values[0]
        if self._function == "MAX":
            return values[-1]
        middle = len(values) // 2
        low, high = values[middle - (len(values) % 2 == 0)], values[middle]
        return float((Fraction(low) + Fraction(high)) / 2)


def _accumulator(function: str, double: bool) -> Any:
    if function == "COUNT":
        return _Count()
    if function in ("SUM", "AVG"):
        return _Sum(double, function == "AVG")
    return _Sorted(function)
