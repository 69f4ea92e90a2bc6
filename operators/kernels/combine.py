"""Builds intermediate results: joins candidate pairs into tuples, and merges two sorted runs of tuples.

`operators.state.side_state` and `operators.data.tuples` call these functions.
"""

from __future__ import annotations

import numpy as np

from schemas.columns import I64
from schemas.compiled import compiled


@compiled
def combine_pairs(
    rows: I64,
    ts: I64,
    expiry: I64,
    probe_idx: I64,
    ring_rows: I64,
    ring_ts: I64,
    ring_expiry: I64,
    life: int,
    entries: I64,
    probe_first: bool,
) -> tuple[I64, I64, I64]:
    """Join probing tuples with state entries, pair by pair.

    Args:
        rows, ts, expiry: (p, n), (n,), (n,) of the probing tuples.
        probe_idx, entries: (m,) the pairs; an entry is never later than its probing tuple.
        ring_rows, ring_ts, ring_expiry: (q, capacity) and (capacity,) rings of the entries; an empty `ring_expiry`
            means that expiry is ts + life.
        life: how long an entry lives after its ts, if `ring_expiry` is empty.
        probe_first: True when the probing side's rows come first.

    Returns:
        rows (p + q, m), ts (m,), expiry (m,) of the results.
    """
    m = probe_idx.shape[0]
    p, q = rows.shape[0], ring_rows.shape[0]
    mask = ring_ts.shape[0] - 1
    out_rows = np.empty((p + q, m), np.int64)
    out_ts = np.empty(m, np.int64)
    out_expiry = np.empty(m, np.int64)
    own_at, other_at = (0, p) if probe_first else (q, 0)
    for k in range(p):
        for j in range(m):
            out_rows[own_at + k, j] = rows[k, probe_idx[j]]
    for k in range(q):
        for j in range(m):
            out_rows[other_at + k, j] = ring_rows[k, entries[j] & mask]
    derived = ring_expiry.shape[0] == 0
    for j in range(m):
        i = probe_idx[j]
        slot = entries[j] & mask
        out_ts[j] = ts[i]
        other = min(ring_ts[slot] + life, 2**62) if derived else ring_expiry[slot]
        out_expiry[j] = min(expiry[i], other)
    return out_rows, out_ts, out_expiry


@compiled
def merge_runs(
    rows_a: I64, ts_a: I64, expiry_a: I64, rows_b: I64, ts_b: I64, expiry_b: I64
) -> tuple[I64, I64, I64]:
    """Merge two runs of tuples that each ascend by ts; of equal ts, tuples of the first run precede the others.

    Args:
        rows_a, ts_a, expiry_a: (k, n), (n,), (n,) of the first run.
        rows_b, ts_b, expiry_b: (k, m), (m,), (m,) of the second run.

    Returns:
        rows (k, n + m), ts and expiry (n + m,) of all.
    """
    n, m = ts_a.shape[0], ts_b.shape[0]
    rows = np.empty((rows_a.shape[0], n + m), np.int64)
    ts = np.empty(n + m, np.int64)
    expiry = np.empty(n + m, np.int64)
    i = 0
    j = 0
    for to in range(n + m):
        if j >= m or (i < n and ts_a[i] <= ts_b[j]):
            ts[to] = ts_a[i]
            expiry[to] = expiry_a[i]
            for k in range(rows.shape[0]):
                rows[k, to] = rows_a[k, i]
            i += 1
        else:
            ts[to] = ts_b[j]
            expiry[to] = expiry_b[j]
            for k in range(rows.shape[0]):
                rows[k, to] = rows_b[k, j]
            j += 1
    return rows, ts, expiry
