"""Destinations for the results of a cleaned-up backlog: a new file, or the end of an open output. Entry: `deliver`.

A cleanup writes the results of one partition group of the root at a time, each result once. A file shows all results or
none: they are collected in a temporary file beside it, which is renamed when it is complete; until then the cleanup can
be repeated from the start. An open output, such as standard output, shows results at once. If a cleanup dies, such an
output keeps a part of them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from schemas.codecs.encode import encode_results
from schemas.columns import Batch
from schemas.errors import StateError, UsageError
from schemas.members import result_members
from schemas.query import CLEANUP_PHASE, Query
from services.files.sinks import STDOUT, LineSink
from services.spill.backlog import OpenBacklog, mark_cleaned_up, rename_durably

BeforeVisible = Callable[[], None]
"""Called before the first result becomes visible."""


class Destination(Protocol):
    """Receives the results of a backlog, one partition group of the root at a time."""

    def delivered_groups(self) -> Mapping[int, int]:
        """The groups that an unfinished cleanup has delivered already, with their numbers of results. By default
        none: all results become visible at once, or there is no record of them."""
        return {}

    def write(self, group: int, batches: Iterable[Batch]) -> int:
        """Write all results of a group; returns how many."""
        ...

    def finish(self) -> None:
        """Make all results visible and durable, after the last group. By default they are already."""

    def close(self) -> None:
        """Release resources; an unfinished delivery may be withdrawn."""


class FileDestination(Destination):
    """A file of JSON lines; an existing file is replaced."""

    def __init__(self, path: Path, query: Query, backlog_id: str, begin: BeforeVisible) -> None:
        """Raises UsageError: the file cannot be created."""
        self._path = path
        self._members = result_members(query)
        self._beside = path.with_name(f".{path.name}.{backlog_id}")
        self._begin = begin
        try:
            self._file = self._beside.open("wb")
        except OSError as error:
            raise UsageError(f"--out: cannot create {path}: {error.strerror}") from None

    def write(self, group: int, batches: Iterable[Batch]) -> int:
        """Write results to the temporary file.

        Raises:
            StateError: the disk refuses.
        """
        results = 0
        for batch in batches:
            try:
                self._file.write(encode_results(batch, CLEANUP_PHASE, self._members).data)
            except OSError as error:
                raise self._refused(error) from None
            results += len(batch)
        return results

    def finish(self) -> None:
        """Rename the temporary file to its final name.

        Raises:
            StateError: the disk refuses.
        """
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._begin()
            rename_durably(self._beside, self._path)
        except OSError as error:
            raise self._refused(error) from None

    def close(self) -> None:
        """Delete the temporary file if it was not renamed."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._beside.unlink(missing_ok=True)

    def _refused(self, error: OSError) -> StateError:
        return StateError(f"cannot write {self._path}: {error.strerror}; no result is visible, and the backlog stays")


class LineDestination(Destination):
    """The end of an open output, which its owner closes."""

    def __init__(self, sink: LineSink, query: Query) -> None:
        self._sink = sink
        self._members = result_members(query)

    def write(self, group: int, batches: Iterable[Batch]) -> int:
        """Write results.

        Raises:
            StateError, BrokenPipeError: as `LineSink.write`.
        """
        results = 0
        for batch in batches:
            self._sink.write(encode_results(batch, CLEANUP_PHASE, self._members).data)
            results += len(batch)
        return results


def destination_of(out: str, backlog: OpenBacklog, begin: BeforeVisible) -> Destination:
    """The destination of a backlog's results for a file name, or standard output for `-`.

    Raises:
        UsageError: the file cannot be created.
    """
    if out == STDOUT:
        return LineDestination(LineSink("--out", STDOUT), backlog.query)
    return FileDestination(Path(out), backlog.query, backlog.manifest.id, begin)


def deliver(
    backlog: OpenBacklog, name: str, destination: Destination, groups: Iterable[tuple[int, Iterable[Batch]]]
) -> int:
    """Deliver the results of a backlog and mark it as cleaned up; returns how many results were pending.

    Args:
        name: of the destination, for the backlog's manifest.
        groups: the root's partition groups with their results; groups that are delivered already may be missing.

    Raises:
        WeirError: the destination refuses, or pending results cannot be produced; the backlog stays.
    """
    delivered = destination.delivered_groups()
    results = sum(delivered.values())
    for group, batches in groups:
        if group not in delivered:
            results += destination.write(group, batches)
    destination.finish()
    mark_cleaned_up(backlog, name, results)
    return results
