"""`read_tables` reads reference tables from their files, each as a whole, before anything else.

A table is configuration, not a stream: a record that is not a row of the table is an error with its file and line, and
nothing starts. The tasks of this process join with the rows read here until it ends, even if the file changes.

`Tables.contents` identifies the rows, so that a task that continues elsewhere or later can check whether it still joins
with the same rows (`services.recovery.starting_point`). It does not depend on the file's format or path, but on the
order of the rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.codecs.decoded import empty_batch
from schemas.codecs.encode import encode_tuples
from schemas.columns import Batch
from schemas.errors import DataError, UsageError
from schemas.query import Query, Table
from services.files.sources import SourceFile

CONTENT_DIGITS = 8
"""Length of a content's hash: short enough for commit messages of dozens of tables."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of a query.

    Attributes:
        batches: all rows, by table name.
        contents: CONTENT_DIGITS hex digits that identify the rows, by table name in the order of `Query.tables`.
    """

    batches: Mapping[str, Batch] = field(default_factory=dict)
    contents: Mapping[str, str] = field(default_factory=dict)


def read_tables(query: Query, paths: Mapping[str, str]) -> Tables:
    """Read all tables of a query.

    Args:
        paths: by table name.

    Raises:
        DataError: a file is missing, cannot be read, does not fit its table or has a bad record; the message says
        where.
        UsageError: a file's name does not show its format.
    """
    batches = {table.name: read_table(table, paths[table.name]) for table in query.tables()}
    return Tables(batches, {name: content_of(batch) for name, batch in batches.items()})


def read_table(table: Table, path: str) -> Batch:
    """All rows of a table, in the file's order."""
    if path == "-":
        raise UsageError(f"{table}: a table is read from a file, not from standard input")
    file = SourceFile(table, path)
    parts = [empty_batch(table)]
    for block in file.blocks():
        if block.decoded.dead:
            place = f"row {block.lines[0]}" if file.format == "parquet" else block.lines[0]
            raise DataError(f"{path}:{place}: {block.decoded.dead[0].reason}; every record must be a row of {table}")
        parts.append(block.decoded.batch)
    return Batch.concat(parts)


def content_of(batch: Batch) -> str:
    """Hex digits that identify the rows of a table."""
    return hashlib.sha256(encode_tuples(batch).data).hexdigest()[:CONTENT_DIGITS]
