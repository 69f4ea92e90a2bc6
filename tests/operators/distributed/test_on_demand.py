"""A plan whose joins make results from before its start on demand gives the oracle's results from its start on."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.data.watermark import END
from operators.distributed.decompose import decompose
from operators.distributed.feedback import producer
from operators.plan.plan import parse_plan
from schemas.codecs.notice import Notice, is_notice
from schemas.query import Query, Window
from tests import oracle
from tests.cases import Case
from tests.chains import Chain, Row, merged
from tests.feeding import canonical, tables_of
from tests.operators.distributed.test_distributed import joins
from tests.operators.distributed.test_distributed_feedback import (
    SPAN,
    drive,
    passing_on,
    pressed,
    query_of,
    rounds,
    sparse,
    tuples,
)
from tests.profiles import PROPERTY


def prepare(chain: Chain, rng: random.Random, begins: int, *, deaths: bool) -> None:
    """Let the tasks of a plan run before it takes over."""
    chain.foresees = rng.choice([0, 2, 1_000])
    pieces = rng.choice([1, 5, 20])
    for _ in range(rng.randint(0, 30)):
        chain.former = min(begins, chain.former + rng.randint(0, max(1, begins // pieces)))
        task = rng.choice(chain.tasks)
        if deaths and rng.random() < 0.1:
            task.die()
        else:
            chain.turn(task, rng.randint(1, 6))
    chain.decide()


def check(chain: Chain, query: Query, rows: dict[str, list[list[Row]]], begins: int, end: int = END) -> None:
    """All results of the plan, each once, and in order where one task gives them."""
    found = [[row for row in part if row["_ts"] >= begins] for part in chain.results()]
    expected = [row for row in oracle.results(query, rows) if begins <= row["_ts"] < end]
    assert canonical(merged(found)) == canonical(expected)
    for part in found:
        assert all(before["_ts"] <= after["_ts"] for before, after in pairwise(part))


@PROPERTY
@given(st.integers(0, 2**32), st.integers(1, 3), st.booleans(), st.booleans())
def test_earlier_results_come_when_they_are_demanded(seed: int, split: int, suspends: bool, deaths: bool) -> None:
    rng = random.Random(seed)
    query, plan, rows = sparse(rng)
    begins = rng.randint(1, SPAN)
    with pressed(rng):
        chain = Chain(query, parse_plan(plan, query), rows, split, feedback=suspends, begins=begins)
        prepare(chain, rng, begins, deaths=deaths)
        drive(chain, rng, deaths=deaths)
    check(chain, query, rows, begins)


@PROPERTY
@given(joins(), st.integers(0, 2**32), st.integers(1, 3), st.booleans())
def test_any_query_gives_the_oracles_results(case: Case, seed: int, split: int, suspends: bool) -> None:
    rng = random.Random(seed)
    newest = max((row["_ts"] for row in oracle.results(case.query, case.given)), default=0)
    begins = rng.randint(1, newest + 1)
    with pressed(rng):
        chain = Chain(case.query, case.plan, case.rows, split, tables=tables_of(case), feedback=suspends, begins=begins)
        prepare(chain, rng, begins, deaths=True)
        drive(chain, rng, deaths=True)
    check(chain, case.query, case.given, begins)


@PROPERTY
@given(st.integers(0, 2**32), st.integers(1, 2), st.booleans(), st.integers(1, 50))
def test_a_plan_may_end_while_results_are_on_demand(seed: int, split: int, suspends: bool, later: int) -> None:
    """Then every task makes what nobody has demanded, before it ends."""
    rng = random.Random(seed)
    query, plan, rows = sparse(rng)
    begins = rng.randint(1, SPAN)
    end = begins + later
    with pressed(rng):
        chain = Chain(query, parse_plan(plan, query), rows, split, end, feedback=suspends, ends=True, begins=begins)
        prepare(chain, rng, begins, deaths=False)
        drive(chain, rng, deaths=False)
    assert all(task.over for task in chain.tasks if task.feedback is not None)
    check(chain, query, rows, begins, end)


def test_what_was_read_before_the_start_was_decided_may_need_nothing_any_more() -> None:
    """Two of C's tuples are read one by one; when the plan begins, all earlier results have expired."""
    rows = {name: tuples(at=[2, 5, 9], x=[0, 0, 9]) for name in "ab"} | {"c": tuples(at=[5, 6], x=[0, 0])}
    query = query_of([1, 1, 1], "A.k = B.k AND A.x = C.x")
    query = replace(query, sources=tuple(replace(source, window=Window("RANGE", 0)) for source in query.sources))
    chain = Chain(query, parse_plan("((A B) C)", query), rows, 1, begins=3)
    chain.former = 3
    top, low = chain.tasks
    chain.turn(low, 3)
    for _ in range(2):
        chain.turn(top, 1)
    assert top.engine.cut == 3
    chain.decide()
    chain.finish()
    check(chain, query, rows, 3)


