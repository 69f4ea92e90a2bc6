"""Binds statements: declarations to `Stream` and `Table`, SELECT to `Query`.

All streams and tables of a program are declared before its queries are bound, wherever they stand in the text.
`schemas.language.expressions` binds expressions, `schemas.language.grouping` aggregates, and `schemas.language.clauses`
the clauses after FROM. This module binds FROM, EXCEPT and the SELECT list, and checks the rules of a program as a
whole: names are unique, and each query writes to a topic of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from lark import Token, Tree

from schemas.avro.result_schema import same_field
from schemas.errors import QueryError
from schemas.language.clauses import Clauses, bind_window
from schemas.language.declarations import bind_result_format, bind_stream, bind_table
from schemas.language.expressions import EVENT_TIME, Scope
from schemas.language.grouping import bind_aggregation, check_partitions, grouped_scope
from schemas.language.lookups import Lookups, TableInFrom, bind_time
from schemas.language.options import checked_topic
from schemas.language.query_text import (
    Node,
    QueryText,
    did_you_mean,
    identifier,
    shortened,
    span,
    tree,
    unquoted,
)
from schemas.members import members_of
from schemas.paths import path_text
from schemas.query import (
    HEADERS,
    OP_KEY,
    ORDINAL,
    PHASE_KEY,
    TIMESTAMP_KEY,
    Array,
    ColumnRef,
    Compare,
    Expr,
    Output,
    Program,
    Query,
    Source,
    Stream,
    Subtraction,
    Table,
    Type,
    Unnest,
    Window,
    type_of,
)

RESERVED_OUTPUTS = (TIMESTAMP_KEY, PHASE_KEY, OP_KEY)
"""Keys of a result object that Weir writes itself."""

MAX_LEVELS = 32
"""How deep objects may be in each other in results."""


def bind_program(root: Tree[Token], text: QueryText) -> Program:
    """Bind the parse tree of a program.

    Raises:
        QueryError: names that are unknown or not unique, types that do not fit, values out of range.
    """
    statements = [node for node in root.children if isinstance(node, Tree)]
    if not statements:
        raise text.error_at("there is no statement here; expected CREATE STREAM, SELECT or INSERT INTO", 0, 1)
    streams: dict[str, Stream | Table] = {}
    for node in statements:
        if node.data in ("create", "create_table"):
            stream = bind_stream(node, text) if node.data == "create" else bind_table(node, text)
            if stream.name in streams:
                earlier = streams[stream.name]
                twice = "" if type(earlier) is type(stream) else f", first as a {str(earlier).split()[0]}"
                raise text.error(f"{stream} is declared twice{twice}", node.children[0])
            streams[stream.name] = stream
    queries: list[Query] = []
    for node in statements:
        if node.data == "select":
            query = _bind_query(node, streams, [q.name for q in queries], text)
            _check_forms([*queries, query], node, text)
            queries.append(query)
    return Program(
        tuple(stream for stream in streams.values() if isinstance(stream, Stream)),
        tuple(queries),
        tuple(stream for stream in streams.values() if isinstance(stream, Table)),
    )


def _check_forms(queries: Sequence[Query], node: Tree[Token], text: QueryText) -> None:
    """Refuse queries that unnest one stream differently: it is read once for all."""
    forms: dict[str, Stream] = {}
    for stream in (stream for query in queries for stream in query.streams()):
        if forms.setdefault(stream.name, stream) != stream:
            how = "not unnested as in another query of this file"
            raise text.error(f"{stream} is {how}; declare its topic as two streams", node.children[4])


# --- SELECT ----------------------------------------------------------------------------------------


def _bind_query(
    node: Tree[Token], streams: Mapping[str, Stream | Table], names: Sequence[str], text: QueryText
) -> Query:
    topic_node, key_node, options_node, items_node, sources_node, clauses_node = node.children
    sources_tree, clauses = tree(sources_node), Clauses(tree(clauses_node), text)
    source_nodes = _source_nodes(sources_tree)
    joined = [node for node in source_nodes if node.children[1] is None]
    if clauses.excepts and len(joined) > 1:
        raise text.error("EXCEPT takes from one stream: FROM a [window] EXCEPT b [window] ON ...", joined[1])
    subtracted_nodes = [tree(clause.children[1]) for clause in clauses.excepts]
    for node in subtracted_nodes:
        if node.children[1] is not None:
            raise text.error(
                "EXCEPT takes away streams and tables in files; for tuples without a row of a table in a topic write "
                f"LEFT JOIN ... ON, and {_alias_of(node)}.key IS NULL in WHERE",
                node,
            )
    source_nodes += subtracted_nodes
    named = _bind_sources(source_nodes, streams, clauses.window_of_all(), text)
    tables = tuple(_bind_as_of(sources_tree, named, text))
    timed = {one.source.alias for one in tables}
    named = _unnested(named, _nodes_of(sources_tree, "unnest"), text)
    sources = tuple(source for source in named if source.alias not in timed)
    _check_tables(sources, source_nodes, bool(clauses.excepts), text)
    everything = Scope(text, {source.alias: source for source in named})
    lookups = Lookups(tables, everything)
    scope = everything
    if clauses.excepts:
        scope = _within(everything, sources[:1], tables)
        what = f"what EXCEPT subtracts has no columns in the answer: this reads {sources[0].alias} only"
        for piece in (items_node, *_nodes_of(sources_tree, "on"), *tree(clauses_node).children):
            if tree(piece).data not in ("except_", "partition_by"):
                _check_reads(piece, scope, everything, what)
    predicates: list[Expr] = []
    for on in _nodes_of(sources_tree, "on"):
        predicates += scope.conjuncts(on.children[0])
    for kind, condition in clauses.conditions():
        if kind == "where":
            predicates += scope.conjuncts(condition)
        else:
            window_predicates = scope.for_window_condition().conjuncts(condition)
            _check_times_only(condition, scope, text)
            predicates += window_predicates
    subtracted = tuple(_bind_excepts(clauses, everything, sources, tables)) if clauses.excepts else ()
    grouped = grouped_scope(tree(items_node), clauses, scope)
    if grouped is not None and subtracted:
        raise text.error(
            "aggregates above EXCEPT are not part of this version's language; aggregate a join, or drop EXCEPT",
            clauses.excepts[0].children[0],
        )
    outputs = tuple(_bind_outputs(tree(items_node), grouped or scope))
    conditions = [*predicates, *(p for part in subtracted for p in part.on)]
    conditions += [p for one in tables if one.on is not None for p in everything.conjuncts(one.on)]
    partition_by, partition = _bind_partition_by(clauses, everything, conditions)
    partition_by = lookups.partition_by(partition_by, clauses.keyword("partition_by"))
    aggregation = None
    if grouped is not None:
        aggregation = bind_aggregation(grouped, clauses)
        check_partitions(aggregation, partition, clauses, text)
    sink = _bind_sink(topic_node, named, text)
    key = _bind_key(key_node, outputs, aggregation is not None, text)
    result_format = bind_result_format(options_node, key, text)
    if result_format.format in ("avro", "protobuf"):
        paths = [output.path for output in outputs if output.header is None]
        same = same_field(members_of(paths), as_json=result_format.format == "protobuf")
        if same is not None:
            message = f"in {result_format.format} {same[0]!r} and {same[1]!r} would be one field; rename one with AS"
            raise text.error(message, items_node)
    name = sink or "results"
    if name in names:
        place = topic_node if topic_node is not None else items_node
        raise text.error(
            f"a second query writes to {name!r}; each query needs a topic of its own, INSERT INTO 'topic'",
            place,
        )
    start, end = span(node)
    selected, except_ = lookups.split(predicates, subtracted)
    return Query(
        name,
        sink,
        sources,
        selected,
        lookups.outputs(outputs),
        partition_by,
        None if aggregation is None else lookups.aggregation(aggregation),
        except_,
        lookups.lookups,
        result_format=result_format,
        text=text.text[start:end],
    )


def _nodes_of(node: Tree[Token], kind: str) -> list[Tree[Token]]:
    return [tree(child) for child in node.children if tree(child).data == kind]


def _bind_as_of(sources_tree: Tree[Token], named: Sequence[Source], text: QueryText) -> Iterator[TableInFrom]:
    """The tables of FROM that are read as of a time; `named` are all its sources."""
    known = {source.alias: source for source in named}
    kept = {id(node.children[1]): tree(node.children[2]).children[0] for node in _nodes_of(sources_tree, "left_join")}
    nodes = _source_nodes(sources_tree)
    timed = {alias for node in nodes if node.children[1] is not None for alias in (_alias_of(node),)}
    others = {alias: source for alias, source in known.items() if alias not in timed}
    for node in nodes:
        if node.children[1] is not None:
            of = bind_time(tree(node.children[1]), others, text)
            yield TableInFrom(known[_alias_of(node)], of, node, kept.get(id(node)))
        elif id(node) in kept:
            raise text.error(
                "LEFT JOIN takes a table in a topic, read as of a time: LEFT JOIN rates FOR SYSTEM_TIME AS OF "
                "O._ts AS R ON R.cur = O.cur; between streams there are [INNER] JOIN ... ON and ','",
                node,
            )


def _alias_of(node: Tree[Token]) -> str:
    """The name that a source in FROM has in the query."""
    name_token, _, alias_token, _ = node.children
    return identifier(alias_token if alias_token is not None else name_token)


def _source_nodes(sources_tree: Tree[Token]) -> list[Tree[Token]]:
    """The sources of FROM, in text order."""
    pieces = [tree(child) for child in sources_tree.children]
    named = [tree(piece.children[1]) if piece.data == "left_join" else piece for piece in pieces]
    return [piece for piece in named if piece.data == "source"]


def _within(scope: Scope, sources: Sequence[Source], tables: Sequence[TableInFrom]) -> Scope:
    """Some of a query's sources, and the tables that their tuples are looked up in."""
    aliases = {source.alias for source in sources}
    aliases |= {one.source.alias for one in tables if one.of in aliases}
    return Scope(scope.text, {alias: source for alias, source in scope.sources.items() if alias in aliases})


