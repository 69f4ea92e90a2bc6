"""The thread that follows a log; `test_lasting_clients` has its consumer."""

from __future__ import annotations

import queue
from contextlib import closing

from services.kafka.log_consumer import LogBatch, LogFollower
from services.process.security import KafkaClients

NOWHERE = KafkaClients("127.0.0.1:1")


def test_a_follower_survives_a_failure() -> None:
    """That of the registry did not: its thread ended without a word, and its worker heard of no other query."""
    batches = queue.SimpleQueue[LogBatch]()
    failures = iter([RuntimeError("the client is lost")])

    def before() -> None:
        for failure in failures:
            raise failure

    follower = LogFollower(NOWHERE, "log", "test", batches.put, poll_s=0.01, before=before)
    with closing(follower):
        follower.start()
        assert batches.get(timeout=20).problem == "the client is lost"
        assert batches.get(timeout=20).records == []


def test_a_follower_that_stops_itself_reads_no_more() -> None:
    batches = queue.SimpleQueue[LogBatch]()

    def take(batch: LogBatch) -> None:
        batches.put(batch)
        follower.stop()

    follower = LogFollower(NOWHERE, "log", "test", take, poll_s=0.01)
    with closing(follower):
        follower.start()
        batches.get(timeout=20)
        follower._thread.join(20)
        assert follower.stopped
        assert batches.empty()
