"""ROWS windows for many queries: computes numbers and horizons of tuples, which stores hold as extra columns.

`operators.juggler.state.sources` stores the columns; `operators.juggler.predicates.lists` compares them. A horizon of a
tuple in a stream S is the number of the newest tuple of S at the tuple's position in the total order. As in
`operators.state.sources`, a combination is alive while the following holds for each of its tuples in a window
`[ROWS n]` that is number r of its stream S: r + n is larger than the horizons in S of all other tuples. So a ROWS
window is a predicate over each pair of inputs, and covering order applies to the ROWS windows of all queries too.

Each query orders tuples of two streams with equal ts by its own FROM. Therefore there are two horizons, and a query
reads the one that matches its order.

Invariants: a number counts every tuple of the stream, stored or not, from the first query that counts it. Earlier
tuples are numbered as far as they are stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from operators.state.store import SourceStore
from schemas.columns import I64, Batch, Column
from schemas.groups import Member, QueryGroup
from schemas.query import OWN_PREFIX, ColumnRef, Type

NUMBER = OWN_PREFIX
"""The column with a tuple's number in its own stream."""
BEFORE, UP_TO = OWN_PREFIX + "<", OWN_PREFIX + "<="
"""Prefixes of columns with the horizon in the stream named after them, without and with tuples of the same ts."""


def counted_pairs(member: Member) -> Iterator[tuple[ColumnRef, ColumnRef, int]]:
    """What a query's ROWS windows compare: horizon, number, and window size; horizon < number + size must hold."""
    order = [stream.name for stream in member.query.streams()]
    sources = member.over_inputs.sources
    for counted in sources:
        if counted.window.kind != "ROWS":
            continue
        for other in sources:
            if other.alias == counted.alias or other.is_static:
                continue
            name = NUMBER
            if other.stream.name != counted.stream.name:
                first = order.index(counted.stream.name) < order.index(other.stream.name)
                name = (UP_TO if first else BEFORE) + counted.stream.name
            yield (
                ColumnRef(other.alias, name, Type.BIGINT),
                ColumnRef(counted.alias, NUMBER, Type.BIGINT),
                counted.window.size,
            )


def kept_for_rows(group: QueryGroup) -> dict[str, list[str]]:
    """By stream the number and horizon columns that ROWS windows read."""
    stream_of = {source.alias: source.stream.name for source in group.inputs}
    kept: dict[str, dict[str, None]] = {}
    for member in group.members:
        for horizon, counted, _ in counted_pairs(member):
            for column in (counted, horizon):
                kept.setdefault(stream_of[column.alias], {})[column.name] = None
    return {stream: list(names) for stream, names in kept.items()}


def counted_in(name: str) -> str:
    """The stream whose tuple numbers a horizon column holds."""
    return name.removeprefix(UP_TO) if name.startswith(UP_TO) else name.removeprefix(BEFORE)


def columns_of_slice(
    kept: Mapping[str, Sequence[str]], counts: Mapping[str, int], batches: Mapping[str, Batch]
) -> dict[str, dict[str, Column]]:
    """The number and horizon columns of a slice's tuples, by stream.

    Args:
        kept: by stream the columns to compute.
        counts: how many tuples of each counted stream have arrived before.
        batches: the slice by stream; no tuple of equal ts arrives in another slice.
    """
    nothing = np.zeros(0, np.int64)
    found: dict[str, dict[str, Column]] = {}
    for stream, batch in batches.items():
        columns = found[stream] = {}
        for name in kept.get(stream, ()):
            of = stream if name == NUMBER else counted_in(name)
            ts = batches[of].ts if of in batches else nothing
            numbers = counts[of] + np.arange(len(ts))
            if name != NUMBER:
                side: Literal["left", "right"] = "right" if name.startswith(UP_TO) else "left"
                numbers = counts[of] - 1 + np.searchsorted(ts, batch.ts, side=side)
            columns[name] = Column(Type.BIGINT, numbers)
    return found


def columns_of_store(kept: Sequence[str], store: SourceStore) -> dict[str, Column]:
    """The columns that a store lacks, for the tuples that it holds.

    A stream that was not counted has its row ids as numbers. Horizons are less than any number: a query produces no
    result whose latest tuple arrived before the query was added, and the horizon of the latest tuple is the largest.
    """
    return columns_of_rows([name for name in kept if name not in store.columns], store.stored_rows())


def columns_of_rows(names: Sequence[str], rows: I64) -> dict[str, Column]:
    """The columns of rows of a stream that was not counted when the rows arrived."""
    return {name: Column(Type.BIGINT, rows if name == NUMBER else np.full(len(rows), -1)) for name in names}
