"""Decodes the versions of a table's rows: from records of a topic, of Debezium, or from the lines of a file.

A version is a tuple with the table's columns and `GONE`, which is true where the row ends. In a topic a record without
a value (a tombstone) ends the row of its key, at the record's own time. In a file a line with `"_op": "-"` does.

Debezium describes a change of a database's row by an *envelope*: `{"before": ..., "after": {...}, "op": "u", "source":
{"ts_ms": ...}}`. The columns are those of `after`, and the time is `source.ts_ms`, the database's. Operations are `c`,
`u` and `r` (a row read in a snapshot), which are versions, and `d`, which ends a row. Behind each `d` Debezium writes a
tombstone, for Kafka's compaction. It ends the row, too: a reader that is behind may find only the tombstone. Its own
time is when Debezium wrote it, not the database's. So it has the time 0, and holds from the change before it on
(`Stream.in_log_order`).

Source: Debezium's documentation of its PostgreSQL connector, "Data change events".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from operators.data.evaluate import batch_reader, holds
from schemas.codecs.decoded import DeadLetter, Decoded
from schemas.columns import I64, Batch, Column, Mask
from schemas.query import (
    ENVELOPES,
    GONE,
    OP_KEY,
    SOURCE_TIME,
    ColumnRef,
    Compare,
    Expr,
    Field,
    InList,
    IsNull,
    Literal,
    Or,
    Stream,
    Type,
)
from services.formats.records import RecordDecoder, TopicRecords

_ENDS_ROW, _ENDS_ROW_OF_DEBEZIUM = "-", "d"
_IN_FILES = ("+", _ENDS_ROW)
_VERSIONS_OF_DEBEZIUM = ("c", "u", "r", _ENDS_ROW_OF_DEBEZIUM)
_WRAPPED = b'{"schema":{', b'{"schema":null,"payload":'
"""How JSON of Kafka Connect begins when it has its schema beside it: {"schema": {...}, "payload": {...}}. A column of a
key may be called `schema`, too, but is no object."""

_LEFT_OUT = "__debezium_unavailable_value"
"""What Debezium writes for a value that PostgreSQL keeps apart from the row (TOAST) and that the change kept."""
_HOW_TO_HAVE_ALL = "ALTER TABLE ... REPLICA IDENTITY FULL writes it, too"


def with_operation(table: Stream) -> Stream:
    """A table as the lines of a file have it: with a column that says whether the row ends."""
    return replace(table, fields=(*table.fields, Field(OP_KEY, Type.STRING)))


def versions_of(table: Stream, decoded: Decoded, raw: Callable[[int], bytes], *, ended: str = _ENDS_ROW) -> Decoded:
    """The versions among decoded records; a version without its key is a dead letter.

    Args:
        decoded: of the table's columns, with `OP_KEY` or `GONE`, or of a table whose records never end a row.
        raw: the bytes of a record by its row.
        ended: the operation that ends a row.
    """
    batch = decoded.batch
    if ended == _ENDS_ROW and OP_KEY in batch.columns:
        known = InList(_OPERATION, tuple(Literal(one, Type.STRING) for one in _IN_FILES), False)
        other = ~_where(batch, Or((known, IsNull(_OPERATION, negated=False))))
        decoded = without(decoded, other, f"'{OP_KEY}' is neither '+' nor '-'", raw)
        batch = decoded.batch
    gone = batch.columns.get(GONE)
    if gone is None:
        gone = Column(Type.BOOLEAN, np.zeros(len(batch), np.bool_))
        if OP_KEY in batch.columns:
            gone = Column(Type.BOOLEAN, _where(batch, Compare("=", _OPERATION, Literal(ended, Type.STRING))))
    columns = {field.name: batch.columns[field.name] for field in table.fields}
    keyed = np.ones(len(batch), np.bool_)
    for name in table.primary_key:
        keyed &= columns[name].mask()
    found = replace(decoded, batch=Batch(batch.ts, {**columns, GONE: gone}))
    return without(found, ~keyed, f"the primary key ({', '.join(table.primary_key)}) is NULL", raw)


_OPERATION = ColumnRef("", OP_KEY, Type.STRING)


def as_in_files(batch: Batch) -> Batch:
    """Versions with the operation that a file has in place of `GONE`; other tuples as they are."""
    columns = dict(batch.columns)
    gone = columns.pop(GONE, None)
    if gone is None:
        return batch
    operations = Column.from_values(_IN_FILES, Type.STRING)
    return replace(batch, columns={**columns, OP_KEY: operations.take(gone.values.astype(np.int64))})


def _where(batch: Batch, condition: Expr) -> Mask:
    return holds(condition, batch_reader(batch), len(batch))


def without(decoded: Decoded, refused: Mask, reason: str, raw: Callable[[int], bytes]) -> Decoded:
    """Make dead letters of some tuples."""
    if not refused.any():
        return decoded
    letters = [DeadLetter(row, reason, raw(row)) for row in decoded.rows[refused].tolist()]
    dead = sorted([*decoded.dead, *letters], key=lambda letter: letter.row)
    return replace(decoded, batch=decoded.batch.take(~refused), rows=decoded.rows[~refused], dead=dead)


class VersionDecoder:
    """Decodes the records of a table's topic.

    Args:
        versions: decodes records that have a value.
        keys: decodes the key and the time of the others, the tombstones.
    """

    def __init__(self, table: Stream, versions: RecordDecoder, keys: RecordDecoder) -> None:
        self._table = table
        self._versions = versions
        self._keys = keys

    def decode(self, records: TopicRecords) -> Decoded:
        """Decode records.

        Raises:
            SchemaUnavailable: a record's schema is not known yet.
        """
        values = records.values()
        there = np.array([value is not None for value in values], np.bool_)
        found = [_versions(self._table, self._versions.decode(Chosen(records, there)), gone=False)]
        rows = [np.flatnonzero(there)]
        if not there.all():
            found.append(_versions(self._table, self._keys.decode(Chosen(records, ~there)), gone=True))
            rows.append(np.flatnonzero(~there))
        return versions_of(self._table, _merged(found, rows), lambda row: values[row] or b"")


def keys_only(table: Stream) -> Stream:
    """What tombstones have of a table: its key; their time is the record's own."""
    return replace(table, fields=tuple(field for field in table.fields if field.key), timestamp=None)


