"""Decodes JSON records, from a file's lines or Kafka's values, into batches under the rules of `decoded`.

A compiled pass (`kernels.json_records`) decodes all common, valid records. Each record that it is unsure of
goes through `JsonRules`, which defines the format: orjson and a check per field (about 2 microseconds a
record), and the reason when the record is bad. JSON is RFC 8259: no NaN, no trailing comma, UTF-8 only.

orjson also refuses valid JSON with a value that it cannot represent. So a record that it refuses is read again by the
grammar alone (`json_grammar`). If the syntax is broken, anywhere in the record, the record is a dead letter. If not,
only the values of declared fields are checked, like those of every record.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np
import orjson

from schemas.codecs.decoded import Decoded, RecordError, Value, check_value, empty_batch, refused, shown
from schemas.codecs.json_grammar import elements, members
from schemas.codecs.json_keys import keys_of
from schemas.codecs.kernels.json_records import decode_json
from schemas.codecs.slots import SlotLayout, Slots, check_size, count_lines
from schemas.columns import I64
from schemas.query import Path, Stream, Table, Type


class JsonRules:
    """Decodes one record's bytes to its values. This class defines the format; the kernel must agree with it."""

    def __init__(self, stream: Stream | Table) -> None:
        self._fields = [(field.name, field.type, field.place) for field in stream.fields]

    def values(self, raw: bytes) -> list[Value]:
        """The values of a record in the order of the stream's fields, None for NULL.

        Raises:
            RecordError: with the reason.
        """
        if not raw.strip(b" \t\r\n"):
            raise RecordError("the record is empty, expected a JSON object")
        try:
            record = orjson.loads(raw)
        except orjson.JSONDecodeError:
            texts: dict[Path, str] = {(json.loads(key),): text for key, text in members(raw)}
            return [parsed(name, type, text_at(texts, place)) for name, type, place in self._fields]
        if not isinstance(record, dict):
            raise RecordError(f"{shown(record)} is not a JSON object")
        return [check_value(name, type, _value_at(record, place)) for name, type, place in self._fields]


def _value_at(value: object, place: Path) -> object:
    """What is at a place of a value; None where there is nothing."""
    for step in place:
        if isinstance(value, dict) and isinstance(step, str):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def text_at(texts: dict[Path, str], place: Path) -> str:
    """What is written at a place of a valid text; null where there is nothing.

    Args:
        texts: what is written at the places found before, at least the text itself or all its members; grows.
    """
    if place not in texts and place:
        above = text_at(texts, place[:-1])
        if above[0] == "{":
            texts.update({(*place[:-1], json.loads(key)): text for key, text in members(above.encode())})
        elif above[0] == "[":
            texts.update({(*place[:-1], number): text for number, text in enumerate(elements(above))})
    return texts.setdefault(place, "null")


def parsed(name: str, type: Type, text: str) -> Value:
    """The value of a field that is written as `text`, parsed by JSON's grammar.

    Raises:
        RecordError: the field's type does not accept it.
    """
    if text[0] in "{[":
        raise refused(name, type, text)
    if text[0] in "-0123456789":
        number = float(text)
        if not math.isfinite(number):
            raise refused(name, type, text)
        return check_value(name, type, number if set(text) & set(".eE") else int(text))
    value = json.loads(text)
    if type is Type.STRING and isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
        raise RecordError(
            f"field '{name}' is {shown(value)}, which has half of a surrogate pair; STRING accepts valid Unicode"
        )
    return check_value(name, type, value)


class JsonDecoder:
    """Decodes JSON records of one stream or table. Keeps no state between calls; safe to call from several threads."""

    def __init__(self, stream: Stream | Table) -> None:
        self.stream = stream
        self.rules = JsonRules(stream)
        self._layout = SlotLayout(stream)
        self._keys = keys_of([field.place for field in stream.fields]).arrays()

    def decode_lines(self, block: bytes, record_ts: I64 | None = None) -> Decoded:
        """Decode newline-delimited records; a last line without newline counts.

        `record_ts`: (lines,) event times for a stream without timestamp field. Blank lines are skipped;
        `rows` count them.
        """
        if not block:
            return Decoded(empty_batch(self.stream), np.zeros(0, np.int64), [], 0, np.zeros(1, np.int64))
        if block[-1] != 10:
            block += b"\n"
        slots = self._scan(block, count_lines(block))

        def raw(row: int) -> bytes:
            return block[slots.starts[row] : slots.starts[row + 1]].rstrip(b"\r\n")

        return slots.finish(lambda row: self.rules.values(raw(row)), raw, record_ts)

    def decode_values(self, values: Sequence[bytes | None], record_ts: I64 | None = None) -> Decoded:
        """Decode one record per value; None (a tombstone) and an empty value are dead letters.

        `record_ts`: (values,) the Kafka records' timestamps, used when the stream has no timestamp field.
        """
        if self._layout.timestamp is not None:
            record_ts = None
        if not values:
            return Decoded(empty_batch(self.stream), np.zeros(0, np.int64), [], 0)
        given = values
        if None in values:
            values = [value or b"" for value in values]
        block = b"\n".join(values) + b"\n"  # type: ignore[arg-type]
        if count_lines(block) != len(values):
            # A newline inside a record can only be white space, so a carriage return can replace it.
            block = b"\n".join((value or b"").replace(b"\n", b"\r") for value in values) + b"\n"
        slots = self._scan(block, len(values))

        def raw(row: int) -> bytes:
            return given[row] or b""

        decoded = slots.finish(lambda row: self.rules.values(raw(row)), raw, record_ts, blank_is_dead=True)
        return Decoded(decoded.batch, decoded.rows, decoded.dead, decoded.records)

    def _scan(self, block: bytes, count: int) -> Slots:
        check_size(block)
        slots = Slots(self._layout, np.frombuffer(block, np.uint8), count)
        slots.fill(decode_json, *self._keys)
        return slots
