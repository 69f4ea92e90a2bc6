"""The columns that records of an Avro schema have, for a stream that is declared without a list of them.

A field of a nested record becomes the column `customer_city`, with the path `customer.city`. Arrays, maps and bytes
have no column, nor has a union of several types: whoever needs one of these declares the columns.
"""

from __future__ import annotations

from schemas.avro.schema import Avro
from schemas.errors import DataError
from schemas.query import Field, Path, Type

MAX_COLUMNS = 10_000

_TYPES = {
    "int": Type.BIGINT,
    "long": Type.BIGINT,
    "float": Type.DOUBLE,
    "double": Type.DOUBLE,
    "string": Type.STRING,
    "enum": Type.STRING,
    "boolean": Type.BOOLEAN,
}


def columns_of(schema: Avro) -> list[Field]:
    """Return the columns in the order of the schema's fields. Of columns of one name the one with the shortest path
    counts; there is none if several have it.

    Raises:
        DataError: there are more than MAX_COLUMNS.
    """
    found: list[Field] = []
    _add(schema, (), (), found)
    shortest: dict[str, list[int]] = {}
    for column in found:
        shortest.setdefault(column.name, []).append(len(column.place))
    return [column for column in found if _wins(len(column.place), shortest[column.name])]


def _wins(length: int, lengths: list[int]) -> bool:
    return length == min(lengths) and lengths.count(length) == 1


def _add(schema: Avro, path: Path, around: tuple[Avro, ...], found: list[Field]) -> None:
    if schema.kind == "union":
        branches = [branch for branch in schema.types if branch.kind != "null"]
        if len(branches) == 1:
            _add(branches[0], path, around, found)
        return
    if schema.kind == "record":
        if all(schema is not one for one in around):  # a record may contain itself
            for field in schema.fields:
                _add(field.type, (*path, field.name), (*around, schema), found)
        return
    type = _type_of(schema)
    if type is not None and path:
        name = "_".join(map(str, path))
        if len(found) >= MAX_COLUMNS:
            raise DataError(f"the schema has more than {MAX_COLUMNS} columns; declare those that are needed")
        found.append(Field(name, type, path if len(path) > 1 else ()))


def _type_of(schema: Avro) -> Type | None:
    if schema.logical.startswith(("timestamp-", "local-timestamp-")) or schema.logical == "date":
        return Type.TIMESTAMP
    if schema.logical == "decimal":
        return Type.DOUBLE
    return Type.STRING if schema.logical == "uuid" else _TYPES.get(schema.kind)
