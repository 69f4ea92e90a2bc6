"""Encodes blocks of columns that one operator sends to the next through a topic.

    magic "WX" | format (1) | last (1) | fields' digest (4) | channel (4) | watermark (8) | rows (4)
    of format 2: | complete (8) | late (1)
    then the event times, and each column: validity (1, and a bit per row where something is null), values

Little endian. Values are 8 bytes each, BOOLEAN 1; strings are their lengths (4 each), then their bytes. Nothing is
compressed: the Kafka producer compresses whole batches of records, which does better on small blocks. Kafka also keeps
the checksum.

`watermark` is the channel's watermark once the epoch of the block is complete; the epoch's `last` block completes it.
Blocks of an epoch carry the same watermark, so a reader recognizes a repeated epoch by it.

Tasks with a memory budget write format 2. `late` blocks are results of cleanups, older than the watermark. `complete`
says how far these have come: no late block that follows has a smaller event time.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas.columns import DTYPES, I64, Batch, Column
from schemas.errors import StateError
from schemas.messages.formats import check_format
from schemas.query import Field, Type

_HEAD = struct.Struct("<2sBBIIqI")
_SPILLING_HEAD = struct.Struct("<qB")
_MAGIC = b"WX"
_FORMAT = 2
_PLAIN_FORMAT = 1
"""Of tasks without a memory budget."""

_VERSIONED = 3
"""Length of magic and format, with which every version begins."""


@dataclass(frozen=True, slots=True, eq=False)
class ExchangeBlock:
    """A block read back.

    Attributes:
        channel: which task of the producing operator wrote it.
        watermark: what the channel has reached once its `last` block has arrived.
        complete: no late block that follows has a smaller event time; the watermark where there are none.
        late: whether these are results of a cleanup, older than the watermark.
    """

    channel: int
    watermark: int
    last: bool
    batch: Batch
    complete: int
    late: bool = False


def digest(fields: Sequence[Field]) -> int:
    """A digest of a block's columns, so that no reader mistakes them for other columns."""
    return zlib.crc32(repr([(field.name, str(field.type)) for field in fields]).encode())


def encode_exchange(
    fields: Sequence[Field],
    channel: int,
    watermark: int,
    last: bool,
    batch: Batch,
    *,
    complete: int | None = None,
    late: bool = False,
) -> bytes:
    """Encode exactly these columns of the batch as a block, in this order.

    Args:
        complete: see `ExchangeBlock`; None for a task without a memory budget.
    """
    format = _PLAIN_FORMAT if complete is None else _FORMAT
    head = _HEAD.pack(_MAGIC, format, last, digest(fields), channel, watermark, len(batch))
    if complete is not None:
        head += _SPILLING_HEAD.pack(complete, late)
    return head + encode_rows(fields, batch)


def encode_rows(fields: Sequence[Field], batch: Batch) -> bytes:
    """Encode event times and exactly these columns of a batch."""
    parts = [np.ascontiguousarray(batch.ts, "<i8").tobytes()]
    for field in fields:
        column = batch.columns[field.name]
        parts.append(b"\0" if column.valid is None else b"\1" + np.packbits(column.valid).tobytes())
        if column.offsets is None:
            parts.append(np.ascontiguousarray(column.values).tobytes())
        else:
            first, end = int(column.offsets[0]), int(column.offsets[-1])
            parts.append(np.diff(column.offsets).astype("<u4").tobytes())
            parts.append(column.values[first:end].tobytes())
    return b"".join(parts)


def decode_exchange(fields: Sequence[Field], raw: bytes, place: str) -> ExchangeBlock:
    """Read a block. `place` names its record, for errors.

    Raises:
        StateError: it is not a block, is cut short, or has other columns.
        NewerFormatError: a newer Weir has written it.
    """
    if len(raw) < _VERSIONED or raw[:2] != _MAGIC:
        raise StateError(f"record {place} is no block of intermediate results: does another program write there?")
    plain = raw[_VERSIONED - 1] == _PLAIN_FORMAT
    if not plain:
        check_format(raw[_VERSIONED - 1], _FORMAT, f"block {place}")
    size = _HEAD.size if plain else _HEAD.size + _SPILLING_HEAD.size
    if len(raw) < size:
        raise StateError(f"block {place} is cut short at {len(raw)} bytes")
    _, _, last, shape, channel, watermark, n = _HEAD.unpack_from(raw)
    if shape != digest(fields):
        raise StateError(
            f"block {place} has columns {shape:08x}, this operator reads columns {digest(fields):08x}: another query "
            "or plan has written it; use a new group (--group)"
        )
    complete, late = (watermark, False) if plain else _SPILLING_HEAD.unpack_from(raw, _HEAD.size)
    return ExchangeBlock(channel, watermark, bool(last), decode_rows(fields, raw, size, n, place), complete, bool(late))


def decode_rows(fields: Sequence[Field], raw: bytes, at: int, n: int, place: str) -> Batch:
    """Decode n rows that `encode_rows` has written, from byte `at` on.

    Raises:
        StateError: it is cut short.
    """
    reader = _Reader(raw, at, n)
    try:
        ts = reader.numbers(np.dtype("<i8"))
        return Batch(ts, {field.name: reader.column(field.type) for field in fields})
    except ValueError as error:
        raise StateError(f"block {place} is cut short at {len(raw)} bytes: {error}") from None


class _Reader:
    """Reads arrays one after the other; each is a copy, and therefore aligned."""

    def __init__(self, raw: bytes, at: int, rows: int) -> None:
        self._raw, self._at, self._rows = raw, at, rows

    def _take(self, dtype: np.dtype[np.generic], count: int) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
        found = np.frombuffer(self._raw, dtype, count, self._at).copy() if count else np.zeros(0, dtype)
        self._at += found.nbytes
        return found

    def numbers(self, dtype: np.dtype[np.generic]) -> I64:
        return np.asarray(self._take(dtype, self._rows), np.int64)

    def column(self, type: Type) -> Column:
        valid = None
        if self._take(np.dtype(np.uint8), 1).any():
            packed = self._take(np.dtype(np.uint8), -(-self._rows // 8))
            valid = np.unpackbits(packed.astype(np.uint8), count=self._rows).astype(np.bool_)
        if type is not Type.STRING:
            return Column(type, self._take(DTYPES[type], self._rows), valid)
        offsets = np.zeros(self._rows + 1, np.int64)
        np.cumsum(self._take(np.dtype("<u4"), self._rows).astype(np.int64), out=offsets[1:])
        return Column(type, self._take(np.dtype(np.uint8), int(offsets[-1])), valid, offsets)
