"""Selectivities measured on joined samples, against counting all combinations."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.autopilot.evidence import measure, with_joint
from operators.autopilot.join_sample import FEW_RECENT, JoinSample
from operators.engine.engine import Engine
from operators.plan.plan import left_deep, parse_plan
from schemas.query import Query
from tests.feeding import to_batch
from tests.operators.migrating import joined
from tests.profiles import PROPERTY

Row = dict[str, int]


def engine_with(query: Query, rows: dict[str, list[Row]]) -> Engine:
    """An engine that has processed rows by alias, ascending by ts, up to the latest."""
    engine = Engine(query)
    for source in query.sources:
        whole = [{"d": None, "s": None, "f": None, **row} for row in rows[source.alias]]
        engine.push(source.stream.name, 0, to_batch(source.stream, whole))  # type: ignore[arg-type]
    engine.advance(max(row["ts"] for some in rows.values() for row in some) + 1)
    return engine


def streams(aliases: str) -> st.SearchStrategy[dict[str, list[Row]]]:
    row = st.fixed_dictionaries({"ts": st.integers(0, 98), "k": st.integers(0, 2), "v": st.integers(0, 3)})
    some = st.lists(row, min_size=1, max_size=12).map(lambda rows: sorted(rows, key=lambda row: row["ts"]))
    return st.fixed_dictionaries(dict.fromkeys(aliases, some))


def counted(rows: dict[str, list[Row]], aliases: str, recent_from: int, *conditions: object) -> tuple[int, int]:
    """How many combinations have a recent component, and how many of them satisfy all conditions."""
    recent = [c for c in product(*(rows[a] for a in aliases)) if any(row["ts"] >= recent_from for row in c)]
    return len(recent), sum(all(condition(*c) for condition in conditions) for c in recent)  # type: ignore[operator]


CONDITIONS = [
    ("A.k = B.k", lambda a, b, *_: a["k"] == b["k"]),
    ("A.k = B.k AND A.v < B.v", lambda a, b, *_: a["k"] == b["k"] and a["v"] < b["v"]),
    ("A.v < B.v", lambda a, b, *_: a["v"] < b["v"]),
]


@pytest.mark.parametrize(("text", "condition"), CONDITIONS)
@PROPERTY
@given(streams("AB"))
def test_shares_of_pairs_are_exact_where_the_sample_is_everything(
    text: str, condition: object, rows: dict[str, list[Row]]
) -> None:
    engine = engine_with(joined(text, aliases="AB"), rows)
    sampled = JoinSample(engine.sources, engine.cut, 40, 100)
    every, good = counted(rows, "AB", engine.cut - 40, condition)
    share = sampled.share(left_deep(("A", "B")))
    if not every:
        assert share is None
        return
    assert share is not None
    assert share.matches == good
    assert math.exp(share.log) == pytest.approx(max(good, 0.5) / every)
    assert share.log_key >= share.log - 1e-9


@pytest.mark.parametrize("apart", [frozenset[str](), frozenset("A")])
@PROPERTY
@given(streams("AB"))
def test_a_fresh_sample_joins_recent_tuples_alone(apart: frozenset[str], rows: dict[str, list[Row]]) -> None:
    engine = engine_with(joined("A.k = B.k", aliases="AB"), rows)
    sampled = JoinSample(engine.sources, engine.cut, 40, 100, fresh=True, apart=apart)
    recent = {alias: [row for row in some if row["ts"] >= engine.cut - 40] for alias, some in rows.items()}
    given = {alias: rows[alias] if alias in apart else recent[alias] for alias in rows}
    every, good = counted(given, "AB", engine.cut - 40, lambda a, b: a["k"] == b["k"])
    share = sampled.share(left_deep(("A", "B")))
    assert (share is None) == (every == 0)
    if share is not None:
        assert share.matches == good
        assert math.exp(share.log) == pytest.approx(max(good, 0.5) / every)
    assert sampled.selected("A") == 1.0, "how many come does not depend on it"


def test_few_recent_tuples_say_less_than_it_seems() -> None:
    rows: dict[str, list[Row]] = {alias: [{"ts": n // 20, "k": n % 50, "v": 0} for n in range(2000)] for alias in "AB"}
    engine = engine_with(joined("A.k = B.k", aliases="AB"), rows)
    every, fresh = (
        JoinSample(engine.sources, engine.cut, 1000, 1000, fresh=fresh).share(left_deep(("A", "B")))
        for fresh in (False, True)
    )
    assert every is not None
    assert fresh is not None
    assert fresh.log == every.log
    assert fresh.variance == pytest.approx(FEW_RECENT * every.variance)


@pytest.mark.parametrize("lag", [0, 50])
def test_partners_that_come_far_apart_are_noticed(lag: int) -> None:
    rows: dict[str, list[Row]] = {
        "A": [{"ts": n // 20, "k": n // 2, "v": 0} for n in range(2000)],
        "B": [{"ts": n // 20, "k": n // 2 - 10 * lag, "v": 0} for n in range(2000)],
    }
    engine = engine_with(joined("A.k = B.k", aliases="AB"), rows)
    sampled = JoinSample(engine.sources, engine.cut, 25, 1000)
    assert sampled.comes_apart(left_deep(("A", "B"))) == (lag > 0)


def test_independent_partners_do_not_come_apart() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        for count in (12, 200, 3000):
            drawn = {alias: rng.integers(0, 40, count).tolist() for alias in "AB"}
            rows = {a: [{"ts": i * 90 // count, "k": k, "v": 0} for i, k in enumerate(drawn[a])] for a in "AB"}
            engine = engine_with(joined("A.k = B.k", aliases="AB"), rows)
            sampled = JoinSample(engine.sources, engine.cut, 25, 1000)
            assert not sampled.comes_apart(left_deep(("A", "B")))


@PROPERTY
@given(streams("ABC"))
def test_shares_of_larger_sets_are_exact_where_the_sample_is_everything(rows: dict[str, list[Row]]) -> None:
    engine = engine_with(joined("A.k = B.k AND B.v = C.v", aliases="ABC"), rows)
    sampled = JoinSample(engine.sources, engine.cut, 1000, 100)
    every, good = counted(rows, "ABC", 0, lambda a, b, c: a["k"] == b["k"] and b["v"] == c["v"])
    for tree in ("((A B) C)", "(A (B C))"):
        share = sampled.share(parse_plan(tree, engine.query))
        assert share is not None
        assert share.matches == good
        assert math.exp(share.log) == pytest.approx(max(good, 0.5) / every)


def correlated(count: int, seed: int) -> dict[str, list[Row]]:
    """B joins A on k and C on v. What joins by k never joins by v: A B C is empty, though no pair is."""
    rng = np.random.default_rng(seed)
    rows: dict[str, list[Row]] = {}
    for alias in "ABC":
        k, v = rng.integers(0, 20, count), rng.integers(0, 20, count)
        if alias == "A":
            k = k % 10
        if alias == "B":
            v = np.where(k < 10, v % 10, 10 + v % 10)
        if alias == "C":
            v = 10 + v % 10
        rows[alias] = [{"ts": i * 90 // count, "k": int(k[i]), "v": int(v[i])} for i in range(count)]
    return rows


def test_correlation_is_seen_in_the_larger_set_alone() -> None:
    engine = engine_with(joined("A.k = B.k AND B.v = C.v", aliases="ABC"), correlated(2000, 1))
    sampled = JoinSample(engine.sources, engine.cut, 50, 500)
    evidence = measure(engine.sources, sampled, 50)
    assert evidence is not None
    assert math.exp(evidence.pairs[frozenset("AB")].log) == pytest.approx(0.05, rel=0.3)
    joint = sampled.share(parse_plan("((A B) C)", engine.query))
    assert joint is not None
    assert joint.matches == 0
    whole = with_joint(evidence, sampled, [parse_plan("((A B) C)", engine.query)])
    assert not whole.joint, "the whole plan's own size is the same for every plan"


def test_the_variance_covers_the_error() -> None:
    """Shares from different samples scatter by about the stated errors, also where one key has most matches."""
    rng = np.random.default_rng(5)
    logs, errors = [], []
    for _ in range(30):
        rows = {
            alias: [{"ts": i * 90 // 400, "k": int(rng.zipf(1.5)) % 1000, "v": 0} for i in range(400)] for alias in "AB"
        }
        engine = engine_with(joined("A.k = B.k", aliases="AB"), rows)
        share = JoinSample(engine.sources, engine.cut, 1000, 200).share(left_deep(("A", "B")))
        assert share is not None
        logs.append(share.log)
        errors.append(math.sqrt(share.variance))
    assert np.std(logs) < 2 * np.median(errors)
    assert np.median(errors) < 5 * np.std(logs)


def test_rates_are_those_of_the_recent_part_of_the_window() -> None:
    rows = {
        "A": [{"ts": t, "k": 0, "v": 0} for t in range(100) for _ in range(1 if t < 50 else 4)],
        "B": [{"ts": t, "k": 0, "v": 0} for t in range(0, 100, 10)],
    }
    engine = engine_with(joined("A.k = B.k", aliases="AB", window="[RANGE 99 ms]"), rows)
    evidence = measure(engine.sources, JoinSample(engine.sources, engine.cut, 25, 1000), 25)
    assert evidence is not None
    assert evidence.arrivals["A"].rate == pytest.approx(4000.0)
    assert evidence.arrivals["A"].living == pytest.approx(396.0)
    assert evidence.arrivals["B"].rate == pytest.approx(80.0)
