"""Binds declarations: CREATE STREAM to `schemas.query.Stream`, CREATE TABLE to `Table`; checks types and options.

Without `timestamp`, a stream's only TIMESTAMP column is its event time; with none or several such columns, the Kafka
record's own timestamp is. Without `topic`, the topic has the stream's name; the code that connects to Kafka checks
that name against Kafka's rule, since a stream read from a file may have any name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from lark import Token, Tree

from schemas.avro.result_schema import is_record_name
from schemas.durations import parse_duration
from schemas.errors import QueryError, UsageError
from schemas.language.expressions import EVENT_TIME
from schemas.language.query_text import Node, QueryText, did_you_mean, identifier, numeral, shortened, tree, unquoted
from schemas.paths import parse_path, path_text
from schemas.query import (
    ELEMENT,
    ENVELOPES,
    GONE,
    METADATA,
    OP_KEY,
    ORDINAL,
    OWN_PREFIX,
    REGISTERED,
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
    type_of,
)

FORMATS = ("json", "json-schema", "avro", "protobuf", "csv", "string")
KEY_FORMATS = ("string", "json", "json-schema", "csv", "avro", "protobuf")
TABLE_FORMATS = ("json", "csv", "parquet")
WITH_ARRAYS = ("avro", "json", "json-schema", "protobuf")
"""The formats whose arrays are read."""
RESULT_FORMATS = ("json", *WITH_SCHEMA)
RESULT_KEY_FORMATS = ("string", "json", *WITH_SCHEMA)
SUBJECTS = ("topic", "record", "topic-record")
_TABLE_OPTIONS = {
    "path": "path = 'rooms.csv'",
    "format": "format = 'csv'",
}
"""Of a table in a file. With `topic`, a table has the options of streams."""
_OPTIONS = {
    "topic": "topic = 'sensors.temperature'",
    "format": "format = 'json'",
    "key_format": "key_format = 'string'",
    "schema": "schema = 'temperature.avsc'",
    "message": "message = 'sensors.Temperature'",
    "registry": "registry = 'http://127.0.0.1:8081'",
    "timestamp": "timestamp = 'at'",
    "disorder": "disorder = '2 SECONDS'",
    "idle_timeout": "idle_timeout = '30 SECONDS'",
    "rate": "rate = 1000",
    "distinct": "distinct = 'room:20,mote:50'",
    "deduplicate": "deduplicate = 'id'",
    "deduplicate_within": "deduplicate_within = '10 MINUTES'",
}
_RESULT_OPTIONS = {
    "format": "format = 'avro'",
    "key_format": "key_format = 'string'",
    "registry": "registry = 'http://127.0.0.1:8081'",
    "subject": "subject = 'topic-record'",
    "record": "record = 'com.example.Alarm'",
    "schema": "schema = 'alarm.avsc'",
    "message": "message = 'example.Alarm'",
}
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
REGISTRY_URL = re.compile(r"https?://[^\s/@]+(/\S*)?")
# Kafka's rule for topic names, less the room that `<query>.late` needs within 249 characters.
_COMMA = re.compile(r',(?=(?:[^"]*"[^"]*")*[^"]*\Z)')
"""A comma that is not within quotes, as a header's name may be."""
_TOPIC = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,240}")


def bind_stream(node: Tree[Token], text: QueryText) -> Stream:
    """The stream that CREATE STREAM declares."""
    array_nodes = [tree(child) for child in node.children[1:-1] if tree(child).data == "array_def"]
    name, fields, options = _declared(node, _OPTIONS, text)
    marked = next(_primary_marks(node), None)
    if marked is not None:
        raise text.error("a stream has no PRIMARY KEY; KEY says that a column is in the record's key", marked)
    stream = _in_topic(name, fields, options)
    return replace(stream, arrays=tuple(_bind_arrays(array_nodes, fields, stream.format, text)))


def _primary_marks(node: Tree[Token]) -> Iterator[Tree[Token]]:
    """The PRIMARY KEYs in a declaration."""
    return (mark for mark in node.find_data("key_mark") if len(mark.children) > 1)


