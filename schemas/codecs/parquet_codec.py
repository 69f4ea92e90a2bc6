"""Parquet record batches into batches, under the rules of `decoded`.

Types are settled before anything is read: a column of another type than those in `ACCEPTED_TYPES` is an
error of the whole file. What is left per record is the event time, doubles that are not finite, BIGINTs
beyond int64 and strings that are not UTF-8 (the format does not promise it).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.codecs.decoded import DeadLetter, Decoded, RecordError, check_event_time, in_range, shown
from schemas.codecs.encode import encode_tuples
from schemas.columns import Batch, Column, Mask
from schemas.errors import DataError
from schemas.query import TABLE_TS, Field, Stream, Table, Type

ACCEPTED_TYPES: Final[Mapping[Type, str]] = {
    Type.BIGINT: "int8 to int64, uint8 to uint32",
    Type.DOUBLE: "float16 to float64, any integer",
    Type.STRING: "string, large_string, dictionary of strings",
    Type.BOOLEAN: "bool",
    Type.TIMESTAMP: "timestamp, date32, date64, int64 (ms since 1970)",
}
_PER_MS: Final = {"us": 1_000, "ns": 1_000_000}


def _accepts(type: Type, found: pa.DataType) -> bool:
    kinds = pa.types
    match type:
        case Type.BIGINT:
            return bool(kinds.is_integer(found)) and not kinds.is_uint64(found)
        case Type.DOUBLE:
            return bool(kinds.is_floating(found) or kinds.is_integer(found))
        case Type.STRING:
            if kinds.is_dictionary(found):
                found = found.value_type
            return bool(kinds.is_string(found) or kinds.is_large_string(found) or kinds.is_string_view(found))
        case Type.BOOLEAN:
            return bool(kinds.is_boolean(found))
        case Type.TIMESTAMP:
            return bool(kinds.is_timestamp(found) or kinds.is_date(found) or kinds.is_int64(found))


class ParquetDecoder:
    """Decodes record batches of one file for one stream or table."""

    def __init__(self, stream: Stream | Table, schema: pa.Schema, file: str) -> None:
        """Raises:
        DataError: a declared column is missing, or its type is not accepted; names file and column.
        """
        self.stream = stream
        self.columns = [field.name for field in stream.fields]
        for field in stream.fields:
            found = schema.get_all_field_indices(field.name)
            if len(found) != 1:
                near = difflib.get_close_matches(field.name, schema.names, 1)
                hint = f", did you mean '{near[0]}'?" if near else ""
                held = "does not have" if not found else f"has {len(found)} times"
                raise DataError(
                    f"{file}: {stream} declares column '{field.name}', which the file {held}"
                    f" (it has: {shown(', '.join(schema.names))}){hint}"
                )
            type = schema.field(found[0]).type
            if not _accepts(field.type, type):
                raise DataError(
                    f"{file}: column '{field.name}' is {type}, {stream} declares it"
                    f" {field.type}, which accepts {ACCEPTED_TYPES[field.type]}"
                )

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        """Decode one record batch that holds at least the declared columns."""
        count = batch.num_rows
        good = np.ones(count, np.bool_)
        columns: dict[str, Column] = {}
        wrong: list[tuple[Mask, str]] = []
        for field in self.stream.fields:
            column, bad, reason = _convert(field, batch.column(field.name))
            columns[field.name] = column
            if bad.any():
                wrong.append((bad, reason))
                good &= ~bad
        name: str | None = None
        if isinstance(self.stream, Table):
            ts = np.full(count, TABLE_TS, np.int64)
        else:
            name = self.stream.timestamp
            if name is None:
                raise DataError(f"{self.stream} has no timestamp field, a Parquet file needs one")
            ts = columns[name].values.astype(np.int64, copy=False)
            good &= in_range(ts) & columns[name].mask()
        tuples = Batch(ts, columns)
        if good.all():
            return Decoded(tuples, np.arange(count, dtype=np.int64), [], count)
        dead = []
        for row in np.flatnonzero(~good).tolist():
            reason = next((text for mask, text in wrong if mask[row]), "")
            if not reason and name is not None:
                try:
                    check_event_time(name, int(ts[row]) if columns[name].mask()[row] else None)
                except RecordError as error:
                    reason = str(error)
            dead.append(DeadLetter(row, reason, encode_tuples(tuples.slice(row, row + 1)).data.rstrip(b"\n")))
        return Decoded(tuples.take(good), np.flatnonzero(good), dead, count)


def _convert(field: Field, array: pa.Array) -> tuple[Column, Mask, str]:
    """A column, which of its rows break the rules (their values are then NULL), and why."""
    found = array.type
    bad = np.zeros(len(array), np.bool_)
    reason = ""
    if field.type is Type.TIMESTAMP:
        array = _milliseconds(array)
    elif field.type is Type.STRING:
        array = array.cast(pa.large_string())
        if not _is_utf8(array):
            bad = _not_utf8(array)
            reason = f"field '{field.name}' is not valid UTF-8"
            array = pc.if_else(pa.array(bad), pa.scalar(None, pa.large_string()), array)
    elif field.type is Type.DOUBLE:
        array = array.cast(pa.float64(), safe=False)
        finite = pc.fill_null(pc.is_finite(array), True).to_numpy(zero_copy_only=False)
        if not finite.all():
            bad = ~finite
            reason = f"field '{field.name}' is NaN or infinite, DOUBLE accepts a finite number (or null)"
            array = pc.if_else(pa.array(bad), pa.scalar(None, pa.float64()), array)
    elif found != pa.int64() and field.type is Type.BIGINT:
        array = array.cast(pa.int64())
    return Column.from_arrow(array, field.type), bad, reason


def _milliseconds(array: pa.Array) -> pa.Array:
    """A timestamp, date or int64 array as int64 milliseconds, rounded toward the past."""
    found = array.type
    if pa.types.is_date(found):
        return array.cast(pa.timestamp("ms")).cast(pa.int64())
    if not pa.types.is_timestamp(found):
        return array
    values = array.cast(pa.int64())
    if found.unit == "ms":
        return values
    if found.unit == "s":
        return pc.multiply(values, 1000)
    whole = pc.fill_null(values, 0).to_numpy() // _PER_MS[found.unit]
    return pa.array(whole, mask=values.is_null().to_numpy(zero_copy_only=False))


def _is_utf8(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _not_utf8(array: pa.Array) -> Mask:
    """Which strings are not UTF-8, one by one: only for arrays in which some are not."""

    def broken(value: bytes | None) -> bool:
        try:
            (value or b"").decode()
        except UnicodeDecodeError:
            return True
        return False

    return np.array([broken(value) for value in array.cast(pa.large_binary()).to_pylist()], np.bool_)
