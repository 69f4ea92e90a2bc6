"""Decodes JSON records of an unnested stream: a tuple for each element of an array in them.

The records are decoded first, without the array. Then the array of each is found in it as it is written, and its
elements are decoded like records of their own: each as `{"value": ELEMENT}`, in a line. So every rule for values holds
for them. `schemas.nested.elements` puts the two together.

A record whose array is empty, null or absent has no tuple. A record is a dead letter if what is at the array's place is
something else, or if one of its elements is: of an array of rows, one that is neither an object nor null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from schemas.codecs.decoded import DeadLetter, Decoded, Elements
from schemas.codecs.json_codec import JsonDecoder
from schemas.codecs.kernels.json_arrays import NOT_AN_ARRAY, count_elements, write_elements
from schemas.codecs.wanted import element_table
from schemas.columns import I64, Column
from schemas.errors import InvariantError
from schemas.nested.elements import multiplied
from schemas.nested.json_values import raw_values
from schemas.query import Array, Stream, Table, Type

_SHOWN: Final = 60
_VALUE: Final = "value"
_BEGIN: Final = np.frombuffer(b'{"value":', np.uint8)
_END: Final = np.frombuffer(b"}", np.uint8)


class UnnestingDecoder:
    """Decodes JSON records of one unnested stream, as `JsonDecoder` does those of others."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._records = JsonDecoder(stream.of_records())
        self._arrays = [_ArrayDecoder(array) for array in stream.unnested]

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
        own = texts.take(found.rows)
        wrong: dict[int, str] = {}
        arrays = [array.decode(own, wrong) for array in self._arrays]
        return multiplied(self.stream, found, arrays, raw, wrong)


class _ArrayDecoder:
    """Decodes the elements of one array."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self._elements = JsonDecoder(element_table(array, (_VALUE,)))

    def decode(self, records: Column, wrong: dict[int, str]) -> Elements:
        """Decode the elements in some records.

        Args:
            records: (n,) STRING.
            wrong: gets the numbers of those that have something else at the array's place, with the reason.
        """
        arrays = raw_values(records, self._array.place)
        offsets = np.zeros(len(arrays) + 1, np.int64) if arrays.offsets is None else arrays.offsets
        counts = np.zeros(len(arrays), np.int64)
        count_elements(arrays.values, np.ascontiguousarray(offsets), arrays.mask(), counts)
        for n in np.flatnonzero(counts == NOT_AN_ARRAY).tolist():
            wrong.setdefault(n, self._no_array(arrays, n))
        counts = np.maximum(counts, 0)
        out = np.zeros(len(arrays.values) + int(counts.sum()) * (len(_BEGIN) + len(_END) + 1), np.uint8)
        size = write_elements(arrays.values, np.ascontiguousarray(offsets), counts, _BEGIN, _END, out)
        lines = out[:size].tobytes()
        elements = self._elements.decode_lines(lines)
        return Elements(self._array, counts, replace(elements, dead=self._dead(elements, lines)))

    def _no_array(self, arrays: Column, number: int) -> str:
        """The reason of a record that has something else at the array's place."""
        (text,) = arrays.slice(number, number + 1).to_values()
        return f"field {self._array.name!r} is {_cut(str(text))}, which is no array"

    def _dead(self, elements: Decoded, lines: bytes) -> list[DeadLetter]:
        """The elements that are not of the array's type."""
        found = {letter.row: letter for letter in elements.dead}
        if self._array.rows and elements.starts is not None:
            data, begins = np.frombuffer(lines, np.uint8), elements.starts[:-1] + len(_BEGIN)
            for number in np.flatnonzero((data[begins] != ord("{")) & (data[begins] != ord("n"))).tolist():
                raw = lines[begins[number] : elements.starts[number + 1] - len(_END) - 1]
                found[number] = DeadLetter(number, f"{_cut(raw.decode())} is not an object", raw)
        return [found[number] for number in sorted(found)]


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def json_decoder(stream: Stream | Table) -> JsonDecoder | UnnestingDecoder:
    """The decoder of JSON records of a stream or table."""
    if isinstance(stream, Stream) and stream.unnested:
        return UnnestingDecoder(stream)
    return JsonDecoder(stream)
