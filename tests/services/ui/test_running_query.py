"""`weir ui` beside a real worker: while the worker runs, while a partition is silent, and after kill -9."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from services.broker.background import free_port
from tests.broker_fixture import Topics
from tests.group_workers import GroupTrial, select
from tests.worker_harness import Case, Feed, WorkerProcess, Workers, wait_for

QUERY = """
CREATE STREAM l (k BIGINT, at TIMESTAMP) WITH (topic = '{l}', format = 'json', timestamp = 'at');
CREATE STREAM r (k BIGINT, at TIMESTAMP) WITH (topic = '{r}', format = 'json', timestamp = 'at');
INSERT INTO '{sink}' SELECT L.k AS k FROM l L [RANGE 10 SECONDS], r R [RANGE 10 SECONDS] WHERE L.k = R.k;
"""

THREE = QUERY.replace(
    "INSERT",
    "CREATE STREAM s (k BIGINT, at TIMESTAMP) WITH (topic = '{s}', format = 'json', timestamp = 'at');\nINSERT",
).replace(" WHERE L.k = R.k", ", s S [RANGE 10 SECONDS] WHERE L.k = R.k AND L.k = S.k")


@contextmanager
def page_of(case: Case, log: Path, *options: str) -> Iterator[str]:
    """The address of the page, which a process of its own serves."""
    command = [sys.executable, "-m", "services.cli", "ui", str(case.path), "--bootstrap", case.bootstrap, *options]
    with log.open("w") as out:
        process = subprocess.Popen([*command, "--http-port", "0"], stdout=out, stderr=out)
    try:
        found = wait_for(lambda: re.search(r"http://\S+", log.read_text()), log.read_text)
        yield found[0]
    finally:
        process.terminate()
        assert process.wait(20) == 0, log.read_text()


def state(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{address}state", timeout=10) as answer:
        return dict(json.load(answer)["state"])


@pytest.mark.kafka
def test_it_says_what_holds_results_back(topics: Topics, tmp_path: Path) -> None:
    case = Case.make(topics, tmp_path, QUERY, partitions=2)
    feed = Feed(case)
    worker = WorkerProcess(case, tmp_path / "state", "--memory", "8MiB", log=tmp_path / "worker.log")
    try:
        with page_of(case, tmp_path / "page.log") as address:
            worker.wait_running()

            def headline() -> dict[str, str]:
                now = int(time.time() * 1000)
                for stream in case.rows:
                    for partition in (0, 1) if stream == "l" else (0,):
                        feed.send(stream, [{"k": now % 7, "at": now}], partition)
                if not case.rows["r"][1]:
                    feed.send("r", [{"k": 1, "at": now}], 1)
                feed.flush()
                time.sleep(0.2)
                return dict(state(address)["headline"])

            silent = wait_for(lambda: "silent" in (found := headline())["held"] and found, worker.with_log("held"))
            assert silent["tone"] == "held"
            assert re.match(rf"{case.topic('r')} partition 1, silent for [\d.]+ s$", silent["held"])
            found = state(address)
            assert [node["id"] for node in found["plans"][0]["nodes"]] == ["(L R)", "L", "R"]
            assert [task["state"] for task in found["tasks"]] == ["running"]
            assert found["tasks"][0]["memory"][1] == 8 << 20
            worker.kill()
            gone = wait_for(lambda: (found := state(address)["headline"])["tone"] == "ill" and found, "no worker")
            assert gone["reached"].startswith("No task has reported for ")
    finally:
        worker.stop()


def change(address: str, path: str, **fields: str) -> str:
    """What the page is told after a change; `address` has the token."""
    page, _, token = address.partition("#token=")
    body = urllib.parse.urlencode(fields).encode()
    asked = urllib.request.Request(f"{page}{path}", body, {"X-Weir-Token": token})
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return str(json.load(answer)["said"])
    except urllib.error.HTTPError as error:
        return error.read().decode()


@pytest.mark.kafka
@pytest.mark.deep
def test_queries_of_a_group_come_and_go_on_its_page(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    trial, rng = GroupTrial.make(topics, tmp_path), random.Random(3)
    all_streams = "SELECT T.mote FROM temperature T, humidity H, light L WINDOW RANGE 1 SECOND WHERE T.mote = H.mote"
    trial.register({"q0": f"{all_streams} AND H.mote = L.mote", "q1": select(rng, joins=True)})
    port = str(free_port())
    worker = workers.start(trial.case, "--ui-port", port).wait_running()
    with page_of(trial.case, tmp_path / "page.log", "--allow-changes") as address:
        page = address.partition("#")[0]

        def running(at: str = page) -> set[str]:
            nodes = state(at).get("group", [])
            return {node["name"] for node in nodes if node["kind"] == "query" and node["running"]}

        q0, q1, q2 = (f"{trial.name}-q{n}" for n in range(3))
        wait_for(lambda: running() == {q0, q1}, worker.with_log("two queries"))
        assert running(f"http://127.0.0.1:{port}/") == {q0, q1}, "the worker serves the same page"
        text = trial.file({"q2": select(rng, joins=True)}).read_text()
        assert change(address, "register", text=text) == f"Registered: {q2}"
        wait_for(lambda: running() == {q0, q1, q2}, worker.with_log("a third query"))
        assert change(address, "drop", query=q0) == f"Dropped {q0}"
        wait_for(lambda: running() == {q1, q2}, worker.with_log("the first one has gone"))


@pytest.mark.kafka
@pytest.mark.deep
def test_the_plan_is_changed_from_the_page(topics: Topics, tmp_path: Path) -> None:
    case = Case.make(topics, tmp_path, THREE)
    worker = WorkerProcess(case, tmp_path / "state", log=tmp_path / "worker.log")
    try:
        worker.wait_running()
        with page_of(case, tmp_path / "page.log", "--allow-changes") as address:
            said = change(address, "migrate", plan="((L S) R)", strategy="jisc")
            assert re.match(r"Plan 1: \(\(L S\) R\) by jisc, from .+ on$", said)
            page = address.partition("#")[0]
            wait_for(lambda: [p["text"] for p in state(page)["plans"]] == ["((L S) R)"], worker.with_log("the plan"))
    finally:
        worker.stop()
