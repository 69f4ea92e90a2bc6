"""Reads one Avro record in Python. This defines the format; the compiled pass must agree with it.

Values become those of declared columns as follows; every other pair of types makes the record a dead letter:

- BIGINT: int, long.
- DOUBLE: int, long, float, double, decimal, rounded to the nearest double; it must be finite.
- STRING: string, bytes (of valid UTF-8), enum (its symbol), decimal (as a number with its scale), uuid.
- BOOLEAN: boolean.
- TIMESTAMP: long (milliseconds unless its logical type says microseconds or nanoseconds, which are rounded down), date
  (its midnight, UTC), string (in the form of `schemas.timestamps`).

A null is NULL. A column that the record's schema does not have is NULL or the default of the column. Bytes that are
left over mean that the schema is not the record's.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any

from schemas.avro.schema import MAX_NESTING, Avro
from schemas.codecs.decoded import RecordError, Value, check_value, refused, shown
from schemas.codecs.wanted import Wanted, WantedArray
from schemas.paths import path_text
from schemas.query import Path, Type

_DAY_MS = 86_400_000
_PER_MS = {"micros": 1_000, "nanos": 1_000_000}

MAX_ITEMS_OF_NOTHING = 1 << 16
"""An array of nulls takes no bytes for its items, so a few bytes could claim any number of them. A record may have so
many more items than bytes."""

MAX_DECIMAL_BYTES = 1_024

_EXACT = Context(prec=4_000, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""Room for the digits of any decimal that is accepted: 2.41 per byte."""


@dataclass(slots=True)
class _Leaf:
    """A value and its type."""

    type: Avro
    value: Any


class _Items(list[Any]):
    """An array's items, their type, and where each begins and ends."""

    def __init__(self, type: Avro) -> None:
        super().__init__()
        self.type = type
        self.bounds: list[tuple[int, int]] = []


@dataclass(frozen=True, slots=True, eq=False)
class ElementKind:
    """A type that the elements of an array may have: one, but where a union has several arrays.

    Attributes:
        array: the array's number.
        items: the type.
    """

    array: int
    items: Avro

    @property
    def has_records_only(self) -> bool:
        """Whether each element is a record, a map or null."""
        return all(one.kind in ("record", "map", "null") for one in _types_at(self.items, ()))


def element_kinds(schema: Avro, arrays: Sequence[WantedArray]) -> list[ElementKind]:
    """The kinds of the elements that some arrays in records of a schema may have, those of an array together."""
    found: dict[tuple[int, int], ElementKind] = {}
    for number, array in enumerate(arrays):
        for type in _types_at(schema, array.path):
            if type.kind == "array":
                found.setdefault((number, id(type.types[0])), ElementKind(number, type.types[0]))
    return list(found.values())


class AvroRules:
    """Decodes the bytes of one record, without any frame, to the values of columns.

    Args:
        schema: with which the record was written.
        arrays: whose elements are found, too.
        rows: whether it is a record, a map or null, and nothing else.
    """

    def __init__(
        self, schema: Avro, wanted: Sequence[Wanted], arrays: Sequence[WantedArray] = (), *, rows: bool = False
    ) -> None:
        self._schema = schema
        self._wanted = tuple(wanted)
        self._arrays = tuple(arrays)
        self._rows = rows
        self._kinds = {(one.array, id(one.items)): n for n, one in enumerate(element_kinds(schema, arrays))}

    def values(self, raw: bytes) -> list[Value]:
        """Return the value of each column, None for NULL.

        Raises:
            RecordError: with the reason.
        """
        record = self._read(raw)
        if self._rows and not (record is None or isinstance(record, dict)):
            raise RecordError(f"{_shown(record)} is no record")
        return [self._value(record, one) for one in self._wanted]

    def elements(self, raw: bytes) -> list[tuple[int, bytes]]:
        """Return the elements of the arrays, each with the number of its kind.

        Raises:
            RecordError: with the reason.
        """
        record, found = self._read(raw), []
        for number, array in enumerate(self._arrays):
            place = _at(record, array.path)
            if isinstance(place, _Items):
                kind = self._kinds[number, id(place.type)]
                found += [(kind, raw[begin:end]) for begin, end in place.bounds]
            elif place is not None:
                raise RecordError(f"field '{array.name}' is {_shown(place)}, which is no array")
        return found

    def _read(self, raw: bytes) -> Any:
        reader = _Reader(raw)
        record = reader.read(self._schema)
        if reader.at < len(raw):
            over = len(raw) - reader.at
            raise RecordError(f"{over} bytes follow the Avro record: it was written with another schema")
        return record

    def _value(self, record: Any, wanted: Wanted) -> Value:
        if not has_path(self._schema, wanted.path):
            return wanted.default
        record = _at(record, wanted.path)
        if record is None:
            return None
        if not isinstance(record, _Leaf):
            raise refused(wanted.name, wanted.type, _shown(record))
        return _converted(record.type, record.value, wanted)


