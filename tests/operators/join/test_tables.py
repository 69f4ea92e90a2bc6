"""Reference tables in the engine: the effect of their rows on results, states, checkpoints, plans and statistics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from operators.engine.engine import Engine
from operators.engine.executors import EXECUTORS
from operators.explain.explain import explain
from operators.migration.cost import CostOfMigration
from operators.migration.difference import STRATEGIES_OF_DIFFERENCE
from operators.migration.strategies import STRATEGIES
from operators.plan.choose import (
    CostModel,
    Estimate,
    Statistics,
    choose_plan,
    declared_statistics,
    sample_statistics,
)
from operators.plan.plan import parse_plan
from operators.state.checkpoint import blocks_by_time
from schemas.errors import InvariantError
from schemas.language.program import parse_program
from schemas.query import TABLE_TS, Query, Stream
from tests import oracle
from tests.cases import Case
from tests.feeding import canonical, engine_of, feed, to_batch, to_rows
from tests.operators.tiny import COLUMNS, rows

DECLARED = "".join(f"CREATE STREAM {name} ({COLUMNS}) WITH (timestamp = 'ts');\n" for name in "abc") + "".join(
    f"CREATE TABLE {name} ({COLUMNS}) WITH (path = '{name}.csv');\n" for name in ("r", "s", "u")
)


def query(select: str) -> Query:
    """The query of a SELECT over streams a .. c and tables r, s and u; `ms` is short for MILLISECONDS."""
    return parse_program(DECLARED + select.replace(" ms]", " MILLISECONDS]")).queries[0]


def case(select: str, plan: str = "", epoch_ms: int = 1, **given: str) -> Case:
    """A query with its input."""
    bound = query(select)
    streams = {stream.name: [rows(given.get(stream.name, ""))] for stream in bound.streams()}
    tables = {table.name: rows(given.get(table.name, "")) for table in bound.tables()}
    return Case(bound, streams, parse_plan(plan, bound) if plan else choose_plan(bound), [1], epoch_ms, tables)


def run(of: Case, executor: str = "xjoin", **options: Any) -> list[dict[str, Any]]:
    """The engine's results in order, and the oracle's."""
    got = feed(engine_of(of, executor, **options), of.rows, of.push_sizes, of.epoch_ms)
    assert canonical(got) == canonical(oracle.results(of.query, of.given))
    return got


ROOMS = "SELECT A.v, R.v FROM a A [RANGE 3 ms], r R WHERE A.k = R.k"


@pytest.mark.parametrize("executor", sorted(EXECUTORS))
def test_a_result_has_the_time_of_its_streams(executor: str) -> None:
    """A row that matches long after the first tuple does, and one that matches twice; nulls match nothing."""
    of = case(ROOMS, a="0 k=1 v=1 | 5 k=2 v=2 | 900 k=1 v=3 | 901 v=4", r="7 k=1 v=10 | 9 k=1 v=11 | 1 k=3 | 2 v=12")
    assert run(of, executor) == [
        {"A.v": 1, "R.v": 10, "_ts": 0},
        {"A.v": 1, "R.v": 11, "_ts": 0},
        {"A.v": 3, "R.v": 10, "_ts": 900},
        {"A.v": 3, "R.v": 11, "_ts": 900},
    ]


@pytest.mark.parametrize("executor", sorted(EXECUTORS))
@pytest.mark.parametrize("plan", ["(((R S) A) B)", "((A B) (S R))", "(B (S (A R)))", "((R A) (B S))"])
def test_two_tables_and_two_streams(executor: str, plan: str) -> None:
    """A join of tables alone exists from the start too; its results do not outlive the streams' windows."""
    select = "SELECT A.v, R.v, S.v, B.v FROM a A [RANGE 3 ms], r R, b B [ROWS 2], s S WHERE A.k = R.k AND R.v = S.v"
    of = case(
        f"{select} AND B.k = S.k",
        plan,
        a="1 k=1 v=1 | 4 k=1 v=2 | 9 k=2 v=3",
        b="2 k=7 v=4 | 3 k=8 v=5 | 8 k=7 v=6 | 9 k=7 v=7",
        r="0 k=1 v=5 | 0 k=2 v=6",
        s="0 k=7 v=5 | 0 k=8 v=5 | 0 k=7 v=6",
    )
    assert len(run(of, executor)) == 6


def test_one_table_twice_with_selections() -> None:
    of = case(
        "SELECT R1.v AS one, R2.v AS two FROM a A [ROWS 1], r R1, r R2 "
        "WHERE A.k = R1.k AND A.v = R2.k AND R1.v > 1 AND R2.s LIKE 'x%'",
        a="1 k=1 v=2",
        r="0 k=1 v=1 | 0 k=1 v=2 | 0 k=2 v=3 s=xy | 0 k=2 v=4",
    )
    assert run(of) == [{"one": 2, "two": 3, "_ts": 1}]


