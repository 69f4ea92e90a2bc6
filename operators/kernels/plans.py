"""Searches join trees over all subsets of a query's aliases, or over all intervals of an order of them.

`operators.autopilot.search` calls these functions. A subset is a bit mask, an interval a pair first <= last. Of each,
the caller passes

    rate     tuples that the join of its aliases makes per second
    held     tuples in its state
    share    logarithm of the share of combinations that satisfy the predicates among its aliases
    keyed    the same for those predicates alone that can be hash keys
    links    number of predicates, written or implied, whose aliases are all in it
    keys     number of them that can be hash keys

Two disjoint sets are related by a predicate exactly if their union has more links than both together; the share that
the predicates between them keep is the difference of the logarithms.
"""

from __future__ import annotations

import numpy as np

from operators.kernels.hashing import F64
from schemas.columns import I64
from schemas.compiled import compiled, inlined


@inlined
def _join_cost(rate_a, held_a, rate_b, held_b, share, keyed, has_key, enter, probe, make, scan):  # type: ignore[no-untyped-def]
    """Seconds per second of a join's work: entering, probing, and walking or scanning the other side's state."""
    probes = rate_a + rate_b
    met = rate_a * held_b + rate_b * held_a
    if has_key:
        return probes * (enter + probe) + met * np.exp(min(keyed, 0.0)) * make
    return probes * enter + met * (scan + np.exp(min(share, 0.0)) * make)


@compiled
def cheapest_trees(
    rate: F64, held: F64, share: F64, keyed: F64, links: I64, keys: I64, unit: F64, crossing: bool
) -> tuple[F64, I64]:
    """Find the cheapest tree of every subset by dynamic programming. O(3^n) for n aliases.

    Args:
        rate, held, share, keyed: (2^n,) by mask; see above.
        links, keys: (2^n,) by mask.
        unit: (4,) seconds to enter a tuple, to probe with it, to make a pair, to scan a pair.
        crossing: allow cross products.

    Returns:
        (2^n,) cost by mask, infinite where there is no tree without a cross product; and (2^n,) the mask of one input
        of its last join, 0 for single aliases. That input has the mask's lowest bit.
    """
    count = rate.shape[0]
    cost = np.full(count, np.inf)
    left = np.zeros(count, np.int64)
    for mask in range(1, count):
        low = mask & -mask
        if low == mask:
            cost[mask] = 0.0
            continue
        rest = mask ^ low
        part = (rest - 1) & rest
        while True:
            a, b = low | part, rest ^ part
            below = cost[a] + cost[b]
            if below < cost[mask] and (crossing or links[mask] > links[a] + links[b]):
                here = below + _join_cost(
                    rate[a],
                    held[a],
                    rate[b],
                    held[b],
                    share[mask] - share[a] - share[b],
                    keyed[mask] - keyed[a] - keyed[b],
                    keys[mask] > keys[a] + keys[b],
                    unit[0],
                    unit[1],
                    unit[2],
                    unit[3],
                )
                if here < cost[mask]:
                    cost[mask] = here
                    left[mask] = a
            if part == 0:
                break
            part = (part - 1) & rest
    return cost, left


@compiled
def cheapest_intervals(
    rate: F64, held: F64, share: F64, keyed: F64, links: I64, keys: I64, unit: F64, crossing: bool
) -> tuple[F64, I64]:
    """Find the cheapest tree of every interval of an order of n aliases. O(n^3).

    Args: those of `cheapest_trees`, each (n, n) by first and last position.

    Returns:
        (n, n) costs, infinite where there is no tree without a cross product; and (n, n) the last position of the left
        input of its last join.
    """
    n = rate.shape[0]
    cost = np.full((n, n), np.inf)
    split = np.zeros((n, n), np.int64)
    for i in range(n):
        cost[i, i] = 0.0
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            for k in range(i, j):
                below = cost[i, k] + cost[k + 1, j]
                if below < cost[i, j] and (crossing or links[i, j] > links[i, k] + links[k + 1, j]):
                    here = below + _join_cost(
                        rate[i, k],
                        held[i, k],
                        rate[k + 1, j],
                        held[k + 1, j],
                        share[i, j] - share[i, k] - share[k + 1, j],
                        keyed[i, j] - keyed[i, k] - keyed[k + 1, j],
                        keys[i, j] > keys[i, k] + keys[k + 1, j],
                        unit[0],
                        unit[1],
                        unit[2],
                        unit[3],
                    )
                    if here < cost[i, j]:
                        cost[i, j] = here
                        split[i, j] = k
    return cost, split


@compiled
def joining_cost(
    whole: I64, left: I64, right: I64, rate: F64, held: F64, share: F64, keyed: F64, links: I64, keys: I64, unit: F64
) -> F64:
    """Return (m,) the work of m joins, each given by the positions of its set and of its inputs' sets."""
    out = np.empty(whole.shape[0])
    for n in range(whole.shape[0]):
        s, a, b = whole[n], left[n], right[n]
        out[n] = _join_cost(
            rate[a],
            held[a],
            rate[b],
            held[b],
            share[s] - share[a] - share[b],
            keyed[s] - keyed[a] - keyed[b],
            keys[s] > keys[a] + keys[b],
            unit[0],
            unit[1],
            unit[2],
            unit[3],
        )
    return out
