"""Decodes Avro records, Kafka's values, into batches: by a compiled pass where it is sure, else by the rules.

A record is in the wire format of schema registries, a frame with the number of its schema and then the Avro, or is
nothing but Avro of one schema. Each record is decoded by the schema with which it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from schemas.avro.layout import Program, program_of
from schemas.avro.rules import AvroRules, Wanted
from schemas.avro.schema import Avro
from schemas.codecs.decoded import Decoded, RecordError, Value, empty_batch
from schemas.codecs.kernels.avro_records import PADDING, decode_avro, schema_ids
from schemas.codecs.kernels.scan import pack_span
from schemas.codecs.slots import SlotLayout, Slots, check_size
from schemas.columns import I64
from schemas.query import Stream

MAX_NUMBER = (1 << 31) - 1

_FRAME = 5
"""Bytes of the frame: a zero and the schema's number."""

SchemaOf = Callable[[int], Avro]
"""Returns the schema of a number, or raises RecordError if there is none. Other errors stop the decoding."""


@dataclass(frozen=True, slots=True)
class _Known:
    rules: AvroRules
    program: Program


class AvroDecoder:
    """Decodes the records of one stream. Safe to call from several threads.

    Args:
        wanted: where the stream's fields are in the records, in their order.
        schema: the schema of all records, which have no frame; or what returns a schema by its number in the frame.
    """

    def __init__(self, stream: Stream, wanted: Sequence[Wanted], schema: Avro | SchemaOf) -> None:
        self.stream = stream
        self._wanted = tuple(wanted)
        self._layout = SlotLayout(stream)
        self._schema = schema
        self._known: dict[int, _Known] = {}

    def decode_values(self, values: Sequence[bytes | None], record_ts: I64 | None = None) -> Decoded:
        """Decode one record per value; None (a tombstone) and an empty value are dead letters.

        Args:
            record_ts: (values,) the Kafka records' timestamps, used when the stream has no timestamp field.
        """
        if self._layout.timestamp is not None:
            record_ts = None
        if not values:
            return Decoded(empty_batch(self.stream), np.zeros(0, np.int64), [], 0)
        given = [value or b"" for value in values] if None in values else values
        starts = np.zeros(len(values) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, given), np.int64, len(values)), out=starts[1:])  # type: ignore[arg-type]
        block = b"".join(given) + bytes(PADDING)  # type: ignore[arg-type]
        reasons: dict[int, str] = {}
        begins, ends = starts[:-1], starts[1:]
        ids = np.zeros(len(values), np.int64)
        if not isinstance(self._schema, Avro):
            schema_ids(np.frombuffer(block, np.uint8), begins, ends, ids)
            begins = begins + _FRAME
        runs = []
        for number in np.unique(ids).tolist():
            try:
                runs.append((self._program(number), np.flatnonzero(ids == number)))
            except RecordError as error:
                reasons[number] = str(error)
        texts, spans = self._texts(runs, len(block))
        block += texts
        check_size(block)
        slots = Slots(self._layout, np.frombuffer(block, np.uint8), len(values))
        for (known, rows), own in zip(runs, spans, strict=True):
            outputs = slots.words, slots.floats, slots.valid, slots.status
            decode_avro(slots.data, rows, begins, ends, known.program.instructions, own, *outputs)
            for slot, text in known.program.text_defaults:
                slots.words[slot, rows], slots.valid[slot, rows] = own[text], True

        def rules(row: int) -> list[Value]:
            number = int(ids[row])
            if number in reasons:
                raise RecordError(reasons[number])
            raw = given[row] or b""
            return self._known[number].rules.values(raw if isinstance(self._schema, Avro) else raw[_FRAME:])

        decoded = slots.finish(rules, lambda row: given[row] or b"", record_ts, blank_is_dead=True)
        return Decoded(decoded.batch, decoded.rows, decoded.dead, decoded.records)

    def _program(self, number: int) -> _Known:
        found = self._known.get(number)
        if found is None:
            if number < 0:
                raise RecordError("the record has no frame of a schema registry: a zero byte and a schema's number")
            if number > MAX_NUMBER:
                raise RecordError(f"the record names schema {number}, the numbers of registries have 31 bits")
            schema = self._schema if isinstance(self._schema, Avro) else self._schema(number)
            found = _Known(AvroRules(schema, self._wanted), program_of(schema, self._wanted))
            self._known[number] = found
        return found

    @staticmethod
    def _texts(runs: Sequence[tuple[_Known, I64]], at: int) -> tuple[bytes, list[I64]]:
        """Return the texts of some programs, which are put at a place behind the block, and the spans of each
        program's."""
        found: list[bytes] = []
        spans = []
        for known, _ in runs:
            own = []
            for text in known.program.texts:
                own.append(pack_span(at, len(text), False))
                found.append(text)
                at += len(text)
            spans.append(np.array(own, np.int64))
        return b"".join(found), spans
