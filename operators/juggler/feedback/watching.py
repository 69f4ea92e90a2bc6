"""Decides which guards of a shared operator watch, so that feedback that costs more than it saves stops.

`operators.juggler.feedback.demand` calls `GuardController` per slice. The procedure and terms are those of
`operators.feedback.guard_payoff`. A guard gets a trial when the trial budget allows it. The guard watches if the trial
predicts a gain, has a balance while it watches, and rests again when its budget is used up. Work is counted, not timed,
so the same input produces the same decisions. No result depends on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from operators.feedback import guard_payoff as payoff
from operators.feedback.guard_payoff import TrialResult, trial_cost
from operators.juggler.feedback.guards import RowGuard
from operators.juggler.feedback.row_cost import RowCost, WorkOf, paths_ns
from operators.juggler.routing.visits import Visit


class GuardedInputs(Protocol):
    """The inputs that guards act on; `operators.juggler.feedback.demand.RowSuppressor` is one."""

    def sizes(self) -> Mapping[str, int]:
        """The rows in every input's structures."""
        ...

    def sample(self, guard: RowGuard, now: int) -> tuple[float, float]:
        """The shares of queries that a guard would take from the newest and from the oldest rows of its input."""
        ...

    def begin(self, guard: RowGuard, now: int) -> None:
        """Prepare for a guard that watches from now on."""
        ...

    def release(self, guard: RowGuard, now: int) -> int:
        """A guard rests from now on: admit the rows that it has set aside, and return their number."""
        ...


class GuardController:
    """Starts and stops the guards of an operator by their balances.

    Args:
        guards: all guards.
        roots: every input's tree of visits.
        work_of: returns the work of a visit so far.
        structures: by input the number of structures that a row enters.
        before: the controller of the group before the last change.
    """

    def __init__(
        self,
        guards: Sequence[RowGuard],
        roots: Mapping[str, Visit],
        work_of: WorkOf,
        structures: Mapping[str, int],
        before: GuardController | None,
    ) -> None:
        self._guards = guards
        self._roots = roots
        self._work_of = work_of
        self._trial_budget: float = payoff.FIRST_TRIAL_BUDGET if before is None else before._trial_budget
        self._turn: int = 0 if before is None else before._turn
        self._costs = {guard.edge.name: RowCost(structures[guard.edge.alias]) for guard in guards}
        if before is not None:
            for name, cost in self._costs.items():
                if name in before._costs:
                    cost.take_over(before._costs[name])
        self._entered = dict.fromkeys(roots, 0)
        # Since the last update of the balances: tuples that arrived, and slices.
        self._arrived = dict.fromkeys(roots, 0)
        self._slices = 0
        self._work_counted = self._work()

    def note(self, name: str, arrived: int, entered: int) -> None:
        """Count new rows of an input, and those of them that were entered."""
        self._arrived[name] += arrived
        self._entered[name] += entered

    def end(self, inputs: GuardedInputs, now: int) -> None:
        """Finish a slice: if enough tuples arrived, update all balances, and run trials of resting guards in turn while
        the trial budget lasts."""
        self._slices += 1
        if sum(self._arrived.values()) < payoff.TUPLES_PER_UPDATE:
            return
        work = self._work()
        self._trial_budget += payoff.LOSS_SHARE * (work - self._work_counted)
        self._work_counted = work
        for guard in self._guards:
            self._update_cost(guard)
            if guard.watching and not self._update_balance(guard):
                self._trial_budget -= self._costs[guard.edge.name].returned * inputs.release(guard, now)
        for _ in self._guards:
            guard = self._guards[self._turn % len(self._guards)]
            if not guard.watching and self._costs[guard.edge.name].saved > 0.0:
                cost = trial_cost(inputs.sizes()[guard.edge.by])
                if self._trial_budget < cost:
                    break
                self._trial_budget -= cost
                if self._promises(guard, *inputs.sample(guard, now)):
                    self._trial_budget -= payoff.GUARD_BUDGET_TRIALS * cost
                    guard.last_totals = guard.totals()
                    guard.balance.start(payoff.GUARD_BUDGET_TRIALS * cost)
                    inputs.begin(guard, now)
            self._turn += 1
        self._arrived = dict.fromkeys(self._arrived, 0)
        self._slices = 0

    def _work(self) -> float:
        visits = (visit for root in self._roots.values() for visit in root.all())
        return sum(self._work_of(visit).ns() for visit in visits)

    def _update_cost(self, guard: RowGuard) -> None:
        own, met = paths_ns(self._roots, guard.edge.alias, guard.edge.by, self._work_of)
        self._costs[guard.edge.name].update(own, met, self._entered[guard.edge.alias])

    def _update_balance(self, guard: RowGuard) -> bool:
        """Update a guard's balance by its work since the last update; False when it should rest from now on."""
        refused, pruned, returned, checked, swept = (
            now - then for now, then in zip(guard.totals(), guard.last_totals, strict=True)
        )
        guard.last_totals = guard.totals()
        cost = self._costs[guard.edge.name]
        earned = refused * cost.saved + (pruned - refused) * cost.own
        spent = checked * payoff.SIGNATURE_NS + swept * payoff.SWEEP_NS + self._slices * payoff.SLICE_NS
        spent += returned * cost.returned
        return guard.balance.update(earned, spent, len(guard.blacklist) * cost.returned)

    def _promises(self, guard: RowGuard, newest: float, oldest: float) -> bool:
        arrived = max(self._arrived[guard.edge.alias], 1)
        spent = (arrived + self._arrived[guard.edge.by]) * payoff.SIGNATURE_NS + self._slices * payoff.SLICE_NS
        return TrialResult(newest, oldest, spent / arrived).promises(self._costs[guard.edge.name])
