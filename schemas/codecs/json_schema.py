"""JSON under a schema registry: records with the registry's frame, and the columns that a JSON Schema describes.

The frame is a zero and the schema's number; JSON follows. A record is decoded by the stream's columns, like any JSON:
its schema says nothing more about values than they say themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import orjson

from schemas.codecs.decoded import DeadLetter, Decoded
from schemas.columns import I64
from schemas.errors import DataError
from schemas.members import Member, value_members
from schemas.query import ELEMENT, ORDINAL, PHASE_KEY, TIMESTAMP_KEY, Array, Field, Path, Query, Type, type_of

MAX_NESTING: Final = 50
MAX_COLUMNS: Final = 10_000

_FRAME: Final = 5
_NO_FRAME: Final = "the record has no frame of a schema registry: a zero byte and a schema's number"
_TYPES: Final[Mapping[str, Type]] = {
    "integer": Type.BIGINT,
    "number": Type.DOUBLE,
    "string": Type.STRING,
    "boolean": Type.BOOLEAN,
}
_JSON_TYPES: Final[Mapping[Type, str]] = {
    Type.BIGINT: "integer",
    Type.DOUBLE: "number",
    Type.STRING: "string",
    Type.BOOLEAN: "boolean",
    Type.TIMESTAMP: "integer",
}


class JsonOfRecords(Protocol):
    """Decodes JSON without a frame, as `schemas.codecs.json_codec.JsonDecoder` does."""

    def decode_values(self, values: Sequence[bytes | None], record_ts: I64 | None = None) -> Decoded:
        """Decode one record per value."""
        ...


class FramedJsonDecoder:
    """Decodes the framed JSON records of one stream. Safe to call from several threads.

    Args:
        decoder: of the JSON in them.
    """

    def __init__(self, decoder: JsonOfRecords) -> None:
        self._decoder = decoder

    def decode_values(self, values: Sequence[bytes | None], record_ts: I64 | None = None) -> Decoded:
        """Decode one record per value; one without the frame is a dead letter.

        Args:
            record_ts: (values,) the Kafka records' timestamps, used when the stream has no timestamp field.
        """
        bodies = [value[_FRAME:] if value is not None and value[:1] == b"\0" else None for value in values]
        found = self._decoder.decode_values(bodies, record_ts)
        return replace(found, dead=[_as_given(letter, values[letter.row], bodies) for letter in found.dead])


def _as_given(letter: DeadLetter, given: bytes | None, bodies: Sequence[bytes | None]) -> DeadLetter:
    """A dead letter with the whole record, and a reason for one that has no frame."""
    unframed = given is not None and bodies[letter.row] is None
    return DeadLetter(letter.row, _NO_FRAME if unframed else letter.reason, given or b"")


def columns_of_json_schema(text: str) -> list[Field]:
    """Return the columns that objects of a JSON Schema have: scalars, those of nested objects as `customer_city`.

    What has several types, is an array or has no type has no column. A string of the format `date-time` is a TIMESTAMP.
    Of columns of one name the first counts.

    Raises:
        DataError: it is no JSON Schema of objects, or describes more than MAX_COLUMNS.
    """
    schema = _parsed(text)
    return _columns_of(schema, schema)


def arrays_of_json_schema(text: str) -> list[Array]:
    """Return the arrays, as `columns_of_json_schema` returns the columns; of objects with their columns."""
    schema = _parsed(text)
    found: dict[str, Field | Array] = {}
    _add(schema, schema, (), (), found, arrays=True)
    return [array for array in found.values() if isinstance(array, Array)]


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise DataError(f"broken JSON Schema: {error}") from None


def _columns_of(schema: Any, root: Any) -> list[Field]:
    """The columns that objects of a schema within another have."""
    found: dict[str, Field | Array] = {}
    _add(schema, root, (), (), found, arrays=False)
    return [column for column in found.values() if isinstance(column, Field)]


def _add(
    schema: Any, root: Any, path: Path, around: tuple[int, ...], found: dict[str, Field | Array], *, arrays: bool
) -> None:
    schema = _resolved(schema, root)
    if not isinstance(schema, dict) or len(path) > MAX_NESTING or (schema.get("type") == "array" and not arrays):
        return
    properties = schema.get("properties")
    if isinstance(properties, dict):
        if id(properties) not in around:  # an object may contain itself
            for name, inside in properties.items():
                _add(inside, root, (*path, name), (*around, id(properties)), found, arrays=arrays)
        return
    column = _column(schema, root, "_".join(map(str, path)), path if len(path) > 1 else ())
    if not path or column is None:
        return
    if len(found) >= MAX_COLUMNS:
        raise DataError(f"the schema has more than {MAX_COLUMNS} columns; declare those that are needed")
    found.setdefault(column.name, column)


def _column(schema: Mapping[str, Any], root: Any, name: str, path: Path) -> Field | Array | None:
    """The column or the array that has values of a schema; None for others."""
    if schema.get("type") != "array":
        type = _type_of(schema)
        return None if type is None else Field(name, type, path)
    items = _resolved(schema.get("items"), root)
    rows = isinstance(items, dict) and isinstance(items.get("properties"), dict)
    if rows:
        fields = [field for field in _columns_of(items, root) if field.name != ORDINAL]
    else:
        type = _type_of(items)
        fields = [] if type is None else [Field(ELEMENT, type)]
    return Array(name, tuple(fields), rows, path) if fields else None


def _type_of(schema: Any) -> Type | None:
    """The type of the column with values of a schema; None if they are no scalars."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if not isinstance(kind, str) or kind not in _TYPES:
        return None
    return Type.TIMESTAMP if kind == "string" and schema.get("format") == "date-time" else _TYPES[kind]


