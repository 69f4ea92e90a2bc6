"""A worker's HTTP port: there before everything else, and told apart from a worker that is well."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import WeirError
from services.broker.background import free_port
from services.worker.web import Pages
from tests.worker_harness import wait_for

QUERY = """
CREATE STREAM l (k BIGINT, at TIMESTAMP) WITH (topic = 'l', format = 'json', timestamp = 'at');
INSERT INTO 'out' SELECT A.k FROM l A [RANGE 1 SECOND], l B [RANGE 1 SECOND] WHERE A.k = B.k
"""
STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


class Tasks:
    """Tasks of which one thing is known."""

    def __init__(self, unhealthy_reason: str = "", joined: bool = True) -> None:
        self.joined = joined
        self._illness = unhealthy_reason

    def unhealthy_reason(self) -> str:
        """It."""
        return self._illness

    def status(self) -> list[dict[str, Any]]:
        """One."""
        return [{"task": 0}]


class Counted:
    """Metrics."""

    def page(self) -> bytes:
        """One."""
        return b"weir_tasks 1.0\n"


def ask(port: int, path: str, method: str = "GET") -> tuple[int, str, bytes]:
    """Status, type and body of a page."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read()
    finally:
        connection.close()


def health(port: int) -> tuple[int, dict[str, Any]]:
    """What /healthz says."""
    status, kind, body = ask(port, "/healthz")
    assert kind == "application/json"
    return status, json.loads(body)


def test_pages_say_what_the_worker_waits_for_until_its_tasks_can_speak() -> None:
    port = free_port()
    with Pages("127.0.0.1", port) as pages:
        status, told = health(port)
        assert (status, told["status"], told["tasks"]) == (503, "starting", [])
        pages.query = "out"
        pages.waits_for("an answer from Kafka at a:1")
        status, told = health(port)
        since = told.pop("since")
        assert re.fullmatch(STAMP, since)
        assert (status, told) == (
            503,
            {
                "status": "starting",
                "query": "out",
                "tasks": [],
                "problem": "",
                "waits_for": "an answer from Kafka at a:1",
            },
        )
        pages.runs(Tasks(joined=False))
        status, told = health(port)
        assert (status, told["status"]) == (503, "starting")
        assert told["waits_for"] == "the consumer group to say which tasks this worker has"
        pages.runs(Tasks())
        assert health(port) == (200, {"status": "ok", "query": "out", "tasks": [{"task": 0}], "problem": ""})
        pages.runs(Tasks("task 0: stuck"))
        pages.connection_problem = "no connection"
        status, told = health(port)
        assert (status, told["status"], told["problem"]) == (503, "ill", "no connection; task 0: stuck")
        pages.waits_for("open epochs to be delivered", "stopping")
        status, told = health(port)
        assert (status, told["status"], told["waits_for"]) == (503, "stopping", "open epochs to be delivered")
    with pytest.raises(OSError, match="refused"):
        ask(port, "/healthz")


def test_metrics_and_other_paths() -> None:
    port = free_port()
    with Pages("127.0.0.1", port) as pages:
        assert ask(port, "/metrics") == (200, "text/plain; version=0.0.4; charset=utf-8", b"")
        pages.metrics = Counted()
        assert ask(port, "/metrics?name=x")[2] == b"weir_tasks 1.0\n"
        assert ask(port, "/metrics", "HEAD") == (200, "text/plain; version=0.0.4; charset=utf-8", b"")
        assert ask(port, "/") == (404, "text/plain", b"there are /healthz and /metrics\n")


def test_no_port() -> None:
    with Pages() as pages:
        pages.waits_for("nobody")
        assert pages.health()[0] == 503


@pytest.mark.parametrize(
    ("bind", "words"), [("192.0.2.1", "Cannot assign"), ("nowhere.invalid", "not known|resolution")]
)
def test_an_address_of_another_machine_is_refused_in_one_line(bind: str, words: str) -> None:
    port = free_port()
    with pytest.raises(WeirError, match=f"^port {port} of {bind} cannot be opened .*({words}).*--http-bind") as caught:
        Pages(bind, port)
    assert "\n" not in str(caught.value)


def command(query: Path, port: int, *options: str) -> list[str]:
    """A worker whose Kafka is not there."""
    where = ["--bootstrap", f"127.0.0.1:{free_port()}", "--state-dir", "none", "--http-port", str(port)]
    return [sys.executable, "-m", "services.cli", "worker", str(query), *where, *options]


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    """A stack trace of some thirty lines came before it, after the worker had joined the group."""
    query = tmp_path / "q.sql"
    query.write_text(QUERY)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = subprocess.run(command(query, port), capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"weir: port {port} of 127.0.0.1 is taken by another program: give another with --http-port, or 0 for none\n"
    )


@pytest.mark.deep
@pytest.mark.parametrize("registered", [False, True])
def test_the_port_answers_while_kafka_does_not(registered: bool, tmp_path: Path) -> None:
    """Nobody answered before Kafka had; a query by its registered name ended the worker at once."""
    query, port = tmp_path / "q.sql", free_port()
    query.write_text(QUERY)
    log = tmp_path / "log"
    asked = command(Path("a-name") if registered else query, port)
    with log.open("wb") as out:
        worker = subprocess.Popen(asked, stdout=out, stderr=out)
    try:

        def told() -> str:
            assert worker.poll() is None, log.read_text()
            try:
                status, said = health(port)
            except OSError:
                return ""
            assert (status, said["status"]) == (503, "starting")
            assert re.fullmatch(STAMP, said["since"])
            return str(said["waits_for"])

        first = wait_for(told, log.read_text)
        assert first.startswith(("its program to be loaded", "an answer from Kafka at 127.0.0.1:")), first
        wait_for(lambda: "no answer from Kafka at 127.0.0.1:" in told(), log.read_text)
        assert "refused" in told()
        assert log.read_text().count("\n") == 1, "one line"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) in ((0,) if not registered else (0, -signal.SIGTERM)), log.read_text()
        assert log.read_text().count("\n") == 1, "and no trace"
    finally:
        worker.kill()
        worker.wait()
