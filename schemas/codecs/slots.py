"""The arrays that a compiled decoder fills for one block, and their conversion to columns.

A slot is one field of one record, an int64 word (see `kernels.json_records.decode_json`). The
record-at-a-time path writes into the same slots, so that the tuples keep the input's order whichever path
decoded them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.codecs.decoded import (
    DeadLetter,
    Decoded,
    RecordError,
    Value,
    check_event_time,
    in_range,
)
from schemas.codecs.kernels.scan import (
    BIGINT,
    BLANK,
    BOOLEAN,
    DECODED,
    DOUBLE,
    STRING,
    TIMESTAMP,
    UNSURE,
    gather_strings,
    pack_span,
)
from schemas.columns import I64, U8, Batch, Column, numbers_of
from schemas.errors import DataError
from schemas.query import TABLE_TS, Stream, Table, Type

_CODES = {
    Type.BIGINT: BIGINT,
    Type.DOUBLE: DOUBLE,
    Type.STRING: STRING,
    Type.BOOLEAN: BOOLEAN,
    Type.TIMESTAMP: TIMESTAMP,
}

MAX_BLOCK_BYTES = (1 << 31) - 1
"""Spans pack a position into 31 bits."""


class SlotLayout:
    """A stream's or table's fields in the form that kernels take; made once per decoder."""

    def __init__(self, stream: Stream | Table) -> None:
        self.stream = stream
        self.types = np.array([_CODES[field.type] for field in stream.fields], np.uint8)
        self.doubles = int(np.count_nonzero(self.types == DOUBLE))
        self.ts_field = -1
        self.timestamp: str | None = None
        self.timeless = isinstance(stream, Table)
        if isinstance(stream, Stream) and stream.timestamp is not None:
            self.timestamp = stream.timestamp
            self.ts_field = next(i for i, f in enumerate(stream.fields) if f.name == stream.timestamp)


class Slots:
    """The slots of one block of `count` records whose bytes are `data`."""

    def __init__(self, layout: SlotLayout, data: U8, count: int) -> None:
        self.layout = layout
        self.data = data
        self.count = count
        fields = len(layout.types)
        self.words = np.zeros((fields, count), np.int64)
        self.floats = self.words.view(np.float64)
        self.valid = np.zeros((fields, count), np.bool_)
        self.status = np.full(count, UNSURE, np.uint8)
        self.starts = np.zeros(count + 1, np.int64)
        self.hard = np.empty(max(1, layout.doubles * count), np.int64)
        self._extra: list[bytes] = []
        self._extra_at = len(data)

    def fill(self, decode: Callable[..., int], *fields: npt.NDArray[Any]) -> None:
        """Decode the block.

        Args:
            decode: the kernel of the format, `decode_csv` or `decode_json`.
            fields: how that format finds its fields, as the kernel takes it.
        """
        outputs = self.words, self.floats, self.valid, self.status, self.starts, self.hard
        self._parse_hard_doubles(int(decode(self.data, not _is_utf8(self.data), *fields, self.layout.types, *outputs)))

    def _parse_hard_doubles(self, count: int) -> None:
        """Parse the doubles of the first `count` entries of `hard`, with Arrow's parser, which rounds correctly.

        Records with a number beyond the range of doubles become UNSURE.
        """
        entries = self.hard[:count]
        rows = entries % self.count
        entries = entries[self.status[rows] == DECODED]
        if not len(entries):
            return
        rows = entries % self.count
        flat = self.words.reshape(-1)
        texts = self._strings(flat[entries], False)
        try:
            numbers = numbers_of(texts.to_arrow().cast(pa.float64()))
        except pa.ArrowInvalid:
            self.status[rows] = UNSURE
            return
        self.floats.reshape(-1)[entries] = numbers
        self.status[rows[~np.isfinite(numbers)]] = UNSURE

    def store(self, row: int, values: Sequence[Value]) -> None:
        """Set the slots of one record to the values of the record-at-a-time path."""
        for f, value in enumerate(values):
            self.valid[f, row] = value is not None
            self.words[f, row] = 0
            if isinstance(value, str):
                text = value.encode()
                self.words[f, row] = pack_span(self._extra_at, len(text), False)
                self._extra.append(text)
                self._extra_at += len(text)
            elif isinstance(value, float):
                self.floats[f, row] = value
            elif value is not None:
                self.words[f, row] = int(value)
        self.status[row] = DECODED

    def finish(
        self,
        rules: Callable[[int], Sequence[Value]],
        raw: Callable[[int], bytes],
        record_ts: I64 | None,
        doubled_quotes: bool = False,
        blank_is_dead: bool = False,
    ) -> Decoded:
        """Convert the slots to columns, after the kernel has run. Here records become dead letters.

        A record of which the kernel was unsure, or whose event time is missing or out of range, goes through `rules`.
        If they or the check of its event time raise RecordError, the record is a dead letter with that reason.

        Args:
            rules: the record-at-a-time path: a record's values in field order, or RecordError.
            raw: a record's bytes, which its dead letter holds.
            record_ts: (count,) event times where the stream has no timestamp field.
            doubled_quotes: how the kernel's spans escape, see `gather_strings`.
            blank_is_dead: whether a blank record is a dead letter (a record without content) and not an empty line.
        """
        dead: list[DeadLetter] = []
        f = self.layout.ts_field
        timeless = self.layout.timeless
        if timeless:
            record_ts = np.full(self.count, TABLE_TS, np.int64)
            untimely = np.zeros(self.count, np.bool_)
        elif record_ts is not None:
            untimely = ~in_range(record_ts)
        else:
            untimely = ~(self.valid[f] & in_range(self.words[f]))
        unsure = self.status != DECODED
        if not blank_is_dead:
            unsure &= self.status != BLANK
        for row in np.flatnonzero(unsure | (untimely & (self.status == DECODED))).tolist():
            try:
                values = rules(row)
                if record_ts is None:
                    at = values[f]
                    check_event_time(self.layout.timestamp, at if isinstance(at, int) else None)
                elif not timeless:
                    check_event_time(None, int(record_ts[row]))
                self.store(row, values)
            except RecordError as error:
                dead.append(DeadLetter(row, str(error), raw(row)))
                self.status[row] = UNSURE
        if self._extra:
            self.data = np.concatenate([self.data, np.frombuffer(b"".join(self._extra), np.uint8)])
        rows = np.flatnonzero(self.status == DECODED)
        whole = len(rows) == self.count
        columns = {}
        for index, field in enumerate(self.layout.stream.fields):
            words = self.words[index] if whole else self.words[index][rows]
            valid = self.valid[index] if whole else self.valid[index][rows]
            column = self._column(field.type, words, doubled_quotes)
            if not valid.all():
                column = Column(field.type, column.values, valid, column.offsets)
            columns[field.name] = column
        if record_ts is not None:
            ts = record_ts if whole else record_ts[rows]
        else:
            ts = self.words[f] if whole else self.words[f][rows]
        return Decoded(Batch(ts, columns), rows, dead, self.count, self.starts)

    def _column(self, type: Type, words: I64, doubled_quotes: bool) -> Column:
        match type:
            case Type.STRING:
                return self._strings(words, doubled_quotes)
            case Type.DOUBLE:
                return Column(type, words.view(np.float64))
            case Type.BOOLEAN:
                return Column(type, words.astype(np.bool_))
        return Column(type, words)

    def _strings(self, spans: I64, doubled_quotes: bool) -> Column:
        room = int(((spans & 0xFFFFFFFF) >> 1).sum())
        out = np.empty(room, np.uint8)
        offsets = np.empty(len(spans) + 1, np.int64)
        gather_strings(self.data, spans, doubled_quotes, out, offsets)
        return Column(Type.STRING, out[: int(offsets[-1])], None, offsets)


def _is_utf8(data: U8) -> bool:
    """Whether the bytes as a whole are valid UTF-8 (then so is every slice between ASCII bytes)."""
    if not len(data):
        return True
    ends = pa.py_buffer(np.array([0, len(data)], np.int64))
    try:
        pa.LargeStringArray.from_buffers(1, ends, pa.py_buffer(data)).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def check_size(block: bytes) -> None:
    """Refuse a block that is too large for spans to address."""
    if len(block) > MAX_BLOCK_BYTES:
        raise DataError(f"{len(block)} bytes of records at once, at most {MAX_BLOCK_BYTES} can be decoded")


def count_lines(block: bytes) -> int:
    """Count the newlines in the block; without the GIL, and faster than bytes.count where lines are short."""
    return int(np.count_nonzero(np.frombuffer(block, np.uint8) == 10))