def _versions(table: Stream, decoded: Decoded, *, gone: bool) -> Decoded:
    """Decoded records with all columns of the table, NULL where they have none, and whether they end rows."""
    batch, n = decoded.batch, len(decoded.batch)
    columns = {
        field.name: batch.columns.get(field.name) or Column.null(field.type).take(np.zeros(n, np.int64))
        for field in table.fields
    }
    return replace(decoded, batch=Batch(batch.ts, {**columns, GONE: Column(Type.BOOLEAN, np.full(n, gone, np.bool_))}))


class EnvelopeDecoder:
    """Decodes Debezium's records.

    Args:
        decoder_of: makes the decoder of a stream's records.
    """

    def __init__(self, table: Stream, decoder_of: Callable[[Stream], RecordDecoder]) -> None:
        self._table = table
        self._json = ENVELOPES[table.format] == "json"
        self._decoder_of = decoder_of
        self._decoders: dict[_Forms, RecordDecoder] = {(False, False): decoder_of(envelope(table))}

    def decode(self, records: TopicRecords) -> Decoded:
        """Decode records.

        Raises:
            SchemaUnavailable: a record's schema is not known yet.
        """
        values = records.values()
        found: list[Decoded] = []
        rows: list[I64] = []
        for forms, chosen in self._by_form(values, records.keys()):
            if forms not in self._decoders:
                self._decoders[forms] = self._decoder_of(envelope(self._table, *forms))
            decoded = self._decoders[forms].decode(Chosen(records, chosen))
            found.append(_ended(self._table, decoded) if forms[0] is None else decoded)
            rows.append(np.flatnonzero(chosen))
        if not found:
            chosen = np.zeros(len(values), np.bool_)
            return versions_of(self._table, self._decoders[False, False].decode(Chosen(records, chosen)), _no_record)

        def raw(row: int) -> bytes:
            return values[row] or b""

        decoded = _merged(found, rows)
        known = tuple(Literal(one, Type.STRING) for one in _VERSIONS_OF_DEBEZIUM)
        other = ~_where(decoded.batch, InList(_OPERATION, known, False))
        decoded = without(decoded, other, "'op' is no change of a row: c, u, r or d", raw)
        for field in self._table.fields:
            if field.type is Type.STRING and not field.key:
                column = ColumnRef("", field.name, Type.STRING)
                absent = _where(decoded.batch, Compare("=", column, Literal(_LEFT_OUT, Type.STRING)))
                reason = f"field {field.name!r} is a large value that the change leaves out: {_HOW_TO_HAVE_ALL}"
                decoded = without(decoded, absent, reason, raw)
        return versions_of(self._table, replace(decoded, records=len(values)), raw, ended=_ENDS_ROW_OF_DEBEZIUM)

    def _by_form(self, values: Sequence[bytes | None], keys: Sequence[bytes | None]) -> Iterator[tuple[_Forms, Mask]]:
        """Which records are of which forms."""
        wrapped, wrapped_key = (
            np.array([self._json and (one or b"").startswith(_WRAPPED) for one in raw], np.bool_)
            for raw in (values, keys)
        )
        there = np.array([value is not None for value in values], np.bool_)
        for value, key in product((False, True, None), (False, True)):
            chosen = (~there if value is None else there & (wrapped == value)) & (wrapped_key == key)
            if chosen.any():
                yield (value, key), chosen


