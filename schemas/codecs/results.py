"""Encodes results as the records of a topic: values in one format, keys in the same or another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from schemas.codecs.encode import Encoded, encode_columns, encode_results
from schemas.codecs.kernels.avro_writer import write_same
from schemas.codecs.kernels.frames import add_frames
from schemas.codecs.kernels.murmur import key_hashes
from schemas.columns import I64, U8, Batch, Column
from schemas.fitting import MisfitError
from schemas.members import Member
from schemas.query import Type


class ValueEncoder(Protocol):
    """Encodes the values of results."""

    def encode(self, batch: Batch, phase: str | None) -> Encoded:
        """Encode results, all columns and `_ts`.

        Args:
            phase: what late results say of themselves.

        Raises:
            MisfitError: their schema has no place for some of them.
        """
        ...


class KeyEncoder(Protocol):
    """Encodes the keys of results."""

    def encode(self, columns: Sequence[Column], rows: int) -> Encoded:
        """Encode the columns of keys, of which there may be none."""
        ...


@dataclass(frozen=True, slots=True)
class JsonValues:
    """JSON objects.

    Attributes:
        members: as `encode_results` takes them.
    """

    members: tuple[Member, ...] | None = None

    def encode(self, batch: Batch, phase: str | None) -> Encoded:
        """As `encode_results`."""
        return encode_results(batch, phase, self.members)


@dataclass(frozen=True, slots=True)
class JsonKeys:
    """JSON objects with these members; `{}` where there are none."""

    members: tuple[Member, ...]

    def encode(self, columns: Sequence[Column], rows: int) -> Encoded:
        """Encode one object per row."""
        if not self.members:
            return Encoded(b"{}\n" * rows, np.arange(0, 3 * rows + 1, 3, dtype=np.int64))
        return encode_columns(columns, self.members)


@dataclass(frozen=True, slots=True)
class FramedValues:
    """Values behind the frame of schema registries: a zero and the number of their schema.

    Attributes:
        values: encodes them without the frame.
    """

    number: int
    values: ValueEncoder

    def encode(self, batch: Batch, phase: str | None) -> Encoded:
        """Encode results."""
        return _framed(self.number, self.values.encode(batch, phase))


@dataclass(frozen=True, slots=True)
class FramedKeys:
    """Keys behind that frame; else as `FramedValues`."""

    number: int
    keys: KeyEncoder

    def encode(self, columns: Sequence[Column], rows: int) -> Encoded:
        """Encode one key per row."""
        return _framed(self.number, self.keys.encode(columns, rows))


def _framed(number: int, found: Encoded) -> Encoded:
    head = np.frombuffer(bytes(1) + number.to_bytes(4, "big"), np.uint8)
    offsets = found.offsets + len(head) * np.arange(len(found.offsets))
    out = np.zeros(int(offsets[-1]), np.uint8)
    add_frames(np.frombuffer(found.data, np.uint8), found.offsets, head, out)
    return replace(found, data=out.tobytes(), offsets=offsets)


@dataclass(frozen=True, slots=True)
class TextKeys:
    """The text of one column, not a DOUBLE; a record whose column is NULL has no key. Headers are encoded so, too."""

    def encode(self, columns: Sequence[Column], rows: int) -> Encoded:
        """Encode one text per row."""
        (column,) = columns
        if not rows:
            return Encoded(b"", np.zeros(1, np.int64))
        texts = pl.from_arrow(column.to_arrow()).cast(pl.String).fill_null("") + "\n"
        made = Column.from_arrow(texts.to_arrow(), Type.STRING)
        assert made.offsets is not None
        begin, end = int(made.offsets[0]), int(made.offsets[-1])
        missing = None if column.valid is None else ~column.valid
        return Encoded(made.values[begin:end].tobytes(), made.offsets - begin, missing=missing)


@dataclass(frozen=True, slots=True)
class ResultRecords:
    """Encodes the results of one query.

    Attributes:
        values: encodes their values.
        keys: encodes their keys; None if they have none.
        key: the columns in a key, which then decides the record's partition; None where keys are groups of aggregates.
        headers: the headers of records: the name of each, and that of its column.
        refused: lays out, as JSON, the results for which the schema of values has no place; see `encode_results`.
    """

    values: ValueEncoder = field(default_factory=JsonValues)
    keys: KeyEncoder | None = None
    key: tuple[str, ...] | None = None
    headers: tuple[tuple[str, str], ...] = ()
    refused: tuple[Member, ...] | None = None

    @property
    def upserts(self) -> bool:
        """Whether a result replaces an earlier one of its key. Then none comes late."""
        return self.keys is not None and self.key is None

    def encode(self, batch: Batch, phase: str | None = None) -> Encoded:
        """Encode results with their keys and headers, if they have any.

        Args:
            phase: what late results say of themselves.
        """
        try:
            found = self.values.encode(batch, phase)
        except MisfitError as error:
            return self._others(batch, phase, error.reasons)
        if self.headers:
            texts = [(name, TextKeys().encode([batch.columns[column]], len(batch))) for name, column in self.headers]
            found = replace(found, headers=tuple(texts))
        if self.keys is None:
            return found
        if self.key is None:
            return replace(found, keys=self.keys.encode(batch.keys, len(batch)))
        keys = self.keys.encode([batch.columns[name] for name in self.key], len(batch))
        return replace(found, keys=keys, hashes=_hashes(keys))

    def _others(self, batch: Batch, phase: str | None, reasons: Mapping[int, str]) -> Encoded:
        """Encode results without those in some rows."""
        fits = np.ones(len(batch), np.bool_)
        fits[list(reasons)] = False
        texts = encode_results(batch.take(~fits), phase, self.refused).texts()
        refused = zip(texts, (reasons[row] for row in sorted(reasons)), strict=True)
        return replace(self.encode(batch.take(fits), phase), refused=tuple(refused))


def _hashes(keys: Encoded) -> I64:
    hashes = np.zeros(len(keys.offsets) - 1, np.int64)
    key_hashes(np.frombuffer(keys.data, np.uint8), np.ascontiguousarray(keys.offsets), hashes)
    return hashes


def write_records(
    head: bytes, tail: bytes, rows: int, add_sizes: Callable[[I64], None], write: Callable[[U8, I64], None]
) -> Encoded:
    """Write records column by column, each record between the same bytes.

    Args:
        add_sizes: adds what each record takes in between to (rows,) sizes.
        write: writes what is in between to a block, (rows,) places in it, which it moves on.
    """
    behind = 1  # a byte that is not of the record, as `Encoded` wants
    sizes = np.full(rows, len(head) + len(tail) + behind, np.int64)
    add_sizes(sizes)
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    out = np.zeros(int(offsets[-1]), np.uint8)
    at = offsets[:-1].copy()
    write_same(np.frombuffer(head, np.uint8), out, at)
    write(out, at)
    write_same(np.frombuffer(tail, np.uint8), out, at)
    return Encoded(out.tobytes(), offsets)


def read_only(array: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    """The array as kernels that write records get it, so that each is compiled once: contiguous, and read-only."""
    assert array is not None
    made = np.ascontiguousarray(array).view()
    made.flags.writeable = False
    return made
