"""Protobuf records into columns: one compiled pass over a block, for any schema.

What is wanted of a schema is a table (`schemas.protobuf.layout`): for each message type on the way to a column, which
fields matter, and what to do with them. The pass looks each field's number up there, and skips what is not in it.

Invariant: a record is DECODED only if `schemas.protobuf.rules.ProtobufRules` returns the same values for it. A record
that is bad or rare is UNSURE, and is left to them: a message that is there twice, and so is merged; two members of one
oneof; a field of another wire type than its schema says; a group.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from schemas.codecs.kernels.scan import DECODED, UNSURE, is_text, pack_span
from schemas.columns import I64, U8, Mask
from schemas.compiled import compiled

PADDING: Final = 16
"""Bytes needed behind the last record: no field of fixed size, or number, is longer."""

MAX_DEPTH: Final = 32
"""The most messages within each other on the way to a column."""

# Columns of the table of fields.
NUMBER: Final = 0
WIRE: Final = 1
ACTION: Final = 2
SLOT: Final = 3  # or, of MESSAGE, the number of its type
MORE: Final = 4  # of SYMBOL, the first text; of SYMBOL and ENUM, nothing else
COUNT: Final = 5  # of SYMBOL, how many texts there are
ONEOF: Final = 6  # which it is a member of; -1 for none
WIDTH: Final = 7

# Wire types.
VARINT: Final = 0
FIXED_64: Final = 1
LENGTH: Final = 2
FIXED_32: Final = 5

# Actions. Whole numbers go to a slot as they are, or as a double.
SKIP: Final = 0
MESSAGE: Final = 1
INT_64: Final = 2
UINT_64: Final = 3
INT_32: Final = 4
UINT_32: Final = 5
SINT_64: Final = 6
SINT_32: Final = 7
BOOL: Final = 8
SYMBOL: Final = 9
S_FIXED_64: Final = 10
FIXED_64_BITS: Final = 11
S_FIXED_32: Final = 12
FIXED_32_BITS: Final = 13
FLOAT: Final = 14
DOUBLE: Final = 15
TEXT: Final = 16
SECONDS: Final = 17
NANOS: Final = 18
ELEMENTS: Final = 19  # of a repeated field; SLOT is their kind

AS_DOUBLE: Final = 64
"""Added to the action of a whole number whose column is a DOUBLE."""

_MAX_SECONDS: Final = np.int64(1) << np.int64(50)
_LOW: Final = np.uint64(0xFFFFFFFF)

BARE: Final = 0
"""The number of a field whose value is the whole record, without a tag: the one field of type 0."""


@compiled
def _varint(data: U8, p: int) -> tuple[int, np.uint64]:
    """The number at `p`: the position after it, or -1, and its value."""
    byte = np.uint64(data[p])
    found = byte & np.uint64(0x7F)
    p += 1
    shift = np.uint64(7)
    while byte >= np.uint64(0x80):
        if shift > np.uint64(63):
            return -1, np.uint64(0)
        byte = np.uint64(data[p])
        found |= (byte & np.uint64(0x7F)) << shift
        p += 1
        shift += np.uint64(7)
    return p, found


@compiled
def _fixed(data: U8, p: int, size: int) -> np.uint64:
    """The number of some bytes, the lowest first."""
    found = np.uint64(0)
    for k in range(size):
        found |= np.uint64(data[p + k]) << np.uint64(8 * k)
    return found


@compiled
def _signed_32(value: np.uint64) -> np.int64:
    """The low 32 bits as a number with a sign."""
    low = np.int64(value & _LOW)
    return low - (np.int64(1) << np.int64(32)) if low >> np.int64(31) else low


@compiled
def _unzigzag(value: np.uint64) -> np.int64:
    return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))


@compiled
def _add_element(items_found: I64, found: int, kind: int, row: int, begin: int, end: int) -> int:
    """Note an element, if there is room; return how many there are."""
    if found < len(items_found):
        items_found[found, 0] = kind
        items_found[found, 1] = row
        items_found[found, 2] = begin
        items_found[found, 3] = end
    return found + 1


@compiled
def decode_protobuf(
    data: U8,
    rows: I64,
    begins: I64,
    ends: I64,
    fields: I64,
    ranges: I64,
    defaults: I64,
    default_ranges: I64,
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
        begins, ends: (records,) where each record's message begins and ends.
        fields: (f, WIDTH) the fields of all message types, those of a type together.
        ranges: (m + 1,) fields of type i are ranges[i]:ranges[i + 1]; type 0 is the record's.
        defaults: (d, 2) slots that a message sets by being there, and the number of a text, or -1 for zero.
        default_ranges: (m + 1,) as `ranges`.
        texts: (t,) spans of the symbols of enums.
        words, floats, valid, status: as of `slots.Slots`; DECODED or UNSURE is set for each of `rows`.
        items_found: (room, 4) out, the elements of repeated fields in records that are DECODED: kind, row, begin, end.

    Returns:
        how many elements there are. If that is more than there is room for, the first ones are there.
    """
    found = 0
    bare = len(fields) > 0 and fields[0, NUMBER] == BARE
    until = np.zeros(MAX_DEPTH, np.int64)
    type_at = np.zeros(MAX_DEPTH, np.int64)
    messages = len(ranges) - 1
    seen = np.zeros(messages, np.bool_)
    oneofs = np.zeros(len(fields) + 1, np.bool_)
    slots = len(words)
    seconds = np.zeros(slots, np.int64)
    nanos = np.zeros(slots, np.int64)
    number = np.empty(1, np.uint64)
    as_double = number.view(np.float64)
    half = np.empty(1, np.uint32)
    as_single = half.view(np.float32)
    for i in range(len(rows)):
        row = rows[i]
        p = begins[row]
        end = ends[row]
        status[row] = UNSURE
        first = found
        seen[:] = False
        oneofs[:] = False
        depth = 0
        until[0] = end
        type_at[0] = 0
        entered = 0
        good = True
        while good:
            if entered >= 0:
                for k in range(default_ranges[entered], default_ranges[entered + 1]):
                    slot = defaults[k, 0]
                    words[slot, row] = texts[defaults[k, 1]] if defaults[k, 1] >= 0 else 0
                    valid[slot, row] = True
                    seconds[slot] = 0
                    nanos[slot] = 0
                entered = -1
            while depth > 0 and p == until[depth]:
                depth -= 1
            if p >= until[depth]:
                if depth == 0 and p == end:
                    status[row] = DECODED
                break
            if bare:
                wire = fields[0, WIRE]
                field = np.int64(BARE)
            else:
                p, tag = _varint(data, p)
                if p < 0 or p > until[depth] or tag > _LOW:
                    break
                wire = np.int64(tag & np.uint64(7))
                field = np.int64(tag >> np.uint64(3))
                if field == 0:
                    break
            begin = p
            at = np.int64(-1)
            for k in range(ranges[type_at[depth]], ranges[type_at[depth] + 1]):
                if fields[k, NUMBER] == field:
                    at = np.int64(k)
                    break
            action = np.int64(SKIP)
            slot = np.int64(0)
            if at >= 0:
                action = fields[at, ACTION]
                if fields[at, WIRE] != wire and (action != ELEMENTS or wire != LENGTH):
                    break
                slot = fields[at, SLOT]
                oneof = fields[at, ONEOF]
                if oneof >= 0:
                    if oneofs[oneof]:
                        break
                    oneofs[oneof] = True
            bits = np.uint64(0)
            length = np.int64(0)
            if wire == VARINT:
                p, bits = _varint(data, p)
                if p < 0:
                    break
            elif bare and wire == LENGTH:
                length = end - p
            elif wire == LENGTH:
                p, bits = _varint(data, p)
                if p < 0 or bits > np.uint64(until[depth] - p if until[depth] > p else 0):
                    break
                length = np.int64(bits)
            elif wire == FIXED_64:
                bits = _fixed(data, p, 8)
                p += 8
            elif wire == FIXED_32:
                bits = _fixed(data, p, 4)
                p += 4
            else:
                break
            if p > until[depth]:
                break
            if action == SKIP:
                p += length
                continue
            if action == ELEMENTS:
                own = fields[at, WIRE]
                if wire != LENGTH:
                    length = np.int64(0)
                stop = p + length
                if own == wire:
                    if wire == LENGTH:
                        begin = p
                    p = stop
                    found = _add_element(items_found, found, slot, row, begin, p)
                    continue
                while 0 <= p < stop:  # packed
                    begin = p
                    if own == VARINT:
                        p, _ = _varint(data, p)
                    else:
                        p += 8 if own == FIXED_64 else 4
                    found = _add_element(items_found, found, slot, row, begin, p)
                if p != stop:
                    break
                continue
            if action == MESSAGE:
                if seen[slot] or depth + 1 >= MAX_DEPTH:
                    break
                seen[slot] = True
                depth += 1
                until[depth] = p + length
                type_at[depth] = slot
                entered = slot
                continue
            if action == TEXT:
                wide = np.uint8(0)
                for k in range(p, p + length):
                    wide |= data[k]
                if wide >= 0x80 and not is_text(data, p, p + length):
                    break
                words[slot, row] = pack_span(p, length, False)
                p += length
            elif action == DOUBLE:
                number[0] = bits
                if not np.isfinite(as_double[0]):
                    break
                floats[slot, row] = as_double[0]
            elif action == FLOAT:
                half[0] = np.uint32(bits)
                if not np.isfinite(as_single[0]):
                    break
                floats[slot, row] = np.float64(as_single[0])
            elif action == SYMBOL:
                symbol = _signed_32(bits)
                # Symbols are in order from 0; one that is not among them has a text that only the rules know.
                if symbol < 0 or symbol >= fields[at, COUNT]:
                    break
                words[slot, row] = texts[fields[at, MORE] + symbol]
            elif action == BOOL:
                words[slot, row] = 1 if bits != np.uint64(0) else 0
            elif action in (SECONDS, NANOS):
                if action == SECONDS:
                    seconds[slot] = np.int64(bits)
                else:
                    nanos[slot] = _signed_32(bits)
                if seconds[slot] > _MAX_SECONDS or seconds[slot] < -_MAX_SECONDS:
                    break
                words[slot, row] = seconds[slot] * 1000 + nanos[slot] // 1_000_000
            else:
                kind = action % AS_DOUBLE
                value = np.int64(bits)
                if kind in (UINT_64, FIXED_64_BITS):
                    if value < 0:
                        break
                elif kind in (INT_32, S_FIXED_32):
                    value = _signed_32(bits)
                elif kind in (UINT_32, FIXED_32_BITS):
                    value = np.int64(bits & _LOW)
                elif kind == SINT_64:
                    value = _unzigzag(bits)
                elif kind == SINT_32:
                    value = _unzigzag(bits & _LOW)
                if action >= AS_DOUBLE:
                    floats[slot, row] = np.float64(value)
                else:
                    words[slot, row] = value
            valid[slot, row] = True
        if status[row] != DECODED:
            found = first
    return found