def _in_topic(name: str, fields: Mapping[str, Field], options: _Options, primary_key: tuple[str, ...] = ()) -> Stream:
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
    options = _Options(option_nodes, _OPTIONS, {}, text)
    format = options.format(FORMATS) or FORMATS[0]
    schema, registry = options.schema(format, options.format(KEY_FORMATS, "key_format"))
    timestamp = options.column("timestamp")
    if format not in WITH_SCHEMA:
        raise text.error(f"stream {name!r} needs a list of its columns: format {format!r} has no schema", name_token)
    if timestamp is None:
        raise text.error(
            f"stream {name!r} without a list of its columns names its event time: WITH ({_OPTIONS['timestamp']})",
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
    name, fields, options = _declared(node, _TABLE_OPTIONS, text)
    path = options.path()
    if path is None:
        raise text.error(
            f"table {name!r} needs the file or the topic of its rows: CREATE TABLE {name} (...) "
            f"WITH ({_TABLE_OPTIONS['path']}), or WITH (topic = {name!r})",
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
    name, fields, options = _declared(node, _OPTIONS, text)
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
    options = _Options(nodes, _RESULT_OPTIONS, {}, text)
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


def _declared(
    node: Tree[Token], accepted: Mapping[str, str], text: QueryText
) -> tuple[str, dict[str, Field], _Options]:
    """The name, columns and options of a declaration."""
    name_token, *column_nodes, options_node = node.children
    if not column_nodes:
        undeclared(node, text)
        raise text.error(f"stream {identifier(name_token)!r} needs a list of its columns here", name_token)
    fields: dict[str, Field] = {}
    for column_node in (node for node in column_nodes if tree(node).data == "column_def"):
        field = _bind_field(tree(column_node), text, of_topic=accepted is _OPTIONS)
        if field.name in fields:
            raise text.error(f"column {field.name!r} is declared twice", tree(column_node).children[0])
        fields[field.name] = field
    option_nodes = [] if options_node is None else tree(options_node).children
    return identifier(name_token), fields, _Options([tree(option) for option in option_nodes], accepted, fields, text)


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


class _Options:
    """The WITH clause of a declaration, each option read and checked on demand.

    Args:
        accepted: the options that exist, with an example of each.
    """

    def __init__(
        self,
        nodes: Sequence[Tree[Token]],
        accepted: Mapping[str, str],
        fields: Mapping[str, Field],
        text: QueryText,
    ) -> None:
        self._accepted = accepted
        self._fields = fields
        self._text = text
        self._values: dict[str, Node] = {}
        for node in nodes:
            key_token, _, value = node.children
            written = unquoted(str(key_token)) if str(key_token).startswith("'") else str(key_token)
            key = written.lower()
            if key not in accepted:
                raise text.error(
                    f"unknown option {written!r}; accepted: {', '.join(accepted)}{did_you_mean(key, accepted)}",
                    key_token,
                )
            if key in self._values:
                raise text.error(f"option {key!r} is given twice", key_token)
            self._values[key] = value

    def _string(self, key: str) -> str | None:
        value = self._values.get(key)
        if value is None:
            return None
        if isinstance(value, Tree):
            raise self._refused(key, "takes a string")
        return unquoted(str(value))

    def _refused(self, key: str, why: str) -> QueryError:
        value = self._values[key]
        return self._text.error(
            f"option {key!r} {why}, as in {self._accepted[key]}; got {self._text.shown(value)}", value
        )

    def _no_column(self, key: str, name: str) -> QueryError:
        known = did_you_mean(name, self._fields) or f"; declared: {shortened(', '.join(self._fields))}"
        return self._text.error(f"option {key!r} names no declared column: {name!r}{known}", self._values[key])

    def topic(self) -> str | None:
        topic = self._string("topic")
        return None if topic is None else checked_topic(topic, self._values["topic"], self._text)

    def path(self) -> str | None:
        return self._file("path")

    def _file(self, key: str) -> str | None:
        path = self._string(key)
        if path is not None and (not path.strip() or "\0" in path):
            raise self._refused(key, "names a file")
        return path

    def schema(self, format: str, key_format: str | None) -> tuple[str | None, str | None]:
        """Where the schemas of a stream's records are: a file, or a registry's URL; neither where the worker's registry
        has them, or the formats have none."""
        file = self._of_schemas("schema", self._file("schema"), format)
        registry = self.registry(key_format if key_format in WITH_SCHEMA else format)
        if file is not None and registry is not None and key_format not in WITH_SCHEMA:
            raise self._refused("registry", "excludes 'schema': records name a registry's schemas, or have all one")
        return file, registry

    def result_schema(self, format: str) -> str | None:
        """The schema of the values of results, where Weir does not make it: a file, or `registered`."""
        schema = self._of_schemas("schema", self._file("schema"), format)
        if schema is None and "message" in self._values:
            raise self._refused("message", "is a type in a schema of your own: schema = 'alarm.proto'")
        if schema not in (None, REGISTERED) and "record" in self._values:
            raise self._refused("record", "is the name in the schema that Weir makes; leave it out, or 'schema'")
        return schema

    def registry(self, format: str | None) -> str | None:
        """The URL of the schema registry."""
        registry = self._string("registry")
        if registry is not None and not REGISTRY_URL.fullmatch(registry):
            raise self._refused("registry", "is the URL of a schema registry")
        return self._of_schemas("registry", registry, format)

    def message(self, format: str) -> str | None:
        """The full name of the message type of a stream's records."""
        message = self._string("message")
        if message is not None and format != "protobuf":
            raise self._refused("message", f"is for format = 'protobuf'; the format here is {format!r}")
        return message

    def subject(self, format: str | None) -> str | None:
        """What the registry knows the schema of results by."""
        subject = self._string("subject")
        if subject is not None and subject not in SUBJECTS:
            raise self._refused("subject", f"is one of {', '.join(SUBJECTS)}")
        return self._of_schemas("subject", subject, format)

    def record(self, format: str | None) -> str | None:
        """The full name of the record in the schema of results."""
        record = self._string("record")
        if record is not None and not is_record_name(record):
            raise self._refused("record", "is a name in Avro: letters, digits and _, with dots between namespaces")
        return self._of_schemas("record", record, format)

    def _of_schemas(self, key: str, given: str | None, format: str | None) -> str | None:
        formats = ("avro", "protobuf") if key == "schema" else WITH_SCHEMA
        listed = " and ".join(f"format = {one!r}" for one in formats)
        if given is not None and format not in formats:
            raise self._refused(key, f"is for {listed}; the format here is {format!r}")
        return given

    def check_columns(self, format: str) -> None:
        """Refuse columns that records of a format cannot have."""
        fields = [field for field in self._fields.values() if field.part == VALUE]
        if format == "string" and [field.type for field in fields] != [Type.STRING]:
            raise self._refused("format", "takes a whole record as a column: declare one column, a STRING")
        nested = next((field.name for field in fields if field.path), None)
        if nested is not None and format in ("csv", "string"):
            raise self._refused("format", f"has no names, so FROM of column {nested!r} means nothing")

    def check_envelope(self) -> None:
        """Refuse what changes of a database's rows do not need."""
        if "timestamp" in self._values:
            raise self._refused("timestamp", "is known: a change of a database's row has the database's time")
        if "disorder" in self._values:
            raise self._refused("disorder", "has no use: the topic has the changes in the database's order")
        if "schema" in self._values:
            raise self._refused("schema", "is in the registry, where Debezium puts it")

    def key_format(self, default: str | None = None) -> str | None:
        """The format of the records' keys; None if no column is in the key."""
        keys = [field for field in self._fields.values() if field.key]
        format = self.format(KEY_FORMATS, "key_format")
        if not keys:
            if format is not None:
                raise self._refused("key_format", "is for columns in the record's key: id BIGINT KEY")
            return None
        if format == "string" and len(keys) > 1:
            raise self._refused("key_format", f"takes a whole key as a column, and there are {len(keys)}")
        nested = next((field.name for field in keys if field.path), None)
        if format is None:
            return default or ("string" if len(keys) == 1 and nested is None else "json")
        if nested is not None and format in ("csv", "string"):
            raise self._refused("key_format", f"has no names, so FROM of column {nested!r} means nothing")
        return format

    def result_key_format(self, key: Sequence[Output]) -> str | None:
        """The format of the keys of results that are made of these outputs."""
        format = self.format(RESULT_KEY_FORMATS, "key_format")
        if not key:
            if format is not None:
                raise self._refused("key_format", "is for results with a key: INSERT INTO 'topic' KEY (id)")
            return None
        has_text = len(key) == 1 and type_of(key[0].expr) is not Type.DOUBLE
        if format == "string" and not has_text:
            raise self._refused("key_format", "takes one output as the whole key, which is no DOUBLE")
        return format or ("string" if has_text else "json")

    def format(self, formats: Sequence[str], key: str = "format") -> str | None:
        name = self._string(key)
        if name is not None and name.lower() not in formats:
            raise self._refused(key, f"is one of {', '.join(formats)}")
        return None if name is None else name.lower()

    def column(self, key: str) -> str | None:
        """The name of a column that need not be declared."""
        return self._string(key)

    def timestamp(self) -> str | None:
        name = self._string("timestamp")
        if name is None:
            return None
        field = self._fields.get(name)
        if field is None:
            raise self._no_column("timestamp", name)
        if field.type not in (Type.BIGINT, Type.TIMESTAMP):
            raise self._text.error(
                f"option 'timestamp' takes a BIGINT (milliseconds) or TIMESTAMP column; {name!r} is {field.type}",
                self._values["timestamp"],
            )
        if field.part not in (VALUE, "_timestamp"):
            raise self._text.error(
                f"option 'timestamp' takes a column of the record's value, or its own time FROM '_timestamp'; {name!r} "
                f"is in {'its key' if field.key else field.part}",
                self._values["timestamp"],
            )
        return name

    def duration(self, key: str, *, positive: bool = False) -> int | None:
        written = self._string(key)
        if written is None:
            return None
        try:
            ms = parse_duration(written)
        except UsageError as error:
            raise self._text.error(f"option {key!r}: {error}", self._values[key]) from None
        if positive and ms == 0:
            raise self._refused(key, "must be > 0")
        return ms

    def rate(self) -> float | None:
        value = self._values.get("rate")
        if value is None:
            return None
        if not isinstance(value, Tree):
            raise self._refused("rate", "takes a number of tuples per second")
        rate = float(numeral(value.children))
        if not 0 < rate < float("inf"):
            raise self._refused("rate", "must be > 0 and finite")
        return rate

    def distinct(self, *, declared: bool = True) -> tuple[tuple[str, int], ...]:
        """Columns and their numbers of distinct values; whether they must be declared."""
        written = self._string("distinct")
        if written is None:
            return ()
        counts: dict[str, int] = {}
        for pair in written.split(","):
            name, colon, digits = (part.strip() for part in pair.rpartition(":"))
            if not colon or not re.fullmatch(r"0*[1-9][0-9]{0,17}", digits):
                raise self._refused("distinct", "takes column:count pairs with counts from 1")
            if declared and name not in self._fields:
                raise self._no_column("distinct", name)
            if name in counts:
                raise self._refused("distinct", f"names column {name!r} twice")
            counts[name] = int(digits)
        return tuple(counts.items())

    def names(self, key: str) -> tuple[str, ...]:
        """The names that an option lists, which need not be declared."""
        written = self._string(key)
        if written is None:
            return ()
        names = tuple(name.strip() for name in _COMMA.split(written))
        if not all(names):
            raise self._refused(key, "names columns, with commas between them")
        return names

    def deduplicate(self, *, of_table: bool) -> tuple[tuple[str, ...], int]:
        """The columns in which repeats agree with the first, and for how long (ms) after it they are repeats."""
        if of_table and "deduplicate" in self._values:
            raise self._refused("deduplicate", "is for streams; a version that repeats another changes nothing")
        columns: dict[str, None] = {}
        for name in self.names("deduplicate"):
            column = self._column_of("deduplicate", name)
            if column in columns:
                raise self._refused("deduplicate", f"names column {column!r} twice")
            columns[column] = None
        within_ms = self.duration("deduplicate_within", positive=True)
        for key, other in (("deduplicate", "deduplicate_within"), ("deduplicate_within", "deduplicate")):
            if key in self._values and other not in self._values:
                raise self._refused(key, f"needs also {self._accepted[other]}")
        return tuple(columns), within_ms or 0

    def _column_of(self, key: str, name: str) -> str:
        """The declared column of a name, or the one that has what a record has under this name of METADATA."""
        if name in self._fields:
            return name
        try:
            path = parse_path(name)
        except UsageError:
            raise self._no_column(key, name) from None
        if str(path[0]) not in METADATA:
            raise self._no_column(key, name)
        for field in self._fields.values():
            if field.place == path and not field.key:
                return field.name
        raise self._text.error(
            f"option {key!r} names {name}, which is in no declared column: id {METADATA[str(path[0])]} FROM '{name}'",
            self._values[key],
        )


def checked_topic(topic: str, node: Node, text: QueryText) -> str:
    if _TOPIC.fullmatch(topic) is None:
        raise text.error(
            f"a topic's name has 1 to 240 of the characters a-z, A-Z, 0-9, '.', '_', '-'; got {shortened(topic)!r}",
            node,
        )
    return topic
