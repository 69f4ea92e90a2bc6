"""Shows records that name a schema of a registry, in Avro, Protobuf or JSON, as JSON, for the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from schemas.avro.columns import columns_of
from schemas.avro.rules import AvroRules
from schemas.avro.schema import Avro
from schemas.codecs.decoded import RecordError, Value
from schemas.codecs.schema_decoder import FRAME
from schemas.codecs.wanted import Wanted
from schemas.errors import DataError
from schemas.query import Field, Path
from services.formats.registry_access import RegistryAccess
from services.formats.schema_kinds import KINDS
from services.formats.schema_registry import SchemaRegistry, SchemaUnavailable

if TYPE_CHECKING:
    from schemas.protobuf.descriptors import ProtobufSchema

PATIENCE_S = 1.0
"""How long a page waits for a schema that is asked for first."""

_Read = Callable[[bytes], dict[str | int, Any]]
"""Reads what is behind a record's frame. Raises RecordError if it is broken."""


class SchemaText:
    """Shows the results of a query, whose schemas are in a registry.

    Args:
        formats: of their values and keys.
    """

    def __init__(self, url: str, access: RegistryAccess, formats: Iterable[str]) -> None:
        self._kinds = [
            (SchemaRegistry[Any](url, access, KINDS[format], PATIENCE_S), _READERS[format])
            for format in dict.fromkeys(formats)
            if format in _READERS
        ]
        self._known: dict[int, _Read] = {}

    def __call__(self, raw: bytes) -> bytes:
        """A record as JSON; as it is if it cannot be read, or not yet."""
        if raw[:1] != b"\0" or len(raw) < FRAME:
            return raw
        number, body = int.from_bytes(raw[1:FRAME], "big"), raw[FRAME:]
        if body[:1] == b"{":
            try:
                return orjson.dumps(orjson.loads(body))
            except orjson.JSONDecodeError:
                pass  # Avro that begins like JSON
        for registry, reader_of in self._kinds:  # a schema has one kind, and its number does not tell which
            try:
                if number not in self._known:
                    self._known[number] = reader_of(registry.schema(number))
                return orjson.dumps(self._known[number](body))
            except (RecordError, DataError, SchemaUnavailable):
                continue
        return raw


def _avro_reader(schema: Avro) -> _Read:
    columns = columns_of(schema)
    return _named(columns, AvroRules(schema, _wanted(columns)).values)


def _protobuf_reader(schema: ProtobufSchema) -> _Read:
    from schemas.protobuf.columns import columns_of  # not above: few need it
    from schemas.protobuf.rules import ProtobufRules

    type = schema.message((0,))
    columns = columns_of(type)
    read = _named(columns, ProtobufRules(type, _wanted(columns)).values)

    def behind_place(body: bytes) -> dict[str | int, Any]:
        if body[:1] != b"\0":
            raise RecordError("the record has another message type than the first of its schema")
        return read(body[1:])

    return behind_place


_READERS: dict[str, Callable[[Any], _Read]] = {"avro": _avro_reader, "protobuf": _protobuf_reader}


def _wanted(columns: Sequence[Field]) -> list[Wanted]:
    return [Wanted(column.name, column.place, column.type) for column in columns]


def _named(columns: Sequence[Field], values: Callable[[bytes], Sequence[Value]]) -> _Read:
    places = [column.place for column in columns]
    return lambda body: _nested(places, values(body))


def _nested(places: Sequence[Path], values: Sequence[Value]) -> dict[str | int, Any]:
    """The values at their places in objects in each other."""
    found: dict[str | int, Any] = {}
    for (*around, name), value in zip(places, values, strict=True):
        inside = found
        for step in around:
            inside = inside.setdefault(step, {})
        inside[name] = value
    return found
