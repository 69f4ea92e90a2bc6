"""Avro records into columns: one compiled pass over a block, for any schema.

A schema is a program of few instructions (`schemas.avro.layout`), one row of `program` each: a code and three numbers.
The pass runs it once per record. It is not compiled per schema, since a new schema may come with any record.

Invariant: a record is DECODED only if `schemas.avro.rules.AvroRules` returns the same values for it. A record that is
bad or rare is UNSURE, and is left to them.

No instruction checks each byte against the record's end. A read of fixed size may go a little beyond it, into the next
record or the padding behind the block (`PADDING`). All that moves further is checked, and at last the position must be
the record's end.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from schemas.codecs.kernels.scan import DECODED, UNSURE, is_text, pack_span, scan_iso
from schemas.columns import I64, U8, Mask
from schemas.compiled import compiled

MAX_DEPTH: Final = 16
"""The most arrays and maps within each other."""

# The codes, with their numbers a, b, c. `slot` is a column's.
END: Final = 0
JUMP: Final = 1  # a: where to
SKIP_LONG: Final = 2
SKIP_BYTES: Final = 3
SKIP_FIXED: Final = 4  # a: bytes
BRANCH: Final = 5  # a: branches; so many JUMPs follow
NULL: Final = 6  # slot
LONG: Final = 7  # slot; b: INT for a number of 32 bits
LONG_AS_DOUBLE: Final = 8  # slot; b: INT for a number of 32 bits
FLOAT: Final = 9  # slot
DOUBLE: Final = 10  # slot
BOOLEAN: Final = 11  # slot
STRING: Final = 12  # slot
TIME_TEXT: Final = 13  # slot
SYMBOL: Final = 14  # slot; b: the first symbol's number, c: symbols
DECIMAL: Final = 15  # slot; b: scale, c: bytes, -1 where a length precedes
DEFAULT: Final = 16  # slot; b: the word
BEGIN: Final = 17  # of an array or map
NEXT: Final = 18  # a: where to after the last item
IF_ITEM: Final = 19  # a: the item's place, b: where to otherwise
IF_KEY: Final = 20  # a: the key's number among the texts, b: where to otherwise
STOP: Final = 21  # what follows is not for this pass
SCALED_LONG: Final = 22  # slot; divided by b, multiplied by c; if c is not 1, a number of 32 bits
ITEM: Final = 23  # an element begins; a: its kind
ITEM_END: Final = 24  # the last one of kind a
NO_ITEMS: Final = 25  # kinds from a to before b: there are none

INT: Final = 1

_POWERS: Final = np.array([10.0**e for e in range(23)])
_EXACT: Final = np.int64(1 << 53)


@compiled
def _long(data: U8, p: int) -> tuple[int, np.int64]:
    """The number at `p`: the position after it, or -1, and its value."""
    byte = np.uint64(data[p])
    found = byte & np.uint64(0x7F)
    p += 1
    shift = np.uint64(7)
    while byte >= np.uint64(0x80):
        if shift > np.uint64(63):
            return -1, np.int64(0)
        byte = np.uint64(data[p])
        found |= (byte & np.uint64(0x7F)) << shift
        p += 1
        shift += np.uint64(7)
    return p, np.int64(found >> np.uint64(1)) ^ -np.int64(found & np.uint64(1))


@compiled
def _is_int(value: np.int64) -> bool:
    """Whether a number has 32 bits."""
    return bool(np.int64(-2147483648) <= value <= np.int64(2147483647))


@compiled
def _same_text(data: U8, p: int, length: int, span: int) -> bool:
    """Whether a text is the one that a span means."""
    begin = span >> 32
    if length != (span & 0xFFFFFFFF) >> 1:
        return False
    k = 0
    while k < length and data[p + k] == data[begin + k]:
        k += 1
    return k == length


@compiled
def decode_avro(
    data: U8,
    rows: I64,
    begins: I64,
    ends: I64,
    program: I64,
    texts: I64,
    words: I64,
    floats: npt.NDArray[np.float64],
    valid: Mask,
    status: U8,
    items_found: I64,
) -> int:
    """Decode some records of a block.

    Args:
        data: (bytes,) the block, PADDING, and the texts.
        rows: (n,) the records' numbers.
        begins, ends: (records,) where each record's Avro begins and ends.
        program: (instructions, 4).
        texts: (t,) spans of the symbols of enums and the keys of maps.
        words, floats, valid, status: as of `slots.Slots`; DECODED or UNSURE is set for each of `rows`.
        items_found: (room, 4) out, the elements of arrays in records that are DECODED: kind, row, begin, end.

    Returns:
        how many elements there are. If that is more than there is room for, the first ones are there.
    """
    room = len(items_found)
    found = 0
    left = np.zeros(MAX_DEPTH, np.int64)
    place = np.zeros(MAX_DEPTH, np.int64)
    number = np.empty(1, np.uint64)
    as_double = number.view(np.float64)
    half = np.empty(1, np.uint32)
    as_single = half.view(np.float32)
    for i in range(len(rows)):
        row = rows[i]
        p = begins[row]
        end = ends[row]
        pc = 0
        depth = -1
        items = 0
        first = found
        status[row] = UNSURE
        while True:
            code = program[pc, 0]
            a = program[pc, 1]
            pc += 1
            if code == LONG:
                p, value = _long(data, p)
                if p < 0 or (program[pc - 1, 2] == INT and not _is_int(value)):
                    break
                words[a, row] = value
                valid[a, row] = True
            elif code == STRING:
                p, length = _long(data, p)
                if p < 0 or length < 0 or length > end - p:
                    break
                words[a, row] = pack_span(p, length, False)
                valid[a, row] = True
                wide = np.uint8(0)
                for k in range(p, p + length):
                    wide |= data[k]
                if wide >= 0x80 and not is_text(data, p, p + length):
                    break
                p += length
            elif code == DOUBLE:
                bits = np.uint64(0)
                for k in range(8):
                    bits |= np.uint64(data[p + k]) << np.uint64(8 * k)
                number[0] = bits
                if not np.isfinite(as_double[0]):
                    break
                floats[a, row] = as_double[0]
                valid[a, row] = True
                p += 8
            elif code == BRANCH:
                p, branch = _long(data, p)
                if p < 0 or branch < 0 or branch >= a:
                    break
                pc = program[pc + branch, 1]
            elif code == JUMP:
                pc = a
            elif code == NULL:
                words[a, row] = 0
                valid[a, row] = False
            elif code == LONG_AS_DOUBLE:
                p, value = _long(data, p)
                if p < 0 or (program[pc - 1, 2] == INT and not _is_int(value)):
                    break
                floats[a, row] = np.float64(value)
                valid[a, row] = True
            elif code == FLOAT:
                single = np.uint32(0)
                for k in range(4):
                    single |= np.uint32(data[p + k]) << np.uint32(8 * k)
                half[0] = single
                if not np.isfinite(as_single[0]):
                    break
                floats[a, row] = np.float64(as_single[0])
                valid[a, row] = True
                p += 4
            elif code == BOOLEAN:
                words[a, row] = 1 if data[p] != 0 else 0
                valid[a, row] = True
                p += 1
            elif code == SKIP_LONG:
                p, _ = _long(data, p)
                if p < 0:
                    break
            elif code == SKIP_BYTES:
                p, length = _long(data, p)
                if p < 0 or length < 0 or length > end - p:
                    break
                p += length
            elif code == SKIP_FIXED:
                if a > end - p:
                    break
                p += a
            elif code == SYMBOL:
                p, symbol = _long(data, p)
                if p < 0 or symbol < 0 or symbol >= program[pc - 1, 3]:
                    break
                words[a, row] = texts[program[pc - 1, 2] + symbol]
                valid[a, row] = True
            elif code == TIME_TEXT:
                p, length = _long(data, p)
                if p < 0 or length < 0 or length > end - p:
                    break
                good, at = scan_iso(data, p, p + length)
                if not good:
                    break
                words[a, row] = at
                valid[a, row] = True
                p += length
            elif code == DECIMAL:
                length = program[pc - 1, 3]
                if length < 0:
                    p, length = _long(data, p)
                if p < 0 or length < 1 or length > 8 or length > end - p:
                    break
                unscaled = np.int64(data[p])
                if unscaled >= 128:
                    unscaled -= 256
                for k in range(1, length):
                    unscaled = (unscaled << 8) | np.int64(data[p + k])
                if unscaled > _EXACT or unscaled < -_EXACT or program[pc - 1, 2] > 22:
                    break
                floats[a, row] = np.float64(unscaled) / _POWERS[program[pc - 1, 2]]
                valid[a, row] = True
                p += length
            elif code == SCALED_LONG:
                p, value = _long(data, p)
                if p < 0 or (program[pc - 1, 3] != 1 and not _is_int(value)):
                    break
                words[a, row] = value // program[pc - 1, 2] * program[pc - 1, 3]
                valid[a, row] = True
            elif code == DEFAULT:
                words[a, row] = program[pc - 1, 2]
                valid[a, row] = True
            elif code == BEGIN:
                depth += 1
                left[depth] = 0
                place[depth] = -1
            elif code == NEXT:
                if left[depth] == 0:
                    p, count = _long(data, p)
                    if p < 0 or p > end:
                        break
                    if count < 0:
                        p, _ = _long(data, p)
                        if p < 0:
                            break
                        count = -count
                    if count < 0 or count > end - p:
                        break
                    items += count
                    if items > end - begins[row]:
                        break  # items of nothing
                    left[depth] = count
                if left[depth] == 0:
                    depth -= 1
                    pc = a
                else:
                    left[depth] -= 1
                    place[depth] += 1
            elif code == IF_ITEM:
                if place[depth] != a:
                    pc = program[pc - 1, 2]
            elif code == IF_KEY:
                p, length = _long(data, p)
                if p < 0 or length < 0 or length > end - p:
                    break
                if not _same_text(data, p, length, texts[a]):
                    pc = program[pc - 1, 2]
                p += length
            elif code == ITEM:
                if found < room:
                    items_found[found, 0] = a
                    items_found[found, 1] = row
                    items_found[found, 2] = p
                found += 1
            elif code == ITEM_END:
                if found <= room:
                    last = found - 1
                    while items_found[last, 0] != a:
                        last -= 1
                    items_found[last, 3] = p
            elif code == NO_ITEMS:
                # Not so if an equal key of a map has left some.
                some = False
                for k in range(first, min(found, room)):
                    some |= a <= items_found[k, 0] < program[pc - 1, 2]
                if some:
                    break
            elif code == END:
                if p == end:
                    status[row] = DECODED
                break
            else:
                break
            if p > end:
                break
        if status[row] != DECODED:
            found = first
    return found


@compiled
def schema_ids(data: U8, begins: I64, ends: I64, ids: I64) -> None:
    """Read the number of the schema from the frame in front of each record: a zero byte, and four bytes, the highest
    first. -1 where there is no frame."""
    for i in range(len(begins)):
        p = begins[i]
        if ends[i] - p < 5 or data[p] != 0:
            ids[i] = -1
        else:
            found = np.int64(data[p + 1]) << 24 | np.int64(data[p + 2]) << 16
            ids[i] = found | np.int64(data[p + 3]) << 8 | np.int64(data[p + 4])