def sent(chain: Chain) -> tuple[int, int]:
    """Tuples in blocks and in notices, between joins."""
    blocks = notices = 0
    for task in chain.tasks:
        for channels in task.channels.values():
            if len(channels.edge.aliases) > 1:
                (log,) = (log for (topic, _), log in chain.topics.logs.items() if topic == channels.edge.topic)
                for raw in log:
                    found = channels.decode(raw, "a record")
                    if is_notice(raw):
                        notices += len(found.late)  # type: ignore[union-attr]
                    else:
                        blocks += len(found.batch)  # type: ignore[union-attr]
    return blocks, notices


def twenty_values() -> tuple[Query, dict[str, list[list[Row]]], Chain]:
    """A and B have 20 values before the plan begins at 41, and C meets 2 of them afterwards."""
    times, values = list(range(1, 41, 2)), list(range(20))
    rows = {name: tuples(at=[*times, 60], x=[*values, 99], k=[*values, 98 + (name == "a")]) for name in "ab"}
    rows["c"] = tuples(at=[5, 42, 44, 60], x=[7, 3, 12, 50])
    query = query_of([100, 100, 10], "A.k = B.k AND A.x = C.x")
    chain = Chain(query, parse_plan("((A B) C)", query), rows, 1, begins=41)
    return query, rows, chain


@pytest.fixture
def never_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are on demand however few there are."""
    monkeypatch.setattr(producer, "MOST_FEW", -1)


@pytest.mark.usefixtures("never_few")
def test_only_what_is_demanded_is_made() -> None:
    """Of 20 results 2 are made."""
    query, rows, chain = twenty_values()
    chain.former = 41
    chain.finish()
    assert sent(chain) == (0, 0)
    chain.decide()
    chain.finish()
    assert sent(chain) == (0, 2)
    check(chain, query, rows, 41)


@pytest.mark.parametrize(("tuples_per_result", "few"), [(2, True), (3, False)])
def test_few_results_are_sent_before_anybody_requests_them(
    tuples_per_result: float, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are 20 results of 40 tuples. Nothing is on demand once they are sent."""
    monkeypatch.setattr(producer, "FEW", tuples_per_result)
    query, rows, chain = twenty_values()
    top, bottom = chain.tasks
    chain.former = 20
    chain.turn(bottom, 100)
    assert sent(chain) == (0, 0)
    chain.former = 41
    chain.turn(bottom, 1)
    assert sent(chain) == (0, 20 if few else 0)
    chain.turn(top, 100)
    assert top.feedback is not None
    chain.decide()
    (end,) = top.feedback.consumer_ends.values()
    assert end.has_on_demand == (not few)
    chain.finish()
    check(chain, query, rows, 41)


