"""Reads history from files and stages it for Spark: archives and tables, as `weir run` would read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ops.spark.stage import Stage
from schemas.errors import UsageError
from schemas.query import Query
from services.files.query_files import source_paths
from services.files.sources import SourceFile
from services.files.tables import Tables

PARTITION = 0
"""All files of a stream are one partition of it."""


@dataclass(slots=True)
class RecordCounts:
    """Counts the records that were read.

    Attributes:
        tuples: those that were decoded, late ones included.
        late: how many of those were late.
        dead: records that could not be decoded.
        first_dead: where the first of those was, and why.
    """

    tuples: int = 0
    late: int = 0
    dead: int = 0
    first_dead: str = field(default="")

    def count_dead(self, count: int, first: str) -> None:
        """Count records that could not be decoded."""
        if count:
            self.dead += count
            self.first_dead = self.first_dead or first


def archives(query: Query, given: Sequence[str]) -> dict[str, list[str]]:
    """Paths by stream name, in the streams' order, from `NAME=PATH` options.

    A name given several times names the pieces of one archive, in the order in which they were written.

    Raises:
        UsageError: another form, an unknown or missing name, standard input twice.
    """
    firsts: list[str] = []
    pieces: dict[str, list[str]] = {}
    for option in given:
        name, equals, path = option.partition("=")
        if equals and path and name in pieces:
            pieces[name].append(path)
            continue
        firsts.append(option)
        pieces[name] = [path]
    source_paths(query, firsts)
    if sum(path == "-" for paths in pieces.values() for path in paths) > 1:
        raise UsageError("--source: standard input can be read once only")
    return {stream.name: pieces[stream.name] for stream in query.streams()}


def open_archives(query: Query, paths: Mapping[str, Sequence[str]]) -> dict[str, list[SourceFile]]:
    """The files, opened and checked.

    Raises:
        DataError, UsageError: as `services.files.sources.SourceFile`.
    """
    streams = {stream.name: stream for stream in query.streams()}
    return {name: [SourceFile(streams[name], path) for path in of] for name, of in paths.items()}


def stage_archives(stage: Stage, files: Mapping[str, Sequence[SourceFile]], query: Query) -> RecordCounts:
    """Read all files to their ends.

    Raises:
        DataError: one cannot be read further.
        StateError: the staging folder is full.
    """
    found = RecordCounts()
    for stream in query.streams():
        row = 0
        for file in files[stream.name]:
            for block in file.blocks():
                decoded = block.decoded
                # The elements of an array have the place of their record, of which a repeat is one as a whole.
                late = stage.add(stream, PARTITION, decoded.batch, row + decoded.rows)
                row += decoded.records
                found.tuples += len(decoded.batch)
                found.late += int(np.count_nonzero(late))
                dead = decoded.dead
                if dead:
                    found.count_dead(len(dead), f"{file.name}:{block.lines[0]}: {dead[0].reason}")
    return found


def stage_tables(stage: Stage, tables: Tables, query: Query) -> None:
    """Stage all rows of a query's tables."""
    for table in query.tables():
        stage.add_table(table, tables.batches[table.name])
