"""Columns into Avro records: each pass writes one column, into all records of a block.

First the sizes of all values are added up by record, which gives the place of each record. Then the passes write the
columns in order; `at` is where the next value of each record goes. A nullable value begins with its branch of a union
with null: 0 and nothing more, or 1 and the value.
"""

from __future__ import annotations

import numpy as np

from schemas.columns import I64, U8, Mask
from schemas.compiled import compiled


@compiled
def _long_size(value: np.int64) -> int:
    """How many bytes a number takes."""
    left = np.uint64((value << np.int64(1)) ^ (value >> np.int64(63)))
    size = 1
    while left >= np.uint64(0x80):
        left >>= np.uint64(7)
        size += 1
    return size


@compiled
def _write_long(value: np.int64, out: U8, p: int) -> int:
    """Write a number at `p`; the position after it."""
    left = np.uint64((value << np.int64(1)) ^ (value >> np.int64(63)))
    while left >= np.uint64(0x80):
        out[p] = np.uint8(left & np.uint64(0x7F)) | np.uint8(0x80)
        left >>= np.uint64(7)
        p += 1
    out[p] = np.uint8(left)
    return p + 1


@compiled
def _write_branch(is_there: bool, nullable: bool, out: U8, p: int) -> int:
    """Write the branch of a value if it is `nullable`; the position after it."""
    if not nullable:
        return p
    out[p] = np.uint8(2) if is_there else np.uint8(0)
    return p + 1


@compiled
def add_long_sizes(values: I64, valid: Mask, nullable: bool, sizes: I64) -> None:
    """Add what each number takes to the size of its record.

    Args:
        values, valid: (n,)
        sizes: (n,) bytes.
    """
    for row in range(len(values)):
        if valid[row]:
            sizes[row] += _long_size(values[row])
        if nullable:
            sizes[row] += 1


@compiled
def write_longs(values: I64, valid: Mask, nullable: bool, out: U8, at: I64) -> None:
    """Write a column of whole numbers.

    Args:
        values, valid: (n,)
        out: (bytes,)
        at: (n,) where each goes; moved on.
    """
    for row in range(len(values)):
        p = _write_branch(valid[row], nullable, out, at[row])
        if valid[row]:
            p = _write_long(values[row], out, p)
        at[row] = p


@compiled
def write_doubles(bits: I64, valid: Mask, nullable: bool, out: U8, at: I64) -> None:
    """Write a column of doubles, given as their bits; else as `write_longs`."""
    for row in range(len(bits)):
        p = _write_branch(valid[row], nullable, out, at[row])
        if valid[row]:
            left = np.uint64(bits[row])
            for _ in range(8):
                out[p] = np.uint8(left & np.uint64(0xFF))
                left >>= np.uint64(8)
                p += 1
        at[row] = p


@compiled
def write_booleans(values: Mask, valid: Mask, nullable: bool, out: U8, at: I64) -> None:
    """Write a column of truth values; else as `write_longs`."""
    for row in range(len(values)):
        p = _write_branch(valid[row], nullable, out, at[row])
        if valid[row]:
            out[p] = np.uint8(1) if values[row] else np.uint8(0)
            p += 1
        at[row] = p


@compiled
def add_text_sizes(offsets: I64, valid: Mask, nullable: bool, sizes: I64) -> None:
    """Add what each text takes to the size of its record.

    Args:
        offsets: (n + 1,) as a `schemas.columns.Column` has them.
    """
    for row in range(len(valid)):
        if valid[row]:
            length = offsets[row + 1] - offsets[row]
            sizes[row] += _long_size(length) + length
        if nullable:
            sizes[row] += 1


@compiled
def write_texts(data: U8, offsets: I64, valid: Mask, nullable: bool, out: U8, at: I64) -> None:
    """Write a column of texts; else as `write_longs`.

    Args:
        data: (bytes,) UTF-8.
        offsets: (n + 1,) text i is data[offsets[i]:offsets[i + 1]].
    """
    for row in range(len(valid)):
        p = _write_branch(valid[row], nullable, out, at[row])
        if valid[row]:
            begin, end = offsets[row], offsets[row + 1]
            p = _write_long(end - begin, out, p)
            for k in range(begin, end):
                out[p] = data[k]
                p += 1
        at[row] = p


@compiled
def write_same(data: U8, out: U8, at: I64) -> None:
    """Write the same bytes into each record."""
    for row in range(len(at)):
        p = at[row]
        for k in range(len(data)):
            out[p] = data[k]
            p += 1
        at[row] = p
