"""The kinds of schemas that a registry has, and what each is to Weir: Avro, JSON Schema, Protobuf."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from schemas.avro.columns import arrays_of, columns_of
from schemas.avro.schema import Avro, parse_avro
from schemas.codecs.json_schema import arrays_of_json_schema, columns_of_json_schema
from schemas.errors import DataError
from schemas.query import Array, Field, Stream
from services.formats.known_protos import imports_of as imports_of_text
from services.formats.known_protos import known_protos

if TYPE_CHECKING:
    from schemas.protobuf.descriptors import ProtobufSchema

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class SchemaKind(Generic[T]):
    """A kind of schemas.

    Attributes:
        name: what registries call it.
        parse: makes a schema of its text, and of the names and texts of those that it refers to, each after those that
            it refers to itself; or raises DataError.
        columns: returns the columns and arrays that records of a stream have by a schema.
    """

    name: str
    parse: Callable[[str, Sequence[tuple[str, str]]], T]
    columns: Callable[[T, Stream], list[Field | Array]]


def _avro(text: str, referenced: Sequence[tuple[str, str]]) -> Avro:
    return parse_avro(text, [one for _, one in referenced])


def _protobuf(text: str, referenced: Sequence[tuple[str, str]]) -> ProtobufSchema:
    # Not above: few need it.
    from schemas.protobuf.compiler import compile_text
    from schemas.protobuf.descriptors import imports_of, parse_file

    # Serializers register what they have compiled, and some registries give that back.
    files = [(name, _decoded(one)) for name, one in (*referenced, ("", text))]
    compiled = [(name, raw) for name, raw in files if raw is not None]
    names = {name for name, _ in referenced}
    if len(compiled) == len(files):
        known = known_protos(name for _, raw in compiled for name in imports_of(raw) if name not in names)
        return parse_file(compiled[-1][1], [*(one for one in known if one[0] not in names), *compiled[:-1]])
    if compiled:
        raise DataError("it and what it refers to are in part texts, and in part compiled")
    imported = (name for one in (text, *(one for _, one in referenced)) for name in imports_of_text(one))
    return compile_text(text, referenced, known_protos(name for name in imported if name not in names))


def _decoded(text: str) -> bytes | None:
    """The bytes that a text is in base 64; None for another text."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _protobuf_columns(schema: ProtobufSchema, stream: Stream) -> list[Field | Array]:
    from schemas.protobuf import columns

    type = schema.named(stream.message)
    return [*columns.columns_of(type), *columns.arrays_of(type)]


AVRO: SchemaKind[Avro] = SchemaKind("AVRO", _avro, lambda schema, _: [*columns_of(schema), *arrays_of(schema)])
JSON: SchemaKind[str] = SchemaKind(
    "JSON", lambda text, _: text, lambda text, _: [*columns_of_json_schema(text), *arrays_of_json_schema(text)]
)
PROTOBUF: SchemaKind[ProtobufSchema] = SchemaKind("PROTOBUF", _protobuf, _protobuf_columns)

KINDS = {"avro": AVRO, "json-schema": JSON, "protobuf": PROTOBUF}
"""By the format of records."""
