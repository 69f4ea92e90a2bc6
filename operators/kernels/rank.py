"""Ranks: the positions of rows in a store from which some rows have been removed.

`operators.state.row_positions` calls these functions. A bitmap marks the rows that the store holds: word `row >> 6` of
a ring of uint64 words, bit `row & 63`. A second ring has each word's base: the rank of the first row held in that word
or after it. The rank of a held row is its word's base plus the number of bits below its own. So a row costs 2 bits,
held or not, and a look-up two cache lines. Source: rank directories of succinct bit vectors (Jacobson 1989), with one
level.
"""

from __future__ import annotations

import numpy as np

from operators.kernels.hashing import U64
from schemas.columns import I64, Mask
from schemas.compiled import compiled, inlined


@inlined
def _ones(x):  # type: ignore[no-untyped-def]
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))


@inlined
def _bit(row):  # type: ignore[no-untyped-def]
    return np.uint64(1) << np.uint64(row & 63)


@compiled
def hold_rows(bits: U64, bases: I64, first: int, stop: int, rank: int) -> None:
    """Enter rows first .. stop, which follow all rows entered before; `first` gets the given rank.

    Nothing reads the bits of rows that have not arrived yet, so they need not be cleared.
    """
    mask = bits.shape[0] - 1
    for row in range(first, stop):
        slot = (row >> 6) & mask
        if row & 63 == 0 or row == first:
            bases[slot] = rank + row - first - _ones(bits[slot] & (_bit(row) - np.uint64(1)))
        bits[slot] |= _bit(row)


@compiled
def ranks_of(rows: I64, bits: U64, bases: I64) -> I64:
    """(n,) ranks of held rows; for any other row the rank of the next held row."""
    mask = bits.shape[0] - 1
    out = np.empty(rows.shape[0], np.int64)
    for i in range(rows.shape[0]):
        slot = (rows[i] >> 6) & mask
        out[i] = bases[slot] + _ones(bits[slot] & (_bit(rows[i]) - np.uint64(1)))
    return out


@compiled
def rows_at(ranks: I64, bits: U64, bases: I64, lo: int, hi: int) -> I64:
    """(n,) the rows among lo .. hi - 1 with these ranks, which must exist. O(log(hi - lo)) each."""
    mask = bits.shape[0] - 1
    out = np.empty(ranks.shape[0], np.int64)
    for i in range(ranks.shape[0]):
        low, high = lo >> 6, (hi - 1) >> 6
        # Find the last word whose base is not above the rank; earlier words with the same base are empty.
        while low < high:
            middle = (low + high + 1) >> 1
            if bases[middle & mask] <= ranks[i]:
                low = middle
            else:
                high = middle - 1
        word = bits[low & mask]
        for _ in range(ranks[i] - bases[low & mask]):
            word &= word - np.uint64(1)
        out[i] = (low << 6) + _ones((word & (~word + np.uint64(1))) - np.uint64(1))
    return out


@compiled
def are_held(rows: I64, bits: U64) -> Mask:
    """(n,) True where a row is held."""
    mask = bits.shape[0] - 1
    out = np.empty(rows.shape[0], np.bool_)
    for i in range(rows.shape[0]):
        out[i] = bits[(rows[i] >> 6) & mask] & _bit(rows[i]) != np.uint64(0)
    return out


@compiled
def rows_held(bits: U64, lo: int, hi: int, count: int) -> I64:
    """The `count` rows of lo .. hi - 1 that are held, ascending."""
    mask = bits.shape[0] - 1
    out = np.empty(count + 1, np.int64)
    at = np.int64(0)
    for row in range(lo, hi):
        out[at] = row
        at += np.int64((bits[(row >> 6) & mask] >> np.uint64(row & 63)) & np.uint64(1))
    return out[:count]


@compiled
def release_rows(bits: U64, bases: I64, lo: int, hi: int, dead: Mask, kept: Mask) -> int:
    """Remove the rows lo .. hi - 1 where (hi - lo,) `dead` is True; the rank of `lo` stays, and later ranks close up.

    Args:
        bits, bases: the bitmap and the bases, changed.
        kept: (rows held + 1,) filled except for the last: by rank, whether a held row stays.

    Returns:
        The number of rows that stay.
    """
    mask = bits.shape[0] - 1
    if lo < hi:
        slot = (lo >> 6) & mask
        rank = bases[slot] + _ones(bits[slot] & (_bit(lo) - np.uint64(1)))
    seen = stay = np.int64(0)
    for row in range(lo, hi):
        slot = (row >> 6) & mask
        if row & 63 == 0:
            bases[slot] = rank + stay
        # This avoids an unpredictable branch: the next held row overwrites the entry of a row that is not held.
        word = bits[slot]
        held = np.int64((word >> np.uint64(row & 63)) & np.uint64(1))
        stays = held & np.int64(not dead[row - lo])
        kept[seen] = stays
        bits[slot] = word ^ (np.uint64(held ^ stays) << np.uint64(row & 63))
        seen += held
        stay += stays
    return int(stay)
