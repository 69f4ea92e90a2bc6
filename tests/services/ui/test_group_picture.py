"""What the page shows of a group of queries, from what its tasks publish and from the registry."""

from __future__ import annotations

import json
from typing import Any

import pytest

from schemas.errors import UsageError
from services.ui.documents.group_picture import explained, group_picture
from tests.services.ui.running import RunningGroup


def shown(running: RunningGroup) -> dict[str, Any]:
    return dict(json.loads(json.dumps(group_picture("g", running.registered, running.live.snapshot()))))


def nodes(running: RunningGroup) -> dict[str, Any]:
    return {node["id"]: node for node in shown(running)["group"]}


def started() -> RunningGroup:
    running = RunningGroup()
    for _ in range(4):
        running.second()
    return running


def test_streams_flow_through_operators_into_queries() -> None:
    running = started()
    found = nodes(running)
    assert [node for node in found if node.startswith("stream")] == ["stream l", "stream r"]
    assert found["stream l"]["windows"] == ["[RANGE 1 SECOND]", "[RANGE 2 SECONDS]"]
    shared = next(node for node in found.values() if node.get("shared"))
    assert shared["queries"] == ["near", "wide"]
    assert shared["inputs"] == ["stream l", "stream r"]
    assert shared["state_tuples"] > 0
    assert shared["comparisons_per_s"] > 0
    assert found["query near"]["inputs"] == found["query wide"]["inputs"] == [shared["id"]]
    assert found["query lone"]["inputs"] != [shared["id"]]
    by_name = {query.name: query.results for query in running.engine.statistics().queries}
    assert found["query wide"]["results"] == by_name["wide"] > by_name["near"] > 0
    assert found["query wide"]["per_s"] > found["query near"]["per_s"] > 0
    assert shown(running)["tasks"][0]["inputs_per_s"] == pytest.approx(200)


def test_queries_come_and_go() -> None:
    running = started()
    running.registered["last"] = running.all["last"]
    waiting = nodes(running)["query last"]
    assert (waiting["running"], waiting["inputs"], waiting["topic"]) == (False, [], "last")
    running.add("last")
    running.drop("near")
    running.second()
    running.second()
    found = nodes(running)
    assert "query near" not in found
    assert found["query last"]["running"]
    assert found["query wide"]["per_s"] > 0, "the operator is the same, though its queries are not"


def test_an_operator_is_explained_in_words() -> None:
    running = started()
    snapshot = running.live.snapshot()
    told = explained("wide", running.registered, snapshot)
    assert told.startswith("operator over L, R, shared by 2 queries")
    assert "L.k = R.k  (all)" in told
    assert "hash difference (L R)" in explained("lone", running.registered, snapshot)
    with pytest.raises(UsageError, match="no query 'other' runs"):
        explained("other", running.registered, snapshot)


def test_nothing_runs_yet() -> None:
    running = RunningGroup()
    found = shown(running)
    assert found["headline"]["reached"] == "No task has reported: no worker runs this query"
    assert {node["id"] for node in found["group"]} == {"stream l", "stream r", "query near", "query wide", "query lone"}
