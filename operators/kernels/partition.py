"""Partition groups (state-spill 2.1): determines the group of an entry by its key's hash.

States and cleanup call these functions. The group of a hash is its upper 32 bits times the number of groups, shifted
right by 32. The groups are even for any number of groups, and independent of the lower bits, which a state's index
uses.
"""

from __future__ import annotations

import numpy as np

from operators.kernels.hashing import U64
from operators.kernels.index import I32
from schemas.columns import I64, Mask
from schemas.compiled import compiled, inlined


@inlined
def _group(key, count):  # type: ignore[no-untyped-def]
    return np.int64(((key >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))


@compiled
def groups_of(keys: U64, count: int) -> I32:
    """(n,) int32 groups of key hashes, out of `count` groups."""
    out = np.empty(keys.shape[0], np.int32)
    for i in range(keys.shape[0]):
        out[i] = _group(keys[i], count)
    return out


@compiled
def groups_in_ring(ring_keys: U64, lo: int, hi: int, count: int) -> I32:
    """(hi - lo,) int32 groups of the entries lo .. hi - 1."""
    mask = ring_keys.shape[0] - 1
    out = np.empty(hi - lo, np.int32)
    for e in range(lo, hi):
        out[e - lo] = _group(ring_keys[e & mask], count)
    return out


@compiled
def group_sizes(ring_keys: U64, lo: int, hi: int, count: int) -> I64:
    """(count,) the number of entries lo .. hi - 1 in each group."""
    mask = ring_keys.shape[0] - 1
    out = np.zeros(count, np.int64)
    for e in range(lo, hi):
        out[_group(ring_keys[e & mask], count)] += 1
    return out


@compiled
def newer_in_groups(ring_keys: U64, ring_ts: I64, lo: int, hi: int, since: I64) -> I64:
    """(count,) the number of entries lo .. hi - 1 in each group that are not older than its (count,) `since`.

    Without keys (an empty ring) all entries are in group 0.
    """
    mask = ring_ts.shape[0] - 1
    hashed = ring_keys.shape[0] > 0
    out = np.zeros(since.shape[0], np.int64)
    for e in range(lo, hi):
        slot = e & mask
        group = _group(ring_keys[slot], since.shape[0]) if hashed else 0
        out[group] += ring_ts[slot] >= since[group]
    return out


@compiled
def in_groups(ring_keys: U64, lo: int, hi: int, chosen: Mask) -> Mask:
    """(hi - lo,) True where (groups,) `chosen` is True for the entry's group."""
    mask = ring_keys.shape[0] - 1
    out = np.empty(hi - lo, np.bool_)
    for e in range(lo, hi):
        out[e - lo] = chosen[_group(ring_keys[e & mask], chosen.shape[0])]
    return out


@compiled
def entries_by_group(
    ring_keys: U64, ring_ts: I64, ring_expiry: I64, life: int, lo: int, hi: int, now: int, count: int
) -> tuple[I64, I64]:
    """Sort the entries lo .. hi - 1 that are alive at `now` by group.

    Args:
        ring_keys: per slot; without keys (an empty ring) all entries are in group 0.
        ring_expiry: per slot, or empty when expiry is exactly ts + life.
        count: the number of groups.

    Returns:
        The entries, group by group, ascending in each; and (count + 1,) the position where each group's entries begin.
    """
    mask = ring_ts.shape[0] - 1
    exact = ring_expiry.shape[0] == 0
    hashed = ring_keys.shape[0] > 0
    groups = np.empty(hi - lo, np.int32)
    begins = np.zeros(count + 1, np.int64)
    for e in range(lo, hi):
        slot = e & mask
        expiry = ring_ts[slot] + life if exact else ring_expiry[slot]
        if expiry < now:
            groups[e - lo] = -1
            continue
        group = _group(ring_keys[slot], count) if hashed else np.int64(0)
        groups[e - lo] = group
        begins[group + 1] += 1
    for group in range(count):
        begins[group + 1] += begins[group]
    at = begins[:-1].copy()
    entries = np.empty(begins[count], np.int64)
    for e in range(lo, hi):
        group = groups[e - lo]
        if group >= 0:
            entries[at[group]] = e
            at[group] += 1
    return entries, begins
