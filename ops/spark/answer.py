"""The answer of a join over history, by Spark.

It follows from the definition (`ops/docs/language.md`) alone: no plan, state or kernel of the engine takes part. Every
source is a Parquet file of tuples that are not late (`ops.spark.stage`). The sources are joined in FROM order, except
that those that an equality connects come first. Each combination has

    hi    max(ts), the result's timestamp
    dead  min(ts + d) over RANGE windows: the combination is valid while hi <= dead
    at    the position of its newest tuple in the total order (ts, stream ordinal, partition, offset, element)

A tuple of a ROWS window dies at the position of the n-th later tuple of its stream: the combination is valid while `at`
is before all of those. A dead tuple never becomes alive again, so a combination that fails once is dropped at once.

Where both sides have RANGE windows, a new tuple's ts lies in [hi - d, dead]: an interval no longer than some w. Time is
cut into buckets of w, the combination is put into both buckets that its interval meets, and the bucket is one more key
of the join. So Spark, which joins by equal keys only, never compares tuples that are far apart in time. Each pair meets
in exactly one bucket, that of the new tuple.

Limits: joins without any equality and without RANGE windows compare all pairs. A ROWS window numbers the tuples of its
stream in one Spark task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ops.spark.expressions import join_key, sql_of
from ops.spark.stage import OFF, PART, TS, field_column
from schemas.query import (
    ORDINAL,
    ColumnRef,
    Compare,
    Expr,
    Lookup,
    Query,
    Source,
    Stream,
    aliases_of,
    columns_of,
    looked_up,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RESULT_TS = "ts"
ENDLESS = 2**63 - 1
"""The last ts of a tuple that never dies."""

WIDEST = 2**53
"""Buckets of this width or more would save nothing."""


@dataclass(frozen=True, slots=True)
class History:
    """The staged tuples of a query, and which of its results are wanted.

    Attributes:
        paths: Parquet files by name of stream or table.
        copartitioned: whether each partition's tuples are joined only with those of the same partition of other
            streams, and its ROWS windows count only its own tuples. A query with PARTITION BY runs so on Kafka.
        begin, end: results with begin <= ts < end are wanted.
        ends: for a copartitioned query, an end per partition in place of `end`.
    """

    paths: Mapping[str, str]
    copartitioned: bool = False
    begin: int = 0
    end: int = ENDLESS
    ends: Mapping[int, int] | None = None

    def within(self, ts: str, part: str) -> str:
        """SQL: whether a result with that timestamp and partition is wanted."""
        end = f"{self.end}L"
        if self.ends is not None:
            cases = " ".join(f"WHEN {number} THEN {at}L" for number, at in sorted(self.ends.items()))
            end = f"CASE {part} {cases} ELSE 0L END" if cases else "0L"
        return f"{ts} >= {self.begin}L AND {ts} < {end}"


def output_column(index: int) -> str:
    """The name in an answer of the value of `Query.outputs[index]`."""
    return f"o{index}"


def column_name(query: Query, column: ColumnRef) -> str:
    """The name of a source's column in Spark: a name of our own, since the query's may have any characters."""
    number = [source.alias for source in query.sources].index(column.alias)
    if column.name == "_ts":
        return f"s{number}_ts"
    return f"s{number}_{field_column(query.fields_of(query.sources[number].stream), column.name)}"


def answer(spark: SparkSession, query: Query, history: History) -> DataFrame:
    """The results of a query that is neither a set difference nor aggregated.

    Returns:
        a value per output (`output_column`), and their timestamp `ts`; in the order of `ts`, and for equal `ts` in the
        order of their tuples.
    """
    found = combinations(spark, query, history)
    outputs = [
        f"{sql_of(output.expr, lambda c: column_name(query, c))} AS {output_column(n)}"
        for n, output in enumerate(query.outputs)
    ]
    order = [f"s{n}_at" for n in range(len(query.sources))]
    return found.orderBy("hi", *order).selectExpr(*outputs, f"hi AS {RESULT_TS}")


def combinations(spark: SparkSession, query: Query, history: History, *, kept: Sequence[Expr] = ()) -> DataFrame:
    """The combinations that are results of a query's FROM and WHERE.

    Returns:
        the columns that outputs and `kept` read (`column_name`), `hi`, `dead`, `at`, `part`, and `s{n}_at` per source.
    """
    return _Joiner(spark, query, history, kept).run()


@dataclass(frozen=True, slots=True)
class _Bound:
    """The sources that have been joined so far.

    Attributes:
        sources: their numbers.
        shortest: the shortest RANGE window; None where there is none.
    """

    frame: DataFrame
    sources: frozenset[int]
    shortest: int | None


class _Joiner:
    def __init__(self, spark: SparkSession, query: Query, history: History, kept: Sequence[Expr]) -> None:
        self._spark = spark
        self._query = query
        self._history = history
        self._open = list(query.predicates)
        read = [*kept, *query.result_expressions(), *query.predicates]
        self._read = list(dict.fromkeys(column for expr in read for column in columns_of(expr)))
        self._rows = [n for n, source in enumerate(query.sources) if source.window.kind == "ROWS"]

    def run(self) -> DataFrame:
        sources = self._query.sources
        left = list(range(len(sources)))
        first = next(n for n in left if not sources[n].is_static)
        bound = self._begin(first)
        left.remove(first)
        while left:
            number = self._next(bound.sources, left)
            left.remove(number)
            bound = self._join(bound, number)
        return bound.frame.where(self._history.within("hi", "part"))

    def _begin(self, number: int) -> _Bound:
        frame = self._source(number)
        frame = frame.selectExpr(
            "*", f"s{number}_ts AS hi", f"s{number}_end AS dead", f"s{number}_at AS at", f"s{number}_part AS part"
        )
        return self._alive(frame.drop(f"s{number}_end", f"s{number}_part"), frozenset({number}))

    def _alive(self, frame: DataFrame, sources: frozenset[int]) -> _Bound:
        """The combinations that are alive under ROWS windows and satisfy the predicates over no source."""
        for n in self._rows:
            if n in sources:
                frame = frame.where(f"s{n}_last IS NULL OR at < s{n}_last")
        for predicate in self._closed(sources):
            frame = frame.where(self._sql(predicate))
        windows = [self._query.sources[n].window for n in sources]
        ranges = [window.size for window in windows if window.kind == "RANGE"]
        return _Bound(frame, sources, min(ranges, default=None))

    def _closed(self, sources: frozenset[int]) -> list[Expr]:
        """The predicates that read these sources only; each is returned once."""
        aliases = {self._query.sources[n].alias for n in sources}
        closed = [predicate for predicate in self._open if aliases_of(predicate) <= aliases]
        self._open = [predicate for predicate in self._open if predicate not in closed]
        return closed

    def _next(self, bound: frozenset[int], left: Sequence[int]) -> int:
        """The source to join next: one that an equality connects, else one that any predicate connects."""
        aliases = {self._query.sources[n].alias for n in bound}

        def connects(number: int, equal: bool) -> bool:
            alias = self._query.sources[number].alias
            return any(
                alias in aliases_of(p) <= aliases | {alias} and (not equal or _is_equality(p))
                for p in self._open
                if len(aliases_of(p)) > 1
            )

        for equal in (True, False):
            for number in left:
                if connects(number, equal):
                    return number
        return left[0]

    def _join(self, bound: _Bound, number: int) -> _Bound:
        source = self._query.sources[number]
        left, right = bound.frame, self._source(number)
        conditions = [f"s{number}_ts <= dead", f"hi <= s{number}_end"]
        # dead - hi <= shortest, so the interval [hi - d, dead] meets at most two buckets of this width.
        width = (ENDLESS if bound.shortest is None else bound.shortest) + source.window.size + 1
        if source.window.kind == "RANGE" and width < WIDEST:
            begin, end = (bucket_of(text, width) for text in (f"hi - {source.window.size}L", "dead"))
            left = left.selectExpr("*", f"explode(sequence({begin}, {end})) AS bucket")
            right = right.selectExpr("*", f"{bucket_of(f's{number}_ts', width)} AS s{number}_bucket")
            conditions.append(f"bucket = s{number}_bucket")
        if self._history.copartitioned and isinstance(source.stream, Stream):
            conditions.append(f"part = s{number}_part")
        sources = bound.sources | {number}
        for predicate in self._closed(sources):
            conditions.append(self._sql(predicate))
            key = join_key(predicate, self._name)
            if key is not None:
                conditions.append(key)
        from pyspark.sql import functions

        joined = left.join(right, functions.expr(" AND ".join(f"({c})" for c in conditions)))
        gone = ("hi", "dead", "at", "bucket", f"s{number}_bucket", f"s{number}_ts", f"s{number}_end", f"s{number}_part")
        kept = [name for name in joined.columns if name not in gone or name in self._named(number)]
        joined = joined.selectExpr(
            *kept,
            f"greatest(hi, s{number}_ts) AS hi",
            f"least(dead, s{number}_end) AS dead",
            f"greatest(at, s{number}_at) AS at",
        )
        return self._alive(joined, sources)

    def _source(self, number: int) -> DataFrame:
        """The tuples of a source that satisfy its own predicates."""
        source = self._query.sources[number]
        frame = tuples_of(self._spark, self._query, number, self._history, self._named(number))
        for predicate in self._closed(frozenset({number})):
            frame = frame.where(self._sql(predicate))
        if source.window.kind == "RANGE" and self._history.begin > source.window.size:
            frame = frame.where(f"s{number}_end >= {self._history.begin}L")
        return frame

    def _named(self, number: int) -> list[str]:
        alias = self._query.sources[number].alias
        return [self._name(column) for column in self._read if column.alias == alias]

    def _name(self, column: ColumnRef) -> str:
        return column_name(self._query, column)

    def _sql(self, expr: Expr) -> str:
        return sql_of(expr, self._name)


def tuples_of(spark: SparkSession, query: Query, number: int, history: History, columns: Sequence[str]) -> DataFrame:
    """All tuples of a source, before its predicates.

    Returns:
        of source n the given columns; `s{n}_ts`; `s{n}_end`, the last ts at which a RANGE window contains it;
        `s{n}_at`, its position in the total order; `s{n}_part`; and for a ROWS window `s{n}_last`, the position of the
        tuple that ends it, NULL where none has arrived.
    """
    source = query.sources[number]
    ordinal = -1
    if isinstance(source.stream, Stream):
        ordinal = [stream.name for stream in query.joined_streams()].index(source.stream.name)
    arrays = source.stream.unnested if isinstance(source.stream, Stream) else ()
    ordinals = [field_column(source.stream.fields, array.column(ORDINAL)) for array in arrays]
    element = f"array({', '.join(ordinals or ['0L'])})"
    place = f"named_struct('ts', {TS}, 'stream', {ordinal}, 'part', {PART}, 'off', {OFF}, 'element', {element})"
    prefix = f"s{number}_"
    exprs = [f"{name.removeprefix(prefix)} AS {name}" for name in columns if name != f"{prefix}ts"]
    exprs += [f"{TS} AS {prefix}ts", f"{_end(source)} AS {prefix}end", f"{PART} AS {prefix}part"]
    exprs.append(f"{place} AS {prefix}at")
    if source.window.kind == "ROWS":
        split = f"PARTITION BY {PART} " if history.copartitioned else ""
        order = f"{TS}, {PART}, {OFF}, {element}"
        exprs.append(f"lead({place}, {source.window.size}) OVER ({split}ORDER BY {order}) AS {prefix}last")
    tuples = spark.read.parquet(history.paths[source.stream.name])
    if isinstance(source.stream, Stream) and source.stream.deduplicate:
        tuples = without_repeats(tuples, source.stream, history.copartitioned)
    for lookup in query.lookups:
        if lookup.of == source.alias:
            tuples = _looked_up(spark, query, lookup, history, tuples)
    return tuples.selectExpr(*exprs)


def _looked_up(spark: SparkSession, query: Query, lookup: Lookup, history: History, tuples: DataFrame) -> DataFrame:
    """A stream's tuples with the columns of a table's rows as they are at the tuples' times.

    Versions and tuples of a key are put into one order, at equal times the versions first. The last version before a
    tuple holds then.
    """
    fields, table = query.fields_of(query.source(lookup.of).stream), lookup.table
    split = [PART] if history.copartitioned else []
    keys = [sql_of(expr, lambda c: TS if c.name == "_ts" else field_column(fields, c.name)) for expr in lookup.key]
    own = [field_column(table.fields, name) for name in table.primary_key]
    order = [*split, *(f"k{n}" for n in range(len(keys))), f"{TS} AS t", "kind", f"{PART} AS p", f"{OFF} AS o"]
    there = ", ".join(f"'{name}', {name}" for name in tuples.columns)
    known = [(field_column(table.fields, field.name), field.name) for field in table.fields]
    values = ", ".join(f"'{name}', {name}" for name, _ in known)
    gone = f"f{len(table.fields)}"
    probes = tuples.selectExpr(
        "*", *(f"{key} AS k{n}" for n, key in enumerate(keys)), "1 AS kind", f"named_struct({there}) AS tuple"
    ).selectExpr(*order, "tuple", "NULL AS version")
    versions = (
        spark.read.parquet(history.paths[table.name])
        .selectExpr("*", *(f"{name} AS k{n}" for n, name in enumerate(own)), "0 AS kind")
        .selectExpr(*order, "NULL AS tuple", f"named_struct({values}, 'since', {TS}, 'gone', {gone}) AS version")
    )
    by = ", ".join([*split, *(f"k{n}" for n in range(len(keys)))])
    last = f"last(version, true) OVER (PARTITION BY {by} ORDER BY t, kind, p, o ROWS UNBOUNDED PRECEDING) AS held"
    found = probes.unionByName(versions).selectExpr("*", last).where("kind = 1")
    columns = [
        f"CASE WHEN NOT held.gone THEN held.{column} END AS {field_column(fields, looked_up(lookup.alias, name))}"
        for column, name in (*known, ("since", "_ts"))
    ]
    return found.selectExpr("tuple.*", *columns)


def without_repeats(staged: DataFrame, stream: Stream, copartitioned: bool) -> DataFrame:
    """The staged tuples of a stream that are no repeats. Of copartitioned streams each partition has its own firsts.

    The tuples of each key are one array in their order, along which the newest first is carried.
    """
    from pyspark.sql import functions

    columns = [field_column(stream.fields, name) for name in stream.deduplicate]
    has_key = " AND ".join(f"{column} IS NOT NULL" for column in columns)
    place = f"named_struct('{TS}', {TS}, '{PART}', {PART}, '{OFF}', {OFF})"
    begin = "named_struct('newest', CAST(NULL AS BIGINT), 'firsts', slice(places, 1, 0))"
    is_first = f"found.newest IS NULL OR place.{TS} > found.newest + {stream.deduplicate_within_ms}L"
    first = f"named_struct('newest', place.{TS}, 'firsts', concat(found.firsts, array(place)))"
    walk = f"aggregate(places, {begin}, (found, place) -> IF({is_first}, {first}, found), found -> found.firsts)"
    keys = [*columns, *([PART] if copartitioned else [])]
    places = functions.expr(f"sort_array(collect_list({place})) AS places")
    grouped = staged.where(has_key).groupBy(*keys).agg(places)
    firsts = grouped.selectExpr(f"explode({walk}) AS first")
    firsts = firsts.selectExpr("first.part AS own_part", "first.off AS own_off")
    taken = staged.join(firsts, functions.expr(f"{PART} = own_part AND {OFF} = own_off"), "left_semi")
    return taken.unionByName(staged.where(f"NOT ({has_key})"))


def _is_equality(expr: Expr) -> bool:
    return isinstance(expr, Compare) and expr.op == "="


def _end(source: Source) -> str:
    if source.window.kind == "RANGE":
        return f"coalesce(try_add({TS}, {source.window.size}L), {ENDLESS}L)"
    return f"{ENDLESS}L"


def bucket_of(text: str, width: int) -> str:
    """SQL of a time's bucket; floor division, also for negative times."""
    return f"(({text}) - pmod({text}, {width}L)) div {width}L"
