"""Numbers the groups that have a living result, and stores their keys: `Groups`.

The number of a group is reused once the group is gone. A key is a row of int64 codes: one per GROUP BY expression and a
bitmap of those that are null. Nulls are equal here, and -0.0 equals 0.0. Strings are numbered as they arrive, with one
dictionary entry per distinct string. Strings that no group uses any more are removed when they outnumber the used ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from operators.kernels.groups import enter_groups, forget_groups, index_groups
from operators.kernels.hashing import U64, combine_words
from schemas.columns import DTYPES, I64, Column, numbers_of
from schemas.query import Type

FIRST_CAPACITY = 64
SWEEP_FROM = 4096
"""Number of unused strings that may be kept in any case."""


class Groups:
    """Numbers groups.

    Attributes:
        capacity: all group numbers are smaller.
        uses: (capacity,) number of results per group; the caller counts them.
    """

    def __init__(self, types: Sequence[Type]) -> None:
        self._types = tuple(types)
        self.capacity = FIRST_CAPACITY if types else 1
        self.uses: I64 = np.zeros(self.capacity, np.int64)
        self._known: I64 = np.zeros((len(self._types) + 1, self.capacity), np.int64)
        self._hashes: npt.NDArray[np.uint64] = np.zeros(self.capacity, np.uint64)
        self._free: I64 = np.arange(self.capacity, dtype=np.int64)
        self._free_count = self.capacity
        self._table: I64 = np.zeros(2 * self.capacity, np.int64)
        self._texts: list[str] = []
        self._text_letters = 0
        self._text_codes: dict[str, int] = {}

    def find(self, keys: Sequence[Column], n: int) -> I64:
        """Return (n,) int64 the groups of n results with these keys; new groups get a number."""
        if not self._types:
            return np.zeros(n, np.int64)
        codes = np.zeros((len(keys) + 1, n), np.int64)
        for k, column in enumerate(keys):
            codes[k] = self._codes(column)
            if column.valid is not None:
                codes[k][~column.valid] = 0
                codes[-1] |= np.where(column.valid, 0, 1 << k)
        self._reserve(n)
        groups, self._free_count = enter_groups(
            codes, _hashes(codes), self._table, self._known, self._hashes, self._free, self._free_count
        )
        return np.asarray(groups, np.int64)

    def forget_unused(self, groups: I64) -> None:
        """Forget those of the given groups, each given once, that have no result left."""
        gone = groups[self.uses[groups] == 0]
        if not self._types or not len(gone):
            return
        self._free_count = forget_groups(gone, self._table, self._hashes, self._free, self._free_count)
        if len(self._texts) > SWEEP_FROM + 2 * len(self._types) * (self.capacity - self._free_count):
            self._sweep()

    def key(self, index: int, groups: I64) -> Column:
        """Return the groups' values of the GROUP BY expression at `index`."""
        type, codes = self._types[index], self._known[index][groups]
        valid = (self._known[-1][groups] >> index & 1) == 0
        known = None if valid.all() else valid
        if type is Type.STRING:
            distinct, inverse = np.unique(codes[valid], return_inverse=True)
            texts = pa.array([self._texts[code] for code in distinct.tolist()], pa.large_string())
            indices = np.full(len(codes), -1)
            indices[valid] = inverse
            return Column.from_arrow(texts.take(pa.array(indices, mask=~valid)), type)
        values: npt.NDArray[Any] = codes.view(np.float64) if type is Type.DOUBLE else codes.astype(DTYPES[type])
        return Column(type, values, known)

    def _codes(self, column: Column) -> I64:
        if column.type is Type.STRING:
            encoded = column.to_arrow().dictionary_encode()
            texts = np.array([self._text_code(text) for text in encoded.dictionary.to_pylist()] or [0], np.int64)
            indices = numbers_of(encoded.indices)
            return np.asarray(texts[indices], np.int64)
        if column.type is Type.DOUBLE:
            return (column.values.astype(np.float64) + 0.0).view(np.int64)
        return column.values.astype(np.int64)

    def _text_code(self, text: str) -> int:
        code = self._text_codes.setdefault(text, len(self._texts))
        if code == len(self._texts):
            self._texts.append(text)
            self._text_letters += len(text)
        return code

    def _used(self) -> I64:
        unused = np.zeros(self.capacity, np.bool_)
        unused[self._free[: self._free_count]] = True
        return np.flatnonzero(~unused)

    def _reserve(self, n: int) -> None:
        """Make room for n more groups."""
        used = self.capacity - self._free_count
        if self._free_count < n:
            before = self.capacity
            self.capacity = 1 << (used + n - 1).bit_length()
            free = np.empty(self.capacity, np.int64)
            added = self.capacity - before
            free[: self._free_count] = self._free[: self._free_count]
            free[self._free_count : self._free_count + added] = np.arange(before, self.capacity)
            self._free, self._free_count = free, self._free_count + added
            self.uses, self._hashes = grown(self.uses, self.capacity), grown(self._hashes, self.capacity)
            self._known = grown(self._known, self.capacity)
        if 2 * (used + n) > len(self._table):
            self._index(1 << (2 * (used + n) - 1).bit_length())

    def _index(self, size: int) -> None:
        self._table = np.zeros(size, np.int64)
        index_groups(self._used(), self._table, self._hashes)

    def _sweep(self) -> None:
        """Drop strings that no group uses, and renumber the others."""
        used = self._used()
        rows = [k for k, type in enumerate(self._types) if type is Type.STRING]
        # The code of a null is 0, which may be no used string; it stays 0.
        null = np.array([self._known[-1][used] >> k & 1 for k in rows], np.bool_).reshape(len(rows), len(used))
        codes = self._known[rows][:, used]
        kept = np.unique(codes[~null])
        self._texts = [self._texts[code] for code in kept.tolist()]
        self._text_letters = sum(map(len, self._texts))
        self._text_codes = {text: code for code, text in enumerate(self._texts)}
        for i, k in enumerate(rows):
            self._known[k][used] = np.where(null[i], 0, np.searchsorted(kept, codes[i]))
        self._hashes[used] = _hashes(self._known[:, used])
        self._index(len(self._table))

    def size_bytes(self) -> int:
        """Return the bytes of the arrays, and roughly those of the strings."""
        arrays = (self.uses, self._known, self._hashes, self._free, self._table)
        return sum(array.nbytes for array in arrays) + self._text_letters + 100 * len(self._texts)


def _hashes(codes: I64) -> U64:
    """Return (n,) hashes of (c, n) keys."""
    hashes: U64 = np.zeros(codes.shape[1], np.uint64)
    for row in codes:
        hashes = combine_words(hashes, np.ascontiguousarray(row).view(np.uint64))
    return hashes


def grown(array: npt.NDArray[Any], capacity: int, fill: int = 0) -> npt.NDArray[Any]:
    """Return a copy whose last axis has length `capacity`, with `fill` in the new elements."""
    out = np.full((*array.shape[:-1], capacity), fill, array.dtype)
    out[..., : array.shape[-1]] = array
    return out
