"""The text of a query program and the pieces of its tree: positions, names, errors with a caret, similar names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lark import Token, Tree

from schemas.errors import InvariantError, QueryError

Node = Tree[Token] | Token
"""A piece of the parsed text that has a position."""

_SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class QueryText:
    """A program's text. Positions are character offsets; lines and columns are computed only for errors."""

    text: str

    def error(self, message: str, node: Node) -> QueryError:
        """An error whose caret underlines `node`, up to the end of its first line."""
        start, end = span(node)
        return self.error_at(message, start, end)

    def error_at(self, message: str, start: int, end: int) -> QueryError:
        """An error whose caret underlines the characters start..end."""
        line, column = self.line_and_column(start)
        return QueryError(message, text=self.text, line=line, column=column, length=max(1, end - start))

    def line_and_column(self, offset: int) -> tuple[int, int]:
        """1-based line and column, with lines as `str.splitlines` cuts them, since QueryError shows those."""
        begin = 0
        lines = self.text.splitlines(keepends=True) or [""]
        for number, line in enumerate(lines, 1):
            inside = len(line) if number == len(lines) else len(line) - 1
            if offset <= begin + inside:
                return number, offset - begin + 1
            begin += len(line)
        return len(lines), offset - begin + 1

    def shown(self, node: Node) -> str:
        """The node's text on one line, shortened for a message."""
        start, end = span(node)
        return shortened(self.text[start:end])


def span(node: Node) -> tuple[int, int]:
    """First and one-past-last offset of a node's text."""
    if isinstance(node, Token):
        return node.start_pos or 0, node.end_pos or 0
    return node.meta.start_pos, node.meta.end_pos


def tree(node: Node) -> Tree[Token]:
    """The node, which the grammar guarantees to be a rule."""
    if not isinstance(node, Tree):
        raise InvariantError(f"the grammar puts a rule here, got {node!r}")
    return node


def identifier(node: Node) -> str:
    """The name that an IDENT, ALIAS or QUOTED token means."""
    if not isinstance(node, Token):
        raise InvariantError(f"the grammar puts a name here, got {node!r}")
    return node[1:-1].replace('""', '"') if node.startswith('"') else str(node)


def unquoted(text: str) -> str:
    """The value of a string literal."""
    return text[1:-1].replace("''", "'")


def numeral(parts: Sequence[Node]) -> str:
    """The text of `[MINUS] number`."""
    sign, number = parts
    return f"-{number}" if sign is not None else str(number)


def shortened(text: str) -> str:
    """`text` with white space folded, at most 40 characters."""
    folded = " ".join(text.split())
    return folded if len(folded) <= _SHOWN_CHARACTERS else folded[: _SHOWN_CHARACTERS - 3] + "..."


def nearest(name: str, accepted: Iterable[str]) -> str | None:
    """The accepted name that is most similar to `name`, ignoring case; None when none is similar.

    Ties go to the first in `accepted`. Cost: quadratic in the lengths, per accepted name.
    """
    candidates = list(accepted)
    folded = [candidate.casefold() for candidate in candidates]
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    return candidates[folded.index(close[0])] if close else None


def did_you_mean(name: str, accepted: Iterable[str]) -> str:
    """'; did you mean X?' for the end of a message, or nothing."""
    near = nearest(name, accepted)
    return f"; did you mean {near}?" if near is not None else ""
