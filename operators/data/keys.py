"""Turns the columns of a join key into one 64-bit hash per tuple.

Hash joins call `key_hashes`, which folds the components of a key left to right. Equal keys have equal hashes.
`is_exact` reports whether the converse holds too; then a join need not compare the values again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from operators.kernels.hashing import U64, combine_words, double_words, mix_words, string_words
from schemas.columns import Column, Mask
from schemas.query import Type

WHOLE = frozenset({Type.BIGINT, Type.TIMESTAMP, Type.BOOLEAN})


def column_words(column: Column) -> U64:
    """Return (n,) uint64 words. Values that compare equal have equal words, even a BIGINT and a DOUBLE."""
    if column.type is Type.STRING:
        assert column.offsets is not None
        return np.asarray(string_words(column.offsets, column.values.view(np.uint8)))
    if column.type is Type.DOUBLE:
        return np.asarray(double_words(column.values.astype(np.float64, copy=False)))
    if column.type is Type.BOOLEAN:
        return column.values.astype(np.uint64)
    return np.ascontiguousarray(column.values).view(np.uint64)


def key_hashes(components: Sequence[Column]) -> tuple[U64, Mask | None]:
    """Hash a join key.

    Args:
        components: the key's columns, each (n,), at least one.

    Returns:
        (n,) uint64 hashes, and (n,) bool that is False where a component is null; None when nothing is null. A null
        never matches, so the caller drops those tuples.
    """
    hashes = mix_words(column_words(components[0]))
    valid = components[0].valid
    for column in components[1:]:
        hashes = combine_words(hashes, column_words(column))
        if column.valid is not None:
            valid = column.valid if valid is None else valid & column.valid
    return hashes, valid


def is_exact(types: Sequence[tuple[Type, Type]]) -> bool:
    """Return whether equal hashes prove equal keys: one component, with whole numbers or booleans on both sides."""
    return len(types) == 1 and types[0][0] in WHOLE and types[0][1] in WHOLE
