"""A worker as its operator sees it: its command line, its log, its HTTP port, and the topics that it writes.

The worker that these tests judge may be another release's (`WEIR_RELEASE`, see tests/README.md). Each fails on 0.1.0.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from services.broker.background import free_port
from tests.broker_fixture import RestartableBroker, Topics
from tests.services.worker.test_worker_faults import BASE, PLAIN, pairs
from tests.worker_harness import Case, Feed, Reader, Workers, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.unmeasured]

LOOPBACK = "0100007F"
"""127.0.0.1 in /proc/net/tcp."""
SILENCE_S = 60.0
"""After which a worker reports that a partition is silent."""


def test_the_http_port_is_for_this_machine_only(topics: Topics, tmp_path: Path) -> None:
    """It was open to every network of the machine."""
    case, port = Case.make(topics, tmp_path, PLAIN), free_port()
    command = [sys.executable, "-m", "services.cli", "worker", str(case.path), "--bootstrap", case.bootstrap]
    worker = subprocess.Popen([*command, "--state-dir", "none", "--http-port", str(port)], stderr=subprocess.DEVNULL)
    try:
        assert wait_for(lambda: listening(port), "the port is open") == {LOOPBACK}
    finally:
        worker.kill()
        worker.wait()


def listening(port: int) -> set[str]:
    """The addresses on which a port of this machine is open, as /proc/net/tcp writes them."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    local = [row[1].split(":") for row in rows if row[3] == "0A"]
    return {address for address, number in local if int(number, 16) == port}


def test_a_worker_that_has_read_nothing_reports_no_event_time(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """/healthz said "cut": 0, and the metrics had a watermark of 1970."""
    case = Case.make(topics, tmp_path, PLAIN)
    worker = workers.start(case).wait_running()
    (task,) = worker.health()["tasks"]
    assert task["cut"] is None
    assert "1970" not in worker.text()
    assert worker.stop() == 0


@pytest.mark.deep
def test_a_task_that_commits_nothing_for_a_minute_is_reported(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Kafka refuses all writes to the output topic: it takes records with keys only. Once it takes others, all is
    well."""
    case = Case.make(topics, tmp_path, PLAIN)
    worker = workers.start(case).wait_running()
    set_policy(case, "compact")
    feed = Feed(case)
    for stream, rows in pairs(random.Random(1), 0, 200).items():
        feed.send(stream, rows)
    feed.flush()
    wait_for(lambda: worker.health().get("status") == "ill", worker.with_log("it is ill"), 2 * SILENCE_S)
    assert worker.process.poll() is None
    set_policy(case, "delete")
    wait_for(lambda: worker.health().get("status") == "ok", worker.with_log("it is well again"), SILENCE_S)
    assert worker.stop() == 0


def set_policy(case: Case, policy: str) -> None:
    """Set how Kafka shortens the output topic; a record without a key cannot be in one that is compacted."""
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ResourceType.TOPIC, case.sink, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": case.bootstrap})
    admin.incremental_alter_configs([topic])[topic].result(30)


@pytest.mark.deep
def test_a_broker_that_stands_still_is_reported_in_one_voice(
    restartable_broker: RestartableBroker, tmp_path: Path, workers: Workers
) -> None:
    """The errors of the libraries reached the log as they were, in bursts."""
    broker = restartable_broker.start()
    case = Case.make(restartable_broker.topics, tmp_path, PLAIN)
    worker = workers.start(case).wait_running()
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: "no connection to Kafka" in worker.text(), worker.with_log("it is noticed"), 2 * SILENCE_S)
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    worker.process.kill()
    voices = set(re.findall(r"^\S+ +\w+ +([\w.]+): ", worker.text(), re.MULTILINE))
    assert voices
    assert all(voice.startswith("weir.") for voice in voices), voices


@pytest.mark.deep
def test_partitions_that_are_silent_share_a_line(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Each task had its own at the end of the input."""
    case = Case.make(topics, tmp_path, PLAIN.rstrip() + "\nPARTITION BY L.k, R.k", partitions=4)
    feed = Feed(case)
    for partition in range(4):
        for stream, rows in pairs(random.Random(partition), 0, 20).items():
            feed.send(stream, rows, partition)
    feed.flush()
    worker = workers.start(case).wait_running(range(4))
    wait_for(lambda: "silent" in worker.text(), worker.with_log("silence is reported"), 2 * SILENCE_S)
    assert worker.stop() == 0
    lines = [line for line in worker.text().splitlines() if "silent" in line]
    assert len(lines) == 1, worker.with_log("one line")
    assert re.search(r"\[0\].* and \d more", lines[0]), "all tasks share it; three partitions are named"


ROWS = 50_000
KEYS = 50
AT_ONCE = 10
NEXT = """
CREATE STREAM l (k BIGINT, v BIGINT, at TIMESTAMP) WITH (topic = '{l}', format = 'json', timestamp = 'at');
CREATE STREAM r (k BIGINT, v BIGINT, at TIMESTAMP) WITH (topic = '{r}', format = 'json', timestamp = 'at');
INSERT INTO '{sink}' SELECT L.v AS l, R.v AS r FROM l L [RANGE 1 HOUR], r R [RANGE 1 HOUR]
WHERE L.k = R.k AND L.v < R.v AND L.v + SPAN > R.v
"""
"""Each tuple joins with one of thousands that have its key: cleanups are long, and their results are few."""
AT_WORK = 0.7
"""Least share of its time in which a thread of an idle worker runs or waits for a processor, while results are pending.
0.1.0 worked for a fifth of its time, and waited for a processor in up to a half beside much else."""


@pytest.mark.deep
def test_an_idle_worker_spends_its_time_on_the_backlog(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """The input has ended, and most results are pending. They were produced at the pace of a busy worker."""
    case = Case.make(topics, tmp_path, NEXT.replace("SPAN", str(KEYS + 1)))
    feed = Feed(case)
    for stream in ("l", "r"):
        feed.send(stream, ({"k": n % KEYS, "v": n, "at": BASE + n // AT_ONCE} for n in range(ROWS)))
    feed.flush()
    expected = Counter((n, n + KEYS) for n in range(ROWS - KEYS - AT_ONCE))  # The last moment is not over.
    worker = workers.start(case, "--memory", "256KiB").wait_running()
    wait_for(lambda: worker.metric("input_tuples_total") == 2 * ROWS, worker.with_log("all input is read"))
    began, before = time.monotonic(), at_work_s(worker.process.pid)
    reader = Reader(case.bootstrap, case.sink)
    reader.wait_for_count(expected.total(), worker.alive)
    took, after = time.monotonic() - began, at_work_s(worker.process.pid)
    assert max(after[thread] - before.get(thread, 0.0) for thread in after) > AT_WORK * took
    assert Counter((row["l"], row["r"]) for row in reader.rows()) == expected
    assert worker.stop() == 0


def at_work_s(pid: int) -> dict[str, float]:
    """Of each thread of a process, its processor time so far and the time in which it waited for a processor."""
    found = {path.parent.name: path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/schedstat")}
    return {thread: (int(ran_ns) + int(waited_ns)) / 1e9 for thread, (ran_ns, waited_ns, _) in found.items()}