def _bind_excepts(
    clauses: Clauses, everything: Scope, sources: Sequence[Source], tables: Sequence[TableInFrom]
) -> Iterator[Subtraction]:
    """The subtractions of the query; `sources` are the first stream and those of the clauses, in order."""
    first = sources[0]
    for clause, source in zip(clauses.excepts, sources[1:], strict=True):
        on = tree(clause.children[2])
        scope = _within(everything, (first, source), tables)
        _check_reads(on, scope, everything, f"ON after EXCEPT compares {first.alias} with {source.alias}")
        yield Subtraction(source.alias, scope.conjuncts(on.children[0]))


def _check_reads(node: Node, scope: Scope, everything: Scope, what: str) -> None:
    """Refuse columns of a query's sources that are not in a scope; `what` says why."""
    for column in tree(node).find_data("column"):
        alias, name = column.children
        if name is not None and identifier(alias) in set(everything.sources) - set(scope.sources):
            raise scope.text.error(f"{what}, not {identifier(alias)}", column)


def _bind_sink(node: Node | None, sources: Sequence[Source], text: QueryText) -> str | None:
    if node is None:
        return None
    token = tree(node).children[0]
    written = str(token)
    topic = unquoted(written) if written.startswith("'") else identifier(token)
    checked_topic(topic, token, text)
    for source in sources:
        if isinstance(source.stream, Stream) and source.stream.topic == topic:
            raise text.error(f"this query would read its own results: {topic!r} is the topic of {source.alias}", token)
    return topic


