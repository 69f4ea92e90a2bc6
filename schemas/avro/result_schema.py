"""Makes the Avro schemas of results: of their values, and of the keys of upserts.

    {"type": "record", "name": "alarms", "fields": [
      {"name": "mote", "type": ["null", "long"], "default": null}, ...
      {"name": "_ts", "type": {"type": "long", "logicalType": "timestamp-millis"}}]}

Any output may be null, so each is a union with null. An object of outputs is a record, `alarms_customer`, and never
null. `_phase` is there where results can come late: not for aggregates
and EXCEPT, whose results never do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import orjson

from schemas.avro.schema import PRIMITIVES
from schemas.members import Member, value_members
from schemas.query import OP_KEY, PHASE_KEY, TIMESTAMP_KEY, Query, Type, type_of

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
    types = [_nullable(type_of(output.expr)) for output in query.outputs]
    fields = _fields(value_members(query), [*types, {"type": "string"}], record, set())
    fields.append({"name": TIMESTAMP_KEY, "type": _TIMESTAMP})
    if has_phase(query):
        fields.append({"name": PHASE_KEY, **_nullable(Type.STRING)})
    return _record(record, fields)


def key_schema(members: Sequence[Member], types: Sequence[Type], record: str) -> str:
    """The schema of keys, as JSON. A key of no value has one field, always null: deserializers refuse records of no
    bytes.

    Args:
        types: of the columns of the members.
    """
    fields = _fields(members, list(map(_nullable, types)), record, set())
    return _record(record, fields or [{"name": NOTHING_FIELD, **_nullable(Type.STRING)}])


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


def same_field(members: Iterable[Member], *, as_json: bool = False) -> tuple[str, str] | None:
    """Two names that would become one field of Avro; None if there are none.

    Args:
        as_json: whether names must also differ in the form that Protobuf gives them in JSON: `room_id` as `roomId`.
    """
    return _same_field(members, (TIMESTAMP_KEY, PHASE_KEY, OP_KEY), as_json)


def _same_field(members: Iterable[Member], others: Iterable[str], as_json: bool) -> tuple[str, str] | None:
    members = [member for member in members if member.name not in others]
    taken: dict[str, str] = {}
    for name in (*others, *(member.name for member in members)):
        made = field_name(name)
        other = taken.setdefault(_AFTER.sub(lambda found: found[1].upper(), made) if as_json else made, name)
        if other != name:
            return other, name
    for member in members:
        found = _same_field(member.members, (), as_json)
        if found is not None:
            return f"{member.name}.{found[0]}", f"{member.name}.{found[1]}"
    return None


def _nullable(type: Type) -> dict[str, Any]:
    return {"type": ["null", _TYPES[type]], "default": None}


def _fields(
    members: Sequence[Member], types: Sequence[dict[str, Any]], record: str, taken: set[str]
) -> list[dict[str, Any]]:
    """The fields of members.

    Args:
        types: what each column's field has beside its name.
        record: the name of the record that they are in.
        taken: names of records that are taken; grows.
    """
    found: list[dict[str, Any]] = []
    for member in members:
        name = field_name(member.name)
        if not member.members:
            found.append({"name": name, **types[member.column]})
            continue
        inside = f"{record.rpartition('.')[2]}_{name}"
        while inside in taken:  # of "a_b.c" and of "a.b.c"
            inside += "_"
        taken.add(inside)
        fields = _fields(member.members, types, inside, taken)
        found.append({"name": name, "type": {"type": "record", "name": inside, "fields": fields}})
    return found


def _record(name: str, fields: Sequence[dict[str, Any]]) -> str:
    return orjson.dumps({"type": "record", "name": name, "fields": fields}).decode()
