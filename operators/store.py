"""The store of a stream: every source tuple once, addressed by a row id that only grows.

Only the columns that a predicate over several streams or the output needs are kept. Row ids follow the
total order, so purging the oldest rows moves a bound. Columns are rings; they double when full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from operators.kernels.ring import first_at_least, gather_strings, ring_grow, ring_read, ring_write
from operators.tuples import FOREVER
from operators.watermark import END
from schemas.columns import DTYPES, I64, U8, Batch, Column
from schemas.query import Type

FIRST_CAPACITY = 1024


class _Fixed:
    """A ring of int64, float64 or bool values, with a validity ring once a null has come."""

    def __init__(self, type: Type, capacity: int) -> None:
        self.type = type
        self.values: npt.NDArray[Any] = np.zeros(capacity, DTYPES[type])
        self.valid: npt.NDArray[np.bool_] | None = None

    def write(self, at: int, column: Column, lo: int) -> None:
        ring_write(self.values, at, column.values)
        if column.valid is not None and self.valid is None:
            self.valid = np.ones(len(self.values), np.bool_)
        if self.valid is not None:
            ring_write(self.valid, at, column.mask())

    def grow(self, lo: int, hi: int, capacity: int) -> None:
        self.values = ring_grow(self.values, lo, hi, capacity)
        if self.valid is not None:
            self.valid = ring_grow(self.valid, lo, hi, capacity)

    def gather(self, rows: I64) -> Column:
        slots = rows & (len(self.values) - 1)
        valid = None if self.valid is None else self.valid[slots]
        if valid is not None and valid.all():
            valid = None
        return Column(self.type, self.values[slots], valid)

    def size_bytes(self) -> int:
        return self.values.nbytes + (0 if self.valid is None else self.valid.nbytes)


class _Strings:
    """Strings: a ring of (start, length) by row into a ring of bytes."""

    def __init__(self, capacity: int) -> None:
        self.starts: I64 = np.zeros(capacity, np.int64)
        self.lengths: I64 = np.zeros(capacity, np.int64)
        self.valid: npt.NDArray[np.bool_] | None = None
        self.data: U8 = np.zeros(capacity, np.uint8)
        self.end = 0

    def write(self, at: int, column: Column, lo: int) -> None:
        assert column.offsets is not None
        first, last = int(column.offsets[0]), int(column.offsets[-1])
        used_from = int(self.starts[lo & (len(self.starts) - 1)]) if at > lo else self.end
        need = self.end - used_from + last - first
        if need > len(self.data):
            self.data = ring_grow(self.data, used_from, self.end, 1 << (need - 1).bit_length())
        ring_write(self.starts, at, column.offsets[:-1] - first + self.end)
        ring_write(self.lengths, at, np.diff(column.offsets))
        ring_write(self.data, self.end, column.values[first:last])
        self.end += last - first
        if column.valid is not None and self.valid is None:
            self.valid = np.ones(len(self.starts), np.bool_)
        if self.valid is not None:
            ring_write(self.valid, at, column.mask())

    def grow(self, lo: int, hi: int, capacity: int) -> None:
        self.starts = ring_grow(self.starts, lo, hi, capacity)
        self.lengths = ring_grow(self.lengths, lo, hi, capacity)
        if self.valid is not None:
            self.valid = ring_grow(self.valid, lo, hi, capacity)

    def gather(self, rows: I64) -> Column:
        offsets, data = gather_strings(self.starts, self.lengths, self.data, rows)
        valid = None if self.valid is None else self.valid[rows & (len(self.valid) - 1)]
        if valid is not None and valid.all():
            valid = None
        return Column(Type.STRING, data, valid, offsets)

    def size_bytes(self) -> int:
        valid = 0 if self.valid is None else self.valid.nbytes
        return self.starts.nbytes + self.lengths.nbytes + self.data.nbytes + valid


class SourceStore:
    """Columns of one stream's tuples by row id; live rows are lo <= row < hi.

    Attributes:
        columns: the kept columns' names, `_ts` included if asked for.
        positions: with `track_positions`, the ring of places in the total order of the whole task.
    """

    def __init__(self, fields: Sequence[tuple[str, Type]], *, track_positions: bool = False) -> None:
        self.lo = 0
        self.hi = 0
        self.capacity = FIRST_CAPACITY
        self.columns = tuple(name for name, _ in fields)
        self._columns: dict[str, _Fixed | _Strings] = {
            name: _Strings(self.capacity) if type is Type.STRING else _Fixed(type, self.capacity)
            for name, type in fields
        }
        self.positions: I64 | None = np.zeros(self.capacity, np.int64) if track_positions else None
        self._marks: deque[tuple[int, int]] = deque()
        self._ends: deque[int] = deque()

    def append(self, batch: Batch, positions: I64 | None = None) -> I64:
        """Store tuples of one epoch, ascending in the total order; their new row ids, (n,) int64.

        Args:
            positions: (n,) int64 places in the total order, when the store tracks them.
        """
        n = len(batch)
        first = self.hi
        if n == 0:
            return np.zeros(0, np.int64)
        need = first + n - self.lo
        if need > self.capacity:
            self.capacity = 1 << (need - 1).bit_length()
            for ring in self._columns.values():
                ring.grow(self.lo, first, self.capacity)
            if self.positions is not None:
                self.positions = ring_grow(self.positions, self.lo, first, self.capacity)
        for name, ring in self._columns.items():
            column = Column(Type.TIMESTAMP, batch.ts) if name == "_ts" else batch.columns[name]
            ring.write(first, column, self.lo)
        if self.positions is not None and positions is not None:
            ring_write(self.positions, first, positions)
        self.hi = first + n
        self._marks.append((self.hi, int(batch.ts[-1])))
        return np.arange(first, self.hi, dtype=np.int64)

    def begin_at(self, row: int) -> None:
        """Number rows from `row` on; only while the store is empty (for restore)."""
        self.lo = self.hi = row

    def gather(self, name: str, rows: I64) -> Column:
        """The column's values at live row ids, (m,) int64."""
        return self._columns[name].gather(rows)

    def first_at(self, ts: int) -> int:
        """The first live row whose ts is >= `ts`, `hi` when there is none; `_ts` must be kept. O(log n)."""
        ring = self._columns["_ts"]
        assert isinstance(ring, _Fixed)
        return int(first_at_least(ring.values, self.lo, self.hi, ts))

    def read(self, lo: int, hi: int) -> Batch:
        """Rows lo .. hi with all kept columns; `ts` is zero unless `_ts` is kept."""
        rows = np.arange(lo, hi, dtype=np.int64)
        columns = {name: ring.gather(rows) for name, ring in self._columns.items()}
        ts = np.zeros(hi - lo, np.int64)
        if "_ts" in columns:
            ts = columns["_ts"].values.astype(np.int64, copy=False)
        return Batch(ts, columns)

    def read_positions(self, lo: int, hi: int) -> I64:
        """Places in the total order of rows lo .. hi."""
        assert self.positions is not None
        return np.asarray(ring_read(self.positions, lo, hi), np.int64)

    def purge(self, life: int, cut: int, keep_rows: int | None) -> None:
        """Drop rows that no tuple at or after `cut` can meet.

        Args:
            life: the longest RANGE of the stream's aliases; FOREVER keeps all.
            keep_rows: the largest ROWS of its aliases (older rows are dead for them), None if none; counted from
                the last tuple before `cut`. A row goes when it is dead for every alias.

        Works by whole epochs, so up to one epoch more than necessary stays.
        """
        counted = self.hi if keep_rows is None else self.first_at(cut)
        if keep_rows is not None and life == 0:
            self.lo = max(self.lo, counted - keep_rows)
            while self._marks and self._marks[0][0] <= self.lo:
                self._marks.popleft()
            return
        if life >= FOREVER:
            return
        bound = END if cut == END else cut - life
        limit = counted if keep_rows is None else max(self.lo, counted - keep_rows)
        while self._marks and self._marks[0][1] < bound and self._marks[0][0] <= limit:
            self.lo = self._marks.popleft()[0]

    def size_bytes(self) -> int:
        """Bytes of the arrays held, unused capacity included."""
        total = sum(ring.size_bytes() for ring in self._columns.values())
        return total + (0 if self.positions is None else self.positions.nbytes)
