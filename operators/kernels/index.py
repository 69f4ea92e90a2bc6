"""The hash index of a state: chains through a ring of entries; `operators.state.side_state` calls these functions.

An entry has an absolute number `e` that never changes; it is stored in slot `e & (capacity - 1)`. Live entries are
`lo <= e < hi`, ascending by timestamp. `heads[bucket]` is the slot + 1 of the newest entry of a bucket (0: none).
`dist[slot]` is the distance in entries to the next older entry of the bucket (0: none).

Purging the oldest entries only moves `lo`. The head of a purged entry may then name a slot that an entry of another
bucket has reused, and the next entry of the bucket is chained to that one. A bucket that still has live entries always
has a live head, so all that a chain has beyond an entry of another bucket is of other buckets or purged. The walk ends
there: the other bucket may be that of a key which most entries have.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from operators.kernels.hashing import U64
from schemas.columns import I64, Mask
from schemas.compiled import compiled

I32 = npt.NDArray[np.int32]
PROBES_AHEAD = 128
"""Probe rows whose first cache misses overlap."""


@compiled
def insert_keys(keys: U64, ring_keys: U64, dist: I32, heads: I32, hi: int) -> None:
    """Enter (n,) keys as entries hi .. hi + n - 1; the ring has room for them."""
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
            dist[slot] = np.int32(((slot - head) & mask) + 1)
        heads[bucket] = np.int32(slot + 1)


@compiled
def index_ring(ring_keys: U64, dist: I32, heads: I32, lo: int, hi: int) -> None:
    """Rebuild the index of entries lo .. hi - 1; `heads` is all zero before."""
    mask = ring_keys.shape[0] - 1
    buckets = np.uint64(heads.shape[0] - 1)
    for e in range(lo, hi):
        slot = e & mask
        bucket = np.int64(ring_keys[slot] & buckets)
        head = np.int64(heads[bucket])
        dist[slot] = 0 if head == 0 else np.int32(((slot - head) & mask) + 1)
        heads[bucket] = np.int32(slot + 1)


@compiled
def probe_keys(
    keys: U64,
    ts: I64,
    start: int,
    resume: int,
    strict: bool,
    life: int,
    ring_keys: U64,
    ring_ts: I64,
    ring_expiry: I64,
    dist: I32,
    heads: I32,
    lo: int,
    hi: int,
    out_probe: I64,
    out_entry: I64,
) -> tuple[int, int, int, int]:
    """Pair probe rows with the earlier live entries of equal key, until the output is full.

    Args:
        keys, ts: (n,) of the probing tuples, ts ascending.
        start: the first probe row to process.
        resume: the entry from which to continue in row `start`; -1 for its newest entry.
        strict: True to pair only with entries of smaller ts, False to include equal ts. One side of a join uses True
            and the other False, so that of two tuples the later one in the total order finds the other.
        life: no entry lives longer than this after its own ts (2**62: for ever).
        ring_keys, ring_ts, dist, heads, lo, hi: the state's ring and index.
        ring_expiry: per slot, or empty when expiry is exactly ts + life.
        out_probe, out_entry: (room,) int64, filled with pairs ordered by probe row, newest entry first.

    Returns:
        The number of pairs written; the row and entry from which to continue (n and -1 when done); and the number of
        entries compared.

    Cost: O(n + entries walked). The caller provides the output arrays, because growing them here would slow down every
    iteration: Numba would count references inside the loop (measured: 3 times slower).
    """
    mask = ring_keys.shape[0] - 1
    buckets = np.uint64(heads.shape[0] - 1)
    has_expiry = ring_expiry.shape[0] > 0
    n = keys.shape[0]
    room = out_probe.shape[0]
    count = 0
    compared = 0
    newest = np.empty(PROBES_AHEAD, np.int64)
    newest_key = np.empty(PROBES_AHEAD, np.uint64)
    newest_dist = np.empty(PROBES_AHEAD, np.int64)
    for begin in range(start, n, PROBES_AHEAD):
        stop = min(begin + PROBES_AHEAD, n)
        # These loops have no branches, so the processor overlaps many cache misses.
        for i in range(begin, stop):
            newest[i - begin] = np.int64(heads[np.int64(keys[i] & buckets)])
        for i in range(begin, stop):
            slot = (newest[i - begin] - 1) & mask
            newest_key[i - begin] = ring_keys[slot]
            newest_dist[i - begin] = np.int64(dist[slot])
        for i in range(begin, stop):
            key = keys[i]
            e = np.int64(resume)
            if e >= 0:
                resume = -1
                found = ring_keys[e & mask]
                step = np.int64(dist[e & mask])
            else:
                head = newest[i - begin]
                if head == 0:
                    continue
                e = hi - 1 - ((hi - head) & mask)
                found = newest_key[i - begin]
                step = newest_dist[i - begin]
            now = ts[i]
            while e >= lo:
                if found == key:
                    slot = e & mask
                    t = ring_ts[slot]
                    if t < now - life:
                        break
                    if (t < now or (t == now and not strict)) and (
                        not has_expiry or ring_expiry[slot] >= now
                    ):
                        if count == room:
                            return count, i, int(e), compared
                        out_probe[count] = i
                        out_entry[count] = e
                        count += 1
                elif (found ^ key) & buckets != 0:
                    compared += 1
                    break
                compared += 1
                if step == 0:
                    break
                e -= step
                found = ring_keys[e & mask]
                step = np.int64(dist[e & mask])
    return count, n, -1, compared


@compiled
def has_keys(
    keys: U64, before: int, ring_keys: U64, ring_ts: I64, dist: I32, heads: I32, lo: int, hi: int
) -> Mask:
    """(n,) True where some entry with ts < before has the key. O(n + entries walked)."""
    mask = ring_keys.shape[0] - 1
    buckets = np.uint64(heads.shape[0] - 1)
    out = np.zeros(keys.shape[0], np.bool_)
    for i in range(keys.shape[0]):
        key = keys[i]
        head = np.int64(heads[np.int64(key & buckets)])
        if head == 0:
            continue
        e = hi - 1 - ((hi - head) & mask)
        while e >= lo:
            slot = e & mask
            if ring_keys[slot] == key and ring_ts[slot] < before:
                out[i] = True
                break
            step = np.int64(dist[slot])
            if step == 0 or (ring_keys[slot] ^ key) & buckets != 0:
                break
            e -= step
    return out
