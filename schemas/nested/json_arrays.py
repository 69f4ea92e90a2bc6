"""Decodes JSON records of an unnested stream: a tuple for each element of an array in them.

The records are decoded first, without the array. Then the array of each is found in it as it is written, and its
elements are decoded like records of their own: each as `{"value": ELEMENT}`, in a line. So every rule for values holds
for them.

A record whose array is empty, null or absent has no tuple. A record is a dead letter if what is at the array's place is
something else, or if one of its elements is: of an array of rows, one that is neither an object nor null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from schemas.codecs.decoded import DeadLetter, Decoded
from schemas.codecs.json_codec import JsonDecoder
from schemas.codecs.kernels.json_arrays import NOT_AN_ARRAY, count_elements, write_elements
from schemas.columns import I64, Batch, Column
from schemas.errors import InvariantError
from schemas.nested.json_values import raw_values
from schemas.query import ORDINAL, Field, Path, Stream, Table, Type

_SHOWN: Final = 60
_VALUE: Final = "value"
_BEGIN: Final = np.frombuffer(b'{"value":', np.uint8)
_END: Final = np.frombuffer(b"}", np.uint8)


class UnnestingDecoder:
    """Decodes JSON records of one unnested stream, as `JsonDecoder` does those of others."""

    def __init__(self, stream: Stream) -> None:
        if stream.unnested is None:
            raise InvariantError(f"{stream} is not unnested")
        self.stream = stream
        self._array = array = stream.unnested
        own = {column.name for column in array.columns()}
        self._records = JsonDecoder(replace(stream, fields=tuple(f for f in stream.fields if f.name not in own)))
        places: list[Path] = [(_VALUE, field.name) if array.rows else (_VALUE,) for field in array.fields]
        names = [array.column(field.name) for field in array.fields]
        fields = [Field(name, one.type, place) for name, one, place in zip(names, array.fields, places, strict=True)]
        self._elements = JsonDecoder(Table("", tuple(fields), ""))

    def decode_lines(self, block: bytes, record_ts: I64 | None = None) -> Decoded:
        """Decode newline-delimited records; a last line without newline counts."""
        found = self._records.decode_lines(block, record_ts)
        if found.starts is None:
            raise InvariantError("lines without their starts")
        starts = np.minimum(found.starts, len(block))

        def raw(row: int) -> bytes:
            return block[starts[row] : starts[row + 1]].rstrip(b"\r\n")

        return self._multiplied(found, Column(Type.STRING, np.frombuffer(block, np.uint8), None, starts), raw)

    def decode_values(self, values: Sequence[bytes | None], record_ts: I64 | None = None) -> Decoded:
        """Decode one record per value."""
        found = self._records.decode_values(values, record_ts)
        given = [value or b"" for value in values]
        ends = np.cumsum([0, *map(len, given)], dtype=np.int64)
        texts = Column(Type.STRING, np.frombuffer(b"".join(given), np.uint8), None, ends)
        return self._multiplied(found, texts, given.__getitem__)

    def _multiplied(self, found: Decoded, texts: Column, raw: Callable[[int], bytes]) -> Decoded:
        """The tuples of the elements in records that have been decoded.

        Args:
            texts: (records,) all records, also those that were not decoded.
            raw: a record's bytes, which its dead letter holds.
        """
        arrays = raw_values(texts.take(found.rows), self._array.place)
        offsets = np.zeros(len(arrays) + 1, np.int64) if arrays.offsets is None else arrays.offsets
        counts = np.zeros(len(arrays), np.int64)
        count_elements(arrays.values, np.ascontiguousarray(offsets), arrays.mask(), counts)
        wrong = {int(n): self._no_array(arrays, int(n)) for n in np.flatnonzero(counts == NOT_AN_ARRAY)}
        counts = np.maximum(counts, 0)
        total = int(counts.sum())
        out = np.zeros(len(arrays.values) + total * (len(_BEGIN) + len(_END) + 1), np.uint8)
        size = write_elements(arrays.values, np.ascontiguousarray(offsets), counts, _BEGIN, _END, out)
        lines = out[:size].tobytes()
        elements = self._elements.decode_lines(lines)
        owners = np.repeat(np.arange(len(counts)), counts)
        ordinals = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts) + 1
        for number, reason in self._bad_elements(elements, lines):
            wrong.setdefault(int(owners[number]), f"element {ordinals[number]} of {self._array.name!r}: {reason}")
        fine = ~np.isin(owners, list(wrong))
        chosen = owners[fine]
        columns = {name: column.take(chosen) for name, column in found.batch.columns.items()}
        columns |= elements.batch.take(fine[elements.rows]).columns
        columns[self._array.column(ORDINAL)] = Column(Type.BIGINT, ordinals[fine])
        batch = Batch(found.batch.ts[chosen], {field.name: columns[field.name] for field in self.stream.fields})
        letters = [DeadLetter(int(found.rows[n]), why, raw(int(found.rows[n]))) for n, why in wrong.items()]
        dead = sorted([*found.dead, *letters], key=lambda letter: letter.row)
        return Decoded(batch, found.rows[chosen], dead, found.records, found.starts)

    def _no_array(self, arrays: Column, number: int) -> str:
        """The reason of a record that has something else at the array's place."""
        (text,) = arrays.slice(number, number + 1).to_values()
        return f"field {self._array.name!r} is {_cut(str(text))}, which is no array"

    def _bad_elements(self, elements: Decoded, lines: bytes) -> list[tuple[int, str]]:
        """The numbers of the elements that are not of the array's type, ascending, and the reasons."""
        found = {letter.row: letter.reason for letter in elements.dead}
        if self._array.rows and elements.starts is not None:
            data, begins = np.frombuffer(lines, np.uint8), elements.starts[:-1] + len(_BEGIN)
            for number in np.flatnonzero((data[begins] != ord("{")) & (data[begins] != ord("n"))).tolist():
                text = lines[begins[number] : elements.starts[number + 1] - len(_END) - 1].decode()
                found[number] = f"{_cut(text)} is not an object"
        return sorted(found.items())


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def json_decoder(stream: Stream | Table) -> JsonDecoder | UnnestingDecoder:
    """The decoder of JSON records of a stream or table."""
    if isinstance(stream, Stream) and stream.unnested is not None:
        return UnnestingDecoder(stream)
    return JsonDecoder(stream)
