"""What the autopilot knows of the data: rates and selectivities with their uncertainty, as frozen values.

`measure` takes them from a running engine. Every pair of aliases that a predicate relates, written or implied, is
measured. A larger set is measured when a plan that is considered would join it: predicates may be correlated, so that
the share of A B C is not the product of those of its pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np

from operators.autopilot.join_sample import JoinSample, Share
from operators.kernels.hashing import mix_words
from operators.migration.sizes import ENTER_S, MAKE_S, PROBE_S, SCAN_S
from operators.plan.equalities import equality_classes
from operators.plan.plan import Join, Leaf, Plan, postorder
from operators.plan.predicates import conjuncts
from operators.state.sources import Sources
from schemas.query import Query, aliases_of

Aliases = frozenset[str]

LEAST_MATCHES = 8
"""Matches from which on the measured share of three or more aliases replaces the product of those of its pairs."""

LEAST_EXPECTED = 16.0
"""It does so with fewer matches, too, where the product leads to expect as many as this."""

MOST_VARIED = 128
"""Up to so many measured numbers are varied one at a time."""

VARIED_ALONE = 32
"""Beyond that, so many with the largest errors are varied one at a time."""

VARIED_TOGETHER = 64
"""So often all others are varied together."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A source of the query, after its selections.

    Attributes:
        rate: tuples per second of event time now.
        living: tuples in its window once it has been filled at this rate.
        variance: the expected squared error of the logarithm of `rate`.
    """

    rate: float
    living: float
    variance: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known at one time.

    Attributes:
        query: the query.
        arrivals: by alias.
        pairs: the shares of pairs of aliases between which there is a predicate, written or implied.
        keyed: the pairs among them that agree in a hash key.
        joint: the shares of larger sets.
        wide: the aliases of each predicate over three or more.
        classes: the aliases of each equality class (`operators.plan.equalities`).
        units: seconds to enter a tuple, to probe with it, to make a pair, and to scan a pair.
        withheld: the power of what feedback could keep from being made that it keeps; 0 without feedback, 1 if nothing
            is made that lacks a partner above.
    """

    query: Query
    arrivals: Mapping[str, Arrivals]
    pairs: Mapping[Aliases, Share]
    keyed: frozenset[Aliases]
    joint: Mapping[Aliases, Share] = field(default_factory=dict)
    wide: tuple[Aliases, ...] = ()
    classes: tuple[Aliases, ...] = ()
    units: tuple[float, float, float, float] = (ENTER_S, PROBE_S, MAKE_S, SCAN_S)
    withheld: float = 0.0

    def name(self, aliases: Aliases) -> str:
        """Return aliases in the order of the query, such as `A B`."""
        return " ".join(self.ordered(aliases))

    def ordered(self, aliases: Aliases) -> tuple[str, ...]:
        """Return aliases in the order of the query."""
        return tuple(source.alias for source in self.query.sources if source.alias in aliases)

    def document(self) -> dict[str, Any]:
        """Return JSON-compatible values, without what follows from the query."""
        return {
            "arrivals": {alias: astuple(one) for alias, one in self.arrivals.items()},
            "pair_shares": [[self.ordered(aliases), astuple(share)] for aliases, share in self.pairs.items()],
            "keyed_sets": [self.ordered(aliases) for aliases in self.keyed],
            "joint_shares": [[self.ordered(aliases), astuple(share)] for aliases, share in self.joint.items()],
            "units": self.units,
            "withheld": self.withheld,
        }

    @staticmethod
    def from_document(document: Mapping[str, Any], query: Query) -> Evidence:
        """Read what `document` has returned.

        Raises:
            KeyError, TypeError, ValueError: it is damaged, or of another query.
        """
        arrivals = {source.alias: Arrivals(*document["arrivals"][source.alias]) for source in query.sources}
        pairs, joint = (
            {frozenset(aliases): Share(*share) for aliases, share in document[shares]}
            for shares in ("pair_shares", "joint_shares")
        )
        keyed = frozenset(frozenset(aliases) for aliases in document["keyed_sets"])
        if not all(aliases <= arrivals.keys() for aliases in (*pairs, *joint, *keyed)):
            raise ValueError("it names sources of another query")
        enter, probe, make, scan = map(float, document["units"])
        units, withheld = (enter, probe, make, scan), float(document["withheld"])
        return Evidence(query, arrivals, pairs, keyed, joint, wide_of(query), classes_of(query), units, withheld)

    def class_share(self, number: int) -> tuple[float, float]:
        """Return the logarithms of the share that one equality of a class keeps, and of its key: means over pairs."""
        found = [share for pair, share in self.pairs.items() if pair <= self.classes[number]]
        n = max(len(found), 1)
        return sum(share.log for share in found) / n, sum(share.log_key for share in found) / n

    def varied(self) -> Iterable[tuple[Evidence, float]]:
        """Yield the evidence with measured numbers changed by their standard errors, each with a weight: the weighted
        squares of what that changes add up to the squared error of anything that is computed from the evidence.

        Numbers change one at a time. Beyond MOST_VARIED of them only those with the largest errors do. All others
        change together, with signs by chance, VARIED_TOGETHER times: the errors are independent, so what two of them
        have in common cancels out on average.
        """
        known: list[tuple[float, str, Aliases | str]] = [
            *((one.variance, "arrivals", alias) for alias, one in self.arrivals.items() if one.variance > 0),
            *((share.variance, "pairs", aliases) for aliases, share in self.pairs.items()),
            *((share.variance, "joint", aliases) for aliases, share in self.joint.items()),
        ]
        alone, together = known, known[:0]
        if len(known) > MOST_VARIED:
            known.sort(key=lambda one: -one[0])
            alone, together = known[:VARIED_ALONE], known[VARIED_ALONE:]
        for one in alone:
            yield self._changed([one], [1.0]), 1.0
        numbers = np.arange(len(together), dtype=np.uint64)
        for draw in range(VARIED_TOGETHER if together else 0):
            odd = mix_words(numbers + np.uint64(draw << 32)) & np.uint64(1)
            yield self._changed(together, (odd * 2.0 - 1.0).tolist()), 1.0 / VARIED_TOGETHER

    def _changed(self, numbers: Sequence[tuple[float, str, Aliases | str]], signs: Sequence[float]) -> Evidence:
        """Return the evidence with some numbers changed by their standard errors, up or down."""
        parts: dict[str, dict[Any, Any]] = {}
        for (variance, part, key), sign in zip(numbers, signs, strict=True):
            changed = parts.setdefault(part, dict(getattr(self, part)))
            error, one = sign * math.sqrt(variance), changed[key]
            if part == "arrivals":
                changed[key] = replace(one, rate=one.rate * math.exp(error), living=one.living * math.exp(error))
            else:
                changed[key] = replace(one, log=one.log + error, log_key=one.log_key + error)
        return replace(
            self,
            arrivals=parts.get("arrivals", self.arrivals),
            pairs=parts.get("pairs", self.pairs),
            joint=parts.get("joint", self.joint),
        )


