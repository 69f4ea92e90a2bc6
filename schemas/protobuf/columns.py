"""The columns that records of a Protobuf message type have, for a stream that is declared without a list of them.

A field of a message within becomes the column `customer_city`, with the path `customer.city`. Repeated fields, maps and
bytes have no column.
"""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from schemas.errors import DataError
from schemas.protobuf.rules import TIMESTAMP, WRAPPERS, F
from schemas.query import Field, Path, Type

MAX_COLUMNS = 10_000

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
        DataError: there are more than MAX_COLUMNS.
    """
    found: dict[str, Field] = {}
    _add(descriptor, (), (), found)
    return list(found.values())


def _add(descriptor: Descriptor, path: Path, around: tuple[str, ...], found: dict[str, Field]) -> None:
    if descriptor.full_name in around:  # a message may contain itself
        return
    for field in descriptor.fields:
        place = (*path, field.name)
        type = _type_of(field)
        if type is not None:
            name = "_".join(map(str, place))
            if len(found) >= MAX_COLUMNS:
                raise DataError(f"the schema has more than {MAX_COLUMNS} columns; declare those that are needed")
            found.setdefault(name, Field(name, type, place if len(place) > 1 else ()))
        elif field.type == F.TYPE_MESSAGE and not field.is_repeated:
            _add(field.message_type, place, (*around, descriptor.full_name), found)


def _type_of(field: FieldDescriptor) -> Type | None:
    if field.is_repeated or field.type == F.TYPE_BYTES:
        return None
    if field.type == F.TYPE_MESSAGE:
        name = field.message_type.full_name
        if name in WRAPPERS:
            return _type_of(field.message_type.fields_by_name["value"])
        return Type.TIMESTAMP if name == TIMESTAMP else None
    return _TYPES.get(field.cpp_type)
