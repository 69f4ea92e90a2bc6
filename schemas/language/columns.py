"""Writes the columns of streams that are declared without a list of them into a query's text.

    CREATE STREAM orders WITH (format = 'avro', timestamp = 'at');

takes its columns from the schema of its records. Only those are written that the text may use: a column that a writer
adds later then changes nothing of the query, which is the same query after a restart. What is bound, registered and
identified is always the text with columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from lark import Token

from schemas.errors import UsageError
from schemas.language.declarations import undeclared
from schemas.language.expressions import EVENT_TIME
from schemas.language.parser import parser
from schemas.language.program import parse_tree
from schemas.language.query_text import Node, QueryText, identifier
from schemas.paths import path_text
from schemas.query import Field, Stream

ColumnsOf = Callable[[Stream], Sequence[Field]]
"""Returns all columns that records of a stream have, or raises UsageError."""


@dataclass(frozen=True, slots=True)
class _Insertion:
    at: int
    text: str


def with_columns(text: str, columns_of: ColumnsOf) -> str:
    """Return the text with a column list for each stream that has none.

    Args:
        columns_of: is asked for each of these streams, which it gets without fields.

    Raises:
        QueryError: the text is broken, or the columns of a stream are unknown; shows where.
    """
    source = QueryText(text)
    statements = parse_tree(source)
    used = set(_names(statements))
    everything = any(statements.find_pred(lambda node: node.data in ("every_column", "columns_of_alias")))
    insertions = []
    for node in statements.find_data("create"):
        stream = undeclared(node, source)
        if stream is None:
            continue
        name_token = node.children[0]
        assert isinstance(name_token, Token)
        try:
            columns = [column for column in columns_of(stream) if column.name != EVENT_TIME]
        except UsageError as error:
            raise source.error(f"the columns of {stream} are unknown: {error}", name_token) from None
        kept = [column for column in columns if everything or column.name in used or column.name == stream.timestamp]
        if all(column.name != stream.timestamp for column in kept):
            known = ", ".join(column.name for column in columns)
            reason = f"{stream} has no column {stream.timestamp!r} for its event time; it has {known}"
            raise source.error(reason, name_token)
        listed = ", ".join(map(_declaration, kept))
        insertions.append(_Insertion(name_token.end_pos or 0, f" ({listed})"))
    for insertion in reversed(insertions):
        text = text[: insertion.at] + insertion.text + text[insertion.at :]
    return text


def _names(node: Node) -> Iterator[str]:
    """All names in the statements that declare nothing."""
    if isinstance(node, Token):
        if node.type in ("IDENT", "ALIAS", "QUOTED"):
            yield identifier(node)
    elif node.data not in ("create", "create_table"):
        for child in node.children:
            if child is not None:
                yield from _names(child)


def _declaration(column: Field) -> str:
    name = column.name if _plain_name().fullmatch(column.name) else '"{}"'.format(column.name.replace('"', '""'))
    path = " FROM '{}'".format(path_text(column.path).replace("'", "''")) if column.path else ""
    return f"{name} {column.type}{path}"


@cache
def _plain_name() -> re.Pattern[str]:
    """Names that need no quotes, as the grammar has them."""
    return re.compile(next(found.pattern.to_regexp() for found in parser().terminals if found.name == "IDENT"))
