"""Makes the Avro schemas of results: of their values, and of the keys of upserts.

    {"type": "record", "name": "alarms", "fields": [
      {"name": "mote", "type": ["null", "long"], "default": null}, ...
      {"name": "_ts", "type": {"type": "long", "logicalType": "timestamp-millis"}}]}

Any output may be null, so each is a union with null. `_phase` is there where results can come late: not for aggregates
and EXCEPT, whose results never do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import orjson

from schemas.avro.schema import PRIMITIVES
from schemas.query import Query, Type, type_of

TIMESTAMP_FIELD: Final = "_ts"
PHASE_FIELD: Final = "_phase"
OP_FIELD: Final = "_op"
NOTHING_FIELD: Final = "group"

_TIMESTAMP: Final = {"type": "long", "logicalType": "timestamp-millis"}
_TYPES: Final[dict[Type, Any]] = {
    Type.BIGINT: "long",
    Type.DOUBLE: "double",
    Type.STRING: "string",
    Type.BOOLEAN: "boolean",
    Type.TIMESTAMP: _TIMESTAMP,
}
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_]")
_AFTER: Final = re.compile(r"_+([A-Za-z0-9]?)")
_FULL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


def has_phase(query: Query) -> bool:
    """Whether the results of a query can come late, and then say so."""
    return query.aggregation is None and not query.subtracted


def value_schema(query: Query, record: str) -> str:
    """The schema of a query's results, as JSON.

    Args:
        record: the full name of the record.
    """
    fields = [_nullable(output.name, type_of(output.expr)) for output in query.outputs]
    if query.subtracted:
        fields.append({"name": OP_FIELD, "type": "string"})
    fields.append({"name": TIMESTAMP_FIELD, "type": _TIMESTAMP})
    if has_phase(query):
        fields.append(_nullable(PHASE_FIELD, Type.STRING))
    return _record(record, fields)


def key_schema(names: Sequence[str], types: Sequence[Type], record: str) -> str:
    """The schema of keys, as JSON. A key of no value has one field, always null: deserializers refuse records of no
    bytes."""
    fields = list(map(_nullable, names, types))
    return _record(record, fields or [_nullable(NOTHING_FIELD, Type.STRING)])


def record_name(topic: str) -> str:
    """The full name of the record of a topic's results: the parts of the topic's name before dots are namespaces."""
    made = ".".join(field_name(part) for part in topic.split(".") if part) or "_"
    return made if is_record_name(made) else f"{made}_"


def is_record_name(name: str) -> bool:
    """Whether Avro has such full names. Its types are called otherwise than "string" and the like."""
    return _FULL_NAME.fullmatch(name) is not None and name.rpartition(".")[2] not in PRIMITIVES


def field_name(name: str) -> str:
    """The name in Avro, which has letters of ASCII, digits and `_` only: `T.celsius` becomes `T_celsius`."""
    made = _NOT_IN_NAMES.sub("_", name)
    return f"_{made}" if made[:1].isdigit() or not made else made


def same_field(names: Iterable[str], *, as_json: bool = False) -> tuple[str, str] | None:
    """Two names that would become one field of Avro; None if there are none.

    Args:
        as_json: whether names must also differ in the form that Protobuf gives them in JSON: `room_id` as `roomId`.
    """
    taken: dict[str, str] = {}
    for name in (TIMESTAMP_FIELD, PHASE_FIELD, OP_FIELD, *names):
        made = field_name(name)
        other = taken.setdefault(_AFTER.sub(lambda found: found[1].upper(), made) if as_json else made, name)
        if other != name:
            return other, name
    return None


def _nullable(name: str, type: Type) -> dict[str, Any]:
    return {"name": field_name(name), "type": ["null", _TYPES[type]], "default": None}


def _record(name: str, fields: Sequence[dict[str, Any]]) -> str:
    return orjson.dumps({"type": "record", "name": name, "fields": fields}).decode()
