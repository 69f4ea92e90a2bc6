"""Reads the file of a schema: in Avro's own form, or for Protobuf a `.proto` file, or what protoc writes with
`--descriptor_set_out`.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, Final

from schemas.avro.schema import parse_avro
from schemas.errors import DataError
from services.formats.known_protos import imports_of, known_protos

PROTO: Final = ".proto"


def read_schema(path: Path, format: str) -> Any:
    """Return the schema of a file.

    Args:
        format: of the records, `avro` or `protobuf`.

    Raises:
        DataError: it is missing or broken; says which.
    """
    try:
        raw = path.read_bytes()
        if format == "avro":
            return parse_avro(raw)
        if path.suffix == PROTO:
            from schemas.protobuf.compiler import compile_text  # not above, nor the next: few need them

            return compile_text(raw.decode(errors="replace"), known=known_protos(imports_of(raw)))
        from schemas.protobuf.descriptors import parse_set

        return parse_set(raw)
    except OSError as error:
        raise DataError(f"cannot read the schema {path}: {error.strerror}") from None
    except (DataError, RuntimeError) as error:
        raise DataError(f"{path}: {error}") from None


def registered_text(path: Path, schema: Any, format: str) -> str:
    """Return what a registry gets as the schema of a file.

    Args:
        schema: as `read_schema` returned it.

    Raises:
        DataError: it imports files that it does not bring.
    """
    if format == "avro" or path.suffix == PROTO:
        return path.read_text()
    file = schema.file
    from schemas.protobuf.descriptors import is_known  # not above: few need it

    for other in file.dependencies:
        if not is_known(other.name) and not known_protos([other.name]):
            raise DataError(f"{path} imports {other.name!r}: register both, and write schema = 'registered'")
    return base64.b64encode(file.serialized_pb).decode()