def test_an_empty_table_lets_nothing_through() -> None:
    assert run(case(ROOMS, a="1 k=1 | 2")) == []


def test_taken_away_are_the_tuples_that_a_row_matches() -> None:
    """At every instant: there is no coming and going but that of the stream's own tuples."""
    of = case("SELECT A.v FROM a A [RANGE 3 ms] EXCEPT r R ON A.k = R.k", a="1 k=1 v=1 | 2 k=2 v=2", r="0 k=1 | 0 k=3")
    assert run(of) == [{"A.v": 2, "_op": "+", "_ts": 2}, {"A.v": 2, "_op": "-", "_ts": 6}]


@pytest.mark.parametrize("strategy", sorted(STRATEGIES_OF_DIFFERENCE))
def test_taken_away_through_changes_of_the_order(strategy: str) -> None:
    """A fresh pipeline is loaded at the instant before all others, whenever it is made."""
    of = case(
        "SELECT A.v FROM a A [RANGE 4 ms] EXCEPT r R ON A.k = R.k EXCEPT b B [RANGE 2 ms] ON A.k = B.k",
        "((A R) B)",
        a="1 k=1 v=1 | 3 k=2 v=2 | 4 k=3 v=3 | 5 k=1 v=4 | 6 k=4 v=5",
        b="4 k=4 | 5 k=3",
        r="0 k=1 | 0 k=9",
    )
    task = engine_of(of)
    task.migrate(parse_plan("((A B) R)", of.query), strategy, 5)
    assert feed(task, of.rows, [1], 1) == oracle.results(of.query, of.given)
    assert task.migrations[0].finished_at is not None


@pytest.mark.parametrize("executor", sorted(EXECUTORS))
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_every_strategy_migrates_to_plans_that_join_tables_first(strategy: str, executor: str) -> None:
    """Migrations that last until a window has passed end too: they do not wait for a table's rows."""
    where = "A.k = R.k AND R.v = S.v AND S.k = B.k AND B.v = C.k"
    of = case(
        f"SELECT A.v, R.v, S.d, B.v, C.v FROM a A [RANGE 9 ms], r R, b B [RANGE 9 ms], s S, c C [ROWS 3] WHERE {where}",
        "((((A R) S) B) C)",
        a=" | ".join(f"{2 * i} k={i % 3} v={i}" for i in range(30)),
        b=" | ".join(f"{2 * i + 1} k={i % 2} v={i % 3}" for i in range(30)),
        c=" | ".join(f"{3 * i} k={i % 3} v={i}" for i in range(20)),
        r="0 k=0 v=1 | 0 k=1 v=2 | 0 k=2 v=1",
        s="0 k=0 v=1 d=1 | 0 k=1 v=2 d=2 | 0 k=1 v=1 d=3",
    )
    task = engine_of(of, executor)
    for cut, plan in ((20, "(((R S) B) (C A))"), (40, "((A (S R)) (B C))")):
        task.migrate(parse_plan(plan, of.query), strategy, cut)
    got = feed(task, of.rows, [3], 1)
    assert got == run(of, executor)
    ended = [record.finished_at for record in task.migrations]
    assert all(at is not None and at < 60 for at in ended)


def test_a_checkpoint_has_no_rows_of_tables_and_a_restored_engine_has_the_new_ones() -> None:
    """A restart reads the file again, changed or not: the streams' earlier tuples meet its present rows."""
    select = "SELECT A.v, R.v, B.v FROM a A [RANGE 9 ms], r R, b B [RANGE 9 ms] WHERE A.k = R.k AND R.v = B.k"
    of = case(select, r="0 k=1 v=5")
    life = engine_of(of)
    life.push("a", 0, to_batch(_stream(of, "a"), rows("1 k=1 v=1 | 4 k=2 v=2")))
    life.push("b", 0, to_batch(_stream(of, "b"), rows("4 k=9")))
    assert to_rows(life.advance(4)) == []
    checkpoint = life.checkpoint()
    assert {block.stream for block in checkpoint.blocks} == {"a"}
    assert checkpoint.live_from.keys() == {"a", "b"}
    assert life.unsaved_tuples == 0
    born = engine_of(replace(of, tables={"r": rows("0 k=1 v=6 | 0 k=1 v=7")}))
    born.restore(checkpoint.cut, blocks_by_time(checkpoint.blocks))
    assert born.unsaved_tuples == 0
    born.push("b", 0, to_batch(_stream(of, "b"), rows("5 k=5 v=1 | 6 k=6 v=2")))
    born.close("a", 0)
    born.close("b", 0)
    assert to_rows(born.advance()) == [{"A.v": 1, "R.v": 6, "B.v": 2, "_ts": 6}]