def _bind_key(node: Node | None, outputs: Sequence[Output], aggregating: bool, text: QueryText) -> tuple[Output, ...]:
    """The outputs that KEY names."""
    if node is None:
        return ()
    word, *name_nodes = tree(node).children
    if aggregating:
        raise text.error("results of aggregates have the values of GROUP BY as their key; leave KEY out", word)
    known = {output.name: output for output in outputs}
    found: dict[str, Output] = {}
    for name_node in name_nodes:
        name = ".".join(identifier(part) for part in tree(name_node).children if part is not None)
        if name not in known:
            hint = did_you_mean(name, known) or f"; it has {shortened(', '.join(known))}"
            raise text.error(f"KEY names outputs of the SELECT list, and none is called {name!r}{hint}", name_node)
        if name in found:
            raise text.error(f"KEY names {name!r} twice", name_node)
        if known[name].header is not None:
            raise text.error(f"{name!r} is a header; KEY takes outputs that are in the value", name_node)
        found[name] = known[name]
    return tuple(found.values())


def _bind_sources(
    nodes: Sequence[Tree[Token]], streams: Mapping[str, Stream | Table], window_of_all: Window | None, text: QueryText
) -> tuple[Source, ...]:
    sources: dict[str, Source] = {}
    for source_node in nodes:
        name_token, as_of_node, alias_token, window_node = source_node.children
        stream = streams.get(identifier(name_token))
        if stream is None:
            hint = did_you_mean(identifier(name_token), streams)
            declare = "; declare it with CREATE STREAM or CREATE TABLE" if not hint else ""
            raise text.error(f"unknown stream {identifier(name_token)!r}{hint}{declare}", name_token)
        alias = identifier(alias_token if alias_token is not None else name_token)
        if alias in sources:
            how = "give one of them another, as in " + f"{stream.name} {alias}2"
            raise text.error(f"alias {alias!r} stands for two streams; {how}", alias_token or name_token)
        if (as_of_node is not None) != (isinstance(stream, Stream) and stream.is_versioned):
            raise _wrong_time(stream, alias, as_of_node, source_node, text)
        if isinstance(stream, Table) or stream.is_versioned:
            if window_node is not None:
                lives = (
                    "its rows are there from the start and for ever"
                    if isinstance(stream, Table)
                    else "a version of a row holds until its next version"
                )
                raise text.error(
                    f"{stream} takes no window: {lives}; write {stream.name}"
                    + (f" {alias}" if alias_token is not None else ""),
                    window_node,
                )
            window = Window("UNBOUNDED")
        elif window_node is not None:
            window = bind_window(tree(tree(window_node).children[0]), text)
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


