"""Lists of entries by 64-bit signature: chains through a pool, whose heads are found in a table.

The table is that of `operators.kernels.signatures` and leads from a signature to its newest entry; `behind` leads from
an entry to the next older one of the same signature, -1 after the oldest.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from operators.kernels.hashing import U64
from operators.kernels.signatures import VACANT, slot_of, take_value
from schemas.columns import I64


@njit(cache=True, nogil=True)
def link_entries(signatures: U64, first: int, behind: I64, keys: U64, heads: I64) -> int:
    """Put entries first .. first + n in front of their (n,) signatures' lists; the table has room for all. How many
    lists that begins."""
    begun = 0
    for i in range(signatures.shape[0]):
        slot = slot_of(signatures[i], keys, heads)
        if heads[slot] == VACANT:
            behind[first + i] = -1
            begun += 1
        else:
            behind[first + i] = heads[slot]
        keys[slot] = signatures[i]
        heads[slot] = first + i
    return begun


@njit(cache=True, nogil=True)
def take_lists(signatures: U64, behind: I64, keys: U64, heads: I64) -> tuple[I64, int]:
    """Take the lists of (n,) signatures, which may repeat, out of the table; the entries of all, in any order, and how
    many lists these were."""
    taken = np.empty(signatures.shape[0], np.int64)
    lists = 0
    count = 0
    for i in range(signatures.shape[0]):
        entry = take_value(signatures[i], keys, heads)
        if entry == VACANT:
            continue
        taken[lists] = entry
        lists += 1
        while entry >= 0:
            count += 1
            entry = behind[entry]
    out = np.empty(count, np.int64)
    at = 0
    for k in range(lists):
        entry = taken[k]
        while entry >= 0:
            out[at] = entry
            at += 1
            entry = behind[entry]
    return out, lists
