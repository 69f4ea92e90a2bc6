"""Binds statements: declarations to `Stream`, SELECT to `Query`.

All streams of a program are declared before its queries are bound, wherever they stand in the text.
Expressions are `schemas.expressions`; this module knows FROM, windows, the SELECT list, options and what a
program as a whole must keep: names that are unique, queries that write to topics of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from lark import Token, Tree

from schemas.declarations import bind_stream, checked_topic
from schemas.durations import duration_ms
from schemas.errors import UsageError
from schemas.expressions import EVENT_TIME, Scope
from schemas.query import (
    Column,
    Compare,
    Expr,
    Output,
    Program,
    Query,
    Source,
    Stream,
    Type,
    Window,
)
from schemas.query_text import (
    Node,
    QueryText,
    did_you_mean,
    identifier,
    numeral,
    shortened,
    span,
    tree,
    unquoted,
)

RESERVED_OUTPUTS = ("_ts", "_phase", "_op")
"""Keys of a result object that Weir writes itself."""

_MAX_ROWS = 2**62


def bind_program(root: Tree[Token], text: QueryText) -> Program:
    """The program that a parse tree means.

    Raises:
        QueryError: names that are unknown or not unique, types that do not fit, values out of range.
    """
    statements = [node for node in root.children if isinstance(node, Tree)]
    if not statements:
        raise text.error_at("there is no statement here; expected CREATE STREAM, SELECT or INSERT INTO", 0, 1)
    streams: dict[str, Stream] = {}
    for node in statements:
        if node.data == "create":
            stream = bind_stream(node, text)
            if stream.name in streams:
                raise text.error(f"stream {stream.name!r} is declared twice", node.children[0])
            streams[stream.name] = stream
    queries: list[Query] = []
    for node in statements:
        if node.data == "select":
            queries.append(_bind_query(node, streams, [q.name for q in queries], text))
    return Program(tuple(streams.values()), tuple(queries))


# --- SELECT ----------------------------------------------------------------------------------------


def _bind_query(
    node: Tree[Token], streams: Mapping[str, Stream], names: Sequence[str], text: QueryText
) -> Query:
    topic_node, items_node, sources_node, clauses_node = node.children
    sources_tree, clauses = tree(sources_node), _Clauses(tree(clauses_node), text)
    sources = _bind_sources(sources_tree, streams, clauses.window_of_all(), text)
    scope = Scope(text, {source.alias: source for source in sources})
    predicates: list[Expr] = []
    for on in sources_tree.children:
        if tree(on).data == "on":
            predicates += scope.conjuncts(tree(on).children[0])
    for kind, condition in clauses.conditions():
        if kind == "where":
            predicates += scope.conjuncts(condition)
        else:
            window_predicates = scope.for_window_condition().conjuncts(condition)
            _check_times_only(condition, scope, text)
            predicates += window_predicates
    outputs = tuple(_bind_outputs(tree(items_node), scope))
    partition_by = _bind_partition_by(clauses, scope, predicates)
    sink = _bind_sink(topic_node, sources, text)
    name = sink or "results"
    if name in names:
        place = topic_node if topic_node is not None else items_node
        raise text.error(
            f"a second query writes to {name!r}; each query needs a topic of its own, INSERT INTO 'topic'",
            place,
        )
    start, end = span(node)
    return Query(name, sink, sources, tuple(predicates), outputs, partition_by, text=text.text[start:end])


def _bind_sink(node: Node | None, sources: Sequence[Source], text: QueryText) -> str | None:
    if node is None:
        return None
    token = tree(node).children[0]
    written = str(token)
    topic = unquoted(written) if written.startswith("'") else identifier(token)
    checked_topic(topic, token, text)
    for source in sources:
        if source.stream.topic == topic:
            raise text.error(
                f"this query would read its own results: {topic!r} is the topic of {source.alias}", token
            )
    return topic


def _bind_sources(
    node: Tree[Token], streams: Mapping[str, Stream], window_of_all: Window | None, text: QueryText
) -> tuple[Source, ...]:
    sources: dict[str, Source] = {}
    for source_node in node.children:
        if tree(source_node).data != "source":
            continue
        name_token, alias_token, window_node = tree(source_node).children
        stream = streams.get(identifier(name_token))
        if stream is None:
            hint = did_you_mean(identifier(name_token), streams)
            declare = "; declare it with CREATE STREAM" if not hint else ""
            raise text.error(f"unknown stream {identifier(name_token)!r}{hint}{declare}", name_token)
        alias = identifier(alias_token if alias_token is not None else name_token)
        if alias in sources:
            how = "give one of them another, as in " + f"{stream.name} {alias}2"
            raise text.error(f"alias {alias!r} stands for two streams; {how}", alias_token or name_token)
        if window_node is not None:
            window = _bind_window(tree(tree(window_node).children[0]), text)
        elif window_of_all is not None:
            window = window_of_all
        else:
            raise text.error(
                f"{alias} has no window; write {text.shown(source_node)} [RANGE 5 MINUTES] "
                f"(or [ROWS 100], [UNBOUNDED]), or WINDOW RANGE 5 MINUTES at the end for all streams",
                source_node,
            )
        sources[alias] = Source(alias, stream, window)
    return tuple(sources.values())


def _bind_window(node: Tree[Token], text: QueryText) -> Window:
    match node.data:
        case "unbounded":
            return Window("UNBOUNDED")
        case "range":
            return _range(node.children[1], text)
        case _:
            number = tree(node.children[1])
            written = numeral(number.children)
            if not re.fullmatch(r"0*[1-9][0-9]{0,18}", written) or int(written) > _MAX_ROWS:
                raise text.error(f"ROWS takes a whole number > 0, got {shortened(written)}", number)
            return Window("ROWS", int(written))


def _range(node: Node, text: QueryText) -> Window:
    duration = tree(node)
    number, unit = numeral(duration.children[:2]), str(duration.children[2])
    try:
        ms = duration_ms(number, unit)
    except UsageError as error:
        raise text.error(f"window: {error}", node) from None
    if ms <= 0:
        raise text.error(f"window must be > 0, got {number} {unit}", node)
    return Window("RANGE", ms)


class _Clauses:
    """What follows FROM, in any order, each at most once (WINDOW once as a window, once as a condition)."""

    def __init__(self, node: Tree[Token], text: QueryText) -> None:
        self._text = text
        self._clauses: dict[str, Tree[Token]] = {}
        for clause in node.children:
            kind = "window_of_all" if tree(clause).data == "max_window" else tree(clause).data
            if kind in self._clauses:
                what = {
                    "where": "WHERE is given twice; join its conditions with AND",
                    "window_of_all": "the window of all streams is given twice",
                    "window_condition": "WINDOW is given twice; join its conditions with AND",
                }.get(kind, "PARTITION BY is given twice")
                raise text.error(what, tree(clause).children[0])
            self._clauses[kind] = tree(clause)

    def window_of_all(self) -> Window | None:
        """The window of the streams that have none of their own."""
        clause = self._clauses.get("window_of_all")
        if clause is None:
            return None
        inner = tree(clause.children[1])
        if inner.data == "signed_duration":
            return _range(inner, self._text)
        return _bind_window(tree(inner.children[0]) if inner.data == "window" else inner, self._text)

    def conditions(self) -> Iterator[tuple[str, Node]]:
        """'where' and 'window_condition' clauses with their conditions, in text order."""
        for kind, clause in self._clauses.items():
            if kind in ("where", "window_condition"):
                yield kind, clause.children[1]

    def partition_by(self) -> Sequence[Tree[Token]]:
        """The columns of PARTITION BY."""
        clause = self._clauses.get("partition_by")
        return [] if clause is None else [tree(column) for column in clause.children[1:]]


def _check_times_only(condition: Node, scope: Scope, text: QueryText) -> None:
    """Every column of a WINDOW condition is a time; anything else belongs in WHERE."""
    window_scope = scope.for_window_condition()
    for node in tree(condition).find_data("column"):
        column = window_scope.column(node)
        declared = scope.sources[column.alias].stream.timestamp
        if column.type is not Type.TIMESTAMP and column.name not in (declared, "ts"):
            raise text.error(
                f"a WINDOW condition compares times, such as {column.alias}.{EVENT_TIME}; "
                f"{text.shown(node)} is {column.type}: move this condition to WHERE",
                node,
            )


def _bind_outputs(node: Tree[Token], scope: Scope) -> Iterator[Output]:
    """The SELECT list, expanded; every name once."""
    seen: set[str] = set()
    for item in node.children:
        for output in _outputs_of(tree(item), scope):
            if output.name in seen:
                raise scope.text.error(f"two results are called {output.name!r}; rename one with AS", item)
            if output.name in RESERVED_OUTPUTS:
                raise scope.text.error(
                    f"{output.name!r} is a key that Weir writes itself; rename this with AS", item
                )
            seen.add(output.name)
            yield output


def _outputs_of(item: Tree[Token], scope: Scope) -> Iterator[Output]:
    if item.data == "output":
        expr_node, alias_token = item.children
        expr = scope.value(expr_node)
        if alias_token is not None:
            yield Output(identifier(alias_token), expr)
        elif isinstance(expr, Column) and tree(expr_node).data == "column":
            yield Output(
                ".".join(identifier(part) for part in tree(expr_node).children if part is not None), expr
            )
        else:
            raise scope.text.error(
                f"give this expression a name: {scope.text.shown(expr_node)} AS name", expr_node
            )
        return
    if item.data == "every_column":
        sources = tuple(scope.sources.values())
    else:
        alias = item.children[0]
        sources = (scope.source(alias),)
    for source in sources:
        for field in source.stream.fields:
            yield Output(f"{source.alias}.{field.name}", Column(source.alias, field.name, field.type))


def _bind_partition_by(clauses: _Clauses, scope: Scope, predicates: Sequence[Expr]) -> tuple[Column, ...]:
    """One column per alias, in FROM order, all equated by the predicates: results stay in a partition."""
    nodes = clauses.partition_by()
    if not nodes:
        return ()
    found: dict[str, Column] = {}
    for node in nodes:
        column = scope.column(node)
        if column.alias in found:
            raise scope.text.error(
                f"PARTITION BY takes one column of each stream; this is the second of {column.alias}", node
            )
        found[column.alias] = column
    missing = [alias for alias in scope.sources if alias not in found]
    if missing:
        raise scope.text.error(
            f"PARTITION BY takes one column of each stream; none is given of {', '.join(missing)}", nodes[-1]
        )
    equated = {found[next(iter(scope.sources))]}
    pairs = [
        (p.left, p.right)
        for p in predicates
        if isinstance(p, Compare)
        and p.op == "="
        and isinstance(p.left, Column)
        and isinstance(p.right, Column)
    ]
    for _ in pairs:
        equated |= {c for pair in pairs if equated & set(pair) for c in pair}
    for node in nodes:
        column = scope.column(node)
        if column not in equated:
            first = scope.text.shown(nodes[0])
            raise scope.text.error(
                "PARTITION BY takes columns that the query equates; "
                f"no condition says {first} = {scope.text.shown(node)}",
                node if node is not nodes[0] else nodes[-1],
            )
    return tuple(found[alias] for alias in scope.sources)
