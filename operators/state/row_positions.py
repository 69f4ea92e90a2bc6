"""Which rows of a store are held, and where, when some have left out of turn (`kernels.rank`)."""

from __future__ import annotations

import numpy as np

from operators.kernels.hashing import U64
from operators.kernels.rank import are_held, hold_rows, ranks_of, release_rows, rows_at, rows_held
from operators.kernels.ring import ring_grow
from schemas.columns import I64, Mask

FIRST_WORDS = 16


class Ranks:
    """The rank of each held row among rows lo .. hi: those before it that are held are between lo's rank and its own.

    A row costs 2 bits, held or not; rings of words grow as they are needed, and do not shrink.
    """

    def __init__(self, lo: int, hi: int, rank: int) -> None:
        """All of lo .. hi held, `lo` at the rank given."""
        self._bits: U64 = np.zeros(FIRST_WORDS, np.uint64)
        self._bases: I64 = np.zeros(FIRST_WORDS, np.int64)
        self.hold(lo, lo, hi, rank)

    def hold(self, lo: int, first: int, stop: int, rank: int) -> None:
        """Enter rows first .. stop, which follow those known; `first` gets the rank given. Below `lo` none matter."""
        words = ((stop - 1) >> 6) - (lo >> 6) + 1
        if words > len(self._bits):
            capacity = 1 << (words - 1).bit_length()
            known = ((first - 1) >> 6) + 1
            self._bits = ring_grow(self._bits, lo >> 6, known, capacity)
            self._bases = ring_grow(self._bases, lo >> 6, known, capacity)
        hold_rows(self._bits, self._bases, first, stop, rank)

    def of(self, rows: I64) -> I64:
        """(n,) ranks of held rows; of any other row the rank of the next one held."""
        return np.asarray(ranks_of(rows, self._bits, self._bases), np.int64)

    def rows(self, ranks: I64, lo: int, hi: int) -> I64:
        """(n,) the rows, among lo .. hi, of ranks that are held."""
        return np.asarray(rows_at(ranks, self._bits, self._bases, lo, hi), np.int64)

    def held(self, rows: I64) -> Mask:
        """(n,) True where a row is held."""
        return np.asarray(are_held(rows, self._bits), np.bool_)

    def all_held(self, lo: int, hi: int, count: int) -> I64:
        """The `count` rows of lo .. hi that are held, ascending."""
        return np.asarray(rows_held(self._bits, lo, hi, count), np.int64)

    def release(self, lo: int, hi: int, dead: Mask, count: int) -> Mask:
        """Let go of rows lo .. hi, of which `count` are held, where (hi - lo,) `dead` is True; which of them stay."""
        kept = np.empty(count + 1, np.bool_)
        release_rows(self._bits, self._bases, lo, hi, dead, kept)
        return kept[:-1]

    def size_bytes(self) -> int:
        """Bytes of the arrays held."""
        return self._bits.nbytes + self._bases.nbytes