def _no_record(row: int) -> bytes:
    return b""


_Forms = tuple[bool | None, bool]
"""Whether a record's value, and its key, have their schemas beside them; of the value, None for a tombstone."""


def _ended(table: Stream, decoded: Decoded) -> Decoded:
    """Tombstones as changes that end rows."""
    rows = np.zeros(len(decoded.batch), np.int64)
    whole = _versions(table, decoded, gone=True).batch.columns
    added = {
        OP_KEY: Column.from_values([_ENDS_ROW_OF_DEBEZIUM], Type.STRING).take(rows),
        SOURCE_TIME: Column.null(Type.TIMESTAMP).take(rows),
    }
    return replace(decoded, batch=Batch(rows, {**{field.name: whole[field.name] for field in table.fields}, **added}))


def envelope(table: Stream, value_wrapped: bool | None = False, key_wrapped: bool = False) -> Stream:
    """Debezium's records of a table as a stream of nested records.

    Args:
        value_wrapped, key_wrapped: whether values and keys are JSON with their schema beside it; of values, None for
            tombstones.
    """
    outside = ("payload",) if value_wrapped else ()
    outside_key = ("payload",) if key_wrapped else ()

    def placed(field: Field) -> Field:
        if field.part not in ("value", "key"):
            return field
        if field.key:
            return replace(field, path=(*outside_key, *field.place)) if outside_key else field
        return replace(field, path=(*outside, "after", *field.place))

    if value_wrapped is None:
        keys = keys_only(table)
        return replace(keys, format=ENVELOPES[table.format], fields=tuple(map(placed, keys.fields)))
    added = (
        Field(OP_KEY, Type.STRING, (*outside, "op")),
        Field(SOURCE_TIME, Type.TIMESTAMP, (*outside, "source", "ts_ms")),
    )
    fields = (*map(placed, table.fields), *added)
    return replace(table, format=ENVELOPES[table.format], fields=fields, timestamp=SOURCE_TIME)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Some records of a partition."""

    records: TopicRecords
    chosen: Mask

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self.records.partition

    def _of(self, given: Sequence[bytes | None]) -> list[bytes | None]:
        return [given[row] for row in np.flatnonzero(self.chosen).tolist()]

    def values(self) -> Sequence[bytes | None]:
        """The raw values."""
        return self._of(self.records.values())

    def keys(self) -> Sequence[bytes | None]:
        """The raw keys."""
        return self._of(self.records.keys())

    def headers(self, name: str) -> Sequence[bytes | None]:
        """The last header of a name of each record."""
        return self._of(self.records.headers(name))

    def offsets(self) -> I64:
        """(n,) int64, ascending."""
        return self.records.offsets()[self.chosen]

    def timestamps(self) -> I64:
        """(n,) int64, the records' own timestamps; -1 where a record has none."""
        return self.records.timestamps()[self.chosen]


def _merged(found: Sequence[Decoded], rows: Sequence[I64]) -> Decoded:
    """What has been decoded of several parts of the same records, in the records' order.

    Args:
        rows: the records of each part.
    """
    if len(found) == 1 and len(rows[0]) == found[0].records and (rows[0] == np.arange(len(rows[0]))).all():
        return found[0]
    places = np.concatenate([own[one.rows] for one, own in zip(found, rows, strict=True)])
    order = np.argsort(places, kind="stable").astype(np.int64)
    dead = [replace(d, row=int(own[d.row])) for one, own in zip(found, rows, strict=True) for d in one.dead]
    batch = Batch.concat([one.batch for one in found]).take(order)
    return Decoded(batch, places[order], sorted(dead, key=lambda letter: letter.row), sum(map(len, rows)))
