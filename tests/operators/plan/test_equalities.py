"""Equalities that follow from others: which are found, where they act, and that results stay the oracle's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.engine.executors import EXECUTORS
from operators.plan.equalities import equality_classes
from operators.state.match import LEFT, RIGHT, Match
from operators.state.sources import Sources
from schemas.expression_text import text_of
from schemas.query import Compare, Expr, Query
from tests import oracle
from tests.cases import Case, cases, column
from tests.feeding import canonical, engine_of, feed
from tests.operators.tiny import inputs, query, run
from tests.profiles import PROPERTY


def over(condition: str) -> Query:
    """A query over a A .. d D."""
    return query(f"SELECT A.k FROM a A [ROWS 9], b B [ROWS 9], c C [ROWS 9], d D [ROWS 9] WHERE {condition}")


@pytest.mark.parametrize(
    ("condition", "classes"),
    [
        ("A.k = B.k AND A.k = C.k AND A.v = D.v", [["A.k", "B.k", "C.k"]]),
        ("A.k = B.k AND C.v = D.v AND B.k = C.v", [["A.k", "B.k", "C.v", "D.v"]]),
        ("A.k + 1 = B.k AND C.ts = B.k AND C.v = D.v", [["A.k + 1", "B.k", "C.ts"]]),
        ("A.s = B.s AND B.s = C.s AND A.f = D.f", [["A.s", "B.s", "C.s"]]),
        ("A.d = B.d AND B.d = C.d AND A.k = D.k", [["A.d", "B.d", "C.d"]]),
        # Two operands imply nothing.
        ("A.k = B.k AND A.v = C.v AND A.d = D.d", []),
        # BIGINT against DOUBLE is another relation than BIGINT against BIGINT.
        ("A.k = B.d AND B.d = C.k AND C.v = D.v", []),
        ("A.k = B.d AND B.d = C.d AND C.d = D.d", [["B.d", "C.d", "D.d"]]),
        # A would have to compare two of its own columns.
        ("A.k = B.k AND A.v = B.k AND C.k = D.k", []),
        ("A.k = B.k AND A.k < C.k AND A.k <> D.k", []),
        ("(A.k = B.k OR A.k = C.k) AND C.k = D.k", []),
    ],
)
def test_classes(condition: str, classes: list[list[str]]) -> None:
    found = equality_classes(over(condition).predicates)
    operands = [list(equality_class.operands.values()) for equality_class in dict.fromkeys(found.values())]
    assert [[text_of(operand) for operand in some] for some in operands] == classes


@pytest.mark.parametrize(
    ("condition", "left", "right", "keys", "checks"),
    [
        # No cross product of B and C, though no predicate was written between them.
        ("A.k = B.k AND A.k = C.k", "B", "C", ["B.k = C.k"], []),
        # One equality is enough, in whatever order the sides are joined.
        ("A.k = B.k AND A.k = C.k AND B.k = C.k", "AB", "C", ["A.k = C.k"], []),
        ("A.k = B.k AND A.k = C.k AND B.k = C.k", "CB", "A", ["B.k = A.k"], []),
        ("A.k = B.k AND B.k = C.k AND C.k = D.k", "BA", "DC", ["A.k = C.k"], []),
        # Hashes of strings collide, so strings are compared again: by the join's equality, not by those written.
        ("A.s = B.s AND A.s = C.s", "B", "C", ["B.s = C.s"], ["B.s = C.s"]),
        # Other predicates stay where they were.
        ("A.k = B.k AND A.k = C.k AND B.v < C.v", "B", "C", ["B.k = C.k"], ["B.v < C.v"]),
        ("A.k = B.k AND A.k = C.k AND A.v = C.v", "AB", "C", ["A.k = C.k", "A.v = C.v"], ["A.k = C.k", "A.v = C.v"]),
        ("A.k = B.k AND A.k = C.k AND A.v = D.v", "BC", "D", [], []),
    ],
)
def test_one_equality_per_class_joins_two_sides(
    condition: str, left: str, right: str, keys: list[str], checks: list[str]
) -> None:
    found = Match(Sources(over(condition)), tuple(left), tuple(right), implied=True).condition
    assert [f"{text_of(t.left.expr)} = {text_of(t.right.expr)}" for t in found.keys] == keys
    assert [text_of(p) for p in found.residual] == checks


@pytest.mark.parametrize(
    ("condition", "among", "missing"),
    [
        ("A.k = B.k AND B.k = C.k", "AC", ["A.k = C.k"]),
        ("A.k = B.k AND B.k = C.k", "AB", []),
        ("A.k = B.k AND B.k = C.k", "ABC", []),
        ("A.k = B.k AND B.k = C.k AND A.k = C.k", "AC", []),
        ("A.k = B.k AND B.k = C.k AND B.k = D.k", "ACD", ["A.k = C.k", "A.k = D.k"]),
        # Two pairs agree each; the equality makes them agree with each other.
        ("A.k = B.k AND C.k = D.k AND B.k = C.k", "ABD", ["A.k = D.k"]),
        ("C.k = D.k AND D.k = A.k AND A.k = B.v", "BCD", ["C.k = B.v"]),
        ("D.k = A.k AND A.k = B.v AND C.k = B.v AND C.k = D.k", "BCD", []),
        ("A.k = B.k AND B.k = C.k", "AD", []),
        ("A.k = B.k AND B.k = C.k", "D", []),
    ],
)
def test_missing_equalities_among_some_aliases(condition: str, among: str, missing: list[str]) -> None:
    (equality_class,) = set(equality_classes(over(condition).predicates).values())
    assert [text_of(equality) for equality in equality_class.missing(among)] == missing


def test_a_state_has_the_same_key_in_every_plan() -> None:
    """So plans can share the state unchanged."""
    sources = Sources(over("A.k = B.k AND B.k = C.k AND C.k = D.k"))
    one = Match(sources, ("B", "C"), ("A",), implied=True)
    other = Match(sources, ("D",), ("B", "C"), implied=True)
    assert one.signature(LEFT) == other.signature(RIGHT)


def test_written_equalities_are_shown_and_implied_ones_where_none_is_written() -> None:
    """`weir explain` prints these predicates."""
    sources = Sources(over("A.k = B.k AND A.k = C.k AND B.k = C.k AND C.k = D.k"))
    shown = {
        sides: [text_of(p) for p in Match(sources, *map(tuple, sides), implied=True).condition.predicates]
        for sides in (("AB", "C"), ("B", "D"))
    }
    assert shown == {("AB", "C"): ["A.k = C.k", "B.k = C.k"], ("B", "D"): ["B.k = D.k"]}


def test_a_link_of_an_eddy_keeps_the_written_equalities() -> None:
    """A tuple's probe path need not have compared all aliases visited: with B and C visited, they may be unequal."""
    sources = Sources(over("A.k = B.k AND A.k = C.k AND A.v + B.v < C.v"))
    assert len(Match(sources, ("A",), ("B", "C")).condition.keys) == 2


