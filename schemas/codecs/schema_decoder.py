"""Decodes records that have a schema, each by its own: by a compiled pass where it is sure, else by the rules.

A record is in the wire format of schema registries, a frame with the number of its schema in front of it, or all
records have one schema and no frame. `schemas.avro.decoder` and `schemas.protobuf.decoder` say what a frame has, and
how records of one schema are read.

A reader of a schema may also find the elements of arrays in its records. Each element is then decoded like a record of
its own, by a reader of its own, and `schemas.nested.schema_arrays` puts elements and records together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from schemas.codecs.decoded import Decoded, Elements, RecordError, Value, empty_batch
from schemas.codecs.kernels.scan import pack_span
from schemas.codecs.slots import SlotLayout, Slots, check_size
from schemas.codecs.wanted import element_table
from schemas.columns import I64, U8
from schemas.query import Stream

FRAME: Final = 5
"""Bytes of the frame: a zero and the schema's number."""

PADDING: Final = 16
"""Bytes behind the last record, into which a pass may read."""

MAX_NUMBER: Final = (1 << 31) - 1

_TOMBSTONE: Final = -2

_BYTES_OF_ELEMENT: Final = 8
"""A guess, for a buffer that is large enough at once in most cases."""


NO_ELEMENTS: Final = np.zeros((0, 4), np.int64)


class ValueReader(Protocol):
    """Reads the records, or the elements of an array, of one schema.

    Attributes:
        texts: what columns may have that is in no record, such as the symbols of enums.
    """

    @property
    def texts(self) -> Sequence[bytes]:
        """See the class."""
        ...

    def run(self, slots: Slots, rows: I64, begins: I64, ends: I64, spans: I64) -> I64:
        """Decode some records by the compiled pass, as far as it is sure.

        Args:
            rows: their numbers.
            begins, ends: (records,) where each is in the block, without its frame.
            spans: of `texts`.

        Returns:
            (n, 4) the elements of arrays in records that are decoded: kind, record, begin, end. Those of a record's
            array are in their order.
        """
        ...

    def values(self, raw: bytes) -> list[Value]:
        """Decode one record by the rules.

        Raises:
            RecordError: it is a dead letter.
        """
        ...


class RecordReader(ValueReader, Protocol):
    """Reads the records of one schema.

    Attributes:
        kinds: what kinds of elements there are, by number: that of the array, and what reads elements of the kind.
    """

    @property
    def kinds(self) -> Mapping[int, tuple[int, ValueReader]]:
        """See the class."""
        ...

    def elements(self, raw: bytes) -> list[tuple[int, bytes]]:
        """Find the elements in one record by the rules, each with the number of its kind.

        Raises:
            RecordError: the record is a dead letter.
        """
        ...


def found_by(run: Callable[[I64], int], rows: I64, begins: I64, ends: I64, *, any_: bool) -> I64:
    """Run a pass that finds elements, with room for all of them.

    Args:
        run: the pass. It gets (room, 4) to write to, and returns how many elements there are.
        rows, begins, ends: as of `ValueReader.run`.
        any_: whether there may be any.
    """
    room = int((ends[rows] - begins[rows]).sum()) // _BYTES_OF_ELEMENT + 1 if any_ else 0
    found = np.empty((room, 4), np.int64)
    if (count := run(found)) > room:
        found = np.empty((count, 4), np.int64)
        run(found)
    return found[:count]


@dataclass(frozen=True, slots=True)
class _Run:
    """The records, or elements, in a block that have the same reader."""

    reader: ValueReader
    rows: I64


@dataclass(frozen=True, slots=True)
class _Found:
    """Decoded records with the elements in them.

    Attributes:
        block: all records, and the elements that are not in them as they are.
        numbers: (records,) of their readers.
        elements: (n, 4) as `ValueReader.run` returns them, by record.
    """

    decoded: Decoded
    block: bytes
    numbers: I64
    elements: I64


