"""Reads the file of a schema: in Avro's own form, or for Protobuf what protoc writes with `--descriptor_set_out`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from schemas.avro.schema import parse_avro
from schemas.errors import DataError


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
        from schemas.protobuf.descriptors import parse_set  # not above: few need it

        return parse_set(raw)
    except OSError as error:
        raise DataError(f"cannot read the schema {path}: {error.strerror}") from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
