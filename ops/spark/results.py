"""Answers any query in batch, writes the results from Spark to files, and reads the results of a query for Spark."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow.parquet as pq

from ops.spark.aggregates import emissions
from ops.spark.answer import RESULT_TS, History, answer, output_column
from ops.spark.difference import RESULT_OP, changes
from schemas.avro.result_schema import field_name
from schemas.codecs.encode import encode_results, member_array
from schemas.columns import Batch, Column
from schemas.errors import StateError, UsageError
from schemas.members import result_members
from schemas.query import OP_KEY, TIMESTAMP_KEY, Field, Query, ResultFormat, Stream, Type, type_of
from services.files.sinks import LineSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READ_ROWS = 1 << 16
PARQUET = (".parquet", ".pq")
JSON = ResultFormat()


def answer_of(spark: SparkSession, query: Query, history: History) -> DataFrame:
    """All results of a query over history, in order: the columns of `result_columns`, and `ts`."""
    if query.subtracted:
        return changes(spark, query, history)
    if query.aggregation is not None:
        return emissions(spark, query, query.aggregation, history)
    return answer(spark, query, history)


def result_columns(query: Query) -> list[tuple[str, str, Type]]:
    """For each key of a result but `_ts`: its column in Spark, its name and its type."""
    found = [(output_column(n), output.name, type_of(output.expr)) for n, output in enumerate(query.outputs)]
    return [*found, (RESULT_OP, OP_KEY, Type.STRING)] if query.subtracted else found


def result_stream(query: Query, written: ResultFormat = JSON) -> Stream:
    """Results as a stream that the codecs can read: their keys as fields, `_ts` as event time.

    Args:
        written: how they are written.
    """
    renamed = written.format in ("avro", "protobuf")
    fields = []
    for output in query.outputs:
        path = tuple(map(field_name, output.path)) if renamed and output.header is None else output.path
        fields.append(Field(output.name, type_of(output.expr), path))
    fields += [Field(OP_KEY, Type.STRING)] if query.subtracted else []
    fields.append(Field(TIMESTAMP_KEY, Type.TIMESTAMP))
    topic = query.sink or query.name
    return Stream("results", tuple(fields), topic, written.format, TIMESTAMP_KEY, registry=written.registry)


def read_answer(query: Query, folder: Path) -> Iterator[Batch]:
    """The results that Spark wrote to a folder of Parquet files, in their order."""
    for path in sorted(folder.glob("part-*.parquet")):
        file = pq.ParquetFile(path)
        for rows in file.iter_batches(READ_ROWS, use_threads=False):
            columns = {name: Column.from_arrow(rows.column(key), kind) for key, name, kind in result_columns(query)}
            yield Batch(rows.column(RESULT_TS).to_numpy().astype(np.int64, copy=False), columns)


class ResultFile(Protocol):
    """A destination for results."""

    def write(self, batch: Batch) -> None:
        """Write results, after those before."""
        ...

    def close(self) -> None:
        """End the output; all results have been written."""
        ...


def open_results(path: str, query: Query) -> ResultFile:
    """Open a file by its name: Parquet, else JSON lines; `-` is standard output.

    Raises:
        UsageError: it cannot be created.
    """
    if path.lower().endswith(PARQUET):
        return _ParquetResults(path, query)
    return _LineResults(path, query)


class _LineResults:
    def __init__(self, path: str, query: Query) -> None:
        self._sink = LineSink("--out", path)
        self._members = result_members(query)

    def write(self, batch: Batch) -> None:
        self._sink.write(encode_results(batch, members=self._members).data)

    def close(self) -> None:
        self._sink.close()


class _ParquetResults:
    def __init__(self, path: str, query: Query) -> None:
        import pyarrow as pa

        self._path = path
        self._members = result_members(query)
        none = [Column.from_values([], kind) for _, _, kind in result_columns(query)]
        fields: list[Any] = [(member.name, member_array(member, none).type) for member in self._members]
        self._schema = pa.schema([*fields, (TIMESTAMP_KEY, pa.int64())])
        try:
            self._file: Any = io.FileIO(path, "w")
        except OSError as error:
            raise UsageError(f"--out: cannot create {path}: {error.strerror}") from None
        self._writer: Any = pq.ParquetWriter(self._file, self._schema, compression="zstd")

    def write(self, batch: Batch) -> None:
        import pyarrow as pa

        columns = list(batch.columns.values())
        arrays = [member_array(member, columns) for member in self._members]
        try:
            self._writer.write_table(pa.table([*arrays, pa.array(batch.ts)], schema=self._schema))
        except OSError as error:
            raise StateError(f"cannot write {self._path}: {error}") from None

    def close(self) -> None:
        try:
            self._writer.close()
            self._file.close()
        except OSError as error:
            raise StateError(f"cannot write {self._path}: {error}") from None
