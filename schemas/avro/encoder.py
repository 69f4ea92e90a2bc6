"""Encodes results as Avro, in the wire format of schema registries: a zero, the schema's number, and the record.

The schemas are those of `schemas.avro.result_schema`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from schemas.codecs.encode import Encoded
from schemas.codecs.kernels.avro_writer import (
    add_long_sizes,
    add_text_sizes,
    write_booleans,
    write_doubles,
    write_longs,
    write_texts,
)
from schemas.codecs.results import read_only, write_records
from schemas.columns import I64, U8, Batch, Column
from schemas.query import OP_KEY, Type

_C = TypeVar("_C")


@dataclass(frozen=True, slots=True)
class AvroValues:
    """Encodes the values of results: a `schemas.codecs.results.ValueEncoder`.

    Attributes:
        number: of their schema.
        phase: whether this has `_phase`.
        order: the numbers of the columns in the order in which the schema has them; None for the columns' own.
    """

    number: int
    phase: bool
    order: tuple[int, ...] | None = None

    def encode(self, batch: Batch, phase: str | None) -> Encoded:
        """Encode results."""
        found = _in_order(list(batch.columns.items()), self.order)
        columns, nullable = [column for _, column in found], [name != OP_KEY for name, _ in found]
        tail = _nullable_text(phase) if self.phase else b""
        return encode_records(self.number, columns, nullable, batch.ts, tail, len(batch))


@dataclass(frozen=True, slots=True)
class AvroKeys:
    """Encodes the keys of results: a `schemas.codecs.results.KeyEncoder`.

    Attributes:
        number: of their schema.
        order: as `AvroValues` has it.
    """

    number: int
    order: tuple[int, ...] | None = None

    def encode(self, columns: Sequence[Column], rows: int) -> Encoded:
        """Encode one record per row."""
        nothing = b"" if columns else _nullable_text(None)  # as `key_schema` says
        return encode_records(self.number, _in_order(columns, self.order), [True] * len(columns), None, nothing, rows)


def _in_order(columns: Sequence[_C], order: Sequence[int] | None) -> Sequence[_C]:
    return columns if order is None else [columns[n] for n in order]


def _nullable_text(text: str | None) -> bytes:
    """A nullable text of less than 64 bytes."""
    raw = (text or "").encode()
    return b"\0" if text is None else bytes((2, 2 * len(raw))) + raw


def encode_records(
    number: int,
    columns: Sequence[Column],
    nullable: Sequence[bool],
    ts: I64 | None,
    tail: bytes,
    rows: int,
) -> Encoded:
    """Encode records of some columns.

    Args:
        number: of their schema.
        nullable: of each column, whether its values are in a union with null.
        ts: their timestamps, which follow the columns; None to leave them out.
        tail: what each record ends with.
        rows: how many there are.
    """
    fields = list(zip(columns, nullable, strict=True))
    if ts is not None:
        fields.append((Column(Type.TIMESTAMP, ts), False))
    head = bytes(1) + number.to_bytes(4, "big")

    def add_sizes(sizes: I64) -> None:
        for column, may_be_null in fields:
            add_sizes_of(column, may_be_null, sizes)

    def write(out: U8, at: I64) -> None:
        for column, may_be_null in fields:
            write_column(column, may_be_null, out, at)

    return write_records(head, tail, rows, add_sizes, write)


def add_sizes_of(column: Column, nullable: bool, sizes: I64) -> None:
    """Add what each value of a column takes to (rows,) sizes.

    Args:
        nullable: whether the values are in a union with null, which comes first.
    """
    if column.type is Type.STRING:
        add_text_sizes(read_only(column.offsets), read_only(column.mask()), nullable, sizes)
    elif column.type in (Type.BIGINT, Type.TIMESTAMP):
        add_long_sizes(read_only(column.values), read_only(column.mask()), nullable, sizes)
    else:
        sizes += column.mask() * (8 if column.type is Type.DOUBLE else 1) + nullable


def write_column(column: Column, nullable: bool, out: npt.NDArray[np.uint8], at: I64) -> None:
    """Write each value of a column at (rows,) places in a block, which it moves on; else as `add_sizes_of`. A null that
    is not `nullable` takes no bytes."""
    valid, values = read_only(column.mask()), read_only(column.values)
    match column.type:
        case Type.STRING:
            write_texts(values, read_only(column.offsets), valid, nullable, out, at)
        case Type.DOUBLE:
            write_doubles(read_only(values.view(np.int64)), valid, nullable, out, at)
        case Type.BOOLEAN:
            write_booleans(values, valid, nullable, out, at)
        case _:
            write_longs(values, valid, nullable, out, at)
