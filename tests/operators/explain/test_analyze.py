"""`explain --analyze` as text and numbers: figures per operator, sums over tasks, migrations, two plans at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from operators.data.statistics import FILES, EngineStatistics, SpillStatistics
from operators.engine.engine import Engine
from operators.explain.analyze import Observation, analyses
from operators.plan.choose import Statistics, declared_statistics
from operators.plan.plan import parse_plan
from schemas.query import Query
from tests.feeding import to_batch
from tests.operators.tiny import query

THREE = query(
    "SELECT A.k FROM a A [RANGE 100 ms], b B [RANGE 100 ms], c C [RANGE 100 ms] "
    "WHERE A.k = B.k AND B.v = C.v AND A.v > 0"
)
PLAN = "((A B) C)"


def fed(engine: Engine, begin: int, end: int) -> EngineStatistics:
    """A tuple per stream and millisecond, of five keys."""
    for stream in engine.query.streams():
        rows = [{"ts": t, "k": t % 5, "v": t % 2, "d": 0.0, "s": "", "f": None} for t in range(begin, end)]
        engine.push(stream.name, 0, to_batch(stream, rows))
    engine.advance(end)
    return engine.statistics()


def started(bound: Query = THREE, plan: str = PLAN, executor: str = "xjoin") -> Engine:
    return Engine(bound, plan=parse_plan(plan, bound), executor=executor)


def of(statistics: EngineStatistics, task: int = 0) -> Observation:
    """Since the beginning."""
    return Observation(task, statistics)


def test_every_operator_shows_its_counters() -> None:
    (found,) = analyses(THREE, [of(fed(started(), 0, 1000))], declared_statistics(THREE))
    text = "\n".join(found.lines())
    for said in (
        "query  results",
        f"plan   {PLAN}",
        "in    500 + 1,000 tuples",
        "in    1,000 tuples, 0.5 of them selected",
        "where A.v > 0",
        "key   A.k = B.k",
        "rates per second of event time",
        "task 0 at 1970-01-01T00:00:01Z: 3,000 tuples in, 0 waiting, 0 late",
    ):
        assert said in text, text
    assert "incomplete" not in text
    assert "migration" not in text
    inner, outer = found.operators
    assert inner.total.name == "(A B)"
    assert inner.selectivity == pytest.approx(0.2, rel=0.15)
    assert outer.selectivity == pytest.approx(0.5, rel=0.15)
    assert found.living[frozenset("B")] == pytest.approx(100, abs=2)


def test_expectations_are_shown_and_large_errors_are_named() -> None:
    """A thousand tuples per second arrive where ten were expected."""
    wrong = Statistics(rates={"A": 10.0, "B": 1000.0, "C": 1000.0}, distinct={("A", "k"): 5, ("B", "v"): 2})
    (found,) = analyses(THREE, [of(fed(started(), 0, 1000))], wrong)
    lines = {line.split("source ")[1][0]: line for line in found.lines() if "source " in line}
    assert "times as much" in lines["a"]
    assert "times as much" not in lines["b"]


def test_a_task_without_input_shows_no_position() -> None:
    """It stood at 1970-01-01T00:00:00Z, and a migration before the first tuple was of that day."""
    engine = started()
    (found,) = analyses(THREE, [of(engine.statistics())], declared_statistics(THREE))
    assert found.lines()[-1] == "task 0: nothing read yet"
    engine.migrate(parse_plan("((B C) A)", THREE), "jisc", 0)
    (found,) = analyses(THREE, [of(engine.statistics())], declared_statistics(THREE))
    assert any(line.endswith("begins at the beginning") for line in found.lines()), found.lines()
    (later,) = analyses(THREE, [of(fed(engine, 0, 100))], declared_statistics(THREE))
    assert any(" by jisc at the beginning: " in line for line in later.lines()), later.lines()
    assert not any("1970-01-01T00:00:00Z" in line for line in [*found.lines(), *later.lines()])


def test_tasks_are_summed() -> None:
    """Counters and sizes add up; a state is complete where it is in every task."""
    one, two = fed(started(), 0, 1000), fed(started(), 0, 500)
    (found,) = analyses(THREE, [of(two, 1), of(one, 0)], declared_statistics(THREE))
    assert [o.task for o in found.observations] == [0, 1]
    for k, figures in enumerate(found.operators):
        parts = one.operators[k], two.operators[k]
        assert figures.total.results == sum(part.results for part in parts)
        assert figures.total.state_tuples == tuple(sum(part.state_tuples[s] for part in parts) for s in (0, 1))
        assert figures.total.complete == (True, True)
    assert [s.input_tuples for s in found.sources] == [1500, 1500, 1500]
    assert len([line for line in found.lines() if line.startswith("task ")]) == 2


def test_rates_are_of_the_last_seconds_where_both_ends_are_known() -> None:
    engine = started()
    before = fed(engine, 0, 1000)
    now = fed(engine, 1000, 1500)
    (found,) = analyses(THREE, [Observation(0, now, before, 2.0)], declared_statistics(THREE))
    assert found.recent
    assert found.sources_per_s["B"] == 1000  # 500 in half a second of event time, which took two
    inner = found.operators[0]
    assert inner.inputs_per_s[1] == 1000
    assert inner.results_per_s == (now.operators[0].results - before.operators[0].results) * 2
    assert "rates per second of event time, lately" in found.lines()
    assert "750 tuples/s, 0% of a core" in found.lines()[-1]
    (still,) = analyses(THREE, [Observation(0, now, now, 2.0)], declared_statistics(THREE))
    assert still.sources_per_s["B"] == 0


@pytest.mark.parametrize("ended", [False, True])
def test_rates_are_right_when_input_has_just_begun_or_has_ended(ended: bool) -> None:
    """A report before the first tuple has cut 0, and one at the end has END: rates were of decades of event time."""
    engine, begin = started(), 1_795_953_600_000
    before = fed(engine, begin, begin + 500) if ended else engine.statistics()
    now = fed(engine, begin + 500, begin + 1500)
    if ended:
        engine.advance()
        now = engine.statistics()
    (found,) = analyses(THREE, [Observation(0, now, before, 2.0)], declared_statistics(THREE))
    assert found.sources_per_s["B"] == pytest.approx(1000, rel=0.01)


def test_a_budget_shows_tuples_on_disk_and_pending_results() -> None:
    """Tasks are summed, but for the longest pause."""
    now = fed(started(), 0, 100)
    spill = SpillStatistics("bottom-up", 1 << 20, used_bytes=1 << 18, spills=2, spilled_groups=1200, owed=40)
    tasks = [of(replace(now, spill=replace(spill, longest_spill_s=s)), task) for task, s in enumerate((0.25, 0.125))]
    (found,) = analyses(THREE, tasks, declared_statistics(THREE))
    (line,) = (line for line in found.lines() if line.startswith("memory"))
    assert line.startswith("memory 512 KiB of 2 MiB; 4 spills of 2,400 groups by bottom-up, the longest 250 ms; ")
    assert "results of at most 80 pairs are pending; 0 cleanups" in line
    (cleaned_up,) = analyses(THREE, [of(replace(now, spill=replace(spill, owed=0)))], declared_statistics(THREE))
    assert "nothing is pending" in "\n".join(cleaned_up.lines())
    fixed = replace(spill, fixed_bytes=1 << 17)
    for strategy, rest in (("bottom-up", "2 spills"), (FILES, "0 B in files")):
        (found,) = analyses(
            THREE, [of(replace(now, spill=replace(fixed, strategy=strategy)))], declared_statistics(THREE)
        )
        shown = f"memory 256 KiB of 1 MiB, of which 128 KiB cannot be spilled; {rest}"
        assert any(line.startswith(shown) for line in found.lines())


def test_a_migration_shows_both_plans_and_how_far_it_is() -> None:
    engine = started()
    engine.migrate(parse_plan("(A (B C))", THREE), "parallel-track", 500)
    fed(engine, 0, 500)
    (found,) = analyses(THREE, [of(fed(engine, 500, 550))], declared_statistics(THREE))
    text = "\n".join(found.lines())
    assert found.plan == parse_plan("(A (B C))", THREE)
    assert f"still running: {PLAN}" in text
    assert "│  incomplete right state" in text
    migration = next(line for line in found.lines() if line.startswith("migration"))
    assert migration.startswith(
        f"migration {PLAN} -> (A (B C)) by parallel-track at 1970-01-01T00:00:00.500Z: in progress"
    )
    assert "0.05 of 0.1 s (50%)" in migration
    (over,) = analyses(THREE, [of(fed(engine, 550, 700))], declared_statistics(THREE))
    assert "still running" not in "\n".join(over.lines())
    assert "by parallel-track at 1970-01-01T00:00:00.500Z: done, " in "\n".join(over.lines())


def test_an_incomplete_state_shows_its_missing_keys() -> None:
    """JISC: every tuple has a key of its own, so most keys wait."""
    engine = started()
    engine.migrate(parse_plan("(A (B C))", THREE), "jisc", 500)
    fed(engine, 0, 500)
    fed(engine, 500, 501)
    statistics = engine.statistics()
    operator = next(o for o in statistics.operators if o.name == "(A (B C))")
    halfway = replace(operator, complete=(True, False), completed_keys=(0, 2), total_keys=(0, 5))
    others = tuple(halfway if o is operator else o for o in statistics.operators)
    (found,) = analyses(THREE, [of(replace(statistics, operators=others))], declared_statistics(THREE))
    assert "│  incomplete right state: 2 of 5 keys completed" in found.lines()


def test_tasks_with_different_plans_are_shown_apart() -> None:
    """The analyses while tasks change plans one by one."""
    one, two = fed(started(), 0, 300), fed(started(plan="(A (B C))"), 0, 300)
    found = analyses(THREE, [of(one, 0), of(two, 1)], declared_statistics(THREE))
    assert [str(each.plan) for each in found] == [PLAN, "(A (B C))"]
    assert [len(each.observations) for each in found] == [1, 1]


@pytest.mark.parametrize("executor", ["xjoin", "mjoin", "eddy", "stairs"])
def test_all_operators_of_every_executor_are_shown(executor: str) -> None:
    statistics = fed(started(executor=executor), 0, 300)
    (found,) = analyses(THREE, [of(statistics)], declared_statistics(THREE))
    text = "\n".join(found.lines())
    for operator in statistics.operators:
        assert operator.name in text
        assert f"{operator.comparisons:,} comparisons" in text


def test_one_source_and_no_input() -> None:
    """Nothing to divide by."""
    one = query("SELECT A.k FROM a A [ROWS 1]")
    (found,) = analyses(one, [of(Engine(one).statistics())], declared_statistics(one))
    assert found.lines()[3].startswith("source a A [ROWS 1]  0/s, 0 alive")
    (empty,) = analyses(THREE, [of(started().statistics())], declared_statistics(THREE))
    assert "0 + 0 tuples, 0 comparisons" in "\n".join(empty.lines())


def test_set_differences_are_shown() -> None:
    minus = query("SELECT A.k FROM a A [RANGE 100 ms] EXCEPT b B [RANGE 100 ms] ON A.k = B.k")
    (found,) = analyses(minus, [of(fed(Engine(minus), 0, 300))], declared_statistics(minus))
    assert "hash difference (A B)" in "\n".join(found.lines())


def test_all_of_it_is_in_the_document() -> None:
    statistics = fed(started(), 0, 300)
    (found,) = analyses(THREE, [of(statistics)], Statistics(rates={"A": 1.0}))
    document = found.document()
    assert document["plan"] == PLAN
    assert [o["name"] for o in document["operators"]] == ["(A B)", PLAN]
    assert document["operators"][0]["results_per_s"] > 0
    assert document["tasks"][0]["input_tuples"] == 900
    assert {tuple(e["aliases"]) for e in document["expected"]} >= {("A", "B"), ("A", "B", "C")}


def test_the_prediction_of_auto_is_shown_beside_the_measured_cost() -> None:
    engine = started()
    engine.migrate(parse_plan("(A (B C))", THREE), "auto", 500)
    fed(engine, 0, 500)
    statistics = EngineStatistics.from_document(fed(engine, 500, 700).document())
    (found,) = analyses(THREE, [of(statistics)], declared_statistics(THREE))
    (line,) = (line for line in found.lines() if line.startswith("migration"))
    (record,) = engine.migrations
    assert f"by {record.strategy} (auto) at" in line
    assert record.advice is not None
    assert f"(predicted: {record.advice.predicted.comparisons:,.0f} comparisons" in line
    assert statistics.migrations[0].reason == record.advice.reason


def test_aggregates_show_their_emissions() -> None:
    every = query(
        "SELECT COUNT(*) AS n FROM a A [RANGE 100 ms], b B [RANGE 100 ms] WHERE A.k = B.k EMIT EVERY 50 MILLISECONDS"
    )
    statistics = fed(Engine(every), 0, 1000)
    (found,) = analyses(every, [of(statistics)], declared_statistics(every))
    assert (
        f"aggregate every 50 MILLISECONDS  {statistics.results / 0.999:.3g}/s, {statistics.results} emitted"
        in found.lines()
    )
