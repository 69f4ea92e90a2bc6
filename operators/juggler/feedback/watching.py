"""Which guards of a shared operator watch: feedback that costs more than it saves turns itself down.

The terms are those of `operators.feedback.guard_payoff`, and so is the course of things: a guard gets a trial as the
purse allows, watches if that promises to pay, has an account while it does, and rests again when its stake is lost.
All is counted, nothing timed: the same input gives the same decisions, and no result depends on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from operators.feedback import guard_payoff as trials
from operators.feedback.guard_payoff import Trial, trial_cost
from operators.juggler.feedback.guards import Guard
from operators.juggler.feedback.row_cost import RowCost, WorkOf, ways_ns
from operators.juggler.routing.visits import Visit


class Ward(Protocol):
    """What guards act on."""

    def sizes(self) -> Mapping[str, int]:
        """The rows in every input's structures."""
        ...

    def sample(self, guard: Guard, now: int) -> tuple[float, float]:
        """The shares of queries that a guard would take from the newest and from the oldest rows of its input."""
        ...

    def begin(self, guard: Guard, now: int) -> None:
        """A guard watches from now on."""
        ...

    def release(self, guard: Guard, now: int) -> int:
        """A guard rests from now on: let in what it keeps back; how many rows."""
        ...


class Watching:
    """The accounts of an operator's guards.

    Args:
        roots: every input's visits; work_of: what a visit has done so far.
        structures: in how many an input's rows are.
        before: those of the group as it was.
    """

    def __init__(
        self,
        guards: Sequence[Guard],
        roots: Mapping[str, Visit],
        work_of: WorkOf,
        structures: Mapping[str, int],
        before: Watching | None,
    ) -> None:
        self._guards = guards
        self._roots = roots
        self._work_of = work_of
        self._purse: float = trials.PURSE if before is None else before._purse
        self._turn: int = 0 if before is None else before._turn
        self._costs = {guard.edge.name: RowCost(structures[guard.edge.alias]) for guard in guards}
        if before is not None:
            for name, cost in self._costs.items():
                if name in before._costs:
                    cost.take_over(before._costs[name])
        self._entered = dict.fromkeys(roots, 0)
        # Since the accounts were settled last: tuples that came, and slices.
        self._came = dict.fromkeys(roots, 0)
        self._slices = 0
        self._worked = self._work()

    def note(self, name: str, came: int, entered: int) -> None:
        """So many new rows of an input came, and so many of them were entered."""
        self._came[name] += came
        self._entered[name] += entered

    def end(self, ward: Ward, now: int) -> None:
        """A slice has been processed: settle all accounts if it is time, and give trials to guards that rest, one after
        the other, while the purse lasts."""
        self._slices += 1
        if sum(self._came.values()) < trials.BOOKED_TUPLES:
            return
        work = self._work()
        self._purse += trials.LOSS_SHARE * (work - self._worked)
        self._worked = work
        for guard in self._guards:
            self._weigh(guard)
            if guard.watching and not self._settle(guard):
                self._purse -= self._costs[guard.edge.name].returned * ward.release(guard, now)
        for _ in self._guards:
            guard = self._guards[self._turn % len(self._guards)]
            if not guard.watching and self._costs[guard.edge.name].saved > 0.0:
                cost = trial_cost(ward.sizes()[guard.edge.by])
                if self._purse < cost:
                    break
                self._purse -= cost
                if self._promises(guard, *ward.sample(guard, now)):
                    self._purse -= trials.STAKE * cost
                    guard.settled = guard.booked()
                    guard.account.begin(trials.STAKE * cost)
                    ward.begin(guard, now)
            self._turn += 1
        self._came = dict.fromkeys(self._came, 0)
        self._slices = 0

    def _work(self) -> float:
        visits = (visit for root in self._roots.values() for visit in root.all())
        return sum(self._work_of(visit).ns() for visit in visits)

    def _weigh(self, guard: Guard) -> None:
        own, met = ways_ns(self._roots, guard.edge.alias, guard.edge.by, self._work_of)
        self._costs[guard.edge.name].update(own, met, self._entered[guard.edge.alias])

    def _settle(self, guard: Guard) -> bool:
        """Book what a guard has done since the last time; False when it should rest from now on."""
        refused, pruned, returned, checked, swept = (
            now - then for now, then in zip(guard.booked(), guard.settled, strict=True)
        )
        guard.settled = guard.booked()
        cost = self._costs[guard.edge.name]
        earned = refused * cost.saved + (pruned - refused) * cost.own
        spent = checked * trials.CHECKED + swept * trials.SWEPT + self._slices * trials.CALLED
        spent += returned * cost.returned
        return guard.account.book(earned, spent, len(guard.blacklist) * cost.returned)

    def _promises(self, guard: Guard, newest: float, oldest: float) -> bool:
        came = max(self._came[guard.edge.alias], 1)
        spent = (came + self._came[guard.edge.by]) * trials.CHECKED + self._slices * trials.CALLED
        return Trial(newest, oldest, spent / came).promises(self._costs[guard.edge.name])
