"""Decodes Avro records into batches: `schemas.codecs.schema_decoder` with the programs of Avro schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from schemas.avro.layout import Program, program_of, program_of_elements
from schemas.avro.rules import AvroRules, ElementKind, element_kinds
from schemas.avro.schema import Avro
from schemas.codecs.decoded import Value
from schemas.codecs.kernels.avro_records import decode_avro, schema_ids
from schemas.codecs.schema_decoder import FRAME, RecordReader, SchemaDecoder, ValueReader, check_number, found_by
from schemas.codecs.slots import Slots
from schemas.codecs.wanted import Wanted, WantedArray, wanted_arrays
from schemas.columns import I64, U8
from schemas.query import Stream

SchemaOf = Callable[[int], Avro]
"""Returns the schema of a number, or raises RecordError if there is none. Other errors stop the decoding."""


@dataclass(frozen=True, slots=True)
class _Reader:
    rules: AvroRules
    program: Program
    kinds: Mapping[int, tuple[int, ValueReader]]

    @property
    def texts(self) -> Sequence[bytes]:
        return self.program.texts

    def run(self, slots: Slots, rows: I64, begins: I64, ends: I64, spans: I64) -> I64:
        outputs = slots.words, slots.floats, slots.valid, slots.status

        def decode(found: I64) -> int:
            return int(decode_avro(slots.data, rows, begins, ends, self.program.instructions, spans, *outputs, found))

        found = found_by(decode, rows, begins, ends, any_=bool(self.kinds))
        for slot, text in self.program.text_defaults:
            slots.words[slot, rows], slots.valid[slot, rows] = spans[text], True
        return found

    def values(self, raw: bytes) -> list[Value]:
        return self.rules.values(raw)

    def elements(self, raw: bytes) -> list[tuple[int, bytes]]:
        return self.rules.elements(raw)


class AvroDecoder(SchemaDecoder):
    """Decodes the records of one stream. Safe to call from several threads.

    Args:
        wanted: where the stream's fields are in the records, in their order, without those of unnested arrays.
        schema: the schema of all records, which have no frame; or what returns a schema by its number in the frame.
    """

    def __init__(self, stream: Stream, wanted: Sequence[Wanted], schema: Avro | SchemaOf) -> None:
        super().__init__(stream)
        self._wanted = tuple(wanted)
        self._arrays = wanted_arrays(stream)
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
        kinds = element_kinds(schema, self._arrays)
        readers = [(kind.array, _element_reader(kind, self._arrays[kind.array])) for kind in kinds]
        rules = AvroRules(schema, self._wanted, self._arrays)
        return _Reader(rules, program_of(schema, self._wanted, self._arrays), dict(enumerate(readers)))


def _element_reader(kind: ElementKind, array: WantedArray) -> _Reader:
    rules = AvroRules(kind.items, array.elements, rows=array.rows)
    return _Reader(rules, program_of_elements(kind, array), {})