def test_a_plan_that_joins_the_unrelated_first_compares_little() -> None:
    """B and C are joined by the key that both share with A: 4 pairs of 16."""
    star = query(
        "SELECT A.v, B.v, C.v FROM a A [RANGE 99 ms], b B [RANGE 99 ms], c C [RANGE 99 ms] "
        "WHERE A.k = B.k AND A.k = C.k"
    )
    four = "1 k=1 | 2 k=2 | 3 k=3 | 4 k=4"
    got, engine = run(star, inputs(a=four, b=four, c=four), plan="((B C) A)")
    assert len(got) == 4
    assert engine.statistics().intermediate_results == 4


@st.composite
def equalities(draw: st.DrawFn, aliases: list[str]) -> tuple[Expr, ...]:
    """Equalities that connect all aliases, often by the same columns, and a few more."""
    names = draw(st.sampled_from([["k"], ["s"], ["d"], ["b"], ["k", "k", "k", "d"], ["k", "v"], ["v", "d", "k"]]))
    pairs = [(draw(st.sampled_from(aliases[:i])), right) for i, right in enumerate(aliases) if i]
    if len(aliases) > 1:
        pairs += draw(st.lists(st.tuples(*[st.sampled_from(aliases)] * 2).filter(lambda p: p[0] != p[1]), max_size=2))
    return tuple(
        Compare("=", column(a, draw(st.sampled_from(names))), column(b, draw(st.sampled_from(names)))) for a, b in pairs
    )


@PROPERTY
@given(cases(most_aliases=5), st.sampled_from(sorted(EXECUTORS)), st.data())
def test_results_are_the_oracles(case: Case, executor: str, data: st.DataObject) -> None:
    """Nulls, doubles against whole numbers, strings and booleans included, for any plan."""
    aliases = [source.alias for source in case.query.sources]
    case = replace(case, query=replace(case.query, predicates=data.draw(equalities(aliases))))
    task = engine_of(case, executor)
    got = feed(task, case.rows, case.push_sizes, case.epoch_ms)
    assert canonical(got) == canonical(oracle.results(case.query, case.given))
