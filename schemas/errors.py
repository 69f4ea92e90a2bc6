"""Weir's exceptions, one class per thing that the caller can do about the error.

Every message names the offending value, where it is, and the accepted form.
"""

from __future__ import annotations

from collections.abc import Iterable


class WeirError(Exception):
    """Root of all errors that Weir raises on purpose. The process exits with `exit_code`."""

    exit_code = 1


class UsageError(WeirError):
    """The arguments or settings are wrong: change them and run again."""

    exit_code = 2


class QueryError(UsageError):
    """The query text is wrong at some position: shows line, column, the source line and a caret under it."""

    def __init__(
        self, message: str, *, text: str = "", line: int = 0, column: int = 0, length: int = 1
    ) -> None:
        """Args: `text` the whole query; `line`, `column` 1-based; `length` characters to underline."""
        self.message = message
        self.line = line
        self.column = column
        shown = message
        if line > 0:
            shown = f"{message} (line {line}, column {column})"
            lines = text.splitlines()
            if line <= len(lines):
                source = lines[line - 1]
                pad = "".join("\t" if c == "\t" else " " for c in source[: column - 1])
                width = max(1, min(length, len(source) - column + 1))
                shown = f"{shown}\n  {source}\n  {pad}{'^' * width}"
        super().__init__(shown)


class DataError(WeirError):
    """Input that cannot be read at all (a missing file, an unknown Parquet type)."""


class StateError(WeirError):
    """Durable state cannot be read or written: disk full, corrupt block, foreign snapshot."""


class SpillError(StateError):
    """Spilled state cannot be written or read: the disk is full or fails, or a block is missing or damaged. A task that
    begins again does without it."""


class NewerFormatError(WeirError):
    """A newer Weir has written this durable state: upgrade this Weir. It is not a `StateError`, because handlers
    of that error skip or rebuild unreadable state, and state of a newer Weir must stay untouched."""


class BrokerError(WeirError):
    """Kafka refused a request or cannot be reached."""


class InvariantError(WeirError):
    """An invariant of the engine is broken; the message carries the values involved."""


def listed(names: Iterable[str]) -> str:
    """Names as messages list them: `'a', 'b'`."""
    return ", ".join(f"'{name}'" for name in names)
