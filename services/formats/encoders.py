"""`Encoders` makes the encoders of queries' results, and registers the schemas of results in a schema registry."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.avro.encoder import AvroKeys, AvroValues
from schemas.avro.given import given_values as given_avro
from schemas.avro.result_schema import has_phase, key_schema, record_name, same_field, value_schema
from schemas.codecs.encode import key_paths
from schemas.codecs.json_schema import key_json_schema, value_json_schema
from schemas.codecs.results import (
    FramedKeys,
    FramedValues,
    JsonKeys,
    JsonValues,
    KeyEncoder,
    ResultRecords,
    TextKeys,
    ValueEncoder,
)
from schemas.columns import Batch
from schemas.errors import DataError, InvariantError, UsageError
from schemas.members import Member, columns_in_order, members_of, result_members, value_members
from schemas.protobuf.encoder import ProtobufKeys, ProtobufValues, key_proto, value_proto
from schemas.query import OP_KEY, REGISTERED, Query, ResultFormat, Type, type_of
from services.formats.registry_access import RegistryAccess
from services.formats.schema_files import read_schema, registered_text
from services.formats.schema_kinds import KINDS, SchemaKind
from services.formats.schema_registry import latest_schema, register_schema
from services.process.logs import get_log

LOG = get_log("schemas")

_Columns = tuple[tuple[str, Type], ...]
"""Names and types of the columns of results."""


@dataclass(slots=True)
class Encoders:
    """Makes encoders of results, by query. Safe to call from several threads.

    Attributes:
        access: how to reach the registry of the queries that name none.
        folder: what the names of schema files are relative to.
    """

    access: RegistryAccess = field(default_factory=RegistryAccess)
    folder: Path = Path()
    _made: dict[Query, ResultRecords] = field(default_factory=dict, init=False, repr=False)
    _of_columns: dict[tuple[str, _Columns], ResultRecords] = field(default_factory=dict, init=False, repr=False)
    _newest: dict[str, tuple[Query, ResultRecords]] = field(default_factory=dict, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def check(self, query: Query) -> None:
        """Check what can be checked without asking a registry.

        Raises:
            UsageError: no registry is named, the file of a schema does not fit, or the schema of keys cannot have the
                names of their values.
        """
        if not query.result_format.has_schema:
            return
        self._url(query)
        if query.result_format.schema not in (None, REGISTERED):
            self._of_file(query)
        format = _key_format(query)
        same = same_field(_key(query)[0], as_json=format == "protobuf")
        if format in ("avro", "protobuf") and same is not None:
            raise UsageError(
                f"the keys of results would have one field for {same[0]!r} and {same[1]!r}; "
                f"give one another name with AS"
            )

    def prepare(self, query: Query) -> None:
        """Make ready for the results of a query: register their schemas, if their format has some. Asks once.

        Raises:
            UsageError: as `check`, or the registry refuses a schema.
            BrokerError: the registry does not answer.
        """
        made = self._made.get(query)
        if made is None:
            self.check(query)
            headers = [(output.header, output.name) for output in query.outputs if output.header is not None]
            key = query.result_format.key or None
            refused = None if query.result_format.schema is None else result_members(query)
            made = ResultRecords(self._values(query), self._keys(query), key, tuple(headers), refused)
        with self._lock:
            self._made[query] = self._of_columns[_topic(query), _columns(query)] = made
            self._newest[query.name] = query, made

    def of(self, query: Query) -> ResultRecords:
        """The encoder of a query's results, which must be prepared unless they need no schemas."""
        newest, made = self._newest.get(query.name, (None, None))
        if newest is not query or made is None:
            if (made := self._made.get(query)) is None:
                if query.result_format.has_schema:
                    raise InvariantError(f"the schema of the results in {_topic(query)!r} is not registered")
                self.prepare(query)
                made = self._made[query]
            self._newest[query.name] = query, made
        return made

    def late(self, topic: str, batch: Batch) -> ResultRecords:
        """The encoder of late results for a topic: that of the last query with such columns, which may have ended."""
        columns = tuple((name, column.type) for name, column in batch.columns.items())
        return self._of_columns.get((topic, columns)) or ResultRecords()

    def _values(self, query: Query) -> ValueEncoder:
        if query.result_format.schema is not None:
            return self._by_given_schema(query)
        record, members = _record(query), value_members(query)
        match query.result_format.format:
            case "json":
                return JsonValues(members)
            case "json-schema":
                number = self._register(query, "value", record, value_json_schema(query, record), "JSON")
                return FramedValues(number, JsonValues(members))
            case "protobuf":
                number = self._register(query, "value", record, value_proto(query, record), "PROTOBUF")
                return ProtobufValues(number, members)
        number = self._register(query, "value", record, value_schema(query, record))
        return AvroValues(number, has_phase(query), tuple(columns_in_order(members)))

    def _by_given_schema(self, query: Query) -> ValueEncoder:
        """The encoder of values by a schema that Weir has not made."""
        written = query.result_format
        if written.schema != REGISTERED:
            text, record, encoder_of = self._of_file(query)
            return encoder_of(self._register(query, "value", record, text, KINDS[written.format].name))
        subject, url = _subject(written, _topic(query), "value", _record(query)), self._url(query)
        kind: SchemaKind[Any] = KINDS[written.format]
        try:
            found = latest_schema(url, self.access, subject, kind)
            if found is None:
                raise UsageError(f"the registry {url} has no schema for the subject {subject!r}; register one")
            number, schema = found
            made = _matched(query, schema)[1](number)
        except DataError as error:
            raise UsageError(f"results in {_topic(query)!r} do not fit the subject {subject!r}: {error}") from None
        LOG.info("results have a schema", topic=_topic(query), part="value", subject=subject, schema=number)
        return made

    def _of_file(self, query: Query) -> tuple[str, str, Callable[[int], ValueEncoder]]:
        """The text of the schema of values in a file, the name of its record, and what makes their encoder of the
        schema's number.

        Raises:
            UsageError: it is missing, broken, or does not fit.
        """
        written = query.result_format
        path = self.folder / str(written.schema)
        try:
            schema = read_schema(path, written.format)
        except DataError as error:
            raise UsageError(str(error)) from None
        try:
            return registered_text(path, schema, written.format), *_matched(query, schema)
        except DataError as error:
            raise UsageError(f"results in {_topic(query)!r} do not fit {path}: {error}") from None

    def _keys(self, query: Query) -> KeyEncoder | None:
        (members, types), record = _key(query), f"{_record(query)}_key"
        match _key_format(query):
            case "json":
                return JsonKeys(members)
            case "string":
                return TextKeys()
            case "json-schema":
                number = self._register(query, "key", record, key_json_schema(members, types, record), "JSON")
                return FramedKeys(number, JsonKeys(members))
            case "protobuf":
                schema = key_proto(members, types, record)
                return ProtobufKeys(self._register(query, "key", record, schema, "PROTOBUF"), members)
            case "avro":
                number = self._register(query, "key", record, key_schema(members, types, record))
                return AvroKeys(number, tuple(columns_in_order(members)))
        return None

    def _url(self, query: Query) -> str:
        url = query.result_format.registry or self.access.url
        if url is None:
            raise UsageError(
                f"results in {_topic(query)!r} have a schema: name the schema registry with --registry or "
                f"INSERT INTO '{_topic(query)}' WITH (..., registry = 'http://...')"
            )
        return url

    def _register(self, query: Query, part: str, record: str, schema: str, kind: str = "AVRO") -> int:
        subject, url = _subject(query.result_format, _topic(query), part, record), self._url(query)
        number = register_schema(url, self.access, subject, schema, kind)
        LOG.info("results have a schema", topic=_topic(query), part=part, subject=subject, schema=number)
        return number


