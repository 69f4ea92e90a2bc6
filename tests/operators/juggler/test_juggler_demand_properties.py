"""Feedback in the shared operator: rows are set aside and come back, and no query's results change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from operators.juggler.operator import ORDERS
from operators.juggler.routing.tuples_in_flight import ENCODINGS
from schemas.groups import QueryGroup, query_group
from schemas.query import Compare, Expr, Query
from tests.cases import column
from tests.feeding import canonical
from tests.operators.juggler.groups import (
    Family,
    Rows,
    Runner,
    come_and_go,
    eager,
    expected,
    families,
    inputs,
    judge,
    queries,
    registrations,
)
from tests.profiles import PROPERTY, examples


@st.composite
def joined(draw: st.DrawFn, name: str, shared: list[Family]) -> Query:
    """A query over up to four inputs, many of whose inputs are joined by equalities."""
    query = draw(queries(name, shared, most=4))
    aliases = [source.alias for source in query.sources]
    more: list[Expr] = []
    for n, alias in enumerate(aliases[1:], start=1):
        if draw(st.integers(0, 2)):
            of = draw(st.sampled_from(["k", "k", "v", "s"]))
            more.append(Compare("=", column(draw(st.sampled_from(aliases[:n])), of), column(alias, of)))
    return replace(query, predicates=(*query.predicates[: draw(st.integers(0, 3))], *more))


@st.composite
def joined_groups(draw: st.DrawFn) -> QueryGroup:
    """Some of them in one group."""
    shared = draw(st.lists(families(), min_size=2, max_size=4))
    return query_group([draw(joined(f"q{n}", shared)) for n in range(draw(st.integers(1, 4)))])


@examples(100, quick=12)
@given(
    joined_groups(),
    inputs(most=16),
    st.sampled_from(["adaptive", *ORDERS]),
    st.sampled_from(ENCODINGS),
    st.sampled_from([1, 3, 7, 50]),
    st.sampled_from([1e9, 0.0]),
    st.sampled_from([0.0, 0.3, 2.0]),
)
def test_each_query_alone(
    group: QueryGroup, rows: Rows, order: str, encoding: str, step: int, budget: float, swept: float
) -> None:
    """Whatever is set aside, swept and let in, and though guards rest and watch again."""
    runner = Runner(group, rows, order, encoding, feedback=True)
    with eager(budget, swept):
        found = runner.all(step)
    for member in group.members:
        got = found[member.name]
        assert canonical(got) == canonical(expected(member.query, rows)), member.name
    assert found == Runner(group, rows, order, encoding).all(step), "in the same order"


@PROPERTY
@given(registrations(joined), inputs(most=16), st.sampled_from(["adaptive", *ORDERS]))
def test_queries_come_and_go(done: list[tuple[str, Any]], rows: Rows, order: str) -> None:
    """What was set aside for some queries is looked at again for others."""
    runner = Runner(query_group([]), rows, order, feedback=True)
    with eager():
        asked = come_and_go(runner, done)
        for _ in range(6):
            runner.to(runner.cut + 10)
    judge(runner, asked, rows)
