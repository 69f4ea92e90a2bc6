"""Decides when a guard watches, so that feedback that costs more than it saves switches itself off.

All guards extend `Guard`. `operators.feedback.payoff.path_controller` gives those of M-Joins, eddies and query groups
their trials, `operators.feedback.payoff.tree_controller` those of trees. All costs are in one unit of work, about a
nanosecond, and come from counters alone: the same input leads to the same decisions. No result depends on them.

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
from typing import NamedTuple, Protocol

from operators.feedback.blacklist import Blacklist

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

TRIAL_NS = 100_000.0
"""The fixed cost of a trial."""


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of a guard's own work in one kind of executor.

    Attributes:
        signature: Computing the signature of an arriving tuple and looking it up or adding it.
        entry: Reading one stored entry for a filter or a sweep.
        slice: The fixed cost of a guard per slice.
        late_slice: The fixed cost of a slice in which some tuple returns.
    """

    signature: float
    entry: float
    slice: float
    late_slice: float = 0.0

    def cost(self, checked: int, swept: int = 0, slices: int = 0) -> float:
        """Return the cost of `checked` signatures, `swept` entries and `slices` slices."""
        return checked * self.signature + swept * self.entry + slices * self.slice


class GuardWork(NamedTuple):
    """What a guard has done, in total or since some earlier total.

    Attributes:
        kept_back: Tuples kept back.
        returned: Tuples that entered later.
        checked: Signatures computed for arriving tuples.
        swept: Stored entries read.
        late_slices: Slices in which some tuple returned, where these have a price.
        pruned: Tuples kept back for some of their queries only, where there are several.
    """

    kept_back: int = 0
    returned: int = 0
    checked: int = 0
    swept: int = 0
    late_slices: int = 0
    pruned: int = 0

    def since(self, earlier: GuardWork) -> GuardWork:
        """Return what has been done since an earlier total."""
        return GuardWork(*(now - then for now, then in zip(self, earlier, strict=True)))


class TupleCost(Protocol):
    """The cost of a tuple: `PathTupleCost` in executors without intermediate results, `TreeTupleCost` in trees."""

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
        spent: The total cost of watching per tuple of the guarded input.
    """

    useless: float
    lasting: float
    spent: float

    def gain(self, tuple_cost: TupleCost) -> float:
        """Return the expected gain of watching per tuple of the guarded input; negative if watching would lose. The
        estimate assumes that a tuple without a partner at the end of its lifetime had none at the beginning."""
        brought_back = max(self.useless - self.lasting, 0.0)
        return self.useless * tuple_cost.saved - brought_back * tuple_cost.returned - self.spent

    def promises(self, tuple_cost: TupleCost) -> bool:
        """Return whether the guard should watch."""
        return self.gain(tuple_cost) > MARGIN * self.spent


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


class Guard:
    """Keeps back tuples of one input that have no partner in another, while that pays.

    Args:
        aliases: The aliases of the tuples that it keeps back.
        prices: The prices of its own work.

    Attributes:
        blacklist: The tuples that it keeps back, by signature.
        tuple_cost: The cost of a tuple that it guards.
        balance: What it may still lose, and whether it watches.
        swept: Stored entries read so far.
    """

    tuple_cost: TupleCost

    def __init__(self, aliases: tuple[str, ...], prices: Prices) -> None:
        self.blacklist = Blacklist(aliases)
        self.balance = Balance()
        self.swept = 0
        self._prices = prices
        self._counted = GuardWork()

    @property
    def watching(self) -> bool:
        """Whether the guard observes and keeps back tuples."""
        return self.balance.watching

    def done(self) -> GuardWork:
        """Return what the guard has done so far."""
        raise NotImplementedError

    def start(self, budget: float) -> None:
        """Start watching with a budget. What the guard has done so far is not charged."""
        self._counted = self.done()
        self.balance.start(budget)

    def earned(self, latest: GuardWork) -> float:
        """Return what some work of the guard has saved."""
        return latest.kept_back * self.tuple_cost.saved

    def spent(self, latest: GuardWork, slices: int) -> float:
        """Return what some work of the guard has cost, in a number of slices."""
        returning = latest.returned * self.tuple_cost.returned + latest.late_slices * self._prices.late_slice
        return self._prices.cost(latest.checked, latest.swept, slices) + returning

    def update_balance(self, slices: int) -> float:
        """Update the balance with what the guard has done since the last update, `slices` slices ago. Return the net
        gain; `watching` tells whether the guard continues."""
        before, self._counted = self._counted, self.done()
        latest = self._counted.since(before)
        earned, spent = self.earned(latest), self.spent(latest, slices)
        self.balance.update(earned, spent, len(self.blacklist) * self.tuple_cost.returned)
        return earned - spent
