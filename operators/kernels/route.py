"""The eddy's lottery: draws the SteM that each partial tuple probes next; `operators.join.eddy` calls it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from operators.kernels.hashing import F64, U64
from schemas.columns import I64, Mask
from schemas.compiled import compiled


@compiled
def draw_links(
    visited: U64,
    required: U64,
    targets: I64,
    hashed: npt.NDArray[np.bool_],
    tickets: F64,
    draws: F64,
) -> I64:
    """Draw a next SteM per tuple, and the link by which the tuple probes it.

    The links into SteMs not yet visited whose required aliases are all covered take part. A SteM is represented by its
    link with an index, or of several by the one with most tickets, and takes part with that link's tickets. Links that
    require nothing are cross products: they take part where no other link does.

    Args:
        visited: (w, m) bit a of a tuple's words is set if alias a is covered.
        required: (l, w) likewise, the aliases that a link's probe reads.
        targets: (l,) the SteM that the link probes, which is the number of its alias.
        hashed: (l,) True where the link has an index.
        tickets: (l,) greater than zero.
        draws: (m,) uniform in [0, 1).

    Returns:
        (m,) link per tuple; -1 where all SteMs were visited.

    Cost: O(m l w).
    """
    words, m = visited.shape
    links = targets.shape[0]
    stems = 0 if links == 0 else targets.max() + 1
    best = np.empty(stems, np.int64)
    chosen = np.full(m, -1, np.int64)
    crossing = np.ones(links, np.bool_)
    for k in range(links):
        for w in range(words):
            if required[k, w] != 0:
                crossing[k] = False
    for i in range(m):
        for cross in (False, True):
            best[:] = -1
            total = 0.0
            for k in range(links):
                x = targets[k]
                if crossing[k] != cross or (visited[x >> 6, i] >> np.uint64(x & 63)) & np.uint64(1):
                    continue
                covered = True
                for w in range(words):
                    if required[k, w] & ~visited[w, i]:
                        covered = False
                        break
                if not covered:
                    continue
                b = best[x]
                if b < 0:
                    total += tickets[k]
                    best[x] = k
                elif hashed[k] > hashed[b] or (hashed[k] == hashed[b] and tickets[k] > tickets[b]):
                    total += tickets[k] - tickets[b]
                    best[x] = k
            left = draws[i] * total
            for x in range(stems):
                if best[x] >= 0:
                    chosen[i] = best[x]
                    left -= tickets[best[x]]
                    if left < 0.0:
                        break
            if chosen[i] >= 0:
                break
    return chosen


@compiled
def covers(visited: U64, required: U64) -> Mask:
    """(m,) True where all bits of (w,) `required` are set in the tuple's (w, m) words."""
    words, m = visited.shape
    out = np.ones(m, np.bool_)
    for w in range(words):
        for i in range(m):
            if required[w] & ~visited[w, i]:
                out[i] = False
    return out
