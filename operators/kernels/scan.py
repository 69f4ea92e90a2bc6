"""The nested-loop join's inner loop: order comparisons driven by a table."""

from __future__ import annotations

import numpy as np
from numba import njit

from operators.kernels.hashing import F64
from schemas.columns import I64

OPS = {"<": 0, "<=": 1, ">": 2, ">=": 3, "=": 4}
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}


@njit(cache=True, nogil=True, inline="always")
def _fails(op, a, b):  # type: ignore[no-untyped-def]
    if op == 0:
        return not a < b
    if op == 1:
        return not a <= b
    if op == 2:
        return not a > b
    if op == 3:
        return not a >= b
    return a != b


@njit(cache=True, nogil=True)
def scan_terms(
    int_ops: I64,
    int_probe: I64,
    int_ring: I64,
    float_ops: I64,
    float_probe: F64,
    float_ring: F64,
    ts: I64,
    start: int,
    strict: bool,
    life: int,
    ring_ts: I64,
    ring_expiry: I64,
    lo: int,
    hi: int,
    limit: int,
) -> tuple[I64, I64, int, int]:
    """Pair probe rows with the earlier live entries for which every term `probe op entry` holds.

    Args:
        int_ops, float_ops: (t,) codes of OPS, seen from the probe's side.
        int_probe, float_probe: (t, n) values of the probing tuples.
        int_ring, float_ring: (t, capacity) values of the entries.
        ts: (n,) of the probing tuples, ascending; the rest as in `kernels.index.probe_keys`.

    Returns:
        As `probe_keys`: probe_idx, entries, the row to go on from, entries compared.

    Cost: O(n * entries alive).
    """
    mask = ring_ts.shape[0] - 1
    has_expiry = ring_expiry.shape[0] > 0
    room = max(16, ts.shape[0] - start)
    out_probe = np.empty(room, np.int64)
    out_entry = np.empty(room, np.int64)
    count = 0
    compared = 0
    i = start
    while i < ts.shape[0] and count < limit:
        now = ts[i]
        oldest = now - life
        e = hi - 1
        while e >= lo:
            slot = e & mask
            t = ring_ts[slot]
            if t < oldest:
                break
            if (t < now or (t == now and not strict)) and (not has_expiry or ring_expiry[slot] >= now):
                compared += 1
                good = True
                for k in range(int_ops.shape[0]):
                    if _fails(int_ops[k], int_probe[k, i], int_ring[k, slot]):
                        good = False
                        break
                if good:
                    for k in range(float_ops.shape[0]):
                        if _fails(float_ops[k], float_probe[k, i], float_ring[k, slot]):
                            good = False
                            break
                if good:
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
            e -= 1
        i += 1
    return out_probe[:count], out_entry[:count], i, compared
