"""Decodes records that have a schema, each by its own: by a compiled pass where it is sure, else by the rules.

A record is in the wire format of schema registries, a frame with the number of its schema in front of it, or all
records have one schema and no frame. `schemas.avro.decoder` and `schemas.protobuf.decoder` say what a frame has, and
how records of one schema are read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from schemas.codecs.decoded import Decoded, RecordError, Value, empty_batch
from schemas.codecs.kernels.scan import pack_span
from schemas.codecs.slots import SlotLayout, Slots, check_size
from schemas.columns import I64, U8
from schemas.query import Stream

FRAME: Final = 5
"""Bytes of the frame: a zero and the schema's number."""

PADDING: Final = 16
"""Bytes behind the last record, into which a pass may read."""

MAX_NUMBER: Final = (1 << 31) - 1

_TOMBSTONE: Final = -2


class RecordReader(Protocol):
    """Reads the records of one schema.

    Attributes:
        texts: what columns may have that is in no record, such as the symbols of enums.
    """

    @property
    def texts(self) -> Sequence[bytes]:
        """See the class."""
        ...

    def run(self, slots: Slots, rows: I64, begins: I64, ends: I64, spans: I64) -> None:
        """Decode some records by the compiled pass, as far as it is sure.

        Args:
            rows: their numbers.
            begins, ends: (records,) where each is in the block, without its frame.
            spans: of `texts`.
        """
        ...

    def values(self, raw: bytes) -> list[Value]:
        """Decode one record by the rules.

        Raises:
            RecordError: it is a dead letter.
        """
        ...


class SchemaDecoder(ABC):
    """Decodes the records of one stream. Safe to call from several threads. Subclasses say what reads a record."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._layout = SlotLayout(stream)
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
        """Decode one record per value; None, a tombstone, is a dead letter.

        Args:
            record_ts: (values,) the Kafka records' timestamps, used when the stream has no timestamp field.
        """
        if self._layout.timestamp is not None:
            record_ts = None
        if not values:
            return Decoded(empty_batch(self.stream), np.zeros(0, np.int64), [], 0)
        nothing = [row for row, value in enumerate(values) if value is None] if None in values else []
        given = [value or b"" for value in values] if nothing else values
        starts = np.zeros(len(values) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, given), np.int64, len(values)), out=starts[1:])  # type: ignore[arg-type]
        block = b"".join(given) + bytes(PADDING)  # type: ignore[arg-type]
        ends = starts[1:]
        numbers, begins = self._split(np.frombuffer(block, np.uint8), starts[:-1], ends)
        numbers[nothing] = _TOMBSTONE
        reasons: dict[int, str] = {}
        runs = []
        for number in _distinct(numbers):
            try:
                runs.append((self._known(number), np.flatnonzero(numbers == number)))
            except RecordError as error:
                reasons[number] = str(error)
        texts, spans = _texts([reader for reader, _ in runs], len(block))
        block += texts
        check_size(block)
        slots = Slots(self._layout, np.frombuffer(block, np.uint8), len(values))
        for (reader, rows), own in zip(runs, spans, strict=True):
            reader.run(slots, rows, begins, ends, own)

        def rules(row: int) -> list[Value]:
            number = int(numbers[row])
            if number in reasons:
                raise RecordError(reasons[number])
            raw = given[row] or b""
            return self._readers[number].values(raw[int(begins[row] - starts[row]) :])

        decoded = slots.finish(rules, lambda row: given[row] or b"", record_ts, blank_is_dead=True)
        return Decoded(decoded.batch, decoded.rows, decoded.dead, decoded.records)

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


def _texts(readers: Sequence[RecordReader], at: int) -> tuple[bytes, list[I64]]:
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
