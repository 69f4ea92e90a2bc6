"""Stores the numbers of an input's rows side by side, for the kernel that evaluates whole predicate types.

`operators.juggler.state.input_state` writes them. A field is a column as int64 or as float64. A row's fields lie next
to each other, so a candidate costs one or two cache lines, however many lists read it. A row with a value for which the
lists' normal forms do not hold is *odd* (`operators.juggler.predicates.normal_form`). While such a row is stored, lists
are evaluated one by one.

Limits: MOST_FIELDS per input; lists over other columns are evaluated one by one, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from operators.data.evaluate import Resolve
from operators.juggler.predicates.normal_form import WHOLE, Limits
from operators.kernels.hashing import F64, U64
from schemas.columns import I64, Column, Mask
from schemas.query import ColumnRef

MOST_FIELDS = 64
"""The bits of a word, since one word per row marks the nulls."""


class Fields:
    """Fields of one input, by row.

    Attributes:
        ints, floats: (capacity, fields) two views of the same memory.
        nulls: (capacity,) one bit per field, set where the value is null.
    """

    def __init__(self) -> None:
        self._slots: dict[tuple[ColumnRef, bool], int] = {}
        self._limits: list[Limits] = []
        self._odd_until = -1
        self._make(1)

    def _make(self, capacity: int) -> None:
        self.ints: I64 = np.zeros((capacity, len(self._slots)), np.int64)
        self.floats: F64 = self.ints.view(np.float64) if self._slots else np.zeros((capacity, 0), np.float64)
        self.nulls: U64 = np.zeros(capacity, np.uint64)

    def add(self, column: ColumnRef, whole: bool, limits: Limits) -> bool:
        """Add a field; call this before rows are written. Returns False if there is no room for it."""
        slot = self._slots.get((column, whole))
        if slot is None:
            if len(self._slots) == MOST_FIELDS:
                return False
            slot = self._slots[column, whole] = len(self._limits)
            self._limits.append(Limits())
        self._limits[slot] = self._limits[slot].intersect(limits)
        return True

    def slot(self, column: ColumnRef, whole: bool) -> int | None:
        """The field's number."""
        return self._slots.get((column, whole))

    def grow(self, kept: I64, capacity: int) -> None:
        """Grow to a larger capacity; the values of the rows `kept` stay."""
        ints, nulls = self.ints, self.nulls
        self._make(capacity)
        if len(kept):
            self.ints[kept & (capacity - 1)] = ints[kept & (len(nulls) - 1)]
            self.nulls[kept & (capacity - 1)] = nulls[kept & (len(nulls) - 1)]

    def write(self, rows: I64, resolve: Resolve) -> None:
        """Write the values of rows."""
        slots = rows & (len(self.nulls) - 1)
        nulls = np.zeros(len(rows), np.uint64)
        odd = np.zeros(len(rows), np.bool_)
        for (column, whole), slot in self._slots.items():
            found = resolve(column)
            values = numbers(found, whole)
            self.ints[slots, slot] = values if whole else values.view(np.int64)
            wrong = outside(found, self._limits[slot])
            if found.valid is not None:
                wrong &= found.valid
                nulls[~found.valid] |= np.uint64(1 << slot)
            odd |= wrong
        self.nulls[slots] = nulls
        if odd.any():
            self._odd_until = max(self._odd_until, int(rows[odd].max()))

    def odd(self, lo: int) -> bool:
        """Whether any row from `lo` on may be odd."""
        return self._odd_until >= lo

    def size_bytes(self) -> int:
        """Bytes of all fields."""
        return self.ints.nbytes + self.nulls.nbytes


def numbers(column: Column, whole: bool) -> npt.NDArray[Any]:
    """(n,) int64 or float64 values."""
    return np.ascontiguousarray(column.values.astype(np.int64 if whole else np.float64, copy=False))


def outside(column: Column, limits: Limits) -> Mask:
    """(n,) True where a value is not within the limits."""
    if limits.most is None:
        return np.zeros(len(column), np.bool_)
    if column.type in WHOLE:
        whole, most = column.values.astype(np.int64, copy=False), int(limits.most)
        return np.asarray((whole > most) | (whole < -most), np.bool_)
    size = np.abs(column.values.astype(np.float64, copy=False))
    good = size <= limits.most
    if limits.least:
        good &= (size >= limits.least) | (size == 0)
    return np.asarray(~good, np.bool_)
