"""Stages tuples for Spark: Parquet files of Weir's columns, one per stream and table.

The project's own codecs (`schemas.codecs`) decode the records, on the driver, so that types, NULLs and dead letters
are those of a running query. Late tuples are found here too, by the rule of a running query and in the order of
arrival, and left out: the answer is made of exactly the staged tuples.

A file has the columns `f0`, `f1`, ... in the order of the declared fields, and

    ts    event time in milliseconds; TABLE_TS for a table in a file; for a version of a row, since when it holds
    part  the partition, `off` its offset (or the row's number): with `ts`, the position in the stream's order

Cost: decoding on one core, some 500,000 records a second; Spark's part begins when everything is staged.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.columns import ARROW_TYPES, I64, Batch, Mask
from schemas.errors import StateError
from schemas.query import GONE, Field, Query, Stream, Table, Type

TS, PART, OFF = "ts", "part", "off"
ROW_GROUP = 1 << 18
"""Rows that are written together."""


def field_column(fields: Sequence[Field], name: str) -> str:
    """The name of a field's column in the files, and of one that is looked up behind them."""
    return f"f{[field.name for field in fields].index(name)}"


class Stage:
    """Writes the tuples of a query's streams and tables. Use as a context manager.

    Attributes:
        tuples: how many were staged.
        late: by stream, how many were late.
        gaps: tables of which offsets are missing.
    """

    def __init__(self, folder: Path, query: Query) -> None:
        self.tuples = 0
        self.late: dict[str, int] = {}
        self.gaps: set[str] = set()
        self._writers: dict[str, _ColumnFile] = {}
        inputs: list[Stream | Table] = [*query.streams(), *query.tables()]
        for number, given in enumerate(inputs):
            self._writers[given.name] = _ColumnFile(folder / f"input-{number}.parquet", given)
        self._largest: dict[tuple[str, int], int] = {}
        self._first: dict[tuple[str, int], int] = {}
        self._last: dict[tuple[str, int], int] = {}

    def add(self, stream: Stream, partition: int, batch: Batch, offsets: I64, refused: Mask | None = None) -> Mask:
        """Stage consecutive tuples of a partition.

        Args:
            offsets: (n,) int64 ascending.
            refused: (n,) bool, True where the running query left a tuple out although its clock did not say so.

        Returns:
            (n,) bool: True where a tuple is late by its partition's clock.

        Raises:
            StateError: the disk refuses them.
        """
        reached = self._reached(stream, partition, batch.ts)
        late: Mask = batch.ts < reached
        if stream.in_log_order:
            late = np.zeros(len(batch), np.bool_)
        if stream.is_versioned:
            versions = Batch(np.maximum(batch.ts, reached), batch.columns)
            return self._add_versions(stream, partition, versions, offsets, late, refused)
        kept = ~late if refused is None else ~(late | refused)
        self.late[stream.name] = self.late.get(stream.name, 0) + int(np.count_nonzero(late))
        if kept.all():
            self._write(stream, partition, batch, offsets)
        elif kept.any():
            self._write(stream, partition, batch.take(kept), offsets[kept])
        return late

    def _add_versions(
        self, table: Stream, partition: int, batch: Batch, offsets: I64, late: Mask, refused: Mask | None
    ) -> Mask:
        """Stage versions of a table's rows, late ones too: they hold from the watermark on that they are behind."""
        if refused is not None and refused.any():
            raise StateError(
                f"offset {offsets[refused][0]} of {table}, partition {partition}, came after its idle timeout: it held "
                "from where the running query was then, which nothing tells any more"
            )
        self.late[table.name] = self.late.get(table.name, 0) + int(np.count_nonzero(late))
        last = self._last.get((table.name, partition), int(offsets[0]) - 1 if len(offsets) else 0)
        if len(offsets):
            self._last[table.name, partition] = int(offsets[-1])
            if int(offsets[-1]) - last > len(offsets):
                self.gaps.add(table.name)
        self._write(table, partition, batch, offsets)
        return late

    def add_table(self, table: Table, rows: Batch) -> None:
        """Stage all rows of a table.

        Raises:
            StateError: the disk refuses them.
        """
        self._write(table, 0, rows, np.arange(len(rows), dtype=np.int64))

    def watermark(self, stream: Stream, partition: int) -> int:
        """The event time below which all further tuples of a partition are late; -1 before its first tuple."""
        largest = self._largest.get((stream.name, partition))
        return -1 if largest is None else max(largest - stream.disorder_ms, 0)

    def first_ts(self, stream: Stream, partition: int) -> int:
        """The timestamp of the first tuple that arrived in a partition; 0 before it."""
        return self._first.get((stream.name, partition), 0)

    def paths(self) -> dict[str, str]:
        """The files by name of stream or table, once all is staged."""
        return {name: str(writer.path) for name, writer in self._writers.items()}

    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(writer.path.stat().st_size for writer in self._writers.values())

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self._writers.values():
            writer.close()

    def _reached(self, stream: Stream, partition: int, ts: I64) -> I64:
        """(n,) int64 the partition's watermark before each tuple; no less than 0."""
        if not len(ts):
            return np.zeros(0, np.int64)
        key = stream.name, partition
        self._first.setdefault(key, int(ts[0]))
        before = np.empty(len(ts), np.int64)
        before[0] = self._largest.get(key, int(ts[0]))
        np.maximum(before[0], np.maximum.accumulate(ts[:-1]), out=before[1:])
        self._largest[key] = max(int(before[-1]), int(ts[-1]))
        return np.maximum(before - stream.disorder_ms, 0)

    def _write(self, given: Stream | Table, partition: int, batch: Batch, offsets: I64) -> None:
        self._writers[given.name].write(partition, batch, offsets)
        self.tuples += len(batch)


class _ColumnFile:
    """One Parquet file; it is there from the start, so that a stream without tuples has a file without rows."""

    def __init__(self, path: Path, given: Stream | Table) -> None:
        self.path = path
        fields = list(given.fields)
        if isinstance(given, Stream) and given.is_versioned:
            fields.append(Field(GONE, Type.BOOLEAN))
        self._names = [field.name for field in fields]
        self._waiting: list[pa.Table] = []
        self._rows = 0
        columns = [(f"f{n}", ARROW_TYPES[field.type]) for n, field in enumerate(fields)]
        self._schema = pa.schema([*columns, (TS, pa.int64()), (PART, pa.int32()), (OFF, pa.int64())])
        try:
            self._writer: Any = pq.ParquetWriter(path, self._schema, compression="zstd", store_schema=False)
        except OSError as error:
            raise StateError(f"cannot create {path}: {error.strerror}") from None

    def write(self, partition: int, batch: Batch, offsets: I64) -> None:
        arrays = [batch.columns[name].to_arrow() for name in self._names]
        arrays += [pa.array(batch.ts), pa.array(np.full(len(batch), partition, np.int32)), pa.array(offsets)]
        self._waiting.append(pa.table(arrays, schema=self._schema))
        self._rows += len(batch)
        if self._rows >= ROW_GROUP:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            rows, self._waiting, self._rows = pa.concat_tables(self._waiting), [], 0
            try:
                self._writer.write_table(rows, row_group_size=len(rows))
            except OSError as error:
                raise StateError(f"cannot write {self.path}: {error}") from None
