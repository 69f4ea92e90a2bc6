"""Finds repeats of keys within a time: the memory of firsts, and keys as bytes. `operators.engine.repeats` calls these
functions.

A key is a run of bytes: 8 of each number, and of each string its length and its bytes. So keys are equal if and only if
their bytes are. The memory holds, per key, the ts of its newest first. It is a hash table of the entries by their keys'
hash (`operators.kernels.hashing.string_words`), with open addressing; equal hashes are compared byte by byte.

Cost: about 30 ns per tuple, and a cache miss or two.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from operators.kernels.hashing import U64
from schemas.columns import I64, U8, Mask
from schemas.compiled import compiled

UNKNOWN = 0
FIRST = 1
REPEAT = 2
NO_KEY = 3

I8 = npt.NDArray[np.int8]


@compiled
def put_numbers(words: U64, at: I64, data: U8) -> None:
    """Write (n,) words into keys, each at its position `at` in `data`; moves the positions behind them."""
    for i in range(words.shape[0]):
        for b in range(8):
            data[at[i] + b] = np.uint8((words[i] >> np.uint64(8 * b)) & np.uint64(255))
        at[i] += 8


@compiled
def put_strings(offsets: I64, values: U8, at: I64, data: U8) -> None:
    """Write strings, `values[offsets[i]:offsets[i + 1]]` each, as `put_numbers` does: their bytes after the length."""
    for i in range(at.shape[0]):
        length = offsets[i + 1] - offsets[i]
        for b in range(8):
            data[at[i] + b] = np.uint8((length >> (8 * b)) & 255)
        for b in range(length):
            data[at[i] + 8 + b] = values[offsets[i] + b]
        at[i] += 8 + length


@compiled
def find_repeats(
    ts: I64,
    known: I8,
    starts: I64,
    data: U8,
    words: U64,
    within: int,
    table: I64,
    first_ts: I64,
    first_words: U64,
    first_starts: I64,
    first_data: U8,
    count: int,
) -> tuple[Mask, int]:
    """Tell firsts from repeats, one tuple after the other, and remember the firsts.

    Args:
        ts: (n,) ascending where `known` is UNKNOWN.
        known: (n,) UNKNOWN; FIRST or REPEAT for what has been decided before; NO_KEY for what is neither.
        starts, data: the keys: key i is data[starts[i]:starts[i + 1]].
        words: (n,) their hashes.
        within: a repeat has at most the first's ts + within.
        table: entry + 1 or 0 per slot; its size is a power of two, at least twice count + n. Changed.
        first_ts, first_words: (capacity,) per entry; capacity at least count + n. Changed.
        first_starts, first_data: the keys of entries, with room for those of the tuples. Changed.
        count: the number of entries.

    Returns:
        (n,) True for repeats, and the number of entries now.
    """
    mask = np.uint64(table.shape[0] - 1)
    out = np.zeros(ts.shape[0], np.bool_)
    for i in range(ts.shape[0]):
        if known[i] == REPEAT:
            out[i] = True
        if known[i] >= REPEAT:
            continue
        begin = starts[i]
        length = starts[i + 1] - begin
        at = np.int64(words[i] & mask)
        entry = -1
        while table[at] != 0:
            e = table[at] - 1
            if first_words[e] == words[i] and first_starts[e + 1] - first_starts[e] == length:
                same = True
                for b in range(length):
                    if first_data[first_starts[e] + b] != data[begin + b]:
                        same = False
                        break
                if same:
                    entry = e
                    break
            at = np.int64(np.uint64(at + 1) & mask)
        if entry < 0:
            table[at] = count + 1
            first_ts[count] = ts[i]
            first_words[count] = words[i]
            for b in range(length):
                first_data[first_starts[count] + b] = data[begin + b]
            first_starts[count + 1] = first_starts[count] + length
            count += 1
        elif known[i] == UNKNOWN and ts[i] <= first_ts[entry] + within:
            out[i] = True
        elif ts[i] > first_ts[entry]:
            first_ts[entry] = ts[i]
    return out, count


@compiled
def forget_firsts(
    before: int, table: I64, first_ts: I64, first_words: U64, first_starts: I64, first_data: U8, count: int
) -> int:
    """Remove the entries with ts < before, move the others together, and fill the table anew.

    Returns:
        The number of entries now.
    """
    mask = np.uint64(table.shape[0] - 1)
    table[:] = 0
    kept = 0
    for e in range(count):
        if first_ts[e] < before:
            continue
        begin = first_starts[e]
        length = first_starts[e + 1] - begin
        first_ts[kept] = first_ts[e]
        first_words[kept] = first_words[e]
        for b in range(length):
            first_data[first_starts[kept] + b] = first_data[begin + b]
        first_starts[kept + 1] = first_starts[kept] + length
        at = np.int64(first_words[kept] & mask)
        while table[at] != 0:
            at = np.int64(np.uint64(at + 1) & mask)
        table[at] = kept + 1
        kept += 1
    return kept