def _stream(of: Case, name: str) -> Stream:
    return next(stream for stream in of.query.streams() if stream.name == name)


def test_rows_are_needed() -> None:
    with pytest.raises(InvariantError, match="the rows of table 'r' are not given"):
        Engine(query(ROOMS))


def test_statistics_show_no_rate_for_tables() -> None:
    of = case(f"{ROOMS} AND R.v > 1", a="1 k=1 | 500 k=1 | 1000 k=1", r="0 k=1 v=1 | 0 k=2 v=2 | 0 k=3 v=3")
    task = engine_of(of)
    feed(task, of.rows, [1], 1)
    found = {one.alias: one for one in task.statistics().sources}
    assert (found["R"].input_tuples, found["R"].selected_tuples, found["R"].living_tuples) == (3, 2, 2)
    assert found["R"].per_second == 0.0
    assert task.statistics().input_tuples == 3
    assert task.statistics().span_ms == 999


THREE = (
    "SELECT A.k FROM a A [RANGE 100 ms], b B [RANGE 100 ms], r R "
    "WHERE A.k = B.k AND A.v = R.k AND B.v = R.v AND R.d > 2"
)


def test_the_plan_depends_on_the_size_of_the_table() -> None:
    """A table of few rows thins a stream out before it is joined; a table of many is left for later."""
    bound = query(THREE)

    def chosen(count: int) -> str:
        some = [{**rows("0")[0], "k": n % 50, "v": n, "d": 3.0} for n in range(count)]
        table = to_batch(bound.tables()[0], some)
        statistics = sample_statistics(bound, {"r": table})
        assert statistics.rows == {"R": count}
        assert "R" not in statistics.rates
        return str(choose_plan(bound, replace(statistics, distinct={**statistics.distinct, ("A", "v"): 50.0})))

    assert chosen(2) != chosen(100_000)
    assert declared_statistics(bound).rows == {}


def test_tables_are_costed_without_arrivals() -> None:
    """A table joined with a stream costs what the stream's tuples cost; with another table its results, once."""
    bound = query("SELECT A.k FROM a A [RANGE 2000 ms], r R, s S WHERE A.k = R.k AND R.v = S.v")
    statistics = Statistics(
        rates={"A": 10.0},
        rows={"R": 40.0, "S": 60.0},
        distinct={("A", "k"): 20.0, ("R", "k"): 20.0, ("R", "v"): 30.0, ("S", "v"): 30.0},
    )
    model = CostModel(bound, statistics)
    assert model.leaf("R") == Estimate(0.0, 40.0, 0.0)
    sizes = model.estimates(parse_plan("((R S) A)", bound))
    tables, whole = sizes[frozenset("RS")], sizes[frozenset("ARS")]
    assert (tables.rate, tables.alive) == (0.0, 80.0)
    assert tables.cost == pytest.approx((40 + 60 + 80) / 3600)
    assert whole.rate == pytest.approx(10 * 80 / 20)
    assert whole.cost == pytest.approx(tables.cost + 10 + 40)


def test_a_table_is_explained_by_its_rows() -> None:
    bound = query(THREE)
    table = to_batch(bound.tables()[0], [{**rows("0")[0], "d": float(n)} for n in range(10)])
    assert np.all(table.ts == TABLE_TS)
    text = explain(bound, parse_plan("((A R) B)", bound), declared_statistics(bound, {"r": table}))
    assert "table r R  ~7 rows" in text
    assert "where R.d > 2" in text
    assert "[UNBOUNDED]" not in text


def test_no_strategy_is_charged_for_a_tables_window() -> None:
    """A strategy that waits for the old tuples to leave waits for the streams'."""
    of = case(
        "SELECT A.k FROM a A [RANGE 9 ms], r R, s S, b B [RANGE 5 ms] WHERE A.k = R.k AND R.v = S.v AND S.k = B.k",
        "((A R) (S B))",
        a="1 k=1 | 2 k=1 | 3 k=1",
        b="1 k=1 | 4 k=2",
        r="0 k=1 v=1",
        s="0 k=1 v=1",
    )
    task = engine_of(of)
    task.push("a", 0, to_batch(_stream(of, "a"), of.rows["a"][0]))
    task.push("b", 0, to_batch(_stream(of, "b"), of.rows["b"][0]))
    task.advance(4)
    to = parse_plan("((R S) (A B))", of.query)
    cost = CostOfMigration(of.query, of.plan, to, task.statistics(links=True), executor="xjoin")
    assert [str(join) for join in cost.missing] == ["(A B)"]
    for strategy in STRATEGIES:
        assert 0 <= cost.prediction(strategy).duration_ms <= 9
