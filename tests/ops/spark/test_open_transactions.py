"""What another process's open transaction hides is waited for: commit records of cleanups, and results. No Spark."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Producer

from ops.spark import topics as history
from ops.spark.delivery import TopicDestination
from ops.spark.topics import records, settled_ends
from schemas.codecs.results import ResultRecords
from schemas.errors import BrokerError
from services.delivery import transactional
from services.kafka import readback
from services.process.security import KafkaClients
from tests.broker_fixture import Topics

pytestmark = pytest.mark.kafka

ABORTED_S = 2.0


def open_transaction(topics: Topics, topic: str) -> Producer:
    """A transaction of another process, with a record in a topic."""
    writer = Producer({"bootstrap.servers": topics.bootstrap, "transactional.id": f"{topic}-other", "log_level": 0})
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(topic, b"of another", b"key", partition=0)
    assert writer.flush(30) == 0
    return writer


def abort_soon(writer: Producer) -> threading.Timer:
    """Abort it in a moment."""
    timer = threading.Timer(ABORTED_S, writer.abort_transaction, (30,))
    timer.start()
    return timer


def destination(topics: Topics, sink: str) -> TopicDestination:
    """Where a cleanup of one backlog delivers the results of a query that is called as their topic."""
    return TopicDestination(
        KafkaClients(topics.bootstrap),
        sink,
        sink,
        f"backlog-{sink}",
        2,
        lambda: None,
        records=ResultRecords(),
        say=lambda text: None,
        replication=1,
    )


def test_what_was_delivered_while_another_cleanup_wrote_is_not_delivered_again(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit record lies behind the other's transaction, where a reader of committed records did not see it: the
    next cleanup delivered the group's results a second time."""
    monkeypatch.setattr(transactional, "ENDED_S", 0.3)
    sink = topics("cleaned")
    first = destination(topics, sink)
    other = open_transaction(topics, f"{sink}.cleanup")
    first.write(7, [])
    first.close()
    second = destination(topics, sink)
    monkeypatch.setattr(readback, "TIMEOUT_S", 3.0)
    with pytest.raises(BrokerError, match=rf"{sink}\.cleanup\[0\] brought nothing more for 3 s"):
        second.delivered_groups()
    monkeypatch.setattr(readback, "TIMEOUT_S", 60.0)
    ended = abort_soon(other)
    assert second.delivered_groups() == {7: 0}
    ended.join()
    second.close()


def test_results_behind_an_open_transaction_are_waited_for(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit of two queries' topic, or of two tasks' partition, took those results for missing."""
    sink, clients = topics("results"), KafkaClients(topics.bootstrap)
    other = open_transaction(topics, sink)
    own = Producer({"bootstrap.servers": topics.bootstrap, "log_level": 0})
    own.produce(sink, b"committed", partition=0)
    assert own.flush(30) == 0
    lane = sink, 0
    monkeypatch.setattr(history, "_OPEN_S", 0.3)
    with pytest.raises(BrokerError, match=rf"a transaction has been open in {sink}\[0\] for 0.3 s"):
        settled_ends(clients, [lane])
    monkeypatch.setattr(history, "_OPEN_S", 60.0)
    ended = abort_soon(other)
    ranges = settled_ends(clients, [lane])
    assert ranges == {lane: (0, 2)}
    found = [message.value() for _, messages in records(clients, ranges) for message in messages]
    assert found == [b"committed"]
    ended.join()
