"""The order of the predicate types (Juggler 3.4.2), chosen by what they let through and what they cost.

The thesis reorders after a fixed number of tuples. Here every slice's sample is folded into running shares, and the
order changes when another one is expected to do clearly less: a pure function of a frozen `Observed`.

A share is that of random pairs of a new tuple and a living row, or of new tuples, of which some query is left after
the type alone. It does not depend on the order in force, which sees only what the types before it let through.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from operators.juggler.lists import ATTRIBUTE, JOIN, WINDOW

ORDERS = ("AJW", "AWJ", "JAW", "JWA", "WAJ", "WJA")
ADAPTIVE = "adaptive"

CLEARLY_LESS = 0.8
"""Another order must be expected to cost less than this share of the one in force."""
FOLDED = 0.3
"""The weight of the newest slice in what is observed."""
FOUND_COST = 2.0
"""What finding a candidate through a structure costs, in units of evaluating one predicate on it."""
SCANNED_COST = 0.5
"""What a living row costs that a structure must look at, having no bound for it."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What is known of the predicate types.

    Attributes:
        attribute, join, window: the shares that are left after each alone.
        attribute_cost, join_cost, window_cost: predicates evaluated per tuple or pair.
        join_found, window_found: the shares of living rows that the structures give as candidates.
        living: rows that a new tuple could meet.
        samples: slices that were folded in; 0 when nothing is known.
    """

    attribute: float = 1.0
    join: float = 1.0
    window: float = 1.0
    attribute_cost: float = 0.0
    join_cost: float = 0.0
    window_cost: float = 0.0
    join_found: float = 1.0
    window_found: float = 1.0
    living: float = 0.0
    samples: int = 0

    def folded(self, newest: Observed) -> Observed:
        """With what a slice has shown."""
        if not self.samples:
            return replace(newest, samples=1)
        names = [name for name in self.__slots__ if name != "samples"]
        mixed = {n: (1 - FOLDED) * getattr(self, n) + FOLDED * getattr(newest, n) for n in names}
        return replace(self, **mixed, samples=self.samples + 1)


def expected_cost(order: str, seen: Observed) -> float:
    """Predicates evaluated per new tuple, roughly, if the types are independent."""
    first = next(kind for kind in order if kind != ATTRIBUTE)
    tuples, rows, cost = 1.0, seen.living, 0.0
    pairs_left = seen.join_found if first == JOIN else seen.window_found
    candidates = 0.0
    for place, kind in enumerate(order):
        if kind == ATTRIBUTE and place == 0:
            # What satisfies nobody is not even kept.
            cost += seen.attribute_cost
            tuples, rows = tuples * seen.attribute, rows * seen.attribute
            continue
        if kind == first:
            candidates = tuples * rows * pairs_left
            cost += candidates * FOUND_COST
        if kind == ATTRIBUTE:
            # Evaluated once per row; after that a look at what is remembered.
            cost += min(candidates, 1.0) * seen.attribute_cost + candidates
            candidates *= seen.attribute * seen.attribute
        elif kind == JOIN:
            cost += candidates * seen.join_cost
            candidates *= min(1.0, seen.join / max(pairs_left, 1e-9)) if first == JOIN else seen.join
        else:
            cost += candidates * seen.window_cost
            candidates *= min(1.0, seen.window / max(pairs_left, 1e-9)) if first == WINDOW else seen.window
    return cost


def best_order(current: str, seen: Observed) -> str:
    """The order to go on with."""
    if not seen.samples:
        return current
    costs = {order: expected_cost(order, seen) for order in ORDERS}
    best = min(ORDERS, key=costs.__getitem__)
    return best if costs[best] < CLEARLY_LESS * costs[current] else current
