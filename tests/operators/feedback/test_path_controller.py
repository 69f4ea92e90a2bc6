"""Which guards watch where no intermediate results are stored: turns, trials and the trial budget, by hand."""

from __future__ import annotations

import pytest

from operators.feedback.path_guard import PathGuard
from operators.feedback.payoff import guard as payoff
from operators.feedback.payoff.path_controller import PathController
from operators.feedback.payoff.tuple_cost import BLACKLIST_NS, ENTER_NS, PATH_PRICES, PathTupleCost, trial_cost

NAMES = ("A -> B", "A -> C", "B -> A", "C -> A")


def name_of(guard: PathGuard) -> str:
    """`A -> B` guards A by B."""
    return f"{guard.alias} -> {guard.observed_alias}"


class Watched:
    """The guards of A joined with B and C. It records what the controller has it do.

    Args:
        rows: the number of tuples that a trial reads.
        shares: the result of every trial.
        back: the number of tuples that a released guard returns.
    """

    def __init__(self, rows: int, shares: tuple[float, float] = (0.0, 0.0), back: int = 0) -> None:
        self.rows = rows
        self.shares = shares
        self.back = back
        self.tried: list[str] = []
        self.begun: list[str] = []
        self.released: list[str] = []
        self.guards = [PathGuard(*name.split(" -> "), 3, lambda: 0.0, static=False) for name in NAMES]
        self.begin(None)

    def begin(self, before: PathController[PathGuard] | None) -> None:
        """An operator, or the next one."""
        self.work = self.own = self.met = 0.0
        self.controller = PathController(self.guards, self, "ABC", 0.0, before)

    def guard(self, name: str) -> PathGuard:
        return next(guard for guard in self.guards if name_of(guard) == name)

    def spend(self, ns: float) -> None:
        """The tuples of every input follow their probe paths, at this cost each."""
        self.work += 3 * ns
        self.own += ns
        self.met += ns / 10

    def end(self, came: int = payoff.TUPLES_PER_UPDATE // 2) -> None:
        """A slice with so many tuples of every input, of which all of A's are entered and half of the others."""
        for name in "ABC":
            self.controller.note(name, came, came if name == "A" else came // 2)
        if self.controller.end_slice():
            for guard in self.guards:
                guard.tuple_cost.update(self.own, self.met, self.controller.entered[guard.alias])
            self.controller.update(self.work, 0)

    # `operators.feedback.payoff.path_controller.GuardedInputs`

    def take_turn(self, guard: PathGuard, now: int) -> bool:
        if guard.tuple_cost.saved <= 0.0:
            return True
        cost = trial_cost(self.rows)
        if not self.controller.pay(cost):
            return False
        self.tried.append(name_of(guard))
        if self.controller.promises(guard, *self.shares):
            self.controller.start(guard, cost)
            self.begun.append(name_of(guard))
        return True

    def release(self, guard: PathGuard, now: int) -> int:
        assert not guard.watching
        self.released.append(name_of(guard))
        return self.back


def test_guards_take_turns_as_the_trial_budget_allows() -> None:
    """The trial budget starts with the cost of one trial, and grows by a share of the work since."""
    watched = Watched(rows=300_000)
    assert payoff.FIRST_TRIAL_BUDGET / 2 < trial_cost(watched.rows) < payoff.FIRST_TRIAL_BUDGET
    watched.spend(4e6)
    watched.end(payoff.TUPLES_PER_UPDATE // 3 - 10)
    assert watched.tried == [], "too few tuples to tell"
    watched.end(10)
    watched.end(10)
    assert watched.tried == list(NAMES[:1])
    lacking = 2 * trial_cost(watched.rows) - payoff.FIRST_TRIAL_BUDGET - payoff.LOSS_SHARE * 3 * 4e6
    watched.spend(lacking / payoff.LOSS_SHARE / 3 - 1e6)
    watched.end()
    watched.end()
    assert watched.tried == list(NAMES[:1]), "work is counted once"
    watched.spend(2e6)
    watched.end(10)
    assert watched.tried == list(NAMES[:1]), "what came before has been booked"
    watched.end()
    assert watched.tried == list(NAMES[:2])
    watched.rows = 0
    watched.spend(1e8)
    watched.end()
    assert watched.tried == [*NAMES[:2], *NAMES[2:], *NAMES[:2]], "every guard once, the next one first"


def test_a_guard_that_saves_little_gets_no_trial() -> None:
    watched = Watched(rows=0)
    watched.end()
    assert watched.tried == []
    assert ENTER_NS * 3 < BLACKLIST_NS


def begun(watched: Watched) -> Watched:
    """All guards watch, and what they did in former lives has been booked."""
    for guard in watched.guards:
        guard.counters.checked = 10**9
    watched.spend(1e8)
    watched.end()
    assert len(watched.begun) == 4
    watched.tried.clear()
    return watched


def test_a_guards_work_is_booked_once() -> None:
    watched = begun(Watched(rows=10_000, shares=(0.9, 0.9)))
    guard = watched.guard("A -> C")
    budget = payoff.GUARD_BUDGET_TRIALS * trial_cost(watched.rows)
    assert guard.balance.remaining == budget
    guard.refused, guard.swept = 3, 1000
    guard.counters.returned, guard.counters.checked = 2, guard.counters.checked + 7000
    watched.end()
    spent = PATH_PRICES.cost(7000, 1000, slices=1) + 2 * guard.tuple_cost.returned
    left = budget + 3 * guard.tuple_cost.saved - spent
    assert 0 < left < budget
    assert guard.balance.remaining == pytest.approx(left)
    watched.end(10)
    watched.end()
    assert guard.balance.remaining == pytest.approx(left - 2 * PATH_PRICES.slice)
    assert watched.tried == [], "a watching guard needs no trial"


def test_a_guards_budget_is_taken_from_the_trial_budget() -> None:
    watched = Watched(rows=100_000, shares=(0.9, 0.9))
    cost = trial_cost(watched.rows)
    assert (1 + payoff.GUARD_BUDGET_TRIALS) * cost < payoff.FIRST_TRIAL_BUDGET < (2 + payoff.GUARD_BUDGET_TRIALS) * cost
    watched.spend(4e6)
    watched.end()
    assert len(watched.begun) == len(watched.tried) == 1


def test_a_guard_without_budget_rests_and_is_charged_for_returned_tuples() -> None:
    watched = begun(Watched(rows=10_000, shares=(0.9, 0.9), back=5))
    guard = watched.guard("A -> C")
    guard.counters.checked += 10**9
    watched.shares = (0.0, 0.0)
    budget_before = watched.controller.trial_budget
    watched.end()
    assert watched.released == ["A -> C"]
    assert watched.tried == ["A -> C"], "and is tried again in its turn"
    paid = 5 * guard.tuple_cost.returned + trial_cost(watched.rows)
    assert watched.controller.trial_budget == pytest.approx(budget_before - paid)


@pytest.mark.parametrize(
    ("shares", "came", "watches"),
    [
        ((0.9, 0.9), 2048, True),
        ((0.0, 0.9), 2048, False),
        ((0.02, 0.02), 2048, True),
        ((0.02, 0.02), 20, False),
        ((0.006, 0.006), 2048, False),
    ],
)
def test_a_trial_promises_by_what_a_tuple_costs(shares: tuple[float, float], came: int, watches: bool) -> None:
    """Of 2 % little is left when slices are small: each costs something. And 6 in a thousand do not pay for looking."""
    watched = Watched(rows=10_000, shares=shares)
    watched.spend(1e7)
    for _ in range(-(-payoff.TUPLES_PER_UPDATE // (3 * came))):
        watched.end(came)
    assert watched.guard("A -> C").watching == watches
    assert ("A -> C" in watched.begun) == watches


def test_a_successor_goes_on_with_the_budget_and_the_turn() -> None:
    watched = Watched(rows=300_000)
    watched.spend(4e6)
    watched.end()
    for guard in watched.guards:
        cost = PathTupleCost(3)
        cost.take_over(guard.tuple_cost)
        guard.tuple_cost = cost
    watched.begin(watched.controller)
    watched.end()
    assert len(watched.tried) == 1, "the budget is as empty"
    watched.rows = 0
    watched.end()
    assert len(set(watched.tried[:4])) == 4, "the next guard's turn"
    assert len(watched.tried) == 5, "what tuples cost is known"
