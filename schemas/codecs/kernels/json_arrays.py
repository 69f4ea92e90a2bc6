"""Splits JSON arrays, which are known to be valid, into their elements: one compiled pass over a column of them."""

from __future__ import annotations

from typing import Final

import numpy as np

from schemas.columns import I64, U8, Mask
from schemas.compiled import compiled

NOT_AN_ARRAY: Final = -1


@compiled
def _after_element(data: U8, p: int) -> int:
    """The position of the comma or bracket behind the element that begins at `p` or after white space there."""
    depth = 0
    while True:
        c = data[p]
        if c == 34:
            p += 1
            while data[p] != 34:
                p += 2 if data[p] == 92 else 1
        elif c == 91 or c == 123:
            depth += 1
        elif depth == 0 and (c == 44 or c == 93):
            return p
        elif c == 93 or c == 125:
            depth -= 1
        p += 1


@compiled
def _first(data: U8, p: int) -> int:
    """The first position at or after `p` without white space."""
    while data[p] == 32 or data[p] == 9 or data[p] == 10 or data[p] == 13:
        p += 1
    return p


@compiled
def count_elements(data: U8, offsets: I64, valid: Mask, counts: I64) -> None:
    """Count the elements of each array.

    Args:
        data, offsets, valid: (n,) JSON values, as a `schemas.columns.Column` of texts has them; a null has none.
        counts: (n,) out; NOT_AN_ARRAY where a value is none.
    """
    for row in range(len(valid)):
        counts[row] = 0
        if not valid[row]:
            continue
        p = offsets[row]
        if data[p] != 91:
            counts[row] = NOT_AN_ARRAY
            continue
        p = _first(data, p + 1)
        while data[p] != 93:
            counts[row] += 1
            p = _after_element(data, p)
            if data[p] == 44:
                p += 1


@compiled
def write_elements(data: U8, offsets: I64, counts: I64, begin: U8, end: U8, out: U8) -> int:
    """Write each element as a line, between the same bytes.

    Args:
        data, offsets, counts: as `count_elements` has them.
        out: with room for all bytes of the arrays, and `begin`, `end` and a newline for each element.

    Returns:
        how many bytes have been written.
    """
    q = 0
    for row in range(len(counts)):
        p = offsets[row] + 1
        for _ in range(counts[row]):
            p = _first(data, p)
            for k in range(len(begin)):
                out[q] = begin[k]
                q += 1
            stop = _after_element(data, p)
            while p < stop:
                out[q] = np.uint8(13) if data[p] == 10 else data[p]
                q += 1
                p += 1
            for k in range(len(end)):
                out[q] = end[k]
                q += 1
            out[q] = np.uint8(10)
            q += 1
            p = stop + 1
    return q
