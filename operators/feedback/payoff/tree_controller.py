"""Decides which guards of a tree watch, by `operators.feedback.payoff.guard`.

`operators.feedback.tree` calls `TreeController` after each slice. Trees differ from executors without intermediate
results (`operators.feedback.payoff.path_controller`) in three ways. What a guard saves depends on the other guards of
the tree, so at most one guard starts or stops per update. A tree's trial is expensive, so it may run ahead of the trial
budget if its expected gain pays it back soon, and what a guard loses is charged only when it stops. While no guard
watches or merits a trial, updates become rarer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from operators.data.tuples import Tuples
from operators.feedback.payoff import guard as payoff
from operators.feedback.payoff.tree_cost import ENTRY_NS, SIGNATURE_NS
from operators.feedback.tree_guard import TreeGuard
from operators.feedback.watch import SCREENED_TUPLES, Watch

WORK_PER_UPDATE = 5e6
"""Balances are updated after this much work, if not earlier by the number of tuples."""

MAX_UPDATE_FACTOR = 8
"""While no guard watches and none merits a trial, balances are updated up to this many times less often."""

MAX_SKIPPED_TURNS = 3
"""A guard whose screening fails skips at most this many turns."""

PAYBACK_PERIODS = 8
"""A trial may start without enough trial budget if its expected gain covers its cost within this many periods between
updates."""

SCREEN_NS = 200_000.0 + (2 * payoff.SAMPLED_TUPLES + SCREENED_TUPLES) * SIGNATURE_NS
"""The cost of screening a guard before a trial."""


class TreeController:
    """Starts and stops the guards of a tree.

    Args:
        watches: The consumers, whose guards take turns in this order.
        ends: Returns some of the newest and some of the oldest living tuples of a guard's home.
        work: The tree's work so far.

    Attributes:
        watching: The number of guards that watch.
        slices: Slices since the last update; the caller counts them.
        tuples: Arrived tuples since the last update; the caller counts them.
    """

    def __init__(
        self,
        watches: Sequence[Watch],
        ends: Callable[[TreeGuard], tuple[Tuples, Tuples]],
        work: float,
    ) -> None:
        self._watches = watches
        self._guards = [(watch, guard) for watch in watches for guard in watch.guards]
        self._ends = ends
        self._work = work
        self._trial_budget = payoff.FIRST_TRIAL_BUDGET
        self._turn = self.slices = self.tuples = 0
        self._screened_shares: Sequence[float] | None = None
        # The balances are updated this many times less often than usual.
        self._update_factor = 1
        self.recount()

    def recount(self) -> None:
        """Count the guards that watch, after one has started on its own, and update as often as usual."""
        self.watching = sum(guard.watching for _, guard in self._guards)
        self._update_factor = 1

    def due(self, work: float) -> bool:
        """Return whether enough tuples have arrived, or enough work has been done, for an update."""
        due_tuples, due_work = payoff.TUPLES_PER_UPDATE * self._update_factor, WORK_PER_UPDATE * self._update_factor
        return self.tuples >= due_tuples or work - self._work >= due_work

    def slices_until_due(self, work: float) -> int:
        """Return the number of slices before an update is due, at the pace of work so far."""
        work_done = work - self._work
        return int((WORK_PER_UPDATE * self._update_factor - work_done) * self.slices / max(work_done, 1.0))

    def update(self, work: float, now: int) -> tuple[Watch, TreeGuard] | None:
        """Update all balances. Among the guards whose budget is spent, only the one with the lowest balance stops: the
        rest may be useful then. If no guard stops, a resting guard may get a trial.

        Returns:
            The guard that stops, with its consumer. What it has kept back must enter with the next slice.
        """
        work_done = work - self._work
        spent: list[tuple[Watch, TreeGuard]] = []
        for watch, guard in self._guards:
            guard.update_cost()
            if guard.watching:
                work_done += max(guard.update_balance(self.slices), 0.0)
                if not guard.watching:
                    spent.append((watch, guard))
        # The budget never exceeds the first budget and the cost of the most expensive trial.
        most = payoff.FIRST_TRIAL_BUDGET + max(map(_trial_cost, self._watches)) * (1 + payoff.GUARD_BUDGET_TRIALS)
        self._trial_budget = min(self._trial_budget + payoff.LOSS_SHARE * work_done, most)
        stopping = self._choose_stopping(spent) if spent else None
        if stopping is None:
            self._take_turns(now)
        self.watching = sum(guard.watching for _, guard in self._guards)
        self._work = work
        self.slices = self.tuples = 0
        return stopping

    def _choose_stopping(self, spent: Sequence[tuple[Watch, TreeGuard]]) -> tuple[Watch, TreeGuard]:
        watch, worst = min(spent, key=lambda pair: pair[1].balance.remaining)
        for _, guard in spent:
            self._trial_budget -= guard.balance.lost
            if guard is not worst:
                guard.start(0.0)
        self._trial_budget -= worst.tuple_cost.returned * len(worst.blacklist)
        return watch, worst

    def _take_turns(self, now: int) -> None:
        """Screen resting guards in turn, as far as the trial budget allows, and give those that pass a trial, until one
        watches."""
        for _ in self._guards:
            watch, guard = self._guards[self._turn]
            started = False
            if guard.turns_to_skip > 0:
                guard.turns_to_skip -= 1
            elif not guard.watching and len(watch.state) and guard.may_pay(self.slices):
                if self._screened_shares is None:
                    if self._trial_budget < SCREEN_NS:
                        return
                    self._trial_budget -= SCREEN_NS
                    with watch.detecting:
                        self._screened_shares = watch.screen(guard, self._ends(guard), now)
                promise = guard.expected_gain(self._screened_shares, self.slices)
                guard.skips = 0 if promise else min(2 * guard.skips + 1, MAX_SKIPPED_TURNS)
                guard.turns_to_skip = guard.skips
                if promise:
                    cost = _trial_cost(watch)
                    if max(self._trial_budget, PAYBACK_PERIODS * promise) < cost * (1 + payoff.GUARD_BUDGET_TRIALS):
                        return
                    self._trial_budget -= cost
                    budget = payoff.GUARD_BUDGET_TRIALS * cost
                    with watch.detecting:
                        started = watch.run_trial(guard, self._ends(guard), self.slices, budget, now)
            self._turn = (self._turn + 1) % len(self._guards)
            self._screened_shares = None
            if started:
                self._update_factor = 1
                return
            if self._turn == 0 and not self.watching:
                self._update_factor = min(2 * self._update_factor, MAX_UPDATE_FACTOR)


def _trial_cost(watch: Watch) -> float:
    return ENTRY_NS * len(watch.state) + payoff.TRIAL_NS
