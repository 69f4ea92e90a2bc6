"""When guards over SteMs watch: the cost of a tuple, the result of a trial, and the end of a budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from operators.engine.engine import Engine
from operators.feedback import guard_payoff as payoff
from operators.feedback.guard_payoff import Balance, StemTupleCost, TrialResult, trial_cost, work_of
from operators.join.mjoin import MJoin
from operators.plan.plan import left_deep
from operators.state.match import MatchCounters
from tests.feeding import feed
from tests.operators.tiny import inputs, query


def test_the_work_of_a_half_join() -> None:
    """Probes at the executor's price, comparisons, and results."""
    counters = MatchCounters(input_tuples=3, comparisons=5, results=2)
    assert work_of(counters, 10.0) == 30.0 + 5 * payoff.COMPARE_NS + 2 * payoff.RESULT_NS


def test_a_burden_is_an_average_that_fades() -> None:
    """Ten tuples that cost ten probes each, then ten that cost none: less than half is left of it, and something."""
    tuple_cost = StemTupleCost(states=2, probing=10.0)
    tuple_cost.update((100, 0, 0), 10)
    assert (tuple_cost.own_path_cost, tuple_cost.match_cost, tuple_cost.latest_matches) == (100.0, 0.0, 0)
    tuple_cost.update((100, 5, 7), 20)
    assert tuple_cost.latest_matches == 7
    fading = payoff.DECAY
    assert tuple_cost.own_path_cost == pytest.approx((fading * 1000 + 5 * payoff.RESULT_NS) / (fading * 10 + 10))
    assert tuple_cost.match_cost == pytest.approx(7 * payoff.RESULT_NS / (fading * 10 + 10))
    own = tuple_cost.own_path_cost
    tuple_cost.update((100, 5, 7), 20)
    assert tuple_cost.own_path_cost == pytest.approx(own), "nothing new: the same average"
    saved = 2 * payoff.ENTER_NS + tuple_cost.own_path_cost + tuple_cost.match_cost - payoff.BLACKLIST_NS
    assert tuple_cost.saved == saved
    assert tuple_cost.returned == payoff.RETURN_NS + 2 * payoff.ENTER_NS + tuple_cost.match_cost / 2


def test_nothing_entered_nothing_known() -> None:
    tuple_cost = StemTupleCost(states=2, probing=10.0)
    tuple_cost.update((0, 0, 0), 0)
    assert (tuple_cost.own_path_cost, tuple_cost.match_cost) == (0.0, 0.0)


def test_what_a_trial_promises() -> None:
    """Tuples that cost much and have no partners for long; not if they cost little, have partners, or get them."""
    dear, cheap = StemTupleCost(3, 30.0, own_path_cost=2000.0), StemTupleCost(3, 30.0)
    seen = TrialResult(useless=0.5, lasting=0.5, spent=2.0 * payoff.SIGNATURE_NS + 0.001 * payoff.SLICE_NS)
    assert seen.promises(dear)
    assert not seen.promises(cheap)
    assert not replace(seen, useless=0.01).promises(dear)
    assert not replace(seen, lasting=0.0).promises(StemTupleCost(3, 30.0, own_path_cost=300.0))
    assert replace(seen, lasting=0.9).promises(StemTupleCost(3, 30.0, own_path_cost=300.0))
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
    assert not balance.update(0.0, 1.0, return_cost=0.0)
    assert not balance.watching


def test_trials_cost_by_what_they_look_at() -> None:
    assert trial_cost(1000) - trial_cost(0) == 1000 * payoff.SWEEP_NS


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
    assert executor.work_before("A", "D") == (5, 4, 1)
    assert executor.work_before("A", "B") == (1, 0, 0)
    assert executor.work_before("A", "C") == (3, 2, 1)
