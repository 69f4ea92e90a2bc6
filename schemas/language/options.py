"""The options of a declaration, `WITH (format = 'avro', ...)`: which there are, and what they accept.

`schemas.language.declarations` reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from lark import Token, Tree

from schemas.avro.result_schema import is_record_name
from schemas.durations import parse_duration
from schemas.errors import QueryError, UsageError
from schemas.language.query_text import Node, QueryText, did_you_mean, numeral, shortened, unquoted
from schemas.paths import parse_path
from schemas.query import (
    METADATA,
    REGISTERED,
    VALUE,
    WITH_SCHEMA,
    Field,
    Output,
    Type,
    type_of,
)

FORMATS = ("json", "json-schema", "avro", "protobuf", "csv", "string")
_SYNONYMS = {"raw": "string"}
"""Formats under the names that other systems give them."""
KEY_FORMATS = ("string", "json", "json-schema", "csv", "avro", "protobuf")
TABLE_FORMATS = ("json", "csv", "parquet")
WITH_ARRAYS = ("avro", "json", "json-schema", "protobuf")
"""The formats whose arrays are read."""
RESULT_FORMATS = ("json", *WITH_SCHEMA)
RESULT_KEY_FORMATS = ("string", "json", *WITH_SCHEMA)
SUBJECTS = ("topic", "record", "topic-record")
TABLE_OPTIONS = {
    "path": "path = 'rooms.csv'",
    "format": "format = 'csv'",
}
"""Of a table in a file. With `topic`, a table has the options of streams."""
STREAM_OPTIONS = {
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
RESULT_OPTIONS = {
    "format": "format = 'avro'",
    "key_format": "key_format = 'string'",
    "registry": "registry = 'http://127.0.0.1:8081'",
    "subject": "subject = 'topic-record'",
    "record": "record = 'com.example.Alarm'",
    "schema": "schema = 'alarm.avsc'",
    "message": "message = 'example.Alarm'",
}
REGISTRY_URL = re.compile(r"https?://[^\s/@]+(/\S*)?")
_COMMA = re.compile(r',(?=(?:[^"]*"[^"]*")*[^"]*\Z)')
"""A comma that is not within quotes, as a header's name may be."""
_TOPIC = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,240}")
"""Kafka's rule for topic names, less the room that `<query>.late` needs within 249 characters."""


class Options:
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
        given = self._string(key)
        if given is None:
            return None
        name = _SYNONYMS.get(given.lower(), given.lower())
        if name not in formats:
            raise self._refused(key, f"is one of {', '.join(formats)}")
        return name

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
            count = re.fullmatch(r"0*([1-9][0-9]{0,17})", digits)
            if not colon or count is None:
                raise self._refused("distinct", "takes column:count pairs with counts from 1")
            if declared and name not in self._fields:
                raise self._no_column("distinct", name)
            if name in counts:
                raise self._refused("distinct", f"names column {name!r} twice")
            counts[name] = int(count[1])
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
