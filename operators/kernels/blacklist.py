"""Lists of entries by 64-bit signature: chains through a pool, with an open-addressing table of their heads.

`operators.feedback.blacklist` calls these functions. A slot of the table holds the number of a list's newest entry plus
one; 0 means free. The signature of that entry is in the pool, so the table holds no copy. `behind` leads from an entry
to the next older one with the same signature; -1 follows the oldest. Removing a list moves displaced heads back into
the gap, as in `operators.kernels.signatures`. Callers keep some slots free, so each operation takes O(1) per signature
and entry.
"""

from __future__ import annotations

import numpy as np

from operators.kernels.hashing import U64
from operators.kernels.index import I32
from schemas.columns import I64, Mask
from schemas.compiled import compiled, inlined


@inlined
def _slot_of(signature, pool, heads):  # type: ignore[no-untyped-def]
    """The slot of a signature's list, or the free slot where it belongs."""
    mask = heads.shape[0] - 1
    slot = np.int64(signature & np.uint64(mask))
    while heads[slot] != 0 and pool[heads[slot] - 1] != signature:
        slot = (slot + 1) & mask
    return slot


@compiled
def link_entries(first: int, stop: int, pool: U64, behind: I32, heads: I32) -> int:
    """Prepend the pool's entries first .. stop to the lists of their signatures; returns the number of new lists."""
    begun = 0
    for entry in range(first, stop):
        slot = _slot_of(pool[entry], pool, heads)
        if heads[slot] == 0:
            begun += 1
        behind[entry] = heads[slot] - 1
        heads[slot] = entry + 1
    return begun


@compiled
def has_lists(signatures: U64, pool: U64, heads: I32) -> Mask:
    """(n,) True where a signature has a list."""
    out = np.empty(signatures.shape[0], np.bool_)
    for i in range(signatures.shape[0]):
        out[i] = heads[_slot_of(signatures[i], pool, heads)] != 0
    return out


@compiled
def _take_head(signature: np.uint64, pool: U64, heads: I32) -> int:
    """Remove a list from the table; returns its newest entry, -1 if there is no list."""
    mask = heads.shape[0] - 1
    hole = _slot_of(signature, pool, heads)
    entry = int(heads[hole]) - 1
    if entry < 0:
        return entry
    at = (hole + 1) & mask
    while heads[at] != 0:
        home = np.int64(pool[heads[at] - 1] & np.uint64(mask))
        # It may move up unless its home lies behind the hole, cyclically in (hole, at].
        if ((at - home) & mask) >= ((at - hole) & mask):
            heads[hole] = heads[at]
            hole = at
        at = (at + 1) & mask
    heads[hole] = 0
    return entry


@compiled
def take_lists(signatures: U64, pool: U64, behind: I32, heads: I32) -> tuple[I64, int]:
    """Remove the lists of (n,) signatures, which may repeat, from the table; returns all their entries, in any order,
    and the number of lists."""
    taken = np.empty(signatures.shape[0], np.int64)
    lists = 0
    count = 0
    for i in range(signatures.shape[0]):
        entry = _take_head(signatures[i], pool, heads)
        if entry < 0:
            continue
        taken[lists] = entry
        lists += 1
        while entry >= 0:
            count += 1
            entry = np.int64(behind[entry])
    out = np.empty(count, np.int64)
    at = 0
    for k in range(lists):
        entry = taken[k]
        while entry >= 0:
            out[at] = entry
            at += 1
            entry = np.int64(behind[entry])
    return out, lists
