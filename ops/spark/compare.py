"""Compares two multisets of results with Spark.

Results are equal when all their values and their timestamps are; -0.0 equals 0.0, and NULL equals NULL. For each
distinct result, Spark counts how often it is in the exact answer and how often it was found:

    missing   it was found less often than it should have been
    doubled   it belongs to the answer, and was found too often
    extra     it does not belong to the answer
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ops.spark.answer import RESULT_TS, History
from ops.spark.results import result_columns
from schemas.codecs.encode import encode_results
from schemas.columns import ARROW_TYPES, I64, Batch, Column
from schemas.members import result_members
from schemas.query import Query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOWN = 5
"""How many examples of each kind are shown."""

KINDS = ("missing", "extra", "doubled")


@dataclass(frozen=True, slots=True)
class Example:
    """A result that is wrong.

    Attributes:
        line: as JSON.
        expected, found: how often.
        first, last: partition and offset (or line) of its occurrences among the results found; None where it has none.
    """

    line: str
    expected: int
    found: int
    first: tuple[int, int] | None
    last: tuple[int, int] | None


@dataclass(slots=True)
class Verdict:
    """What a comparison found.

    Attributes:
        expected, found: results compared.
        counts: by kind (`KINDS`) how many results are wrong.
        examples: the first by kind, in the order of their timestamps.
    """

    expected: int = 0
    found: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    examples: dict[str, list[Example]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not any(self.counts.values())


class FoundResults:
    """Stages the results that were found, for Spark. Use as a context manager.

    Attributes:
        results: how many.
    """

    def __init__(self, path: Path, query: Query) -> None:
        self.path = path
        self.results = 0
        self._columns = result_columns(query)
        fields: list[Any] = [(key, ARROW_TYPES[kind]) for key, _, kind in self._columns]
        self._schema = pa.schema([*fields, (RESULT_TS, pa.int64()), ("part", pa.int32()), ("off", pa.int64())])
        self._writer: Any = pq.ParquetWriter(path, self._schema, compression="zstd", store_schema=False)

    def add(self, batch: Batch, partition: int, offsets: I64) -> None:
        """Add results as `ops.spark.results.result_stream` decodes them, and their positions."""
        arrays = [batch.columns[name].to_arrow() for _, name, _ in self._columns]
        arrays += [pa.array(batch.ts), pa.array(np.full(len(batch), partition, np.int32)), pa.array(offsets)]
        self._writer.write_table(pa.table(arrays, schema=self._schema))
        self.results += len(batch)

    def __enter__(self) -> FoundResults:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()


def compare(spark: SparkSession, query: Query, exact: DataFrame, found: FoundResults, history: History) -> Verdict:
    """Compare the results that were found, as far as they are wanted, with the exact answer.

    Args:
        exact: as `ops.spark.results.answer_of` returns it for `history`.
    """
    columns = [*(key for key, _, _ in result_columns(query)), RESULT_TS]
    nowhere = "CAST(NULL AS STRUCT<part: INT, off: BIGINT>) AS place"
    wanted = exact.selectExpr(*columns, "1L AS e", "0L AS f", nowhere)
    there = spark.read.parquet(str(found.path)).where(history.within(RESULT_TS, "part"))
    there = there.selectExpr(*columns, "0L AS e", "1L AS f", "named_struct('part', part, 'off', off) AS place")
    from pyspark.sql import functions as f

    counted = (
        wanted.unionByName(there)
        .groupBy(*columns)
        .agg(f.sum("e").alias("e"), f.sum("f").alias("f"), f.min("place").alias("first"), f.max("place").alias("last"))
        .selectExpr(
            "*",
            "CASE WHEN f < e THEN 'missing' WHEN f > e AND e > 0 THEN 'doubled' WHEN f > e THEN 'extra' END AS kind",
        )
        .cache()
    )
    verdict = Verdict()
    for row in (
        counted.groupBy("kind")
        .agg(f.sum("e").alias("e"), f.sum("f").alias("f"), f.sum(f.expr("abs(f - e)")).alias("wrong"))
        .collect()
    ):
        verdict.expected += row["e"]
        verdict.found += row["f"]
        if row["kind"] is not None:
            verdict.counts[row["kind"]] = row["wrong"]
    for kind in KINDS:
        if verdict.counts[kind]:
            rows = counted.where(f"kind = '{kind}'").orderBy(RESULT_TS, *columns).limit(SHOWN).collect()
            verdict.examples[kind] = [_example(query, row) for row in rows]
    counted.unpersist()
    return verdict


def _example(query: Query, row: Any) -> Example:
    columns = {name: Column.from_values([row[key]], kind) for key, name, kind in result_columns(query)}
    batch = Batch(np.array([row[RESULT_TS]], np.int64), columns)
    line = encode_results(batch, members=result_members(query)).data.decode().rstrip("\n")
    first, last = (None if at is None else (at["part"], at["off"]) for at in (row["first"], row["last"]))
    return Example(line, row["e"], row["f"], first, last)


def report_lines(verdict: Verdict, topic: str | None) -> list[str]:
    """A verdict as text for people: counts, then examples of each kind.

    Args:
        topic: where the results were; None for a file.
    """

    def shown(place: tuple[int, int]) -> str:
        return f"line {place[1]}" if topic is None else f"{topic}[{place[0]}] offset {place[1]}"

    counts = ", ".join(f"{verdict.counts[kind]:,} {kind}" for kind in KINDS)
    lines = [f"expected {verdict.expected:,} results, found {verdict.found:,}: {counts}"]
    for kind in KINDS:
        for example in verdict.examples[kind]:
            places = dict.fromkeys(place for place in (example.first, example.last) if place is not None)
            where = f", {' to '.join(map(shown, places))}" if places else ""
            lines.append(f"  {kind}, {example.found} of {example.expected}{where}: {example.line}")
        if verdict.counts[kind] and len(verdict.examples[kind]) == SHOWN:
            lines.append(f"  {kind}: the first {SHOWN} are shown")
    return lines
