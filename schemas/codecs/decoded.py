"""The result type of every decoder, and the strict rules for single values that all decoders share.

The rules, for records in any format:

- A column's value is in the field of its name, or where FROM says. A path through what is no object, or that is
  absent, is NULL.
- A missing field, JSON's `null`, and CSV's empty unquoted field are NULL. Of two equal keys the last counts.
- Fields that the stream does not declare are ignored, whatever their values.
- BIGINT: an integer in the range of int64, written without fraction or exponent (`1.0` is refused: a program that
  writes it has lost the type, and beyond 2**53 also the value).
- DOUBLE: an integer or a decimal number, rounded to the nearest double; it must be finite.
- STRING: a string of valid UTF-8. BOOLEAN: `true` or `false`.
- TIMESTAMP: an integer (milliseconds) or a text in the form of `schemas.timestamps`.
- The event time, a field or the Kafka record's own timestamp, is present and lies in
  [0, MAX_TIMESTAMP_MS). A table's rows have none: all have the ts TABLE_TS.

A record is a dead letter, with a reason, in exactly these cases:

- Its syntax is broken, wherever in the record: a bracket that is not closed, JSON that is not UTF-8, a CSV record with
  more or fewer fields than expected.
- A JSON record is not an object. Empty Kafka values and tombstones count as such records.
- A declared field has a value that its type does not accept. The value of an undeclared field never counts.
- Its event time is missing or out of range.

A dead letter never stops the records around it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from schemas.columns import DTYPES, I64, Batch, Column, Mask
from schemas.errors import DataError
from schemas.paths import path_text
from schemas.query import Array, Field, Stream, Table, Type
from schemas.timestamps import MAX_TIMESTAMP_MS, parse_iso

Value = int | float | str | bool | None

ACCEPTED: Mapping[Type, str] = {
    Type.BIGINT: "an integer in [-2^63, 2^63) without fraction or exponent",
    Type.DOUBLE: "a finite number",
    Type.STRING: "a string",
    Type.BOOLEAN: "true or false",
    Type.TIMESTAMP: "an integer (ms since 1970) or an ISO 8601 string such as 2026-01-31T12:00:00Z",
}
_SHOWN = 60


class RecordError(ValueError):
    """One record breaks a rule; the message is the dead letter's reason."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that cannot be decoded to a tuple. `row` is its index in the input; `raw` is its original bytes."""

    row: int
    reason: str
    raw: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """A block of records, decoded.

    Attributes:
        batch: the tuples in input order, with all declared fields; `batch.ts` is the event time.
        rows: (n,) int64 ascending, the index of each tuple's record in the input.
        dead: the records that cannot be decoded, by row. A blank line is neither a tuple nor a dead letter.
        records: how many records the input had, blank lines included.
        starts: (records + 1,) int64, where each record begins in the block; None for values and Parquet.
    """

    batch: Batch
    rows: I64
    dead: list[DeadLetter]
    records: int
    starts: I64 | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Elements:
    """The elements of an array in records, each decoded like a record of its own.

    Attributes:
        array: which it is.
        counts: (n,) int64, how many there are in each of the records that were decoded.
        decoded: all of them, in the order of the records; `decoded.rows` and the dead letters have their numbers.
    """

    array: Array
    counts: I64
    decoded: Decoded


def shown(value: object) -> str:
    """A value as text for a message, cut to a length that suits a log line."""
    if isinstance(value, bool | None):
        return {True: "true", False: "false", None: "null"}[value]
    try:
        return _cut(repr(value))
    except RecursionError:
        return "a value of many levels"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def refused(name: str, type: Type, text: str) -> RecordError:
    """An error that says that the type's rule does not accept a value that is written as `text`."""
    return RecordError(f"field '{name}' is {_cut(text)}, {type} accepts {ACCEPTED[type]}")


def check_value(name: str, type: Type, value: object) -> Value:
    """Convert a parsed value to the field's type.

    Raises:
        RecordError: the type's rule does not accept it.
    """
    if value is None:
        return None
    match type:
        case Type.BIGINT:
            if isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63:
                return value
        case Type.DOUBLE:
            if isinstance(value, int | float) and not isinstance(value, bool):
                try:
                    number = float(value)
                except OverflowError:
                    number = math.inf
                if math.isfinite(number):
                    return number
        case Type.STRING:
            if isinstance(value, str):
                return value
        case Type.BOOLEAN:
            if isinstance(value, bool):
                return value
        case Type.TIMESTAMP:
            if isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63:
                return value
            if isinstance(value, str):
                try:
                    return parse_iso(value)
                except ValueError as error:
                    raise RecordError(f"field '{name}': {error}") from None
    raise refused(name, type, shown(value))


def check_event_time(name: str | None, ms: int | None) -> int:
    """The event time of a record. `name` is its field, or None for the record's own timestamp.

    Raises:
        RecordError: it is missing or out of range.
    """
    place = f"timestamp field '{name}'" if name is not None else "record timestamp"
    if ms is None:
        raise RecordError(f"{place} is missing or null, every record needs its event time")
    if not 0 <= ms < MAX_TIMESTAMP_MS:
        raise RecordError(f"{place} is {ms}, accepted are 0 <= ms < {MAX_TIMESTAMP_MS} (1970-01-01 to 2100-01-01)")
    return ms


def in_range(ts: I64) -> Mask:
    """(n,) bool: True where an event time is accepted."""
    return (ts >= 0) & (ts < MAX_TIMESTAMP_MS)


def name_in(field: Field, form: str) -> str:
    """The name of a declared field's column in a file of a form that has no nested values.

    Raises:
        DataError: FROM gives a path into a value.
    """
    name, *inside = field.place
    if inside:
        raise DataError(f"column '{field.name}' is FROM '{path_text(field.place)}', but {form} has no nested values")
    return str(name)


def empty_batch(stream: Stream | Table) -> Batch:
    """A batch of `stream` without tuples."""
    columns = {}
    for field in stream.fields:
        if field.type is Type.STRING:
            columns[field.name] = Column(field.type, np.zeros(0, np.uint8), None, np.zeros(1, np.int64))
        else:
            columns[field.name] = Column(field.type, np.zeros(0, DTYPES[field.type]))
    return Batch(np.zeros(0, np.int64), columns)
