"""Parses Avro schemas, as registries and .avsc files have them, to a tree of types.

The form is Avro 1.12's, section "Schema Declaration". Names are resolved to the types that they mean, so a type that
contains itself is a cycle of the tree. An unknown logical type is ignored, and so is one that does not fit its type, as
the specification requires.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from schemas.errors import DataError

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")

_LOGICAL: Mapping[str, tuple[str, ...]] = {
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "decimal": ("bytes", "fixed"),
    "uuid": ("string", "fixed"),
    "duration": ("fixed",),
}

MAX_NESTING = 100
"""How many types may be within each other, and values in a record, whose type may contain itself."""

MAX_SCALE = 1_000
"""A decimal of more digits behind the point is read as the bytes that it is."""

_MISSING = object()


@dataclass(slots=True, eq=False)
class Avro:
    """A type.

    Attributes:
        kind: one of PRIMITIVES, or record, enum, array, map, fixed, union.
        name: of a record, enum or fixed, with its namespace.
        logical: the logical type; empty if there is none that Weir knows.
        scale: of a decimal.
        size: of a fixed, in bytes.
        symbols: of an enum.
        types: the item of an array, the value of a map, or the branches of a union.
        fields: of a record, in order.
    """

    kind: str
    name: str = ""
    logical: str = ""
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()
    types: tuple[Avro, ...] = ()
    fields: tuple[AvroField, ...] = ()

    def __str__(self) -> str:
        if self.kind == "union":
            return " or ".join(map(str, self.types))
        return self.logical or self.name or self.kind


@dataclass(frozen=True, slots=True, eq=False)
class AvroField:
    """A field of a record; `default` is as JSON has it, and only means something if `has_default`."""

    name: str
    type: Avro
    has_default: bool
    default: Any


def parse_avro(text: str | bytes, referenced: Sequence[str] = ()) -> Avro:
    """Return the type that a schema describes.

    Args:
        referenced: schemas whose types the schema names, each after those that it names itself.

    Raises:
        DataError: it is no Avro schema; the message says where and why.
    """
    parser = _Parser()
    for one in referenced:
        parser.type(_loaded(one), "", "a schema that is referred to")
    return parser.type(_loaded(text), "", "the schema")


def _loaded(text: str | bytes) -> Any:
    if text in PRIMITIVES:  # registries write a name alone without quotes
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise DataError(f"broken Avro schema: {error}") from None


@dataclass
class _Parser:
    named: dict[str, Avro] = field(default_factory=dict)
    depth: int = 0

    def type(self, schema: Any, namespace: str, where: str) -> Avro:
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise DataError(f"broken Avro schema: more than {MAX_NESTING} types within each other")
        found = self._type(schema, namespace, where)
        self.depth -= 1
        return found

    def _type(self, schema: Any, namespace: str, where: str) -> Avro:
        match schema:
            case str():
                if schema in PRIMITIVES:
                    return Avro(schema)
                return self._known(schema, namespace, where)
            case list():
                branches = [self.type(one, namespace, f"branch {i + 1} of {where}") for i, one in enumerate(schema)]
                if any(one.kind == "union" for one in branches):
                    raise _broken(where, "a union may not hold a union")
                if not branches:
                    raise _broken(where, "a union of nothing")
                return Avro("union", types=tuple(branches))
            case {"type": kind}:
                return self._declared(kind, schema, namespace, where)
        raise _broken(where, f"{orjson.dumps(schema).decode()[:60]} is no type")

    def _declared(self, kind: Any, schema: Mapping[str, Any], namespace: str, where: str) -> Avro:
        if not isinstance(kind, str):
            return self.type(kind, namespace, where)
        if kind in PRIMITIVES:
            return self._with_logical(Avro(kind), schema)
        if kind == "array":
            return Avro("array", types=(self.type(_given(schema, "items", where), namespace, f"items of {where}"),))
        if kind == "map":
            return Avro("map", types=(self.type(_given(schema, "values", where), namespace, f"values of {where}"),))
        if kind not in ("record", "error", "enum", "fixed"):
            return self._known(kind, namespace, where)
        name = _full_name(_given(schema, "name", where), schema.get("namespace"), namespace)
        if name in self.named or name in PRIMITIVES:
            raise _broken(where, f"the name {name!r} is taken")
        found = self.named[name] = Avro("record" if kind == "error" else kind, name)
        if kind == "enum":
            symbols = _given(schema, "symbols", where)
            if not isinstance(symbols, list) or not all(isinstance(one, str) for one in symbols):
                raise _broken(where, "symbols are a list of strings")
            found.symbols = tuple(symbols)
        elif kind == "fixed":
            size = _given(schema, "size", where)
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise _broken(where, "size is a whole number")
            found.size = size
            self._with_logical(found, schema)
        else:
            inside = name.rpartition(".")[0]
            fields = _given(schema, "fields", where)
            if not isinstance(fields, list):
                raise _broken(where, "fields are a list")
            found.fields = tuple(self._field(one, inside, name) for one in fields)
            if len({one.name for one in found.fields}) < len(found.fields):
                raise _broken(where, "two fields have one name")
        return found

    def _field(self, schema: Any, namespace: str, record: str) -> AvroField:
        where = f"a field of {record}"
        if not isinstance(schema, dict):
            raise _broken(where, "a field is an object")
        name = _given(schema, "name", where)
        if not isinstance(name, str):
            raise _broken(where, "a name is a string")
        where = f"field {name!r} of {record}"
        default = schema.get("default", _MISSING)
        found = self.type(_given(schema, "type", where), namespace, where)
        return AvroField(name, found, default is not _MISSING, None if default is _MISSING else default)

    def _known(self, name: str, namespace: str, where: str) -> Avro:
        found = self.named.get(_full_name(name, None, namespace)) or self.named.get(name)
        if found is None:
            raise _broken(where, f"unknown type {name!r}")
        return found

    @staticmethod
    def _with_logical(found: Avro, schema: Mapping[str, Any]) -> Avro:
        logical = schema.get("logicalType")
        if not isinstance(logical, str) or found.kind not in _LOGICAL.get(logical, ()):
            return found
        if logical == "decimal":
            scale, precision = schema.get("scale", 0), schema.get("precision")
            if not isinstance(scale, int) or not isinstance(precision, int) or not 0 <= scale <= precision:
                return found
            if scale > MAX_SCALE:
                return found
            found.scale = scale
        if logical == "uuid" and found.kind == "fixed" and found.size != 16:
            return found
        found.logical = logical
        return found


def _given(schema: Mapping[str, Any], name: str, where: str) -> Any:
    if name not in schema:
        raise _broken(where, f"{name!r} is missing")
    return schema[name]


def _full_name(name: Any, namespace: Any, enclosing: str) -> str:
    if not isinstance(name, str) or not name:
        raise DataError(f"broken Avro schema: {name!r} is no name")
    if "." in name:
        return name
    space = enclosing if namespace is None else namespace
    return f"{space}.{name}" if space else name


def _broken(where: str, why: str) -> DataError:
    return DataError(f"broken Avro schema, {where}: {why}")


def is_recursive(schema: Avro) -> bool:
    """Return whether a type contains itself, or a type that does. Cost: linear in the types."""
    above: set[int] = set()
    finite: set[int] = set()

    def visit(type: Avro) -> bool:
        if id(type) in finite:
            return False
        if id(type) in above:
            return True
        above.add(id(type))
        found = any(visit(one) for one in (*type.types, *(field.type for field in type.fields)))
        above.remove(id(type))
        finite.add(id(type))
        return found

    return visit(schema)
