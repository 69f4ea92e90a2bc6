"""When a change of plans pays."""

from __future__ import annotations

import pytest

from operators.autopilot.rule import (
    GRACE,
    Account,
    Prices,
    Terms,
    accrue,
    charged,
    is_better,
    noticed,
    paid,
    pays_after_s,
    settled,
    verdict,
)

TERMS = Terms()


def test_a_change_is_made_when_its_cost_has_been_lost() -> None:
    prices = Prices(running=1.0, best=0.5, first=1.0)
    account = Account(work=1000.0)
    for _ in range(3):
        account = accrue(account, prices, 1.0, TERMS)
        assert not verdict(account, prices, 2.0, TERMS).change
    assert verdict(accrue(account, prices, 1.0, TERMS), prices, 2.0, TERMS).change


def test_a_difference_within_the_error_of_the_estimates_is_none() -> None:
    prices = Prices(running=1.0, best=0.5, first=1.0, error=0.35)
    assert not is_better(prices, TERMS)
    assert is_better(Prices(running=1.0, best=0.3, first=1.0, error=0.35), TERMS), "it may be less, not nothing"
    account = accrue(Account(excess=5.0), prices, 100.0, TERMS)
    assert account.excess == 0
    assert "error" in verdict(account, prices, 1e-9, TERMS).reason


def test_of_a_growth_that_led_to_a_better_plan_its_share_is_lost() -> None:
    better = Prices(running=4.0, best=1.0, first=4.0)
    assert noticed(Account(excess=1.0), better, 2.0, 0.0, TERMS).excess == pytest.approx(2.5)
    assert noticed(Account(excess=1.0), Prices(4.0, 4.0, 4.0), 2.0, 9.0, TERMS).excess == 1.0


def test_what_was_lost_since_the_data_changed_counts_even_if_the_work_did_not_grow() -> None:
    better = Prices(running=4.0, best=1.0, first=4.0)
    assert noticed(Account(), better, 0.0, 2.0, TERMS).excess == pytest.approx(6.0)
    assert noticed(Account(), better, 20.0, 2.0, TERMS).excess == pytest.approx(15.0)


def test_the_time_until_a_change_pays_follows_from_what_it_saves() -> None:
    better, terms = Prices(running=4.0, best=1.0, first=4.0), Terms(factor=2.0)
    assert pays_after_s(Account(excess=1.0), better, 5.0, terms) == pytest.approx(3.0)
    assert pays_after_s(Account(excess=99.0), better, 5.0, terms) == 0


def test_a_small_difference_is_none() -> None:
    assert not is_better(Prices(1.0, 0.97, 1.0), TERMS)


def test_what_plans_save_is_counted_against_the_first_one() -> None:
    before = Prices(running=0.5, best=0.5, first=2.0)
    account = accrue(Account(), before, 10.0, TERMS)
    assert account.saved == 0
    assert account.work == pytest.approx(5.0)
    for changed_s in (0.0, 10.0):
        worse = settled(account, before, Prices(0.5, 0.5, 1.0), changed_s)
        assert worse.saved == pytest.approx(5.0), "the worse of two measurements"
        late = settled(account, before, Prices(1.0, 0.5, 0.5), changed_s).late
        assert late == (pytest.approx(5.0) if changed_s else 0.0), "what was not seen to begin has no known length"
        assert settled(account, before, Prices(1.0, 0.5, 0.5), changed_s).saved == pytest.approx(-5.0)
    assert settled(account, before, Prices(9.0, 0.5, 0.5), 2.0).saved == pytest.approx(12.0 - 17.0), "8 s as before"
    account = settled(account, before, before, 9.0)
    assert account.saved == pytest.approx(15.0)
    assert settled(account, before, before, 9.0) == account, "each second once"
    assert paid(account, 1.0) == Account(0.0, 5.0, 15.0, 1.0)
    assert charged(account, 1.0) == Account(account.excess, 5.0, 15.0, 1.0)


