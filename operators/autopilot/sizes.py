"""The sizes of sub-plans from what is known of the data: `sizes_of`, for any number of sets of aliases at once.

A set's share is the product of the shares of the pairs in it, taken as independent; of an equality class among k of its
aliases k - 1 equalities count, since the others follow. A measured share of a larger set replaces the product, in the
set itself and as a factor in every set that contains it. In a set difference, a set is what its other sources leave of
the first. So the size of a set does not depend on the plan that makes it. A combination is made when its latest
component arrives, so a set's rate is its size times the sum of its sources' rate / living. Where operators give
feedback, less is made of a set, as far as that has been seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from operators.autopilot.evidence import Aliases, Evidence
from operators.kernels.hashing import F64
from operators.migration.sizes import HELD
from schemas.columns import I64, Mask

LEAST_LOG = -700.0
"""Below it the exponential function returns 0."""

PAIRS_AT_ONCE = 256
"""So many pairs are looked for in all sets at once: that bounds the memory."""


@dataclass(frozen=True, slots=True)
class SetSizes:
    """The sizes of n sets, each (n,); `operators.kernels.plans` says what they are."""

    rate: F64
    held: F64
    share: F64
    keyed: F64
    links: I64
    keys: I64


class _Members:
    """Which aliases each of n sets has.

    Attributes:
        has: (n, k) bool, by the k aliases.
    """

    def __init__(self, has: Mask, aliases: tuple[str, ...]) -> None:
        self.has = has
        self._column = {alias: number for number, alias in enumerate(aliases)}

    def columns(self, some: Aliases) -> list[int]:
        """Return the columns of some aliases."""
        return [self._column[alias] for alias in some]

    def contain(self, some: Aliases) -> Mask:
        """Return (n,) whether a set contains all of some aliases."""
        return np.asarray(self.has[:, self.columns(some)].all(axis=1), np.bool_)

    def sum_inside(self, pairs: Sequence[Aliases], values: F64) -> F64:
        """Return (n, m): of (p, m) values of p pairs, the sums over those that a set contains."""
        columns = np.array([self.columns(pair) for pair in pairs], dtype=np.int64).reshape(-1, 2)
        found = np.zeros((len(self.has), values.shape[1]))
        for begin in range(0, len(pairs), PAIRS_AT_ONCE):
            some = slice(begin, begin + PAIRS_AT_ONCE)
            found += (self.has[:, columns[some, 0]] & self.has[:, columns[some, 1]]) @ values[some]
        return found


def sizes_of(evidence: Evidence, members: Mask, aliases: tuple[str, ...]) -> SetSizes:
    """Estimate the sizes of n sets of aliases. O(n * k * predicates).

    Args:
        members: (n, k) bool, which of the k aliases each set has; no set is empty.
        aliases: the k aliases.
    """
    sets = _Members(members, aliases)
    share, keyed, *counts = _products(evidence, sets)
    _correct(evidence, sets, aliases, share, keyed)
    links, keys = (count.astype(np.int64) for count in counts)
    for some in evidence.wide:
        links += sets.contain(some)
    living_of = np.array([max(evidence.arrivals[alias].living, 1e-9) for alias in aliases])
    turnover_of = np.array([evidence.arrivals[alias].rate for alias in aliases]) / np.maximum(living_of, 1.0)
    living = np.exp(np.maximum(members @ np.log(living_of) + np.minimum(share, 0.0), LEAST_LOG))
    if evidence.query.subtracted:
        living = np.where(members[:, 0], _left_over(evidence, sets, aliases, living_of), living)
    if evidence.withheld:
        living *= np.exp(evidence.withheld * demanded(evidence, members, aliases))
    held = np.where(members.sum(axis=1) == 1, living, living * HELD)
    return SetSizes(living * (members @ turnover_of), held, share, keyed, links, keys)


def _left_over(evidence: Evidence, sets: _Members, aliases: tuple[str, ...], living_of: F64) -> F64:
    """Return (n,) how many tuples of the first source are left when the others of a set have been subtracted.

    A tuple's matches are taken as independent, and as many as Poisson's law says.
    """
    first, *others = aliases
    matches = np.zeros(len(sets.has))
    for number, alias in enumerate(others, 1):
        share = evidence.pairs.get(frozenset((first, alias)))
        matches += sets.has[:, number] * living_of[number] * (1.0 if share is None else math.exp(share.log))
    return np.asarray(living_of[0] * np.exp(-matches))


def demanded(evidence: Evidence, members: Mask, aliases: tuple[str, ...]) -> F64:
    """Return (n,) logarithms of the shares of what sets make that feedback would leave, if it kept all else from being
    made: that each of whose tuples has a partner in every other source to which a predicate relates it.

    Partners are taken as independent, and as many in a window as Poisson's law says. Sources make nothing: 0.
    """
    sets, left = _Members(members, aliases), np.zeros(len(members))
    for pair, share in evidence.pairs.items():
        for alias in pair:
            (other,) = pair - {alias}
            partners = math.exp(max(share.log, LEAST_LOG)) * evidence.arrivals[other].living
            some = math.log(max(-math.expm1(-partners), math.exp(LEAST_LOG)))
            left += some * (sets.contain(frozenset((alias,))) & ~sets.contain(frozenset((other,))))
    return np.where(members.sum(axis=1) > 1, left, 0.0)


def _products(evidence: Evidence, sets: _Members) -> tuple[F64, F64, F64, F64]:
    """Return of n sets, each (n,): the logarithms of the products of the pairs' shares and of their keys' shares, how
    many pairs they contain, and how many of these have a key."""
    classes = [(some, *evidence.class_share(number)) for number, some in enumerate(evidence.classes)]
    values = np.ones((len(evidence.pairs), 4))
    for number, (pair, known) in enumerate(evidence.pairs.items()):
        # What its class does not explain.
        values[number, 0] = known.log - sum(of_class for some, of_class, _ in classes if pair <= some)
        values[number, 1] = known.log_key - sum(of_class for some, _, of_class in classes if pair <= some)
    values[:, [1, 3]] *= np.array([pair in evidence.keyed for pair in evidence.pairs], np.float64)[:, np.newaxis]
    share, keyed, links, keys = sets.sum_inside(list(evidence.pairs), values).T
    for some, log, log_key in classes:
        equalities = np.maximum(np.count_nonzero(sets.has[:, sets.columns(some)], axis=1) - 1, 0)
        share = share + equalities * log
        keyed = keyed + equalities * log_key
    return share, keyed, links, keys


def _correct(evidence: Evidence, sets: _Members, aliases: tuple[str, ...], share: F64, keyed: F64) -> None:
    """Put measured shares of larger sets in the place of products, the largest first, each alias once; in place."""
    if not evidence.joint:
        return
    known = sorted(evidence.joint, key=lambda some: (-len(some), sorted(some)))
    product, *_ = _products(evidence, _Members(np.array([[a in some for a in aliases] for some in known]), aliases))
    corrected = np.zeros_like(sets.has)
    for some, plain in zip(known, product, strict=True):
        columns = sets.columns(some)
        chosen = sets.contain(some) & ~corrected[:, columns].any(axis=1)
        correction = evidence.joint[some].log - plain
        share[chosen] += correction
        keyed[chosen] += correction
        corrected[:, columns] |= chosen[:, np.newaxis]
