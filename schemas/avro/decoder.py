"""Decodes Avro records into batches: `schemas.codecs.schema_decoder` with the programs of Avro schemas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from schemas.avro.layout import Program, program_of
from schemas.avro.rules import AvroRules
from schemas.avro.schema import Avro
from schemas.codecs.decoded import Value
from schemas.codecs.kernels.avro_records import decode_avro, schema_ids
from schemas.codecs.schema_decoder import FRAME, RecordReader, SchemaDecoder, check_number
from schemas.codecs.slots import Slots
from schemas.codecs.wanted import Wanted
from schemas.columns import I64, U8
from schemas.query import Stream

SchemaOf = Callable[[int], Avro]
"""Returns the schema of a number, or raises RecordError if there is none. Other errors stop the decoding."""


@dataclass(frozen=True, slots=True)
class _Reader:
    rules: AvroRules
    program: Program

    @property
    def texts(self) -> Sequence[bytes]:
        return self.program.texts

    def run(self, slots: Slots, rows: I64, begins: I64, ends: I64, spans: I64) -> None:
        outputs = slots.words, slots.floats, slots.valid, slots.status
        decode_avro(slots.data, rows, begins, ends, self.program.instructions, spans, *outputs)
        for slot, text in self.program.text_defaults:
            slots.words[slot, rows], slots.valid[slot, rows] = spans[text], True

    def values(self, raw: bytes) -> list[Value]:
        return self.rules.values(raw)


class AvroDecoder(SchemaDecoder):
    """Decodes the records of one stream. Safe to call from several threads.

    Args:
        wanted: where the stream's fields are in the records, in their order.
        schema: the schema of all records, which have no frame; or what returns a schema by its number in the frame.
    """

    def __init__(self, stream: Stream, wanted: Sequence[Wanted], schema: Avro | SchemaOf) -> None:
        super().__init__(stream)
        self._wanted = tuple(wanted)
        self._schema = schema

    def _split(self, data: U8, begins: I64, ends: I64) -> tuple[I64, I64]:
        ids = np.zeros(len(begins), np.int64)
        if isinstance(self._schema, Avro):
            return ids, begins
        schema_ids(data, begins, ends, ids)
        return ids, begins + FRAME

    def _reader(self, number: int) -> RecordReader:
        check_number(number)
        schema = self._schema if isinstance(self._schema, Avro) else self._schema(number)
        return _Reader(AvroRules(schema, self._wanted), program_of(schema, self._wanted))
