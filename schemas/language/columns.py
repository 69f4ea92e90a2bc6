"""Writes the columns of streams that are declared without a list of them into a query's text.

    CREATE STREAM orders WITH (format = 'avro', timestamp = 'at');

takes its columns from the schema of its records. Only those are written that the text uses, in the order of their
names: a field that a writer adds or moves later then changes nothing of the query, which is the same query after a
restart. What is bound, registered and identified is always the text with columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from lark import Token, Tree

from schemas.errors import UsageError
from schemas.language.declarations import undeclared
from schemas.language.expressions import EVENT_TIME
from schemas.language.parser import parser
from schemas.language.program import parse_tree
from schemas.language.query_text import Node, QueryText, did_you_mean, identifier, shortened
from schemas.paths import path_text
from schemas.query import OWN_PREFIX, Array, Field, Stream

ColumnsOf = Callable[[Stream], Sequence[Field | Array]]
"""Returns all columns and arrays that records of a stream have, or raises UsageError."""


@dataclass(frozen=True, slots=True)
class _Insertion:
    at: int
    text: str


@dataclass(slots=True)
class _Uses:
    """Which columns a text uses.

    Attributes:
        columns: by stream, the names that follow its name or an alias of it.
        tokens: these names where they stand, each with its stream.
        unqualified: names that may be of any stream.
        whole: streams of which all columns are used.
        arrays: by stream and name of an array that is unnested, the names that follow an alias of its elements.
        whole_arrays: streams and names of arrays of whose elements all is used.
    """

    columns: dict[str, set[str]] = field(default_factory=dict)
    tokens: list[tuple[str, Token]] = field(default_factory=list)
    unqualified: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)
    arrays: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    whole_arrays: set[tuple[str, str]] = field(default_factory=set)

    def of(self, stream: str, column: Field | Array) -> Field | Array | None:
        """A stream's column if it is used, or an array with what is used of its elements; else None."""
        if isinstance(column, Array):
            return self._of_array((stream, column.name), column)
        names = self.columns.get(stream, ())
        used = stream in self.whole or column.name in self.unqualified or column.name in names
        return column if used else None

    def _of_array(self, place: tuple[str, str], array: Array) -> Array | None:
        if place in self.whole_arrays:
            return array
        if place not in self.arrays:
            # Of one that is taken for a column the text has all, and the binder says what it is.
            return array if array.name in self.columns.get(place[0], ()) else None
        fields = sorted(array.fields, key=lambda field: field.name)
        used = [one for one in fields if one.name in self.unqualified or one.name in self.arrays[place]]
        return replace(array, fields=tuple(used or fields[:1]))

    def add(self, select: Tree[Token]) -> None:
        """Add what a SELECT uses."""
        streams: dict[str, str] = {}
        for node in select.find_data("source"):
            name, _, alias, _ = node.children
            streams[identifier(_given(name if alias is None else alias))] = identifier(_given(name))
        elements: dict[str, tuple[str, str]] = {}
        for node in select.find_data("unnest"):
            of, array, alias, names = node.children
            place = streams.get(identifier(_given(of)), ""), identifier(_given(array))
            elements[identifier(_given(alias))] = place
            self.arrays.setdefault(place, set())
            if names is not None:
                self.whole_arrays.add(place)
        for node in select.find_data("column"):
            first, second = (*node.children, None)[:2]
            alias_ = identifier(_given(first))
            if second is None:
                self.unqualified.add(alias_)
            elif alias_ in elements:
                self.arrays[elements[alias_]].add(identifier(second))
            else:
                self.columns.setdefault(streams.get(alias_, ""), set()).add(identifier(second))
                assert isinstance(second, Token)
                self.tokens.append((streams.get(alias_, ""), second))
        for node in select.find_data("columns_of_alias"):
            alias_ = identifier(_given(node.children[0]))
            if alias_ in elements:
                self.whole_arrays.add(elements[alias_])
            else:
                self.whole.add(streams.get(alias_, ""))
        if any(select.find_data("every_column")):
            self.whole |= set(streams.values())
            self.whole_arrays |= set(elements.values())


def _given(node: Node | None) -> Node:
    assert node is not None
    return node


def with_columns(text: str, columns_of: ColumnsOf, *, everything: bool = False) -> str:
    """Return the text with a column list for each stream that has none.

    Args:
        columns_of: is asked for each of these streams, which it gets without fields.
        everything: write all columns, not only those that the text uses.

    Raises:
        QueryError: the text is broken, or the columns of a stream are unknown; shows where.
        WeirError: what else `columns_of` raises.
    """
    source = QueryText(text)
    statements = parse_tree(source)
    uses = _Uses()
    for select in statements.find_data("select"):
        uses.add(select)
    insertions = []
    for node in statements.find_data("create"):
        stream = undeclared(node, source)
        if stream is None:
            continue
        name_token = node.children[0]
        assert isinstance(name_token, Token)
        try:
            columns = [column for column in columns_of(stream) if not _is_reserved(column.name)]
        except UsageError as error:
            raise source.error(f"the columns of {stream} are unknown: {error}", name_token) from None
        _check_names(stream, columns, uses, source)
        also = {stream.timestamp, *(name for name, _ in stream.distinct), *stream.deduplicate}
        chosen = (one if everything or one.name in also else uses.of(stream.name, one) for one in columns)
        kept = [one for one in chosen if one is not None]
        if not everything and stream.name not in uses.whole:
            kept.sort(key=lambda column: column.name)
        if all(column.name != stream.timestamp for column in kept):
            known = ", ".join(column.name for column in columns)
            reason = f"{stream} has no column {stream.timestamp!r} for its event time; it has {known}"
            raise source.error(reason, name_token)
        listed = ", ".join(map(declaration, kept))
        insertions.append(_Insertion(name_token.end_pos or 0, f" ({listed})"))
    for insertion in reversed(insertions):
        text = text[: insertion.at] + insertion.text + text[insertion.at :]
    return text


def _check_names(stream: Stream, columns: Sequence[Field | Array], uses: _Uses, source: QueryText) -> None:
    """Refuse a name that no column has. Only here all columns are known that it could have been meant for.

    Raises:
        QueryError: with the nearest name, or all.
    """
    names = [column.name for column in columns]
    for of, token in uses.tokens:
        name = identifier(token)
        if of == stream.name and name not in (*names, EVENT_TIME, "ts"):
            hint = did_you_mean(name, [*names, EVENT_TIME]) or f"; it has {shortened(', '.join(names))}"
            raise source.error(f"{stream} has no column {name!r}{hint}", token)


def _is_reserved(name: str) -> bool:
    """Whether no column may be called so."""
    return name == EVENT_TIME or name.startswith(OWN_PREFIX)


def declaration(column: Field | Array) -> str:
    """The text that declares a column, or an array."""
    path = " FROM '{}'".format(path_text(column.path).replace("'", "''")) if column.path else ""
    if isinstance(column, Array):
        fields = ", ".join(map(declaration, column.fields))
        element = f"ROW({fields})" if column.rows else str(column.fields[0].type)
        return f"{written_name(column.name)} ARRAY<{element}>{path}"
    key = " KEY" if column.key else ""
    return f"{written_name(column.name)} {column.type}{key}{path}"


def written_name(name: str) -> str:
    """A name as a text has it: in quotes if it needs them."""
    return name if _plain_name().fullmatch(name) else '"{}"'.format(name.replace('"', '""'))


@cache
def _plain_name() -> re.Pattern[str]:
    """Names that need no quotes, as the grammar has them."""
    return re.compile(next(found.pattern.to_regexp() for found in parser().terminals if found.name == "IDENT"))