def measure(sources: Sources, sampled: JoinSample, recent_ms: int) -> Evidence | None:
    """Measure rates and pairs.

    Args:
        recent_ms: over how long rates are taken.

    Returns:
        None while some pair has no recent combination: there is nothing to conclude from.
    """
    query = sources.query
    arrivals = {source.alias: _arrivals(sources, sampled, source.alias, recent_ms) for source in query.sources}
    pairs: dict[Aliases, Share] = {}
    keyed: set[Aliases] = set()
    for a, b in combinations([source.alias for source in query.sources], 2):
        condition = sampled.condition((a,), (b,))
        if not (condition.keys or condition.predicates):
            continue
        share = sampled.share(Join(Leaf(a), Leaf(b)))
        if share is None:
            if sources.tables >= {a, b}:
                continue
            return None
        pairs[frozenset((a, b))] = share
        if condition.keys:
            keyed.add(frozenset((a, b)))
    return Evidence(query, arrivals, pairs, frozenset(keyed), {}, wide_of(query), classes_of(query))


def together(known: Sequence[Evidence]) -> Evidence:
    """Return what is known of several tasks' data as if one task had them.

    A combination satisfies nothing if its components are in different tasks, so shares are smaller. Uncertainties, of
    which the search for a plan makes no use, are those of the first task.
    """
    if len(known) == 1:
        return known[0]
    first = known[0]
    arrivals = {
        alias: replace(one, rate=sum(k.arrivals[alias].rate for k in known), living=_living(known, (alias,)))
        for alias, one in first.arrivals.items()
    }
    pairs = {pair: _combined([k.pairs.get(pair) for k in known], known, pair) for pair in first.pairs}
    joint = {some: _combined([k.joint.get(some) for k in known], known, some) for some in first.joint}
    return replace(
        first,
        arrivals=arrivals,
        pairs={pair: share for pair, share in pairs.items() if share is not None},
        joint={some: share for some, share in joint.items() if share is not None},
    )


