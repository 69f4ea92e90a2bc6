"""Reads one Protobuf record in Python. This defines the format; the compiled pass must agree with it.

Values become those of declared columns as follows; every other pair of types makes the record a dead letter:

- BIGINT: any whole number below 2^63; an enum's number.
- DOUBLE: any number, rounded to the nearest double; it must be finite.
- STRING: string and bytes (of valid UTF-8), enum (its symbol, or its number where it has none).
- BOOLEAN: bool.
- TIMESTAMP: `google.protobuf.Timestamp` (rounded down to milliseconds), whole numbers (milliseconds), string in the
  form of `schemas.timestamps`.

A wrapper such as `google.protobuf.Int64Value` is the value in it. A field that the record does not have is NULL if the
schema tells that from its default (messages, `optional`, members of a oneof), and else its default. Fields within a
message that is not there are NULL.

Only what is on the way to a column is looked at: the rest of a record must have the form of fields, whatever is in
them. Why not Google's own parser: it refuses a record for what is in fields that nobody has asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from schemas.codecs.decoded import RecordError, Value, check_value, refused, shown
from schemas.codecs.wanted import Wanted, WantedArray
from schemas.paths import path_text
from schemas.query import Path, Type

TIMESTAMP: Final = "google.protobuf.Timestamp"
WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)

VARINT: Final = 0
FIXED_64: Final = 1
LENGTH: Final = 2
FIXED_32: Final = 5
_BEGIN_GROUP: Final = 3
_END_GROUP: Final = 4
_MAX_GROUPS: Final = 100

F: Final = FieldDescriptor

WIRE_TYPES: Final = {
    **dict.fromkeys((F.TYPE_DOUBLE, F.TYPE_FIXED64, F.TYPE_SFIXED64), FIXED_64),
    **dict.fromkeys((F.TYPE_FLOAT, F.TYPE_FIXED32, F.TYPE_SFIXED32), FIXED_32),
    **dict.fromkeys((F.TYPE_STRING, F.TYPE_BYTES, F.TYPE_MESSAGE), LENGTH),
    F.TYPE_GROUP: _BEGIN_GROUP,
}
"""By type of a field; VARINT for those that are missing."""

_WHOLE: Final = frozenset(
    (
        F.TYPE_INT32,
        F.TYPE_INT64,
        F.TYPE_UINT32,
        F.TYPE_UINT64,
        F.TYPE_SINT32,
        F.TYPE_SINT64,
        F.TYPE_FIXED32,
        F.TYPE_FIXED64,
        F.TYPE_SFIXED32,
        F.TYPE_SFIXED64,
    )
)
_REAL: Final = frozenset((F.TYPE_FLOAT, F.TYPE_DOUBLE))

_Raw = int | bytes
"""A number, of a field of fixed size its bits; or the bytes of a field with a length."""

_Parsed = dict[int, list[tuple[int, int, _Raw]]]
"""By a field's number, where it occurs: its place among all fields, wire type and value."""


class ProtobufRules:
    """Reads records of one message type.

    Args:
        arrays: whose elements are found, too.
    """

    def __init__(self, descriptor: Descriptor, wanted: Sequence[Wanted], arrays: Sequence[WantedArray] = ()) -> None:
        self._descriptor = descriptor
        self._wanted = tuple(wanted)
        self._arrays = tuple(arrays)

    def values(self, raw: bytes) -> list[Value]:
        """Return the values of the columns.

        Raises:
            RecordError: the bytes are no such message, or a column does not accept its value.
        """
        reader = _Reader()
        reader.parsed(raw)
        return [reader.column(self._descriptor, raw, one) for one in self._wanted]

    def elements(self, raw: bytes) -> list[tuple[int, bytes]]:
        """Return the elements of the arrays, each with its array's number. A number is as it is in a field, without the
        tag; of texts and messages there are the bytes alone.

        Raises:
            RecordError: the bytes are no such message, or there is something else at an array's place.
        """
        reader = _Reader()
        return [
            (number, element)
            for number, array in enumerate(self._arrays)
            for element in reader.elements(self._descriptor, raw, array)
        ]


