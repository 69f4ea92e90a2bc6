"""Plans that mix multi-way operators and binary joins, against the oracle and against binary joins alone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.engine.engine import Engine
from operators.migration.strategies import BLACK_BOX, check_strategy
from operators.plan.plan import Join, Plan, left_deep, multiway_join, parse_plan
from schemas.errors import QueryError, UsageError
from schemas.language.program import parse_program
from schemas.query import Window
from tests import oracle
from tests.cases import Case, cases, plan
from tests.feeding import canonical, engine_of, feed
from tests.profiles import PROPERTY, mostly_deep

QUERY = parse_program(
    "CREATE STREAM S (ts TIMESTAMP, k BIGINT) WITH (topic = 's', timestamp = 'ts');"
    "SELECT A.k AS k FROM S A [RANGE 1 SECOND], S B [RANGE 1 SECOND], S C [RANGE 1 SECOND], S D [RANGE 1 SECOND] "
    "WHERE A.k = B.k AND B.k = C.k AND C.k <= D.k;"
).queries[0]


def countless(case: Case) -> Case:
    """The case with other windows in place of those that count."""
    sources = tuple(
        replace(source, window=Window("RANGE", source.window.size * 7)) if source.window.kind == "ROWS" else source
        for source in case.query.sources
    )
    return replace(case, query=replace(case.query, sources=sources))


@st.composite
def mixed(draw: st.DrawFn, plan: Plan) -> Plan:
    """Some of the plan's joins as one operator each."""
    if not isinstance(plan, Join):
        return plan
    if draw(st.booleans()):
        return multiway_join(plan)
    return Join(draw(mixed(plan.left)), draw(mixed(plan.right)))


@PROPERTY
@given(cases(most_aliases=5, most_rows=15), st.data())
def test_every_mixture_gives_the_same_sequence(case: Case, data: st.DataObject) -> None:
    case = countless(case)
    tree = data.draw(mixed(case.plan))

    def run(executor: str, plan: Plan) -> list[dict[str, object]]:
        return feed(engine_of(case, executor, plan=plan), case.rows, case.push_sizes, case.epoch_ms)

    got = run("juggler", tree)
    assert got == run("xjoin", case.plan)
    assert canonical(got) == canonical(oracle.results(case.query, case.given))


EQUAL = parse_program(
    "CREATE STREAM S (ts TIMESTAMP, k BIGINT) WITH (topic = 's', timestamp = 'ts');"
    "SELECT A.k AS k, A.ts AS a, B.ts AS b, C.ts AS c, D.ts AS d FROM S A [RANGE 30 MILLISECONDS], "
    "S B [RANGE 20 MILLISECONDS], S C [RANGE 30 MILLISECONDS], S D [RANGE 20 MILLISECONDS] "
    "WHERE A.k = B.k AND B.k = C.k AND B.k = D.k;"
).queries[0]


@pytest.mark.parametrize(
    "text", mostly_deep(["(B (A C D))", "((A C D) B)", "((A B C) D)", "(A (B C D))", "(A B C D)"], quick=2)
)
def test_what_follows_from_equalities_with_others_holds_within(text: str) -> None:
    """A multi-way join of A, C and D gave all their pairs, since each is compared with B alone; the join with B then
    took one for all."""
    rng = random.Random(7)
    rows = {"S": [[{"ts": at, "k": rng.randrange(4)} for at in range(40)]]}
    case = Case(EQUAL, rows, parse_plan(text, EQUAL, multiway=True), [5], 10)
    task = engine_of(case, "juggler")
    got = canonical(feed(task, case.rows, case.push_sizes, case.epoch_ms))
    assert got == canonical(oracle.results(case.query, case.given))
    assert len(got) > 100


@PROPERTY
@given(cases(most_rows=12, ranged=True), st.sampled_from(BLACK_BOX), st.integers(0, 45), st.data())
def test_a_mixture_becomes_another(case: Case, strategy: str, cut: int, data: st.DataObject) -> None:
    task = engine_of(case, "juggler", plan=data.draw(mixed(case.plan)))
    task.migrate(data.draw(mixed(data.draw(plan(tuple(s.alias for s in case.query.sources))))), strategy, cut)
    got = feed(task, case.rows, case.push_sizes, case.epoch_ms)
    assert canonical(got) == canonical(oracle.results(case.query, case.given))


def test_strategies_that_move_states_are_refused() -> None:
    for name in ("auto", "jisc", "moving-state"):
        with pytest.raises(UsageError, match=rf"{name} does not go with --executor juggler: .*black box.*gms, gpt"):
            check_strategy(name, "juggler", QUERY)
    with pytest.raises(UsageError, match="unknown migration strategy 'mvoe'"):
        check_strategy("mvoe", "juggler", QUERY)


@pytest.mark.parametrize("text", ["((A B C) D)", "(A B C D)", "((A B) (C D))", "(A (B C D))"])
def test_a_plan_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_plan(text, QUERY, multiway=True)) == text


def test_a_multi_way_join_is_another_plan_than_binary_ones() -> None:
    assert parse_plan("(A B C D)", QUERY, multiway=True) != left_deep(["A", "B", "C", "D"])


def test_several_inputs_are_refused_where_nobody_joins_them() -> None:
    with pytest.raises(QueryError, match=r"two inputs, got 3, and more only with --executor juggler"):
        parse_plan("((A B C) D)", QUERY)
    with pytest.raises(QueryError, match=r"joins sources only, not \(A B\)"):
        parse_plan("((A B) C D)", QUERY, multiway=True)


def test_windows_that_count_are_refused() -> None:
    counting = replace(QUERY, sources=(replace(QUERY.sources[0], window=Window("ROWS", 3)), *QUERY.sources[1:]))
    with pytest.raises(UsageError, match=r"juggler does not go with \[ROWS n\] of A: it does not count tuples"):
        Engine(counting, executor="juggler")
