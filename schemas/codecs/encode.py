"""Encodes batches as newline-delimited JSON.

polars does the writing (5 million records/s of four columns on two cores, without the GIL). Tests check that doubles
have the shortest form that reads back to the same value, strings are escaped as JSON demands, keys keep the order of
the columns, and NULL is `null`. A TIMESTAMP is its integer of milliseconds.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from schemas.columns import I64, Batch, Column, Mask
from schemas.errors import UsageError
from schemas.expression_text import text_of
from schemas.members import Member, flat_members
from schemas.query import (
    OP_KEY,
    PHASE_KEY,
    TIMESTAMP_KEY,
    Query,
    Type,
    columns_of,
    group_column,
    qualified,
    type_of,
)


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """`n` records: record i is data[offsets[i]:offsets[i + 1] - 1], without its newline.

    Attributes:
        offsets: (n + 1,) int64, ascending from 0.
        keys: the same number of records, the keys of results that have some.
        hashes: (n,) int64, by which the partition of each is chosen (`schemas.codecs.kernels.murmur`); None for
            records that all go to one partition.
        missing: of keys and headers, (n,) bool: which are none; None if all are there.
        headers: names of headers, each with the same number of records, their texts.
        refused: results for which their schema has no place, and which are not among the records: JSON, and why.
    """

    data: bytes
    offsets: I64
    keys: Encoded | None = None
    hashes: I64 | None = None
    missing: Mask | None = None
    headers: tuple[tuple[str, Encoded], ...] = ()
    refused: tuple[tuple[bytes, str], ...] = ()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def texts(self) -> list[bytes]:
        """The records without their newlines."""
        return [self.data[begin : end - 1] for begin, end in itertools.pairwise(self.offsets.tolist())]


def check_output_names(query: Query) -> None:
    """Refuse a SELECT list that names a key that Weir adds itself.

    Raises:
        UsageError: an output is called `_ts` or `_phase`, or `_op` in a set difference.
    """
    taken = (TIMESTAMP_KEY, PHASE_KEY, *((OP_KEY,) if query.subtracted else ()))
    for output in query.outputs:
        if output.path[0] in taken:
            raise UsageError(f"output '{output.name}' is a key that Weir adds itself, give it another name with AS")


def encode_results(batch: Batch, phase: str | None = None, members: Sequence[Member] | None = None) -> Encoded:
    """Encode results as JSON objects: their members in their order, then `_ts`, then `_phase` when given.

    Args:
        members: how the columns are laid out (`schemas.members.result_members`); None for one member per column.
    """
    members = flat_members(list(batch.columns)) if members is None else members
    return encode_columns(list(batch.columns.values()), members, batch.ts, phase)


def key_paths(query: Query) -> tuple[tuple[str, ...], ...] | None:
    """Where a group's values are in the keys of its upserts; None for a query without aggregates.

    A value has its name in the SELECT list, or else its text in GROUP BY.
    """
    if query.aggregation is None:
        return None
    named = {output.expr: output.path for output in reversed(query.outputs) if output.header is None}
    groups = [(expr, named.get(group_column(k, type_of(expr)))) for k, expr in enumerate(query.aggregation.group_by)]
    taken = {path[0] for _, path in groups if path is not None}
    found: list[tuple[str, ...]] = []
    for expr, path in groups:
        text = text_of(expr)
        if path is None and text in taken:
            # Columns with a dot in their name have it without their alias.
            text = ", ".join(qualified(column.alias, column.name) for column in columns_of(expr))
        while path is None and text in taken:
            text += "'"
        found.append(path or (text,))
        taken.add(found[-1][0])
    return tuple(found)


def encode_tuples(batch: Batch) -> Encoded:
    """Encode source tuples as JSON objects with their declared fields, as a JSON source would have had them."""
    return encode_columns(list(batch.columns.values()), flat_members(list(batch.columns)))


def encode_columns(
    columns: Sequence[Column], members: Sequence[Member], ts: I64 | None = None, phase: str | None = None
) -> Encoded:
    """Encode rows as JSON objects: their members, of which there is at least one, then `_ts` and `_phase` if given."""
    arrays = [member_array(member, columns) for member in members]
    names = [member.name for member in members]
    if ts is not None:
        arrays.append(Column(Type.BIGINT, ts).to_arrow())
        names.append(TIMESTAMP_KEY)
    if phase is not None:
        arrays.append(pa.array([phase] * len(arrays[0]), pa.large_string()))
        names.append(PHASE_KEY)
    if not len(arrays[0]):
        return Encoded(b"", np.zeros(1, np.int64))
    frame = pl.from_arrow(pa.table(arrays, names=names), rechunk=False)
    buffer = io.BytesIO()
    frame.write_ndjson(buffer)  # type: ignore[union-attr]
    data = buffer.getvalue()
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
    offsets = np.zeros(len(ends) + 1, np.int64)
    np.add(ends, 1, out=offsets[1:])
    return Encoded(data, offsets)


def member_array(member: Member, columns: Sequence[Column]) -> pa.Array:
    """The values of a member by row, as Arrow has them: those of an object are a struct, never null."""
    if not member.members:
        return columns[member.column].to_arrow()
    inside = [member_array(one, columns) for one in member.members]
    return pa.StructArray.from_arrays(inside, names=[one.name for one in member.members])