def _unnested(sources: Sequence[Source], nodes: Sequence[Tree[Token]], text: QueryText) -> tuple[Source, ...]:
    """The sources with those unnested of which CROSS JOIN UNNEST names an array."""
    found = {source.alias: source for source in sources}
    for node in nodes:
        alias_token, array_token, elements_token, names_node = node.children
        source = found.get(identifier(alias_token))
        if source is None:
            hint = did_you_mean(identifier(alias_token), found) or f"; the query has {', '.join(found)}"
            raise text.error(f"unknown alias {identifier(alias_token)!r}{hint}", alias_token)
        arrays = {array.name: array for array in source.stream.arrays} if isinstance(source.stream, Stream) else {}
        array, elements = arrays.get(identifier(array_token)), identifier(elements_token)
        if array is None:
            hint = did_you_mean(identifier(array_token), arrays) or "; declare it: items ARRAY<ROW (sku STRING)>"
            raise text.error(f"{source.stream} has no array {identifier(array_token)!r}{hint}", array_token)
        if any(one.array == array for one in source.unnests):
            raise text.error(
                f"{source.alias}.{array.name} is unnested twice; declare it a second time: "
                f"{array.name}2 ARRAY<...> FROM '{path_text(array.place)}'",
                array_token,
            )
        if elements in found or any(elements == one.alias for other in found.values() for one in other.unnests):
            raise text.error(f"alias {elements!r} stands for two streams; give the elements another", elements_token)
        names = tuple(field.name for field in array.fields)
        if names_node is not None:
            names = _element_names(tree(names_node), array, text)
        unnested = source.stream.unnest(array) if isinstance(source.stream, Stream) else source.stream
        unnests = (*source.unnests, Unnest(elements, array, names))
        found[source.alias] = replace(source, stream=unnested, unnests=unnests)
    forms: dict[str, Source] = {}
    for source in found.values():
        other = forms.setdefault(source.stream.name, source)
        if other.stream != source.stream:
            place = nodes[0]
            raise text.error(
                f"{source.stream} is read by {other.alias} and {source.alias}, and only one of them is unnested so; "
                "declare the topic as two streams",
                place,
            )
    return tuple(found.values())


