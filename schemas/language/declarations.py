"""Binds declarations: CREATE STREAM to `schemas.query.Stream`, CREATE TABLE to `Table`.

Without `timestamp`, a stream's only TIMESTAMP column is its event time; with none or several such columns, the Kafka
record's own timestamp is. Without `topic`, the topic has the stream's name; the code that connects to Kafka checks
that name against Kafka's rule, since a stream read from a file may have any name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from lark import Token, Tree

from schemas.errors import UsageError
from schemas.language.expressions import EVENT_TIME
from schemas.language.options import (
    FORMATS,
    KEY_FORMATS,
    RESULT_FORMATS,
    RESULT_OPTIONS,
    STREAM_OPTIONS,
    SUBJECTS,
    TABLE_FORMATS,
    TABLE_OPTIONS,
    WITH_ARRAYS,
    Options,
)
from schemas.language.query_text import Node, QueryText, did_you_mean, identifier, tree, unquoted
from schemas.paths import parse_path, path_text
from schemas.query import (
    ELEMENT,
    ENVELOPES,
    GONE,
    METADATA,
    OP_KEY,
    ORDINAL,
    OWN_PREFIX,
    SOURCE_TIME,
    VALUE,
    WITH_SCHEMA,
    Array,
    Field,
    Output,
    Path,
    ResultFormat,
    Stream,
    Table,
    Type,
)

_OTHER_TYPE_NAMES = {
    "INT": Type.BIGINT,
    "INTEGER": Type.BIGINT,
    "SMALLINT": Type.BIGINT,
    "LONG": Type.BIGINT,
    "FLOAT": Type.DOUBLE,
    "REAL": Type.DOUBLE,
    "DECIMAL": Type.DOUBLE,
    "NUMERIC": Type.DOUBLE,
    "VARCHAR": Type.STRING,
    "CHAR": Type.STRING,
    "TEXT": Type.STRING,
    "BOOL": Type.BOOLEAN,
    "DATE": Type.TIMESTAMP,
    "DATETIME": Type.TIMESTAMP,
}


def bind_stream(node: Tree[Token], text: QueryText) -> Stream:
    """The stream that CREATE STREAM declares."""
    array_nodes = [tree(child) for child in node.children[1:-1] if tree(child).data == "array_def"]
    name, fields, options = _declared(node, STREAM_OPTIONS, text)
    marked = next(_primary_marks(node), None)
    if marked is not None:
        raise text.error("a stream has no PRIMARY KEY; KEY says that a column is in the record's key", marked)
    stream = _in_topic(name, fields, options)
    return replace(stream, arrays=tuple(_bind_arrays(array_nodes, fields, stream.format, text)))


def _primary_marks(node: Tree[Token]) -> Iterator[Tree[Token]]:
    """The PRIMARY KEYs in a declaration."""
    return (mark for mark in node.find_data("key_mark") if len(mark.children) > 1)


def _in_topic(name: str, fields: Mapping[str, Field], options: Options, primary_key: tuple[str, ...] = ()) -> Stream:
    """A stream, or a table, whose records are in a topic."""
    times = [field.name for field in fields.values() if field.type is Type.TIMESTAMP and not field.key]
    format = options.format((*FORMATS, *ENVELOPES) if primary_key else FORMATS) or FORMATS[0]
    if format in ENVELOPES:
        times = []
        options.check_envelope()
    written = ENVELOPES.get(format, format)
    key_format = options.key_format(written if format in ENVELOPES else None)
    schema, registry = options.schema(written, key_format)
    options.check_columns(written)
    deduplicate, within_ms = options.deduplicate(of_table=bool(primary_key))
    return Stream(
        name,
        tuple(fields.values()),
        topic=options.topic() or name,
        format=format,
        schema=schema,
        registry=registry,
        timestamp=options.timestamp() or (times[0] if len(times) == 1 else None),
        disorder_ms=options.duration("disorder") or 0,
        idle_timeout_ms=options.duration("idle_timeout", positive=True),
        rate=options.rate(),
        distinct=options.distinct(),
        key_format=key_format,
        message=options.message(written),
        primary_key=primary_key,
        deduplicate=deduplicate,
        deduplicate_within_ms=within_ms,
    )


def _bind_arrays(
    nodes: Sequence[Tree[Token]], fields: Mapping[str, Field], format: str, text: QueryText
) -> Iterator[Array]:
    seen = set(fields)
    for node in nodes:
        name_token, element, path_token = node.children
        name = identifier(name_token)
        _check_prefix(name, name_token, text)
        if name in seen:
            raise text.error(f"column {name!r} is declared twice", name_token)
        if format not in WITH_ARRAYS:
            raise text.error(f"arrays are read of {', '.join(WITH_ARRAYS)}, not of {format!r}", name_token)
        seen.add(name)
        rows = isinstance(element, Tree)
        own: dict[str, Field] = {}
        for row_field in tree(element).children if rows else ():
            field_token, type_token, inner_token = tree(row_field).children
            inner = identifier(field_token)
            if inner in (*own, ORDINAL):
                raise text.error(f"{inner!r} is there twice in an element of {name!r}", field_token)
            own[inner] = Field(inner, _type(type_token, text), _path(inner, inner_token, text))
        kept = tuple(own.values()) if rows else (Field(ELEMENT, _type(element, text)),)
        array = Array(name, kept, rows, _path(name, path_token, text))
        if array.part != VALUE:
            raise text.error(f"{str(array.place[0])!r} of a record is no array", path_token or name_token)
        for column in (array.column(field.name) for field in kept):
            if column in seen:
                raise text.error(
                    f"column {column!r} would be called as an element's of array {name!r}; give one of them another "
                    "name and FROM",
                    name_token,
                )
            seen.add(column)
        yield array


def undeclared(node: Tree[Token], text: QueryText) -> Stream | None:
    """The stream that CREATE STREAM declares without columns, without its fields; None if it has columns.

    Raises:
        QueryError: an option is wrong, or the event time has no name.
    """
    name_token, *column_nodes, options_node = node.children
    if column_nodes:
        return None
    name = identifier(name_token)
    option_nodes = [] if options_node is None else [tree(option) for option in tree(options_node).children]
    options = Options(option_nodes, STREAM_OPTIONS, {}, text)
    format = options.format(FORMATS) or FORMATS[0]
    schema, registry = options.schema(format, options.format(KEY_FORMATS, "key_format"))
    timestamp = options.column("timestamp")
    if format not in WITH_SCHEMA:
        raise text.error(f"stream {name!r} needs a list of its columns: format {format!r} has no schema", name_token)
    if timestamp is None:
        raise text.error(
            f"stream {name!r} without a list of its columns names its event time: WITH ({STREAM_OPTIONS['timestamp']})",
            name_token,
        )
    return Stream(
        name,
        (),
        options.topic() or name,
        format,
        timestamp,
        distinct=options.distinct(declared=False),
        schema=schema,
        registry=registry,
        message=options.message(format),
        deduplicate=options.names("deduplicate"),
    )


def bind_table(node: Tree[Token], text: QueryText) -> Table | Stream:
    """The table that CREATE TABLE declares: in a file, or as a `Stream` of versions in a topic."""
    if _names_topic(node):
        return _bind_versions(node, text)
    name, fields, options = _declared(node, TABLE_OPTIONS, text)
    path = options.path()
    if path is None:
        raise text.error(
            f"table {name!r} needs the file or the topic of its rows: CREATE TABLE {name} (...) "
            f"WITH ({TABLE_OPTIONS['path']}), or WITH (topic = {name!r})",
            node.children[0],
        )
    return Table(name, tuple(fields.values()), path, options.format(TABLE_FORMATS))


def _names_topic(node: Tree[Token]) -> bool:
    options = node.children[-1]
    return isinstance(options, Tree) and any(
        str(tree(option).children[0]).strip("'").lower() == "topic" for option in options.children
    )


def _bind_versions(node: Tree[Token], text: QueryText) -> Stream:
    """A table in a topic, whose records are the versions of its rows. Its primary key is in the records' keys."""
    name, fields, options = _declared(node, STREAM_OPTIONS, text)
    marked = [
        identifier(tree(column).children[0]) for column in node.children[1:-1] if any(_primary_marks(tree(column)))
    ]
    if not marked:
        raise text.error(
            f"table {name!r} in a topic needs a key, which tells its rows apart: "
            f"{next(iter(fields))} {next(iter(fields.values())).type} PRIMARY KEY",
            node.children[0],
        )
    for column in map(tree, node.children[1:-1]):
        name_token, _, mark, _ = column.children
        if mark is not None and identifier(name_token) not in marked:
            raise text.error("the key of a table's records is its primary key; write PRIMARY KEY, or drop KEY", mark)
        if identifier(name_token) in (OP_KEY, GONE, SOURCE_TIME):
            raise text.error(f"Weir has a use of its own for {identifier(name_token)!r}; rename it", name_token)
    return _in_topic(name, fields, options, tuple(marked))


