"""Encodes results as Protobuf, in the wire format of schema registries, and makes their schemas.

    syntax = "proto3";
    package sensors;
    import "google/protobuf/timestamp.proto";
    message alarms {
      optional int64 mote = 1;
      .google.protobuf.Timestamp _ts = 2;
      optional string _phase = 3;
    }

The fields are those of `schemas.avro.result_schema`, numbered in their order. A null is a field that is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from schemas.avro.result_schema import NOTHING_FIELD, OP_FIELD, PHASE_FIELD, TIMESTAMP_FIELD, field_name, has_phase
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
from schemas.columns import I64, U8, Batch, Column
from schemas.query import Query, Type, type_of

_TYPES: Final = {
    Type.BIGINT: "optional int64",
    Type.DOUBLE: "optional double",
    Type.STRING: "optional string",
    Type.BOOLEAN: "optional bool",
    Type.TIMESTAMP: ".google.protobuf.Timestamp",
}
_WIRE: Final = {Type.BIGINT: 0, Type.DOUBLE: 1, Type.STRING: 2, Type.BOOLEAN: 0, Type.TIMESTAMP: 2}


def value_proto(query: Query, record: str) -> str:
    """The schema of a query's results.

    Args:
        record: the full name of the message type.
    """
    fields = [(output.name, type_of(output.expr)) for output in query.outputs]
    fields += [(OP_FIELD, Type.STRING)] if query.subtracted else []
    fields.append((TIMESTAMP_FIELD, Type.TIMESTAMP))
    fields += [(PHASE_FIELD, Type.STRING)] if has_phase(query) else []
    return _proto(record, fields)


def key_proto(names: Sequence[str], types: Sequence[Type], record: str) -> str:
    """The schema of keys; one of no values has a field that is never there."""
    return _proto(record, list(zip(names, types, strict=True)) or [(NOTHING_FIELD, Type.STRING)])


def _proto(record: str, fields: Sequence[tuple[str, Type]]) -> str:
    package, _, name = record.rpartition(".")
    lines = ['syntax = "proto3";']
    lines += [f"package {package};"] if package else []
    if any(type is Type.TIMESTAMP for _, type in fields):
        lines.append('import "google/protobuf/timestamp.proto";')
    lines += [f"message {name} {{"]
    lines += [f"  {_TYPES[type]} {field_name(field)} = {number};" for number, (field, type) in enumerate(fields, 1)]
    return "\n".join([*lines, "}", ""])


@dataclass(frozen=True, slots=True)
class ProtobufValues:
    """Encodes the values of results: a `schemas.codecs.results.ValueEncoder`.

    Attributes:
        number: of their schema.
    """

    number: int

    def encode(self, batch: Batch, phase: str | None) -> Encoded:
        """Encode results."""
        columns = [*batch.columns.values(), Column(Type.TIMESTAMP, batch.ts)]
        raw = (phase or "").encode()
        tail = b"" if phase is None else _tag(len(columns) + 1, Type.STRING) + bytes((len(raw),)) + raw
        return encode_records(self.number, columns, tail, len(batch))


@dataclass(frozen=True, slots=True)
class ProtobufKeys:
    """Encodes the keys of results: a `schemas.codecs.results.KeyEncoder`.

    Attributes:
        number: of their schema.
    """

    number: int

    def encode(self, columns: Sequence[Column], rows: int) -> Encoded:
        """Encode one record per row."""
        return encode_records(self.number, columns, b"", rows)


def encode_records(number: int, columns: Sequence[Column], tail: bytes, rows: int) -> Encoded:
    """Encode records whose fields are some columns, numbered from 1, and end in some bytes."""
    head = bytes(1) + number.to_bytes(4, "big") + bytes(1)  # the last byte: the first message type
    tags = [np.frombuffer(_tag(n, column.type), np.uint8) for n, column in enumerate(columns, 1)]

    def add_sizes(sizes: I64) -> None:
        for column, tag in zip(columns, tags, strict=True):
            _add_sizes(column, len(tag), sizes)

    def write(out: U8, at: I64) -> None:
        for column, tag in zip(columns, tags, strict=True):
            _write(column, tag, out, at)

    return write_records(head, tail, rows, add_sizes, write)


def _tag(number: int, type: Type) -> bytes:
    """The tag of a field: its number and wire type."""
    left, found = number << 3 | _WIRE[type], b""
    while left >= 0x80:
        found += bytes((left & 0x7F | 0x80,))
        left >>= 7
    return found + bytes((left,))


def _add_sizes(column: Column, tag_size: int, sizes: I64) -> None:
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
