"""`weir ui` without a query: an overview of all registered queries and groups, and their pages."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from schemas.messages.control import RegisteredQuery
from services.process.security import KafkaClients
from services.registry.query_registry import drop, register
from services.ui.cluster import serve_cluster
from services.ui.options import PageOptions
from tests.broker_fixture import Topics
from tests.services.ui.test_running_query import QUERY
from tests.worker_harness import Case, WorkerProcess, wait_for

pytestmark = pytest.mark.kafka


def got(address: str, path: str) -> Any:
    with urllib.request.urlopen(address + path, timeout=10) as answer:
        body = answer.read()
    return json.loads(body) if answer.headers["Content-Type"] == "application/json" else body.decode()


@pytest.mark.parametrize("group", [None, "own"])
def test_registered_queries_come_and_go_with_their_headlines(topics: Topics, tmp_path: Path, group: str | None) -> None:
    case, clients = Case.make(topics, tmp_path, QUERY), KafkaClients(topics.bootstrap)
    name = case.sink.replace(".", "-")
    register(clients, RegisteredQuery(name=name, text=case.path.read_text()), -1)
    options = () if group is None else ("--group", f"{case.sink}-{group}")
    worker = WorkerProcess(case, tmp_path / "state", *options, log=tmp_path / "worker.log")
    try:
        with serve_cluster(clients, PageOptions()) as server:

            def line() -> dict[str, Any]:
                lines = got(server.address, "queries")["queries"]
                return next((dict(one) for one in lines if one["name"] == name), {})

            found = wait_for(line, "the query")
            assert found["about"] == f"results in topic {case.sink}"
            assert "overview.js" in got(server.address, "")
            worker.wait_running()
            wait_for(lambda: line()["headline"]["tone"] == "well", worker.with_log("the headline"))
            page = f"q/{name}/"
            assert "weir.js" in got(server.address, page)
            assert "drawPlan" in got(server.address, f"{page}plan.js")
            wait_for(lambda: got(server.address, f"{page}state")["state"]["plans"], worker.with_log("the plan"))
            assert set(got(server.address, f"{page}state")["offers"]) == {"past", "rows", "what-if"}
            with pytest.raises(urllib.error.HTTPError, match="404"):
                got(server.address, "q/nothing/state")
            drop(clients, name)
            wait_for(lambda: not line(), "the query has gone")
    finally:
        worker.stop()