def bind_result_format(node: Node | None, key: Sequence[Output], text: QueryText) -> ResultFormat:
    """How results are written, by the WITH of INSERT INTO; as JSON without it.

    Args:
        key: the outputs of which their keys are made.
    """
    nodes = [] if node is None else [tree(option) for option in tree(node).children]
    options = Options(nodes, RESULT_OPTIONS, {}, text)
    format, key_format = options.format(RESULT_FORMATS) or RESULT_FORMATS[0], options.result_key_format(key)
    either = key_format if key_format in WITH_SCHEMA else format
    schema = options.result_schema(format)
    return ResultFormat(
        format,
        options.registry(either),
        options.subject(either) or SUBJECTS[0],
        options.record(either),
        tuple(output.name for output in key),
        key_format,
        schema,
        options.message(format),
    )


def _declared(node: Tree[Token], accepted: Mapping[str, str], text: QueryText) -> tuple[str, dict[str, Field], Options]:
    """The name, columns and options of a declaration."""
    name_token, *column_nodes, options_node = node.children
    if not column_nodes:
        undeclared(node, text)
        raise text.error(f"stream {identifier(name_token)!r} needs a list of its columns here", name_token)
    fields: dict[str, Field] = {}
    for column_node in (node for node in column_nodes if tree(node).data == "column_def"):
        field = _bind_field(tree(column_node), text, of_topic=accepted is STREAM_OPTIONS)
        if field.name in fields:
            raise text.error(f"column {field.name!r} is declared twice", tree(column_node).children[0])
        fields[field.name] = field
    option_nodes = [] if options_node is None else tree(options_node).children
    return identifier(name_token), fields, Options([tree(option) for option in option_nodes], accepted, fields, text)