def _at(record: Any, path: Path) -> Any:
    """What is at a path in a record; None where nothing is."""
    for step in path:
        if isinstance(record, dict) and isinstance(step, str):
            record = record.get(step)
        elif isinstance(record, list) and isinstance(step, int) and step < len(record):
            record = record[step]
        else:
            return None
    return record


def _shown(value: Any) -> str:
    """What the reader has read, for a message."""
    if isinstance(value, _Leaf):
        return f"{value.type} {shown(value.value)}"
    return "an array" if isinstance(value, list) else "a record"


def has_path(schema: Avro, path: Path) -> bool:
    """Return whether records of a schema may have a path; a key of a map counts as present."""
    if schema.kind == "union":
        return any(has_path(branch, path) for branch in schema.types)
    if not path:
        return True
    step, rest = path[0], path[1:]
    if schema.kind == "record" and isinstance(step, str):
        return any(field.name == step and has_path(field.type, rest) for field in schema.fields)
    inside = (schema.kind == "map" and isinstance(step, str)) or (schema.kind == "array" and isinstance(step, int))
    return inside and has_path(schema.types[0], rest)


def misfits(schema: Avro, wanted: Sequence[Wanted]) -> list[str]:
    """Return which columns no record of a schema can have, and why."""
    found = []
    for one in wanted:
        types = _types_at(schema, one.path)
        values = [type for type in types if type.kind != "null"]
        if not types:
            known = ", ".join(field.name for field in schema.fields) if schema.kind == "record" else str(schema)
            place = path_text(one.path)
            at = "" if place == one.name else f" FROM '{place}'"
            found.append(f"column '{one.name}'{at}, which the schema does not have (it has: {shown(known)})")
        elif values and not any(_accepts(type, one.type) for type in values):
            kinds = " or ".join(map(str, types))
            found.append(f"column '{one.name}' {one.type}, which the schema has as {kinds}")
    return found


def array_misfits(schema: Avro, arrays: Sequence[WantedArray]) -> list[str]:
    """Return which arrays, or columns of their elements, no record of a schema can have, and why."""
    found = []
    for array in arrays:
        types = _types_at(schema, array.path)
        items = [type.types[0] for type in types if type.kind == "array"]
        if not items:
            why = f"has as {' or '.join(map(str, types))}" if types else "does not have"
            found.append(f"array '{array.name}', which the schema {why}")
            continue
        kinds = [kind for type in items for kind in _types_at(type, ()) if kind.kind != "null"]
        found += misfits(kinds[0] if len(kinds) == 1 else Avro("union", types=tuple(kinds)), array.elements)
    return found


def _types_at(schema: Avro, path: Path) -> list[Avro]:
    """The types that a value at a path may have, unions resolved; none if no record has the path."""
    if schema.kind == "union":
        return [type for branch in schema.types for type in _types_at(branch, path)]
    if not path:
        return [schema]
    step, rest = path[0], path[1:]
    if schema.kind == "record":
        return [type for field in schema.fields if field.name == step for type in _types_at(field.type, rest)]
    inside = (schema.kind == "map" and isinstance(step, str)) or (schema.kind == "array" and isinstance(step, int))
    return _types_at(schema.types[0], rest) if inside else []


def _accepts(type: Avro, wanted: Type) -> bool:
    """Whether a column accepts values of a type, as far as the type tells."""
    match wanted:
        case Type.BIGINT:
            return type.kind in ("int", "long")
        case Type.DOUBLE:
            return type.kind in ("int", "long", "float", "double") or type.logical == "decimal"
        case Type.STRING:
            return type.kind in ("string", "bytes", "enum") or type.logical in ("decimal", "uuid")
        case Type.BOOLEAN:
            return type.kind == "boolean"
        case Type.TIMESTAMP:
            return type.kind in ("long", "string") or type.logical == "date"


