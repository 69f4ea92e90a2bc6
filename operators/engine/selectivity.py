"""Measures the selectivity of a query's join predicates on a sample of the living tuples: `measure_links`.

A running plan shows the sizes of its own states; a candidate plan needs those of other states. Under independence they
follow from the windows' sizes and from the share that the predicates over each set of aliases keep.

Equalities are measured by counting equal keys in samples of both sides, which detects one pair in SAMPLED_ROWS^2. Other
predicates are measured on combinations drawn at random from the samples, by a counter and a mixing function, so that
the same state has the same estimate. A share is never 0: no observation counts as half an observation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from operators.data.evaluate import holds
from operators.data.keys import key_hashes
from operators.data.statistics import LinkStatistics
from operators.data.tuples import FOREVER
from operators.kernels.hashing import mix_words
from operators.plan.predicates import conjuncts, join_condition, selections
from operators.state.sources import Sources
from schemas.columns import I64
from schemas.query import Expr, aliases_of

SAMPLED_ROWS = 2_048
"""Living rows examined per alias."""

DRAWN_COMBINATIONS = 8_192
"""Combinations on which predicates without a key are evaluated."""


def measure_links(sources: Sources, cut: int) -> tuple[LinkStatistics, ...]:
    """Measure each set of aliases that predicates relate, and each equality class, in the order of the query's text.

    Cost: O(SAMPLED_ROWS log SAMPLED_ROWS) per equality, O(DRAWN_COMBINATIONS) per other predicate.
    """
    classes = list(dict.fromkeys(sources.equalities.values()))
    groups: dict[tuple[frozenset[str], int], list[Expr]] = {}
    for predicate in conjuncts(sources.query):
        used = aliases_of(predicate)
        equality_class = sources.equalities.get(predicate)
        if len(used) > 1:
            number = -1 if equality_class is None else classes.index(equality_class)
            groups.setdefault((used, number), []).append(predicate)
    needed = {alias for used, _ in groups for alias in used}
    order = [source.alias for source in sources.query.sources]
    rows = {alias: sample(sources, alias, cut) for alias in order if alias in needed}
    return tuple(
        replace(_link(sources, tuple(alias for alias in order if alias in used), predicates, rows), equality=number)
        for (used, number), predicates in groups.items()
    )


def sample(sources: Sources, alias: str, cut: int, count: int = SAMPLED_ROWS) -> I64:
    """Return (m,) row ids of stored living tuples of an alias, evenly spaced; at most `count` are examined."""
    store = sources.store(alias)
    rows = store.spaced_rows(count, sources.first_live_row(alias) if alias in sources.rows_windows else None)
    if sources.life[alias] < FOREVER:
        rows = rows[np.asarray(store.gather("_ts", rows).values >= np.int64(cut - sources.life[alias]))]
    if sources.shared(alias):
        for predicate in selections(sources.query, alias):
            rows = rows[holds(predicate, sources.resolver((alias,), rows[np.newaxis]), len(rows))]
    return rows


def _link(
    sources: Sources, aliases: tuple[str, ...], predicates: Sequence[Expr], rows: Mapping[str, I64]
) -> LinkStatistics:
    """Measure the share of combinations that the predicates over exactly these aliases keep."""
    pairs = 1.0
    for alias in aliases:
        pairs *= len(rows[alias])
    if pairs == 0:
        return LinkStatistics(aliases, 1.0, 1.0)
    condition = join_condition(tuple(predicates), aliases[:1], aliases[1:]) if len(aliases) == 2 else None
    if condition is None or not condition.keys:
        drawn = _drawn([rows[alias] for alias in aliases])
        return LinkStatistics(aliases, 1.0, _passing(sources, aliases, drawn, predicates))
    counted = []
    for side, alias in enumerate(aliases):
        resolve = sources.resolver((alias,), rows[alias][np.newaxis])
        hashes, valid = key_hashes([term.operand(side).values(resolve, len(rows[alias])) for term in condition.keys])
        kept = rows[alias] if valid is None else rows[alias][valid]
        counted.append((kept, hashes if valid is None else hashes[valid]))
    (left, left_keys), (right, right_keys) = counted
    order = np.argsort(right_keys, kind="stable")
    begin = np.searchsorted(right_keys[order], left_keys, side="left")
    count = np.searchsorted(right_keys[order], left_keys, side="right") - begin
    matches = int(count.sum())
    key_share = max(matches, 0.5) / pairs
    others = [p for p in condition.residual if p in predicates]
    if not others or matches == 0:
        return LinkStatistics(aliases, key_share, key_share)
    ends = np.cumsum(count)
    numbers = np.arange(0, matches, max(1, -(-matches // DRAWN_COMBINATIONS)), dtype=np.int64)
    of = np.searchsorted(ends, numbers, side="right")
    found = np.array([left[of], right[order[begin[of] + numbers - (ends[of] - count[of])]]])
    return LinkStatistics(aliases, key_share, key_share * _passing(sources, aliases, found, others))


def _drawn(rows: Sequence[I64]) -> I64:
    """Draw (k, DRAWN_COMBINATIONS) combinations of one row for each of k aliases."""
    columns = []
    for number, ids in enumerate(rows):
        counter = np.arange(DRAWN_COMBINATIONS, dtype=np.uint64) + np.uint64(number << 32)
        columns.append(ids[(mix_words(counter) % np.uint64(len(ids))).astype(np.int64)])
    return np.array(columns)


def _passing(sources: Sources, aliases: tuple[str, ...], rows: I64, predicates: Sequence[Expr]) -> float:
    """Return the share of (k, m) combinations that pass all predicates, at least half an observation."""
    n: int = rows.shape[1]
    resolve = sources.resolver(aliases, np.ascontiguousarray(rows))
    good = np.ones(n, np.bool_)
    for predicate in predicates:
        good &= holds(predicate, resolve, n)
    passed = float(np.count_nonzero(good))
    return max(passed, 0.5) / n
