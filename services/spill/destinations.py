"""Where the results of a paid debt go, each once: a file of their own, or the end of an output that is open.

A payment gives a group of the root at a time. A file shows all of them or none: they are gathered beside it, and it
gets its name when all are there; until then a payment can be repeated from the beginning. What goes to an output that
is open, such as standard output, is there at once, and of a payment that dies in the middle some of it is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from schemas.codecs.encode import CLEANUP_PHASE, encode_results
from schemas.columns import Batch
from schemas.errors import StateError, UsageError
from services.files.sinks import STDOUT, LineSink
from services.spill.backlog import OpenDebt, settle, settle_name

Begin = Callable[[], None]
"""To be called before anything can be seen."""


class Destination(Protocol):
    """Takes the results of a debt, a group of the root at a time."""

    def paid(self) -> Mapping[int, int]:
        """The groups that it has already, from a payment that was not finished, and how many results each."""
        ...

    def write(self, group: int, batches: Iterable[Batch]) -> int:
        """Take all results of a group; how many."""
        ...

    def finish(self) -> None:
        """All groups have been given: when this returns all can be seen, for certain."""
        ...

    def close(self) -> None:
        """Release what is held; what was not finished may be taken back."""
        ...


class FileDestination:
    """A file of JSON lines, replaced when it exists."""

    def __init__(self, path: Path, debt: str, begin: Begin) -> None:
        """Raises UsageError: there cannot be such a file."""
        self._path = path
        self._beside = path.with_name(f".{path.name}.{debt}")
        self._begin = begin
        try:
            self._file = self._beside.open("wb")
        except OSError as error:
            raise UsageError(f"--out: cannot create {path}: {error.strerror}") from None

    def paid(self) -> Mapping[int, int]:
        """None: a file has all or nothing."""
        return {}

    def write(self, group: int, batches: Iterable[Batch]) -> int:
        """Put results beside the file.

        Raises:
            StateError: the disk refuses.
        """
        results = 0
        for batch in batches:
            try:
                self._file.write(encode_results(batch, CLEANUP_PHASE).data)
            except OSError as error:
                raise self._refused(error) from None
            results += len(batch)
        return results

    def finish(self) -> None:
        """Show the file.

        Raises:
            StateError: the disk refuses.
        """
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._begin()
            settle_name(self._beside, self._path)
        except OSError as error:
            raise self._refused(error) from None

    def close(self) -> None:
        """Delete what was not finished."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._beside.unlink(missing_ok=True)

    def _refused(self, error: OSError) -> StateError:
        return StateError(f"cannot write {self._path}: {error.strerror}; nothing of it is shown, and the debt stays")


class LineDestination:
    """The end of an output that is open."""

    def __init__(self, sink: LineSink) -> None:
        self._sink = sink

    def paid(self) -> Mapping[int, int]:
        """None that is known of."""
        return {}

    def write(self, group: int, batches: Iterable[Batch]) -> int:
        """Write results.

        Raises:
            StateError, BrokenPipeError: as `LineSink.write`.
        """
        results = 0
        for batch in batches:
            self._sink.write(encode_results(batch, CLEANUP_PHASE).data)
            results += len(batch)
        return results

    def finish(self) -> None:
        """Nothing more: what is written is seen."""

    def close(self) -> None:
        """Nothing: whoever has opened the output closes it."""


def destination_of(out: str, debt: str, begin: Begin) -> Destination:
    """A file by its name, or standard output for `-`.

    Raises:
        UsageError: there cannot be such a file.
    """
    return LineDestination(LineSink("--out", STDOUT)) if out == STDOUT else FileDestination(Path(out), debt, begin)


def deliver(
    debt: OpenDebt, name: str, destination: Destination, groups: Iterable[tuple[int, Iterable[Batch]]]
) -> int:
    """Give a destination what is found of a debt, and settle the debt; how many results were owed.

    Args:
        name: of the destination, for the debt's record.
        groups: of the root, with their results; those that are paid already may be there or not.

    Raises:
        WeirError: the destination refuses, or what is owed cannot be found; the debt stays.
    """
    paid = destination.paid()
    results = sum(paid.values())
    for group, batches in groups:
        if group not in paid:
            results += destination.write(group, batches)
    destination.finish()
    settle(debt, name, results)
    return results
