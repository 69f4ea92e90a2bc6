"""Decodes the records of a topic into batches: values, keys, headers, and what Kafka itself knows of a record.

A stream's columns are in up to four parts of a record (`schemas.query.Field.part`). `RecordDecoder` decodes each part
with the decoder of its format, and puts the columns of all together. A record of which one part cannot be decoded is a
dead letter. A record without a key, or without a header, has NULL in the columns that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import orjson

from schemas.avro.schema import Avro, AvroField
from schemas.codecs.decoded import DeadLetter, Decoded, RecordError, check_event_time, in_range
from schemas.codecs.string_codec import StringDecoder
from schemas.columns import I64, Batch, Column
from schemas.errors import InvariantError
from schemas.query import KEY, VALUE, Field, Stream, Type


class Decoder(Protocol):
    """Decodes values, or keys, of one stream."""

    def decode_values(self, values: Sequence[bytes | None], record_ts: I64 | None = None) -> Decoded:
        """Decode one record per value.

        Args:
            record_ts: (values,) the Kafka records' timestamps, used when the stream has no timestamp field.

        Raises:
            SchemaUnavailable: a record's schema is not known yet.
        """


class TopicRecords(Protocol):
    """Consecutive records of one partition."""

    @property
    def partition(self) -> int:
        """The partition's number."""

    def values(self) -> Sequence[bytes | None]:
        """The raw values."""

    def keys(self) -> Sequence[bytes | None]:
        """The raw keys; None where a record has none."""

    def headers(self, name: str) -> Sequence[bytes | None]:
        """The last header of a name of each record; None where a record has none."""

    def offsets(self) -> I64:
        """(n,) int64, ascending."""

    def timestamps(self) -> I64:
        """(n,) int64 milliseconds; negative where a record has none."""


class RecordsDecoder(Protocol):
    """Decodes the records of one stream, or of a table."""

    def decode(self, records: TopicRecords) -> Decoded:
        """Decode records.

        Raises:
            SchemaUnavailable: a record's schema is not known yet.
        """


@dataclass(frozen=True, slots=True)
class _Part:
    """Columns that are together in one place of a record beside its value.

    Attributes:
        name: of the place, for messages.
        raw: gets the bytes of each record there.
    """

    name: str
    fields: tuple[Field, ...]
    decoder: Decoder
    raw: Callable[[TopicRecords], Sequence[bytes | None]]


class RecordDecoder:
    """Decodes the records of one stream. Safe to call from several threads.

    Args:
        values: decodes the columns of `value_stream`; None if there are none.
        keys: decodes the columns of `key_stream`; None if there are none.
    """

    def __init__(self, stream: Stream, values: Decoder | None, keys: Decoder | None) -> None:
        self._stream = stream
        self._values = values
        self._own_time = value_stream(stream).timestamp is None
        self._whole = values is not None and all(field.part == VALUE for field in stream.fields)
        self._parts: list[_Part] = []
        if keys is not None:
            own = tuple(field for field in stream.fields if field.part == KEY)
            self._parts.append(_Part("key", own, keys, lambda records: records.keys()))
        for field in stream.fields:
            if field.part == "_key":
                self._parts.append(_Part("key", (field,), _text(stream, field), lambda records: records.keys()))
            elif field.part == "_headers":
                name = str(field.place[1])
                self._parts.append(_Part(f"header {name!r}", (field,), _text(stream, field), _header(name)))

    def decode(self, records: TopicRecords) -> Decoded:
        """Decode records.

        Raises:
            SchemaUnavailable: a record's schema is not known yet.
        """
        times = records.timestamps() if self._own_time else None
        values = records.values()
        found = _timed(values, times) if self._values is None else self._values.decode_values(values, times)
        if self._whole:
            return found
        columns = dict(found.batch.columns)
        dead = {letter.row: letter.reason for letter in found.dead}
        for part in self._parts:
            columns |= _decoded(part, part.raw(records), found.rows, dead)
        columns |= self._known(records, found.rows)
        batch = Batch(found.batch.ts, {field.name: columns[field.name] for field in self._stream.fields})
        if len(dead) == len(found.dead):
            return replace(found, batch=batch)
        fine = ~np.isin(found.rows, list(dead))
        letters = [DeadLetter(row, dead[row], values[row] or b"") for row in sorted(dead)]
        return Decoded(batch.take(fine), found.rows[fine], letters, found.records)

    def _known(self, records: TopicRecords, rows: I64) -> dict[str, Column]:
        """The columns of what Kafka knows of records, of some rows."""
        found = {}
        for field in self._stream.fields:
            if field.part == "_partition":
                found[field.name] = Column(Type.BIGINT, np.full(len(rows), records.partition, np.int64))
            elif field.part == "_offset":
                found[field.name] = Column(Type.BIGINT, records.offsets()[rows])
            elif field.part == "_timestamp":
                times = records.timestamps()[rows]
                known = times >= 0
                found[field.name] = Column(Type.TIMESTAMP, np.maximum(times, 0), None if known.all() else known)
        return found


