"""Evaluates predicate lists on whole batches (Juggler 3.2, Fig. 4.7), and records the outcome in each tuple's sets.

`operators.juggler.routing.tuples_in_flight` calls these functions. A list consists of blocks whose predicates differ
only in their addend, the tightest first (for `<` the smallest). So the predicates of a block that a tuple satisfies are
one run of positions, found by binary search: for an inequality from the tightest one that holds to the end, for `=`
those that are equal.

There are two encodings. *Queries*: a tuple has one bit per query that it may still satisfy. `before[p]` has the queries
that contain a predicate at a position before p, `after[p]` those with one at p or later. If positions first .. last
hold, the tuple loses the queries of before[first] and after[last]. *Predicates* (Fig. 3.15): a tuple has one bit per
predicate of the operator in each of two sets, evaluated (RelPBS) and satisfied (SatPBS). Afterwards each query is
compared with these sets by its QED.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from operators.kernels.hashing import U64
from operators.kernels.scan import fails
from schemas.columns import I64, U8
from schemas.compiled import compiled, inlined

NULL, ODD = np.uint8(1), np.uint8(2)
"""States of a tuple. NULL: a value is null, so no predicate holds. ODD: a value is outside the limits. Else 0."""


@inlined
def _first_holding(op, left, base, addends, begin, end):  # type: ignore[no-untyped-def]
    """The first position of begin .. end whose inequality holds, and the number of evaluations."""
    steps = 0
    while begin < end:
        mid = (begin + end) >> 1
        steps += 1
        if fails(op, left, base + addends[mid]):
            begin = mid + 1
        else:
            end = mid
    return begin, steps


@inlined
def _holding(op, left, base, addends, begin, end):  # type: ignore[no-untyped-def]
    """The positions first .. last of begin .. end whose predicates hold, and the number of evaluations."""
    if op != 4:
        first, steps = _first_holding(op, left, base, addends, begin, end)
        return first, end, steps
    # Addends ascend, so equal addends follow the smaller ones.
    first, steps = _first_holding(1, left, base, addends, begin, end)
    last = first
    while last < end:
        steps += 1
        if fails(4, left, base + addends[last]):
            break
        last += 1
    return first, last, steps


@compiled
def narrow(
    op: int,
    x: npt.NDArray[np.generic],
    y: npt.NDArray[np.generic],
    states: U8,
    factors: npt.NDArray[np.generic],
    divisors: npt.NDArray[np.generic],
    addends: npt.NDArray[np.generic],
    blocks: I64,
    before: U64,
    after: U64,
    asking: U64,
    alive: U64,
) -> tuple[int, int]:
    """Remove from each tuple the queries that contain a predicate of the list which does not hold for the tuple.

    Args:
        op: a code of `kernels.scan.OPS`.
        x, y: (n,) the columns' values.
        states: (n,) see NULL and ODD; odd tuples stay unchanged.
        factors, divisors: (b,) per block.
        addends: (p,) per predicate.
        blocks: (b + 1,) the position where each block begins.
        before, after: (p + b, words) see above; those of block b begin at blocks[b] + b.
        asking: (b, words) the queries that contain any predicate of a block.
        alive: (n, words) bits of queries, changed.

    Returns:
        The numbers of predicate evaluations and of operations on words.
    """
    words = alive.shape[1]
    compared = 0
    touched = 0
    for b in range(factors.shape[0]):
        begin, end = blocks[b], blocks[b + 1]
        for i in range(x.shape[0]):
            if states[i] == ODD:
                continue
            wanted = False
            for w in range(words):
                touched += 1
                if alive[i, w] & asking[b, w]:
                    wanted = True
                    break
            if not wanted:
                continue
            if states[i] == NULL:
                first, last = end, end
            else:
                first, last, steps = _holding(op, divisors[b] * x[i], factors[b] * y[i], addends, begin, end)
                compared += steps
                if first == begin and last == end:
                    continue
            for w in range(words):
                alive[i, w] &= ~(before[first + b, w] | after[last + b, w])
            touched += 2 * words
    return compared, touched


@compiled
def record(
    op: int,
    x: npt.NDArray[np.generic],
    y: npt.NDArray[np.generic],
    states: U8,
    factors: npt.NDArray[np.generic],
    divisors: npt.NDArray[np.generic],
    addends: npt.NDArray[np.generic],
    blocks: I64,
    places: I64,
    asking: U64,
    alive: U64,
    relevant: U64,
    satisfied: U64,
) -> tuple[int, int]:
    """Record a list's predicates in each tuple's RelPBS and SatPBS; like `narrow`, but queries stay.

    Args:
        op, x, y, states, factors, divisors, addends, blocks, asking: see `narrow`.
        places: (p,) each predicate's bit.
        alive: (n, words) each tuple's query list; a block whose predicates none of these queries contains is skipped.
        relevant, satisfied: (n, predicate words), changed.

    Returns:
        The numbers of predicate evaluations and of operations on words.
    """
    words = alive.shape[1]
    compared = 0
    touched = 0
    for b in range(factors.shape[0]):
        begin, end = blocks[b], blocks[b + 1]
        for i in range(x.shape[0]):
            if states[i] == ODD:
                continue
            wanted = False
            for w in range(words):
                touched += 1
                if alive[i, w] & asking[b, w]:
                    wanted = True
                    break
            if not wanted:
                continue
            if states[i] == NULL:
                first, last = end, end
            else:
                first, last, steps = _holding(op, divisors[b] * x[i], factors[b] * y[i], addends, begin, end)
                compared += steps
            for p in range(begin, end):
                bit = np.uint64(1) << np.uint64(places[p] & 63)
                relevant[i, places[p] >> 6] |= bit
                if first <= p < last:
                    satisfied[i, places[p] >> 6] |= bit
            touched += 2
    return compared, touched


@compiled
def ask_queries(relevant: U64, satisfied: U64, dependencies: U64, alive: U64) -> int:
    """Remove from each tuple's query list the queries of which an evaluated predicate failed (Fig. 3.15, candidates).

    Args:
        relevant, satisfied: (n, predicate words) RelPBS and SatPBS.
        dependencies: (queries, predicate words), the QEDs.
        alive: (n, words) the query lists, changed.

    Returns:
        The number of operations on words.
    """
    touched = 0
    for i in range(alive.shape[0]):
        for q in range(dependencies.shape[0]):
            bit = np.uint64(1) << np.uint64(q & 63)
            if not alive[i, q >> 6] & bit:
                continue
            for w in range(relevant.shape[1]):
                touched += 1
                if dependencies[q, w] & relevant[i, w] & ~satisfied[i, w]:
                    alive[i, q >> 6] &= ~bit
                    break
    return touched


@compiled
def living(alive: U64) -> npt.NDArray[np.bool_]:
    """(n,) True where a tuple has a query left."""
    out = np.zeros(alive.shape[0], np.bool_)
    for i in range(alive.shape[0]):
        for w in range(alive.shape[1]):
            if alive[i, w]:
                out[i] = True
                break
    return out


@compiled
def by_query(alive: U64, queries: I64) -> tuple[I64, I64]:
    """Group tuples by query: the tuples of queries[k] are out[offsets[k]:offsets[k + 1]], ascending.

    Returns:
        (k + 1,) offsets, and the positions of tuples.

    Cost: O(n * words + tuples returned).
    """
    place = np.full(alive.shape[1] * 64, -1, np.int64)
    wanted = np.zeros(alive.shape[1], np.uint64)
    for k in range(queries.shape[0]):
        place[queries[k]] = k
        wanted[queries[k] >> 6] |= np.uint64(1) << np.uint64(queries[k] & 63)
    offsets = np.zeros(queries.shape[0] + 1, np.int64)
    out = np.empty(0, np.int64)
    at = offsets
    for fill in range(2):
        if fill == 1:
            for k in range(queries.shape[0]):
                offsets[k + 1] += offsets[k]
            out = np.empty(offsets[-1], np.int64)
            at = offsets.copy()
        for i in range(alive.shape[0]):
            for w in range(alive.shape[1]):
                rest = alive[i, w] & wanted[w]
                while rest:
                    low = rest & (~rest + np.uint64(1))
                    bit = _place_of(low)
                    k = place[w * 64 + bit]
                    if fill == 0:
                        offsets[k + 1] += 1
                    else:
                        out[at[k]] = i
                        at[k] += 1
                    rest ^= low
    return offsets, out


@inlined
def _place_of(bit):  # type: ignore[no-untyped-def]
    """The exponent of a power of two."""
    place = 0
    if bit & np.uint64(0xFFFFFFFF00000000):
        place += 32
    if bit & np.uint64(0xFFFF0000FFFF0000):
        place += 16
    if bit & np.uint64(0xFF00FF00FF00FF00):
        place += 8
    if bit & np.uint64(0xF0F0F0F0F0F0F0F0):
        place += 4
    if bit & np.uint64(0xCCCCCCCCCCCCCCCC):
        place += 2
    if bit & np.uint64(0xAAAAAAAAAAAAAAAA):
        place += 1
    return place
