"""The first plan is the obvious one under given statistics, the same every time, and quickly found for many streams."""

from __future__ import annotations

import time

import numpy as np
import pytest

from operators.plan import choose
from operators.plan.choose import (
    DEFAULT_DISTINCT,
    DEFAULT_RATE,
    CostModel,
    Statistics,
    choose_plan,
    declared_statistics,
    sample_statistics,
)
from operators.plan.plan import Join, parse_plan, postorder
from tests.operators.tiny import chain, numbers, query

PAIRED = query(
    "SELECT A.k FROM a A [RANGE 10000 ms], b B [RANGE 10000 ms], c C [RANGE 10000 ms] WHERE A.k = B.k AND B.v = C.v"
)


def test_joins_the_selective_pair_first() -> None:
    """The pair with more distinct values makes fewer intermediate results."""
    left = Statistics(distinct={("A", "k"): 1e6, ("B", "k"): 1e6, ("B", "v"): 10, ("C", "v"): 10})
    right = Statistics(distinct={("A", "k"): 10, ("B", "k"): 10, ("B", "v"): 1e6, ("C", "v"): 1e6})
    assert str(choose_plan(PAIRED, left)) == "((A B) C)"
    assert str(choose_plan(PAIRED, right)) == "(A (B C))"


def test_joins_the_slow_streams_first() -> None:
    """With equal selectivity the rates decide."""
    assert str(choose_plan(PAIRED, Statistics(rates={"A": 1000, "B": 10, "C": 10}))) == "(A (B C))"
    assert str(choose_plan(PAIRED, Statistics(rates={"A": 10, "B": 10, "C": 1000}))) == "((A B) C)"


def test_short_windows_first() -> None:
    """A short window holds few tuples."""
    sources = "a A [RANGE 1000000 ms], b B [RANGE 1000 ms], c C [RANGE 1000 ms]"
    short = query(f"SELECT A.k FROM {sources} WHERE A.k = B.k AND B.v = C.v")
    assert str(choose_plan(short)) == "(A (B C))"


def test_a_selection_makes_its_stream_small() -> None:
    """Measured shares count; without them a selection is assumed to keep a quarter."""
    sources = "a A [RANGE 10000 ms], b B [RANGE 10000 ms], c C [RANGE 10000 ms]"
    selected = query(f"SELECT A.k FROM {sources} WHERE A.k = B.k AND B.v = C.v AND C.k > 3")
    assert str(choose_plan(selected)) == "(A (B C))"
    assert str(choose_plan(selected, Statistics(selected={"A": 0.01, "C": 1.0}))) == "((A B) C)"


def test_no_cross_products_where_predicates_connect() -> None:
    """Even when one looks cheap. Regression: (A C) was taken as a sub-plan, though nothing connects them."""
    star = query(
        "SELECT A.k FROM a A [RANGE 1 ms], b B [RANGE 1000 ms], c C [RANGE 1 ms], d D [RANGE 1 ms] "
        "WHERE A.k = B.k AND B.v = C.v AND B.ts = D.ts"
    )
    model = CostModel(star, Statistics())
    for node in postorder(choose_plan(star, Statistics(rates={"B": 1e6}))):
        if isinstance(node, Join):
            assert model.connected(frozenset(node.left.aliases), frozenset(node.right.aliases)), node


def test_unconnected_streams_get_a_plan_too() -> None:
    """Connected streams are joined first. Regression: with B connected to nothing, ((A B) C) was the only
    shape considered, as its topmost join is connected."""
    loose = query("SELECT A.k FROM a A [ROWS 1], b B [ROWS 1], c C [ROWS 1] WHERE A.k = C.k")
    plan = choose_plan(loose)
    assert sorted(plan.aliases) == ["A", "B", "C"]
    assert "(A C)" in str(plan)


def test_one_source() -> None:
    """Nothing to choose."""
    assert str(choose_plan(query("SELECT A.k FROM a A [ROWS 1]"))) == "A"


@pytest.mark.parametrize("star", [False, True])
def test_101_streams_within_seconds(star: bool) -> None:
    """Greedy beyond a handful, judging each pair of sub-plans once."""
    long = chain(101, star=star)
    began = time.process_time()
    plan = choose_plan(long)
    assert time.process_time() - began < 5
    assert sorted(plan.aliases) == sorted(s.alias for s in long.sources)


@pytest.mark.parametrize("count", [2, 5, 9, 10, 12])
def test_deterministic_and_complete(count: int) -> None:
    """The same text always has the same plan, on both sides of the limit of exhaustive search."""
    first = choose_plan(chain(count))
    assert choose_plan(chain(count)) == first
    assert sorted(first.aliases) == sorted(f"A{i}" for i in range(count))


