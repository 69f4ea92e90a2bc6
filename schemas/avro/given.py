"""Encodes results as Avro by a schema that Weir has not made.

A field of the schema has the output of its name, in the form of `schemas.avro.result_schema.field_name`. A field that
no output has is null, or has its default, in every record. `_ts` and `_phase` are written where the schema has them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from schemas.avro.encoder import add_sizes_of, write_column
from schemas.avro.result_schema import field_name
from schemas.avro.schema import MAX_NESTING, Avro, AvroField
from schemas.codecs.encode import Encoded
from schemas.codecs.kernels.avro_writer import write_same
from schemas.codecs.results import write_records
from schemas.columns import I64, U8, Batch, Column
from schemas.errors import DataError
from schemas.fitting import Convert, Fit, as_it_is, fitted, symbols, times, whole
from schemas.members import Member, value_members
from schemas.query import PHASE_KEY, TIMESTAMP_KEY, Query, Type, type_of

_PER_MS: Final = {"millis": 1, "micros": 1_000, "nanos": 1_000_000}
_INT: Final = whole(-(2**31), 2**31 - 1)


@dataclass(frozen=True, slots=True)
class _Value:
    """A field that has a column.

    Attributes:
        column: its number; the timestamps and phases of results follow the outputs.
        branches: the places of null and of the value in a union; of null it is -1 where there is none. None if the type
            is no union.
    """

    column: int
    fit: Fit
    branches: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class GivenAvroValues:
    """Encodes the values of results: a `schemas.codecs.results.ValueEncoder`.

    Attributes:
        number: of their schema.
        pieces: what a record has, in order: columns, and bytes that all records have.
    """

    number: int
    pieces: tuple[_Value | bytes, ...]

    def encode(self, batch: Batch, phase: str | None) -> Encoded:
        """Encode results.

        Raises:
            MisfitError: some do not fit the schema.
        """
        rows = len(batch)
        columns = [*batch.columns.values(), Column(Type.TIMESTAMP, batch.ts), phases(phase, rows)]
        values = [piece for piece in self.pieces if isinstance(piece, _Value)]
        made = iter(fitted((value.fit, columns[value.column]) for value in values))
        parts = [part for piece in self.pieces for part in _parts(piece, made)]

        def add_sizes(sizes: I64) -> None:
            for part, nullable in parts:
                if isinstance(part, bytes):
                    sizes += len(part)
                else:
                    add_sizes_of(part, nullable, sizes)

        def write(out: U8, at: I64) -> None:
            for part, nullable in parts:
                if isinstance(part, bytes):
                    write_same(np.frombuffer(part, np.uint8), out, at)
                else:
                    write_column(part, nullable, out, at)

        return write_records(bytes(1) + self.number.to_bytes(4, "big"), b"", rows, add_sizes, write)


def phases(phase: str | None, rows: int) -> Column:
    """The column of what late results say of themselves."""
    raw = (phase or "").encode()
    valid = None if phase is not None else np.zeros(rows, np.bool_)
    return Column(Type.STRING, np.frombuffer(raw * rows, np.uint8), valid, np.arange(rows + 1) * len(raw))


def _parts(piece: _Value | bytes, made: Iterator[Column]) -> Iterator[tuple[Column | bytes, bool]]:
    """What a piece writes: bytes, or columns and whether they are in a union with null, which comes first."""
    if isinstance(piece, bytes):
        yield piece, False
        return
    column = next(made)
    match piece.branches:
        case None:
            yield column, False
        case (0, 1):
            yield column, True
        case (null, value):
            yield Column(Type.BIGINT, np.where(column.mask(), value, null).astype(np.int64)), False
            yield column, False


def given_values(schema: Avro, query: Query) -> Callable[[int], GivenAvroValues]:
    """Match a query's outputs with a schema; returns what makes an encoder of the schema's number.

    Raises:
        DataError: they do not fit; the message says which field, and why.
    """
    types = [type_of(output.expr) for output in query.outputs]
    types += [Type.STRING] if query.subtracted else []
    own = [Member(TIMESTAMP_KEY, len(types)), Member(PHASE_KEY, len(types) + 1)]
    names = {field.name for field in schema.fields}
    members = [*value_members(query), *(member for member in own if member.name in names)]
    pieces = tuple(_joined(_record(schema, members, [*types, Type.TIMESTAMP, Type.STRING], "")))
    if any(isinstance(one, _Value) and one.column == own[1].column and not one.fit.nullable for one in pieces):
        raise DataError(f"field {PHASE_KEY!r} of the schema is never null, and only late results have one")
    return lambda number: GivenAvroValues(number, pieces)


def _joined(pieces: Iterator[_Value | bytes]) -> Iterator[_Value | bytes]:
    """The pieces, with bytes that follow each other as one."""
    same = b""
    for piece in pieces:
        if isinstance(piece, bytes):
            same += piece
            continue
        if same:
            yield same
        same = b""
        yield piece
    if same:
        yield same


def _record(schema: Avro, members: Sequence[Member], types: Sequence[Type], around: str) -> Iterator[_Value | bytes]:
    if schema.kind != "record":
        place = f"field {around[:-1]!r}" if around else "the schema"
        raise DataError(f"{place} is {schema}, and results have a record there")
    named = {field_name(member.name): member for member in members}
    known = [field.name for field in schema.fields]
    for name in [name for name in named if name not in known]:
        raise DataError(f"the schema has no field {around + name!r}, which results have; it has {', '.join(known)}")
    for field in schema.fields:
        member = named.get(field.name)
        if member is None:
            yield _absent(field, around)
        elif member.members:
            yield from _object(field, member, types, around)
        else:
            yield _value(field, member.column, types[member.column], around)


def _absent(field: AvroField, around: str) -> bytes:
    """The bytes of a field that no output has."""
    try:
        if field.has_default:
            return default_bytes(field.type, field.default)
        return default_bytes(field.type, None)
    except DataError as error:
        if field.has_default:
            raise DataError(f"the default of field {around + field.name!r} is none: {error}") from None
        name = around + field.name
        why = "that field of the schema has no default and is never null"
        raise DataError(f"no output is called {name!r}, and {why}") from None


def _object(field: AvroField, member: Member, types: Sequence[Type], around: str) -> Iterator[_Value | bytes]:
    branches = field.type.types if field.type.kind == "union" else (field.type,)
    place = next((n for n, one in enumerate(branches) if one.kind == "record"), 0)
    if field.type.kind == "union":
        yield _long(place)
    yield from _record(branches[place], member.members, types, f"{around}{field.name}.")


def _value(field: AvroField, column: int, type: Type, around: str) -> _Value:
    name = around + field.name
    is_union = field.type.kind == "union"
    branches = field.type.types if is_union else (field.type,)
    null = next((n for n, one in enumerate(branches) if one.kind == "null"), -1)
    found = [(place, convert) for place, one in enumerate(branches) if (convert := _conversion(one, type)) is not None]
    if found:
        # The first that takes every value, such as `long` behind `int`; else the first.
        place, convert = min(found, key=lambda one: one[1] is _INT)
        return _Value(column, Fit(name, convert, null >= 0), (null, place) if is_union else None)
    raise DataError(f"field {name!r} of the schema is {field.type}, and the output is {type}")


def _conversion(schema: Avro, type: Type) -> Convert | None:
    """How values of a type become those of a schema; None if they do not."""
    match type, schema.kind, schema.logical:
        case Type.BIGINT, "int", "":
            return _INT
        case (Type.BIGINT, "long", "") | (Type.DOUBLE, "double", _) | (Type.BOOLEAN, "boolean", _):
            return as_it_is
        case (Type.STRING, "string", _) | (Type.STRING, "bytes", "") | (Type.TIMESTAMP, "long", ""):
            return as_it_is
        case Type.STRING, "enum", _ if schema.symbols:
            return symbols({symbol: number for number, symbol in enumerate(schema.symbols)})
        case Type.TIMESTAMP, "long", logical if "timestamp-" in logical:
            return times(_PER_MS[logical.rpartition("-")[2]])
    return None


def default_bytes(schema: Avro, value: Any, depth: int = 0) -> bytes:
    """A value as JSON has it in a schema's default, as Avro.

    Raises:
        DataError: it is no value of the schema.
    """
    if depth > MAX_NESTING:
        raise DataError("a default without an end")
    match schema.kind, value:
        case "union", _:
            for place, branch in enumerate(schema.types):
                try:
                    return _long(place) + default_bytes(branch, value, depth + 1)
                except DataError:
                    continue
        case "null", None:
            return b""
        case "boolean", bool():
            return bytes((value,))
        case ("int" | "long") as kind, int() if not isinstance(value, bool):
            if -1 << (31 if kind == "int" else 63) <= value < 1 << (31 if kind == "int" else 63):
                return _long(value)
        case "float", int() | float() if not isinstance(value, bool):
            return np.float32(value).tobytes()
        case "double", int() | float() if not isinstance(value, bool):
            return struct.pack("<d", value)
        case "string", str():
            return _block(value.encode())
        case ("bytes" | "fixed") as kind, str() if all(ord(one) < 256 for one in value):
            raw = value.encode("latin-1")
            if kind == "bytes" or len(raw) == schema.size:
                return _block(raw) if kind == "bytes" else raw
        case "enum", str() if value in schema.symbols:
            return _long(schema.symbols.index(value))
        case "array", list():
            items = b"".join(default_bytes(schema.types[0], one, depth + 1) for one in value)
            return (_long(len(value)) + items if value else b"") + b"\0"
        case "map", dict():
            return _of_map(schema, value, depth)
        case "record", dict():
            return b"".join(_of_field(field, value, depth) for field in schema.fields)
    raise DataError(f"{value!r} is no {schema}")


def _of_map(schema: Avro, value: Mapping[str, Any], depth: int) -> bytes:
    items = b"".join(
        _block(name.encode()) + default_bytes(schema.types[0], one, depth + 1) for name, one in value.items()
    )
    return (_long(len(value)) + items if value else b"") + b"\0"


def _of_field(field: AvroField, value: Mapping[str, Any], depth: int) -> bytes:
    if field.name not in value and not field.has_default:
        raise DataError(f"it lacks {field.name!r}")
    return default_bytes(field.type, value.get(field.name, field.default), depth + 1)


def _block(raw: bytes) -> bytes:
    return _long(len(raw)) + raw


def _long(value: int) -> bytes:
    left, found = value << 1 ^ value >> 63, b""
    while left >= 0x80:
        found += bytes((left & 0x7F | 0x80,))
        left >>= 7
    return found + bytes((left,))