def _element_names(node: Tree[Token], array: Array, text: QueryText) -> tuple[str, ...]:
    """The names that UNNEST gives what each element has; types, which need not be given, are those declared."""
    names = tuple(identifier(tree(name).children[0]) for name in node.children)
    if len(names) != len(array.fields) or len({*names, ORDINAL}) <= len(names):
        what = f"{len(array.fields)} different names" if len(array.fields) > 1 else "one name"
        raise text.error(f"an element of {array.name!r} takes {what} here, got {', '.join(names)}", node)
    for name, field in zip(node.children, array.fields, strict=True):
        token = tree(name).children[1]
        if token is not None and str(token).upper() != field.type:
            raise text.error(f"{field.name!r} of {array.name!r} is declared {field.type}, not {token}", token)
    return names


def _wrong_time(
    stream: Stream | Table, alias: str, as_of_node: Node | None, source_node: Node, text: QueryText
) -> QueryError:
    """An error: a table in a topic is read as of a time, and nothing else is."""
    if as_of_node is None:
        return text.error(
            f"{stream} changes over time: say when, with the event time of a stream: "
            f"{stream.name} FOR SYSTEM_TIME AS OF O._ts AS {alias}",
            source_node,
        )
    what = "its rows never change" if isinstance(stream, Table) else "it is a stream, and no table"
    return text.error(f"FOR SYSTEM_TIME AS OF is for tables in topics; {stream}: {what}", as_of_node)


def _check_tables(sources: Sequence[Source], nodes: Sequence[Tree[Token]], subtracting: bool, text: QueryText) -> None:
    """Refuse a query whose results no stream would trigger."""
    if subtracting and sources[0].is_static:
        raise text.error(
            f"EXCEPT takes from a stream: {sources[0].stream} does not change, and may only be what is taken away",
            nodes[0],
        )
    if all(source.is_static for source in sources):
        raise text.error(
            f"a query needs a stream: nothing ever happens in {sources[0].stream}, so there is nothing to answer",
            nodes[0],
        )


def _check_times_only(condition: Node, scope: Scope, text: QueryText) -> None:
    """Check that every column of a WINDOW condition is a time; anything else belongs in WHERE."""
    window_scope = scope.for_window_condition()
    for node in tree(condition).find_data("column"):
        column = window_scope.column(node)
        stream = scope.sources[column.alias].stream
        declared = (stream.timestamp, "ts") if isinstance(stream, Stream) else ()
        if column.type is not Type.TIMESTAMP and column.name not in declared:
            such = f", such as {column.alias}.{EVENT_TIME}" if declared else ""
            raise text.error(
                f"a WINDOW condition compares times{such}; "
                f"{text.shown(node)} is {column.type}: move this condition to WHERE",
                node,
            )


def _bind_outputs(node: Tree[Token], scope: Scope) -> Iterator[Output]:
    """The SELECT list, expanded; checks that every name is unique, and that a name is of a value or of an object."""
    seen: set[str] = set()
    values: set[tuple[str, ...]] = set()
    objects: set[tuple[str, ...]] = set()
    for item in node.children:
        for output in _outputs_of(tree(item), scope):
            path = output.path
            above = {path[:n] for n in range(1, len(path))}
            if output.name in seen:
                raise scope.text.error(f"two results are called {output.name!r}; rename one with AS", item)
            if path[0] in RESERVED_OUTPUTS:
                raise scope.text.error(f"{path[0]!r} is a key that Weir writes itself; rename this with AS", item)
            both = path if path in objects else next(iter(sorted(above & values)), None)
            if both is not None:
                name = ".".join(both)
                raise scope.text.error(f"{name!r} would be a value and an object; rename one with AS", item)
            if path[0] == HEADERS and (wrong := _wrong_header(output)):
                raise scope.text.error(wrong, item)
            seen.add(output.name)
            values.add(path)
            objects |= above
            yield output
    if objects and all(path[0] == HEADERS for path in values):
        raise scope.text.error("a result needs a value beside its headers", node)


