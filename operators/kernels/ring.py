"""Rings: arrays of a power-of-two capacity in which absolute number `e` sits in slot `e & (capacity - 1)`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from schemas.columns import I64, U8, Mask

Array = npt.NDArray[Any]


def ring_write(ring: Array, at: int, values: Array) -> None:
    """Write (n,) values as numbers at .. at + n along the last axis; n is at most the capacity."""
    capacity = ring.shape[-1]
    n = values.shape[-1]
    slot = at & (capacity - 1)
    first = min(n, capacity - slot)
    ring[..., slot : slot + first] = values[..., :first]
    if first < n:
        ring[..., : n - first] = values[..., first:]


def ring_read(ring: Array, lo: int, hi: int) -> Array:
    """A copy of numbers lo .. hi along the last axis."""
    capacity = ring.shape[-1]
    slot = lo & (capacity - 1)
    n = hi - lo
    if slot + n <= capacity:
        return ring[..., slot : slot + n].copy()
    return np.concatenate([ring[..., slot:], ring[..., : slot + n - capacity]], axis=-1)


def ring_grow(ring: Array, lo: int, hi: int, capacity: int) -> Array:
    """A ring of a larger capacity with numbers lo .. hi where they belong; the rest is zero."""
    grown = np.zeros((*ring.shape[:-1], capacity), ring.dtype)
    if hi > lo:
        ring_write(grown, lo, ring_read(ring, lo, hi))
    return grown


@njit(cache=True, nogil=True)
def first_at_least(ring: I64, lo: int, hi: int, bound: int) -> int:
    """The first number in lo .. hi whose value is >= bound; values ascend; hi when there is none."""
    mask = ring.shape[0] - 1
    while lo < hi:
        mid = (lo + hi) >> 1
        if ring[mid & mask] < bound:
            lo = mid + 1
        else:
            hi = mid
    return lo


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def live_mask(expiry: I64, lo: int, hi: int, now: int) -> Mask:
    """(hi - lo,) bool: which entries still live at `now` (expiry >= now)."""
    mask = expiry.shape[0] - 1
    out = np.empty(hi - lo, np.bool_)
    for e in range(lo, hi):
        out[e - lo] = expiry[e & mask] >= now
    return out


@njit(cache=True, nogil=True)
def compact_ring(ring: Array, lo: int, alive: Mask) -> None:
    """Move numbers lo .. lo + n whose (n,) `alive` is True together, in place, beginning at lo."""
    mask = ring.shape[0] - 1
    to = lo
    for i in range(alive.shape[0]):
        if alive[i]:
            ring[to & mask] = ring[(lo + i) & mask]
            to += 1
