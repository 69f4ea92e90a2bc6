"""The search for the cheapest plan, against brute force, and prices against the cost model of migrations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.autopilot import search
from operators.autopilot.evidence import VARIED_ALONE, VARIED_TOGETHER, Aliases, Arrivals, Evidence
from operators.autopilot.join_sample import Share
from operators.autopilot.search import cheapest_by_last_join, cheapest_plan, price, prices, same_tree
from operators.autopilot.sizes import demanded, sizes_of
from operators.plan.plan import Join, Leaf, Plan, left_deep, postorder
from tests.operators.migrating import joined
from tests.operators.tiny import query
from tests.profiles import PROPERTY

NAMES = "ABCDEF"


def trees(aliases: tuple[str, ...]) -> Iterator[Plan]:
    """Every tree over some aliases; the first one is always on the left."""
    if len(aliases) == 1:
        yield Leaf(aliases[0])
    for count in range(len(aliases) - 1):
        for others in combinations(aliases[1:], count):
            left = (aliases[0], *others)
            right = tuple(alias for alias in aliases if alias not in left)
            for a in trees(left):
                for b in trees(right):
                    yield Join(a, b)


def crosses(plan: Plan, pairs: frozenset[Aliases]) -> bool:
    """Whether some join has no predicate."""
    return any(
        isinstance(node, Join)
        and not any(frozenset((a, b)) in pairs for a in node.left.aliases for b in node.right.aliases)
        for node in postorder(plan)
    )


@st.composite
def evidences(draw: st.DrawFn, most: int = 5) -> Evidence:
    """Connected graphs of predicates with any rates and shares, and a few measured larger sets."""
    aliases = NAMES[: draw(st.integers(3, most))]
    query = joined(" AND ".join(f"{a}.k = {b}.v" for a, b in pairwise(aliases)), aliases=aliases)
    arrivals = {}
    for alias in aliases:
        rate = draw(st.floats(0.1, 1000))
        arrivals[alias] = Arrivals(rate, rate * draw(st.floats(0.1, 20)), 0.01)
    pairs, keyed = {}, set()
    for number, alias in enumerate(aliases[1:], 1):
        others = draw(st.sets(st.sampled_from(aliases[:number]), min_size=1))
        for other in others:
            key = -draw(st.floats(0.0, 9.0))
            pairs[frozenset((alias, other))] = Share(key - draw(st.floats(0.0, 2.0)), key, 0.02, 50)
            if draw(st.booleans()):
                keyed.add(frozenset((alias, other)))
    sets = st.sets(st.sampled_from(aliases), min_size=3, max_size=len(aliases))
    measured = draw(st.lists(sets, max_size=2))
    joint = {frozenset(some): Share(-draw(st.floats(0.0, 20.0)), 0.0, 0.1, 9) for some in measured}
    return Evidence(query, arrivals, pairs, frozenset(keyed), joint)


@PROPERTY
@given(evidences())
def test_no_tree_without_a_cross_product_is_cheaper(evidence: Evidence) -> None:
    aliases = tuple(evidence.arrivals)
    every = [plan for plan in trees(aliases) if not crosses(plan, frozenset(evidence.pairs))]
    running = max(every, key=lambda plan: price(evidence, plan))
    found = cheapest_plan(evidence, running)
    least = min(price(evidence, plan) for plan in every)
    assert price(evidence, found) == pytest.approx(least, rel=1e-9)
    assert not crosses(found, frozenset(evidence.pairs))


@PROPERTY
@given(evidences())
def test_of_each_last_join_the_cheapest_tree_is_found(evidence: Evidence) -> None:
    aliases, least = tuple(evidence.arrivals), dict[frozenset[Aliases], float]()
    for plan in trees(aliases):
        if not crosses(plan, frozenset(evidence.pairs)):
            last = inputs(plan)
            least[last] = min(least.get(last, math.inf), price(evidence, plan))
    found = cheapest_by_last_join(evidence, left_deep(aliases), 1000)
    assert {inputs(plan): price(evidence, plan) for plan in found} == pytest.approx(least)
    assert [price(evidence, plan) for plan in found] == pytest.approx(sorted(least.values()))
    assert cheapest_by_last_join(evidence, left_deep(aliases), 2) == found[:2]


def inputs(plan: Plan) -> frozenset[Aliases]:
    """The aliases of the last join's inputs."""
    assert isinstance(plan, Join)
    return frozenset({frozenset(plan.left.aliases), frozenset(plan.right.aliases)})


