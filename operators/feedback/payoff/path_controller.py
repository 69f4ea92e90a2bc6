"""Decides which guards of an executor without intermediate results watch, by `operators.feedback.payoff.guard`.

`operators.feedback.stems` calls `PathController` for the guards of an M-Join or an eddy,
`operators.juggler.feedback.demand` for those of a query group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from operators.feedback.path_guard import PathGuard
from operators.feedback.payoff import guard as payoff
from operators.feedback.payoff.guard import TrialResult
from operators.feedback.payoff.tuple_cost import PATH_PRICES

G = TypeVar("G", bound=PathGuard)
AnyGuard = TypeVar("AnyGuard", bound=PathGuard, contravariant=True)


class GuardedInputs(Protocol[AnyGuard]):
    """The inputs that guards act on."""

    def take_turn(self, guard: AnyGuard, now: int) -> bool:
        """Give a resting guard a trial if it merits one. Return False if the trial budget does not suffice; then the
        guard keeps its turn."""
        ...

    def release(self, guard: AnyGuard, now: int) -> int:
        """Let in what a guard keeps back, which rests from now on. Return the number of tuples to charge for."""
        ...


class PathController(Generic[G]):
    """Starts and stops guards by their balances.

    Args:
        guards: All guards, in the order of their turns.
        inputs: What they act on.
        aliases: All inputs.
        work: The executor's work so far.
        before: The controller whose budget and turn this one continues.

    Attributes:
        trial_budget: What may be spent on trials and guards' budgets.
        entered: Per input, the new tuples that were entered so far.
    """

    def __init__(
        self,
        guards: Sequence[G],
        inputs: GuardedInputs[G],
        aliases: Iterable[str],
        work: float,
        before: PathController[G] | None = None,
    ) -> None:
        self._guards = guards
        self._inputs = inputs
        self._work = work
        self.trial_budget: float = payoff.FIRST_TRIAL_BUDGET if before is None else before.trial_budget
        self._turn: int = 0 if before is None else before._turn
        self.entered = dict.fromkeys(aliases, 0)
        # Arrived tuples and slices since the last update of the balances.
        self._arrived = dict.fromkeys(self.entered, 0)
        self._slices = 0

    def note(self, alias: str, arrived: int, entered: int) -> None:
        """Count new tuples of an input, and those of them that were entered."""
        self._arrived[alias] += arrived
        self.entered[alias] += entered

    def end_slice(self) -> bool:
        """Count a slice. Return whether enough tuples have arrived for an `update`."""
        self._slices += 1
        return sum(self._arrived.values()) >= payoff.TUPLES_PER_UPDATE

    def update(self, work: float, now: int) -> None:
        """Update all balances, then give resting guards trials in turn, as far as the trial budget allows.

        Args:
            work: The executor's work so far.
            now: Tuples that expired before it are dead.
        """
        self.trial_budget += payoff.LOSS_SHARE * (work - self._work)
        self._work = work
        for guard in self._guards:
            if not guard.watching:
                continue
            guard.update_balance(self._slices)
            if not guard.watching:
                self.trial_budget -= guard.tuple_cost.returned * self._inputs.release(guard, now)
        for _ in self._guards:
            guard = self._guards[self._turn % len(self._guards)]
            if not guard.watching and not self._inputs.take_turn(guard, now):
                break
            self._turn += 1
        self._arrived = dict.fromkeys(self._arrived, 0)
        self._slices = 0

    def pay(self, cost: float) -> bool:
        """Pay a cost if the trial budget covers it, and return whether it does."""
        if self.trial_budget < cost:
            return False
        self.trial_budget -= cost
        return True

    def start(self, guard: G, trial_ns: float) -> None:
        """Let a guard watch whose trial had a cost of `trial_ns`. Its budget is taken from the trial budget."""
        budget = payoff.GUARD_BUDGET_TRIALS * trial_ns
        self.trial_budget -= budget
        guard.start(budget)

    def promises(self, guard: G, newest: float, oldest: float) -> bool:
        """Return whether a guard should watch that would keep back these shares of the newest and oldest tuples."""
        arrived = max(self._arrived[guard.alias], 1)
        spent = PATH_PRICES.cost(arrived + self._arrived[guard.observed_alias], slices=self._slices)
        return TrialResult(newest, oldest, spent / arrived).promises(guard.tuple_cost)
