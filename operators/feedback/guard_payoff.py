"""Decides when a guard watches, so that feedback that costs more than it saves switches itself off.

`operators.feedback.stems` and `operators.feedback.tree` use it for the guards of one query,
`operators.juggler.feedback` for those of a query group. All costs are in one unit of work, about a nanosecond, and come
from counters alone: the same input leads to the same decisions.

A guard that rests costs nothing. From time to time it gets a trial. First a cheap screening looks at the newest tuples
of both streams, and the trial is dropped if most of them have partners. The trial then builds the filter of the
observed stream and looks up a few tuples of the guarded stream. The newest show how many the guard would keep back; the
oldest show how many of those no partner would ever bring back. If the estimate is favourable, the guard watches.

A guard that watches has a balance, which starts with a budget. The guard is credited with the cost of the tuples that
it keeps back. It is charged for look-ups, for sweeps and for tuples that enter late. It rests again when the budget is
spent.

Trials and guards' budgets are taken from a trial budget, which receives a small share of all work that the executor
does. That share is the most that feedback may lose. The guards take turns at trials as the trial budget allows, so a
guard that becomes useful when the data change is discovered within some windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from operators.state.match import MatchCounters

LOSS_SHARE = 0.01
"""The share of the executor's work that is added to the trial budget."""

TUPLES_PER_UPDATE = 4096
"""Balances are updated after this many tuples."""

SAMPLED_TUPLES = 256
"""A trial looks up this many of the newest tuples and as many of the oldest."""

MARGIN = 0.5
"""A guard watches if its expected savings exceed its expected cost by at least this share of the cost."""

FIRST_TRIAL_BUDGET = 3e6
"""The trial budget at first."""

GUARD_BUDGET_TRIALS = 2.0
"""A guard's budget, as a multiple of the cost of its trial: what it may lose before it rests again."""

ENTER_NS = 30.0
"""Entering a tuple into a state, or probing a state with it."""

RESULT_NS = 100.0
"""Producing a partial result and processing it further."""

COMPARE_NS = 1.0
"""One comparison."""

SIGNATURE_NS = 20.0
"""Computing a signature and looking it up or adding it."""

SLICE_NS = 25_000.0
"""The fixed cost of a guard per slice."""

SCREENED_TUPLES = 2048
"""The number of newest observed tuples that the screening before a trial looks at."""

MAX_PARTNERED_SHARE = 0.5
"""No trial takes place if a larger share of the newest guarded tuples has partners among the screened ones."""

SCREEN_NS = 75_000.0
"""The cost of the screening."""

TRIAL_NS = 100_000.0
"""The fixed cost of a trial."""

MERGE_NS = 30.0
"""Ordering one result while a stream's state contains tuples that entered late."""

ROUTE_NS = 100.0
"""One routing decision of an eddy."""

SWEEP_NS = 8.0
"""Reading one entry to rebuild a filter."""

BLACKLIST_NS = 150.0
"""Putting a tuple in a blacklist."""

RETURN_NS = 300.0
"""Letting a tuple enter late, without the cost of entering it into its states."""

DECAY = 0.8
"""The weight of all earlier measurements against the latest one, where the costs of tuples are averaged."""


def work_of(counters: MatchCounters, probing: float) -> float:
    """What a half join has cost so far, if each probing tuple costs `probing`."""
    return counters.input_tuples * probing + counters.comparisons * COMPARE_NS + counters.results * RESULT_NS


