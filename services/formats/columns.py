"""Gets the columns of streams that are declared without a list of them, from the schema of their records."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from schemas.errors import UsageError
from schemas.query import VALUE, Array, Field, Stream
from services.formats.registry_access import RegistryAccess
from services.formats.schema_files import read_schema
from services.formats.schema_kinds import KINDS
from services.formats.schema_registry import latest_schema
from services.process.logs import get_log

NO_REGISTRY: Final = "name the schema registry with --registry or registry = 'http://...', or declare the columns"

LOG = get_log("schemas")


class SchemaColumns:
    """Returns all columns that the records of a stream have: `schemas.language.columns.ColumnsOf`.

    Args:
        folder: what the names of schema files are relative to.
    """

    def __init__(self, access: RegistryAccess, folder: Path) -> None:
        self._access = access
        self._folder = folder

    def __call__(self, stream: Stream) -> list[Field | Array]:
        """Return the columns and arrays.

        Raises:
            UsageError: there is no schema, or it has none.
            BrokerError: the registry does not answer.
        """
        if stream.schema is not None:
            path = self._folder / stream.schema
            return self._named(KINDS[stream.format].columns(read_schema(path, stream.format), stream), str(path))
        url = stream.registry or self._access.url
        if url is None:
            raise UsageError(NO_REGISTRY)
        subject = f"{stream.topic}-value"
        kind = KINDS[stream.format]
        found = latest_schema(url, self._access, subject, kind)
        if found is None:
            raise UsageError(f"the registry {url} has no schema for the subject {subject!r}; {NO_REGISTRY}")
        number, schema = found
        LOG.info("columns of a stream are those of its latest schema", stream=stream.name, schema=number)
        return self._named(kind.columns(schema, stream), f"schema {number}")

    @staticmethod
    def _named(columns: list[Field | Array], place: str) -> list[Field | Array]:
        # A field called as something else of a record is no column: its name does not mean it.
        own = [column for column in columns if column.part == VALUE]
        if not own:
            raise UsageError(f"{place} has no field that is a column; declare the columns")
        return own
