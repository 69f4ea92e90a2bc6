"""Multiplies the tuples of records by the elements of the arrays in them: what UNNEST means.

Decoders of unnested streams call it with the records and the elements, which they have decoded apart
(`schemas.nested.json_arrays`, `schemas.nested.schema_arrays`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from schemas.codecs.decoded import DeadLetter, Decoded, Elements
from schemas.columns import I64, Batch, Column
from schemas.query import ORDINAL, Stream, Type

MOST_TUPLES = 1 << 20
"""A record with more tuples is a dead letter: a small record with two long arrays would take all memory."""


def multiplied(
    stream: Stream,
    found: Decoded,
    arrays: Sequence[Elements],
    raw: Callable[[int], bytes],
    wrong: Mapping[int, str] | None = None,
) -> Decoded:
    """Return a tuple for each element of the array in a record; of several arrays, for each choice of one element each,
    those of the last array next to each other.

    A record without elements has no tuple. A record with an element that is a dead letter is one itself.

    Args:
        stream: the unnested stream.
        found: the records, without the columns of elements.
        arrays: the elements, in the order of `stream.unnested`.
        raw: a record's bytes, which its dead letter holds.
        wrong: by place among the decoded records, why a record is a dead letter in any case.
    """
    why = dict(wrong or {})
    for one in arrays:
        ends = np.cumsum(one.counts)
        for letter in one.decoded.dead:
            record = int(np.searchsorted(ends, letter.row, side="right"))
            ordinal = letter.row - int(ends[record] - one.counts[record]) + 1
            why.setdefault(record, f"element {ordinal} of {one.array.name!r}: {letter.reason}")
    if len(arrays) > 1:
        tuples = np.prod([one.counts.astype(np.float64) for one in arrays], axis=0)
        for record in np.flatnonzero(tuples > MOST_TUPLES).tolist():
            reason = f"its arrays make {tuples[record]:.0f} tuples, and a record makes at most {MOST_TUPLES}"
            why.setdefault(record, reason)
    fine = np.ones(len(found.rows), np.bool_)
    fine[list(why)] = False
    chosen = np.flatnonzero(fine)
    picks: list[I64] = []
    for one in arrays:
        counts = one.counts[chosen]
        owners = np.repeat(np.arange(len(chosen)), counts)
        ordinals = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        chosen = chosen[owners]
        picks = [pick[owners] for pick in picks]
        picks.append(ordinals)
    columns = dict(found.batch.take(chosen).columns)
    for one, ordinals in zip(arrays, picks, strict=True):
        numbers = (np.cumsum(one.counts) - one.counts)[chosen] + ordinals
        places = np.zeros(one.decoded.records, np.int64)
        places[one.decoded.rows] = np.arange(len(one.decoded.rows))
        elements = one.decoded.batch
        if not np.array_equal(places[numbers], np.arange(len(elements))):
            elements = elements.take(places[numbers])
        columns |= elements.columns
        columns[one.array.column(ORDINAL)] = Column(Type.BIGINT, ordinals + 1)
    batch = Batch(found.batch.ts[chosen], {field.name: columns[field.name] for field in stream.fields})
    letters = [DeadLetter(int(found.rows[n]), reason, raw(int(found.rows[n]))) for n, reason in why.items()]
    dead = sorted([*found.dead, *letters], key=lambda letter: letter.row)
    return Decoded(batch, found.rows[chosen], dead, found.records, found.starts)
