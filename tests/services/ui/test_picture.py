"""What the page shows, from what tasks publish."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pytest

from operators.data.statistics import SpillStatistics
from operators.plan.choose import declared_statistics
from services.ui.documents.picture import picture
from tests.services.ui.running import BEGIN_MS, BUSY, Running


def shown(running: Running) -> dict[str, Any]:
    found = picture(running.query, running.live.snapshot(), declared_statistics(running.query))
    return dict(json.loads(json.dumps(found)))


def nodes(plan: Mapping[str, Any]) -> dict[str, Any]:
    return {node["id"]: node for node in plan["nodes"]}


def test_the_plan_has_the_figures_of_all_tasks() -> None:
    running = Running(2)
    for _ in range(5):
        running.second()
    (plan,) = shown(running)["plans"]
    assert plan["text"] == "(((A B) C) D)"
    assert plan["tasks"] == [0, 1]
    assert not plan["leaving"]
    found = nodes(plan)
    assert set(found) == {"(((A B) C) D)", "((A B) C)", "(A B)", "A", "B", "C", "D"}
    assert found["A"]["per_s"] == pytest.approx(4000, rel=0.3)
    assert found["A"]["stream"] == "a"
    top = found["(((A B) C) D)"]
    assert (top["left"], top["right"]) == ("((A B) C)", "D")
    assert top["kind"] == "hash join"
    assert top["conditions"] == ["key   A.d = D.d"]
    assert min(top["inputs_per_s"]) > 0
    assert sum(top["state_bytes"]) > 0
    one = running.engines[0].statistics()
    assert top["results"] == 2 * next(o.results for o in one.operators if o.name == top["id"])


def test_the_shares_of_joins_add_up_to_what_the_engines_take() -> None:
    running = Running()
    for _ in range(4):
        running.second()
    (plan,) = shown(running)["plans"]
    shares = [node["cores"] for node in plan["nodes"] if "cores" in node]
    assert sum(shares) == pytest.approx(BUSY)
    assert shown(running)["tasks"][0]["busy"] == pytest.approx(BUSY)


def test_while_a_plan_change_runs_both_plans_are_shown() -> None:
    running = Running()
    for _ in range(4):
        running.second()
    running.migrate("(((A D) C) B)", "parallel-track")
    running.engines[0].advance(running.engines[0].cut + 1)
    running.report(0)
    found = shown(running)
    assert [(plan["text"], plan["leaving"]) for plan in found["plans"]] == [
        ("(((A D) C) B)", False),
        ("(((A B) C) D)", True),
    ]
    (change,) = found["migrations"]
    assert (change["to"], change["strategy"], change["finished"]) == ("(((A D) C) B)", "parallel-track", None)


def test_a_join_shows_its_states_and_what_a_tuple_makes() -> None:
    running = Running(2)
    for _ in range(5):
        running.second()
    (plan,) = shown(running)["plans"]
    top = nodes(plan)["(((A B) C) D)"]
    found = [next(o for o in e.statistics().operators if o.name == top["id"]) for e in running.engines]
    assert top["groups"] == [sum(one.state_groups[side] for one in found) for side in (0, 1)]
    assert top["living"] == pytest.approx([sum(one.living_tuples[side] for one in found) for side in (0, 1)], rel=0.1)
    assert top["per_tuple"] == pytest.approx(top["per_s"] / sum(top["inputs_per_s"]))
    assert top["completed"] == [1, 1]
    assert "completed" not in nodes(plan)["A"]


def test_a_state_that_is_being_completed_shows_how_far_it_is() -> None:
    running = Running()
    for _ in range(4):
        running.second()
    running.migrate("(((A D) C) B)", "jisc")
    running.engines[0].advance(running.engines[0].cut + 1)
    running.report(0)
    (plan,) = shown(running)["plans"]
    top = nodes(plan)["(((A D) C) B)"]
    done, total = top["keys"]
    assert 0 < done[0] < total[0]
    assert top["completed"] == [pytest.approx(done[0] / total[0]), 1]
    assert nodes(plan)["(A D)"]["completed"] == [1, 1]


def test_a_state_without_counted_keys_is_as_complete_as_its_migration() -> None:
    running = Running(2)
    for _ in range(4):
        running.second()
    running.migrate("(((A D) C) B)", "parallel-track")
    for number, engine in enumerate(running.engines):
        engine.advance(engine.cut + 1)
        running.report(number)
    new, old = (nodes(plan) for plan in shown(running)["plans"])
    migrations = [engine.statistics().migrations[0] for engine in running.engines]
    share = sum(one.done for one in migrations) / sum(one.total for one in migrations)
    assert new["((A D) C)"]["completed"] == [pytest.approx(share), pytest.approx(share)]
    assert old["((A B) C)"]["completed"] == [1, 1]


def test_feedback_is_at_the_producer_summed_over_tasks() -> None:
    running = Running(2)
    running.second()
    edge = {"consumer": "((A B) C)", "producer": "(A B)", "watching": False, "kept_back": 5, "suppressed": 40}
    gone = edge | {"consumer": "((A B) X)"}
    running.report(0, feedback=[edge | {"saved_bytes": 100}, gone])
    running.report(1, feedback=[edge | {"watching": True}])
    (plan,) = shown(running)["plans"]
    (found,) = nodes(plan)["(A B)"]["feedback"]
    assert found["consumer"] == "((A B) C)"
    assert found["watching"]
    assert (found["kept_back"], found["suppressed"], found["saved_bytes"]) == (10, 80, 100)
    assert nodes(plan)["((A B) C)"]["feedback"] == nodes(plan)["A"]["feedback"] == []


def test_tasks_show_their_share_of_the_input_and_what_is_on_disk() -> None:
    running = Running(2)
    running.second()
    read = [engine.statistics().input_tuples for engine in running.engines]
    spill = asdict(SpillStatistics("lazy", 100, used_bytes=30, spilled_groups=3, on_disk_tuples=70, owed=9))
    running.report(0, input_tuples=read[0] + 100, spill=spill)
    running.report(1, input_tuples=read[1] + 900)
    first, second = shown(running)["tasks"]
    assert first["input_share"] == pytest.approx([0.1, 0.5])
    assert second["input_share"] == pytest.approx([0.9, 0.5])
    assert (first["disk"], first["owed"], second["disk"]) == ([70, 3, 0], 9, None)


def test_tasks_of_different_operators_are_not_compared() -> None:
    running = Running(2)
    for _ in range(2):
        running.second(health={0: {"operator": "(A B)"}, 1: {"operator": "((A B) C)"}})
    assert [task["input_share"] for task in shown(running)["tasks"]] == [None, None]


def test_tasks_and_decisions_are_listed_the_latest_decision_first() -> None:
    running = Running(2)
    running.second(health={1: {"problem": "disk full", "since": "12:00"}})
    running.decide(1, "first")
    running.decide(2, "second", made=False)
    found = shown(running)
    assert [(one["task"], one["worker"], one["problem"]) for one in found["tasks"]] == [
        (0, "worker-0", ""),
        (1, "worker-1", "disk full"),
    ]
    assert [(one["number"], one["reason"], one["made"]) for one in found["decisions"]] == [
        (2, "second", False),
        (1, "first", True),
    ]
    assert found["now"] == BEGIN_MS + 1000


def test_before_anything_is_known_there_is_a_picture_too() -> None:
    found = shown(Running())
    assert found["plans"] == found["tasks"] == []
    assert found["headline"]["tone"] == "ill"


def test_a_picture_is_small_enough_to_send_every_second() -> None:
    running = Running(4)
    for number in range(5):
        running.second()
        running.decide(number, "it saves 90% of the work and has paid for the change")
    assert len(json.dumps(shown(running))) < 20_000
