"""Join keys: from columns to one 64-bit hash per tuple.

A key of several components is folded left to right. Equal keys have equal hashes; `exact` says whether
the reverse holds too, so that the join may skip comparing the values again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from operators.kernels.hashing import U64, combine_words, double_words, mix_words, string_words
from schemas.columns import Column, Mask
from schemas.query import Type

WHOLE = frozenset({Type.BIGINT, Type.TIMESTAMP, Type.BOOLEAN})


def column_words(column: Column) -> U64:
    """(n,) uint64 words; values that compare equal have equal words, BIGINT and DOUBLE across types too."""
    if column.type is Type.STRING:
        assert column.offsets is not None
        return np.asarray(string_words(column.offsets, column.values.view(np.uint8)))
    if column.type is Type.DOUBLE:
        return np.asarray(double_words(column.values.astype(np.float64, copy=False)))
    if column.type is Type.BOOLEAN:
        return column.values.astype(np.uint64)
    return np.ascontiguousarray(column.values).view(np.uint64)


def key_hashes(components: Sequence[Column]) -> tuple[U64, Mask | None]:
    """Hashes of a join key.

    Args:
        components: the key's columns, each (n,), at least one.

    Returns:
        (n,) uint64 hashes, and (n,) bool False where a component is null (None: no nulls). A null never
        matches, so the caller drops those tuples.
    """
    hashes = mix_words(column_words(components[0]))
    valid = components[0].valid
    for column in components[1:]:
        hashes = combine_words(hashes, column_words(column))
        if column.valid is not None:
            valid = column.valid if valid is None else valid & column.valid
    return hashes, valid


def is_exact(types: Sequence[tuple[Type, Type]]) -> bool:
    """True when equal hashes prove equal keys: one component, of whole numbers on both sides."""
    return len(types) == 1 and types[0][0] in WHOLE and types[0][1] in WHOLE