def value_stream(stream: Stream) -> Stream:
    """The stream with only those columns that are in the values of its records."""
    if all(field.part == VALUE for field in stream.fields):
        return stream
    timestamp = None if stream.timestamp is None else stream.field(stream.timestamp)
    own = tuple(field for field in stream.fields if field.part == VALUE)
    named = timestamp is not None and timestamp.part == VALUE
    return replace(stream, fields=own, timestamp=stream.timestamp if named else None)


def key_stream(stream: Stream) -> Stream | None:
    """The columns in the keys of a stream's records as a stream of their own; None if there are none."""
    if stream.key_format is None:
        return None
    own = tuple(replace(field, key=False) for field in stream.fields if field.key)
    return Stream(stream.name, own, stream.topic, stream.key_format, registry=stream.registry)


class WholeKeys:
    """Decodes keys in JSON of which one column is the whole, such as `42`, or a field, as in `{"id": 42}`.

    Args:
        decoder: of objects with that field.
        name: of the column.
    """

    def __init__(self, decoder: Decoder, name: str) -> None:
        self._decoder = decoder
        self._before = b"{" + orjson.dumps(name) + b":"

    def decode_values(self, values: Sequence[bytes | None], record_ts: I64 | None = None) -> Decoded:
        """Decode one key per value."""
        return self._decoder.decode_values([self._as_object(value or b"") for value in values], record_ts)

    def _as_object(self, raw: bytes) -> bytes:
        if raw.lstrip()[:1] == b"{":
            return raw
        try:
            orjson.loads(raw)
        except orjson.JSONDecodeError:
            return raw  # the decoder says what is wrong with it
        return self._before + raw + b"}"


def as_record(schema: Avro, name: str) -> Avro:
    """A schema of keys as that of a record, whose one field has the name: its bytes are the same."""
    if any(one.kind == "record" for one in (schema, *(schema.types if schema.kind == "union" else ()))):
        return schema
    return Avro("record", "key", fields=(AvroField(name, schema, False, None),))


def _text(stream: Stream, field: Field) -> Decoder:
    return StringDecoder(Stream(stream.name, (Field(field.name, Type.STRING),), stream.topic, "string"))


def _header(name: str) -> Callable[[TopicRecords], Sequence[bytes | None]]:
    return lambda records: records.headers(name)


def _timed(values: Sequence[bytes | None], times: I64 | None) -> Decoded:
    """Records of which only the timestamps count."""
    if times is None:
        raise InvariantError("a stream without columns in its values has no event time there")
    fine, letters = in_range(times), []
    for row in np.flatnonzero(~fine).tolist():
        try:
            check_event_time(None, int(times[row]) if times[row] >= 0 else None)
        except RecordError as error:
            letters.append(DeadLetter(row, str(error), values[row] or b""))
    rows = np.flatnonzero(fine)
    return Decoded(Batch(times[rows], {}), rows, letters, len(values))


def _decoded(part: _Part, raw: Sequence[bytes | None], rows: I64, dead: dict[int, str]) -> dict[str, Column]:
    """The columns of a part, of some rows; notes in `dead` which records cannot be decoded, and why."""
    there = np.array([row for row, value in enumerate(raw) if value is not None], np.int64)
    found = part.decoder.decode_values([value for value in raw if value is not None], np.zeros(len(there), np.int64))
    for letter in found.dead:
        dead.setdefault(int(there[letter.row]), f"{part.name}: {letter.reason}")
    # What a record has none of is NULL: the value behind those that were decoded.
    null = len(found.batch)
    places = np.full(len(raw), null, np.int64)
    places[there[found.rows]] = np.arange(null)
    chosen = places[rows]
    columns = {field.name: found.batch.columns[field.name] for field in part.fields}
    if (chosen == null).any():
        columns = {name: Column.concat([column, Column.null(column.type)]) for name, column in columns.items()}
    elif np.array_equal(chosen, np.arange(null)):
        return columns
    return {name: column.take(chosen) for name, column in columns.items()}
