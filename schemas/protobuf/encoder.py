"""Encodes results as Protobuf, in the wire format of schema registries, and makes their schemas.

    syntax = "proto3";
    package sensors;
    import "google/protobuf/timestamp.proto";
    message alarms {
      optional int64 mote = 1;
      .google.protobuf.Timestamp _ts = 2;
      optional string _phase = 3;
    }

The fields are those of `schemas.avro.result_schema`, numbered in their order. A null is a field that is not there. An
object of outputs, `customer`, is a message of a type of its own in that of the results, `customer_type`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from schemas.avro.result_schema import NOTHING_FIELD, field_name, has_phase
from schemas.codecs.encode import Encoded
from schemas.codecs.kernels.protobuf_writer import (
    add_number_sizes,
    add_string_sizes,
    add_time_sizes,
    write_numbers,
    write_reals,
    write_strings,
    write_times,
    write_truths,
)
from schemas.codecs.results import read_only, write_records
from schemas.columns import I64, U8, Batch, Column, Mask
from schemas.members import Member, flat_members, value_members
from schemas.query import PHASE_KEY, TIMESTAMP_KEY, Query, Type, type_of

_TYPES: Final = {
    Type.BIGINT: "optional int64",
    Type.DOUBLE: "optional double",
    Type.STRING: "optional string",
    Type.BOOLEAN: "optional bool",
    Type.TIMESTAMP: ".google.protobuf.Timestamp",
}
_MESSAGE: Final = 2
_WIRE: Final = {Type.BIGINT: 0, Type.DOUBLE: 1, Type.STRING: 2, Type.BOOLEAN: 0, Type.TIMESTAMP: _MESSAGE}

Piece = tuple[Column, U8]
"""Something that a message has: a column, and the tag of its values. Before what is in a message of a field is how long
that is in each row, as a column of numbers."""


def value_proto(query: Query, record: str) -> str:
    """The schema of a query's results.

    Args:
        record: the full name of the message type.
    """
    types = [type_of(output.expr) for output in query.outputs]
    types += [Type.STRING] if query.subtracted else []
    members = [*value_members(query), Member(TIMESTAMP_KEY, len(types))]
    members += [Member(PHASE_KEY, len(types) + 1)] if has_phase(query) else []
    return _proto(record, members, [*types, Type.TIMESTAMP, Type.STRING])


def key_proto(members: Sequence[Member], types: Sequence[Type], record: str) -> str:
    """The schema of keys; one of no values has a field that is never there.

    Args:
        types: of the columns of the members.
    """
    return _proto(record, members, types) if types else _proto(record, [Member(NOTHING_FIELD, 0)], [Type.STRING])


def _proto(record: str, members: Sequence[Member], types: Sequence[Type]) -> str:
    package, _, name = record.rpartition(".")
    lines = ['syntax = "proto3";']
    lines += [f"package {package};"] if package else []
    if Type.TIMESTAMP in types:
        lines.append('import "google/protobuf/timestamp.proto";')
    return "\n".join([*lines, *_message(name, members, types), ""])


def _message(name: str, members: Sequence[Member], types: Sequence[Type]) -> list[str]:
    """The lines of a message type with those in it."""
    taken = {field_name(member.name) for member in members}  # fields and types in a message have one set of names
    inside: list[str] = []
    fields: list[str] = []
    for number, member in enumerate(members, 1):
        field = field_name(member.name)
        kind = f"{field}_type"
        if member.members:
            while kind in taken:
                kind += "_"
            taken.add(kind)
            inside += [f"  {line}" for line in _message(kind, member.members, types)]
        fields.append(f"  {kind if member.members else _TYPES[types[member.column]]} {field} = {number};")
    return [f"message {name} {{", *inside, *fields, "}"]


@dataclass(frozen=True, slots=True)
class ProtobufValues:
    """Encodes the values of results: a `schemas.codecs.results.ValueEncoder`.

    Attributes:
        number: of their schema.
        members: how the columns are laid out (`schemas.members.value_members`); None for one field per column.
    """

    number: int
    members: tuple[Member, ...] | None = None

    def encode(self, batch: Batch, phase: str | None) -> Encoded:
        """Encode results."""
        members = flat_members(list(batch.columns)) if self.members is None else self.members
        members = (*members, Member(TIMESTAMP_KEY, len(batch.columns)))
        columns = [*batch.columns.values(), Column(Type.TIMESTAMP, batch.ts)]
        tail = b"" if phase is None else text(len(members) + 1, phase.encode())
        return encode_records(self.number, members, columns, tail, len(batch))


@dataclass(frozen=True, slots=True)
class ProtobufKeys:
    """Encodes the keys of results: a `schemas.codecs.results.KeyEncoder`.

    Attributes:
        number: of their schema.
        members: how the columns are laid out.
    """

    number: int
    members: tuple[Member, ...]

    def encode(self, columns: Sequence[Column], rows: int) -> Encoded:
        """Encode one record per row."""
        return encode_records(self.number, self.members, columns, b"", rows)


def encode_records(
    number: int, members: Sequence[Member], columns: Sequence[Column], tail: bytes, rows: int
) -> Encoded:
    """Encode records of some members that end in some bytes."""
    head = bytes(1) + number.to_bytes(4, "big") + bytes(1)  # the last byte: the first message type
    return encode_pieces(head, _pieces(members, columns, rows), tail, rows)


def encode_pieces(head: bytes, pieces: Sequence[Piece], tail: bytes, rows: int) -> Encoded:
    """Encode records of columns with their tags, between the same bytes."""

    def add_sizes(sizes: I64) -> None:
        for column, tag in pieces:
            add_sizes_of(column, len(tag), sizes)

    def write(out: U8, at: I64) -> None:
        for column, tag in pieces:
            _write(column, tag, out, at)

    return write_records(head, tail, rows, add_sizes, write)


def _pieces(members: Sequence[Member], columns: Sequence[Column], rows: int) -> list[Piece]:
    """What a message has, in its order; also of the messages in it."""
    found: list[Piece] = []
    for number, member in enumerate(members, 1):
        if not member.members:
            found.append(value(number, columns[member.column]))
        else:
            found += message(number, _pieces(member.members, columns, rows), rows)
    return found


def value(number: int, column: Column) -> Piece:
    """The values of a field."""
    return column, _tag(number, _WIRE[column.type])


def message(number: int, inside: Sequence[Piece], rows: int, valid: Mask | None = None) -> list[Piece]:
    """The messages of a field, and what is in them. Those that are not `valid` are not there, and nothing may be in
    them."""
    sizes = np.zeros(rows, np.int64)
    for column, tag in inside:
        add_sizes_of(column, len(tag), sizes)
    return [(Column(Type.BIGINT, sizes, valid), _tag(number, _MESSAGE)), *inside]


def text(number: int, raw: bytes) -> bytes:
    """A text field."""
    return _tag(number, _WIRE[Type.STRING]).tobytes() + varint(len(raw)) + raw


def _tag(number: int, wire_type: int) -> U8:
    """The tag of a field."""
    return np.frombuffer(varint(number << 3 | wire_type), np.uint8)


def varint(value: int) -> bytes:
    """A number of at least 0 as Protobuf has it."""
    left, found = value, b""
    while left >= 0x80:
        found += bytes((left & 0x7F | 0x80,))
        left >>= 7
    return found + bytes((left,))


def add_sizes_of(column: Column, tag_size: int, sizes: I64) -> None:
    """Add what the values of a column take with their tags to (rows,) sizes."""
    valid = read_only(column.mask())
    match column.type:
        case Type.STRING:
            add_string_sizes(read_only(column.offsets), valid, tag_size, sizes)
        case Type.TIMESTAMP:
            add_time_sizes(read_only(column.values), valid, tag_size, sizes)
        case Type.BIGINT:
            add_number_sizes(read_only(column.values), valid, tag_size, sizes)
        case _:
            sizes += column.mask() * (tag_size + (8 if column.type is Type.DOUBLE else 1))


def _write(column: Column, tag: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8], at: I64) -> None:
    valid, values = read_only(column.mask()), read_only(column.values)
    match column.type:
        case Type.STRING:
            write_strings(values, read_only(column.offsets), valid, tag, out, at)
        case Type.DOUBLE:
            write_reals(read_only(values.view(np.int64)), valid, tag, out, at)
        case Type.BOOLEAN:
            write_truths(values, valid, tag, out, at)
        case Type.TIMESTAMP:
            write_times(values, valid, tag, out, at)
        case _:
            write_numbers(values, valid, tag, out, at)
