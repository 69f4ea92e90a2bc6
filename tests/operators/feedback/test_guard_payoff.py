"""When guards over SteMs watch: what a tuple costs, what a trial promises, when an account is spent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from operators.engine.engine import Engine
from operators.feedback import guard_payoff as trials
from operators.feedback.guard_payoff import Account, Burden, Trial, trial_cost, work_of
from operators.join.mjoin import MJoin
from operators.plan.plan import left_deep
from operators.state.match import MatchCounters
from tests.feeding import feed
from tests.operators.tiny import inputs, query


def test_the_work_of_a_half_join() -> None:
    """Probes at the executor's price, comparisons, and results."""
    counters = MatchCounters(input_tuples=3, comparisons=5, results=2)
    assert work_of(counters, 10.0) == 30.0 + 5 * trials.COMPARED + 2 * trials.MADE


def test_a_burden_is_an_average_that_fades() -> None:
    """Ten tuples that cost ten probes each, then ten that cost none: less than half is left of it, and something."""
    burden = Burden(states=2, probing=10.0)
    burden.update((100, 0, 0), 10)
    assert (burden.own, burden.met, burden.latest_met) == (100.0, 0.0, 0)
    burden.update((100, 5, 7), 20)
    assert burden.latest_met == 7
    fading = trials.FADING
    assert burden.own == pytest.approx((fading * 1000 + 5 * trials.MADE) / (fading * 10 + 10))
    assert burden.met == pytest.approx(7 * trials.MADE / (fading * 10 + 10))
    own = burden.own
    burden.update((100, 5, 7), 20)
    assert burden.own == pytest.approx(own), "nothing new: the same average"
    assert burden.saved == 2 * trials.ENTERED + burden.own + burden.met - trials.KEPT
    assert burden.returned == trials.RETURNED + 2 * trials.ENTERED + burden.met / 2


def test_nothing_entered_nothing_known() -> None:
    burden = Burden(states=2, probing=10.0)
    burden.update((0, 0, 0), 0)
    assert (burden.own, burden.met) == (0.0, 0.0)


def test_what_a_trial_promises() -> None:
    """Tuples that cost much and have no partners for long; not if they cost little, have partners, or get them."""
    dear, cheap = Burden(3, 30.0, own=2000.0), Burden(3, 30.0)
    seen = Trial(useless=0.5, lasting=0.5, spent=2.0 * trials.CHECKED + 0.001 * trials.CALLED)
    assert seen.promises(dear)
    assert not seen.promises(cheap)
    assert not replace(seen, useless=0.01).promises(dear)
    assert not replace(seen, lasting=0.0).promises(Burden(3, 30.0, own=300.0))
    assert replace(seen, lasting=0.9).promises(Burden(3, 30.0, own=300.0))
    assert not replace(seen, spent=2000.0).promises(dear), "small slices, or much to observe"
    gained = 0.5 * dear.saved - 0.25 * dear.returned - seen.spent
    assert replace(seen, lasting=0.25).gain(dear) == pytest.approx(gained)


def test_an_account_lives_on_its_stake_and_on_what_it_owes() -> None:
    """What it earns beyond both is not there to be lost later."""
    account = Account()
    account.begin(100.0)
    assert account.watching
    assert account.book(1000.0, 0.0, owed=50.0)
    assert account.credit == 150.0
    assert account.book(0.0, 60.0, owed=0.0)
    assert account.credit == 90.0
    assert account.book(0.0, 90.0, owed=0.0), "spent, and not lost yet"
    assert not account.book(0.0, 1.0, owed=0.0)
    assert not account.watching


def test_trials_cost_by_what_they_look_at() -> None:
    assert trial_cost(1000) - trial_cost(0) == 1000 * trials.SWEPT


def test_the_burden_of_a_stream_in_an_m_join() -> None:
    """A's way is B, C, D. Before it comes to D, A has probed B, C and D and found b's and c's; others have found a's on
    ways that had not come to D. C's and D's ways do not lead to A before B."""
    given = query(
        "SELECT A.ts AS at FROM a A [RANGE 99 ms], b B [RANGE 99 ms], c C [RANGE 99 ms], d D [RANGE 99 ms] "
        "WHERE A.k = B.k AND B.v = C.v AND C.k = D.k"
    )
    engine = Engine(given, plan=left_deep("ABCD"), executor="mjoin")
    executor = engine._executor
    assert isinstance(executor, MJoin)
    rows = inputs(a="5 k=1", b="1 k=1 v=1 | 2 k=1 v=1 | 7 k=1 v=1", c="3 v=1 k=9", d="9 k=8")
    feed(engine, rows, [9], 1000)
    assert executor.orders["A"] == ("B", "C", "D")
    # a5: one probe finds b1 and b2, two probes find c3 twice, two probes at D. b7 has found a5; c3 came before it.
    assert executor.burden("A", "D") == (5, 4, 1)
    assert executor.burden("A", "B") == (1, 0, 0)
    assert executor.burden("A", "C") == (3, 2, 1)