@PROPERTY
@given(evidences())
def test_the_search_over_intervals_is_no_worse_than_the_running_plan(evidence: Evidence) -> None:
    running = left_deep(tuple(evidence.arrivals))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "MOST_SUBSETS", 2)
        found = cheapest_plan(evidence, running)
    assert sorted(found.aliases) == sorted(running.aliases)
    assert price(evidence, found) <= price(evidence, running) * (1 + 1e-9)
    assert price(evidence, cheapest_plan(evidence, running)) <= price(evidence, found) * (1 + 1e-9)


def chain(count: int) -> Evidence:
    """A chain of streams that each have half the rate of the one before."""
    aliases = [f"S{n}" for n in range(count)]
    query = joined("A.k = B.k", aliases="AB")
    arrivals = {alias: Arrivals(1000.0 / (n + 1), 10_000.0 / (n + 1), 0.0) for n, alias in enumerate(aliases)}
    pairs = {frozenset(pair): Share(-8.0, -8.0, 0.0, 99) for pair in pairwise(aliases)}
    return Evidence(query, arrivals, pairs, frozenset(pairs))


def test_a_hundred_streams_are_planned() -> None:
    evidence = chain(100)
    running = left_deep(tuple(evidence.arrivals))
    found = cheapest_plan(evidence, running)
    assert price(evidence, found) < price(evidence, running)
    assert sorted(found.aliases) == sorted(running.aliases)
    assert cheapest_by_last_join(evidence, running, 6)[0] == found


def test_intervals_of_a_chain_are_all_its_trees() -> None:
    evidence = chain(9)
    running = left_deep(tuple(evidence.arrivals))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "MOST_SUBSETS", 2)
        found = cheapest_plan(evidence, running)
    assert price(evidence, found) == pytest.approx(price(evidence, cheapest_plan(evidence, running)))


def test_the_running_plan_stays_among_equals() -> None:
    same = {alias: Arrivals(10.0, 100.0, 0.0) for alias in "ABC"}
    pairs = {frozenset(pair): Share(-3.0, -3.0, 0.0, 9) for pair in ("AB", "BC", "AC")}
    evidence = Evidence(joined("A.k = B.k", aliases="ABC"), same, pairs, frozenset(pairs))
    running = left_deep(("C", "A", "B"))
    assert cheapest_plan(evidence, running) is running


def test_a_measured_set_replaces_the_product_of_its_pairs_and_goes_on_into_larger_sets() -> None:
    pairs = {frozenset(pair): Share(math.log(0.1), math.log(0.1), 0.0, 9) for pair in ("AB", "BC", "CD")}
    arrivals = {alias: Arrivals(1.0, 100.0, 0.0) for alias in "ABCD"}
    joint = {frozenset("ABC"): Share(math.log(0.05), math.log(0.05), 0.0, 9)}
    evidence = Evidence(joined("A.k = B.k"), arrivals, pairs, frozenset(pairs), joint)
    members = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1], [0, 1, 1, 1]], np.bool_)
    sizes = sizes_of(evidence, members, tuple("ABCD"))
    assert np.exp(sizes.share) == pytest.approx([0.1, 0.05, 0.005, 0.01])


def test_of_a_class_one_equality_less_than_aliases_counts() -> None:
    pairs = {frozenset(pair): Share(math.log(0.01), math.log(0.01), 0.0, 9) for pair in ("AB", "BC", "AC")}
    arrivals = {alias: Arrivals(1.0, 100.0, 0.0) for alias in "ABC"}
    evidence = Evidence(
        joined("A.k = B.k", aliases="ABC"), arrivals, pairs, frozenset(pairs), classes=(frozenset("ABC"),)
    )
    sizes = sizes_of(evidence, np.array([[1, 1, 0], [1, 1, 1]], np.bool_), tuple("ABC"))
    assert np.exp(sizes.share) == pytest.approx([0.01, 0.0001])


def test_feedback_leaves_what_has_a_partner_in_every_source_above() -> None:
    evidence = chain(3)
    a, b, c = names = tuple(evidence.arrivals)
    sets = np.array([[True, True, False], [True, False, False], [True, True, True], [False, True, True]])
    lefts = demanded(evidence, sets, names)
    for number, one, other in ((0, b, c), (3, b, a)):
        partners = math.exp(evidence.pairs[frozenset((one, other))].log) * evidence.arrivals[other].living
        assert lefts[number] == pytest.approx(math.log(1 - math.exp(-partners)))
    assert lefts[1] == lefts[2] == 0.0
    plain, less = (sizes_of(replace(evidence, withheld=power), sets, names) for power in (0.0, 0.5))
    assert less.rate == pytest.approx(plain.rate * np.exp(0.5 * lefts))
    assert less.held == pytest.approx(plain.held * np.exp(0.5 * lefts))


