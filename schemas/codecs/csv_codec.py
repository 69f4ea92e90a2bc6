"""Decodes CSV into batches, under the rules of `decoded` (tokens: `kernels.csv_records`): files with a header, and
Kafka's values, each a record of the declared columns in their order.

An empty field without quotes is NULL; `""` is the empty string. Numbers have JSON's form, without blanks
around them; quoted numbers are numbers. An empty line is not a record, even in a file of one column. Every
declared field needs its column. A header without it is an error of the whole file, since a misspelt column
would otherwise be NULL in every record.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

import numpy as np

from schemas.codecs.decoded import Decoded, RecordError, Value, check_value, empty_batch, name_in, shown
from schemas.codecs.kernels.csv_records import decode_csv, scan_records
from schemas.codecs.slots import SlotLayout, Slots, check_size, count_lines
from schemas.columns import I64
from schemas.errors import DataError
from schemas.query import Stream, Table, Type

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_LONGEST_INTEGER = 400
"""An integer of more digits than this is not a double either (and Python would refuse to read it)."""


def split_record(raw: bytes) -> list[tuple[bytes, bool]]:
    """The fields of one record without its line end: each field's content, and whether it was quoted.

    Raises:
        RecordError: a quote is not closed, or text follows a closing quote.
    """
    fields: list[tuple[bytes, bool]] = []
    p = 0
    while True:
        if raw[p : p + 1] == b'"':
            end = p + 1
            while True:
                end = raw.find(b'"', end)
                if end < 0:
                    raise RecordError(f"field {len(fields) + 1} has no closing quote")
                if raw[end + 1 : end + 2] != b'"':
                    break
                end += 2
            fields.append((raw[p + 1 : end].replace(b'""', b'"'), True))
            p = end + 1
            if p < len(raw) and raw[p : p + 1] != b",":
                raise RecordError(f"field {len(fields)} has text after its closing quote")
        else:
            end = raw.find(b",", p)
            end = len(raw) if end < 0 else end
            if b"\n" in raw[p:end]:
                raise RecordError(f"field {len(fields) + 1} has a line break outside quotes")
            fields.append((raw[p:end], False))
            p = end
        if p >= len(raw):
            return fields
        p += 1


class CsvRules:
    """Decodes one record's bytes to its values. This class defines the format; the kernel must agree with it."""

    def __init__(self, stream: Stream | Table, field_of: Sequence[int]) -> None:
        self._fields = [(field.name, field.type) for field in stream.fields]
        self._field_of = field_of

    def values(self, raw: bytes) -> list[Value]:
        """The values of a record in the order of the stream's fields, None for NULL.

        Raises:
            RecordError: with the reason.
        """
        parts = split_record(raw)
        if len(parts) != len(self._field_of):
            raise RecordError(f"the record has {len(parts)} fields, expected {len(self._field_of)}")
        values: list[Value] = [None] * len(self._fields)
        for f, (content, quoted) in zip(self._field_of, parts, strict=True):
            if f >= 0 and (content or quoted):
                name, type = self._fields[f]
                try:
                    text = content.decode()
                except UnicodeDecodeError:
                    raise RecordError(f"field '{name}' is {shown(content)}, which is not valid UTF-8") from None
                values[f] = check_value(name, type, _parsed(text, type))
        return values


def _parsed(text: str, type: Type) -> Value:
    """The value that a text means in a column of `type`; the text itself where it means none."""
    if type is Type.BOOLEAN and text in ("true", "false"):
        return text == "true"
    if type in (Type.BIGINT, Type.TIMESTAMP, Type.DOUBLE):
        if _INTEGER.fullmatch(text) and len(text) <= _LONGEST_INTEGER:
            return int(text)
        if type is not Type.TIMESTAMP and _NUMBER.fullmatch(text):
            return float(text)
    return text


