"""The cost of a tuple in a tree of joins, which is what a guard saves by keeping the tuple back.

`operators.feedback.tree_guard` asks for it. Each average counts only tuples that no guard has kept back. It therefore
leaves out what other guards already save, and estimates what one guard more, or one less, would change.
"""

from __future__ import annotations

from typing import NamedTuple

from operators.feedback.payoff.guard import Prices
from operators.feedback.payoff.tuple_cost import COMPARE_NS, ENTER_NS, RESULT_NS, DecayingSums
from operators.join.binary_join import BinaryJoin
from operators.state.match import LEFT

NESTED_COMPARE_NS = 7.0
"""One comparison in a nested loop that evaluates a term or two."""

SIGNATURE_NS = 110.0
"""Computing and looking up the signature of a tuple of a tree, whose columns are gathered from several stores."""

ENTRY_NS = 130.0
"""Computing and looking up the signature of an entry of a state."""

NESTED_PRICES = Prices(SIGNATURE_NS, ENTRY_NS, slice=60_000.0, late_slice=150_000.0)
"""The prices of a guard's own work, where the consumer is a nested loop. A slice in which any tuple enters late has a
price, since it takes another pass over the joins."""

HASHED_PRICES = Prices(SIGNATURE_NS, ENTRY_NS, slice=60_000.0, late_slice=400_000.0)
"""The same for hash joins, whose later probes look in two tables."""

BLACKLIST_NS = 450.0
"""Putting a tuple and its signature in a blacklist."""

RETURN_NS = 700.0
"""Letting a tuple enter late, without the cost of entering it into its state."""

class JoinInput(NamedTuple):
    """One side of a join."""

    join: BinaryJoin
    side: int

    @property
    def arrived(self) -> int:
        """The number of tuples that have entered this side in time."""
        counters = self.join.counters
        return counters.left_tuples if self.side == LEFT else counters.input_tuples - counters.left_tuples


def work_of(join: BinaryJoin) -> float:
    """What a join has cost so far."""
    return join.counters.input_tuples * 2 * ENTER_NS + _partners(join)


def _partners(join: BinaryJoin) -> float:
    return _compared(join) + join.counters.results * RESULT_NS


def _compared(join: BinaryJoin) -> float:
    return join.counters.comparisons * (COMPARE_NS if join.match.condition.keys else NESTED_COMPARE_NS)


class TreeTupleCost:
    """The average cost of a tuple of one sub-plan; older tuples count less and less.

    Args:
        entry: Where the tuples enter their first join.
        below: The joins that the tuples pass before they reach the consumer.
        consumer: The consumer's join. A nested loop compares the results made of the tuples with everything that is
            observed; a hash join spends next to nothing on results without a partner.

    Attributes:
        each: Work per tuple: the comparisons that it takes part in and the results that it is part of.
        known: True once some tuple has entered, so that `each` is known.
        suppressed: The number of results that were not produced because tuples were kept back.
    """

    def __init__(self, entry: JoinInput, below: list[BinaryJoin], consumer: BinaryJoin) -> None:
        self._entry = entry
        self._below = below
        self._consumer = None if consumer.match.condition.keys else consumer
        self.each = 0.0
        self.known = False
        self.suppressed = 0.0
        self._sums = DecayingSums(*self._totals(0, 0))

    def update(self, kept_back: int, returned: int) -> None:
        """Add what the joins have counted since the last call.

        Args:
            kept_back: The tuples kept back so far.
            returned: Those of them that returned.
        """
        work, made, count, _ = self._sums.update(*self._totals(kept_back, returned))
        if count > 0:
            self.each = work / count
            self.known = True
            newly_held = self._sums.latest[-1]
            self.suppressed += newly_held * made / count

    def _totals(self, kept_back: int, returned: int) -> tuple[float, float, float, float]:
        """Return the work of the tuples so far, the results made of them, their number, and how many are held back."""
        work = sum(map(_partners, self._below))
        if self._consumer is not None:
            work += _compared(self._consumer)
        made = sum(join.counters.results for join in self._below)
        return work, made, self._entry.arrived + returned, kept_back - returned

    @property
    def saved(self) -> float:
        """What keeping a tuple back for good saves; 0.0 while the cost of a tuple is unknown."""
        return self.each + 2 * ENTER_NS - BLACKLIST_NS if self.known else 0.0

    @property
    def returned(self) -> float:
        """The cost of letting in a tuple that was kept back."""
        return RETURN_NS + 2 * ENTER_NS + self.each
