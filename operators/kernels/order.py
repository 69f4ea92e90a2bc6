"""The final order of results."""

from __future__ import annotations

import numpy as np
from numba import njit

from schemas.columns import I64


@njit(cache=True, nogil=True)
def order_ties(ts: I64, rows: I64) -> I64:
    """Positions that put results into (ts, rows) order.

    Args:
        ts: (n,) ascending.
        rows: (k, n) component row ids, most significant first.

    Returns:
        (n,) int64 permutation. Cost: O(n log n) in the longest run of equal ts, O(n) without ties.
    """
    n = ts.shape[0]
    order = np.arange(n)
    start = 0
    while start < n:
        stop = start + 1
        while stop < n and ts[stop] == ts[start]:
            stop += 1
        if stop - start > 1:
            for k in range(rows.shape[0] - 1, -1, -1):
                part = order[start:stop].copy()
                values = rows[k][part]
                order[start:stop] = part[np.argsort(values, kind="mergesort")]
        start = stop
    return order
