"""The store of a stream: every source tuple once, addressed by a row id that only grows.

`Sources` has one `SourceStore` per stream or table. It stores only the columns that the output or a predicate over
several streams needs. Row ids follow the total order, so purging the oldest rows only moves a bound. Columns are rings;
they double when full.

When partition groups have been spilled, rows to which nothing in memory refers are released, wherever they lie. Their
values are dropped; the other rows keep their ids. Columns are then addressed by *rank*, which counts the stored rows
before a row; a directory maps rows to ranks (`operators.state.row_positions`). Until the first release, and again once
all released rows have been purged, a row's rank is its id minus a constant and there is no directory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from operators.data.tuples import FOREVER
from operators.data.watermark import END
from operators.kernels.pages import GIVE_BACK_SHARE, zeroed
from operators.kernels.ring import (
    compact_ring,
    compact_strings,
    first_at_least,
    firsts_at_least,
    fitting_capacity,
    gather_strings,
    ring_grow,
    ring_thinned,
    ring_write,
    sum_where,
    touched_bytes,
)
from operators.state.row_positions import Ranks
from schemas.columns import DTYPES, I64, U8, Batch, Column, Mask
from schemas.query import Type

FIRST_CAPACITY = 1024

EPOCH_END_BYTES = 128
"""Approximate memory of an epoch's last row and ts."""


class _Fixed:
    """A ring of int64, float64 or bool values, with a validity ring from the first null on."""

    def __init__(self, type: Type, capacity: int) -> None:
        self.type = type
        self.values: npt.NDArray[Any] = np.zeros(capacity, DTYPES[type])
        self.valid: npt.NDArray[np.bool_] | None = None

    def write(self, at: int, column: Column, lo: int) -> None:
        ring_write(self.values, at, column.values)
        if column.valid is not None and self.valid is None:
            self.valid = _all_valid(len(self.values), lo, at)
        if self.valid is not None:
            ring_write(self.valid, at, column.mask())

    def grow(self, lo: int, hi: int, capacity: int) -> None:
        self.values = ring_grow(self.values, lo, hi, capacity)
        if self.valid is not None:
            self.valid = ring_grow(self.valid, lo, hi, capacity)

    def thin(self, lo: int, kept: Mask, capacity: int | None) -> None:
        """Keep the values of lo .. lo + n - 1 where (n,) `kept` is True, moved together.

        Args:
            capacity: that of new rings to move them to; None to move them in place.
        """
        self.values = _thinned(self.values, lo, kept, capacity)
        if self.valid is not None:
            self.valid = _thinned(self.valid, lo, kept, capacity)

    def gather(self, at: I64) -> Column:
        slots = at & (len(self.values) - 1)
        valid = None if self.valid is None else self.valid[slots]
        if valid is not None and valid.all():
            valid = None
        return Column(self.type, self.values[slots], valid)

    def size_bytes(self) -> int:
        return self.values.nbytes + (0 if self.valid is None else self.valid.nbytes)

    def touched_bytes(self, first: int, last: int) -> int:
        valid = 0 if self.valid is None else touched_bytes(self.valid, first, last)
        return touched_bytes(self.values, first, last) + valid


