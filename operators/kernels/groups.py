"""The hash table of group keys, and the counts of groups per touch; `operators.aggregate` calls these functions."""

from __future__ import annotations

import numpy as np

from operators.kernels.hashing import U64
from schemas.columns import I64
from schemas.compiled import compiled


@compiled
def enter_groups(
    codes: I64, words: U64, table: I64, known: I64, hashes: U64, free: I64, count: int
) -> tuple[I64, int]:
    """Find each row's group, and create a group where there is none.

    Args:
        codes, words: (c, n) rows to find, and their (n,) hashes.
        table: group + 1 or 0 per slot, by open addressing; its size is a power of two, and it is at most half full
            afterwards. Changed.
        known, hashes: (c, groups) codes and (groups,) hash per group, changed.
        free: (groups,) stack of unused groups.
        count: the number of unused groups, at least n.

    Returns:
        (n,) int64 groups, and the number of groups unused now.
    """
    mask = np.uint64(table.shape[0] - 1)
    out = np.empty(codes.shape[1], np.int64)
    for i in range(codes.shape[1]):
        at = np.int64(words[i] & mask)
        while True:
            group = table[at] - 1
            if group < 0:
                count -= 1
                group = free[count]
                table[at] = group + 1
                hashes[group] = words[i]
                for c in range(codes.shape[0]):
                    known[c, group] = codes[c, i]
                break
            same = hashes[group] == words[i]
            for c in range(codes.shape[0]):
                same = same and known[c, group] == codes[c, i]
            if same:
                break
            at = np.int64(np.uint64(at + 1) & mask)
        out[i] = group
    return out, count


@compiled
def index_groups(groups: I64, table: I64, hashes: U64) -> None:
    """Enter groups into a table that has room for them, by their hashes."""
    mask = np.uint64(table.shape[0] - 1)
    for i in range(groups.shape[0]):
        at = np.int64(hashes[groups[i]] & mask)
        while table[at] != 0:
            at = np.int64(np.uint64(at + 1) & mask)
        table[at] = groups[i] + 1


@compiled
def forget_groups(groups: I64, table: I64, hashes: U64, free: I64, count: int) -> int:
    """Remove groups from the table, and move displaced groups back into the gaps; returns the number unused now."""
    mask = np.uint64(table.shape[0] - 1)
    for i in range(groups.shape[0]):
        hole = np.int64(hashes[groups[i]] & mask)
        while table[hole] != groups[i] + 1:
            hole = np.int64(np.uint64(hole + 1) & mask)
        at = hole
        while True:
            at = np.int64(np.uint64(at + 1) & mask)
            if table[at] == 0:
                break
            home = np.int64(hashes[table[at] - 1] & mask)
            # It may move up unless its home lies behind the hole, cyclically in (hole, at].
            if (np.uint64(at - home) & mask) >= (np.uint64(at - hole) & mask):
                table[hole] = table[at]
                hole = at
        table[hole] = 0
        free[count] = groups[i]
        count += 1
    return count


@compiled
def count_touches(counts: I64, groups: I64, changes: I64) -> tuple[I64, I64]:
    """Change groups' counts touch by touch; returns (t,) counts before and after each touch."""
    before = np.empty(groups.shape[0], np.int64)
    after = np.empty(groups.shape[0], np.int64)
    for i in range(groups.shape[0]):
        before[i] = counts[groups[i]]
        after[i] = before[i] + changes[i]
        counts[groups[i]] = after[i]
    return before, after


@compiled
def previous_touches(groups: I64, seen: I64) -> I64:
    """(t,) per touch the previous touch of the same group, -1 for the first; `seen` is all -1 before and after."""
    out = np.empty(groups.shape[0], np.int64)
    for i in range(groups.shape[0]):
        out[i] = seen[groups[i]]
        seen[groups[i]] = i
    for i in range(groups.shape[0]):
        seen[groups[i]] = -1
    return out
