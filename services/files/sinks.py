"""File sinks: `LineSink` writes lines to a path or standard output, `ResultWriter` encodes and writes in a thread."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import queue
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol

from schemas.codecs.encode import encode_results
from schemas.columns import Batch
from schemas.errors import StateError, UsageError
from schemas.members import result_members
from schemas.query import Query

STDOUT: Final = "-"
WAITING_BATCHES: Final = 4


class _Writable(Protocol):
    def write(self, data: memoryview, /) -> int | None: ...


class LineSink:
    """Writes whole lines to a file (replaced when it exists) or, for `-`, to standard output."""

    def __init__(self, option: str, path: str) -> None:
        """Open `path`, given by `option`.

        Raises:
            UsageError: it cannot be created.
        """
        self.path = path
        self._file: io.FileIO | None = None
        if path == STDOUT:
            # Unbuffered, so that a line is written when `write` returns, and only `write` notices a closed pipe.
            stdout = sys.stdout.buffer
            self._out: _Writable = getattr(stdout, "raw", stdout)
            return
        try:
            self._file = io.FileIO(path, "w")
        except OSError as error:
            raise UsageError(f"{option}: cannot create {path}: {error.strerror}") from None
        self._out = self._file

    def write(self, data: bytes) -> None:
        """Write all of `data`.

        Raises:
            StateError: the system refuses, above all because the disk is full; names the file.
            BrokenPipeError: the reader of standard output has closed it.
        """
        view = memoryview(data)
        try:
            while view:
                written = self._out.write(view)
                view = view[len(view) if written is None else written :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StateError(f"cannot write {self._shown()}: {_reason(error)}") from None

    def close(self) -> None:
        """Close the file; the system may report delayed write errors only now.

        Raises:
            StateError: as `write`.
        """
        if self._file is None:
            return
        try:
            self._file.close()
        except OSError as error:
            raise StateError(f"cannot write {self._shown()}: {_reason(error)}") from None

    def _shown(self) -> str:
        return "standard output" if self.path == STDOUT else self.path


def _reason(error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, "")
    text = f"{error.strerror} ({name})"
    return f"{text}; its last line may be incomplete" if error.errno == errno.ENOSPC else text


class ResultWriter:
    """Encodes and writes batches of results in a thread, in order: of one query to a sink, or of several each to one.

    Use as a context manager: leaving it waits until everything given to `write` is written.

    Args:
        sinks, queries: in the same order.

    Attributes:
        written: how many results have been written, to all sinks.
    """

    def __init__(self, sinks: Sequence[LineSink], queries: Sequence[Query]) -> None:
        self.written = 0
        self._sinks = sinks
        self._members = [result_members(query) for query in queries]
        self._queue: queue.Queue[tuple[int, Batch, str | None] | None] = queue.Queue(WAITING_BATCHES)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="write results", daemon=True)
        self._thread.start()

    def write(self, results: Batch, phase: str | None = None, *, sink: int = 0) -> None:
        """Queue results; blocks while the writer is behind.

        Args:
            phase: marks results of a cleanup; None for others.
            sink: number of the sink and of its query.

        Raises:
            StateError, BrokenPipeError: an earlier batch could not be written.
        """
        if self._error is not None:
            raise self._error
        if len(results):
            self._queue.put((sink, results, phase))

    def close(self) -> None:
        """Wait until everything is written.

        Raises:
            StateError, BrokenPipeError: a batch could not be written.
        """
        self._queue.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> ResultWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        with contextlib.suppress(StateError, BrokenPipeError):  # the first error is the one to show
            self.close()

    def _run(self) -> None:
        while (given := self._queue.get()) is not None:
            sink, batch, phase = given
            if self._error is not None:
                continue
            try:
                self._sinks[sink].write(encode_results(batch, phase, self._members[sink]).data)
                self.written += len(batch)
            except BaseException as error:  # raised in the engine's thread by `write` or `close`
                self._error = error


def check_outputs(outputs: dict[str, str | None], inputs: dict[str, str]) -> None:
    """Check that no output would overwrite an input, the query, or another output.

    Args:
        outputs: path by option; None if the option was not given.
        inputs: path by a description for the message.

    Raises:
        UsageError: two are the same file; the message names both.
    """
    taken = {_identity(path): what for what, path in inputs.items() if path != STDOUT}
    for option, path in outputs.items():
        if path is None:
            continue
        same = taken.setdefault(_identity(path), option)
        if same != option:
            raise UsageError(f"{option} {path} is the same file as {same}")


def _identity(path: str) -> tuple[object, ...]:
    """A value that is equal for all names of a file. Devices are never equal: many outputs may write to /dev/null."""
    if path == STDOUT:
        return (STDOUT,)
    try:
        found = os.stat(path)
    except OSError:
        return (str(Path(path).absolute().resolve()),)
    if not os.path.isfile(path):
        return (path, object())
    return (found.st_dev, found.st_ino)