class _Strings:
    """A column of strings: a ring of (start, length) by row into a ring of bytes.

    Attributes:
        end: the number of the byte after the newest.
        fresh_from: the first byte written since the ring of bytes was made.
        written_to: the byte after the last one written since then.
    """

    def __init__(self, capacity: int) -> None:
        self.starts: I64 = np.zeros(capacity, np.int64)
        self.lengths: I64 = np.zeros(capacity, np.int64)
        self.valid: npt.NDArray[np.bool_] | None = None
        self.data: U8 = np.zeros(capacity, np.uint8)
        self.end = self.fresh_from = self.written_to = 0

    def write(self, at: int, column: Column, lo: int) -> None:
        assert column.offsets is not None
        first, last = int(column.offsets[0]), int(column.offsets[-1])
        used_from = self._used_from(lo, at)
        need = self.end - used_from + last - first
        if need > len(self.data):
            self.data = ring_grow(self.data, used_from, self.end, 1 << (need - 1).bit_length())
            self.fresh_from, self.written_to = used_from, self.end
        ring_write(self.starts, at, column.offsets[:-1] - first + self.end)
        ring_write(self.lengths, at, np.diff(column.offsets))
        ring_write(self.data, self.end, column.values[first:last])
        self.end += last - first
        self.written_to = max(self.written_to, self.end)
        if column.valid is not None and self.valid is None:
            self.valid = _all_valid(len(self.starts), lo, at)
        if self.valid is not None:
            ring_write(self.valid, at, column.mask())

    def _used_from(self, lo: int, hi: int) -> int:
        """Return the first byte of the strings lo .. hi - 1."""
        return int(self.starts[lo & (len(self.starts) - 1)]) if hi > lo else self.end

    def grow(self, lo: int, hi: int, capacity: int) -> None:
        self.starts = ring_grow(self.starts, lo, hi, capacity)
        self.lengths = ring_grow(self.lengths, lo, hi, capacity)
        if self.valid is not None:
            self.valid = ring_grow(self.valid, lo, hi, capacity)

    def thin(self, lo: int, kept: Mask, capacity: int | None) -> None:
        """Do as `_Fixed.thin`, and shrink the ring of bytes where much of it is not needed."""
        begin = self._used_from(lo, lo + len(kept))
        stay = int(sum_where(self.lengths, lo, kept))
        touched = min(self.written_to - self.fresh_from, len(self.data))
        into = self.data
        if stay < (1 - GIVE_BACK_SHARE) * touched:
            into = zeroed(min(fitting_capacity(stay, FIRST_CAPACITY), len(self.data)), np.uint8)
            self.fresh_from, self.written_to = begin, begin + stay
        self.end = int(compact_strings(self.starts, self.lengths, self.data, lo, kept, begin, into))
        self.data = into
        self.starts = _thinned(self.starts, lo, kept, capacity)
        self.lengths = _thinned(self.lengths, lo, kept, capacity)
        if self.valid is not None:
            self.valid = _thinned(self.valid, lo, kept, capacity)

    def gather(self, at: I64) -> Column:
        offsets, data = gather_strings(self.starts, self.lengths, self.data, at)
        valid = None if self.valid is None else self.valid[at & (len(self.valid) - 1)]
        if valid is not None and valid.all():
            valid = None
        return Column(Type.STRING, data, valid, offsets)

    def size_bytes(self) -> int:
        valid = 0 if self.valid is None else self.valid.nbytes
        return self.starts.nbytes + self.lengths.nbytes + self.data.nbytes + valid

    def touched_bytes(self, first: int, last: int) -> int:
        valid = 0 if self.valid is None else touched_bytes(self.valid, first, last)
        numbers = touched_bytes(self.starts, first, last) + touched_bytes(self.lengths, first, last)
        return numbers + valid + touched_bytes(self.data, self.fresh_from, self.written_to)


