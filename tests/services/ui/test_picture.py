"""What the page shows, from what tasks publish."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from operators.plan.choose import declared_statistics
from services.ui.picture import picture
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


def test_tasks_and_decisions_are_listed_the_latest_decision_first() -> None:
    running = Running(2)
    running.second(health={1: {"problem": "disk full"}})
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
