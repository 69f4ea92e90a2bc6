"""Puts results into their final order, (ts, rows). The engine and the operator of a query group call it."""

from __future__ import annotations

import numpy as np

from schemas.columns import I64
from schemas.compiled import compiled

SHORT_RUN = 48
"""Insertion sort orders runs up to this length; it needs no memory."""


@compiled
def _after(rows: I64, a: int, b: int) -> bool:
    """True if result a follows result b among results of one ts."""
    for k in range(rows.shape[0]):
        if rows[k, a] != rows[k, b]:
            return bool(rows[k, a] > rows[k, b])
    return False


@compiled
def order_ties(ts: I64, rows: I64) -> I64:
    """Positions that put results into (ts, rows) order.

    Args:
        ts: (n,) ascending.
        rows: (k, n) component row ids, most significant first.

    Returns:
        (n,) int64 permutation. Cost: O(n) without ties; O(r log r) for a long run of r equal ts.
    """
    n = ts.shape[0]
    order = np.arange(n)
    start = 0
    while start < n:
        stop = start + 1
        while stop < n and ts[stop] == ts[start]:
            stop += 1
        if stop - start > SHORT_RUN:
            for k in range(rows.shape[0] - 1, -1, -1):
                part = order[start:stop].copy()
                values = rows[k][part]
                order[start:stop] = part[np.argsort(values, kind="mergesort")]
        else:
            for i in range(start + 1, stop):
                moving = order[i]
                j = i - 1
                while j >= start and _after(rows, order[j], moving):
                    order[j + 1] = order[j]
                    j -= 1
                order[j + 1] = moving
        start = stop
    return order
