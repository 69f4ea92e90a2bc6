"""Collects and binds the clauses after FROM, in any order: windows, conditions, PARTITION BY, GROUP BY, EXCEPT."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lark import Token, Tree

from schemas.durations import duration_ms
from schemas.errors import UsageError
from schemas.language.query_text import Node, QueryText, numeral, shortened, tree
from schemas.query import Window

_MAX_ROWS = 2**62

_TWICE = {
    "where": "WHERE is given twice; join its conditions with AND",
    "window_of_all": "the window of all streams is given twice",
    "window_condition": "WINDOW is given twice; join its conditions with AND",
    "partition_by": "PARTITION BY is given twice",
    "group_by": "GROUP BY is given twice; list its expressions with ','",
    "emit_every": "EMIT EVERY is given twice",
}


class Clauses:
    """The clauses of one SELECT. Each occurs at most once (WINDOW once as a window, once as a condition), except
    EXCEPT."""

    def __init__(self, node: Tree[Token], text: QueryText) -> None:
        self._text = text
        self._clauses: dict[str, Tree[Token]] = {}
        self.excepts: list[Tree[Token]] = []
        """EXCEPT clauses in text order: the keyword, a source, its ON."""
        for piece in node.children:
            clause = tree(piece)
            if clause.data == "except_":
                self.excepts.append(clause)
                continue
            kind = "window_of_all" if clause.data == "max_window" else clause.data
            if kind in self._clauses:
                raise text.error(_TWICE[kind], clause.children[0])
            self._clauses[kind] = clause

    def window_of_all(self) -> Window | None:
        """The window of the streams that have no window of their own."""
        clause = self._clauses.get("window_of_all")
        if clause is None:
            return None
        inner = tree(clause.children[1])
        if inner.data == "signed_duration":
            return Window("RANGE", positive_ms(inner, "window", self._text))
        return bind_window(tree(inner.children[0]) if inner.data == "window" else inner, self._text)

    def conditions(self) -> Iterator[tuple[str, Node]]:
        """'where' and 'window_condition' clauses with their conditions, in text order."""
        for kind, clause in self._clauses.items():
            if kind in ("where", "window_condition"):
                yield kind, clause.children[1]

    def partition_by(self) -> Sequence[Tree[Token]]:
        """The columns of PARTITION BY."""
        clause = self._clauses.get("partition_by")
        return [] if clause is None else [tree(column) for column in clause.children[1:]]

    def group_by(self) -> Sequence[Node]:
        """The expressions of GROUP BY."""
        clause = self._clauses.get("group_by")
        return [] if clause is None else clause.children[1:]

    def every_ms(self) -> int | None:
        """The duration of EMIT EVERY."""
        clause = self._clauses.get("emit_every")
        return None if clause is None else positive_ms(clause.children[1], "EMIT EVERY", self._text)

    def keyword(self, kind: str) -> Node | None:
        """The first word of a clause, for a caret; None when it is absent."""
        clause = self._clauses.get(kind)
        return None if clause is None else clause.children[0]


def bind_window(node: Tree[Token], text: QueryText) -> Window:
    """The window that a RANGE, ROWS or UNBOUNDED clause means."""
    match node.data:
        case "unbounded":
            return Window("UNBOUNDED")
        case "range":
            return Window("RANGE", positive_ms(node.children[1], "window", text))
        case _:
            number = tree(node.children[1])
            written = numeral(number.children)
            found = re.fullmatch(r"0*([1-9][0-9]{0,18})", written)
            if found is None or int(found[1]) > _MAX_ROWS:
                raise text.error(f"ROWS takes a whole number > 0, got {shortened(written)}", number)
            return Window("ROWS", int(found[1]))


def positive_ms(node: Node, what: str, text: QueryText) -> int:
    """A duration > 0 in milliseconds."""
    duration = tree(node)
    number, unit = numeral(duration.children[:2]), str(duration.children[2])
    try:
        ms = duration_ms(number, unit)
    except UsageError as error:
        raise text.error(f"{what}: {error}", node) from None
    if ms <= 0:
        raise text.error(f"{what} must be > 0, got {number} {unit}", node)
    return ms
