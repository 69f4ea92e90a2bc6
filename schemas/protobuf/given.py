"""Encodes results as Protobuf by a schema that Weir has not made.

A field of the message type has the output of its name, in the form of `schemas.avro.result_schema.field_name`. A NULL
is a field that is not there, and so are the fields that no output has. `_ts` and `_phase` are written where the message
type has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from schemas.avro.result_schema import field_name
from schemas.codecs.encode import Encoded
from schemas.columns import Batch, Column, Mask
from schemas.errors import DataError
from schemas.fitting import Convert, Fit, as_it_is, fitted, symbols, whole
from schemas.members import Member, value_members
from schemas.protobuf.encoder import Piece, encode_pieces, message, text, value, varint
from schemas.protobuf.rules import TIMESTAMP, WRAPPERS
from schemas.query import PHASE_KEY, TIMESTAMP_KEY, Query, Type, type_of

F: Final = FieldDescriptor

_INT_32: Final = whole(-(2**31), 2**31 - 1)
_UINT_32: Final = whole(0, 2**32 - 1)
_POSITIVE: Final = whole(0)


def _as_time(column: Column) -> tuple[Column, Mask]:
    """Milliseconds of a time, as a number."""
    return as_it_is(Column(Type.BIGINT, column.values, column.valid))


def _zigzag(fits: Convert) -> Convert:
    """Numbers as `sint32` and `sint64` have them."""

    def convert(column: Column) -> tuple[Column, Mask]:
        numbers = column.values.astype(np.int64, copy=False)
        return Column(Type.BIGINT, numbers << 1 ^ numbers >> 63, column.valid), fits(column)[1]

    return convert


def _fixed(fits: Convert) -> Convert:
    """Numbers of eight bytes, which are written as those of doubles are."""

    def convert(column: Column) -> tuple[Column, Mask]:
        bits = np.ascontiguousarray(column.values).view(np.float64)
        return Column(Type.DOUBLE, bits, column.valid), fits(column)[1]

    return convert


_CONVERSIONS: Final[dict[tuple[Type, int], Convert]] = {
    (Type.BIGINT, F.TYPE_INT64): as_it_is,
    (Type.BIGINT, F.TYPE_INT32): _INT_32,
    (Type.BIGINT, F.TYPE_UINT64): _POSITIVE,
    (Type.BIGINT, F.TYPE_UINT32): _UINT_32,
    (Type.BIGINT, F.TYPE_SINT64): _zigzag(as_it_is),
    (Type.BIGINT, F.TYPE_SINT32): _zigzag(_INT_32),
    (Type.BIGINT, F.TYPE_SFIXED64): _fixed(as_it_is),
    (Type.BIGINT, F.TYPE_FIXED64): _fixed(_POSITIVE),
    (Type.DOUBLE, F.TYPE_DOUBLE): as_it_is,
    (Type.STRING, F.TYPE_STRING): as_it_is,
    (Type.STRING, F.TYPE_BYTES): as_it_is,
    (Type.BOOLEAN, F.TYPE_BOOL): as_it_is,
    (Type.TIMESTAMP, F.TYPE_INT64): _as_time,
}


@dataclass(frozen=True, slots=True)
class _Field:
    """A field that has a column, or in which fields have some.

    Attributes:
        column: the number of its column; -1 for a message.
        fit: of its column.
        wrapped: whether its value is in a message such as `google.protobuf.Int64Value`.
        inside: what a message has.
    """

    number: int
    column: int = -1
    fit: Fit | None = None
    wrapped: bool = False
    inside: tuple[_Field, ...] = ()


@dataclass(frozen=True, slots=True)
class GivenProtobufValues:
    """Encodes the values of results: a `schemas.codecs.results.ValueEncoder`.

    Attributes:
        number: of their schema.
        place: of the message type in its schema: in the file, and in the types around it.
        phase: the number of the field `_phase`; None if there is none.
    """

    number: int
    place: tuple[int, ...]
    fields: tuple[_Field, ...]
    phase: int | None

    def encode(self, batch: Batch, phase: str | None) -> Encoded:
        """Encode results.

        Raises:
            MisfitError: some do not fit the schema.
        """
        columns = [*batch.columns.values(), Column(Type.TIMESTAMP, batch.ts)]
        given = [(fit, columns[column]) for fit, column in _columns_of(self.fields)]
        pieces = _pieces(self.fields, iter(fitted(given)), len(batch))
        tail = b"" if phase is None or self.phase is None else text(self.phase, phase.encode())
        return encode_pieces(_head(self.number, self.place), pieces, tail, len(batch))


def _head(number: int, place: Sequence[int]) -> bytes:
    """The frame of schema registries. The first message type has a short form."""
    indexes = b"\0" if place == (0,) else b"".join(varint(2 * one) for one in (len(place), *place))
    return bytes(1) + number.to_bytes(4, "big") + indexes


def _columns_of(fields: Sequence[_Field]) -> Iterator[tuple[Fit, int]]:
    for field in fields:
        if field.fit is not None:
            yield field.fit, field.column
        yield from _columns_of(field.inside)


def _pieces(fields: Sequence[_Field], made: Iterator[Column], rows: int) -> list[Piece]:
    """What a message has.

    Args:
        made: the columns of its fields, in order.
    """
    found: list[Piece] = []
    for field in fields:
        if field.fit is None:
            found += message(field.number, _pieces(field.inside, made, rows), rows)
            continue
        column = next(made)
        if field.wrapped:
            found += message(field.number, [value(1, column)], rows, column.valid)
        else:
            found.append(value(field.number, column))
    return found


def given_values(type: Descriptor, query: Query) -> Callable[[int], GivenProtobufValues]:
    """Match a query's outputs with a message type; returns what makes an encoder of the number of its schema.

    Raises:
        DataError: they do not fit; the message says which field, and why.
    """
    types = [type_of(output.expr) for output in query.outputs]
    types += [Type.STRING] if query.subtracted else []
    members = list(value_members(query))
    if TIMESTAMP_KEY in type.fields_by_name:
        members.append(Member(TIMESTAMP_KEY, len(types)))
    phase = type.fields_by_name.get(PHASE_KEY)
    if phase is not None and (phase.type != F.TYPE_STRING or phase.is_repeated or phase.is_required):
        raise DataError(f"field {PHASE_KEY!r} of the schema is no optional string")
    fields = tuple(_fields(type, members, [*types, Type.TIMESTAMP], ""))
    place = _place(type)
    return lambda number: GivenProtobufValues(number, place, fields, None if phase is None else phase.number)


def _place(type: Descriptor) -> tuple[int, ...]:
    """Where a message type is: in the file, and in the types around it."""
    around = type.containing_type
    beside = list((type.file.message_types_by_name if around is None else around.nested_types_by_name).values())
    own = beside.index(type)
    return (own,) if around is None else (*_place(around), own)


def _fields(type: Descriptor, members: Sequence[Member], types: Sequence[Type], around: str) -> Iterator[_Field]:
    named = {field_name(member.name): member for member in members}
    for name in named:
        if name not in type.fields_by_name:
            known = ", ".join(type.fields_by_name)
            raise DataError(f"the schema has no field {around + name!r}, which results have; it has {known}")
    taken: dict[str, str] = {}
    for field in type.fields:
        name, member = around + field.name, named.get(field.name)
        if member is None:
            if field.is_required:
                raise DataError(f"no output is called {name!r}, and that field of the schema is required")
            continue
        choice = field.containing_oneof
        if choice is not None and (other := taken.setdefault(choice.name, name)) != name:
            raise DataError(f"fields {other!r} and {name!r} of the schema are of one oneof, and results have both")
        if not member.members:
            yield _leaf(field, member.column, types[member.column], name)
        elif field.is_repeated or field.type != F.TYPE_MESSAGE:
            raise DataError(f"field {name!r} of the schema is {_shown(field)}, and results have a message there")
        else:
            inside = tuple(_fields(field.message_type, member.members, types, f"{name}."))
            yield _Field(field.number, inside=inside)


def _leaf(field: FieldDescriptor, column: int, type: Type, name: str) -> _Field:
    inside = field.message_type
    wrapped = inside is not None and inside.full_name in WRAPPERS
    held = inside.fields[0] if wrapped else field
    convert = _conversion(held, type)
    if convert is None or field.is_repeated:
        raise DataError(f"field {name!r} of the schema is {_shown(field)}, and the output is {type}")
    return _Field(field.number, column, Fit(name, convert, not field.is_required), wrapped)


def _conversion(field: FieldDescriptor, type: Type) -> Convert | None:
    """How values of a type become those of a field; None if they do not."""
    if field.type == F.TYPE_ENUM:
        return symbols({one.name: one.number for one in field.enum_type.values}) if type is Type.STRING else None
    if field.type == F.TYPE_MESSAGE:
        return as_it_is if type is Type.TIMESTAMP and field.message_type.full_name == TIMESTAMP else None
    return _CONVERSIONS.get((type, field.type))


def _shown(field: FieldDescriptor) -> str:
    """The type of a field, as a schema has it."""
    named = field.message_type or field.enum_type
    kinds = {getattr(F, name): name[5:].lower() for name in dir(F) if name.startswith("TYPE_")}
    return ("repeated " if field.is_repeated else "") + (named.full_name if named else kinds[field.type])
