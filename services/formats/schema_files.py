"""Reads the file of an Avro schema."""

from __future__ import annotations

from pathlib import Path

from schemas.avro.schema import Avro, parse_avro
from schemas.errors import DataError


def read_schema(path: Path) -> Avro:
    """Return the schema of a file.

    Raises:
        DataError: it is missing or broken; says which.
    """
    try:
        return parse_avro(path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read the schema {path}: {error.strerror}") from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
