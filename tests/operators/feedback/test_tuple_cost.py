"""The cost of a tuple where no intermediate results are stored: an average that fades."""

from __future__ import annotations

import pytest

from operators.engine.engine import Engine
from operators.feedback.payoff import tuple_cost as prices
from operators.feedback.payoff.tuple_cost import PATH_PRICES, DecayingSums, PathTupleCost, trial_cost, work_of
from operators.join.mjoin import MJoin
from operators.plan.plan import left_deep
from operators.state.match import MatchCounters
from tests.feeding import feed
from tests.operators.inside import executor_as
from tests.operators.tiny import inputs, query


def test_the_work_of_a_half_join() -> None:
    """Probes at the executor's price, comparisons, and results."""
    counters = MatchCounters(input_tuples=3, comparisons=5, results=2)
    assert work_of(counters, 10.0) == 30.0 + 5 * prices.COMPARE_NS + 2 * prices.RESULT_NS


def test_sums_fade_and_start_where_they_began() -> None:
    """What was there before does not count; after a restart the totals are another counter's."""
    sums = DecayingSums(100.0, 1.0)
    assert sums.update(130.0, 2.0) == (30.0, 1.0)
    assert sums.update(131.0, 2.0) == (prices.DECAY * 30.0 + 1.0, prices.DECAY)
    assert sums.latest == (1.0, 0.0)
    sums.restart()
    faded = prices.DECAY * (prices.DECAY * 30.0 + 1.0)
    assert sums.update(5.0, 0.0) == (pytest.approx(faded + 5.0), pytest.approx(prices.DECAY**2))


def test_a_tuples_cost_is_an_average_that_fades() -> None:
    """Ten tuples that cost 100 each, then ten that cost none: less than half is left of it, and something."""
    cost = PathTupleCost(2)
    cost.update(0.0, 0.0, 0)
    assert (cost.own, cost.met, cost.latest_met) == (0.0, 0.0, 0.0), "nothing entered, nothing known"
    cost.update(1000.0, 500.0, 10)
    assert (cost.own, cost.met, cost.latest_met) == (100.0, 50.0, 500.0)
    cost.update(1000.0, 900.0, 20)
    fading = prices.DECAY
    assert cost.own == pytest.approx(fading * 1000 / (fading * 10 + 10))
    assert cost.met == pytest.approx((fading * 500 + 400) / (fading * 10 + 10))
    assert cost.saved == 2 * prices.ENTER_NS + cost.own + cost.met - prices.BLACKLIST_NS
    assert cost.returned == prices.RETURN_NS + 2 * prices.ENTER_NS + cost.met / 2
    # Another operator's visits begin to count at 0.
    successor = PathTupleCost(3)
    successor.take_over(cost)
    assert successor.saved == pytest.approx(cost.saved + prices.ENTER_NS), "it has its own structures"
    successor.update(0.0, 0.0, 0)
    assert (successor.own, successor.met) == (pytest.approx(cost.own), pytest.approx(cost.met))
    before = fading**2 * (fading * 10 + 10)
    successor.update(600.0, 0.0, 2)
    assert successor.own == pytest.approx((cost.own * before + 600) / (before + 2)), "its totals began at 0"


def test_trials_cost_by_what_they_look_at() -> None:
    assert trial_cost(1000) - trial_cost(0) == 1000 * PATH_PRICES.entry


def test_the_work_of_a_stream_in_an_m_join() -> None:
    """A's way is B, C, D. Before it comes to D, A has probed B, C and D and found b's and c's; others have found a's on
    ways that had not come to D. C's and D's ways do not lead to A before B."""
    given = query(
        "SELECT A.ts AS at FROM a A [RANGE 99 ms], b B [RANGE 99 ms], c C [RANGE 99 ms], d D [RANGE 99 ms] "
        "WHERE A.k = B.k AND B.v = C.v AND C.k = D.k"
    )
    engine = Engine(given, plan=left_deep("ABCD"), executor="mjoin")
    executor = executor_as(engine, MJoin)
    rows = inputs(a="5 k=1", b="1 k=1 v=1 | 2 k=1 v=1 | 7 k=1 v=1", c="3 v=1 k=9", d="9 k=8")
    feed(engine, rows, [9], 1000)
    assert executor.orders["A"] == ("B", "C", "D")
    # a5: one probe finds b1 and b2, two probes find c3 twice, two probes at D. b7 has found a5; c3 came before it.
    assert executor.work_before("A", "D") == (5, 4, 1)
    assert executor.work_before("A", "B") == (1, 0, 0)
    assert executor.work_before("A", "C") == (3, 2, 1)
