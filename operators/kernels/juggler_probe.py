"""Finds candidates by time, and by value in sorted runs, within the bounds that a tuple's queries set (Juggler 3.3).

`operators.juggler.routing.probe` calls these functions. A list bounds the rows that a tuple examines only if every
query of the tuple contains a predicate of the list. Then the bound of a block is the loosest predicate that one of
these queries contains, and the widest bound of all blocks counts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from operators.kernels.hashing import U64
from operators.kernels.juggler import ODD
from operators.kernels.scan import fails
from schemas.columns import I64, U8, Mask
from schemas.compiled import compiled, inlined

EVER = 2**62


@compiled
def bounding(alive: U64, asking: U64) -> Mask:
    """(n,) True where every query of a tuple contains some predicate of the list.

    Args:
        alive: (n, words) the tuples' queries.
        asking: (b, words) the queries that contain any predicate of a block.
    """
    out = np.ones(alive.shape[0], np.bool_)
    for i in range(alive.shape[0]):
        for w in range(alive.shape[1]):
            asked = np.uint64(0)
            for b in range(asking.shape[0]):
                asked |= asking[b, w]
            if alive[i, w] & ~asked:
                out[i] = False
                break
    return out


@inlined
def _asked(alive, masks, i, p):  # type: ignore[no-untyped-def]
    found = False
    for w in range(alive.shape[1]):
        found |= (alive[i, w] & masks[p, w]) != 0
    return found


@compiled
def bound_times(
    op: int, found_is_x: bool, times: I64, addends: I64, masks: U64, bounded: Mask, alive: U64, low: I64, high: I64
) -> int:
    """Narrow the bounds of time in which tuples examine rows, by one block of `x.ts op y.ts + addend`.

    Args:
        op: a code of `kernels.scan.OPS`.
        found_is_x: whether x is the input visited; `times` are (n,) values of the other one.
        addends, masks: (p,) and (p, words) the block's predicates and the queries that contain them.
        bounded: (n,) see `bounding`; other tuples stay unchanged.
        alive: (n, words) the tuples' queries.
        low, high: (n,) closed bounds, changed.

    Returns:
        The number of predicates examined.
    """
    steps = 0
    count = addends.shape[0]
    for i in range(times.shape[0]):
        if not bounded[i]:
            continue
        last = count - 1
        while last >= 0 and not _asked(alive, masks, i, last):
            last -= 1
        steps += count - last
        if last < 0:
            continue
        first = last
        if op == 4:
            for p in range(last):
                if _asked(alive, masks, i, p):
                    first = p
                    break
        # The last inequality is the loosest one; the first and the last addend enclose all equalities.
        a, b = (times[i] + addends[first], times[i] + addends[last])
        if not found_is_x:
            a, b = (times[i] - addends[last], times[i] - addends[first])
        if op == 4:
            low[i] = max(low[i], a)
            high[i] = min(high[i], b)
        elif (op <= 1) == found_is_x:
            high[i] = min(high[i], b)
        else:
            low[i] = max(low[i], a)
    return steps


@compiled
def place_times(low: I64, high: I64, ring_ts: I64, lo: int, hi: int) -> tuple[I64, I64]:
    """(n,) the first entry of lo .. hi - 1 with ts in low .. high, and (n,) one past the last; entries ascend by ts."""
    mask = ring_ts.shape[0] - 1
    first, last = np.empty(low.shape[0], np.int64), np.empty(low.shape[0], np.int64)
    for i in range(low.shape[0]):
        begin, end = lo, hi
        while begin < end:
            mid = (begin + end) >> 1
            if ring_ts[mid & mask] < low[i]:
                begin = mid + 1
            else:
                end = mid
        first[i] = begin
        end = hi
        while begin < end:
            mid = (begin + end) >> 1
            if ring_ts[mid & mask] <= high[i]:
                begin = mid + 1
            else:
                end = mid
        last[i] = begin
    return first, last


@inlined
def _holds(op, sorted_is_x, divisor, factor, addend, value, other):  # type: ignore[no-untyped-def]
    if sorted_is_x:
        return not fails(op, divisor * value, factor * other + addend)
    return not fails(op, divisor * other, factor * value + addend)


@inlined
def _edge(op, sorted_is_x, divisor, factor, addend, values, other, rising):  # type: ignore[no-untyped-def]
    """The position where a predicate begins (`rising`) or ceases to hold over ascending values."""
    begin, end = 0, values.shape[0]
    while begin < end:
        mid = (begin + end) >> 1
        if _holds(op, sorted_is_x, divisor, factor, addend, values[mid], other) != rising:
            begin = mid + 1
        else:
            end = mid
    return begin


@compiled
def bound_values(
    op: int,
    sorted_is_x: bool,
    values: npt.NDArray[np.generic],
    others: npt.NDArray[np.generic],
    states: U8,
    factors: npt.NDArray[np.generic],
    divisors: npt.NDArray[np.generic],
    addends: npt.NDArray[np.generic],
    blocks: I64,
    masks: U64,
    bounded: Mask,
    alive: U64,
    first: I64,
    last: I64,
) -> int:
    """Narrow the positions of a sorted run that tuples examine, by a list over the column that sorts the run.

    Args:
        op: a code of `kernels.scan.OPS`.
        sorted_is_x: whether that column is x.
        values: the run's values, ascending, within the list's limits.
        others: (n,) the tuples' values of the other column.
        states: (n,) their states: a tuple with a null finds nothing, and an odd tuple is not bounded.
        factors, divisors, addends, blocks: the list, as in `kernels.juggler.narrow`.
        masks: (p, words) the queries that contain each predicate.
        bounded: (n,) see `bounding`; other tuples stay unchanged.
        alive: (n, words) the tuples' queries.
        first, last: (n,) half-open bounds, changed.

    Returns:
        The number of search steps.
    """
    steps = 0
    for i in range(others.shape[0]):
        if not bounded[i] or states[i] == ODD:
            continue
        if states[i] != 0:
            last[i] = first[i]
            continue
        low, high = values.shape[0], 0
        for b in range(factors.shape[0]):
            loosest = blocks[b + 1] - 1
            while loosest >= blocks[b] and not _asked(alive, masks, i, loosest):
                loosest -= 1
            if loosest < blocks[b]:
                continue
            d, f = divisors[b], factors[b]
            steps += 1
            if op == 4:
                tightest = blocks[b]
                while not _asked(alive, masks, i, tightest):
                    tightest += 1
                # x or y rises with the other side's addend, or falls: the two ends enclose all.
                for p in (tightest, loosest):
                    if sorted_is_x or f > 0:
                        begin = _edge(3 if sorted_is_x else 1, sorted_is_x, d, f, addends[p], values, others[i], True)
                        end = _edge(1 if sorted_is_x else 3, sorted_is_x, d, f, addends[p], values, others[i], False)
                    else:
                        begin = _edge(3, sorted_is_x, d, f, addends[p], values, others[i], True)
                        end = _edge(1, sorted_is_x, d, f, addends[p], values, others[i], False)
                    low, high = min(low, begin), max(high, end)
                continue
            # Over x, `<` holds up to some position; over y, it does if y's factor is negative.
            prefix = (op <= 1) if sorted_is_x else ((op <= 1) == (f < 0))
            edge = _edge(op, sorted_is_x, d, f, addends[loosest], values, others[i], not prefix)
            if prefix:
                low, high = 0, max(high, edge)
            else:
                low, high = min(low, edge), values.shape[0]
        first[i] = max(first[i], low)
        last[i] = min(last[i], max(high, low))
    return steps


@compiled
def scan_places(
    first: I64,
    last: I64,
    low: I64,
    high: I64,
    start: int,
    resume: int,
    rows: I64,
    ts: I64,
    mask: int,
    out_probe: I64,
    out_row: I64,
) -> tuple[int, int, int, int]:
    """Pair tuples with the rows at positions first .. last whose ts lies in low .. high, until the output is full.

    Args:
        first, last: (n,) half-open bounds of positions.
        low, high: (n,) closed bounds of ts.
        start, resume: the tuple and position from which to continue; `resume` is -1 for the tuple's first position.
        rows, ts: the row ids and timestamps; position p is at index `p & mask`.
        mask: capacity - 1 of a ring; -1 of a run.
        out_probe, out_row: (room,) int64, filled with pairs.

    Returns:
        The number of pairs written, the tuple and position from which to continue (n and -1 when done), and the number
        of rows examined.
    """
    room = out_probe.shape[0]
    count = 0
    looked = 0
    for i in range(start, first.shape[0]):
        begin = first[i] if resume < 0 else resume
        resume = -1
        for e in range(begin, last[i]):
            at = e & mask
            if low[i] <= ts[at] <= high[i]:
                if count == room:
                    return count, i, e, looked
                out_probe[count] = i
                out_row[count] = rows[at]
                count += 1
            looked += 1
    return count, first.shape[0], -1, looked
