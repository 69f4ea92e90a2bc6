"""Feeds rows to an engine the way a task does, and reads results back as Python rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from operators.engine.engine import Engine
from schemas.columns import I64, Batch, Column
from schemas.query import GONE, TABLE_TS, Stream, Table, Type
from tests import oracle
from tests.cases import Case

Rows = dict[str, list[list[dict[str, Any]]]]
"""Rows in arrival order, per stream and partition."""


def to_batch(stream: Stream | Table, given: list[dict[str, Any]]) -> Batch:
    """Rows as a batch with all declared fields; of an unnested stream, its tuples."""
    if isinstance(stream, Table):
        rows: Sequence[Mapping[str, Any]] = given
        ts = np.full(len(rows), TABLE_TS)
    else:
        assert stream.timestamp is not None
        rows = oracle.elements(stream, given)
        ts = np.array([row[stream.timestamp] for row in rows], np.int64)
    columns = {f.name: Column.from_values([row[f.name] for row in rows], f.type) for f in stream.fields}
    if isinstance(stream, Stream) and stream.is_versioned:
        columns[GONE] = Column.from_values([row.get("_op") == "-" for row in rows], Type.BOOLEAN)
    return Batch(ts, columns)


def offsets_of(stream: Stream, rows: list[dict[str, Any]], begin: int) -> I64:
    """The offsets of the tuples that `to_batch` makes of rows from offset `begin` on."""
    tuples = [len(oracle.elements(stream, [row])) for row in rows]
    return np.repeat(np.arange(begin, begin + len(rows), dtype=np.int64), tuples)


def tables_of(case: Case) -> dict[str, Batch]:
    """The tables of a case, for an engine."""
    return {table.name: to_batch(table, case.tables[table.name]) for table in case.query.tables()}


def engine_of(case: Case, executor: str = "xjoin", **options: Any) -> Engine:
    """An engine for a case; `options` are engine options besides those that follow from the case."""
    known = {"plan": case.plan, "partitions": partitions_of(case.rows), "tables": tables_of(case)}
    return Engine(case.query, executor=executor, **{**known, **options})


def to_rows(batch: Batch) -> list[dict[str, Any]]:
    """Results as dicts with `_ts`."""
    columns = {name: column.to_values() for name, column in batch.columns.items()}
    names = list(columns)
    return [{**{name: columns[name][i] for name in names}, "_ts": int(ts)} for i, ts in enumerate(batch.ts)]


def feed(engine: Engine, rows: Rows, push_sizes: list[int], epoch_ms: int) -> list[dict[str, Any]]:
    """Push everything in turns of the given sizes, advancing when an epoch is complete; returns all results."""
    streams = {s.name: s for s in engine.query.streams()}
    at = {(name, p): 0 for name, parts in rows.items() for p in range(len(parts))}
    out: list[dict[str, Any]] = []
    turn = 0
    while at:
        for name, p in list(at):
            part = rows[name][p]
            begin = at[name, p]
            size = push_sizes[turn % len(push_sizes)]
            turn += 1
            piece = part[begin : begin + size]
            if piece:
                engine.push(name, p, to_batch(streams[name], piece))
                at[name, p] = begin + len(piece)
            if begin + len(piece) >= len(part):
                engine.close(name, p)
                del at[name, p]
            cut = engine.watermark()
            if cut - engine.cut >= epoch_ms:
                out += to_rows(engine.advance(cut))
    return out + to_rows(engine.advance())


def partitions_of(rows: Rows) -> dict[str, list[int]]:
    """Partition numbers per stream."""
    return {name: list(range(len(parts))) for name, parts in rows.items()}


def canonical(rows: list[dict[str, Any]]) -> list[str]:
    """A multiset of rows as a sorted list; values keep their type (1 and 1.0 and True differ)."""
    return sorted(repr(sorted(row.items())) for row in rows)
