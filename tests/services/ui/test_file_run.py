"""`weir run --ui`: the page of a run over files."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.services.four_streams import SOURCES, write_four_streams
from tests.worker_harness import wait_for

SECOND = "\nINSERT INTO 'pairs' SELECT A.v AS v FROM a A [RANGE 1 SECOND], b B [RANGE 1 SECOND] WHERE A.k = B.k;\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_four_streams(tmp_path_factory.mktemp("run"), 50)


@contextmanager
def running(folder: Path, *options: str) -> Iterator[str]:
    """The address of the page, once the run has ended; it must end well after Ctrl-C."""
    command = [sys.executable, "-m", "services.cli", "run", *options, *SOURCES, "--ui", "--http-port", "0"]
    log = folder / "log"
    with log.open("w") as err:
        process = subprocess.Popen(command, cwd=folder, stderr=err)
    try:
        wait_for(lambda: "stays until Ctrl-C" in log.read_text() or process.poll() is not None, log.read_text)
        done = re.search(r"done; (http://\S+) stays until Ctrl-C", log.read_text())
        assert done, log.read_text()
        yield done[1]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def state(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{address}state", timeout=10) as answer:
        return dict(json.load(answer))


def lines(paths: Sequence[Path]) -> int:
    return sum(path.read_text().count("\n") for path in paths)


def test_the_page_shows_the_plan_and_what_it_did(folder: Path) -> None:
    with running(folder, "q.sql", "--out", "out.jsonl") as address:
        found = state(address)
        assert found["state"]["headline"] == {
            "tone": "well",
            "reached": "All results are final",
            "held": "",
            "advice": "",
        }
        assert found["state"]["tasks"][0]["results"] == lines([folder / "out.jsonl"]) > 0, "and they are in the file"
        (plan,) = found["state"]["plans"]
        assert {node["id"] for node in plan["nodes"]} >= {"A", "B", "C", "D"}
        assert found["offers"] == ["past"]


def test_several_queries_are_shown_with_what_they_share(folder: Path) -> None:
    text = (folder / "q.sql").read_text().replace("SELECT A.v AS av", "INSERT INTO 'all' SELECT A.v AS av")
    (folder / "two.sql").write_text(text + SECOND)
    with running(folder, "two.sql", "--out", "results") as address:
        nodes = state(address)["state"]["group"]
        results = sum(node["results"] for node in nodes if node["kind"] == "query")
        assert results == lines(list((folder / "results").iterdir())) > 0