def _converted(type: Avro, value: Any, wanted: Wanted) -> Value:
    """Convert a value of Avro's to one of the column's."""
    logical = type.logical
    if type.kind == "int" and not -(1 << 31) <= value < 1 << 31:
        raise RecordError(f"field '{wanted.name}' is {value}, an int of Avro has 32 bits")
    if logical == "decimal":
        if len(value) > MAX_DECIMAL_BYTES:
            raise RecordError(f"field '{wanted.name}' is a decimal of {len(value)} bytes, at most {MAX_DECIMAL_BYTES}")
        number = Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-type.scale, _EXACT)
        if wanted.type is Type.STRING:
            return f"{number:f}"
        if wanted.type is Type.DOUBLE:
            return check_value(wanted.name, wanted.type, float(number))
        raise refused(wanted.name, wanted.type, f"decimal {number:f}")
    if logical == "uuid" and type.kind == "fixed":
        value = str(uuid.UUID(bytes=value))
    if wanted.type is Type.TIMESTAMP and isinstance(value, int) and not isinstance(value, bool):
        if logical == "date":
            return value * _DAY_MS
        if type.kind == "long":
            return value // _PER_MS.get(logical.rpartition("-")[2], 1)
        raise refused(wanted.name, wanted.type, f"{type} {value}")
    if isinstance(value, bytes):
        if wanted.type is not Type.STRING or type.kind == "fixed":
            raise refused(wanted.name, wanted.type, f"{type} {shown(value)}")
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            place = f"{error.reason} at byte {error.start + 1}"
            raise RecordError(f"field '{wanted.name}' is not UTF-8 ({place}), STRING accepts a string") from None
    return check_value(wanted.name, wanted.type, value)


class _Reader:
    """Reads values from bytes; `at` is the position."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self.at = 0
        self._items = 0
        self._depth = 0

    def read(self, type: Avro) -> Any:
        """Return a record or map as dict, an array as list, null as None, and anything else as leaf."""
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise RecordError(f"the record has more than {MAX_NESTING} values within each other")
        found = self._read(type)
        self._depth -= 1
        return found

    def _read(self, type: Avro) -> Any:
        match type.kind:
            case "null":
                return None
            case "record":
                return {field.name: self.read(field.type) for field in type.fields}
            case "union":
                return self.read(type.types[self._branch(len(type.types), "branch of a union")])
            case "array":
                return self._array(type.types[0])
            case "map":
                return self._map(type.types[0])
        return _Leaf(type, self._leaf(type))

    def _leaf(self, type: Avro) -> Any:
        match type.kind:
            case "boolean":
                return self._taken(1) != b"\0"
            case "int" | "long":
                return self._long()
            case "float":
                return struct.unpack("<f", self._taken(4))[0]
            case "double":
                return struct.unpack("<d", self._taken(8))[0]
            case "fixed":
                return self._taken(type.size)
            case "enum":
                return type.symbols[self._branch(len(type.symbols), "symbol of an enum")]
        found = self._taken(self._long())
        return found if type.kind == "bytes" or type.logical == "decimal" else self._text(found)

    def _text(self, found: bytes) -> Any:
        # A string that is not wanted may hold anything.
        try:
            return found.decode()
        except UnicodeDecodeError:
            return found

    def _array(self, item: Avro) -> _Items:
        found = _Items(item)
        while count := self._count():
            self._check_items(count)
            for _ in range(count):
                begin = self.at
                found.append(self.read(item))
                found.bounds.append((begin, self.at))
        return found

    def _map(self, value: Avro) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while count := self._count():
            self._check_items(count)
            for _ in range(count):
                key = self._taken(self._long())
                found[key.decode(errors="replace")] = self.read(value)
        return found

    def _count(self) -> int:
        count = self._long()
        if count < 0:
            self._long()  # the bytes of the block
            count = -count
        return count

    def _check_items(self, count: int) -> None:
        self._items += count
        if self._items > len(self._raw) + MAX_ITEMS_OF_NOTHING:
            raise RecordError(f"broken Avro: {count} items do not fit into the record")

    def _branch(self, count: int, what: str) -> int:
        branch = self._long()
        if not 0 <= branch < count:
            raise RecordError(f"broken Avro: {what} {branch} of {count}")
        return branch

    def _long(self) -> int:
        found = 0
        for shift in range(0, 70, 7):
            (byte,) = self._taken(1)
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                found &= (1 << 64) - 1
                return (found >> 1) ^ -(found & 1)
        raise RecordError("broken Avro: a number of more than 10 bytes")

    def _taken(self, count: int) -> bytes:
        begin, self.at = self.at, self.at + count
        if count < 0 or self.at > len(self._raw):
            raise RecordError(f"broken Avro: {count} bytes expected at byte {begin + 1} of {len(self._raw)}")
        return self._raw[begin : self.at]
