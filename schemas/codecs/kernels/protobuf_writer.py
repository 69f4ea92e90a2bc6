"""Columns into Protobuf records: each pass writes one column, into all records of a block.

First the sizes of all fields are added up by record, which gives the place of each record. Then the passes write the
columns in order; `at` is where the next field of each record goes. A null is a field that is not there. Every field has
its tag in front, as `tag_size` bytes of `tag`, the lowest first.
"""

from __future__ import annotations

import numpy as np

from schemas.columns import I64, U8, Mask
from schemas.compiled import compiled

_MS = 1000
_NANOS = 1_000_000


@compiled
def _size(value: np.uint64) -> int:
    """How many bytes a number takes."""
    size = 1
    while value >= np.uint64(0x80):
        value >>= np.uint64(7)
        size += 1
    return size


@compiled
def _write(value: np.uint64, out: U8, p: int) -> int:
    """Write a number at `p`; the position after it."""
    while value >= np.uint64(0x80):
        out[p] = np.uint8(value & np.uint64(0x7F)) | np.uint8(0x80)
        value >>= np.uint64(7)
        p += 1
    out[p] = np.uint8(value)
    return p + 1


@compiled
def _write_tag(tag: U8, out: U8, p: int) -> int:
    for k in range(len(tag)):
        out[p + k] = tag[k]
    return p + len(tag)


@compiled
def _time_size(ms: np.int64) -> int:
    """How many bytes the message of a time takes: seconds and nanoseconds, each with a tag unless it is zero."""
    seconds, rest = ms // _MS, ms % _MS
    size = 0
    if seconds != 0:
        size += 1 + _size(np.uint64(seconds))
    if rest != 0:
        size += 1 + _size(np.uint64(rest * _NANOS))
    return size


@compiled
def add_number_sizes(values: I64, valid: Mask, tag_size: int, sizes: I64) -> None:
    """Add what each whole number takes to the size of its record.

    Args:
        values, valid: (n,)
        sizes: (n,) bytes.
    """
    for row in range(len(values)):
        if valid[row]:
            sizes[row] += tag_size + _size(np.uint64(values[row]))


@compiled
def write_numbers(values: I64, valid: Mask, tag: U8, out: U8, at: I64) -> None:
    """Write a column of whole numbers.

    Args:
        values, valid: (n,)
        tag: (t,)
        out: (bytes,)
        at: (n,) where each goes; moved on.
    """
    for row in range(len(values)):
        if valid[row]:
            at[row] = _write(np.uint64(values[row]), out, _write_tag(tag, out, at[row]))


@compiled
def write_reals(bits: I64, valid: Mask, tag: U8, out: U8, at: I64) -> None:
    """Write a column of doubles, given as their bits; else as `write_numbers`."""
    for row in range(len(bits)):
        if valid[row]:
            p = _write_tag(tag, out, at[row])
            left = np.uint64(bits[row])
            for _ in range(8):
                out[p] = np.uint8(left & np.uint64(0xFF))
                left >>= np.uint64(8)
                p += 1
            at[row] = p


@compiled
def write_truths(values: Mask, valid: Mask, tag: U8, out: U8, at: I64) -> None:
    """Write a column of truth values; else as `write_numbers`."""
    for row in range(len(values)):
        if valid[row]:
            p = _write_tag(tag, out, at[row])
            out[p] = np.uint8(1) if values[row] else np.uint8(0)
            at[row] = p + 1


@compiled
def add_time_sizes(values: I64, valid: Mask, tag_size: int, sizes: I64) -> None:
    """Add what each time, in milliseconds, takes as a message to the size of its record; else as `add_number_sizes`."""
    for row in range(len(values)):
        if valid[row]:
            sizes[row] += tag_size + 1 + _time_size(values[row])


@compiled
def write_times(values: I64, valid: Mask, tag: U8, out: U8, at: I64) -> None:
    """Write a column of times as messages `google.protobuf.Timestamp`; else as `write_numbers`."""
    for row in range(len(values)):
        if valid[row]:
            p = _write_tag(tag, out, at[row])
            out[p] = np.uint8(_time_size(values[row]))
            p += 1
            seconds, rest = values[row] // _MS, values[row] % _MS
            if seconds != 0:
                out[p] = np.uint8(8)
                p = _write(np.uint64(seconds), out, p + 1)
            if rest != 0:
                out[p] = np.uint8(16)
                p = _write(np.uint64(rest * _NANOS), out, p + 1)
            at[row] = p


@compiled
def add_string_sizes(offsets: I64, valid: Mask, tag_size: int, sizes: I64) -> None:
    """Add what each text takes to the size of its record.

    Args:
        offsets: (n + 1,) as a `schemas.columns.Column` has them.
    """
    for row in range(len(valid)):
        if valid[row]:
            length = offsets[row + 1] - offsets[row]
            sizes[row] += tag_size + _size(np.uint64(length)) + length


@compiled
def write_strings(data: U8, offsets: I64, valid: Mask, tag: U8, out: U8, at: I64) -> None:
    """Write a column of texts; else as `write_numbers`.

    Args:
        data: (bytes,) UTF-8.
        offsets: (n + 1,) text i is data[offsets[i]:offsets[i + 1]].
    """
    for row in range(len(valid)):
        if valid[row]:
            begin, end = offsets[row], offsets[row + 1]
            p = _write(np.uint64(end - begin), out, _write_tag(tag, out, at[row]))
            for k in range(begin, end):
                out[p] = data[k]
                p += 1
            at[row] = p
