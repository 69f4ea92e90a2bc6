"""When the order of the predicate types is looked at again, and when it changes (Juggler 3.4.2, 6.1.1).

Sampling costs; what the operator does anyway shows for nothing how much each type lets through, in the order in force.
So a sample is taken when that has shifted since the last one, and now and then. An order must come out best of two
samples in a row, by clearly less (`operators.juggler.order`), before it is taken.
"""

from __future__ import annotations

from collections.abc import Callable

from operators.juggler.order import Observed, best_order

NOW_AND_THEN_TUPLES = 8_192
"""New tuples after which a sample is taken without a reason."""
FIRST_SAMPLES = 3
"""So many slices are sampled at the beginning."""
SHIFTED = 1.5
"""What is let through has shifted when it is so many times as much, or as little."""
ENOUGH_TUPLES = 64
"""Fewer say nothing: more slices are waited for."""

FOUND = "found"
"""What tuples find as candidates, beside what types let through."""


class AdaptiveOrder:
    """The order in force and what is known for it.

    Attributes:
        order: in force; changed: how often it has changed.
        observed: what samples have shown.
    """

    def __init__(self, order: str) -> None:
        self.order = order
        self.changed = 0
        self.observed = Observed()
        self._proposed: str | None = None
        self._tuples = 0
        self._flow: dict[str, list[int]] = {}
        self._shares: dict[str, float] = {}

    def passed(self, kind: str, before: int, after: int) -> None:
        """So many tuples came to a type, so many were left."""
        flow = self._flow.setdefault(kind, [0, 0])
        flow[0] += before
        flow[1] += after

    def step(self, tuples: int, sample: Callable[[], Observed | None]) -> None:
        """End a slice of so many new tuples; take a sample where there is reason to."""
        enough = {kind: flow for kind, flow in self._flow.items() if flow[0] >= ENOUGH_TUPLES}
        self._flow = {kind: flow for kind, flow in self._flow.items() if kind not in enough}
        shares = {kind: (after + 1) / (before + 1) for kind, (before, after) in enough.items()}
        self._tuples += tuples
        due = self.observed.samples < FIRST_SAMPLES or self._tuples >= NOW_AND_THEN_TUPLES
        if not (due or self._proposed or self._shifted(shares)):
            self._shares = shares | self._shares
            return
        seen = sample()
        if seen is None:
            return
        # What was seen before a shift is of no use after it.
        known = Observed() if self._shifted(shares) else self.observed
        self.observed = known.folded(seen)
        self._tuples, self._shares = 0, self._shares | shares
        best = best_order(self.order, self.observed)
        if best == self.order:
            self._proposed = None
        elif best == self._proposed:
            self.order, self._proposed = best, None
            self.changed += 1
            self._shares, self._flow = {}, {}
        else:
            self._proposed = best

    def _shifted(self, shares: dict[str, float]) -> bool:
        """Whether a share differs from that at the last sample."""
        both = shares.keys() & self._shares.keys()
        return any(not 1 / SHIFTED < shares[kind] / self._shares[kind] < SHIFTED for kind in both)
