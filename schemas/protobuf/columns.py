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
    found: dict[str, Field] = {}
    visited = 0

    def add(descriptor: Descriptor, path: Path, around: tuple[str, ...]) -> None:
        nonlocal visited
        if descriptor.full_name in around:  # a message may contain itself
            return
        for field in descriptor.fields:
            visited += 1
            if visited > MAX_FIELDS or len(path) > MAX_NESTING:
                raise DataError("the schema has too many fields within each other; declare the columns")
            place = (*path, field.name)
            type = _type_of(field)
            if type is not None:
                name = "_".join(map(str, place))
                if len(found) >= MAX_COLUMNS:
                    raise DataError(f"the schema has more than {MAX_COLUMNS} columns; declare those that are needed")
                found.setdefault(name, Field(name, type, place if len(place) > 1 else ()))
            elif field.type == F.TYPE_MESSAGE and not field.is_repeated:
                add(field.message_type, place, (*around, descriptor.full_name))

    add(descriptor, (), ())
    return list(found.values())


def _type_of(field: FieldDescriptor) -> Type | None:
    if field.is_repeated or field.type == F.TYPE_BYTES:
        return None
    if field.type == F.TYPE_MESSAGE:
        name = field.message_type.full_name
        if name in WRAPPERS:
            return _type_of(field.message_type.fields_by_name["value"])
        return Type.TIMESTAMP if name == TIMESTAMP else None
    return _TYPES.get(field.cpp_type)