class SchemaDecoder(ABC):
    """Decodes the records of one stream. Safe to call from several threads. Subclasses say what reads a record."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._layout = SlotLayout(stream.of_records())
        self._layouts = [SlotLayout(element_table(array)) for array in stream.unnested]
        self._readers: dict[int, RecordReader] = {}

    @abstractmethod
    def _split(self, data: U8, begins: I64, ends: I64) -> tuple[I64, I64]:
        """For each record the number of its reader, and where it begins behind its frame."""

    @abstractmethod
    def _reader(self, number: int) -> RecordReader:
        """Make the reader of a number.

        Raises:
            RecordError: there is none.
        """

    def decode_values(self, values: Sequence[bytes | None], record_ts: I64 | None = None) -> Decoded:
        """Decode one record per value, without the arrays that are unnested; None, a tombstone, is a dead letter.

        Args:
            record_ts: (values,) the Kafka records' timestamps, used when the stream has no timestamp field.
        """
        return self._decode(values, record_ts).decoded

    def decode_elements(
        self, values: Sequence[bytes | None], record_ts: I64 | None = None
    ) -> tuple[Decoded, list[Elements]]:
        """Decode one record per value, and the elements of the arrays in those that are decoded."""
        found = self._decode(values, record_ts)
        return found.decoded, [self._elements(found, number) for number in range(len(self._layouts))]

    def _decode(self, values: Sequence[bytes | None], record_ts: I64 | None) -> _Found:
        if self._layout.timestamp is not None:
            record_ts = None
        if not values:
            nothing = np.zeros(0, np.int64)
            return _Found(Decoded(empty_batch(self._layout.stream), nothing, [], 0), b"", nothing, NO_ELEMENTS)
        empty = [row for row, value in enumerate(values) if value is None] if None in values else []
        given = [value or b"" for value in values] if empty else values
        starts = np.zeros(len(values) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, given), np.int64, len(values)), out=starts[1:])  # type: ignore[arg-type]
        block = b"".join(given) + bytes(PADDING)  # type: ignore[arg-type]
        ends = starts[1:]
        numbers, begins = self._split(np.frombuffer(block, np.uint8), starts[:-1], ends)
        numbers[empty] = _TOMBSTONE
        reasons: dict[int, str] = {}
        runs: list[_Run] = []
        for number in _distinct(numbers):
            try:
                runs.append(_Run(self._known(number), np.flatnonzero(numbers == number)))
            except RecordError as error:
                reasons[number] = str(error)
        slots, elements, block = _run(runs, self._layout, block, begins, ends)
        by_rules: dict[int, list[tuple[int, bytes]]] = {}

        def rules(row: int) -> list[Value]:
            number = int(numbers[row])
            if number in reasons:
                raise RecordError(reasons[number])
            reader = self._readers[number]
            raw = (given[row] or b"")[int(begins[row] - starts[row]) :]
            values = reader.values(raw)
            if self._layouts:
                by_rules[row] = reader.elements(raw)
            return values

        decoded = slots.finish(rules, lambda row: given[row] or b"", record_ts, blank_is_dead=True)
        decoded = Decoded(decoded.batch, decoded.rows, decoded.dead, decoded.records)
        if self._layouts:
            fine = np.zeros(len(values), np.bool_)
            fine[decoded.rows] = True
            others = {row: own for row, own in by_rules.items() if fine[row]}
            block, elements = _with_others(block, elements[fine[elements[:, 1]]], others)
        return _Found(decoded, block, numbers, elements)

    def _elements(self, found: _Found, number: int) -> Elements:
        """Decode the elements of one array."""
        readers = {key: reader for key, reader in self._readers.items() if key in found.numbers}
        keys = found.numbers[found.elements[:, 1]] if len(found.elements) else np.zeros(0, np.int64)
        own = np.zeros(len(found.elements), np.bool_)
        for key, reader in readers.items():
            for kind, (of, _) in reader.kinds.items():
                if of == number:
                    own |= (keys == key) & (found.elements[:, 0] == kind)
        keys, kinds, owners, begins, ends = keys[own], *(found.elements[own].T.copy())
        runs: list[_Run] = []
        for key, reader in readers.items():
            for kind, (_, elements) in reader.kinds.items():
                rows = np.flatnonzero((keys == key) & (kinds == kind))
                if len(rows):
                    runs.append(_Run(elements, rows))
        slots, _, block = _run(runs, self._layouts[number], found.block, begins, ends)

        def raw(element: int) -> bytes:
            return block[begins[element] : ends[element]]

        def rules(element: int) -> list[Value]:
            return self._readers[int(keys[element])].kinds[int(kinds[element])][1].values(raw(element))

        decoded = slots.finish(rules, raw, None, blank_is_dead=True)
        counts = np.bincount(owners, minlength=len(found.numbers))[found.decoded.rows].astype(np.int64)
        return Elements(self.stream.unnested[number], counts, decoded)

    def _known(self, number: int) -> RecordReader:
        if number == _TOMBSTONE:
            raise RecordError("the record is empty, it has no value")
        found = self._readers.get(number)
        if found is None:
            found = self._readers[number] = self._reader(number)
        return found


def _distinct(numbers: I64) -> list[int]:
    """The numbers that occur, ascending. Most blocks have one; sorting all of them took a tenth of the decoding."""
    return [int(numbers[0])] if (numbers == numbers[0]).all() else np.unique(numbers).tolist()


def check_number(number: int) -> None:
    """Check what a frame names as its schema; -1 stands for no frame.

    Raises:
        RecordError: no registry has such a number.
    """
    if number < 0:
        raise RecordError("the record has no frame of a schema registry: a zero byte and a schema's number")
    if number > MAX_NUMBER:
        raise RecordError(f"the record names schema {number}, the numbers of registries have 31 bits")


def _run(runs: Sequence[_Run], layout: SlotLayout, block: bytes, begins: I64, ends: I64) -> tuple[Slots, I64, bytes]:
    """Run the passes of some readers over a block.

    Returns:
        what they have filled, the elements that they have found, and the block with the readers' texts.
    """
    texts, spans = _texts([run.reader for run in runs], len(block))
    block += texts
    check_size(block)
    slots = Slots(layout, np.frombuffer(block, np.uint8), len(begins))
    found = [run.reader.run(slots, run.rows, begins, ends, own) for run, own in zip(runs, spans, strict=True)]
    return slots, np.concatenate(found) if len(found) > 1 else found[0] if found else NO_ELEMENTS, block


def _with_others(block: bytes, elements: I64, others: Mapping[int, Sequence[tuple[int, bytes]]]) -> tuple[bytes, I64]:
    """A block and its elements, with those of other records added.

    Args:
        elements: (n, 4) of some records.
        others: of further records, kinds and bytes of their elements.

    Returns:
        the block with the bytes behind it, and (m, 4) all elements by record.
    """
    found, parts, at = [], [block, bytes(PADDING)], len(block) + PADDING
    for row, own in others.items():
        for kind, raw in own:
            found.append((kind, row, at, at + len(raw)))
            parts.append(raw)
            at += len(raw)
    if found:
        block = b"".join([*parts, bytes(PADDING)])
        elements = np.concatenate([elements[~np.isin(elements[:, 1], list(others))], np.array(found, np.int64)])
    return block, elements[np.argsort(elements[:, 1], kind="stable")]


def _texts(readers: Sequence[ValueReader], at: int) -> tuple[bytes, list[I64]]:
    """Return the texts of some readers, which are put at a place behind the block, and the spans of each one's."""
    found: list[bytes] = []
    spans = []
    for reader in readers:
        own = []
        for text in reader.texts:
            own.append(pack_span(at, len(text), False))
            found.append(text)
            at += len(text)
        spans.append(np.array(own, np.int64))
    return b"".join(found), spans
