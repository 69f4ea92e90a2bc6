"""Maps the rows of a store to their positions in its columns, once rows have been released out of order.

`SourceStore` keeps a `Ranks` from its first release on; the kernels are in `operators.kernels.rank`.
"""

from __future__ import annotations

import numpy as np

from operators.kernels.hashing import U64
from operators.kernels.rank import are_held, hold_rows, ranks_of, release_rows, rows_at, rows_held
from operators.kernels.ring import ring_grow
from schemas.columns import I64, Mask

FIRST_WORDS = 16


class Ranks:
    """The rank of each stored row among rows lo .. hi - 1: the rank of `lo` plus the number of stored rows before it.

    A row costs 2 bits, stored or released. The rings of words grow as needed and do not shrink.
    """

    def __init__(self, lo: int, hi: int, rank: int) -> None:
        """Start with all of rows lo .. hi - 1 stored, `lo` at the rank given."""
        self._bits: U64 = np.zeros(FIRST_WORDS, np.uint64)
        self._bases: I64 = np.zeros(FIRST_WORDS, np.int64)
        self.add(lo, lo, hi, rank)

    def add(self, lo: int, first: int, stop: int, rank: int) -> None:
        """Add rows first .. stop - 1, which follow the known rows; `first` has this rank.

        Rows below `lo` do not matter.
        """
        words = ((stop - 1) >> 6) - (lo >> 6) + 1
        if words > len(self._bits):
            capacity = 1 << (words - 1).bit_length()
            known = ((first - 1) >> 6) + 1
            self._bits = ring_grow(self._bits, lo >> 6, known, capacity)
            self._bases = ring_grow(self._bases, lo >> 6, known, capacity)
        hold_rows(self._bits, self._bases, first, stop, rank)

    def of(self, rows: I64) -> I64:
        """Return (n,) ranks of stored rows; for a released row the rank of the next stored row."""
        return np.asarray(ranks_of(rows, self._bits, self._bases), np.int64)

    def rows(self, ranks: I64, lo: int, hi: int) -> I64:
        """Return (n,) the rows, among lo .. hi - 1, that have these ranks."""
        return np.asarray(rows_at(ranks, self._bits, self._bases, lo, hi), np.int64)

    def are_stored(self, rows: I64) -> Mask:
        """Return (n,) bool: True where a row is stored."""
        return np.asarray(are_held(rows, self._bits), np.bool_)

    def stored_rows(self, lo: int, hi: int, count: int) -> I64:
        """Return the `count` stored rows among lo .. hi - 1, ascending."""
        return np.asarray(rows_held(self._bits, lo, hi, count), np.int64)

    def release(self, lo: int, hi: int, dead: Mask, count: int) -> Mask:
        """Release the rows lo .. hi - 1 where (hi - lo,) `dead` is True.

        Returns:
            (count,) bool: True for each of the `count` rows stored before that stays.
        """
        kept = np.empty(count + 1, np.bool_)
        release_rows(self._bits, self._bases, lo, hi, dead, kept)
        return kept[:-1]

    def size_bytes(self) -> int:
        """Return the bytes of the arrays."""
        return self._bits.nbytes + self._bases.nbytes