@pytest.mark.parametrize("dies", [False, True])
def test_after_few_results_were_sent_the_others_come_in_time(dies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten results are sent at 20, and ten before the plan begins. A join that restarts reads of that in its notices."""
    monkeypatch.setattr(producer, "FEW", 2)
    query, rows, chain = twenty_values()
    _, bottom = chain.tasks
    chain.former = 20
    chain.turn(bottom, 100)
    chain.turn(bottom, 1)
    assert sent(chain) == (0, 10)
    if dies:
        bottom.die()
    chain.former = 41
    chain.turn(bottom, 1)
    assert sent(chain) == (10, 10)
    chain.decide()
    chain.finish()
    check(chain, query, rows, 41)


def test_a_reader_that_asks_is_told_again_that_nothing_is_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that restarts may read its input again from a place behind the notice that said so."""
    monkeypatch.setattr(producer, "FEW", 2)
    _, _, chain = twenty_values()
    top, bottom = chain.tasks
    chain.turn(top, 100)
    chain.former = 41
    chain.turn(bottom, 100)
    chain.decide()
    chain.turn(top, 0)
    asked = chain.undelivered[-1]
    assert len(asked.resume) > 0
    chain.turn(bottom, 1)
    (log,) = (log for (topic, _), log in chain.topics.logs.items() if topic == bottom.operator.outputs[0].topic)
    written = len(log)
    bottom.deliver(asked)
    chain.turn(bottom, 0)
    (raw,) = log[written:]
    (channels,) = (channels for channels in top.channels.values() if len(channels.edge.aliases) > 1)
    told = channels.decode(raw, "a notice")
    assert isinstance(told, Notice)
    assert (told.whole, told.complete, len(told.late)) == (True, True, 0)


@pytest.mark.usefixtures("never_few")
def test_what_will_be_demanded_is_requested_before_the_plan_begins() -> None:
    """The top join looks at C's tuples from 41 on, which it must not read yet. So A's join has the requests when it
    reaches 41, and answers at once."""
    query, rows, chain = twenty_values()
    chain.former = 30
    top, bottom = chain.tasks
    chain.turn(bottom, 18)
    chain.turn(top, 1)
    chain.decide()
    chain.foresees = 1_000
    chain.turn(top, 0)
    asked, chain.undelivered = chain.undelivered[-1], []
    assert len(asked.resume) == 3
    assert bottom.engine.cut == 30
    bottom.deliver(asked)
    chain.turn(bottom, 18)
    assert sent(chain) == (0, 2)
    chain.finish()
    check(chain, query, rows, 41)


def test_what_is_demanded_is_passed_on_to_the_joins_below() -> None:
    """D demands A's y = 1, which all of A has: C's join requests it from A's, and makes its own results then."""
    _, query, rows = passing_on(list(range(1, 60, 2)), {51})
    chain = Chain(query, parse_plan("(((A B) C) D)", query), rows, 1, begins=50)
    chain.former = 50
    for _ in rounds(chain, 30):
        pass
    assert sent(chain) == (0, 0)
    chain.decide()
    chain.finish()
    assert sent(chain)[1] > 0
    check(chain, query, rows, 50)


def test_where_results_are_made_on_demand() -> None:
    """By the reader's first equality, and by those of the readers above it; never for a reader that needs all."""

    def kinds(where: str, plan: str, lives: int = 4, split: int = 1) -> dict[str, tuple[int, ...]]:
        query = query_of([100] * lives, where)
        counts = {f"t{a}": 1 for a in "abcd"[:lives]}
        operators = decompose(query, parse_plan(plan, query), counts, split, on_demand=True)
        return {edge.producer: edge.on_demand for operator in operators for edge in operator.outputs
                if len(edge.aliases) > 1}  # fmt: skip

    chain = "A.k = B.k AND B.x = C.x AND A.y = D.y"
    assert kinds(chain, "(((A B) C) D)") == {"((A B) C)": (1,), "(A B)": (3, 1)}
    assert kinds(chain, "(((A B) C) D)", split=2) == {"((A B) C)": (0,), "(A B)": ()}
    assert kinds("A.k = B.k AND B.x < C.x AND A.y = D.y", "(((A B) C) D)") == {"((A B) C)": (1,), "(A B)": ()}
    assert kinds("A.k = B.k AND B.x = C.x AND A.y < D.y", "(((A B) C) D)") == {"((A B) C)": (), "(A B)": ()}


@pytest.mark.usefixtures("never_few")
def test_a_join_that_is_ahead_still_lacks_what_its_reader_demands() -> None:
    """C's join has passed the life of all earlier results of A's, but D, behind it, demands one: C's join must request
    it from A's before it answers."""
    query = query_of([10, 10, 100, 100], "A.k = B.k AND B.x = C.x AND A.y = D.y")
    rows = {
        "a": tuples(at=[45, 200], y=[1, 9], k=[0, 8]),
        "b": tuples(at=[44, 200], x=[7, 9], k=[0, 9]),
        "c": tuples(at=[43, 200], x=[7, 8]),
        "d": tuples(at=[52, 200], y=[1, 2]),
    }
    chain = Chain(query, parse_plan("(((A B) C) D)", query), rows, 1, begins=50)
    chain.former = 50
    top, middle, bottom = chain.tasks
    for _ in rounds(chain, 3):
        pass
    chain.decide()
    for _ in range(4):
        for task in (bottom, middle):
            chain.turn(task, 2)
        for request in chain.undelivered:
            bottom.deliver(request)
        chain.undelivered.clear()
    assert middle.engine.cut > 60
    chain.turn(top, 2)
    asked, chain.undelivered = chain.undelivered, []
    assert [len(request.resume) for request in asked] == [2]
    middle.deliver(asked[0])
    chain.turn(middle, 0)
    chain.finish()
    check(chain, query, rows, 50)
    assert sent(chain)[1] == 2
