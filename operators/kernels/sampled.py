"""Joins two samples by the hashes of their keys. `operators.autopilot.join_sample` calls `matching_pairs`."""

from __future__ import annotations

import numpy as np

from operators.kernels.hashing import U64
from schemas.columns import I64
from schemas.compiled import compiled


@compiled
def matching_pairs(left: U64, right: U64, most: int) -> tuple[I64, I64, int]:
    """Find the pairs of equal keys, or of very many an even part. O(n + m + pairs).

    Args:
        left, right: (n,) and (m,) hashes.
        most: the most pairs to return.

    Returns:
        The (k,) positions in `left` and in `right` of every s-th pair, where s is the least that makes k <= most; and
        the number of all pairs.
    """
    size = 1
    while size < 2 * right.shape[0]:
        size *= 2
    heads = np.full(size, -1, np.int64)
    following = np.empty(right.shape[0], np.int64)
    mask = np.uint64(size - 1)
    for i in range(right.shape[0]):
        slot = right[i] & mask
        following[i] = heads[slot]
        heads[slot] = i
    pairs = 0
    for i in range(left.shape[0]):
        at = heads[left[i] & mask]
        while at >= 0:
            pairs += right[at] == left[i]
            at = following[at]
    step = max(1, -(-pairs // most))
    count = (pairs + step // 2) // step
    a, b = np.empty(count, np.int64), np.empty(count, np.int64)
    seen, found = 0, 0
    for i in range(left.shape[0]):
        at = heads[left[i] & mask]
        while at >= 0:
            if right[at] == left[i]:
                if seen % step == step - 1 - step // 2 and found < count:
                    a[found], b[found] = i, at
                    found += 1
                seen += 1
            at = following[at]
    return a[:found], b[:found], pairs