class SourceStore:
    """Columns of one stream's tuples by row id.

    Live rows are lo <= row < hi. A live row is stored unless it was released (`are_stored`). With `lasting_ts` the
    `_ts` of released rows is kept too: a released row is still a successor of other rows and so limits their lifetime
    in a ROWS window. That takes 8 bytes per row until it is purged.

    Attributes:
        lo: the first live row.
        hi: the row after the last; the next tuple gets this id.
        columns: the names of the stored columns, including horizons, and `_ts` if it is among the fields.
        horizons: the columns that are computed as rows are stored (`operators.state.sources`) and never exported.
        capacity: number of rows that columns have room for.
        lasting_ts: whether `_ts` can be read of every live row, stored or released.
    """

    def __init__(
        self, fields: Sequence[tuple[str, Type]], *, horizons: Sequence[str] = (), lasting_ts: bool = False
    ) -> None:
        self.lo = 0
        self.hi = 0
        self.capacity = FIRST_CAPACITY
        self.horizons = tuple(horizons)
        self.columns = (*(name for name, _ in fields), *self.horizons)
        self._columns: dict[str, _Fixed | _Strings] = {
            name: _Strings(self.capacity) if type is Type.STRING else _Fixed(type, self.capacity)
            for name, type in (*fields, *((name, Type.BIGINT) for name in self.horizons))
        }
        self.lasting_ts = lasting_ts
        # Columns addressed by row, which stay when a row is released.
        self._lasting: dict[str, _Fixed | _Strings] = {"_ts": self._columns.pop("_ts")} if lasting_ts else {}
        self._lasting_capacity = self.capacity
        self._epoch_ends: deque[tuple[int, int]] = deque()
        self._ranks: Ranks | None = None
        self._rank_offset = 0  # Without a directory a row's rank is its id minus this.
        self._first = self._next = 0  # The ranks of lo and hi.
        # Since the rings were made, the ranks _fresh_from .. _written_to - 1 have been written, and of the lasting
        # columns the rows from _lasting_from on.
        self._fresh_from = self._written_to = self._lasting_from = 0

    def __len__(self) -> int:
        """The number of stored rows."""
        return self._next - self._first

    def append(self, batch: Batch) -> I64:
        """Store tuples of one epoch, ascending in the total order. Return their new row ids, (n,) int64."""
        n = len(batch)
        first = self.hi
        if n == 0:
            return np.zeros(0, np.int64)
        self._make_room(n)
        for name in self.columns:
            column = Column(Type.TIMESTAMP, batch.ts) if name == "_ts" else batch.columns[name]
            if name in self._lasting:
                self._lasting[name].write(first, column, self.lo)
            else:
                self._columns[name].write(self._next, column, self._first)
        self.hi = first + n
        if self._ranks is not None:
            self._ranks.add(self.lo, first, self.hi, self._next)
        self._next += n
        self._epoch_ends.append((self.hi, int(batch.ts[-1])))
        return np.arange(first, self.hi, dtype=np.int64)

    def _make_room(self, n: int) -> None:
        """Grow the rings for n more rows, one ring at a time, so that at most one ring exists twice."""
        need = len(self) + n
        if need > self.capacity:
            self.capacity = 1 << (need - 1).bit_length()
            for ring in self._columns.values():
                ring.grow(self._first, self._next, self.capacity)
            self._fresh_from, self._written_to = self._first, self._next
        rows = self.hi - self.lo + n
        if self._lasting and rows > self._lasting_capacity:
            self._lasting_capacity = 1 << (rows - 1).bit_length()
            for ring in self._lasting.values():
                ring.grow(self.lo, self.hi, self._lasting_capacity)
            self._lasting_from = self.lo

    def begin_at(self, row: int) -> None:
        """Number rows from `row` on. Only for an empty store, before a restore."""
        self.lo = self.hi = self._first = self._next = row
        self._fresh_from = self._written_to = self._lasting_from = row
        self._rank_offset = 0

    def gather(self, name: str, rows: I64) -> Column:
        """Return the column's values at stored row ids, (m,) int64. The value of a released row is undefined."""
        lasting = self._lasting.get(name)
        if lasting is not None:
            return lasting.gather(rows)
        if self._ranks is not None:
            rows = self._ranks.of(rows)
        elif self._rank_offset:
            rows = rows - self._rank_offset
        return self._columns[name].gather(rows)

    def first_at(self, ts: int) -> int:
        """Return the first stored row whose ts is >= `ts`; `hi` when there is none. O(log n).

        `_ts` must be a column. With `lasting_ts` it is the first live row, stored or released.
        """
        if "_ts" in self._lasting:
            ring = self._lasting["_ts"]
            assert isinstance(ring, _Fixed)
            return int(first_at_least(ring.values, self.lo, self.hi, ts))
        ring = self._columns["_ts"]
        assert isinstance(ring, _Fixed)
        rank = int(first_at_least(ring.values, self._first, self._next, ts))
        return self.hi if rank == self._next else int(self._rows_at(np.array([rank], np.int64))[0])

    def firsts_at(self, ts: I64) -> I64:
        """Return (n,) `first_at` of each ts. Only while no row is released, and without `lasting_ts`."""
        ring = self._columns["_ts"]
        assert isinstance(ring, _Fixed)
        return np.asarray(firsts_at_least(ring.values, self._first, self._next, ts) + self._rank_offset, np.int64)

    def fill(self, other: SourceStore, given: Mapping[str, Column]) -> None:
        """Copy the rows of another store into this empty one.

        Only while no row of the other store is released, and without `lasting_ts`.

        Args:
            given: the columns that the other store does not have, (n,) for its n rows.
        """
        self.begin_at(other.lo)
        rows = other.stored_rows()
        ts = np.asarray(other.gather("_ts", rows).values, np.int64)
        known = {name: other.gather(name, rows) for name in self.columns if name not in given}
        self.append(Batch(ts, {**given, **known}))
        self._epoch_ends = other._epoch_ends.copy()

    def _rows_at(self, ranks: I64) -> I64:
        return ranks + self._rank_offset if self._ranks is None else self._ranks.rows(ranks, self.lo, self.hi)

    def stored_rows(self, lo: int | None = None, hi: int | None = None) -> I64:
        """Return the stored rows among lo .. hi - 1 (all live rows when None), ascending. O(hi - lo)."""
        lo, hi = max(self.lo, self.lo if lo is None else lo), self.hi if hi is None else min(hi, self.hi)
        if self._ranks is None or lo >= hi:
            return np.arange(lo, hi, dtype=np.int64)
        first, last = (self._rank(row) for row in (lo, hi))
        return self._ranks.stored_rows(lo, hi, last - first)

    def spaced_rows(self, count: int, lo: int | None = None) -> I64:
        """Return at most `count` of the stored rows from `lo` on, evenly spaced and ascending."""
        first = self._rank(max(self.lo, self.lo if lo is None else lo))
        step = max(1, -(-(self._next - first) // count))
        return self._rows_at(np.arange(first, self._next, step, dtype=np.int64))

    def are_stored(self, rows: I64) -> Mask:
        """Return (n,) bool: True where a row id is live and was not released."""
        live: Mask = (rows >= self.lo) & (rows < self.hi)
        if self._ranks is not None:
            live[live] = self._ranks.are_stored(rows[live])
        return live

    def _rank(self, row: int) -> int:
        """Return the rank of a live row, or of the next stored row; for `hi` the rank of the next tuple."""
        if row >= self.hi:
            return self._next
        return row - self._rank_offset if self._ranks is None else int(self._ranks.of(np.array([row], np.int64))[0])

    def read(self, lo: int, hi: int) -> Batch:
        """Read the stored rows among lo .. hi - 1 with all columns but horizons; without `_ts` their `ts` is zero."""
        rows = self.stored_rows(lo, hi)
        columns = {name: self.gather(name, rows) for name in self.columns if name not in self.horizons}
        ts = np.zeros(len(rows), np.int64)
        if "_ts" in columns:
            ts = columns["_ts"].values.astype(np.int64, copy=False)
        return Batch(ts, columns)

    def release(self, dead: Mask) -> None:
        """Drop the values of the rows where (hi - lo,) `dead` is True and give their memory back.

        The other rows keep their ids, and `lo` and `hi` stay. A row may be released more than once. O(hi - lo). While a
        ring is replaced, its old memory is still taken.
        """
        if self._ranks is None:
            if not dead.any():
                return
            self._ranks = Ranks(self.lo, self.hi, self._first)
        self._thin(self._ranks.release(self.lo, self.hi, dead, len(self)))

    def trim(self) -> None:
        """Give back the memory of purged rows, where that pays off. O(stored rows) if it does."""
        self._thin(np.ones(len(self), np.bool_))

    def _thin(self, kept: Mask) -> None:
        """Keep those of the n stored rows where (n,) `kept` is True, by rank."""
        stay = int(np.count_nonzero(kept))
        capacity: int | None = None
        if stay < (1 - GIVE_BACK_SHARE) * min(self._touched_to() - self._fresh_from, self.capacity):
            capacity = min(fitting_capacity(stay, FIRST_CAPACITY), self.capacity)
        elif stay == len(kept):
            return
        self._written_to = self._touched_to()
        for ring in self._columns.values():
            ring.thin(self._first, kept, capacity)
        self._next = self._first + stay
        if capacity is not None:
            self.capacity = capacity
            self._fresh_from, self._written_to = self._first, self._next

    def _touched_to(self) -> int:
        return max(self._written_to, self._next)

    def _drop_before(self, row: int) -> None:
        """Purge the rows below `row`."""
        self._first = self._rank(row)
        self.lo = row
        if self._ranks is not None and len(self) == self.hi - self.lo:
            self._ranks = None
            self._rank_offset = self.lo - self._first

    def leave(self, row: int) -> None:
        """Forget the rows below `row`, whatever their lifetimes, and give their memory back."""
        self._drop_before(row)
        while self._epoch_ends and self._epoch_ends[0][0] <= row:
            self._epoch_ends.popleft()
        self.trim()

    def type_of(self, name: str) -> Type:
        """Return the type of a column."""
        ring = self._lasting.get(name) or self._columns[name]
        return ring.type if isinstance(ring, _Fixed) else Type.STRING

    def purge(self, life: int, cut: int, keep_rows: int | None) -> None:
        """Drop rows that no tuple with ts >= `cut` can meet.

        A row is dropped when it is dead for every alias. Unless ROWS windows alone decide, whole epochs are dropped, so
        up to one epoch more than necessary stays.

        Args:
            life: the longest RANGE of the stream's aliases in ms; FOREVER keeps all rows.
            keep_rows: the largest ROWS window of its aliases, counted back from the last tuple before `cut`; None if
                they have none. Older rows are dead for these aliases.
        """
        counted = self.hi if keep_rows is None else self.first_at(cut)
        if keep_rows is not None and life == 0:
            self._drop_before(max(self.lo, counted - keep_rows))
            while self._epoch_ends and self._epoch_ends[0][0] <= self.lo:
                self._epoch_ends.popleft()
            return
        if life >= FOREVER:
            # Should windows end some day, these rows are dropped together, with the newest of them.
            while len(self._epoch_ends) > 1:
                self._epoch_ends.popleft()
            return
        bound = END if cut == END else cut - life
        limit = counted if keep_rows is None else max(self.lo, counted - keep_rows)
        row = self.lo
        while self._epoch_ends and self._epoch_ends[0][1] < bound and self._epoch_ends[0][0] <= limit:
            row = self._epoch_ends.popleft()[0]
        self._drop_before(row)

    def size_bytes(self) -> int:
        """Return the bytes of the arrays, unused capacity included."""
        rings = (*self._columns.values(), *self._lasting.values())
        total = sum(ring.size_bytes() for ring in rings)
        return total + (0 if self._ranks is None else self._ranks.size_bytes())

    def touched_bytes(self) -> int:
        """Return the bytes of memory taken.

        Of a ring only the part written since it was made counts, since untouched zeros take no memory.
        """
        total = sum(ring.touched_bytes(self._fresh_from, self._touched_to()) for ring in self._columns.values())
        total += sum(ring.touched_bytes(self._lasting_from, self.hi) for ring in self._lasting.values())
        total += 0 if self._ranks is None else self._ranks.size_bytes()
        return total + len(self._epoch_ends) * EPOCH_END_BYTES


def _all_valid(capacity: int, lo: int, hi: int) -> npt.NDArray[np.bool_]:
    """Make a validity ring in which lo .. hi - 1 are valid; the rest takes no memory yet."""
    valid = zeroed(capacity, np.bool_)
    ring_write(valid, lo, np.ones(hi - lo, np.bool_))
    return valid


def _thinned(ring: npt.NDArray[Any], lo: int, kept: Mask, capacity: int | None) -> npt.NDArray[Any]:
    if capacity is not None:
        return ring_thinned(ring, lo, kept, capacity)
    compact_ring(ring, lo, kept, ring)
    return ring