def _matched(query: Query, schema: Any) -> tuple[str, Callable[[int], ValueEncoder]]:
    """The name of the record in the schema of a query's values, and what makes their encoder of the schema's number.

    Raises:
        DataError: the results do not fit the schema.
    """
    if query.result_format.format == "avro":
        return schema.name, given_avro(schema, query)
    from schemas.protobuf.given import given_values as given_protobuf  # not above: few need it

    type = schema.named(query.result_format.message)
    return type.full_name, given_protobuf(type, query)


def _topic(query: Query) -> str:
    return query.sink or query.name


def _record(query: Query) -> str:
    return query.result_format.record or record_name(_topic(query))


def _columns(query: Query) -> _Columns:
    found = [(output.name, type_of(output.expr)) for output in query.outputs]
    return tuple([*found, (OP_KEY, Type.STRING)] if query.subtracted else found)


def _key_format(query: Query) -> str | None:
    """The format of the results' keys: of groups that of the values; None if results have no keys."""
    return query.result_format.format if query.aggregation is not None else query.result_format.key_format


def _key(query: Query) -> tuple[tuple[Member, ...], Sequence[Type]]:
    """The members of a key, and the types of its columns."""
    if query.aggregation is not None:
        return members_of(key_paths(query) or ()), [type_of(expr) for expr in query.aggregation.group_by]
    outputs = {output.name: output for output in query.outputs}
    key = [outputs[name] for name in query.result_format.key]
    return members_of([output.path for output in key]), [type_of(output.expr) for output in key]


def _subject(format: ResultFormat, topic: str, part: str, record: str) -> str:
    """What the registry knows a schema by, as Confluent's strategies name it.

    Args:
        part: `key` or `value`.
        record: the record's full name.
    """
    subjects: Mapping[str, str] = {
        "topic": f"{topic}-{part}",
        "record": record,
        "topic-record": f"{topic}-{record}",
    }
    return subjects[format.subject]
