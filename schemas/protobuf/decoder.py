"""Decodes Protobuf records into batches: `schemas.codecs.schema_decoder` with the tables of message types.

In the wire format of schema registries, the number of the schema is followed by the place of the message type in it:
how many numbers there are, and the numbers, of which `[0]` is written as one zero byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from google.protobuf.descriptor import Descriptor

from schemas.codecs.decoded import RecordError, Value
from schemas.codecs.kernels.avro_records import schema_ids
from schemas.codecs.kernels.protobuf_records import decode_protobuf
from schemas.codecs.schema_decoder import (
    FRAME,
    NO_ELEMENTS,
    RecordReader,
    SchemaDecoder,
    ValueReader,
    check_number,
    found_by,
)
from schemas.codecs.slots import Slots
from schemas.codecs.wanted import Wanted, wanted_arrays
from schemas.columns import I64, U8
from schemas.protobuf.descriptors import ProtobufSchema
from schemas.protobuf.layout import Table, table_of, table_of_elements
from schemas.protobuf.rules import ElementRules, ProtobufRules, array_field
from schemas.query import Stream

SchemaOf = Callable[[int], ProtobufSchema]
"""Returns the schema of a number, or raises RecordError if there is none. Other errors stop the decoding."""

MOST = 512
"""How many message types a file may have side by side, for the places of types to be packed into a number."""

MAX_PLACES = 3
"""How deep a message type may lie within others."""

_FIRST = (0,)


@dataclass(frozen=True, slots=True)
class _Reader:
    rules: ProtobufRules
    table: Table | None
    kinds: Mapping[int, tuple[int, ValueReader]]

    @property
    def texts(self) -> Sequence[bytes]:
        return () if self.table is None else self.table.texts

    def run(self, slots: Slots, rows: I64, begins: I64, ends: I64, spans: I64) -> I64:
        return _run(self.table, slots, (rows, begins, ends), spans, finds=bool(self.kinds))

    def values(self, raw: bytes) -> list[Value]:
        return self.rules.values(raw)

    def elements(self, raw: bytes) -> list[tuple[int, bytes]]:
        return self.rules.elements(raw)


@dataclass(frozen=True, slots=True)
class _ElementReader:
    rules: ElementRules
    table: Table | None

    @property
    def texts(self) -> Sequence[bytes]:
        return () if self.table is None else self.table.texts

    def run(self, slots: Slots, rows: I64, begins: I64, ends: I64, spans: I64) -> I64:
        return _run(self.table, slots, (rows, begins, ends), spans, finds=False)

    def values(self, raw: bytes) -> list[Value]:
        return self.rules.values(raw)


def _run(table: Table | None, slots: Slots, records: tuple[I64, I64, I64], spans: I64, *, finds: bool) -> I64:
    """Run the pass by a table, if there is one; `finds` says whether it may find elements."""
    if table is None:
        return NO_ELEMENTS
    outputs = slots.words, slots.floats, slots.valid, slots.status
    tables = table.fields, table.ranges, table.defaults, table.default_ranges

    def decode(found: I64) -> int:
        return int(decode_protobuf(slots.data, *records, *tables, spans, *outputs, found))

    return found_by(decode, *records, any_=finds)


class ProtobufDecoder(SchemaDecoder):
    """Decodes the records of one stream. Safe to call from several threads.

    Args:
        wanted: where the stream's fields are in the records, in their order, without those of unnested arrays.
        schema: the message type of all records, which have no frame; or what returns a schema by its number in the
            frame.
    """

    def __init__(self, stream: Stream, wanted: Sequence[Wanted], schema: Descriptor | SchemaOf) -> None:
        super().__init__(stream)
        self._wanted = tuple(wanted)
        self._arrays = wanted_arrays(stream)
        self._schema_of = schema if callable(schema) else None
        self._type = None if callable(schema) else schema

    def _split(self, data: U8, begins: I64, ends: I64) -> tuple[I64, I64]:
        if self._schema_of is None:
            return np.zeros(len(begins), np.int64), begins
        ids = np.zeros(len(begins), np.int64)
        schema_ids(data, begins, ends, ids)
        framed = (ids >= 0) & (ends - begins > FRAME)
        first = framed & (data[np.where(framed, begins + FRAME, 0)] == 0)
        numbers, behind = np.where(first, ids | _packed(_FIRST) << 32, -1), begins + FRAME + first
        for row in np.flatnonzero(framed & ~first).tolist():
            places, at = _places(data[begins[row] + FRAME : ends[row]])
            numbers[row] = int(ids[row]) | _packed(places) << 32
            behind[row] = begins[row] + FRAME + at
        return numbers, behind

    def _reader(self, number: int) -> RecordReader:
        if self._type is not None:
            found = self._type
        else:
            if number < 0:
                check_number(number)
            id_, places = number & 0xFFFFFFFF, _unpacked(number >> 32)
            check_number(id_)
            assert self._schema_of is not None
            if not places:
                raise RecordError(f"the frame of the record names no message type that is among the first {MOST}")
            found = self._schema_of(id_).message(places)
        kinds: dict[int, tuple[int, ValueReader]] = {}
        for number, array in enumerate(self._arrays):
            field = array_field(found, array.path)
            if field is not None:
                kinds[number] = number, _ElementReader(ElementRules(field, array), table_of_elements(field, array))
        rules = ProtobufRules(found, self._wanted, self._arrays)
        return _Reader(rules, table_of(found, self._wanted, self._arrays), kinds)


def type_of_record(schema: ProtobufSchema, framed: bytes) -> Descriptor:
    """The message type that a record names.

    Args:
        framed: the record behind the number of its schema.

    Raises:
        RecordError: the schema has no such type.
    """
    first = framed[:1] == b"\0"
    return schema.message(_FIRST if first else _places(np.frombuffer(framed, np.uint8))[0])


def _packed(places: tuple[int, ...]) -> int:
    """The place of a message type as a number of 29 bits; 0 for none."""
    code = 0
    for k in range(MAX_PLACES):
        code = code * MOST + (places[k] if k < len(places) else 0)
    return code * (MAX_PLACES + 1) + len(places)


def _unpacked(code: int) -> tuple[int, ...]:
    code, count = divmod(code, MAX_PLACES + 1)
    places = [code // MOST ** (MAX_PLACES - 1 - k) % MOST for k in range(MAX_PLACES)]
    return tuple(places[:count])


def _places(data: U8) -> tuple[tuple[int, ...], int]:
    """The place of a message type at the beginning of some bytes, and where it ends; no place if it is broken."""
    at = 0

    def number() -> int:
        nonlocal at
        found = 0
        for shift in range(0, 35, 7):
            if at >= len(data):
                return -1
            byte = int(data[at])
            at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found >> 1 ^ -(found & 1)
        return -1

    count = number()
    if not 0 < count <= MAX_PLACES:
        return (), 0
    places = tuple(number() for _ in range(count))
    return (places, at) if min(places) >= 0 and max(places) < MOST else ((), 0)
