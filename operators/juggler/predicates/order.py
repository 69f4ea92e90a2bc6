"""The order of the predicate types (Juggler 3.4.2): what each would cost a visit.

The thesis has one order for all tuples, the most selective type first. Here every visit has its own: a new tuple that
is refused by its window predicates wherever it comes to may be followed by one of another input that they always let
pass. What leaves a visit does not depend on its order, so visits can be decided one by one.

Costs are nanoseconds of kinds of work, so that a look into a structure, an evaluation and a tuple kept can be weighed
against each other: `python -m ops.bench.papers.juggler_costs` measures them from whole runs, and those below are what
    it said on an AMD EPYC, rounded. What always comes together it cannot tell apart: a candidate, its evaluation and
    its being kept took 38 ns, shared out here; a piece took 170 to 340 us, with its part of what a slice costs anyway.
    Only their proportions matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from operators.juggler.predicates.lists import ATTRIBUTE

ORDERS = ("AJW", "AWJ", "JAW", "JWA", "WAJ", "WJA")
ADAPTIVE = "adaptive"

PIECE_NS = 150_000.0
"""To look into a structure, or a run of it, at all."""
LOOKED_NS = 7.0
"""An entry of a structure within the bounds, taken or not."""
PAIRED_NS = 5.0
"""A candidate, until its queries are known."""
STAGE_NS = 20.0
"""A candidate that comes to a type."""
EVALUATED_NS = 18.0
"""A predicate evaluated on it."""
KEPT_NS = 5.0
"""A candidate that is left of a type, and handed on."""

CLEARLY_LESS = 0.95
"""Another order must be expected to cost less than this share of the one in force."""
FAR_LESS = 0.7
"""From here on no second sample need say so."""
FOLDED = 0.5
"""The weight of the newest sample in what is expected."""


@dataclass(slots=True)
class Work:
    """What a visit has done, by kind.

    Attributes:
        pieces: of structures looked into; looked: entries within the bounds; paired: candidates.
        evaluated: tuples that came to a type, and kept: that were left of one.
    """

    pieces: int = 0
    looked: int = 0
    paired: int = 0
    evaluated: int = 0
    kept: int = 0

    def add(self, other: Work) -> None:
        """And what another one has done."""
        for kind in self.__slots__:
            setattr(self, kind, getattr(self, kind) + getattr(other, kind))

    def ns(self) -> float:
        """About how long it took."""
        found = self.pieces * PIECE_NS + self.looked * LOOKED_NS + self.paired * PAIRED_NS
        return found + self.evaluated * (STAGE_NS + EVALUATED_NS) + self.kept * KEPT_NS


@dataclass(frozen=True, slots=True)
class Found:
    """What the structure of the join or of the window predicates gives a tuple, and what types leave of that.

    Attributes:
        pieces: looked into, per tuple; looked: entries within the bounds, and candidates: those given, per tuple.
        left: shares of the candidates for which some query is left: "" before any type, else after these types, in
            the order of their letters.
    """

    pieces: float
    looked: float
    candidates: float
    left: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Observed:
    """What a sample of the tuples that come to a visit has shown.

    Attributes:
        found: by JOIN and WINDOW, what the type's structure gives.
        evaluated: by type, predicates evaluated per tuple that comes to it; of attributes, per row not yet known.
        unknown: the share of candidates whose attributes were not evaluated.
    """

    found: Mapping[str, Found]
    evaluated: Mapping[str, float]
    unknown: float = 0.0


def expected_cost(order: str, seen: Observed) -> float:
    """Nanoseconds per tuple that comes to the visit."""
    first = next(kind for kind in order if kind != ATTRIBUTE)
    found = seen.found[first]
    cost = found.pieces * PIECE_NS + found.looked * LOOKED_NS + found.candidates * PAIRED_NS
    done = ""
    for kind in order:
        coming = found.candidates * found.left[done]
        after = "".join(sorted(done + kind))
        if kind == ATTRIBUTE:
            # Rows are evaluated once, at most; what is known before pairs are made is looked at there.
            fresh = min(1.0, coming * seen.unknown)
            cost += fresh * seen.evaluated[kind] * EVALUATED_NS
        else:
            cost += coming * seen.evaluated[kind] * EVALUATED_NS
        if done or kind != ATTRIBUTE:
            cost += coming * STAGE_NS + found.candidates * found.left[after] * KEPT_NS
        done = after
    return cost


def expected_costs(seen: Observed) -> dict[str, float]:
    """Of every order."""
    return {order: expected_cost(order, seen) for order in ORDERS}


def folded(known: Mapping[str, float], newest: Mapping[str, float]) -> dict[str, float]:
    """Expected costs with what a sample has added."""
    return {order: (1 - FOLDED) * known.get(order, cost) + FOLDED * cost for order, cost in newest.items()}


def best_order(current: str, costs: Mapping[str, float]) -> str:
    """The order to go on with: another one where it costs clearly less."""
    best = min(ORDERS, key=costs.__getitem__)
    return best if costs[best] < CLEARLY_LESS * costs[current] else current

