"""Joins samples of the living tuples, to measure selectivities that no running operator shows: `JoinSample`.

Rows of each alias are drawn evenly from its window and joined with each other as a plan would join them. Of the
combinations only those count whose latest component is recent. They show what the query makes now; combinations of old
tuples show what it made before the data changed. When the data have just changed, recent tuples joined with older ones
show a mixture, so only recent tuples are joined (`fresh`). Their joins show what the query will make once windows hold
no others, but for predicates that relate tuples far apart in time (`comes_apart`).

Estimating join sizes by joining samples: Haas, Naughton, Seshadri,
Swami (1996); choosing plans by it: Wu, Naughton, Singh (SIGMOD 2016).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from operators.data.evaluate import holds
from operators.data.keys import key_hashes
from operators.engine.selectivity import sample
from operators.kernels.hashing import mix_words
from operators.kernels.sampled import matching_pairs
from operators.plan.plan import Leaf, Plan
from operators.plan.predicates import JoinCondition, conjuncts, join_condition
from operators.state.sources import Sources
from schemas.columns import I64, Mask
from schemas.query import Expr

MOST_MATCHES = 4_096
"""Matches of a join that are kept; of more, as many are drawn evenly."""

DRAWN_COMBINATIONS = 4_096
"""Combinations on which predicates without a key are evaluated."""

FAR_APART = math.log(1.5)
"""Recent tuples have fewer partners among each other, by this factor at least, if partners come far apart."""

ERRORS = 3.0
"""They have so, too, by so many standard errors."""

FEW_RECENT = 4.0
"""If only recent tuples are joined, the variance is so much larger than it seems: of few tuples, those with the most
partners are often missing, and their matches with them."""

UNSEEN = 2.0
"""The variance of the logarithm of a share of which no match was seen."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The join of samples.

    Attributes:
        aliases: of the components.
        rows: (k, m) row ids.
        weight: combinations for which each of the m stands.
        key_matches: combinations that agree in the keys of the last join, before its other predicates.
    """

    aliases: tuple[str, ...]
    rows: I64
    weight: float
    key_matches: float


@dataclass(frozen=True, slots=True)
class Share:
    """The share of combinations that satisfy the predicates among some aliases.

    Attributes:
        log: its natural logarithm.
        log_key: that of the share that agrees in the keys of the last join.
        variance: the expected squared error of `log`.
        matches: combinations seen.
    """

    log: float
    log_key: float
    variance: float
    matches: int


class JoinSample:
    """Samples of all windows of a query at one time.

    Args:
        cut: everything before it has been processed.
        recent_ms: tuples with a ts from `cut - recent_ms` on are recent.
        count: rows per alias.
        fresh: join recent rows only, but of the aliases in `apart`.
    """

    def __init__(
        self,
        sources: Sources,
        cut: int,
        recent_ms: int,
        count: int,
        *,
        fresh: bool = False,
        apart: frozenset[str] = frozenset(),
    ) -> None:
        self.cut = cut
        self._fresh = fresh
        self._sources = sources
        self._predicates = conjuncts(sources.query)
        self._rows: dict[str, I64] = {}
        self._selected: dict[str, float] = {}
        self._recent: dict[str, Mask] = {}
        self._kept: dict[Plan, Sampled] = {}
        for source in sources.query.sources:
            rows = sample(sources, source.alias, cut, count)
            ts = np.asarray(sources.store(source.alias).gather("_ts", rows).values)
            living = sources.living(source.alias, cut)
            self._selected[source.alias] = len(rows) / max(-(-living // max(-(-living // count), 1)), 1)
            recent: Mask = np.zeros(len(rows), np.bool_)
            if not source.is_static:
                recent |= ts >= cut - recent_ms
            if fresh and not source.is_static and source.alias not in apart:
                rows, recent = rows[recent], recent[recent]
            self._rows[source.alias] = rows
            self._recent[source.alias] = recent

    def rows(self, alias: str) -> int:
        """Return how many rows of an alias are in the sample."""
        return len(self._rows[alias])

    def selected(self, alias: str) -> float:
        """Return about which share of an alias's living tuples its selections keep."""
        return self._selected[alias]

    def condition(self, left: tuple[str, ...], right: tuple[str, ...]) -> JoinCondition:
        """Return the predicates between two sides, written or implied."""
        return join_condition(self._predicates, left, right, self._sources.equalities)

    def share(self, plan: Plan) -> Share | None:
        """Measure the share of a sub-plan's combinations; None where the sample has no recent combination."""
        combinations = self._combinations(plan.aliases)
        if combinations <= 0:
            return None
        joined = self._joined(plan)
        recent: Mask = np.logical_or.reduce(self._are_recent(joined))
        matches = int(np.count_nonzero(recent))
        share = max(matches, 0.5) * joined.weight / combinations
        key = share
        if len(recent) and joined.key_matches > len(recent) * joined.weight:
            key = share * joined.key_matches / (len(recent) * joined.weight)
        elif not len(recent) and joined.key_matches:
            key = joined.key_matches / math.prod(self.rows(alias) for alias in plan.aliases)
        variance = _variance(joined.rows[:, recent]) if matches else UNSEEN
        variance *= FEW_RECENT if self._fresh and matches else 1.0
        return Share(math.log(min(share, 1.0)), math.log(min(max(key, share), 1.0)), variance, matches)

    def comes_apart(self, plan: Plan) -> bool:
        """Return whether recent tuples have far fewer partners among each other than among all, or none are known."""
        share, joined = self.share(plan), self._joined(plan)
        every = math.prod(float(np.count_nonzero(self._recent[alias])) for alias in plan.aliases)
        if share is None or every == 0:
            return True
        matches = max(float(np.count_nonzero(self._are_recent(joined).all(axis=0))), 0.5)
        fewer = share.log - math.log(matches * joined.weight / every)
        return fewer > max(FAR_APART, ERRORS * math.sqrt(share.variance + 1 / matches))

    def _combinations(self, aliases: tuple[str, ...]) -> float:
        """Count the combinations of sampled rows whose latest component is recent."""
        every = math.prod(float(len(self._rows[alias])) for alias in aliases)
        old = math.prod(float(np.count_nonzero(~self._recent[alias])) for alias in aliases)
        return every - old

    def _are_recent(self, joined: Sampled) -> Mask:
        """Return (k, m) whether the components are recent."""
        pairs = zip(joined.aliases, joined.rows, strict=True)
        return np.array([self._recent[alias][np.searchsorted(self._rows[alias], rows)] for alias, rows in pairs])

    def _joined(self, plan: Plan) -> Sampled:
        if isinstance(plan, Leaf):
            return Sampled((plan.alias,), self._rows[plan.alias][np.newaxis], 1.0, 0.0)
        if plan not in self._kept:
            self._kept[plan] = self._join(self._joined(plan.left), self._joined(plan.right))
        return self._kept[plan]

    def _join(self, left: Sampled, right: Sampled) -> Sampled:
        condition = self.condition(left.aliases, right.aliases)
        aliases = left.aliases + right.aliases
        pairs, weight, predicates = (
            self._by_key(left, right, condition) if condition.keys else self._drawn(left, right, condition)
        )
        rows = np.concatenate([left.rows[:, pairs[0]], right.rows[:, pairs[1]]])
        weight *= left.weight * right.weight
        key_matches = rows.shape[1] * weight
        if predicates and rows.shape[1]:
            resolve = self._sources.resolver(aliases, np.ascontiguousarray(rows))
            good = np.ones(rows.shape[1], np.bool_)
            for predicate in predicates:
                good &= holds(predicate, resolve, rows.shape[1])
            rows = rows[:, good]
        return Sampled(aliases, rows, weight, key_matches)

    def _by_key(self, left: Sampled, right: Sampled, condition: JoinCondition) -> tuple[I64, float, tuple[Expr, ...]]:
        """Return (2, m) positions of pairs with equal keys, for how many each stands, and what is left to test."""
        found = []
        for side, tuples in enumerate((left, right)):
            n = tuples.rows.shape[1]
            resolve = self._sources.resolver(tuples.aliases, np.ascontiguousarray(tuples.rows))
            hashes, valid = key_hashes([term.operand(side).values(resolve, n) for term in condition.keys])
            at = np.arange(n) if valid is None else np.flatnonzero(valid)
            found.append((at, hashes[at]))
        (left_at, left_keys), (right_at, right_keys) = found
        a, b, pairs = matching_pairs(left_keys, right_keys, MOST_MATCHES)
        return np.array([left_at[a], right_at[b]]), max(pairs / max(len(a), 1), 1.0), condition.residual

    def _drawn(self, left: Sampled, right: Sampled, condition: JoinCondition) -> tuple[I64, float, tuple[Expr, ...]]:
        """The same of pairs without a key: all pairs if they are few, else as many drawn by a counter."""
        n, m = left.rows.shape[1], right.rows.shape[1]
        pairs = n * m
        if pairs <= DRAWN_COMBINATIONS:
            numbers = np.arange(pairs, dtype=np.int64)
        else:
            counter = np.arange(DRAWN_COMBINATIONS, dtype=np.uint64) + np.uint64(len(left.aliases) << 32)
            numbers = (mix_words(counter) % np.uint64(pairs)).astype(np.int64)
        weight = max(pairs / max(len(numbers), 1), 1.0)
        return np.array([numbers // max(m, 1), numbers % max(m, 1)]), weight, condition.predicates


def _variance(rows: I64) -> float:
    """Estimate the variance of the logarithm of a count of (k, m) matches.

    Rows are drawn independently, but matches that have a component in common are not. Each component adds the sum of
    squares of the matches per row, over the square of all matches, less what that is where no two have it in common.
    These are the first terms of the variance of a U-statistic (Hoeffding 1948).
    """
    m = rows.shape[1]
    found: float = 1.0 / m
    for component in rows:
        _, count = np.unique(component, return_counts=True)
        found += float((count.astype(np.float64) ** 2).sum() / m**2) - 1.0 / m
    return found