class CsvDecoder:
    """Decodes CSV records of one stream or table. Keeps no state between calls.

    Args:
        field_of: the declared field of each column, -1 for none. Default: the declared fields in their order.
    """

    def __init__(self, stream: Stream | Table, field_of: Sequence[int] | None = None) -> None:
        self.stream = stream
        self._field_of = np.array(range(len(stream.fields)) if field_of is None else field_of, np.int64)
        self.rules = CsvRules(stream, self._field_of.tolist())
        self._layout = SlotLayout(stream)

    @staticmethod
    def with_header(stream: Stream | Table, header: bytes, file: str) -> CsvDecoder:
        """The decoder of a file.

        Args:
            header: the first record of `file`, without a byte order mark.

        Raises:
            DataError: a declared field has no column, or more than one.
        """
        try:
            names = [content.decode() for content, _ in split_record(header.rstrip(b"\r\n"))]
        except (RecordError, UnicodeDecodeError) as error:
            raise DataError(f"{file}: the header cannot be read: {error}") from None
        declared: dict[str, int] = {}
        for i, field in enumerate(stream.fields):
            if declared.setdefault(name_in(field, "CSV"), i) != i:
                raise DataError(f"{file}: {stream} declares two columns for one column of CSV, '{field.place[0]}'")
        for name in declared:
            if names.count(name) > 1:
                times = names.count(name)
                raise DataError(f"{file}: the header has column '{name}' {times} times, expected once")
            if name not in names:
                near = difflib.get_close_matches(name, names, 1)
                hint = f", did you mean '{near[0]}'?" if near else ""
                raise DataError(
                    f"{file}: {stream} declares column '{name}', which the header does not have"
                    f" (it has: {shown(', '.join(names))}){hint}"
                )
        return CsvDecoder(stream, [declared.get(name, -1) for name in names])

    def decode_lines(self, block: bytes) -> Decoded:
        """Decode whole records without the header; the row numbers count all records, empty lines included."""
        if not block:
            return Decoded(empty_batch(self.stream), np.zeros(0, np.int64), [], 0, np.zeros(1, np.int64))
        check_size(block)
        if block[-1] != 10:
            block += b"\n"
        data = np.frombuffer(block, np.uint8)
        count, end = scan_records(data)
        if end < len(block):  # a quote that is still open at the end of the file
            count += 1
        slots = Slots(self._layout, data, int(count))
        slots.fill(decode_csv, self._field_of)

        def raw(row: int) -> bytes:
            record = block[slots.starts[row] : slots.starts[row + 1]]
            record = record.removesuffix(b"\n")
            return record.removesuffix(b"\r")

        return slots.finish(lambda row: self.rules.values(raw(row)), raw, None, doubled_quotes=True)

    def decode_values(self, values: Sequence[bytes | None], record_ts: I64 | None = None) -> Decoded:
        """Decode one record per value, with or without a line end; None (a tombstone) and an empty value are dead
        letters.

        Args:
            record_ts: (values,) the Kafka records' timestamps, used when the stream has no timestamp field.
        """
        if self._layout.timestamp is not None:
            record_ts = None
        if not values:
            return Decoded(empty_batch(self.stream), np.zeros(0, np.int64), [], 0)
        given = [value or b"" for value in values]
        records = given
        block = b"\n".join(records) + b"\n"
        if count_lines(block) != len(records):
            records = [record.removesuffix(b"\n") for record in given]
            block = b"\n".join(records) + b"\n"
        check_size(block)
        data = np.frombuffer(block, np.uint8)
        slots = Slots(self._layout, data, len(records))
        starts = np.zeros(len(records) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, records), np.int64, len(records)) + 1, out=starts[1:])
        if scan_records(data) == (len(records), len(block)):
            slots.fill(decode_csv, self._field_of)
            if not np.array_equal(slots.starts, starts):
                # A quote that is not closed takes in what follows: each record goes through the rules.
                slots = Slots(self._layout, data, len(records))

        def rules(row: int) -> list[Value]:
            record = given[row].removesuffix(b"\n").removesuffix(b"\r")
            if not record:
                raise RecordError("the record is empty, expected CSV")
            return self.rules.values(record)

        decoded = slots.finish(rules, lambda row: given[row], record_ts, doubled_quotes=True, blank_is_dead=True)
        return Decoded(decoded.batch, decoded.rows, decoded.dead, decoded.records)


def end_of_records(buffer: bytes) -> int:
    """The position where the last whole record of the buffer ends; 0 when it has no whole record."""
    return int(scan_records(np.frombuffer(buffer, np.uint8))[1])