def test_no_more_is_lost_than_the_work_that_was_done_less_what_the_first_plan_would_have_taken() -> None:
    before, worse = Prices(1.0, 1.0, 2.0), Prices(9.0, 0.5, 0.5)
    account = accrue(Account(), before, 10.0, TERMS)
    assert settled(account, before, worse, 2.0, 3.0).saved == pytest.approx(8.0 + 1.0 - 3.0)
    assert settled(account, before, worse, 2.0, 3.0).late == pytest.approx(2.0)
    assert settled(account, before, worse, 2.0, 99.0).saved == pytest.approx(8.0 - 17.0)
    assert settled(account, before, worse, 0.0, 9.0).saved == pytest.approx(5.0 - 9.0)
    assert settled(account, before, worse, 0.0, 3.0).saved == 0.0, "what cheap work saves is not known"
    assert settled(account, before, before, 0.0, 3.0).saved == pytest.approx(10.0), "savings have no such limit"


def play(flips: int, *, terms: Terms = TERMS, cost_s: float = 1.0, notice: int = 0) -> tuple[float, float]:
    """Data made to fool the rule: another plan becomes the best as soon as a change has been made.

    Args:
        notice: after how many steps of 0.05 s that is noticed.

    Returns:
        in each of two halves of the time, by how much the work with changes and their cost exceeded the allowance
        over that of never changing at its most.
    """
    good = 0  # which of two plans is good; plan 0 is the first
    running, account, done, never = 0, Account(), 0.0, 0.0
    good = 1
    believed, until = Prices(1.0, 0.4, 1.0), 0
    most = [0.0, 0.0]
    for step in range(flips * 1000):
        prices = Prices(1.0 if running != good else 0.4, 0.4, 1.0 if good != 0 else 0.4)
        account = accrue(account, believed, 0.05, terms)
        if step >= until:
            account, believed = settled(account, believed, prices, 0.05 * (notice + 1)), prices
        done += prices.running * 0.05
        never += prices.first * 0.05
        if running != good and step >= until and verdict(account, prices, cost_s, terms).change:
            account = paid(account, cost_s)
            done += cost_s
            running = good
            good = 1 - good
            believed, until = Prices(0.4, 0.4, prices.first), step + 1 + notice
        half = step // (flips * 500)
        most[half] = max(most[half], done - (1 + terms.allowance) * never)
    return most[0], most[1]


@pytest.mark.parametrize("cost_s", [0.1, 1.0, 7.0])
@pytest.mark.parametrize("allowance", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("notice", [0, 1, 40])
def test_an_adversary_costs_no_more_than_the_allowance(cost_s: float, allowance: float, notice: int) -> None:
    terms = Terms(allowance=allowance)
    first, second = play(20, terms=terms, cost_s=cost_s, notice=notice)
    grace_s = GRACE * (2 + terms.factor) * cost_s + 0.05 * (1 + allowance)
    assert first <= grace_s + 0.05 * notice * 0.6
    assert second <= max(grace_s, first if allowance == 0 else 0.0), "late notice is reserved for"


def test_a_change_back_is_never_refused() -> None:
    account = Account(excess=2.0, work=1.0, saved=-50.0, spent=50.0)
    assert verdict(account, Prices(running=1.0, best=0.5, first=0.5), 1.0, TERMS).change
    away = verdict(account, Prices(running=1.0, best=0.5, first=1.0), 1.0, TERMS)
    assert not away.change
    assert away.limited
    assert "risked" in away.reason


def test_phases_cost_at_most_twice_what_a_clairvoyant_pays_for_changes() -> None:
    terms, cost_s, step = Terms(allowance=1.0), 1.0, 0.01
    account, running, done, best = Account(), 0, 0.0, 0.0
    changes = 0
    for phase in range(20):
        for _ in range(4000):
            prices = Prices(1.0 if running != phase % 2 else 0.3, 0.3, 1.0 if phase % 2 else 0.3)
            account = settled(accrue(account, prices, step, terms), prices, prices, 1.0)
            done += prices.running * step
            best += 0.3 * step
            if running != phase % 2 and verdict(account, prices, cost_s, terms).change:
                account, running, changes = paid(account, cost_s), phase % 2, changes + 1
                done += cost_s
    assert changes == 19
    assert done - best <= 19 * (2 * cost_s + step) + 1e-6
