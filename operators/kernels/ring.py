"""Rings: arrays with a power of two as capacity, in which absolute number `e` is in slot `e & (capacity - 1)`.

`operators.state` keeps stores and states in rings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from operators.kernels.pages import zeroed
from schemas.columns import I64, U8, Mask
from schemas.compiled import compiled

Array = npt.NDArray[Any]

FILLED_AT_MOST = 0.75
"""A reallocated ring is at most this full, so that it need not grow with the next tuple."""


def ring_write(ring: Array, at: int, values: Array) -> None:
    """Write (n,) values to the numbers at .. at + n - 1 along the last axis; n is at most the capacity."""
    capacity = ring.shape[-1]
    n = values.shape[-1]
    slot = at & (capacity - 1)
    first = min(n, capacity - slot)
    ring[..., slot : slot + first] = values[..., :first]
    if first < n:
        ring[..., : n - first] = values[..., first:]


def ring_read(ring: Array, lo: int, hi: int) -> Array:
    """A copy of numbers lo .. hi - 1 along the last axis."""
    capacity = ring.shape[-1]
    slot = lo & (capacity - 1)
    n = hi - lo
    if slot + n <= capacity:
        return ring[..., slot : slot + n].copy()
    return np.concatenate([ring[..., slot:], ring[..., : slot + n - capacity]], axis=-1)


def ring_grow(ring: Array, lo: int, hi: int, capacity: int) -> Array:
    """A ring of a larger capacity with the numbers lo .. hi - 1 in their slots; the rest is zero.

    There is no intermediate copy. The zeros were never touched, so they occupy no memory yet.
    """
    grown = zeroed((*ring.shape[:-1], capacity), ring.dtype)
    at = lo
    while at < hi:
        begin, to = at & (ring.shape[-1] - 1), at & (capacity - 1)
        n = min(hi - at, ring.shape[-1] - begin)  # What does not wrap in the smaller ring does not in the larger.
        grown[..., to : to + n] = ring[..., begin : begin + n]
        at += n
    return grown


def ring_thinned(ring: Array, lo: int, kept: Mask, capacity: int) -> Array:
    """A ring in which those of the numbers lo .. lo + n - 1 that (n,) `kept` marks are moved together, beginning at lo.

    The capacity must be at least their number; the rest is zero and occupies no memory yet.
    """
    thinned = zeroed((*ring.shape[:-1], capacity), ring.dtype)
    for old, new in zip(np.atleast_2d(ring), np.atleast_2d(thinned), strict=True):
        compact_ring(old, lo, kept, new)
    return thinned


def fitting_capacity(n: int, least: int) -> int:
    """The smallest power of two, at least `least`, in which n numbers leave room; untouched room occupies no memory."""
    return max(least, 1 << (int(n / FILLED_AT_MOST) - 1).bit_length()) if n else least


def touched_bytes(ring: Array, first: int, last: int) -> int:
    """Bytes of memory that a ring occupies if the numbers first .. last have been written since it was allocated.

    The system provides zeroed pages when they are first written (`operators.kernels.pages`). For a ring of 4 MiB or
    more, NumPy requests huge pages, and the process may occupy up to 2 MiB more until the ring is full. Where huge
    pages begin is chance, so they do not count: decisions that depend on memory must not depend on chance.
    """
    capacity = ring.shape[-1]
    return ring.nbytes // capacity * min(last - first, capacity) if capacity else 0


@compiled
def first_at_least(ring: I64, lo: int, hi: int, bound: int) -> int:
    """The first number in lo .. hi - 1 whose value is >= bound; hi if there is none. Values ascend."""
    mask = ring.shape[0] - 1
    while lo < hi:
        mid = (lo + hi) >> 1
        if ring[mid & mask] < bound:
            lo = mid + 1
        else:
            hi = mid
    return lo


@compiled
def firsts_at_least(ring: I64, lo: int, hi: int, bounds: I64) -> I64:
    """(n,) `first_at_least` of each bound."""
    out = np.empty(bounds.shape[0], np.int64)
    for i in range(bounds.shape[0]):
        out[i] = first_at_least(ring, lo, hi, bounds[i])
    return out


@compiled
def gather_strings(starts: I64, lengths: I64, data: U8, rows: I64) -> tuple[I64, U8]:
    """The strings of the given rows.

    Args:
        starts, lengths: rings by row: absolute byte number of the first byte, and number of bytes.
        data: ring of bytes; a string may wrap around its end.

    Returns:
        (m + 1,) offsets and the bytes, as in `schemas.columns.Column`.
    """
    mask = starts.shape[0] - 1
    wrap = data.shape[0] - 1
    offsets = np.empty(rows.shape[0] + 1, np.int64)
    offsets[0] = 0
    for i in range(rows.shape[0]):
        offsets[i + 1] = offsets[i] + lengths[rows[i] & mask]
    out = np.empty(offsets[-1], np.uint8)
    for i in range(rows.shape[0]):
        at = starts[rows[i] & mask]
        to = offsets[i]
        for b in range(offsets[i + 1] - to):
            out[to + b] = data[(at + b) & wrap]
    return offsets, out


@compiled
def live_mask(expiry: I64, lo: int, hi: int, now: int) -> Mask:
    """(hi - lo,) True where an entry is alive at `now` (expiry >= now)."""
    mask = expiry.shape[0] - 1
    out = np.empty(hi - lo, np.bool_)
    for e in range(lo, hi):
        out[e - lo] = expiry[e & mask] >= now
    return out


@compiled
def mark_rows(
    rows: I64, ring_ts: I64, ring_expiry: I64, life: int, lo: int, hi: int, now: int, first: int, held: Mask
) -> None:
    """Set (n,) `held` at `row - first` for the rows of the entries lo .. hi - 1 that are alive at `now`.

    Args:
        rows: per slot; the rows of live entries are within first .. first + n - 1.
        ring_expiry: per slot, or empty when expiry is exactly ts + life.

    Raises:
        IndexError: the row of a live entry is outside first .. first + n - 1.
    """
    mask = rows.shape[0] - 1
    exact = ring_expiry.shape[0] == 0
    for e in range(lo, hi):
        slot = e & mask
        expiry = ring_ts[slot] + life if exact else ring_expiry[slot]
        if expiry >= now:
            at = rows[slot] - first
            if at < 0 or at >= held.shape[0]:
                raise IndexError("an entry that lives has a row that is gone")
            held[at] = True


@compiled
def compact_ring(ring: Array, lo: int, alive: Mask, into: Array) -> None:
    """Move the numbers lo .. lo + n - 1 whose (n,) `alive` is True together, beginning at lo, in the same ring or into
    another one with room."""
    mask = ring.shape[0] - 1
    wrap = into.shape[0] - 1
    end = lo
    for i in range(alive.shape[0]):
        end += alive[i]
    i = 0
    to = lo
    # This avoids an unpredictable branch: the next number overwrites one that is not alive.
    while to < end:
        into[to & wrap] = ring[(lo + i) & mask]
        to += alive[i]
        i += 1


@compiled
def sum_where(ring: I64, lo: int, alive: Mask) -> int:
    """The sum of the values of the numbers lo .. lo + n - 1 whose (n,) `alive` is True."""
    mask = ring.shape[0] - 1
    total = 0
    for i in range(alive.shape[0]):
        total += ring[(lo + i) & mask] * alive[i]
    return total


@compiled
def compact_strings(starts: I64, lengths: I64, data: U8, lo: int, alive: Mask, to: int, into: U8) -> int:
    """Move the bytes of the strings lo .. lo + n - 1 whose (n,) `alive` is True together, beginning at byte `to`.

    They stay in the same ring or move into another one with room. Their `starts` change accordingly; the strings keep
    their numbers.

    Returns:
        The number of the byte after the last one.
    """
    mask = starts.shape[0] - 1
    wrap, wrap_into = data.shape[0] - 1, into.shape[0] - 1
    for i in range(alive.shape[0]):
        if alive[i]:
            slot = (lo + i) & mask
            at, left = starts[slot], lengths[slot]
            starts[slot] = to
            while left > 0:
                begin, end = at & wrap, to & wrap_into
                n = min(left, data.shape[0] - begin, into.shape[0] - end)
                for b in range(n):
                    into[end + b] = data[begin + b]
                at += n
                to += n
                left -= n
    return to