def test_a_set_difference_keeps_what_has_no_match_and_subtracts_first_what_stops_most() -> None:
    parts = " ".join(f"EXCEPT {x.lower()} {x} [RANGE 9 ms] ON A.k = {x}.k" for x in "BCD")
    given = query(f"SELECT A.k FROM a A [RANGE 9 ms] {parts}")
    matches = {"B": 0.1, "C": 3.0, "D": 0.5}
    arrivals = {alias: Arrivals(10.0, 1000.0, 0.01) for alias in "ABCD"}
    pairs = {frozenset(("A", x)): Share(math.log(n / 1000.0), math.log(n / 1000.0), 0.0, 9) for x, n in matches.items()}
    evidence = Evidence(given, arrivals, pairs, frozenset(pairs))
    sets = np.array([[True, False, True, False], [True, True, True, True], [False, True, False, False]])
    sizes = sizes_of(evidence, sets, tuple("ABCD"))
    assert sizes.held == pytest.approx([1500 * math.exp(-3.0), 1500 * math.exp(-3.6), 1000.0])
    assert str(cheapest_plan(evidence, left_deep(tuple("ABCD")))) == "(((A C) D) B)"
    every = cheapest_by_last_join(evidence, left_deep(tuple("ABCD")), 6)
    assert [str(plan) for plan in every] == ["(((A C) D) B)", "(((A C) B) D)", "(((A D) B) C)"]
    del pairs[frozenset("AB")]
    assert str(cheapest_plan(replace(evidence, pairs=pairs), left_deep(tuple("ABCD")))) == "(((A B) C) D)"
    assert cheapest_by_last_join(replace(evidence, pairs=pairs), left_deep(tuple("ABCD")), 6) == []


def test_trees_with_the_same_sub_plans_are_the_same() -> None:
    a, b, c = Leaf("A"), Leaf("B"), Leaf("C")
    assert same_tree(Join(Join(a, b), c), Join(c, Join(b, a)))
    assert not same_tree(Join(Join(a, b), c), Join(a, Join(b, c)))


def test_a_price_is_that_of_its_joins() -> None:
    evidence = chain(4)
    plan = left_deep(tuple(evidence.arrivals))
    assert price(evidence, plan) == pytest.approx(float(prices(evidence, plan).sum()))
    assert len(prices(evidence, plan)) == 3


def clique(size: int) -> Evidence:
    """All pairs are related, by selectivities that are known more and less well."""
    aliases = tuple(f"S{number}" for number in range(size))
    related = list(combinations(aliases, 2))
    streams = " AND ".join(f"{a}.k = {b}.v" for a, b in pairwise(NAMES))
    query = joined(streams, aliases=NAMES)  # only what relates the streams matters, and that is given
    rng = np.random.default_rng(size)
    shares = [Share(-rng.uniform(1, 4), -rng.uniform(0, 1), rng.uniform(0.0, 0.1), 9) for _ in related]
    shares[:40:8] = [replace(share, variance=9.0) for share in shares[:40:8]]
    pairs = {frozenset(pair): share for pair, share in zip(related, shares, strict=True)}
    return Evidence(
        query, {alias: Arrivals(rng.uniform(1, 9), 50.0, 0.01) for alias in aliases}, pairs, frozenset(pairs)
    )


def test_the_error_of_many_numbers_is_that_of_each_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 171 pairs the numbers are varied together; the estimate stays, and takes no more evaluations."""
    evidence = clique(19)
    aliases = tuple(evidence.arrivals)
    plans = search.PlanPrices([left_deep(aliases), left_deep(aliases[::-1])])
    estimated = search.squared_error(plans, evidence, np.zeros(2))
    varied = list(evidence.varied())
    assert len(varied) == VARIED_ALONE + VARIED_TOGETHER
    assert sum(weight for _, weight in varied) == pytest.approx(VARIED_ALONE + 1)
    changed = [[p for p, share in one.pairs.items() if share != evidence.pairs[p]] for one, _ in varied[:5]]
    assert [[evidence.pairs[pair].variance for pair in some] for some in changed] == [[9.0]] * 5, "the least certain"
    monkeypatch.setattr("operators.autopilot.evidence.MOST_VARIED", 1000)
    assert len(list(evidence.varied())) == 171 + 19
    assert estimated == pytest.approx(search.squared_error(plans, evidence, np.zeros(2)), rel=0.3)