def _bind_field(node: Tree[Token], text: QueryText, *, of_topic: bool) -> Field:
    name_token, type_token, key_mark, path_token = node.children
    name = identifier(name_token)
    if name == EVENT_TIME:
        raise text.error(f"{EVENT_TIME!r} is every stream's event time; call this column otherwise", name_token)
    _check_prefix(name, name_token, text)
    field = Field(name, _type(type_token, text), _path(name, path_token, text), key=key_mark is not None)
    if key_mark is not None and not of_topic:
        raise text.error("the rows of a table's file have no keys; leave KEY out", key_mark)
    if of_topic and (wrong := _misused(field)):
        raise text.error(wrong, path_token or name_token)
    return field


def _check_prefix(name: str, token: Node, text: QueryText) -> None:
    if name.startswith(OWN_PREFIX):
        how = f"give it another name and FROM '{path_text((name,))}'"
        raise text.error(f"{name!r}: no column's name begins with {OWN_PREFIX!r}; {how}", token)


def _type(token: Node, text: QueryText) -> Type:
    written = str(token).upper()
    if written not in Type.__members__:
        other = _OTHER_TYPE_NAMES.get(written)
        hint = f"; did you mean {other}?" if other else did_you_mean(written, Type.__members__)
        raise text.error(f"unknown type {str(token)!r}; accepted: {', '.join(Type)}{hint}", token)
    return Type[written]


def _path(name: str, token: Node | None, text: QueryText) -> Path:
    """The path that FROM gives to what has a name; empty without FROM, and if the name says the same."""
    if token is None:
        return ()
    try:
        path = parse_path(unquoted(str(token)))
    except UsageError as error:
        raise text.error(str(error), token) from None
    return () if path == (name,) else path


def _misused(field: Field) -> str:
    """What is wrong with a column that stands for something else of a record than its value; empty if nothing is."""
    name = str(field.place[0])
    if name not in METADATA:
        return ""
    if field.key:
        return f"{name!r} is not a part of the key; leave KEY out"
    if name == "_headers" and (len(field.place) != 2 or isinstance(field.place[1], int)):
        return f"column {field.name!r} is one header of a record: FROM '_headers[\"trace-id\"]'"
    if name != "_headers" and len(field.place) > 1:
        return f"{name!r} of a record has no parts; write FROM {name!r}"
    if field.type is not METADATA[name]:
        return f"{name!r} of a record is {METADATA[name]}, column {field.name!r} is declared {field.type}"
    return ""
