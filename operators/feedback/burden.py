"""What a tuple costs in a tree of joins, from the joins' counters: what keeping it back saves.

In nanoseconds, as measured on one machine: what counts is how they compare. Each average is of the tuples that have not
been kept back, with all that other guards spare taken off: it says what one guard more, or less, would change.
"""

from __future__ import annotations

from typing import NamedTuple

from operators.feedback.guard_payoff import COMPARED, ENTERED, FADING, MADE
from operators.join.binary_join import BinaryJoin
from operators.state.match import LEFT

LOOPED = 7.0
"""A comparison of a nested loop, with a term or two evaluated."""

CHECKED = 110.0
"""Computing the signature of a tuple of a tree, whose columns are gathered from several stores, and looking it up."""

LOOKED_AT = 130.0
"""The same for an entry of a state."""

CALLED = 60_000.0
"""What a guard costs per slice, however few its tuples."""

KEPT = 450.0
"""Listing a tuple in a blacklist, and its signature."""

RETURNED = 700.0
"""Letting a tuple in late, beside entering it into its state."""

LATE = 150_000.0
"""What it costs to let anything in late in a slice: a round of joins."""

LATE_HASHED = 400_000.0
"""The same in hash joins, whose later probes look in two tables."""


class Input(NamedTuple):
    """One side of a join."""

    join: BinaryJoin
    side: int

    @property
    def came(self) -> int:
        """Tuples that have entered it in time."""
        counters = self.join.counters
        return counters.left_tuples if self.side == LEFT else counters.input_tuples - counters.left_tuples


def work_of(join: BinaryJoin) -> float:
    """What a join has cost so far."""
    return join.counters.input_tuples * 2 * ENTERED + _partners(join)


def _partners(join: BinaryJoin) -> float:
    return _compared(join) + join.counters.results * MADE


def _compared(join: BinaryJoin) -> float:
    return join.counters.comparisons * (COMPARED if join.match.condition.keys else LOOPED)


class TreeBurden:
    """Of the tuples of one sub-plan, averaged over the past, which fades.

    Args:
        below: the joins that they go through before they come to the consumer.
        consumer: a nested loop compares what is made of them with all that is observed; a hash join spends next to
            nothing on what has no partner.

    Attributes:
        each: work per tuple: comparisons that it takes part in, and results that are made of it.
        known: some have entered, so that `each` is known.
        suppressed: results that were not made of tuples kept back.
    """

    def __init__(self, below: list[BinaryJoin], consumer: BinaryJoin) -> None:
        self._below = below
        self._consumer = None if consumer.match.condition.keys else consumer
        self.each = 0.0
        self.known = False
        self.suppressed = 0.0
        self._before = self._counted()
        self._sums = (0.0, 0.0, 0.0)

    def update(self, entered: int, kept_back: int) -> None:
        """Take in what has been counted, with the tuples entered and kept back, since the last time."""
        now = self._counted()
        latest = (now[0] - self._before[0], now[1] - self._before[1], float(entered))
        self._before = now
        work, made, count = self._sums = tuple(  # type: ignore[assignment]
            FADING * past + one for past, one in zip(self._sums, latest, strict=True)
        )
        if count > 0:
            self.each = work / count
            self.known = True
            self.suppressed += kept_back * made / count

    def _counted(self) -> tuple[float, float]:
        work = sum(map(_partners, self._below))
        if self._consumer is not None:
            work += _compared(self._consumer)
        return work, float(sum(join.counters.results for join in self._below))

    @property
    def saved(self) -> float:
        """What it saves to keep a tuple back for good; nothing as long as none has shown what it costs."""
        return self.each + 2 * ENTERED - KEPT if self.known else 0.0

    @property
    def returned(self) -> float:
        """What it costs to let a tuple in that was kept back."""
        return RETURNED + 2 * ENTERED + self.each
