"""The Protobuf files that schemas import without bringing them: registries and serializers know `google/type/*.proto`
and `confluent/*.proto`, and leave them out of a schema's references.

They come from the packages of their makers. Google's own, `google/protobuf/*.proto`, are known to
`schemas.protobuf.descriptors`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from google.protobuf.descriptor import FileDescriptor

_GOOGLE: Final = re.compile(r"google/(?:type|api|rpc)/[a-z_]+\.proto")
_CONFLUENT: Final = re.compile(r"confluent/(?:meta|type/decimal|type/variant|types/decimal)\.proto")
_IMPORT: Final = re.compile(rb"""\bimport\s+(?:public\s+|weak\s+)?["']([^"']*)["']""")


def known_protos(imported: Iterable[str]) -> list[tuple[str, bytes]]:
    """Return those of some files that are known, each after those that it imports itself.

    Args:
        imported: names of files, as schemas import them.

    Returns:
        names and serialized `FileDescriptorProto`s.
    """
    found: dict[str, bytes] = {}

    def add(file: FileDescriptor) -> None:
        for other in file.dependencies:
            if not other.name.startswith("google/protobuf/"):
                add(other)
        found.setdefault(file.name, file.serialized_pb)

    for name in imported:
        file = _file(name)
        if file is not None:
            add(file)
    return list(found.items())


def imports_of(text: str | bytes) -> Iterator[str]:
    """The names of the files that a `.proto` text imports, and perhaps some that its comments name."""
    raw = text.encode(errors="replace") if isinstance(text, str) else text
    return (name.decode(errors="replace") for name in _IMPORT.findall(raw))


def _file(name: str) -> FileDescriptor | None:
    module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    if _CONFLUENT.fullmatch(name):
        module = f"confluent_kafka.schema_registry.{module}"
    elif not _GOOGLE.fullmatch(name):
        return None
    try:
        file: FileDescriptor = importlib.import_module(module).DESCRIPTOR
    except ModuleNotFoundError:
        return None  # a name that looks like theirs
    return file
