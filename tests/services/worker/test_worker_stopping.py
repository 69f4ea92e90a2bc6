"""A worker that is stopped while its group rebalances ends at once, and leaves the group."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from services.broker.background import free_port
from tests.broker_fixture import Topics
from tests.worker_harness import Case, Workers, wait_for

QUERY = """
CREATE STREAM l (k BIGINT, at TIMESTAMP) WITH (topic = '{l}', format = 'json', timestamp = 'at');
CREATE STREAM r (k BIGINT, at TIMESTAMP) WITH (topic = '{r}', format = 'json', timestamp = 'at');
INSERT INTO '{sink}' SELECT A.k FROM l A [RANGE 10 SECONDS], r B [RANGE 10 SECONDS] WHERE A.k = B.k
"""

AT_ONCE_S = 12.0
"""Well below the rebalance timeout of 30 s, in which a frozen member keeps the others waiting."""

DELAYED = """
import asyncio, sys
from services.cli import main
from services.worker.task_manager import TaskManager

close = TaskManager.close

async def delayed(self):
    await asyncio.sleep(7.0)
    await close(self)

TaskManager.close = delayed
sys.argv[0] = "weir"
main()
"""
"""`weir` whose tasks take a while to end."""


@pytest.fixture
def case(topics: Topics, tmp_path: Path) -> Case:
    return Case.make(topics, tmp_path, QUERY)


def members(case: Case) -> int:
    """How many members the group has, as Kafka counts them."""
    admin = AdminClient({"bootstrap.servers": case.bootstrap})
    group = f"weir-{case.sink}"
    described = admin.describe_consumer_groups([group])[group].result()
    return 0 if described.state is ConsumerGroupState.EMPTY else len(described.members)


@pytest.mark.deep
def test_a_worker_that_waits_for_a_frozen_one_ends(case: Case, tmp_path: Path) -> None:
    """It waited until the group had given up the frozen one. Found by torture."""
    workers = Workers(tmp_path)
    frozen = workers.start(case, "--session-timeout", "60s").wait_running()
    try:
        frozen.signal(signal.SIGSTOP)
        waiting = workers.start(case, "--session-timeout", "60s")
        wait_for(lambda: "worker starting" in waiting.text(), lambda: waiting.with_log("started"))
        wait_for(lambda: members(case) == 2, lambda: waiting.with_log("asked to join"))
        began = time.monotonic()
        assert waiting.stop() == 0
        assert time.monotonic() - began < AT_ONCE_S
    finally:
        frozen.signal(signal.SIGCONT)
        workers.end()


@pytest.mark.deep
def test_a_worker_that_is_stopping_while_the_group_rebalances_leaves_it(case: Case, tmp_path: Path) -> None:
    """Faust closed its consumer before it had left: the group kept the member for the session timeout."""
    workers = Workers(tmp_path)
    first = workers.start(case, "--session-timeout", "6s").wait_running()
    log = tmp_path / "delayed.log"
    command = [sys.executable, "-c", DELAYED, "worker", str(case.path), "--bootstrap", case.bootstrap]
    with log.open("wb") as out:
        options = ["--session-timeout", "20s", "--http-port", str(free_port())]
        delayed = subprocess.Popen([*command, *options], stdout=out, stderr=out)
    try:
        wait_for(lambda: members(case) == 2, log.read_text)
        delayed.send_signal(signal.SIGTERM)
        wait_for(lambda: "worker stopping" in log.read_text(), log.read_text)
        assert first.stop() == 0
        assert delayed.wait(30) == 0, log.read_text()
        assert members(case) == 0, log.read_text()
    finally:
        delayed.kill()
        delayed.wait()
        workers.end()