@dataclass(slots=True)
class StemTupleCost:
    """The cost of a tuple in an executor without intermediate results, as an average in which older tuples count less.
    Attributes:
        states: The number of states that a tuple is entered into.
        probing: The cost of probing one state.
        own_path_cost: The cost of a tuple's own probe path, up to the observed stream.
        match_cost: The cost, over a tuple's lifetime, of being found by tuples of other streams whose probe paths have
            not yet reached the observed stream.
        latest_matches: How often tuples were found in this way between the last two updates.
    """

    states: int
    probing: float
    own_path_cost: float = 0.0
    match_cost: float = 0.0
    latest_matches: int = 0
    _sums: tuple[float, float, float] = (0.0, 0.0, 0.0)
    _before: tuple[int, int, int, int] = (0, 0, 0, 0)

    def update(self, counted: tuple[int, int, int], tuples: int) -> None:
        """Add the counts so far.
        Args:
            counted: Probes, matches found and matches by other streams' tuples, from `MJoin.work_before`.
            tuples: The number of tuples entered so far.
        """
        probes, found, met, entered = (now - then for now, then in zip((*counted, tuples), self._before, strict=True))
        self._before = *counted, tuples
        self.latest_matches = met
        latest = probes * self.probing + found * RESULT_NS, met * RESULT_NS, float(entered)
        own, meeting, count = (DECAY * past + new for past, new in zip(self._sums, latest, strict=True))
        self._sums = own, meeting, count
        if count > 0:
            self.own_path_cost, self.match_cost = own / count, meeting / count

    @property
    def saved(self) -> float:
        """What keeping a tuple back for good saves."""
        return self.states * ENTER_NS + self.own_path_cost + self.match_cost - BLACKLIST_NS

    @property
    def returned(self) -> float:
        """The cost of letting in a tuple that was kept back: it enters its states after all and is found for the rest
        of its lifetime."""
        return RETURN_NS + self.states * ENTER_NS + self.match_cost / 2


class TupleCost(Protocol):
    """The cost of a tuple: `StemTupleCost` in executors without intermediate results, `TreeTupleCost` in trees."""

    @property
    def saved(self) -> float:
        """What keeping a tuple back for good saves."""
        ...

    @property
    def returned(self) -> float:
        """The cost of letting in a tuple that was kept back."""
        ...


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What a trial has measured.
    Attributes:
        useless: The share of the newest tuples that have no partner.
        lasting: The share of the oldest tuples, at the end of their lifetime, that have no partner.
        spent: The total cost of watching per tuple of the guarded stream.
    """

    useless: float
    lasting: float
    spent: float

    def gain(self, tuple_cost: TupleCost) -> float:
        """Return the expected gain of watching per tuple of the guarded stream; negative if watching would lose. The
        estimate assumes that a tuple without a partner at the end of its lifetime had none at the beginning."""
        brought_back = max(self.useless - self.lasting, 0.0)
        return self.useless * tuple_cost.saved - brought_back * tuple_cost.returned - self.spent

    def promises(self, tuple_cost: TupleCost) -> bool:
        """Return whether the guard should watch."""
        return self.gain(tuple_cost) > MARGIN * self.spent


def trial_cost(observed: int, each: float = SWEEP_NS) -> float:
    """Return the cost of a trial that reads `observed` living tuples at `each` per tuple."""
    return observed * each + 2 * SAMPLED_TUPLES * SIGNATURE_NS + TRIAL_NS


@dataclass(slots=True)
class Balance:
    """The balance of one guard.
    Attributes:
        watching: Whether the guard watches.
        remaining: What the guard may still lose.
    """

    watching: bool = False
    remaining: float = 0.0
    _budget: float = 0.0

    def start(self, budget: float) -> None:
        """Start watching with a budget."""
        self.watching, self.remaining, self._budget = True, budget, budget

    @property
    def lost(self) -> float:
        """The part of the budget that is lost; more than the budget if the balance is negative."""
        return self._budget - self.remaining

    def update(self, earned: float, spent: float, return_cost: float) -> bool:
        """Add what the guard has saved and spent since the last update.
        Args:
            earned: The cost of the tuples that it has kept back.
            spent: The cost of the guard itself.
            return_cost: The cost of letting in all tuples that it keeps back now. The balance is capped at the budget
                plus this cost: earlier savings beyond that cannot cover later losses.

        Returns:
            False when the guard should rest from now on.
        """
        self.remaining = min(self.remaining + earned - spent, self._budget + return_cost)
        self.watching = self.remaining >= 0.0
        return self.watching
