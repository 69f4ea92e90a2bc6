"""Stores which queries have a live partner for a signature, in an open-addressing table with linear probing.

`operators.juggler.feedback.guards` calls these functions. The arrays of the table are, by slot s:

    keys[s], last[s], bits[s]: a signature, the ts of the latest tuple that has it, and the queries that any of its
    tuples may satisfy; last[s] == VACANT where the slot is free.

A signature whose latest tuple is dead has no partners, whatever its bits; the next tuple with it resets them. The
caller keeps at least half of the slots free.
"""

from __future__ import annotations

import numpy as np

from operators.kernels.hashing import U64
from schemas.columns import I64, Mask
from schemas.compiled import compiled

VACANT = -(2**63)
"""The ts in a free slot."""


@compiled
def see_partners(
    signatures: U64, ts: I64, alive: U64, least: int, keys: U64, last: I64, bits: U64, gained: Mask
) -> int:
    """Enter tuples into the table.

    Args:
        signatures, ts: (n,) of the tuples.
        alive: (n, words) the queries that each tuple may satisfy; a tuple without any is not entered.
        least: tuples older than this are dead.
        keys, last, bits: the table, changed.
        gained: (n,) set to True where a signature has gained a query.

    Returns:
        The number of slots newly used.
    """
    mask = np.uint64(len(keys) - 1)
    words = alive.shape[1]
    taken = 0
    for i in range(len(signatures)):
        some = np.uint64(0)
        for w in range(words):
            some |= alive[i, w]
        if some == np.uint64(0) or ts[i] < least:
            continue
        s = signatures[i] & mask
        while last[s] != VACANT and keys[s] != signatures[i]:
            s = (s + np.uint64(1)) & mask
        if last[s] == VACANT:
            keys[s] = signatures[i]
            taken += 1
        if last[s] < least:
            for w in range(words):
                bits[s, w] = np.uint64(0)
        for w in range(words):
            new = alive[i, w] & ~bits[s, w]
            if new != np.uint64(0):
                gained[i] = True
                bits[s, w] |= new
        last[s] = max(last[s], ts[i])
    return taken


@compiled
def leave_possible(
    signatures: U64, valid: Mask, asking: U64, least: int, keys: U64, last: I64, bits: U64, left: U64
) -> int:
    """Remove from tuples the queries that require a partner and have none.

    Args:
        signatures: (n,) of the tuples.
        valid: (n,) False where there can never be a partner.
        asking: (words,) the queries that require a partner.
        least: partners older than this are dead.
        keys, last, bits: the table.
        left: (n, words) the tuples' queries, changed.

    Returns:
        The number of tuples that have lost a query.
    """
    mask = np.uint64(len(keys) - 1)
    words = left.shape[1]
    none = np.uint64(0)
    lost = 0
    for i in range(len(signatures)):
        found = False
        s = signatures[i] & mask
        if valid[i]:
            while last[s] != VACANT and keys[s] != signatures[i]:
                s = (s + np.uint64(1)) & mask
            found = last[s] != VACANT and last[s] >= least
        some = none
        for w in range(words):
            gone = left[i, w] & asking[w]
            if found:
                gone &= ~bits[s, w]
            some |= gone
            left[i, w] &= ~gone
        if some != none:
            lost += 1
    return lost
