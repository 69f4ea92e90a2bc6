"""Protobuf schemas: what protoc and registries write of a `.proto` file, as message types.

A schema is a file of message types with all files that it imports, in the form of `FileDescriptorProto`: from
`protoc --include_imports --descriptor_set_out=...`, or as serializers give it to registries. Google's own files
(`google/protobuf/timestamp.proto` and so on) need not be among them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.message import DecodeError, Error

from schemas.codecs.decoded import RecordError
from schemas.errors import DataError

MAIN: Final = "main.proto"
"""The name of a schema's own file."""

_KNOWN: Final = {
    module.DESCRIPTOR.name: module.DESCRIPTOR
    for module in (
        any_pb2,
        source_context_pb2,
        type_pb2,
        api_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )
}


@dataclass(frozen=True, slots=True, eq=False)
class ProtobufSchema:
    """A file of message types."""

    file: FileDescriptor

    def message(self, indexes: Sequence[int]) -> Descriptor:
        """The message type at a path of places: in the file, and in the types around it.

        Raises:
            RecordError: there is none.
        """
        found: Descriptor | None = None
        for index in indexes:
            inside = list((self.file.message_types_by_name if found is None else found.nested_types_by_name).values())
            if not 0 <= index < len(inside):
                raise RecordError(f"the schema has no message type at {list(indexes)}")
            found = inside[index]
        if found is None:
            raise RecordError("the record names no message type")
        return found

    def named(self, name: str | None) -> Descriptor:
        """The message type of a full name, or the first one.

        Raises:
            DataError: there is none.
        """
        types = {one.full_name: one for one in _all_types(self.file)}
        if not types:
            raise DataError("the schema has no message type")
        if name is None:
            return next(iter(types.values()))
        if name not in types:
            raise DataError(f"the schema has no message type {name!r}; it has {', '.join(list(types)[:20])}")
        return types[name]


def is_known(name: str) -> bool:
    """Whether each schema may import a file without bringing it."""
    return name in _KNOWN


def _all_types(file: FileDescriptor) -> Iterator[Descriptor]:
    waiting = deque(file.message_types_by_name.values())
    while waiting:
        found = waiting.popleft()
        yield found
        waiting += found.nested_types


def set_of(files: Sequence[bytes]) -> bytes:
    """A `FileDescriptorSet` of serialized `FileDescriptorProto`s."""
    parsed = [descriptor_pb2.FileDescriptorProto.FromString(raw) for raw in files]
    return bytes(descriptor_pb2.FileDescriptorSet(file=parsed).SerializeToString())


def imports_of(raw: bytes) -> list[str]:
    """The names of the files that a serialized `FileDescriptorProto` imports.

    Raises:
        DataError: it is none.
    """
    try:
        return list(descriptor_pb2.FileDescriptorProto.FromString(raw).dependency)
    except DecodeError as error:
        raise DataError(f"broken Protobuf schema: {error}") from None


def parse_set(raw: bytes) -> ProtobufSchema:
    """Return the schema of a `FileDescriptorSet`, whose last file is its own.

    Raises:
        DataError: it is none, or does not have what it imports.
    """
    try:
        files = list(descriptor_pb2.FileDescriptorSet.FromString(raw).file)
    except DecodeError as error:
        raise DataError(f"broken Protobuf schema: {error}") from None
    if not files:
        raise DataError("broken Protobuf schema: it has no file")
    return _built(files)


def parse_file(raw: bytes, referenced: Sequence[tuple[str, bytes]] = ()) -> ProtobufSchema:
    """Return the schema of a serialized `FileDescriptorProto`.

    Args:
        referenced: names and contents of the files that it imports, each after those that it imports itself.

    Raises:
        DataError: it is none, or does not have what it imports.
    """
    files = []
    for name, text in (*referenced, (own_name([name for name, _ in referenced]), raw)):
        try:
            file = descriptor_pb2.FileDescriptorProto.FromString(text)
            file.name = name
        except (DecodeError, ValueError) as error:
            raise DataError(f"broken Protobuf schema: {error}") from None
        files.append(file)
    return _built(files)


def own_name(others: Sequence[str]) -> str:
    """The name of a schema's own file, which no other has."""
    name = MAIN
    while name in others:
        name = f"_{name}"
    return name


def _built(files: Sequence[descriptor_pb2.FileDescriptorProto]) -> ProtobufSchema:
    pool = descriptor_pool.DescriptorPool()
    # All of Google's own, so that no schema can declare such a type otherwise.
    for known in _KNOWN.values():
        pool.AddSerializedFile(known.serialized_pb)
    there: set[str] = set()
    try:
        for file in files:
            if file.name in _KNOWN:
                continue
            if file.name in there:
                raise DataError(f"broken Protobuf schema: several of its files are called {file.name!r}")
            there.add(file.name)
            pool.AddSerializedFile(file.SerializeToString())
        return ProtobufSchema(pool.FindFileByName(files[-1].name))
    except (TypeError, KeyError, ValueError, Error) as error:
        raise DataError(f"broken Protobuf schema: {' '.join(str(error).split())}") from None
