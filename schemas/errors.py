"""Errors by what the caller can do about them.

Every message names the offending value, where it sits, and the accepted form.
"""


class WeirError(Exception):
    """Root of all errors that Weir raises on purpose. `exit_code` is the process's exit code."""

    exit_code = 1


class UsageError(WeirError):
    """The arguments or settings are wrong: change them and run again."""

    exit_code = 2


class QueryError(UsageError):
    """The query text is wrong at a place: shows line, column, the source line and a caret under it."""

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


class NewerFormatError(WeirError):
    """Durable state of a newer Weir: upgrade this one. It is no `StateError`, whose handlers pass over what cannot be
    read or make it anew: what a newer Weir has written is not to be touched."""


class BrokerError(WeirError):
    """Kafka refused or cannot be reached."""


class InvariantError(WeirError):
    """A broken invariant of the engine; the message carries the values in hand."""
