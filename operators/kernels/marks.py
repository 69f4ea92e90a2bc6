"""A table of key hashes, each with a byte of marks: linear hashing (Litwin 1980).

`operators.migration.jisc.counting` calls these functions. Keys are entries in the order of their arrival, chained by
bucket. Each entry beyond the number of buckets splits the next bucket in turn, so no call rebuilds the whole table.
Entries and buckets fill their arrays from the start. So the arrays can be as large as may ever be needed: untouched
memory costs nothing.

`sizes` has the number of entries, the number of buckets, and the largest power of two not above the number of buckets.
`heads` and `following` hold entry + 1, 0 for none.
"""

from __future__ import annotations

import numpy as np

from operators.kernels.hashing import U64
from operators.kernels.index import I32
from schemas.columns import I64, U8, Mask
from schemas.compiled import compiled

Table = tuple[U64, U8, I32, I32, I64]
"""keys, marks, following, heads, sizes."""


def new_table(most: int) -> Table:
    """An empty table with room for `most` keys."""
    room = max(most, 1)
    return (
        np.zeros(room, np.uint64),
        np.zeros(room, np.uint8),
        np.zeros(room, np.int32),
        np.zeros(room + 1, np.int32),
        np.array([0, 1, 1], np.int64),
    )


def with_room(table: Table, more: int) -> Table:
    """Return the table, or a larger copy, with room for `more` further keys."""
    room, (count, buckets, _) = len(table[0]), table[-1].tolist()
    if count + more <= room:
        return table
    larger = new_table(max(count + more, 2 * room))
    keys, marks, following, heads, sizes = larger
    keys[:count], marks[:count], following[:count] = table[0][:count], table[1][:count], table[2][:count]
    heads[:buckets], sizes[:] = table[3][:buckets], table[4]
    return larger


@compiled
def _find(key, keys, following, heads, buckets, power):  # type: ignore[no-untyped-def]
    """The bucket of a key, and its entry + 1, 0 if it has none."""
    bucket = np.int64(key & np.uint64(2 * power - 1))
    if bucket >= buckets:
        bucket -= power
    entry = heads[bucket]
    while entry != 0 and keys[entry - 1] != key:
        entry = following[entry - 1]
    return bucket, entry


@compiled
def read_marks(wanted: U64, table: Table) -> U8:
    """(n,) the marks of each key; 0 if the table lacks the key."""
    keys, marks, following, heads, sizes = table
    out = np.zeros(wanted.shape[0], np.uint8)
    for i in range(wanted.shape[0]):
        _, entry = _find(wanted[i], keys, following, heads, sizes[1], sizes[2])
        if entry != 0:
            out[i] = marks[entry - 1]
    return out


@compiled
def add_marks(wanted: U64, mark: int, table: Table) -> Mask:
    """Set a mark of each key, and enter missing keys; the table must have room (`with_room`).

    Returns:
        (n,) True where the mark was not set before; of a repeated key only the first can be True.

    Raises:
        IndexError: the table has no room.
    """
    keys, marks, following, heads, sizes = table
    count, buckets, power = sizes[0], sizes[1], sizes[2]
    out = np.zeros(wanted.shape[0], np.bool_)
    for i in range(wanted.shape[0]):
        bucket, entry = _find(wanted[i], keys, following, heads, buckets, power)
        if entry != 0:
            out[i] = marks[entry - 1] & mark == 0
            marks[entry - 1] |= mark
            continue
        if count == keys.shape[0]:
            raise IndexError("a table of marks has no room for another key")
        out[i] = True
        keys[count] = wanted[i]
        marks[count] = mark
        following[count] = heads[bucket]
        count += 1
        heads[bucket] = count
        if count > buckets:
            entry, heads[buckets - power] = heads[buckets - power], 0
            while entry != 0:
                after = following[entry - 1]
                to = np.int64(keys[entry - 1] & np.uint64(2 * power - 1))
                following[entry - 1] = heads[to]
                heads[to] = entry
                entry = after
            buckets += 1
            if buckets == 2 * power:
                power = buckets
    sizes[0], sizes[1], sizes[2] = count, buckets, power
    return out
