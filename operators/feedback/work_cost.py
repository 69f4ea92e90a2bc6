"""Prices of an executor's work, and averages of that work per tuple.
`operators.feedback.path_cost` and `operators.feedback.tree_cost` estimate with them what a tuple costs. The unit is
about a nanosecond, as measured on one machine. Only the proportions matter.
"""

from __future__ import annotations

ENTER_NS = 30.0
"""Entering a tuple into a state, or probing a state with it."""

RESULT_NS = 100.0
"""Producing a partial result and processing it further."""

COMPARE_NS = 1.0
"""One comparison."""

DECAY = 0.8
"""The weight of all earlier measurements against the latest one, where the costs of tuples are averaged."""


class DecayingSums:
    """Sums of some amounts, in which older amounts count less and less.
    Args:
        totals: The amounts so far, which do not count.

    Attributes:
        latest: What the last update has added.
    """

    def __init__(self, *totals: float) -> None:
        self._totals = totals
        self._sums = self.latest = (0.0,) * len(totals)

    def update(self, *totals: float) -> tuple[float, ...]:
        """Add what the totals have grown by since the last call, and return the sums."""
        self.latest = tuple(now - then for now, then in zip(totals, self._totals, strict=True))
        self._totals = totals
        self._sums = tuple(DECAY * past + new for past, new in zip(self._sums, self.latest, strict=True))
        return self._sums

    def restart(self) -> None:
        """Keep the sums; the totals begin at 0 again."""
        self._totals = (0.0,) * len(self._totals)
