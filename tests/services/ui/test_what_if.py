"""What other plans would cost a running query, from what its tasks have measured."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from operators.autopilot.autopilot import Autopilot, best_for_all
from operators.autopilot.evidence import Arrivals, Evidence
from operators.autopilot.join_sample import Share
from operators.autopilot.search import price, same_tree
from operators.autopilot.survey import Surveyed
from operators.engine.engine import Engine
from operators.plan.plan import Plan, left_deep, parse_plan
from schemas.errors import QueryError
from schemas.messages.control import Measured
from schemas.query import Query
from services.commands.options.query import group_of
from services.process.security import KafkaClients
from services.ui.documents.what_if import ONE_PLAN, OTHERS, UNMEASURED, Document, WhatIf, what_if, with_plan
from services.ui.serve import serve
from services.ui.watch.live import MEASURED_S
from tests.broker_fixture import Topics
from tests.hasty import observed
from tests.operators.autopilot.test_autopilot import EVEN, run, run_on, star
from tests.operators.autopilot.test_survey import surveyed
from tests.operators.tiny import chain
from tests.services.ui.running import Running
from tests.services.worker.test_adapting_workers import POOR, STAR, Stream
from tests.worker_harness import Case, Workers

FEW_B, FEW_D = {"B": 64_000, "C": 4000, "D": 40}, {"B": 40, "C": 4000, "D": 64_000}


def measured(engine: Engine, distinct: dict[str, int]) -> Surveyed:
    """What a task publishes after three seconds of events."""
    return replace(surveyed(engine, distinct), statistics=engine.statistics(links=True))


def supposed(query: Query, distinct: Mapping[tuple[str, str], float], best: Plan) -> Surveyed:
    """A measurement without errors: 1,000 tuples a second of each stream in a window of a second."""
    arrivals = {source.alias: Arrivals(1000.0, 1000.0, 0.0) for source in query.sources}
    pairs = {frozenset(pair): Share(-math.log(values), -math.log(values), 0.0, 99) for pair, values in distinct.items()}
    return Surveyed(5000, Evidence(query, arrivals, pairs, frozenset(pairs)), best)


def compared(query: Query, running: Plan, *surveys: Surveyed) -> Document:
    """The comparison, as the page gets it."""
    return dict(json.loads(json.dumps(what_if(query, surveys, running))))


def test_plans_are_compared_with_the_running_one_the_cheapest_first() -> None:
    engine = star()
    found = measured(engine, FEW_D)
    shown = compared(engine.query, engine.plan, found)
    assert (shown["note"], shown["at"], shown["tasks"]) == ("", found.at, 1)
    plans = shown["plans"]
    assert [(row["plan"], row["relative"]) for row in plans if row["running"]] == [("(((A B) C) D)", 1.0)]
    assert [row["plan"] for row in plans if row["best"]] == [plans[0]["plan"]] == [str(found.best)]
    assert [row["cores"] for row in plans] == sorted(row["cores"] for row in plans)
    trees = [parse_plan(row["plan"], engine.query) for row in plans]
    assert len(trees) >= 3
    assert not any(same_tree(a, b) for a, b in combinations(trees, 2))
    now_s = price(found.evidence, engine.plan) + found.calls_s
    for row, plan in zip(plans, trees, strict=True):
        assert row["cores"] == pytest.approx(price(found.evidence, plan) + found.calls_s)
        assert row["relative"] == pytest.approx(row["cores"] / now_s)
        assert not row["asked"]


def test_it_says_what_the_autopilot_decides_by() -> None:
    engine = star()
    autopilot = Autopilot(engine, mode="advise", look_always=True)
    observed(engine, autopilot)
    run(engine, 5, lambda _: FEW_D)
    assert autopilot.found is not None
    found = replace(autopilot.found, statistics=engine.statistics(links=True))
    change, decided = compared(engine.query, engine.plan, found)["change"], autopilot.adaptations[-1]
    assert change["plan"] == decided.to_plan
    assert change["saving"] == pytest.approx(decided.predicted.saving)
    assert change["certain"]
    assert (change["strategy"], change["work_s"]) == (decided.strategy, pytest.approx(decided.predicted.cost))
    assert change["silence_s"] == pytest.approx(decided.predicted.silence)
    assert change["command"] == f"weir migrate QUERY --plan '{decided.to_plan}'"


def test_the_expected_rates_are_those_at_which_joins_produce() -> None:
    engine = star()
    (now,) = (row for row in compared(engine.query, engine.plan, measured(engine, EVEN))["plans"] if row["running"])
    before = {one.name: one.results for one in engine.statistics().operators}
    run_on(engine, 3, 4, lambda _: EVEN)
    made = {one.name: (one.results - before[one.name]) / 4 for one in engine.statistics().operators}
    assert {one["join"]: one["per_s"] for one in now["joins"]} == pytest.approx(made, rel=0.4)


def test_the_costs_of_all_tasks_add_up() -> None:
    engines = [star(), star()]
    surveys = [measured(engine, distinct) for engine, distinct in zip(engines, (FEW_B, FEW_D), strict=True)]
    query, running = engines[0].query, engines[0].plan
    shown = compared(query, running, *surveys)
    for row in shown["plans"]:
        plan = parse_plan(row["plan"], query)
        assert row["cores"] == pytest.approx(sum(price(one.evidence, plan) + one.calls_s for one in surveys))
    chosen = best_for_all(surveys, running)
    assert shown["plans"][0]["cores"] <= sum(price(one.evidence, chosen) + one.calls_s for one in surveys) * (1 + 1e-9)
    assert (shown["tasks"], shown["at"]) == (2, min(one.at for one in surveys))


def test_a_plan_of_the_user_is_compared_too() -> None:
    engine = star()
    found = measured(engine, FEW_D)
    shown = what_if(engine.query, [found], engine.plan)
    unknown = next(plan for plan in ("(A (B (C D)))", "((A B) (C D))") if plan not in str(shown))
    asked = parse_plan(unknown, engine.query)
    more = with_plan(shown, [found], engine.plan, asked)
    (row,) = (row for row in more["plans"] if row["asked"])
    assert row["plan"] == unknown
    assert row["cores"] == pytest.approx(price(found.evidence, asked) + found.calls_s)
    assert [row["cores"] for row in more["plans"]] == sorted(row["cores"] for row in more["plans"])
    assert len(more["plans"]) == len(shown["plans"]) + 1
    mirrored = with_plan(shown, [found], engine.plan, parse_plan("(D (C (B A)))", engine.query))
    assert [(row["plan"], row["running"]) for row in mirrored["plans"] if row["asked"]] == [("(((A B) C) D)", True)]
    assert not any(row["asked"] for row in shown["plans"])


def test_a_saving_within_the_error_is_told() -> None:
    query, running = star().query, star().plan
    distinct = {("A", "B"): 4000.0, ("A", "C"): 4100.0, ("A", "D"): 4000.0}
    found = supposed(query, distinct, parse_plan("(((A C) B) D)", query))
    shown = compared(query, running, found)
    assert shown["plans"][0]["plan"] == "(((A C) B) D)"
    assert 0 < shown["change"]["saving"] < 0.05
    assert not shown["change"]["certain"]
    assert shown["change"]["strategy"] is None, "its cost cannot be predicted without statistics"


def test_of_plans_that_cost_the_same_the_running_one_is_the_best() -> None:
    query, running = star().query, parse_plan("(((A D) B) C)", star().query)
    shown = compared(query, running, supposed(query, dict.fromkeys([("A", x) for x in "BCD"], 4000.0), running))
    assert [row["plan"] for row in shown["plans"] if row["best"]] == ["(((A D) B) C)"]
    assert shown["change"] is None


@pytest.mark.parametrize("count", [10, 40])
def test_of_many_streams_some_plans_are_shown(count: int) -> None:
    query = chain(count)
    names = [source.alias for source in query.sources]
    running = left_deep(names)
    distinct = {pair: 100.0 * (n + 1) for n, pair in enumerate(pairwise(names))}
    shown = compared(query, running, supposed(query, distinct, running))
    assert 2 <= len(shown["plans"]) <= OTHERS + 2
    assert shown["plans"][0]["relative"] < 1
    assert shown["plans"][0]["best"]
    assert shown["change"]["certain"] is (True if count == 10 else None)
    assert all(len(row["joins"]) == count - 1 for row in shown["plans"])


def test_where_nothing_can_be_compared_it_says_why() -> None:
    assert what_if(star().query, [], star().plan)["note"] == UNMEASURED
    two = chain(2)
    assert what_if(two, [], left_deep(["A0", "A1"]))["note"] == ONE_PLAN
    nothing = what_if(two, [], left_deep(["A0", "A1"]))
    assert with_plan(nothing, [], left_deep(["A0", "A1"]), left_deep(["A1", "A0"])) == nothing


class Asked:
    """A running query about which the page asks."""

    def __init__(self, tasks: int = 1) -> None:
        self.running = Running(tasks)
        self.what_if = WhatIf(self.running.query, self.running.live, ["q.sql", "--group", "two words"])
        self.running.second()

    def publish(self, found: Surveyed, task: int = 0) -> None:
        message = Measured(query=self.running.query.name, task=task, survey=found.document())
        self.running.live.take(Measured(query=message.query, task=task, survey=json.loads(json.dumps(message.survey))))


def test_until_something_is_new_it_is_not_computed_again() -> None:
    asked = Asked()
    assert asked.what_if.answer({})["note"] == UNMEASURED
    found = measured(star(), FEW_D)
    asked.publish(found)
    first = asked.what_if.answer({})
    assert first["change"]["command"].startswith("weir migrate q.sql --group 'two words' --plan '(")
    assert first["change"]["strategy"]
    asked.running.second()
    asked.publish(found)
    assert asked.what_if.answer({}) is first
    own = asked.what_if.answer({"plan": "((A B) (C D))"})
    assert [row["plan"] for row in own["plans"] if row["asked"]] == ["((A B) (C D))"]
    assert asked.what_if.answer({}) is first
    asked.publish(measured(star(), FEW_B))
    assert asked.what_if.answer({}) is not first


def test_after_a_change_of_the_plan_the_new_one_is_the_running_one() -> None:
    asked = Asked()
    asked.publish(measured(star(), FEW_D))
    assert asked.what_if.answer({})["change"]["strategy"]
    asked.running.migrate("(((A C) B) D)")
    asked.running.second()
    shown = asked.what_if.answer({})
    assert [row["plan"] for row in shown["plans"] if row["running"]] == ["(((A C) B) D)"]
    assert shown["change"]["strategy"] is None, "the statistics are those of the states of the plan before"


def test_the_plan_that_ran_before_is_compared_too() -> None:
    """A reader asked whether the change was right, and the former plan was not among the cheapest."""
    asked = Asked()
    asked.publish(measured(star(), FEW_D))
    assert not any(row["former"] for row in asked.what_if.answer({})["plans"])
    asked.running.migrate("(((A D) C) B)")
    asked.running.second()
    asked.running.decide(1, "not made", made=False)
    assert not any(row["former"] for row in asked.what_if.answer({})["plans"])
    asked.running.decide(2, "made")
    rows = asked.what_if.answer({})["plans"]
    assert [(row["plan"], row["running"]) for row in rows if row["former"]] == [("(((A B) C) D)", False)]
    asked.running.migrate("(((A C) D) B)")
    asked.running.second()
    assert not any(row["former"] for row in asked.what_if.answer({})["plans"]), "somebody has changed it since"


def test_a_plan_that_the_query_cannot_have_is_refused() -> None:
    asked = Asked()
    for plan, words in (("((A B) X)", "unknown alias 'X'"), ("((A B)", "never closed"), ("(A B)", "missing C, D")):
        with pytest.raises(QueryError, match=words):
            asked.what_if.answer({"plan": plan})


def test_what_a_task_measured_over_a_minute_ago_does_not_count() -> None:
    asked = Asked(2)
    found = measured(star(), FEW_D)
    asked.publish(found, 1)
    asked.publish(measured(star(), FEW_B), 0)
    asked.running.now_ms += int(MEASURED_S * 1000)
    asked.publish(found, 1)
    asked.running.second()
    live = asked.running.live
    assert [message.task for message in live.measured()] == [1]
    assert asked.what_if.answer({})["tasks"] == 1
    asked.running.now_ms += int(MEASURED_S * 1000) + 1
    assert live.measured() == []
    assert asked.what_if.answer({})["note"] == UNMEASURED


def test_messages_that_are_damaged_or_about_another_query_are_passed_over() -> None:
    asked = Asked()
    asked.running.live.take(Measured(query="another", task=0, survey={}))
    assert asked.running.live.measured() == []
    asked.running.live.take(Measured(query=asked.running.query.name, task=0, survey={}))
    assert asked.what_if.answer({})["note"] == UNMEASURED


@pytest.mark.kafka
def test_the_only_task_of_a_query_tells_what_it_measures(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """It decides for itself, so it published nothing once."""
    case = Case.make(topics, tmp_path, STAR)
    stream = Stream(case)
    worker = workers.start(case, "--adapt", "advise", "--epoch", "20ms", "--plan", POOR).wait_running()
    with serve(KafkaClients(case.bootstrap), case.query, group_of(case.query, None)) as server:

        def answer(parameters: str = "") -> Document:
            with urllib.request.urlopen(f"{server.address}what-if{parameters}", timeout=20) as found:
                return dict(json.load(found))

        assert answer()["note"] == UNMEASURED
        stream.send(worker, {"b": 10_000, "c": 300, "d": 6}, "a comparison", lambda: bool(answer()["plans"]))
        shown = answer("?plan=(A+(B+(C+D)))")
        assert [row["plan"] for row in shown["plans"] if row["running"]] == [POOR]
        assert [row["plan"] for row in shown["plans"] if row["asked"]] == ["(A (B (C D)))"]
        assert (shown["tasks"], shown["note"]) == (1, "")
        with pytest.raises(urllib.error.HTTPError) as refused:
            answer("?plan=(A+B)")
        assert refused.value.code == 400
        assert "missing C, D" in refused.value.read().decode()