def _wrong_header(output: Output) -> str:
    """What is wrong with an output that is called as headers are; empty if nothing is."""
    if len(output.path) == 1:
        return f"{output.name!r} has the headers of a result; name one, as in AS \"{HEADERS}.trace-id\""
    kind = type_of(output.expr)
    return "" if kind is Type.STRING else f"a header is a STRING; {output.name!r} is {kind}"


def _outputs_of(item: Tree[Token], scope: Scope) -> Iterator[Output]:
    if item.data == "output":
        expr_node, alias_token = item.children
        expr = scope.value(expr_node)
        if alias_token is not None:
            yield _named(alias_token, expr, scope.text)
        elif isinstance(expr, ColumnRef) and tree(expr_node).data == "column":
            yield Output(".".join(identifier(part) for part in tree(expr_node).children if part is not None), expr)
        else:
            raise scope.text.error(f"give this expression a name: {scope.text.shown(expr_node)} AS name", expr_node)
        return
    if item.data == "every_column":
        for source in scope.sources.values():
            yield from _columns_of(source)
            for unnest in source.unnests:
                yield from _columns_of_elements(source, unnest)
    elif (of_elements := scope.elements(item.children[0])) is not None:
        yield from _columns_of_elements(*of_elements)
    else:
        yield from _columns_of(scope.source(item.children[0]))


def _columns_of(source: Source) -> Iterator[Output]:
    own = source.stream.of_records() if isinstance(source.stream, Stream) else source.stream
    for field in own.fields:
        yield Output(f"{source.alias}.{field.name}", ColumnRef(source.alias, field.name, field.type))


def _columns_of_elements(source: Source, unnest: Unnest) -> Iterator[Output]:
    for name, field in unnest.columns().items():
        yield Output(f"{unnest.alias}.{name}", ColumnRef(source.alias, field.name, field.type))


def _named(alias_token: Node, expr: Expr, text: QueryText) -> Output:
    """The output under an alias; dots in it are between the names of objects in each other."""
    name = identifier(alias_token)
    found = Output(name, expr, nested="." in name)
    if "" in found.path:
        form = 'dots are between the names of objects in each other, as in AS "customer.id"'
        raise text.error(f"{form}; got {shortened(name)!r}", alias_token)
    if len(found.path) > MAX_LEVELS:
        raise text.error(f"objects in results are at most {MAX_LEVELS} deep, got {len(found.path)}", alias_token)
    return found


def _bind_partition_by(
    clauses: Clauses, scope: Scope, predicates: Sequence[Expr]
) -> tuple[tuple[ColumnRef, ...], frozenset[ColumnRef]]:
    """One column per stream's alias, in FROM order, all equated by the predicates: results stay in a partition.

    Every task has all rows of a table, so tables are not partitioned.

    Returns:
        The columns, and all columns that equal them.
    """
    nodes = clauses.partition_by()
    if not nodes:
        return (), frozenset()
    found: dict[str, ColumnRef] = {}
    for node in nodes:
        column = scope.column(node)
        unnests = scope.sources[column.alias].unnests
        if any(column.name == field.name for one in unnests for field in one.array.columns()):
            raise scope.text.error("PARTITION BY takes columns of records, by which topics are keyed", node)
        if scope.sources[column.alias].is_static:
            raise scope.text.error(
                f"PARTITION BY takes columns of streams; every task reads the whole of "
                f"{scope.sources[column.alias].stream}",
                node,
            )
        if column.alias in found:
            raise scope.text.error(
                f"PARTITION BY takes one column of each stream; this is the second of {column.alias}", node
            )
        found[column.alias] = column
    streams = [alias for alias, source in scope.sources.items() if not source.is_static]
    missing = [alias for alias in streams if alias not in found]
    if missing:
        raise scope.text.error(
            f"PARTITION BY takes one column of each stream; none is given of {', '.join(missing)}", nodes[-1]
        )
    equated = {found[streams[0]]}
    pairs = [
        (p.left, p.right)
        for p in predicates
        if isinstance(p, Compare) and p.op == "=" and isinstance(p.left, ColumnRef) and isinstance(p.right, ColumnRef)
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
    return tuple(found[alias] for alias in streams), frozenset(equated)