def _living(known: Sequence[Evidence], aliases: Iterable[str]) -> float:
    """Return the combinations of living tuples within tasks."""
    return sum(math.prod(max(one.arrivals[alias].living, 1e-9) for alias in aliases) for one in known)


def _combined(shares: Sequence[Share | None], known: Sequence[Evidence], aliases: Aliases) -> Share | None:
    """Return the share among the combinations of all tasks; None where a task has not measured it."""
    weights = [_living([one], aliases) for one in known]
    every = math.prod(_living(known, (alias,)) for alias in aliases)
    log = log_key = 0.0
    for share, weight in zip(shares, weights, strict=True):
        if share is None:
            return None
        log += weight * math.exp(share.log) / every
        log_key += weight * math.exp(share.log_key) / every
    first = shares[0]
    assert first is not None
    return replace(first, log=math.log(max(log, 1e-300)), log_key=math.log(max(log_key, 1e-300)))


def wide_of(query: Query) -> tuple[Aliases, ...]:
    """Return the aliases of each predicate over three or more."""
    return tuple(used for p in conjuncts(query) if len(used := aliases_of(p)) > 2)


def classes_of(query: Query) -> tuple[Aliases, ...]:
    """Return the aliases of each equality class; a set difference has none."""
    if query.subtracted:
        return ()
    classes = dict.fromkeys(equality_classes(query.predicates).values())
    return tuple(frozenset(one.operands) for one in classes)


def with_joint(evidence: Evidence, sampled: JoinSample, plans: Iterable[Plan]) -> Evidence:
    """Add the measured shares of the sub-plans of three or more aliases, where the sample shows enough of them."""
    joint = dict(evidence.joint)
    for plan in plans:
        for node in postorder(plan):
            aliases = frozenset(node.aliases)
            if len(aliases) < 3 or node is plan or aliases in joint or evidence.query.subtracted:
                continue
            share = sampled.share(node)
            if share is None:
                continue
            combinations_seen = math.prod(float(sampled.rows(alias)) for alias in node.aliases)
            expected = combinations_seen * math.exp(sum(s.log for pair, s in evidence.pairs.items() if pair <= aliases))
            if share.matches >= LEAST_MATCHES or expected >= LEAST_EXPECTED:
                joint[aliases] = share
    return replace(evidence, joint=joint)


def _arrivals(sources: Sources, sampled: JoinSample, alias: str, recent_ms: int) -> Arrivals:
    source = sources.query.source(alias)
    store = sources.store(alias)
    living = float(sources.living(alias, sampled.cut))
    if sources.shared(alias) and living:
        living *= sampled.selected(alias)
    if source.is_static:
        return Arrivals(0.0, living, 0.0)
    since = sampled.cut - recent_ms
    arrived = store.hi - store.first_at(since)
    selected = arrived * (sampled.selected(alias) if sources.shared(alias) else 1.0)
    rate = max(selected, 0.5) * 1000.0 / recent_ms
    if source.window.kind == "RANGE":
        living = rate * source.window.size / 1000.0
    return Arrivals(rate, living, 1.0 / max(selected, 0.5))
