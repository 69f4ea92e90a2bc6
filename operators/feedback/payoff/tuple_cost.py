"""The cost of a tuple in executors without intermediate results, which is what a guard saves by keeping the tuple back.

`operators.feedback.path_guard` asks for it. It has three parts: entering the tuple into its states, its own probe path
up to the observed input, and the probe paths of other tuples that find it before they reach the observed input. A probe
path that has visited the observed input earlier hardly finds a tuple without a partner there. Each average counts only
tuples that no guard has kept back. `operators.feedback.payoff.tree_cost` estimates the same for trees, with the same
prices of work. The unit is about a nanosecond, as measured on one machine; only the proportions matter.
"""

from __future__ import annotations

from operators.feedback.payoff import guard as payoff
from operators.feedback.payoff.guard import Prices
from operators.state.match import MatchCounters

ENTER_NS = 30.0
"""Entering a tuple into a state, or probing a state with it."""

RESULT_NS = 100.0
"""Producing a partial result and processing it further."""

COMPARE_NS = 1.0
"""One comparison."""

DECAY = 0.8
"""The weight of all earlier measurements against the latest one, where the costs of tuples are averaged."""

PATH_PRICES = Prices(signature=20.0, entry=8.0, slice=25_000.0)
"""The prices of a guard's own work."""

MERGE_NS = 30.0
"""Ordering one result while a stream's state contains tuples that entered late."""

ROUTE_NS = 100.0
"""One routing decision of an eddy."""

BLACKLIST_NS = 150.0
"""Putting a tuple in a blacklist."""

RETURN_NS = 300.0
"""Letting a tuple enter late, without the cost of entering it into its states."""


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


def work_of(counters: MatchCounters, probing: float) -> float:
    """What a half join has cost so far, if each probing tuple costs `probing`."""
    return counters.input_tuples * probing + counters.comparisons * COMPARE_NS + counters.results * RESULT_NS


def trial_cost(observed: int) -> float:
    """Return the cost of a trial that reads `observed` tuples."""
    return PATH_PRICES.cost(2 * payoff.SAMPLED_TUPLES, observed) + payoff.TRIAL_NS


class PathTupleCost:
    """The average cost of a tuple of one input; older tuples count less and less.

    Args:
        states: The number of states that a tuple is entered into.

    Attributes:
        own: The cost of a tuple's own probe path.
        met: The cost, over a tuple's lifetime, of being found by tuples of other inputs.
    """

    def __init__(self, states: int) -> None:
        self._states = states
        self.own = self.met = 0.0
        self._sums = DecayingSums(0.0, 0.0, 0.0)

    def update(self, own: float, met: float, tuples: int) -> None:
        """Add the totals so far: the cost of own probe paths, that of being found, and the tuples entered."""
        own, met, count = self._sums.update(own, met, tuples)
        if count > 0:
            self.own, self.met = own / count, met / count

    def take_over(self, earlier: PathTupleCost) -> None:
        """Continue from the averages of another object; the totals begin at 0 again."""
        self.own, self.met, self._sums = earlier.own, earlier.met, earlier._sums
        self._sums.restart()

    @property
    def latest_met(self) -> float:
        """What being found cost between the last two updates."""
        return self._sums.latest[1]

    @property
    def saved(self) -> float:
        """What keeping a tuple back for good saves."""
        return self._states * ENTER_NS + self.own + self.met - BLACKLIST_NS

    @property
    def returned(self) -> float:
        """The cost of letting in a tuple that was kept back: it enters its states after all and is found for the rest
        of its lifetime."""
        return RETURN_NS + self._states * ENTER_NS + self.met / 2
