"""Typed columns and batches, the unit in which data moves through the engine, the codecs and Spark jobs.

A `Column` is read-only by convention: operators make new columns. Numbers, booleans and timestamps are
NumPy arrays. Strings are the two buffers of Arrow's large_string (offsets and UTF-8 bytes), so they convert
to and from Arrow without a copy. `valid` is None when nothing is null; under a null the value is 0,
False or the empty string.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.query import Type

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

DTYPES: dict[Type, np.dtype[np.generic]] = {
    Type.BIGINT: np.dtype(np.int64),
    Type.DOUBLE: np.dtype(np.float64),
    Type.BOOLEAN: np.dtype(np.bool_),
    Type.TIMESTAMP: np.dtype(np.int64),
}
ARROW_TYPES: dict[Type, pa.DataType] = {
    Type.BIGINT: pa.int64(),
    Type.DOUBLE: pa.float64(),
    Type.BOOLEAN: pa.bool_(),
    Type.TIMESTAMP: pa.int64(),
    Type.STRING: pa.large_string(),
}


def numbers_of(array: pa.Array) -> npt.NDArray[Any]:
    """Convert an Arrow array of numbers or truth values to NumPy; 0 or False where it is null.

    Array.to_numpy and fill_null would do, but where pandas is installed they import it (0.35 s, in the middle of a
    query).

    Returns:
        (n,) of the array's type. Numbers are read-only, and share the array's buffer where nothing is null; truth
        values are a copy.
    """
    known, data = array.buffers()
    begin, count = array.offset, len(array)
    dtype = np.dtype(array.type.to_pandas_dtype())
    values: npt.NDArray[Any]
    if data is None or not count:
        values = np.zeros(count, dtype)
    elif dtype == np.bool_:
        values = _bits(data, begin, count)
    else:
        values = np.frombuffer(data, dtype, count, begin * dtype.itemsize)
    if array.null_count and known is not None:
        values = np.where(_bits(known, begin, count), values, dtype.type(0))
    if dtype != np.bool_:
        values.flags.writeable = False
    return values


def _bits(buffer: pa.Buffer, begin: int, count: int) -> Mask:
    """The `count` bits from position `begin`, as booleans."""
    bits = np.unpackbits(np.frombuffer(buffer, np.uint8), count=begin + count, bitorder="little")
    return bits[begin:].astype(np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """`n` values of one type.

    Attributes:
        values: (n,) int64, float64 or bool; for STRING the (bytes,) uint8 UTF-8 data.
        valid: (n,) bool, False where null; None when nothing is null.
        offsets: STRING only: (n + 1,) int64; string i is values[offsets[i]:offsets[i + 1]].
    """

    type: Type
    values: npt.NDArray[np.generic]
    valid: Mask | None = None
    offsets: I64 | None = None

    def __len__(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    def mask(self) -> Mask:
        """(n,) bool, True where not null; a fresh all-True array when nothing is null."""
        return np.ones(len(self), np.bool_) if self.valid is None else self.valid

    def slice(self, start: int, stop: int) -> Column:
        """Rows start..stop (`stop` excluded), without copying values."""
        valid = None if self.valid is None else self.valid[start:stop]
        if self.offsets is None:
            return Column(self.type, self.values[start:stop], valid)
        return Column(self.type, self.values, valid, self.offsets[start : stop + 1])

    def take(self, index: I64 | Mask) -> Column:
        """The rows at the given positions, or where a mask is True, as a new column."""
        if index.dtype == np.bool_:
            index = np.flatnonzero(index)
        valid = None if self.valid is None else self.valid[index]
        if self.offsets is None:
            return Column(self.type, self.values[index], valid)
        return Column.from_arrow(self.to_arrow().take(Column(Type.BIGINT, index).to_arrow()), self.type)

    def to_arrow(self) -> pa.Array:
        """The same values as an Arrow array; no copy of numbers and string bytes."""
        if self.offsets is None:
            # Not pa.array: where pandas is installed, it imports pandas (0.35 s) to look at its argument.
            values = self.values
            if self.type is Type.BOOLEAN:
                data = pa.py_buffer(np.packbits(values.astype(np.bool_), bitorder="little"))
            else:
                data = pa.py_buffer(np.ascontiguousarray(values))
            known = None if self.valid is None else pa.py_buffer(np.packbits(self.valid, bitorder="little"))
            return pa.Array.from_buffers(ARROW_TYPES[self.type], len(values), [known, data])
        buffers = [None, pa.py_buffer(np.ascontiguousarray(self.offsets)), pa.py_buffer(self.values)]
        if self.valid is not None:
            buffers[0] = pa.py_buffer(np.packbits(self.valid, bitorder="little"))
        return pa.LargeStringArray.from_buffers(len(self), buffers[1], buffers[2], buffers[0])

    @staticmethod
    def from_arrow(array: pa.Array | pa.ChunkedArray, type: Type) -> Column:
        """Make a column from an Arrow array of a fitting type; shares the array's buffers where possible.

        Raises:
            pa.ArrowInvalid: a value does not fit the type.
        """
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
        if array.type != ARROW_TYPES[type]:
            array = array.cast(ARROW_TYPES[type])
        valid = None
        if array.null_count:
            valid = numbers_of(array.is_valid())
        if type is Type.STRING:
            _, offsets, data = array.buffers()
            count = len(array)
            if offsets is None or count == 0:
                return Column(type, np.zeros(0, np.uint8), valid, np.zeros(count + 1, np.int64))
            ends = np.frombuffer(offsets, np.int64, count + 1, array.offset * 8)
            raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
            return Column(type, raw, valid, ends)
        return Column(type, numbers_of(array), valid)

    @staticmethod
    def null(type: Type) -> Column:
        """One NULL. Not by `from_values`, which imports pandas where that is installed."""
        nothing = np.zeros(1, np.bool_)
        if type is Type.STRING:
            return Column(type, np.zeros(0, np.uint8), nothing, np.zeros(2, np.int64))
        return Column(type, np.zeros(1, DTYPES[type]), nothing)

    @staticmethod
    def from_values(values: Sequence[object], type: Type) -> Column:
        """Make a column from Python values (None is null). Slow: for tests and rare paths, not for the data path."""
        return Column.from_arrow(pa.array(values, type=ARROW_TYPES[type]), type)

    def to_values(self) -> list[object]:
        """Python values, None for null. Slow: for tests and rare paths."""
        return list(self.to_arrow().to_pylist())

    @staticmethod
    def concat(columns: Sequence[Column]) -> Column:
        """The columns one after the other; at least one column, all of one type."""
        if len(columns) == 1:
            return columns[0]
        first = columns[0]
        if first.offsets is not None:
            return Column.from_arrow(pa.concat_arrays([c.to_arrow() for c in columns]), first.type)
        valid = None
        if any(c.valid is not None for c in columns):
            valid = np.concatenate([c.mask() for c in columns])
        return Column(first.type, np.concatenate([c.values for c in columns]), valid)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Tuples of one stream, or results: a timestamp per row, and columns by name, all of one length.

    Attributes:
        ts: (n,) int64 event time in milliseconds; in any order unless stated otherwise.
        keys: for results that are upserts, the values of the group that each row updates.
    """

    ts: I64
    columns: Mapping[str, Column]
    keys: tuple[Column, ...] = ()

    def __len__(self) -> int:
        return len(self.ts)

    def slice(self, start: int, stop: int) -> Batch:
        """Rows start..stop (`stop` excluded), without copying."""
        columns = {k: c.slice(start, stop) for k, c in self.columns.items()}
        return Batch(self.ts[start:stop], columns, tuple(key.slice(start, stop) for key in self.keys))

    def take(self, index: I64 | Mask) -> Batch:
        """The rows at the given positions, or where a mask is True."""
        columns = {k: c.take(index) for k, c in self.columns.items()}
        return Batch(self.ts[index], columns, tuple(key.take(index) for key in self.keys))

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """The batches one after the other; at least one batch, all with the same columns."""
        if len(batches) == 1:
            return batches[0]
        return Batch(
            np.concatenate([b.ts for b in batches]),
            {k: Column.concat([b.columns[k] for b in batches]) for k in batches[0].columns},
            tuple(Column.concat(keys) for keys in zip(*(b.keys for b in batches), strict=True)),
        )
