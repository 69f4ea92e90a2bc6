"""CSV records into columns: one compiled pass over a block (RFC 4180, comma, double quotes).

A field that begins with a quote ends at the next quote that is not doubled, and may contain commas and
newlines; in other fields a quote is a character like any other. A carriage return before the newline that
ends a record belongs to the line end.

Invariant, as in `kernels.json_records`: a record is DECODED only if `csv_codec.CsvRules` returns the same values.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from schemas.codecs.kernels.scan import (
    BIGINT,
    BLANK,
    BOOLEAN,
    DECODED,
    DOUBLE,
    STRING,
    UNSURE,
    as_double,
    as_integer,
    literal,
    pack_span,
    scan_iso,
    scan_number,
)
from schemas.columns import I64, U8
from schemas.compiled import compiled


@compiled
def scan_records(data: U8) -> tuple[int, int]:
    """How many whole records the buffer has, and where the last of them ends (after its newline)."""
    n = len(data)
    count = 0
    end = 0
    p = 0
    at_start = True
    while p < n:
        c = data[p]
        p += 1
        if at_start and c == 34:
            while p < n:
                if data[p] != 34:
                    p += 1
                elif p + 1 < n and data[p + 1] == 34:
                    p += 2
                else:
                    break
            p += 1
            at_start = False
        elif c == 10:
            count += 1
            end = p
            at_start = True
        else:
            at_start = c == 44
    return count, end


@compiled
def _decode_field(
    data: U8,
    start: int,
    end: int,
    doubled: bool,
    kind: int,
    f: int,
    row: int,
    words: I64,
    floats: npt.NDArray[np.float64],
) -> tuple[bool, bool]:
    """Store the field in data[start:end]: whether it was certainly valid, and whether its double is hard to parse."""
    if kind == STRING:
        words[f, row] = pack_span(start, end - start, doubled)
        return True, False
    if doubled or start == end:
        return False, False
    if kind == BOOLEAN:
        p, truth = literal(data, start)
        words[f, row] = truth
        return p == end and truth >= 0, False
    p, decimal, negative, mantissa, power, digits = scan_number(data, start)
    if kind == DOUBLE:
        if p != end:
            return False, False
        ok, number = as_double(decimal, negative, mantissa, power, digits)
        if ok:
            floats[f, row] = number
            return True, False
        words[f, row] = pack_span(start, end - start, False)
        return True, True
    if p == end and not decimal:
        ok, value = as_integer(negative, mantissa, digits)
    elif kind == BIGINT:
        ok, value = False, 0
    else:
        ok, value = scan_iso(data, start, end)
    words[f, row] = value
    return ok, False


@compiled
def decode_csv(
    data: U8,
    ascii_only: bool,
    field_of: I64,
    types: U8,
    words: I64,
    floats: npt.NDArray[np.float64],
    valid: npt.NDArray[np.bool_],
    status: U8,
    starts: I64,
    hard: I64,
) -> int:
    """Decode a block of whole records, each ended by a newline.

    Args:
        field_of: (header columns,) which field a column holds, -1 for none.
        others: as in `kernels.json_records.decode_json`.

    Returns:
        how many entries of `hard` are filled.

    Cost: O(bytes), one pass.
    """
    count = len(status)
    columns = len(field_of)
    n = len(data)
    hards = 0
    p = 0
    for row in range(count):
        starts[row] = p
        ok = True
        if data[p] == 10 or (data[p] == 13 and data[p + 1] == 10):
            p += 1 if data[p] == 10 else 2
            status[row] = BLANK
            continue
        column = 0
        while True:
            quoted = data[p] == 34
            doubled = False
            if quoted:
                p += 1
                start = p
                while p < n:
                    c = data[p]
                    if c == 34:
                        if p + 1 < n and data[p + 1] == 34:
                            doubled = True
                            p += 2
                            continue
                        break
                    if ascii_only and c >= 128:
                        ok = False
                    p += 1
                end = p
                p += 1
                if p < n and data[p] == 13 and data[p + 1] == 10:
                    p += 1
                if p >= n:
                    ok = False
                elif data[p] != 44 and data[p] != 10:
                    ok = False
                    while data[p] != 44 and data[p] != 10:
                        p += 1
            else:
                start = p
                c = data[p]
                while c != 44 and c != 10:
                    if ascii_only and c >= 128:
                        ok = False
                    p += 1
                    c = data[p]
                end = p
                if c == 10 and end > start and data[end - 1] == 13:
                    end -= 1
            if column < columns and ok:
                f = field_of[column]
                if f >= 0 and (quoted or end > start):
                    ok, is_hard = _decode_field(data, start, end, doubled, types[f], f, row, words, floats)
                    valid[f, row] = ok
                    if is_hard:
                        hard[hards] = f * count + row
                        hards += 1
            column += 1
            if p >= n:
                break
            p += 1
            if data[p - 1] == 10:
                break
        status[row] = DECODED if ok and column == columns else UNSURE
    starts[count] = min(p, n)
    return hards
