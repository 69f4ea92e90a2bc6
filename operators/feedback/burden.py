"""What a tuple costs in a tree of joins, from the joins' counters: what keeping it back saves."""

from __future__ import annotations

from operators.feedback.trials import COMPARED, ENTERED, FADING, KEPT, MADE, RETURNED
from operators.join import BinaryJoin
from operators.match import MatchCounters

LOOKED_AT = 20.0
"""Looking at an entry of a tree's state to make a filter anew: its columns are gathered from several stores."""

LOOPED = 5.0
"""A comparison of a nested loop, with a term or two evaluated."""


def work_of(counters: MatchCounters) -> float:
    """What a join has cost so far."""
    return counters.input_tuples * 2 * ENTERED + _partners(counters)


def _partners(counters: MatchCounters) -> float:
    return counters.comparisons * COMPARED + counters.results * MADE


class TreeBurden:
    """Of the tuples of one sub-plan, averaged over the past, which fades.

    Args:
        below: the joins that they go through before they come to the consumer.
        consumer: a nested loop compares what is made of them with all that is observed; a hash join spends next to
            nothing on what has no partner.

    Attributes:
        each: work per tuple: comparisons that it takes part in, and results that are made of it.
        suppressed: results that were not made of tuples kept back.
    """

    def __init__(self, below: list[BinaryJoin], consumer: BinaryJoin) -> None:
        self._below = below
        self._consumer = None if consumer.match.condition.keys else consumer
        self.each = 0.0
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
            self.suppressed += kept_back * made / count

    def _counted(self) -> tuple[float, float]:
        counters = [join.counters for join in self._below]
        work = sum(map(_partners, counters))
        if self._consumer is not None:
            work += self._consumer.counters.comparisons * LOOPED
        return work, float(sum(one.results for one in counters))

    @property
    def saved(self) -> float:
        """What it saves to keep a tuple back for good."""
        return self.each + 2 * ENTERED - KEPT

    @property
    def returned(self) -> float:
        """What it costs to let a tuple in that was kept back."""
        return RETURNED + 2 * ENTERED + self.each
