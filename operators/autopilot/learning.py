"""Learns how long kinds of work take in one query on this machine, beside what the unit costs say: `Learning`.

The unit costs of `operators.migration.sizes` were measured on one machine, with tuples of one size and caches of their
own. Each look compares what they predict with what the engine took by its clock. Least squares find the factors that
explain it best, with the past forgotten slowly, and drawn towards 1 while little has been seen.
"""

from __future__ import annotations

import numpy as np

from operators.engine.engine import Work
from operators.kernels.hashing import F64
from operators.migration.sizes import CALL_S, ENTER_S, MAKE_S, PROBE_S, SCAN_S, SLICE_S

KINDS = ("calls", "tuples", "matches")
"""Calls of the joins, whatever they are given; source tuples; comparisons, and what they make."""

KEPT = 0.98
"""The weight of each look after the next one."""

PRIOR = 0.5
"""The unit costs weigh as much as so many looks."""

BOUND = 8.0
"""A factor is at most this, and at least its inverse."""


class Learning:
    """What one engine has been seen to take.

    Args:
        joins: of its plan.
    """

    def __init__(self, joins: int) -> None:
        self._call_s = SLICE_S + joins * CALL_S
        self._before: Work | None = None
        self._squares = np.zeros((len(KINDS), len(KINDS)))
        self._sums = np.zeros(len(KINDS))

    def predicted(self, before: Work, now: Work) -> F64:
        """Return (3,) what the unit costs say of the work between two looks, by kind, in seconds."""
        calls = (now.slices - before.slices) * self._call_s
        tuples = (now.tuples - before.tuples) * (ENTER_S + PROBE_S)
        matches = (now.comparisons - before.comparisons) * SCAN_S + (now.made - before.made) * MAKE_S
        return np.array([calls, tuples, matches])

    def note(self, now: Work) -> None:
        """Take the counters of the next look. Nothing is learned from an engine without a clock."""
        before, self._before = self._before, now
        if before is None or now.busy_s <= before.busy_s:
            return
        said = self.predicted(before, now)
        every = max(float(said.sum()), 1e-12)
        share, took = said / every, (now.busy_s - before.busy_s) / every
        self._squares = KEPT * self._squares + np.outer(share, share)
        self._sums = KEPT * self._sums + share * took

    @property
    def factors(self) -> F64:
        """(3,) how many times as long as the unit costs say each kind of work takes. Cost: 20 microseconds."""
        prior = PRIOR * np.eye(len(KINDS))
        found = np.linalg.solve(self._squares + prior, self._sums + PRIOR)
        return np.asarray(np.clip(found, 1 / BOUND, BOUND))

    def units(self) -> tuple[float, float, float, float]:
        """Return the seconds to enter a tuple, to probe with it, to make a pair, and to scan a pair."""
        _, tuples, matches = self.factors.tolist()
        return ENTER_S * tuples, PROBE_S * tuples, MAKE_S * matches, SCAN_S * matches

    def calls_s(self, slices: int) -> float:
        """Return what the calls of so many slices take, in seconds."""
        return float(slices * self._call_s * self.factors[0])
