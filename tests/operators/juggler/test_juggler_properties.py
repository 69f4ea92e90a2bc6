"""Random groups: under any order, each query produces the oracle's results for it alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.juggler import operator
from operators.juggler.operator import ORDERS
from operators.juggler.predicates import adaptive
from operators.juggler.routing import sampling
from operators.juggler.routing.tuples_in_flight import ENCODINGS
from schemas.groups import QueryGroup, query_group
from schemas.query import Compare, Literal, Output, Query, Source, Type, Window
from tests.cases import column
from tests.feeding import canonical
from tests.operators.juggler.groups import (
    STREAMS,
    Rows,
    Runner,
    come_and_go,
    expected,
    groups,
    inputs,
    judge,
    queries,
    registrations,
    seen_since,
)
from tests.profiles import PROPERTY

FEWER = settings(PROPERTY, max_examples=max(PROPERTY.max_examples * 6 // 10, 15))


@FEWER
@given(
    groups(),
    inputs(),
    st.sampled_from(["adaptive", *ORDERS]),
    st.sampled_from(ENCODINGS),
    st.sampled_from([1, 7, 50]),
)
def test_each_query_alone(group: QueryGroup, rows: Rows, order: str, encoding: str, step: int) -> None:
    """In any order of the predicate types, by either encoding, in slices of any length."""
    runner = Runner(group, rows, order, encoding)
    found = runner.all(step)
    for member in group.members:
        got = found[member.name]
        assert canonical(got) == canonical(expected(member.query, rows)), member.name
        assert [row["_ts"] for row in got] == sorted(row["_ts"] for row in got)
        assert runner.juggler.counters.results[member.name] == len(got)


@FEWER
@given(groups(), inputs(), st.integers(1, 15), st.sampled_from([adaptive.EVALUATED_NS, 1e9]))
def test_orders_change_with_every_flight(group: QueryGroup, rows: Rows, step: int, attribute_ns: float) -> None:
    """Sample every batch, and decide with every slice, by one tuple, whether to evaluate attributes on entry."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adaptive, "SAMPLE_NS", 0.0)
        patch.setattr(adaptive, "RECHECK_TUPLES", 1)
        patch.setattr(operator, "SAMPLED_NEW_TUPLES", 1)
        patch.setattr(sampling, "SAMPLED_TUPLES", 1)
        patch.setattr(adaptive, "EVALUATED_NS", attribute_ns)
        runner = Runner(group, rows)
        found = runner.all(step)
    for member in group.members:
        assert canonical(found[member.name]) == canonical(expected(member.query, rows)), member.name


@FEWER
@given(registrations(queries), inputs(), st.sampled_from(["adaptive", *ORDERS]), st.sampled_from(ENCODINGS))
def test_queries_come_and_go(done: list[tuple[str, Any]], rows: Rows, order: str, encoding: str) -> None:
    """While it is registered, a query produces the results that it produces alone from the tuples that it may see."""
    runner = Runner(query_group([]), rows, order, encoding)
    asked = come_and_go(runner, done)
    runner.to(runner.cut + 60)
    judge(runner, asked, rows)


def test_a_constant_that_does_not_hold_is_asked_of_each_query() -> None:
    """It was put into one list with another query's, whose first input it then belonged to."""
    never = Compare(">", Literal(1, Type.BIGINT), Literal(2, Type.BIGINT))
    sources = (Source(alias, STREAMS[n], Window("RANGE", 5)) for n, alias in enumerate("AB"))
    first, second = (Query(f"q{s.alias}", None, (s,), (never,), (Output("v", column(s.alias, "v")),)) for s in sources)
    runner = Runner(query_group([first, second]), {"S0": [_row(1)], "S1": [_row(1)], "S2": []})
    assert runner.all(5) == {"qA": [], "qB": []}


def test_what_the_windows_hold_is_seen() -> None:
    """A new query sees history as far as the group's windows reach; `add` returns from when on."""
    long, short = (_pairs(name, size) for name, size in (("long", 20), ("short", 5)))
    rows: Rows = {"S0": [_row(ts) for ts in range(0, 40, 2)], "S1": [_row(ts) for ts in range(1, 40, 2)], "S2": []}
    runner = Runner(query_group([short]), rows)
    runner.to(20)
    assert runner.juggler.add(replace(short, name="again"), from_now=False, cut=20) == {}
    assert runner.juggler.add(long, from_now=False, cut=20) == {"A": 15, "B": 15}
    runner.to(25)
    # Tuples after the first query with a longer window are stored for as long as that window needs them.
    assert runner.juggler.add(replace(long, name="longer"), from_now=False, cut=25) == {"A": 15, "B": 15}
    assert runner.juggler.add(replace(long, name="new"), from_now=True, cut=25) == {"A": 25, "B": 25}
    runner.to(41)
    seen = [row for row in expected(seen_since(long, {"A": 15, "B": 15}), rows) if row["_ts"] >= 20]
    assert canonical(runner.found["long"]) == canonical(seen)
    other = Runner(query_group([short]), rows)
    other.to(20)
    other.juggler.add(replace(short, name="again"), from_now=False, cut=20)
    other.to(41)
    again = [row for row in expected(short, rows) if row["_ts"] >= 20]
    assert canonical(other.found["again"]) == canonical(again)
    assert canonical(runner.found["longer"]) == canonical([row for row in seen if row["_ts"] >= 25])


def _row(ts: int) -> dict[str, Any]:
    return {"ts": ts, "k": 1, "v": ts, "d": 0.5, "s": "a", "b": True}


def _pairs(name: str, size: int) -> Query:
    sources = tuple(Source(a, STREAMS[n], Window("RANGE", size)) for n, a in enumerate("AB"))
    outputs = (Output("a", column("A", "v")), Output("b", column("B", "v")))
    return Query(name, None, sources, (Compare("=", column("A", "k"), column("B", "k")),), outputs)
