"""What the autopilot knows of the data: rates and selectivities with their uncertainty, as frozen values.

`measure` takes them from a running engine. Every pair of aliases that a predicate relates, written or implied, is
measured. A larger set is measured when a plan that is considered would join it: predicates may be correlated, so that
the share of A B C is not the product of those of its pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

from operators.autopilot.join_sample import JoinSample, Share
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
    """

    query: Query
    arrivals: Mapping[str, Arrivals]
    pairs: Mapping[Aliases, Share]
    keyed: frozenset[Aliases]
    joint: Mapping[Aliases, Share] = field(default_factory=dict)
    wide: tuple[Aliases, ...] = ()
    classes: tuple[Aliases, ...] = ()

    def class_share(self, number: int) -> tuple[float, float]:
        """Return the logarithms of the share that one equality of a class keeps, and of its key: means over pairs."""
        found = [share for pair, share in self.pairs.items() if pair <= self.classes[number]]
        n = max(len(found), 1)
        return sum(share.log for share in found) / n, sum(share.log_key for share in found) / n

    def varied(self) -> Iterable[Evidence]:
        """Yield the evidence with each measured number increased by its standard error, one at a time."""
        for alias, one in self.arrivals.items():
            if one.variance > 0:
                factor = math.exp(math.sqrt(one.variance))
                other = replace(one, rate=one.rate * factor, living=one.living * factor)
                yield replace(self, arrivals={**self.arrivals, alias: other})
        for aliases, share in self.pairs.items():
            yield replace(self, pairs={**self.pairs, aliases: _increased(share)})
        for aliases, share in self.joint.items():
            yield replace(self, joint={**self.joint, aliases: _increased(share)})


def _increased(share: Share) -> Share:
    error = math.sqrt(share.variance)
    return replace(share, log=share.log + error, log_key=share.log_key + error)


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
    classes = dict.fromkeys(equality_classes(query.predicates).values())
    wide = tuple(used for p in conjuncts(query) if len(used := aliases_of(p)) > 2)
    return Evidence(
        query, arrivals, pairs, frozenset(keyed), {}, wide, tuple(frozenset(one.operands) for one in classes)
    )


def with_joint(evidence: Evidence, sampled: JoinSample, plans: Iterable[Plan]) -> Evidence:
    """Add the measured shares of the sub-plans of three or more aliases, where the sample shows enough of them."""
    joint = dict(evidence.joint)
    for plan in plans:
        for node in postorder(plan):
            aliases = frozenset(node.aliases)
            if len(aliases) < 3 or node is plan or aliases in joint:
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
        living *= sampled.rows(alias) / max(sampled.examined(alias), 1)
    if source.is_table:
        return Arrivals(0.0, living, 0.0)
    since = sampled.cut - recent_ms
    arrived = store.hi - store.first_at(since)
    selected = arrived * (sampled.rows(alias) / max(sampled.examined(alias), 1) if sources.shared(alias) else 1.0)
    rate = max(selected, 0.5) * 1000.0 / recent_ms
    if source.window.kind == "RANGE":
        living = rate * source.window.size / 1000.0
    return Arrivals(rate, living, 1.0 / max(selected, 0.5))
