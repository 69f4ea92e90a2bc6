"""The hash index of a state: chains through a ring of entries.

An entry has an absolute number `e` that never changes; it sits in slot `e & (capacity - 1)`. Live entries
are `lo <= e < hi`, ascending by timestamp. `heads[bucket]` holds the slot + 1 of the newest entry of a
bucket (0: none); `dist[slot]` how many entries back the next older one of the bucket is (0: none).

Purging the oldest entries only moves `lo`. A head whose entry is gone may then name a slot that another
bucket's entry took over; walking that chain is harmless, since its keys differ from the probe's, and a
bucket that still has live entries always has a live head.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from operators.kernels.hashing import U64
from schemas.columns import I64

I32 = npt.NDArray[np.int32]
INT64_MIN = -(2**63)


@njit(cache=True, nogil=True)
def insert_keys(keys: U64, ring_keys: U64, dist: I32, heads: I32, hi: int) -> None:
    """Enter (n,) keys as entries hi .. hi + n; the ring has room for them."""
    mask = ring_keys.shape[0] - 1
    buckets = np.uint64(heads.shape[0] - 1)
    for i in range(keys.shape[0]):
        e = hi + i
        slot = e & mask
        key = keys[i]
        ring_keys[slot] = key
        bucket = np.int64(key & buckets)
        head = np.int64(heads[bucket])
        if head == 0:
            dist[slot] = 0
        else:
            dist[slot] = np.int32(((slot - (head - 1) - 1) & mask) + 1)
        heads[bucket] = np.int32(slot + 1)


@njit(cache=True, nogil=True)
def probe_keys(
    keys: U64,
    ts: I64,
    start: int,
    strict: bool,
    life: int,
    ring_keys: U64,
    ring_ts: I64,
    ring_expiry: I64,
    dist: I32,
    heads: I32,
    lo: int,
    hi: int,
    limit: int,
) -> tuple[I64, I64, int, int]:
    """Pair probe rows with the earlier live entries of equal key.

    Args:
        keys, ts: (n,) of the probing tuples, ts ascending.
        start: the first probe row to look at.
        strict: True to pair only with entries of smaller ts, False also of equal ts. The two sides of a
            join use one each, so that of two tuples the later one in the total order finds the other.
        life: no entry lives longer than this after its own ts (2**62 for ever).
        ring_expiry: per slot, or empty when expiry is exactly ts + life.
        limit: stop after the probe row that brings the output to this many pairs.

    Returns:
        probe_idx, entries: (m,) int64, ordered by probe row, newest entry first;
        the probe row to go on from (n when done); and the number of entries compared.

    Cost: O(n + entries walked).
    """
    mask = ring_keys.shape[0] - 1
    buckets = np.uint64(heads.shape[0] - 1)
    room = max(16, keys.shape[0] - start)
    out_probe = np.empty(room, np.int64)
    out_entry = np.empty(room, np.int64)
    count = 0
    compared = 0
    has_expiry = ring_expiry.shape[0] > 0
    i = start
    while i < keys.shape[0] and count < limit:
        key = keys[i]
        now = ts[i]
        oldest = now - life
        head = np.int64(heads[np.int64(key & buckets)])
        if head > 0:
            e = hi - 1 - ((hi - 1 - (head - 1)) & mask)
            while e >= lo:
                slot = e & mask
                compared += 1
                if ring_keys[slot] == key:
                    t = ring_ts[slot]
                    if t < oldest:
                        break
                    if (t < now or (t == now and not strict)) and (
                        not has_expiry or ring_expiry[slot] >= now
                    ):
                        if count == room:
                            room *= 2
                            grown = np.empty(room, np.int64)
                            grown[:count] = out_probe
                            out_probe = grown
                            grown = np.empty(room, np.int64)
                            grown[:count] = out_entry
                            out_entry = grown
                        out_probe[count] = i
                        out_entry[count] = e
                        count += 1
                step = np.int64(dist[slot])
                if step == 0:
                    break
                e -= step
        i += 1
    return out_probe[:count], out_entry[:count], i, compared