def _resolved(schema: Any, root: Any) -> Any:
    """The schema that a reference within the text means, and of a choice with null the other one."""
    for _ in range(MAX_NESTING):
        if not isinstance(schema, dict):
            return None
        if isinstance(reference := schema.get("$ref"), str):
            schema = _referred(reference, root)
            continue
        choices = schema.get("oneOf") or schema.get("anyOf")
        kinds = schema.get("type")
        if isinstance(choices, list):
            others = [one for one in choices if not (isinstance(one, dict) and one.get("type") == "null")]
        elif isinstance(kinds, list):
            others = [{**schema, "type": one} for one in kinds if one != "null"]
        else:
            return schema
        if len(others) != 1:
            return None
        schema = others[0]
    return None


def _referred(reference: str, root: Any) -> Any:
    """What a reference such as `#/definitions/Address` means; None if it is not in the text."""
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None
    found = root
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found


def value_json_schema(query: Query, record: str) -> str:
    """The JSON Schema of a query's results; any output may be null.

    Args:
        record: the title.
    """
    types = [_nullable(type_of(output.expr)) for output in query.outputs]
    properties = _properties(value_members(query), [*types, {"type": "string"}])
    required = [*properties, TIMESTAMP_KEY]
    properties[TIMESTAMP_KEY] = {"type": "integer"}
    if query.aggregation is None and not query.subtracted:
        properties[PHASE_KEY] = {"type": "string"}
    return _schema(record, _object(properties, required))


def key_json_schema(members: Sequence[Member], types: Sequence[Type], record: str) -> str:
    """The JSON Schema of the keys of results.

    Args:
        types: of the columns of the members.
    """
    properties = _properties(members, list(map(_nullable, types)))
    return _schema(record, _object(properties, list(properties)))


def _properties(members: Sequence[Member], types: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The properties of members.

    Args:
        types: of each column.
    """
    found: dict[str, Any] = {}
    for member in members:
        inside = _properties(member.members, types)
        found[member.name] = _object(inside, list(inside)) if inside else types[member.column]
    return found


def _nullable(type: Type) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, {"type": _JSON_TYPES[type]}]}


def _object(properties: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


def _schema(title: str, schema: dict[str, Any]) -> str:
    named = {"$schema": "http://json-schema.org/draft-07/schema#", "title": title, **schema}
    return orjson.dumps(named).decode()
