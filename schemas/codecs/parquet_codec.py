"""Decodes Parquet record batches into batches, under the rules of `decoded`.

Types are checked before anything is read: a column of another type than those in `ACCEPTED_TYPES` is an
error of the whole file. Per record, these remain to be checked: the event time, doubles that are not finite, decimals
that their declared type cannot hold, and strings that are not UTF-8 (Parquet does not guarantee it).

A decimal is a BIGINT where it is an integer of int64. It is a DOUBLE where the nearest double, exactly or in its
shortest form, is the same number: always up to 15 significant digits.

A dead letter is the record's declared fields as JSON. A value that JSON cannot represent is a string, such as "NaN".
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from schemas.codecs.decoded import DeadLetter, Decoded, RecordError, check_event_time, in_range, shown
from schemas.columns import Batch, Column, Mask
from schemas.errors import DataError
from schemas.paths import path_text
from schemas.query import TABLE_TS, Field, Path, Stream, Table, Type

ACCEPTED_TYPES: Final[Mapping[Type, str]] = {
    Type.BIGINT: "int8 to int64, uint8 to uint32, decimals",
    Type.DOUBLE: "float16 to float64, any integer, decimals",
    Type.STRING: "string, large_string, dictionary of strings",
    Type.BOOLEAN: "bool",
    Type.TIMESTAMP: "timestamp, date32, date64, int64 (ms since 1970)",
}
_PER_MS: Final = {"us": 1_000, "ns": 1_000_000}
_SURE_DIGITS: Final = 15
"""A decimal of up to this many significant digits always survives a conversion to the nearest double and back."""


def _accepts(type: Type, found: pa.DataType) -> bool:
    kinds = pa.types
    match type:
        case Type.BIGINT:
            return bool(kinds.is_integer(found) or kinds.is_decimal(found)) and not kinds.is_uint64(found)
        case Type.DOUBLE:
            return bool(kinds.is_floating(found) or kinds.is_integer(found) or kinds.is_decimal(found))
        case Type.STRING:
            if kinds.is_dictionary(found):
                found = found.value_type
            return bool(kinds.is_string(found) or kinds.is_large_string(found) or kinds.is_string_view(found))
        case Type.BOOLEAN:
            return bool(kinds.is_boolean(found))
        case Type.TIMESTAMP:
            return bool(kinds.is_timestamp(found) or kinds.is_date(found) or kinds.is_int64(found))


class ParquetDecoder:
    """Decodes record batches of one file for one stream or table.

    Attributes:
        columns: the names of those of the file that it needs.
    """

    def __init__(self, stream: Stream | Table, schema: pa.Schema, file: str) -> None:
        """Raises:
        DataError: a declared column is missing, or its type is not accepted; names file and column.
        """
        self.stream = stream
        self.columns = list(dict.fromkeys(str(field.place[0]) for field in stream.fields))
        for field in stream.fields:
            type = self._type_at(field.place, schema, file)
            if not _accepts(field.type, type):
                raise DataError(
                    f"{file}: column '{_shown_place(field.place)}' is {type}, {stream} declares it"
                    f" {field.type}, which accepts {ACCEPTED_TYPES[field.type]}"
                )

    def _type_at(self, place: Path, schema: pa.Schema, file: str) -> pa.DataType:
        """The type of what is at a place: a column, or a field of structs in each other."""
        type = pa.struct(list(schema))
        for n, step in enumerate(place):
            declared = f"{file}: {self.stream} declares column '{_shown_place(place)}'"
            if not pa.types.is_struct(type) or isinstance(step, int):
                within = _shown_place(place[:n])
                raise DataError(f"{declared}, but '{within}' is {type}; only structs have nested values")
            names = [field.name for field in type]
            if names.count(step) != 1:
                near = difflib.get_close_matches(step, names, 1)
                hint = f", did you mean '{near[0]}'?" if near else ""
                held = "does not have" if step not in names else f"has {names.count(step)} times"
                within = f"struct '{_shown_place(place[:n])}'" if n else "file"
                raise DataError(f"{declared}, which the {within} {held} (it has: {shown(', '.join(names))}){hint}")
            type = type.field(names.index(step)).type
        return type

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        """Decode one record batch that holds at least the declared columns."""
        count = batch.num_rows
        good = np.ones(count, np.bool_)
        columns: dict[str, Column] = {}
        wrong: list[tuple[str, Mask, str]] = []
        for field in self.stream.fields:
            column, bad, reason = _convert(field, _values_at(field.place, batch))
            columns[field.name] = column
            if bad.any():
                wrong.append((field.name, bad, reason))
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
            record = {field: column.slice(row, row + 1).to_values()[0] for field, column in columns.items()}
            broken = [(field, text) for field, mask, text in wrong if mask[row]]
            places = {field.name: field.place for field in self.stream.fields}
            record |= {field: _shown(_values_at(places[field], batch)[row]) for field, _ in broken}
            reason = broken[0][1] if broken else ""
            if not reason and name is not None:
                try:
                    check_event_time(name, int(ts[row]) if columns[name].mask()[row] else None)
                except RecordError as error:
                    reason = str(error)
            dead.append(DeadLetter(row, reason, orjson.dumps(record)))
        return Decoded(tuples.take(good), np.flatnonzero(good), dead, count)


def _values_at(place: Path, batch: pa.RecordBatch) -> pa.Array:
    """What is at a place in each row, null in a struct that is null."""
    array = batch.column(place[0])
    return pc.struct_field(array, list(place[1:])) if len(place) > 1 else array


def _shown_place(place: Path) -> str:
    return str(place[0]) if len(place) == 1 else path_text(place)


def _convert(field: Field, array: pa.Array) -> tuple[Column, Mask, str]:
    """A column, a mask of the rows that break the rules (their values are then NULL), and the reason."""
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
    elif pa.types.is_decimal(found):
        array, bad = _exact(field.type, array)
        what = "no integer in [-2^63, 2^63)" if field.type is Type.BIGINT else "not exactly a double"
        reason = f"field '{field.name}' is {what}, {field.type} accepts decimals that lose nothing"
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


def _exact(type: Type, array: pa.Array) -> tuple[pa.Array, Mask]:
    """Decimals as BIGINT or DOUBLE, and a mask of those that would change; these are null then."""
    bad = np.zeros(len(array), np.bool_)
    if type is Type.BIGINT:
        # Arrow refuses short decimals next to nulls, so all become long ones.
        long = array if pa.types.is_decimal256(array.type) else array.cast(pa.decimal128(38, array.type.scale))
        try:
            return long.cast(pa.int64()), bad
        except pa.ArrowInvalid:
            values = array.to_pylist()
            bad[:] = [value is not None and not _is_bigint(value) for value in values]
            fitting = [None if value is None or out else int(value) for value, out in zip(values, bad, strict=True)]
            return pa.array(fitting, pa.int64()), bad
    texts = array.cast(pa.string())
    numbers = texts.cast(pa.float64())
    long_texts = pc.greater(pc.utf8_length(pc.utf8_rtrim(texts, "0")), _SURE_DIGITS)
    for row in np.flatnonzero(pc.fill_null(long_texts, False)).tolist():
        nearest = numbers[row].as_py()
        bad[row] = array[row].as_py() not in (Decimal(nearest), Decimal(repr(nearest)))
    return pc.if_else(pa.array(bad), pa.scalar(None, pa.float64()), numbers), bad


def _is_bigint(value: Decimal) -> bool:
    return value == value.to_integral_value() and -(1 << 63) <= value < 1 << 63


def _shown(value: pa.Scalar) -> Any:
    """A value that its declared type does not accept, as JSON."""
    if pa.types.is_floating(value.type):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(str(value.as_py()), value.as_py())
    if pa.types.is_decimal(value.type):
        return str(value.as_py())
    return value.cast(pa.large_binary()).as_py().decode(errors="replace")


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
    """A mask of the strings that are not UTF-8, one by one: only for arrays in which some are not."""

    def broken(value: bytes | None) -> bool:
        try:
            (value or b"").decode()
        except UnicodeDecodeError:
            return True
        return False

    return np.array([broken(value) for value in array.cast(pa.large_binary()).to_pylist()], np.bool_)
