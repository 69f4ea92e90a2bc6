"""The columns that records of an Avro schema have, for a stream that is declared without a list of them.

A field of a nested record becomes the column `customer_city`, with the path `customer.city`. Maps and bytes have no
column, nor has a union of several types: whoever needs one of these declares the columns. An array of records has
the columns of these records, but no arrays within them.
"""

from __future__ import annotations

from schemas.avro.schema import Avro
from schemas.errors import DataError
from schemas.query import ELEMENT, ORDINAL, Array, Field, Path, Type

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
    return [column for column in _all(schema, arrays=False) if isinstance(column, Field)]


def arrays_of(schema: Avro) -> list[Array]:
    """Return the arrays, as `columns_of` returns the columns."""
    return [array for array in _all(schema, arrays=True) if isinstance(array, Array)]


def _all(schema: Avro, *, arrays: bool) -> list[Field | Array]:
    found: list[Field | Array] = []
    _add(schema, (), (), found, arrays)
    shortest: dict[str, list[int]] = {}
    for column in found:
        shortest.setdefault(column.name, []).append(len(column.place))
    return [column for column in found if _wins(len(column.place), shortest[column.name])]


def _wins(length: int, lengths: list[int]) -> bool:
    return length == min(lengths) and lengths.count(length) == 1


def _without_null(schema: Avro) -> Avro:
    """The one type beside null of a union that has one; any other type as it is."""
    branches = [branch for branch in schema.types if branch.kind != "null"] if schema.kind == "union" else []
    return branches[0] if len(branches) == 1 else schema


def _add(schema: Avro, path: Path, around: tuple[Avro, ...], found: list[Field | Array], arrays: bool) -> None:
    schema = _without_null(schema)
    if schema.kind == "record":
        if all(schema is not one for one in around):  # a record may contain itself
            for field in schema.fields:
                _add(field.type, (*path, field.name), (*around, schema), found, arrays)
        return
    if schema.kind == "array" and not arrays:
        return
    column = _column(schema, "_".join(map(str, path)), path if len(path) > 1 else ())
    if column is not None and path:
        if len(found) >= MAX_COLUMNS:
            raise DataError(f"the schema has more than {MAX_COLUMNS} columns; declare those that are needed")
        found.append(column)


def _column(schema: Avro, name: str, path: Path) -> Field | Array | None:
    """The column or the array that has values of a type; None for other types."""
    if schema.kind != "array":
        type = _type_of(schema)
        return None if type is None else Field(name, type, path)
    items = _without_null(schema.types[0])
    if items.kind == "record":
        fields = [field for field in columns_of(items) if field.name != ORDINAL]
    else:
        type = _type_of(items)
        fields = [] if type is None else [Field(ELEMENT, type)]
    return Array(name, tuple(fields), items.kind == "record", path) if fields else None


def _type_of(schema: Avro) -> Type | None:
    if schema.logical.startswith(("timestamp-", "local-timestamp-")) or schema.logical == "date":
        return Type.TIMESTAMP
    if schema.logical == "decimal":
        return Type.DOUBLE
    return Type.STRING if schema.logical == "uuid" else _TYPES.get(schema.kind)
