"""Makes the table by which the compiled pass (`schemas.codecs.kernels.protobuf_records`) reads records of one type.

The table has the message types on the way to columns, one for each place where one is entered, and their fields that
matter. What the pass cannot read is left to the rules, for all records: columns in repeated fields and maps, columns
that are the same field, texts that are times, numbers of closed enums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from schemas.codecs.kernels import protobuf_records as codes
from schemas.codecs.wanted import Wanted, WantedArray
from schemas.columns import I64
from schemas.protobuf.rules import TIMESTAMP, VARINT, WIRE_TYPES, WRAPPERS, F, accepts, is_array
from schemas.query import Path, Type

MAX_SYMBOLS = 10_000
MAX_MEMBERS = 1_000
"""Of a oneof: the pass looks at them one after the other."""

_ACTIONS = {
    F.TYPE_INT64: codes.INT_64,
    F.TYPE_UINT64: codes.UINT_64,
    F.TYPE_INT32: codes.INT_32,
    F.TYPE_UINT32: codes.UINT_32,
    F.TYPE_SINT64: codes.SINT_64,
    F.TYPE_SINT32: codes.SINT_32,
    F.TYPE_BOOL: codes.BOOL,
    F.TYPE_ENUM: codes.INT_32,
    F.TYPE_SFIXED64: codes.S_FIXED_64,
    F.TYPE_FIXED64: codes.FIXED_64_BITS,
    F.TYPE_SFIXED32: codes.S_FIXED_32,
    F.TYPE_FIXED32: codes.FIXED_32_BITS,
    F.TYPE_FLOAT: codes.FLOAT,
    F.TYPE_DOUBLE: codes.DOUBLE,
    F.TYPE_STRING: codes.TEXT,
    F.TYPE_BYTES: codes.TEXT,
}


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """How to read the records of a message type.

    Attributes:
        fields, ranges, defaults, default_ranges: as the pass takes them.
        texts: symbols and the empty text, by number.
    """

    fields: I64
    ranges: I64
    defaults: I64
    default_ranges: I64
    texts: tuple[bytes, ...]


class _Uncompiled(Exception):
    """The rules have to read the records."""


@dataclass(slots=True)
class _Type:
    """A message type at its place."""

    fields: dict[int, list[int]] = field(default_factory=dict)
    defaults: list[tuple[int, int]] = field(default_factory=list)


def table_of(descriptor: Descriptor, wanted: Sequence[Wanted], arrays: Sequence[WantedArray] = ()) -> Table | None:
    """Return the table that reads some columns of the records of a type, and finds the elements of some arrays, whose
    kinds are their numbers; None if the rules have to."""
    slots: list[_Slot] = [(slot, one.type, one.path) for slot, one in enumerate(wanted)]
    slots += [(number, None, array.path) for number, array in enumerate(arrays)]
    return _table(lambda maker: maker.add(descriptor, slots, 1))


def table_of_elements(field: FieldDescriptor, array: WantedArray) -> Table | None:
    """Return the table that reads the elements of an array, each as a record of its own; None if the rules have to."""
    if array.rows:
        return table_of(field.message_type, array.elements) if field.type == F.TYPE_MESSAGE else None
    (one,) = array.elements
    return _table(lambda maker: maker.add_element(field, one.type))


def _table(fill: Callable[[_Maker], object]) -> Table | None:
    maker = _Maker()
    try:
        fill(maker)
    except _Uncompiled:
        return None
    rows = [row for one in maker.types for row in one.fields.values()]
    defaults = [pair for one in maker.types for pair in one.defaults]
    return Table(
        np.array(rows, np.int64).reshape(len(rows), codes.WIDTH),
        _ends([len(one.fields) for one in maker.types]),
        np.array(defaults, np.int64).reshape(len(defaults), 2),
        _ends([len(one.defaults) for one in maker.types]),
        tuple(maker.texts),
    )


def _ends(sizes: Sequence[int]) -> I64:
    return np.array([0, *np.cumsum(sizes)], np.int64)


_Slot = tuple[int, Type | None, Path]
"""What is wanted of a message: slot, type, and path from there on. Without a type it is an array, and the slot its
number."""

_Slots = Sequence[_Slot]


class _Maker:
    def __init__(self) -> None:
        self.types: list[_Type] = []
        self.texts: list[bytes] = []
        self._oneofs = 0

    def add(self, descriptor: Descriptor, slots: _Slots, depth: int) -> int:
        """Add a message type with what is wanted of it; return its number."""
        if depth >= codes.MAX_DEPTH:
            raise _Uncompiled
        made, number = _Type(), len(self.types)
        self.types.append(made)
        by_field: dict[str, list[_Slot]] = {}
        for slot, type, path in slots:
            by_field.setdefault(str(path[0]), []).append((slot, type, path[1:]))
        for name, inside in by_field.items():
            found = descriptor.fields_by_name.get(name)
            if found is not None:
                made.fields[found.number] = self._field(found, inside, made, depth)
        self._add_oneofs(descriptor, made)
        return number

    def add_element(self, found: FieldDescriptor, type: Type) -> None:
        """Add the type of a message that is one value of a repeated field."""
        if not accepts(type, found) or (type is Type.TIMESTAMP and found.type == F.TYPE_STRING):
            raise _Uncompiled
        if found.type == F.TYPE_MESSAGE:
            self._message(found.message_type, [(0, type, ())], 0)
            return
        made = _Type()
        self.types.append(made)
        row = self._scalar(found, 0, type, made)
        row[codes.NUMBER] = codes.BARE
        made.fields[codes.BARE] = row

    def _field(self, found: FieldDescriptor, slots: _Slots, made: _Type, depth: int) -> list[int]:
        if len(slots) == 1 and slots[0][1:] == (None, ()) and is_array(found) and not _is_closed(found):
            return _row(found, codes.ELEMENTS, slots[0][0])
        if found.is_repeated:
            raise _Uncompiled
        if found.type == F.TYPE_MESSAGE:
            return _row(found, codes.MESSAGE, self._message(found.message_type, slots, depth))
        if len(slots) > 1:
            raise _Uncompiled
        ((slot, type, path),) = slots
        if path:
            return _row(found, codes.SKIP)  # a path through what is no message: NULL
        if type is None or not accepts(type, found) or (type is Type.TIMESTAMP and found.type == F.TYPE_STRING):
            raise _Uncompiled
        return self._scalar(found, slot, type, made)

    def _message(self, descriptor: Descriptor, slots: _Slots, depth: int) -> int:
        """Add the type of a message; return its number."""
        whole = [found for found in slots if not found[2]]
        if not whole:
            return self.add(descriptor, slots, depth + 1)
        if len(slots) > 1:
            raise _Uncompiled
        ((slot, type, _),) = whole
        if type is None:
            raise _Uncompiled
        if descriptor.full_name in WRAPPERS and accepts(type, descriptor.fields_by_name["value"]):
            return self.add(descriptor, [(slot, type, ("value",))], depth + 1)
        if descriptor.full_name != TIMESTAMP or type is not Type.TIMESTAMP:
            raise _Uncompiled
        made, number = _Type(), len(self.types)
        self.types.append(made)
        for name, action in (("seconds", codes.SECONDS), ("nanos", codes.NANOS)):
            found = descriptor.fields_by_name[name]
            made.fields[found.number] = _row(found, action, slot)
        made.defaults.append((slot, -1))
        return number

    def _scalar(self, found: FieldDescriptor, slot: int, type: Type, made: _Type) -> list[int]:
        action, more, count = _ACTIONS.get(found.type, codes.SKIP), 0, 0
        if action == codes.SKIP:
            raise _Uncompiled
        if found.type == F.TYPE_ENUM:
            if _is_closed(found):
                raise _Uncompiled
            if type is Type.STRING:
                action, more = codes.SYMBOL, len(self.texts)
                names = found.enum_type.values_by_number
                while count in names and count < MAX_SYMBOLS:
                    self.texts.append(names[count].name.encode())
                    count += 1
        elif type is Type.DOUBLE and action not in (codes.FLOAT, codes.DOUBLE):
            action += codes.AS_DOUBLE
        if not found.has_presence:
            default = -1
            if action == codes.SYMBOL:
                default = more
            elif action == codes.TEXT:
                default = len(self.texts)
                self.texts.append(b"")
            made.defaults.append((slot, default))
        return _row(found, action, slot, more, count)

    def _add_oneofs(self, descriptor: Descriptor, made: _Type) -> None:
        """Note which fields exclude each other, and add those that exclude a wanted one."""
        for oneof in descriptor.oneofs:
            if any(member.number in made.fields for member in oneof.fields):
                if len(oneof.fields) > MAX_MEMBERS:
                    raise _Uncompiled
                for member in oneof.fields:
                    row = made.fields.setdefault(member.number, _row(member, codes.SKIP))
                    row[codes.ONEOF] = self._oneofs
                self._oneofs += 1


def _is_closed(found: FieldDescriptor) -> bool:
    """Whether numbers that its enum does not have are no values of a field."""
    return bool(found.type == F.TYPE_ENUM and found.enum_type.is_closed)


def _row(found: FieldDescriptor, action: int, slot: int = 0, more: int = 0, count: int = 0) -> list[int]:
    return [found.number, WIRE_TYPES.get(found.type, VARINT), action, slot, more, count, -1]
