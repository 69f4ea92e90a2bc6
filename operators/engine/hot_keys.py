"""Finds the values that most tuples have in the columns by which they are joined, on a sample of the living tuples."""

from __future__ import annotations

import numpy as np

from operators.data.keys import key_hashes
from operators.data.statistics import HotKey
from operators.engine.selectivity import sample
from operators.plan.predicates import conjuncts
from operators.state.sources import Sources
from schemas.columns import Column
from schemas.query import ColumnRef, Compare, aliases_of

MOST = 3
"""So many values of a column are named."""

LEAST_SAMPLED = 8
"""A value that fewer sampled tuples have may be there by chance."""

TIMES_EVEN = 4.0
"""A value is hot if it has so many times the share that it would have if all values had the same,"""

LEAST_SHARE = 0.1
"""and at least this share of the tuples."""


def hot_keys(sources: Sources, cut: int) -> tuple[HotKey, ...]:
    """Return the hot values of each column that an equality compares, those with the largest shares first.

    Cost: O(SAMPLED_ROWS log SAMPLED_ROWS) per column (`operators.engine.selectivity`).
    """
    columns: dict[ColumnRef, None] = {}
    for predicate in conjuncts(sources.query):
        if isinstance(predicate, Compare) and predicate.op == "=" and len(aliases_of(predicate)) > 1:
            operands = (predicate.left, predicate.right)
            columns |= dict.fromkeys(one for one in operands if isinstance(one, ColumnRef))
    rows = {alias: sample(sources, alias, cut) for alias in dict.fromkeys(column.alias for column in columns)}
    found: list[HotKey] = []
    for column in columns:
        ids = rows[column.alias]
        if len(ids):
            found += _of_column(column, sources.resolver((column.alias,), ids[np.newaxis])(column))
    return tuple(found)


def _of_column(column: ColumnRef, values: Column) -> list[HotKey]:
    # Not by Arrow: its functions take 34 MB of memory, and nothing else in a worker needs them.
    hashes, valid = key_hashes([values])
    rows = np.arange(len(values)) if valid is None else np.flatnonzero(valid)
    _, first, count = np.unique(hashes[rows], return_index=True, return_counts=True)
    known = len(rows)
    least = max(LEAST_SAMPLED, TIMES_EVEN * known / max(len(count), 1), LEAST_SHARE * known)
    hottest = [int(n) for n in np.argsort(-count, kind="stable")[:MOST] if count[n] >= least]
    texts = [str(values.slice(row, row + 1).to_arrow()[0].as_py()) for row in rows[first[hottest]].tolist()]
    shares = (count[hottest] / len(values)).tolist()
    return [HotKey(column.alias, column.name, *one) for one in zip(texts, shares, strict=True)]