class ElementRules:
    """Reads the elements of an array, as `ProtobufRules.elements` returns them.

    Args:
        field: the repeated field.
    """

    def __init__(self, field: FieldDescriptor, array: WantedArray) -> None:
        self._field = field
        self._array = array

    def values(self, raw: bytes) -> list[Value]:
        """Return the values of the columns.

        Raises:
            RecordError: the bytes are no such element, or a column does not accept its value.
        """
        field, reader = self._field, _Reader()
        if not self._array.rows:
            (one,) = self._array.elements
            return [reader.converted(one, _bare(field, raw), field)]
        if field.type != F.TYPE_MESSAGE:
            raise RecordError(f"a value of type {_named(field)} is no message")
        reader.parsed(raw)
        return [reader.column(field.message_type, raw, one) for one in self._array.elements]


class _Reader:
    """Reads values of one record, of which each message is parsed once."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Parsed] = {}

    def parsed(self, raw: bytes) -> _Parsed:
        found = self._known.get(raw)
        if found is None:
            found = self._known[raw] = {}
            for place, (number, wire, value) in enumerate(_fields(raw)):
                found.setdefault(number, []).append((place, wire, value))
        return found

    def column(self, descriptor: Descriptor, raw: bytes, one: Wanted) -> Value:
        """The value of a column."""
        found = self._at(descriptor, raw, one.path)
        if found is None:
            return None
        value, field = found
        if value is None:
            raise refused(one.name, one.type, "a map" if is_map(field) else "a repeated field")
        return self.converted(one, value, field)

    def elements(self, descriptor: Descriptor, raw: bytes, array: WantedArray) -> list[bytes]:
        """The elements of an array."""
        found = self._at(descriptor, raw, array.path)
        if found is None:
            return []
        value, field = found
        if value is not None or not is_array(field):
            what = "a map" if value is None else f"a value of type {_named(field)}"
            raise RecordError(f"field '{array.name}' is {what}, which is no array")
        if above := array.path[:-1]:
            around = self._at(descriptor, raw, above)
            assert around is not None
            raw = around[0]
        return [_as_bare(field, one) for one in self._on_wire(raw, field)]

    def converted(self, one: Wanted, value: Any, field: FieldDescriptor) -> Value:
        """A value of a field as that of a column."""
        if field.type == F.TYPE_MESSAGE:
            assert isinstance(value, bytes)
            message = field.message_type
            if message.full_name == TIMESTAMP and one.type is Type.TIMESTAMP:
                seconds, nanos = (self._number(message, value, name) for name in ("seconds", "nanos"))
                return check_value(one.name, one.type, seconds * 1000 + nanos // 1_000_000)
            if message.full_name not in WRAPPERS:
                raise refused(one.name, one.type, f"a message {message.full_name}")
            inner = self._at(message, value, ("value",))
            assert inner is not None
            value, field = inner
        return _converted(one, value, field)

    def _number(self, descriptor: Descriptor, raw: bytes, name: str) -> int:
        found = self._at(descriptor, raw, (name,))
        assert found is not None
        assert isinstance(found[0], int)
        return found[0]

    def _at(self, descriptor: Descriptor, raw: bytes, path: Path) -> tuple[Any, FieldDescriptor] | None:
        """The value at a path, None for all of a repeated field, and its field; None if nothing is there."""
        step, *inside = path
        field = descriptor.fields_by_name.get(step) if isinstance(step, str) else None
        if field is None:
            return None
        if not field.is_repeated:
            values = self._singular(raw, field)
            if not values:
                return None if inside or field.has_presence else (_default(field), field)
            # The parts of a message that is there several times are one message.
            value = b"".join(values) if field.type == F.TYPE_MESSAGE else values[-1]
        else:
            if not inside:
                return (None, field) if self._repeated(raw, field) else None
            step, *inside = inside
            if is_map(field):
                found = self._entry(raw, field, step)
            else:
                items = self._repeated(raw, field)
                found = (items[step], field) if isinstance(step, int) and step < len(items) else None
            if found is None:
                return None
            value, field = found
        if not inside:
            return value, field
        return self._at(field.message_type, value, tuple(inside)) if field.type == F.TYPE_MESSAGE else None

    def _singular(self, raw: bytes, field: FieldDescriptor) -> list[Any]:
        """The values of a field that count: those behind the last of another member of its oneof."""
        since = -1
        oneof = field.containing_oneof
        for number in () if oneof is None else self.parsed(raw):
            other = field.containing_type.fields_by_number.get(number)
            if other is not None and number != field.number and other.containing_oneof == oneof:
                since = max([since, *(place for place, _ in self._occurrences(raw, other))])
        return [value for place, value in self._occurrences(raw, field) if place > since]

    def _occurrences(self, raw: bytes, field: FieldDescriptor) -> list[tuple[int, Any]]:
        wire = WIRE_TYPES.get(field.type, VARINT)
        found = [(place, value) for place, own, value in self.parsed(raw).get(field.number, ()) if own == wire]
        made = [(place, _scalar(field, value)) for place, value in found]
        return [(place, value) for place, value in made if _is_known(field, value)]

    def _repeated(self, raw: bytes, field: FieldDescriptor) -> list[Any]:
        """The values of a repeated field."""
        return [_scalar(field, value) for value in self._on_wire(raw, field)]

    def _on_wire(self, raw: bytes, field: FieldDescriptor) -> list[_Raw]:
        """The values of a repeated field as they are written, packed or not."""
        wire = WIRE_TYPES.get(field.type, VARINT)
        found: list[_Raw] = []
        for _, own, value in self.parsed(raw).get(field.number, ()):
            if own == wire:
                found.append(value)
            elif own == LENGTH and isinstance(value, bytes):
                found += _packed(value, wire)
        return [value for value in found if _is_known(field, _scalar(field, value))]

    def _entry(self, raw: bytes, field: FieldDescriptor, key: str | int) -> tuple[Any, FieldDescriptor] | None:
        """The last entry of a map under a key, which is text or a whole number."""
        keys, values = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        for entry in reversed(self._repeated(raw, field)):
            found = self._singular(entry, keys)
            own = found[-1] if found else _default(keys)
            if isinstance(own, bytes):
                own = _text(own)
            if (str(own).lower() if isinstance(own, bool) else str(own)) == str(key):
                parts = self._singular(entry, values)
                if values.type == F.TYPE_MESSAGE:
                    return b"".join(parts), values
                return (parts[-1] if parts else _default(values)), values
        return None


def _bare(field: FieldDescriptor, raw: bytes) -> Any:
    """The value of a field that bytes without a tag are."""
    wire = WIRE_TYPES.get(field.type, VARINT)
    return _scalar(field, raw if wire == LENGTH else _packed(raw, wire)[0])


def _as_bare(field: FieldDescriptor, value: _Raw) -> bytes:
    """The bytes of a value as they are in a field, without the tag and the length."""
    if isinstance(value, bytes):
        return value
    wire = WIRE_TYPES.get(field.type, VARINT)
    if wire != VARINT:
        return value.to_bytes(8 if wire == FIXED_64 else 4, "little")
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _fields(raw: bytes) -> Iterator[tuple[int, int, _Raw]]:
    """The fields of a message in their order: number, wire type, value. Groups are passed over.

    Raises:
        RecordError: the bytes are no fields.
    """
    at = 0
    groups: list[int] = []
    while at < len(raw):
        tag, at = _varint(raw, at)
        number, wire = tag >> 3, tag & 7
        if tag > 0xFFFFFFFF or number == 0:
            raise RecordError(f"broken Protobuf: no field begins at byte {at}")
        value: _Raw
        match wire:
            case 0:
                value, at = _varint(raw, at)
            case 1:
                value, at = int.from_bytes(raw[at : at + 8], "little"), at + 8
            case 2:
                length, at = _varint(raw, at)
                value, at = raw[at : at + length], at + length
            case 5:
                value, at = int.from_bytes(raw[at : at + 4], "little"), at + 4
            case 3 if len(groups) < _MAX_GROUPS:
                groups.append(number)
                continue
            case 4 if groups and groups[-1] == number:
                groups.pop()
                continue
            case _:
                raise RecordError(f"broken Protobuf: field {number} has wire type {wire}")
        if at > len(raw):
            raise RecordError(f"broken Protobuf: the message ends within field {number}")
        if not groups:
            yield number, wire, value
    if groups:
        raise RecordError(f"broken Protobuf: the message ends within group {groups[-1]}")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    found = 0
    for shift in range(0, 70, 7):
        if at >= len(raw):
            raise RecordError("broken Protobuf: the message ends within a number")
        byte = raw[at]
        found |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return found & 0xFFFFFFFFFFFFFFFF, at
    raise RecordError("broken Protobuf: a number of more than ten bytes")


def _packed(raw: bytes, wire: int) -> list[int]:
    if wire == VARINT:
        found, at = [], 0
        while at < len(raw):
            value, at = _varint(raw, at)
            found.append(value)
        return found
    size = 8 if wire == FIXED_64 else 4
    if len(raw) % size:
        raise RecordError(f"broken Protobuf: {len(raw)} bytes of numbers that have {size} each")
    return [int.from_bytes(raw[at : at + size], "little") for at in range(0, len(raw), size)]


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    """The value of a field, from what is on the wire; of strings and messages the bytes."""
    match field.type:
        case F.TYPE_INT64 | F.TYPE_SFIXED64:
            return _signed(value, 64)
        case F.TYPE_INT32 | F.TYPE_SFIXED32 | F.TYPE_ENUM:
            return _signed(value, 32)
        case F.TYPE_UINT32:
            return value & 0xFFFFFFFF
        case F.TYPE_SINT64:
            return value >> 1 ^ -(value & 1)
        case F.TYPE_SINT32:
            return (value & 0xFFFFFFFF) >> 1 ^ -(value & 1)
        case F.TYPE_BOOL:
            return value != 0
        case F.TYPE_DOUBLE:
            return struct.unpack("<d", value.to_bytes(8, "little"))[0]
        case F.TYPE_FLOAT:
            return struct.unpack("<f", value.to_bytes(4, "little"))[0]
    return value


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def _is_known(field: FieldDescriptor, value: Any) -> bool:
    """Whether a value is there for its field: a number that a closed enum does not have is none."""
    closed = field.type == F.TYPE_ENUM and field.enum_type.is_closed
    return not closed or value in field.enum_type.values_by_number


def _default(field: FieldDescriptor) -> Any:
    """What a field without presence has if it is not there."""
    return b"" if field.type in (F.TYPE_STRING, F.TYPE_BYTES) else field.default_value


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise RecordError(f"broken Protobuf: the text {shown(raw)} is not UTF-8") from None


def is_map(field: FieldDescriptor) -> bool:
    """Whether a field is a map."""
    message = field.message_type
    return bool(message is not None and message.GetOptions().map_entry)


def is_array(field: FieldDescriptor) -> bool:
    """Whether a field is an array, and no map."""
    return bool(field.is_repeated and not is_map(field) and field.type != F.TYPE_GROUP)


def _converted(one: Wanted, value: Any, field: FieldDescriptor) -> Value:
    if field.type == F.TYPE_ENUM:
        if one.type is Type.STRING:
            symbol = field.enum_type.values_by_number.get(value)
            return str(value) if symbol is None else str(symbol.name)
        if one.type is not Type.BIGINT:
            raise refused(one.name, one.type, f"an enum {field.enum_type.full_name}")
    if isinstance(value, bytes):
        if field.type == F.TYPE_BYTES and one.type is not Type.STRING:
            raise refused(one.name, one.type, shown(value))
        value = _text(value)
    return check_value(one.name, one.type, value)


def accepts(type: Type, field: FieldDescriptor) -> bool:
    """Whether values of a field, one of them if it is repeated, may be those of a column."""
    if field.type == F.TYPE_MESSAGE:
        message = field.message_type
        if message.full_name in WRAPPERS:
            return accepts(type, message.fields_by_name["value"])
        return type is Type.TIMESTAMP and message.full_name == TIMESTAMP
    match type:
        case Type.BIGINT:
            return field.type in _WHOLE or field.type == F.TYPE_ENUM
        case Type.DOUBLE:
            return field.type in _WHOLE | _REAL
        case Type.STRING:
            texts = (F.TYPE_STRING, F.TYPE_BYTES, F.TYPE_ENUM)
            return field.type in texts
        case Type.BOOLEAN:
            return bool(field.type == F.TYPE_BOOL)
    return field.type in _WHOLE or field.type == F.TYPE_STRING


def misfits(descriptor: Descriptor, wanted: Sequence[Wanted]) -> list[str]:
    """Say what of some columns records of a type cannot have; empty if all fits."""
    found = []
    for one in wanted:
        place = f" FROM '{path_text(one.path)}'" if one.path != (one.name,) else ""
        field = _field_at(descriptor, one.path)
        if field is None:
            found.append(f"column '{one.name}'{place}, which the schema does not have")
        elif not accepts(one.type, field):
            found.append(f"column '{one.name}'{place} {one.type}, which the schema has as {_named(field)}")
    return found


def array_misfits(descriptor: Descriptor, arrays: Sequence[WantedArray]) -> list[str]:
    """Say which arrays, or what of their elements, records of a type cannot have; empty if all fits."""
    found = []
    for array in arrays:
        field = array_field(descriptor, array.path)
        if field is None:
            other = _field_at(descriptor, array.path)
            why = "does not have" if other is None else f"has as {_named(other)}"
            found.append(f"array '{array.name}', which the schema {why}")
        elif not array.rows:
            (one,) = array.elements
            if not accepts(one.type, field):
                found.append(f"array '{array.name}' of {one.type}, of which the schema has {_named(field)}")
        elif field.type != F.TYPE_MESSAGE:
            found.append(f"array '{array.name}' of ROW, of which the schema has {_named(field)}")
        else:
            found += misfits(field.message_type, array.elements)
    return found


def array_field(descriptor: Descriptor, path: Path) -> FieldDescriptor | None:
    """The repeated field at a path; None if the type has none."""
    field = _field_at(descriptor, (*path, 0))
    return field if field is not None and is_array(field) else None


def _named(field: FieldDescriptor) -> str:
    if field.message_type is not None:
        return str(field.message_type.full_name)
    if field.enum_type is not None:
        return str(field.enum_type.full_name)
    kinds = {value: name for name, value in vars(FieldDescriptor).items() if name.startswith("TYPE_")}
    return str(kinds[field.type]).removeprefix("TYPE_").lower()


def _field_at(descriptor: Descriptor, path: Path) -> FieldDescriptor | None:
    """The field at a path; None if the type has none."""
    place: Descriptor | None = descriptor
    field: FieldDescriptor | None = None
    inside = False  # whether the step before has left a repeated field to be entered
    for step in path:
        if inside and field is not None:
            if is_map(field) and isinstance(step, str):
                field = field.message_type.fields_by_name["value"]
            elif not isinstance(step, int) or is_map(field):
                return None
        else:
            field = None if place is None or not isinstance(step, str) else place.fields_by_name.get(step)
            if field is None:
                return None
            inside = field.is_repeated
            place = field.message_type
            continue
        inside, place = False, field.message_type
    return None if inside else field
