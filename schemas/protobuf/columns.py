"""The columns that records of a Protobuf message type have, for a stream that is declared without a list of them.

A field of a message within becomes the column `customer_city`, with the path `customer.city`. Maps and bytes have no
column. A repeated field is an array; of messages it has the columns of these messages, but no arrays within them.
"""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from schemas.errors import DataError
from schemas.protobuf.rules import TIMESTAMP, WRAPPERS, F, is_array
from schemas.query import ELEMENT, ORDINAL, Array, Field, Path, Type

MAX_COLUMNS = 10_000
MAX_FIELDS = 100_000
MAX_NESTING = 50

_TYPES = {
    F.CPPTYPE_INT32: Type.BIGINT,
    F.CPPTYPE_INT64: Type.BIGINT,
    F.CPPTYPE_UINT32: Type.BIGINT,
    F.CPPTYPE_UINT64: Type.BIGINT,
    F.CPPTYPE_DOUBLE: Type.DOUBLE,
    F.CPPTYPE_FLOAT: Type.DOUBLE,
    F.CPPTYPE_BOOL: Type.BOOLEAN,
    F.CPPTYPE_ENUM: Type.STRING,
    F.CPPTYPE_STRING: Type.STRING,
}


def columns_of(descriptor: Descriptor) -> list[Field]:
    """Return the columns in the order of the fields. Of columns of one name the first counts.

    Raises:
        DataError: there are too many.
    """
    return [column for column in _all(descriptor, arrays=False) if isinstance(column, Field)]


def arrays_of(descriptor: Descriptor) -> list[Array]:
    """Return the arrays, as `columns_of` returns the columns."""
    return [array for array in _all(descriptor, arrays=True) if isinstance(array, Array)]


def _all(descriptor: Descriptor, *, arrays: bool) -> list[Field | Array]:
    found: dict[str, Field | Array] = {}
    visited = 0

    def add(descriptor: Descriptor, path: tuple[str, ...], around: tuple[str, ...]) -> None:
        nonlocal visited
        if descriptor.full_name in around:  # a message may contain itself
            return
        for field in descriptor.fields:
            visited += 1
            if visited > MAX_FIELDS or len(path) > MAX_NESTING:
                raise DataError("the schema has too many fields within each other; declare the columns")
            place = (*path, field.name)
            name, found_at = "_".join(place), place if len(place) > 1 else ()
            column = _column(field, name, found_at) if arrays or not field.is_repeated else None
            if column is not None:
                if len(found) >= MAX_COLUMNS:
                    raise DataError(f"the schema has more than {MAX_COLUMNS} columns; declare those that are needed")
                found.setdefault(column.name, column)
            elif field.type == F.TYPE_MESSAGE and not field.is_repeated:
                add(field.message_type, place, (*around, descriptor.full_name))

    add(descriptor, (), ())
    return list(found.values())


def _column(field: FieldDescriptor, name: str, path: Path) -> Field | Array | None:
    """The column or the array that has values of a field; None for others."""
    type = _type_of(field)
    if not field.is_repeated:
        return None if type is None else Field(name, type, path)
    if not is_array(field):
        return None
    if type is not None or field.type != F.TYPE_MESSAGE:
        return None if type is None else Array(name, (Field(ELEMENT, type),), False, path)
    fields = tuple(one for one in columns_of(field.message_type) if one.name != ORDINAL)
    return Array(name, fields, True, path) if fields else None


def _type_of(field: FieldDescriptor) -> Type | None:
    """The type of the column with values of a field, of a repeated one each; None for others."""
    if field.type == F.TYPE_BYTES:
        return None
    if field.type == F.TYPE_MESSAGE:
        name = field.message_type.full_name
        if name in WRAPPERS:
            return _type_of(field.message_type.fields_by_name["value"])
        return Type.TIMESTAMP if name == TIMESTAMP else None
    return _TYPES.get(field.cpp_type)