def test_greedy_does_as_well_as_exhaustive_on_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain with one selective edge at its end: both join it first."""
    sources = ", ".join(f"{name} A{i} [RANGE 10 ms]" for i, name in enumerate("abcde"))
    where = " AND ".join(f"A{i}.v = A{i + 1}.k" for i in range(4))
    five = query(f"SELECT A0.k FROM {sources} WHERE {where}", streams="abcde")
    statistics = Statistics(distinct={(f"A{i}", "k"): 1e6 if i == 4 else 10.0 for i in range(1, 5)})
    exhaustive = choose_plan(five, statistics)
    monkeypatch.setattr(choose, "MAX_EXHAUSTIVE_ALIASES", 1)
    greedy = choose_plan(five, statistics)
    assert "(A3 A4)" in str(exhaustive)
    assert "(A3 A4)" in str(greedy)


def test_sampled_statistics() -> None:
    """Rates from the span, distinct values by Chao's estimate, shares of selections; null values left out."""
    sampled = query("SELECT A.k FROM a A [ROWS 1], b B [ROWS 1] WHERE A.k = B.k AND A.v > 4 AND A.d = 1.0")
    n = 1001
    batch = numbers(np.arange(n) * 10, k=np.arange(n) % 7, v=np.arange(n) % 10, d=np.ones(n))
    found = sample_statistics(sampled, {"a": batch})
    assert found.sampled
    assert found.rates == {"A": pytest.approx(100.1)}
    assert found.selected["A"] == pytest.approx(0.5, abs=0.01)
    assert found.distinct == {("A", "k"): 7.0}, "only join columns, and b was not sampled"
    ones = sample_statistics(sampled, {"b": numbers(np.arange(n), k=np.arange(n))})
    assert ones.distinct["B", "k"] > 100 * n, "all different: the population is far larger than the sample"
    assert sample_statistics(sampled, {"a": batch.slice(0, 0)}).rates == {}
    assert sample_statistics(sampled, {"a": batch.slice(0, 1)}).rates == {"A": 1000.0}
    never = query("SELECT A.k FROM a A [ROWS 1], b B [ROWS 1] WHERE A.k = B.k AND A.v > 40")
    assert 0 < sample_statistics(never, {"a": batch}).selected["A"] < 0.001, "none seen is not none at all"


def test_estimates() -> None:
    """Sizes equal those computed by hand: rate x window, one pair in max(distinct)."""
    model = CostModel(PAIRED, Statistics(rates={"A": 100}, distinct={("A", "k"): 50, ("B", "k"): 500}))
    plan = parse_plan("((A B) C)", PAIRED)
    sizes = model.estimates(plan)
    assert sizes[frozenset("A")].rate == 100
    assert sizes[frozenset("A")].alive == 1000
    assert sizes[frozenset("B")].rate == DEFAULT_RATE
    both = sizes[frozenset("AB")]
    assert both.rate == pytest.approx((100 * 10_000 + 1000 * 1000) / 500)
    assert both.alive == pytest.approx(1000 * 10_000 / 500), "a result is alive while both components are"
    assert both.cost == pytest.approx(100 + 1000 + both.rate)
    assert model.estimate(plan) == sizes[frozenset("ABC")]
    assert model.selectivity(frozenset("AB"), frozenset("C")) == 1 / DEFAULT_DISTINCT


SHARED = "SELECT A.k FROM a A [RANGE 1000 ms], b B [RANGE 1000 ms], c C [RANGE 1000 ms] WHERE "
COUNTS = {("A", "k"): 10.0, ("B", "k"): 100.0, ("C", "k"): 1000.0}


def test_equalities_that_follow_from_others_join_too() -> None:
    """B and C agree wherever both agree with A, so the pair of fewest tuples is joined first without any predicate."""
    star = query(f"{SHARED} A.k = B.k AND A.k = C.k")
    model = CostModel(star, Statistics(distinct=COUNTS))
    assert model.connected(frozenset("B"), frozenset("C"))
    assert model.hashed(frozenset("B"), frozenset("C"))
    assert str(choose_plan(star, Statistics(rates={"A": 1000, "B": 10, "C": 10}))) == "(A (B C))"
    assert not CostModel(PAIRED, Statistics()).connected(frozenset("A"), frozenset("C"))


def test_equalities_that_follow_from_others_count_once() -> None:
    """Whichever are written, and in whichever order they are joined."""
    star = CostModel(query(f"{SHARED} A.k = B.k AND A.k = C.k"), Statistics(distinct=COUNTS))
    clique = CostModel(query(f"{SHARED} A.k = B.k AND A.k = C.k AND B.k = C.k"), Statistics(distinct=COUNTS))
    plans = [parse_plan(text, star.query) for text in ("((A B) C)", "((A C) B)", "(A (B C))")]
    assert [model.estimate(plan).alive for model in (star, clique) for plan in plans] == [pytest.approx(1e4)] * 6
    assert star.selectivity(frozenset("AB"), frozenset("C")) == 1 / 1000
    assert star.selectivity(frozenset("AC"), frozenset("B")) == 1 / 100, "AC has no more values than A"
    assert clique.shares("C", {"A", "B"}) == [1 / 1000]
    wider = SHARED.replace("WHERE", ", d D [ROWS 5] WHERE") + "A.k = B.k AND A.k = C.k AND A.v = D.v"
    beside = CostModel(query(wider), Statistics(distinct=COUNTS))
    assert beside.selectivity(frozenset("A"), frozenset("D")) == 1 / DEFAULT_DISTINCT, "D has no operand in the class"
    assert not beside.connected(frozenset("B"), frozenset("D"))
    assert (beside.shares("B", {"D"}), beside.shares("A", {"D"})) == ([], [1 / DEFAULT_DISTINCT])
    assert CostModel(star.query, Statistics()).selectivity(frozenset("B"), frozenset("C")) == 1 / DEFAULT_DISTINCT


def test_declared_statistics() -> None:
    """`rate` and `distinct` of a declaration hold for every alias of the stream."""
    assert declared_statistics(PAIRED) == Statistics()
    twice = query("SELECT A.k FROM a A [ROWS 1], a B [ROWS 1] WHERE A.k = B.k", options=", rate = 50, distinct = 'k:7'")
    known = declared_statistics(twice)
    assert known.rates == {"A": 50.0, "B": 50.0}
    assert known.distinct == {("A", "k"): 7.0, ("B", "k"): 7.0}
    assert sample_statistics(twice, {"a": numbers(np.arange(9))}).distinct == known.distinct, "declared first"
