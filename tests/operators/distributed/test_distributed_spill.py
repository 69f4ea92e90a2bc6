"""Distributed joins within memory budgets, against the oracle: what a task spills is late for the tasks above."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from operators.plan.plan import parse_plan
from operators.spill.spilling import MemoryBudget
from operators.spill.strategies import STRATEGIES
from schemas.language.program import parse_program
from tests import oracle
from tests.cases import Case, aggregated
from tests.chains import Chain, merged
from tests.feeding import canonical, tables_of, to_batch
from tests.operators.distributed.test_distributed import joins
from tests.operators.spill.small_parts import small_parts
from tests.profiles import PROPERTY


def countless(case: Case) -> bool:
    """Whether a case has no ROWS window."""
    return all(source.window.kind != "ROWS" for source in case.query.sources)


def drive(chain: Chain, data: st.DataObject, *, deaths: bool = False) -> None:
    """Let tasks take turns, clean up and die at random, then finish."""
    for _ in range(data.draw(st.integers(0, 30))):
        task = data.draw(st.sampled_from(chain.tasks))
        what = data.draw(st.integers(0, 5))
        if deaths and what == 0:
            task.die(piece=data.draw(st.integers(1, 30)))
        elif what == 1 and not task.operator.is_intake:
            task.engine.clean(data.draw(st.integers(1, 3)))
        elif what == 2:
            chain.stand(task, data.draw(st.integers(1, 4)))
        else:
            chain.turn(task, data.draw(st.integers(1, 4)))
    chain.finish()


BUDGETS = st.builds(MemoryBudget, st.sampled_from([1, 2_000, 20_000]), st.sampled_from(sorted(STRATEGIES)), st.just(4))


@PROPERTY
@given(st.one_of(joins(), aggregated(joins().filter(countless))), st.integers(1, 2), BUDGETS, st.booleans(), st.data())
def test_each_result_comes_once(
    case: Case, split: int, budget: MemoryBudget, deaths: bool, data: st.DataObject
) -> None:
    """In time or late, also when tasks die; aggregates in time only. In the end nothing is pending."""
    chain = Chain(case.query, case.plan, case.rows, split, tables=tables_of(case), budget=budget)
    drive(chain, data, deaths=deaths)
    late = chain.late()
    assert canonical([*merged(chain.results()), *late]) == canonical(oracle.results(case.query, case.given))
    assert not (late and case.query.aggregation is not None)
    for part in chain.results():
        times = [row["_ts"] for row in part]
        assert times == sorted(times)
    for task in chain.tasks:
        spilled = task.engine.statistics().spill
        assert spilled is None or spilled.owed == 0
        assert task.engine.complete == task.engine.cut


Step = tuple[int, int, int, str]
STEP: st.SearchStrategy[Step] = st.tuples(
    st.integers(1, 6), st.integers(0, 3), st.integers(1, 6), st.sampled_from(["turn", "turn", "clean", "stand", "die"])
)
"""How many records the lower join reads in a turn, and how many turns it takes; how many the upper one reads, and what
that does."""


@PROPERTY
@given(st.lists(STEP, max_size=20), st.booleans())
# It processed more than it had processed when late tuples arrived, before it had read them again.
@example([(6, 3, 4, "turn"), (4, 0, 3, "die")], False)
# What had arrived and was cleaned up before it had processed anything was replayed later, or not at all.
@example(
    [(5, 3, 1, "stand"), (4, 1, 1, "clean"), (2, 0, 6, "stand"), (6, 0, 3, "clean"), (6, 0, 6, "die")],
    False,
)
# The log forgot late tuples that were newer than their event.
@example(
    [(5, 3, 5, "stand"), (6, 3, 4, "turn"), (6, 0, 2, "die"), (4, 2, 4, "turn"), (4, 0, 3, "die")],
    False,
)
# Late tuples that it had read again did not keep their partners from being purged before they entered.
@example(
    [
        *[(3, 0, 4, "turn"), (6, 2, 6, "turn"), (4, 1, 6, "stand"), (3, 1, 1, "die"), (1, 2, 3, "stand")],
        *[(6, 2, 2, "stand"), (3, 3, 2, "stand"), (5, 0, 3, "die")],
    ],
    False,
)
# What it read again began after late tuples that were newer than their channel's clock.
@example(
    [
        *[(6, 3, 2, "clean"), (5, 3, 4, "die"), (5, 0, 1, "turn"), (5, 3, 5, "stand"), (4, 1, 4, "stand")],
        *[(3, 3, 2, "turn"), (5, 1, 6, "turn"), (4, 1, 5, "turn"), (1, 0, 4, "die")],
    ],
    False,
)
def test_late_tuples_meet_their_partners_after_a_death(steps: list[Step], small: bool) -> None:
    """The upper join dies, and reads again in pieces. It had committed with late tuples that waited for their partners:
    each meets all of them, those that came before its death and those that come after, once."""
    streams = "".join(
        f"CREATE STREAM {name} (k BIGINT, at TIMESTAMP) WITH (topic = 't{name}', timestamp = 'at');" for name in "abc"
    )
    (query,) = parse_program(
        f"{streams} INSERT INTO 'out' SELECT A.at AS x, B.at AS y, C.at AS z FROM a A [RANGE 60 MILLISECONDS], "
        "b B [RANGE 60 MILLISECONDS], c C [RANGE 20 MILLISECONDS] WHERE A.k = B.k AND B.k = C.k"
    ).queries
    rows = {name: [[{"k": at // 5 % 2, "at": at} for at in range(0, 300, 5)]] for name in "abc"}
    with small_parts() if small else nullcontext():
        chain = Chain(query, parse_plan("((A B) C)", query), rows, 1, budget=MemoryBudget(1, "bottom-up", 2, 2))
        upper, lower = chain.tasks
        for first, turns, size, what in steps:
            for _ in range(turns):
                chain.turn(lower, first)
            if what == "turn":
                chain.turn(upper, size)
            elif what == "clean":
                upper.engine.clean(1)
            else:
                chain.stand(upper, size)
            if what == "die":
                upper.die(piece=size)
        chain.finish()
    assert canonical([*merged(chain.results()), *chain.late()]) == canonical(oracle.results(query, rows))


@pytest.mark.deep
def test_spilled_tuples_that_are_counted_leave_their_windows() -> None:
    """Few tuples stay on disk, and a restart reads few of them again."""
    text = (
        "CREATE STREAM a (k BIGINT, at TIMESTAMP) WITH (topic = 'ta', timestamp = 'at');"
        "CREATE STREAM b (k BIGINT, at TIMESTAMP) WITH (topic = 'tb', timestamp = 'at');"
        "CREATE STREAM c (k BIGINT, at TIMESTAMP) WITH (topic = 'tc', timestamp = 'at');"
        "INSERT INTO 'out' SELECT B.at FROM a A [RANGE 20 MILLISECONDS], b B [ROWS 5], c C [RANGE 20 MILLISECONDS] "
        "WHERE A.k = B.k AND B.k = C.k"
    )
    (query,) = parse_program(text).queries
    rows = {name: [[{"k": at % 2, "at": at} for at in range(0, 4000, 4)]] for name in "abc"}
    budget = MemoryBudget(1, "bottom-up", 4, 4)
    chain = Chain(query, parse_plan("((A B) C)", query), rows, 1, budget=budget)
    most = 0
    for _ in range(250):
        for task in reversed(chain.tasks):
            chain.turn(task, 4)
            spill = task.engine.statistics().spill
            most = max(most, 0 if spill is None else spill.on_disk_tuples)
    chain.finish()
    assert canonical([*merged(chain.results()), *chain.late()]) == canonical(oracle.results(query, rows))
    assert 0 < most < 400
    for task in chain.tasks[:2]:
        assert all(task.engine.horizon(given.stream.name) > 3900 for given in task.operator.streams)


@pytest.mark.parametrize("plan", ["(B R)", "((B A) R)"])
def test_tuples_that_are_counted_are_cleaned_up_at_a_join_with_a_table(plan: str) -> None:
    """No predicate of that join reads the number of a tuple; the cleanup lacked the column and failed."""
    streams = "".join(
        f"CREATE STREAM {name} (k BIGINT, at TIMESTAMP) WITH (topic = 't{name}', timestamp = 'at');" for name in "ab"
    )
    table = "CREATE TABLE rooms (k BIGINT) WITH (path = 'rooms.csv', format = 'csv');"
    read, condition = ("", "") if plan == "(B R)" else ("a A [RANGE 20 MILLISECONDS], ", "A.k = B.k AND ")
    text = f"SELECT B.at FROM {read}b B [ROWS 5], rooms R WHERE {condition}B.k = R.k"
    (query,) = parse_program(f"{streams}{table}INSERT INTO 'out' {text}").queries
    rows = {stream.name: [[{"k": at % 2, "at": at} for at in range(0, 400, 4)]] for stream in query.streams()}
    tables = {"rooms": to_batch(query.tables()[0], [{"k": 0}, {"k": 1}])}
    budget = MemoryBudget(1, "bottom-up", 4, 4)
    chain = Chain(query, parse_plan(plan, query), rows, 1, tables=tables, budget=budget)
    for _ in range(25):
        for task in reversed(chain.tasks):
            chain.turn(task, 4)
    chain.finish()
    expected = oracle.results(query, rows | {"rooms": [{"k": 0}, {"k": 1}]})
    assert canonical([*merged(chain.results()), *chain.late()]) == canonical(expected)
    assert chain.tasks[0].engine.statistics().spill.cleanups > 0


def test_late_tuples_that_live_by_count_are_read_again() -> None:
    """Tuple 12 of S reaches the top join late, after a time in which that join saw none of S but tuple 1. The join took
    everything of that time for dead as soon as tuple 1 was, and a restart did not read tuple 12 again."""
    streams = "".join(
        f"CREATE STREAM {name} (k BIGINT, at TIMESTAMP) WITH (topic = 't{name}', timestamp = 'at');" for name in "sab"
    )
    text = (
        "SELECT S.at AS s, A.at AS a, B.at AS b FROM s S [ROWS 10], a A [RANGE 10 SECONDS], b B [RANGE 10 SECONDS] "
        "WHERE S.k = A.k AND A.k = B.k"
    )
    (query,) = parse_program(f"{streams}INSERT INTO 'out' {text}").queries
    counted = [{"k": 7 if number in (1, 12) else number + 100, "at": 10 * number} for number in range(21)]
    others = [{"k": 99, "at": at} for at in range(210, 600, 10)]
    rows = {
        "s": [counted],
        "a": [[{"k": 7, "at": 15}, {"k": 7, "at": 135}, *others]],
        "b": [[{"k": 7, "at": at} for at in (16, 205, 450)]],
    }
    chain = Chain(query, parse_plan("((S A) B)", query), rows, 1, budget=MemoryBudget(1, "bottom-up", 4, 4))
    top, join, intake = chain.tasks
    for _ in range(40):
        chain.turn(intake, 1)
        for task in (join, top):
            task.engine.clean()
            chain.turn(task, 100)
        top.die()
    chain.finish()
    assert canonical([*merged(chain.results()), *chain.late()]) == canonical(oracle.results(query, rows))
