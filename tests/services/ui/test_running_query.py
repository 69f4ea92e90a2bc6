"""`weir ui` beside a real worker: while the worker runs, while a partition is silent, and after kill -9."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.broker_fixture import Topics
from tests.worker_harness import Case, Feed, WorkerProcess, wait_for

QUERY = """
CREATE STREAM l (k BIGINT, at TIMESTAMP) WITH (topic = '{l}', format = 'json', timestamp = 'at');
CREATE STREAM r (k BIGINT, at TIMESTAMP) WITH (topic = '{r}', format = 'json', timestamp = 'at');
INSERT INTO '{sink}' SELECT L.k AS k FROM l L [RANGE 10 SECONDS], r R [RANGE 10 SECONDS] WHERE L.k = R.k;
"""


@contextmanager
def page_of(case: Case, log: Path) -> Iterator[str]:
    """The address of the page, which a process of its own serves."""
    command = [sys.executable, "-m", "services.cli", "ui", str(case.path), "--bootstrap", case.bootstrap]
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

            silent = wait_for(lambda: (found := headline())["tone"] == "held" and found, worker.with_log("held"))
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
