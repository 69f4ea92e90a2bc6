"""Kafka that refuses the password or the TLS handshake: one clear line, and the end after a while."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.broker import broker as local_broker
from services.broker.background import free_port
from services.broker.broker import Broker
from services.broker.settings import SaslUser
from services.kafka.topics import Refused, TopicAdmin, Unreachable
from services.process.logs import get_log
from services.process.security import KafkaClients
from services.process.settings import WorkerSettings
from services.worker.connection import FIRST_S, Connection
from services.worker.web import Pages

pytestmark = [pytest.mark.kafka, pytest.mark.deep]

RIGHT, WRONG = "the-right-word", "a-wrong-word"
QUERY = """
CREATE STREAM l (k BIGINT, at TIMESTAMP) WITH (topic = 'l', format = 'json', timestamp = 'at');
INSERT INTO 'out' SELECT A.k FROM l A [RANGE 1 SECOND], l B [RANGE 1 SECOND] WHERE A.k = B.k
"""


@pytest.fixture(scope="module")
def sasl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with a listener that wants a password."""
    folder = tmp_path_factory.mktemp("sasl")
    try:
        yield local_broker.start(folder, 0, sasl=SaslUser("me", RIGHT))
    finally:
        local_broker.stop(folder)


def clients(broker: Broker, how: str) -> KafkaClients:
    """A client that is refused so."""
    assert broker.sasl_bootstrap is not None
    if how == "password":
        return KafkaClients(broker.sasl_bootstrap, "SASL_PLAINTEXT", None, "me", WRONG)
    return KafkaClients(broker.bootstrap, "SSL")


WORDS = {"password": "Authentication failed", "handshake": "SSL"}


@pytest.mark.parametrize("how", WORDS)
def test_waiting_ends_where_kafka_refuses(sasl: Broker, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """It was waited for a password to become right for ever."""
    told: list[str] = []
    with pytest.raises(Refused, match=f"^Kafka at .* refuses the connection: .*{WORDS[how]}.*; check --sec") as caught:
        TopicAdmin(clients(sasl, how)).inputs(["l"], None, 500, tell=told.append)
    assert "\n" not in str(caught.value)
    assert WRONG not in str(caught.value) + caplog.text
    assert len(caplog.records) == 1
    assert "trying for 0.5 s" in caplog.text
    assert "refuses the connection" in told[-1]


def test_waiting_for_ever_and_not_at_all(sasl: Broker) -> None:
    admin = TopicAdmin(clients(sasl, "password"))
    with pytest.raises(Refused):
        admin.inputs(["l"], False, 500)
    looked: list[float] = []

    def stopped(seconds: float) -> bool:
        looked.append(time.monotonic())
        return len(looked) > 1 and looked[-1] - looked[0] > 1.0

    with pytest.raises(Exception, match=r"^stopped while waiting: Kafka at .* refuses"):
        admin.inputs(["l"], True, 500, stopped)


def test_a_broker_that_is_away_is_no_refusal() -> None:
    """However long: it will come back."""
    admin = TopicAdmin(KafkaClients(f"127.0.0.1:{free_port()}"))
    began = time.monotonic()
    with pytest.raises(Exception, match=r"^stopped while waiting: no answer from Kafka at 127.0.0.1:.*refused$"):
        admin.inputs(["l"], None, 1, lambda seconds: time.monotonic() - began > 1.0)
    with pytest.raises(Unreachable):
        admin.check()


def test_a_running_worker_that_is_refused_ends(sasl: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """Its password was changed, and the broker began anew."""

    async def refused(wait: bool | None, seconds: float) -> Pages:
        settings = WorkerSettings(clients(sasl, "password"), "g", patience_ms=500, wait=wait)
        pages = Pages()
        connection = Connection(TopicAdmin(settings.clients), settings, pages, get_log("test"))
        connection.check(True)
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            connection.check(False)
            await asyncio.sleep(0.05)
        return pages

    with pytest.raises(Refused):
        asyncio.run(refused(None, 120.0))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[0].startswith("no connection to Kafka")
    assert said[1].endswith("; the worker ends in 0.5 s unless it is let in")
    pages = asyncio.run(refused(True, FIRST_S + 10.0))
    assert pages.connection_problem.startswith("no connection to Kafka since ")
    assert "refuses the connection" in pages.connection_problem


@pytest.mark.parametrize("how", WORDS)
def test_a_worker_ends_with_one_line(sasl: Broker, how: str, tmp_path: Path) -> None:
    check_last_words(sasl, how, tmp_path, "--patience", "1s")


@pytest.mark.parametrize("how", WORDS)
def test_a_worker_ends_after_a_minute(sasl: Broker, how: str, tmp_path: Path) -> None:
    """0.1.0 went on for ever."""
    began = time.monotonic()
    check_last_words(sasl, how, tmp_path)
    assert time.monotonic() - began > 55


def check_last_words(sasl: Broker, how: str, folder: Path, *options: str) -> None:
    """Start a worker that Kafka refuses; it warns once, and ends with one line that has the reason."""
    (folder / "q.sql").write_text(QUERY)
    refused = clients(sasl, how)
    inherited = {name: value for name, value in os.environ.items() if name in ("PYTHONPATH", "PYTHONSAFEPATH")}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "services.cli", "worker", str(folder / "q.sql")),
            *("--bootstrap", refused.bootstrap, "--security-protocol", refused.protocol),
            *("--sasl-username", "me", "--state-dir", "none", *options),
        ],
        env={"WEIR_KAFKA_SASL_PASSWORD": WRONG, "PATH": "", **inherited},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    warned, last = done.stderr.splitlines()
    assert "refuses the connection" in warned
    assert last.startswith("weir: Kafka at ")
    assert "refuses the connection" in last
    assert WRONG not in done.stderr + done.stdout
