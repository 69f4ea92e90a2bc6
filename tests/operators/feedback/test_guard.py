"""What all guards have in common: the result of a trial, what work is worth, and the end of a budget."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from operators.data.tuples import Tuples
from operators.feedback.payoff.guard import Balance, Guard, GuardWork, Prices, TrialResult
from tests.operators.feedback.test_waiting import tuples


@dataclass
class Cost:
    """The cost of a tuple."""

    saved: float
    returned: float


def test_what_a_trial_promises() -> None:
    """Tuples that cost much and have no partners for long; not if they cost little, have partners, or get them."""
    dear, fair, cheap = Cost(1900.0, 400.0), Cost(240.0, 390.0), Cost(-60.0, 390.0)
    seen = TrialResult(useless=0.5, lasting=0.5, spent=65.0)
    assert seen.promises(dear)
    assert not seen.promises(cheap)
    assert not replace(seen, useless=0.01).promises(dear)
    assert not replace(seen, lasting=0.0).promises(fair)
    assert replace(seen, lasting=0.9).promises(fair)
    assert not replace(seen, spent=2000.0).promises(dear), "small slices, or much to observe"
    gained = 0.5 * dear.saved - 0.25 * dear.returned - seen.spent
    assert replace(seen, lasting=0.25).gain(dear) == pytest.approx(gained)


def test_a_balance_is_capped_at_its_budget_and_return_cost() -> None:
    """What it earns beyond both is not there to be lost later."""
    balance = Balance()
    balance.start(100.0)
    assert balance.watching
    assert balance.update(1000.0, 0.0, return_cost=50.0)
    assert balance.remaining == 150.0
    assert balance.update(0.0, 60.0, return_cost=0.0)
    assert balance.remaining == 90.0
    assert balance.update(0.0, 90.0, return_cost=0.0), "spent, and not lost yet"
    assert (balance.remaining, balance.lost) == (0.0, 100.0)
    assert not balance.update(0.0, 1.0, return_cost=0.0)
    assert not balance.watching


class Counted(Guard):
    """A guard that has done what the test says."""

    def __init__(self) -> None:
        super().__init__(("A",), Prices(signature=2.0, entry=3.0, slice=5.0, late_slice=7.0))
        self.tuple_cost = Cost(saved=1000.0, returned=50.0)
        self.work = GuardWork()

    def done(self) -> GuardWork:
        return self.work


def test_a_balance_is_what_was_saved_minus_what_was_spent() -> None:
    guard = Counted()
    guard.work = GuardWork(*[10**6] * 5)
    guard.start(4000.0)
    guard.work = GuardWork(*(10**6 + n for n in (1, 11, 100, 1000, 9)))
    gain = 1000.0 - (100 * 2.0 + 1000 * 3.0 + 6 * 5.0 + 11 * 50.0 + 9 * 7.0)
    assert guard.update_balance(6) == gain, "what was done before the start is not charged"
    assert guard.balance.remaining == 4000.0 + gain
    assert guard.update_balance(6) == -30.0, "nothing is booked twice"
    held: Tuples = tuples([1, 2, 3])
    guard.blacklist.put(held, held.ts.astype("uint64"), 0)
    guard.work = guard.work._replace(kept_back=guard.work.kept_back + 1000)
    guard.update_balance(0)
    assert guard.balance.remaining == 4000.0 + 3 * 50.0, "what letting in the three would cost is there"
    guard.work = guard.work._replace(swept=guard.work.swept + 10_000)
    guard.update_balance(0)
    assert not guard.watching
