"""Values at one place in texts of JSON: one compiled pass over a column of them.

Invariant: a text is DECODED only if `schemas.nested.json_values` finds the same value in it by the rules. One that is
no JSON, or is rare (an escaped key on the way, half of a surrogate pair, nesting beyond 62 levels), is UNSURE, and left
to the rules.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from schemas.codecs.kernels.json_records import LEFT_TO_RULES, NOTHING, scan_string, skip_value
from schemas.codecs.kernels.scan import (
    BOOLEAN,
    DECODED,
    DOUBLE,
    STRING,
    UNSURE,
    as_double,
    as_integer,
    literal,
    pack_span,
    scan_number,
    skip_space,
)
from schemas.columns import I64, U8, Mask
from schemas.compiled import compiled

RAW: Final = 9
"""The code of a value as it is written, beside those of types in `schemas.codecs.kernels.scan`."""


@compiled
def write_lines(data: U8, offsets: I64, valid: Mask, out: U8) -> None:
    """Write texts as lines; a newline in a text, which in JSON can only be white space, becomes a carriage return.

    Args:
        data, offsets, valid: (n,) texts, as a `schemas.columns.Column` has them; a null becomes an empty line.
        out: with room for all texts and n newlines.
    """
    q = 0
    for row in range(len(valid)):
        if valid[row]:
            for p in range(offsets[row], offsets[row + 1]):
                out[q] = np.uint8(13) if data[p] == 10 else data[p]
                q += 1
        out[q] = np.uint8(10)
        q += 1


@compiled
def _member(data: U8, p: int, names: U8, begin: int, end: int) -> int:
    """The last member called names[begin:end] of the value at `p`: its position, or NOTHING, or LEFT_TO_RULES.

    The value is valid.
    """
    found = NOTHING
    if data[p] != 123:
        return found
    p = skip_space(data, p + 1)
    while data[p] != 125:
        start = p + 1
        p, escaped = scan_string(data, start, False)
        if escaped:
            return LEFT_TO_RULES
        same = p - start == end - begin
        k = 0
        while same and k < end - begin:
            same = data[start + k] == names[begin + k]
            k += 1
        p = skip_space(data, skip_space(data, p + 1) + 1)
        if same:
            found = p
        p = skip_space(data, skip_value(data, p, False))
        if data[p] == 44:
            p = skip_space(data, p + 1)
    return found


@compiled
def _element(data: U8, p: int, place: int) -> int:
    """The element at a place of the value at `p`, which is valid: its position, or NOTHING."""
    if data[p] != 91:
        return NOTHING
    p = skip_space(data, p + 1)
    while data[p] != 93:
        if place == 0:
            return p
        place -= 1
        p = skip_space(data, skip_value(data, p, False))
        if data[p] == 44:
            p = skip_space(data, p + 1)
    return NOTHING


@compiled
def decode_json_values(
    data: U8,
    ascii_only: bool,
    names: U8,
    name_starts: I64,
    places: I64,
    types: U8,
    words: I64,
    floats: npt.NDArray[np.float64],
    valid: npt.NDArray[np.bool_],
    status: U8,
    starts: I64,
    hard: I64,
) -> int:
    """Find the values.

    A value that is not of the type is not valid, and neither is one that is not there.

    Args:
        data: the texts as `write_lines` makes them, shorter than 2**31; `ascii_only` is False.
        names, name_starts: the names on the way: of step k names[name_starts[k]:name_starts[k + 1]].
        places: (steps,) the places in arrays on the way; NOTHING where a step is a name.
        types: (1,) the type. A STRING is also the text of a number or of a truth value. With RAW every value but null
            is there, as it is written.
        words, floats, valid, status, starts, hard: (1, texts), and filled as by `json_records.decode_json`.

    Returns:
        how many entries of `hard` are filled.

    Cost: O(bytes * (steps + 1)).
    """
    kind = types[0]
    hards = 0
    p = 0
    for row in range(len(status)):
        starts[row] = p
        at = skip_space(data, p)
        p = at
        status[row] = DECODED
        if data[p] == 10:
            at = NOTHING
        else:
            p = skip_value(data, at, ascii_only)
            p = LEFT_TO_RULES if p < 0 else skip_space(data, p)
            if p < 0 or data[p] != 10:
                p = max(p, starts[row])
                while data[p] != 10:
                    p += 1
                at = LEFT_TO_RULES
        for step in range(len(places)):
            if at >= 0:
                if places[step] == NOTHING:
                    at = _member(data, at, names, name_starts[step], name_starts[step + 1])
                else:
                    at = _element(data, at, places[step])
        p += 1
        if at == LEFT_TO_RULES:
            status[row] = UNSURE
        if at < 0:
            continue
        c = data[at]
        if kind == RAW:
            if c != 110:
                words[0, row] = pack_span(at, skip_value(data, at, ascii_only) - at, False)
                valid[0, row] = True
        elif c == 34:
            if kind == STRING:
                end, escaped = scan_string(data, at + 1, False)
                words[0, row] = pack_span(at + 1, end - at - 1, escaped)
                valid[0, row] = True
        elif c == 116 or c == 102:
            end, truth = literal(data, at)
            if kind == STRING:
                words[0, row] = pack_span(at, end - at, False)
                valid[0, row] = True
            elif kind == BOOLEAN:
                words[0, row] = truth
                valid[0, row] = True
        elif c != 110 and c != 123 and c != 91 and kind != BOOLEAN:
            end, decimal, negative, mantissa, power, digits = scan_number(data, at)
            if kind == STRING:
                words[0, row] = pack_span(at, end - at, False)
                valid[0, row] = True
            elif kind == DOUBLE:
                ok, number = as_double(decimal, negative, mantissa, power, digits)
                valid[0, row] = True
                if ok:
                    floats[0, row] = number
                else:
                    words[0, row] = pack_span(at, end - at, False)
                    hard[hards] = row
                    hards += 1
            elif not decimal:
                ok, value = as_integer(negative, mantissa, digits)
                if ok:
                    words[0, row] = value
                    valid[0, row] = True
    starts[len(status)] = p
    return hards
