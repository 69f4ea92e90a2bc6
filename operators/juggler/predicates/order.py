"""Estimates what each order of the predicate types would cost a visit (Juggler 3.4.2).

`operators.juggler.predicates.adaptive` chooses orders by these estimates. The thesis has one order for all tuples, the
most selective type first. Here every visit has its own order: window predicates may refuse new tuples of one input at
every visit, and always pass those of another input. The output of a visit does not depend on its order, so the choice
for each visit is independent.

Costs are nanoseconds per kind of work, so that examining a structure, evaluating a predicate and passing on a tuple can
be compared. `python -m ops.bench.papers.juggler.costs` measures them from whole runs; those below are its rounded
results on an AMD EPYC. It cannot separate work that always occurs together: a candidate, its evaluation and passing it
on took 38 ns, divided up here; a piece took 170 to 340 us, including its part of a slice's fixed cost. Only the
proportions matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from operators.juggler.predicates.lists import ATTRIBUTE

ORDERS = ("AJW", "AWJ", "JAW", "JWA", "WAJ", "WJA")
ADAPTIVE = "adaptive"

PIECE_NS = 150_000.0
"""Opening a structure, or a run of it."""
LOOKED_NS = 7.0
"""Examining an entry within the bounds, whether or not it is a candidate."""
PAIRED_NS = 5.0
"""Forming a candidate and determining its queries."""
STAGE_NS = 20.0
"""A candidate that arrives at a type."""
EVALUATED_NS = 18.0
"""Evaluating a predicate on it."""
KEPT_NS = 5.0
"""Passing on a candidate that a type has not refused."""

CLEARLY_LESS = 0.95
"""Another order must have an expected cost below this share of that of the order in force."""
FAR_LESS = 0.7
"""Below this share, no second sample need confirm it."""
SMOOTHING = 0.5
"""The weight of the newest sample in the expected costs."""


@dataclass(slots=True)
class VisitWork:
    """Counts the work of a visit by kind.

    Attributes:
        pieces: pieces of structures opened.
        looked: entries within the bounds.
        paired: candidates.
        evaluated: tuples that arrived at a type.
        kept: tuples that passed a type.
    """

    pieces: int = 0
    looked: int = 0
    paired: int = 0
    evaluated: int = 0
    kept: int = 0

    def add(self, other: VisitWork) -> None:
        """Add the work of another visit."""
        for kind in self.__slots__:
            setattr(self, kind, getattr(self, kind) + getattr(other, kind))

    def ns(self) -> float:
        """The estimated nanoseconds of this work."""
        found = self.pieces * PIECE_NS + self.looked * LOOKED_NS + self.paired * PAIRED_NS
        return found + self.evaluated * (STAGE_NS + EVALUATED_NS) + self.kept * KEPT_NS


@dataclass(frozen=True, slots=True)
class StructureSample:
    """What a tuple finds in the structure of the join or of the window predicates, and which share types pass.

    Attributes:
        pieces: pieces opened per tuple.
        looked: entries within the bounds per tuple.
        candidates: candidates found per tuple.
        left: the share of candidates that some query can use, by the types evaluated: "" before any type, else the
            letters of the types in alphabetical order.
    """

    pieces: float
    looked: float
    candidates: float
    left: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class VisitSample:
    """A sample of the tuples that arrive at a visit.

    Attributes:
        found: by JOIN and WINDOW, what tuples find in the type's structure.
        evaluated: by type, predicates evaluated per tuple that arrives at it; of attributes, per row not yet evaluated.
        unknown: the share of candidates whose attributes were not evaluated.
    """

    found: Mapping[str, StructureSample]
    evaluated: Mapping[str, float]
    unknown: float = 0.0


def expected_cost(order: str, seen: VisitSample) -> float:
    """The expected nanoseconds of an order per tuple that arrives at the visit."""
    first = next(kind for kind in order if kind != ATTRIBUTE)
    found = seen.found[first]
    cost = found.pieces * PIECE_NS + found.looked * LOOKED_NS + found.candidates * PAIRED_NS
    done = ""
    for kind in order:
        coming = found.candidates * found.left[done]
        after = "".join(sorted(done + kind))
        if kind == ATTRIBUTE:
            # Rows are evaluated at most once. Attributes known before are applied where pairs are formed.
            unevaluated = min(1.0, coming * seen.unknown)
            cost += unevaluated * seen.evaluated[kind] * EVALUATED_NS
        else:
            cost += coming * seen.evaluated[kind] * EVALUATED_NS
        if done or kind != ATTRIBUTE:
            cost += coming * STAGE_NS + found.candidates * found.left[after] * KEPT_NS
        done = after
    return cost


def expected_costs(seen: VisitSample) -> dict[str, float]:
    """The expected cost of every order."""
    return {order: expected_cost(order, seen) for order in ORDERS}


def smoothed(known: Mapping[str, float], newest: Mapping[str, float]) -> dict[str, float]:
    """Expected costs, updated by those of the newest sample."""
    return {order: (1 - SMOOTHING) * known.get(order, cost) + SMOOTHING * cost for order, cost in newest.items()}


def best_order(current: str, costs: Mapping[str, float]) -> str:
    """The order to continue with: the cheapest one if it costs clearly less, else the current one."""
    best = min(ORDERS, key=costs.__getitem__)
    return best if costs[best] < CLEARLY_LESS * costs[current] else current

