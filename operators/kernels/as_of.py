"""Finds the version of a key that holds at a time; `operators.engine.lookups` calls this function."""

from __future__ import annotations

import numpy as np

from schemas.columns import I64
from schemas.compiled import compiled


@compiled
def newest_before(keys: I64, ts: I64, known: I64, order: I64, known_ts: I64) -> I64:
    """Find for each probe the last version of its key whose ts is not larger than the probe's.

    O(log m) per probe.

    Args:
        keys, ts: (n,) keys and times of the probes.
        known: (m,) the versions' keys, ascending; versions of a key in the order in which they came to hold.
        order: (m,) which version that is.
        known_ts: (m,) the ts of each version, by `order`; ascending for each key.

    Returns:
        (n,) int64 versions; -1 where the key has none so early.
    """
    out = np.empty(keys.shape[0], np.int64)
    for i in range(keys.shape[0]):
        # The first version behind (key, ts), in the order of (key, ts).
        lo, hi = 0, known.shape[0]
        while lo < hi:
            mid = (lo + hi) >> 1
            version = order[mid]
            if known[mid] < keys[i] or (known[mid] == keys[i] and known_ts[version] <= ts[i]):
                lo = mid + 1
            else:
                hi = mid
        out[i] = order[lo - 1] if lo > 0 and known[lo - 1] == keys[i] else -1
    return out
