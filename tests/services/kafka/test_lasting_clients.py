"""Clients that a worker has for all its life find the broker again, however often it goes and comes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from schemas.errors import BrokerError
from schemas.messages.control import Opened
from services.control.control_log import ControlLog
from services.kafka.log_consumer import LogReader, log_consumer
from services.kafka.topics import TopicAdmin
from services.process.security import KafkaClients
from tests.broker_fixture import RestartableBroker, Topics, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.unmeasured]

LOGS = 24
RESTARTS = 2
DEADLINE_S = 60.0
AGAIN_S = 5.0


@pytest.mark.deep
def test_every_client_finds_a_broker_that_was_gone(restartable_broker: RestartableBroker) -> None:
    """Nearly half of them found none any more, for ever: a worker heard of no change of plans then, no task that began
    anew could write that it had, and /healthz said that the control topic does not answer. Found by torture."""
    clients = KafkaClients(restartable_broker.bootstrap)
    topics = [restartable_broker.topics("log") for _ in range(LOGS)]
    logs = {topic: ControlLog(clients, topic, topic) for topic in topics}
    admin = TopicAdmin(clients)

    def all_heard(value: str) -> None:
        written_s, deadline = 0.0, time.monotonic() + DEADLINE_S
        while unread := [topic for topic, log in logs.items() if log.view.incarnations != {0: value}]:
            assert time.monotonic() < deadline, f"found no broker again in {DEADLINE_S:g} s: {unread}"
            if time.monotonic() - written_s > AGAIN_S:
                # As whoever appends does: what is not in the log is appended again.
                for topic in unread:
                    logs[topic].append(Opened(task=0, incarnation=value))
                written_s = time.monotonic()
            time.sleep(0.05)

    try:
        for log in logs.values():
            log.start()
        for restart in range(RESTARTS + 1):
            if restart:
                restartable_broker.stop()
                restartable_broker.start()
            all_heard(str(restart))
            admin.check()
    finally:
        for log in logs.values():
            log.close()


def test_a_producer_that_gets_nothing_through_is_replaced(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """One was seen that never did again after its broker had restarted; no task could begin in that process."""
    monkeypatch.setattr("services.control.control_log.MESSAGE_TIMEOUT_S", 2.0)
    topic = topics("control")
    log = ControlLog(KafkaClients(topics.bootstrap), topic, "test").start()
    try:
        log._producer = Producer(KafkaClients("127.0.0.1:1").librdkafka(message__timeout__ms=2_000, log_level=0))
        with pytest.raises(BrokerError, match="cannot be written: Local: Message timed out"):
            log.open(0, "one")

        def begins() -> bool:
            # As a worker does, try again: a message may still be handed to the one that is being replaced.
            try:
                return log.open(0, "two").incarnations == {0: "two"}
            except BrokerError:
                return False

        wait_until(begins, "the task has begun")
    finally:
        log.close()


def test_an_admin_client_that_finds_no_broker_is_replaced(topics: Topics) -> None:
    admin = TopicAdmin(KafkaClients(topics.bootstrap))
    admin._admin = AdminClient(KafkaClients("127.0.0.1:1").librdkafka(log_level=0))
    assert admin.exists(topics("any"))


def test_an_answer_that_is_waited_for_comes_although_the_client_is_replaced() -> None:
    """It never came: the task that waited for it stood still. Found by torture."""
    admin = TopicAdmin(KafkaClients("127.0.0.1:1"))
    asked, outcome = threading.Event(), queue.SimpleQueue[BaseException | None]()

    def ask(client: AdminClient) -> dict[TopicPartition, Future[Any]]:
        futures = client.list_offsets({TopicPartition("any", 0): OffsetSpec.latest()}, request_timeout=2)
        asked.set()
        return futures

    def wait() -> None:
        (future,) = admin._answers(ask).values()
        outcome.put(future.exception())

    threading.Thread(target=wait, daemon=True).start()
    asked.wait(20)
    admin._admin = admin._client()
    assert isinstance(outcome.get(timeout=20), KafkaException)


class Followed:
    """A topic, who writes to it, and a reader that has read what was there."""

    def __init__(self, topics: Topics, begin: int) -> None:
        self.clients = KafkaClients(topics.bootstrap)
        self.topic = topics("log")
        self._producer = Producer(self.clients.librdkafka())
        self.write("0")
        self.reader = LogReader(self.clients, self.topic, begin)
        self.read: list[str] = []
        while self.reader.position != 1:
            self.look()

    def write(self, value: str) -> None:
        self._producer.produce(self.topic, value.encode(), partition=0)
        self._producer.flush()

    def look(self) -> list[str]:
        """All that has been read."""
        self.read += [(record.value() or b"").decode() for record in self.reader.read(0.1).records]
        return self.read

    def awaits(self, *values: str) -> None:
        wait_until(lambda: self.look() == list(values), f"{values} are read")

    def close(self) -> None:
        self.reader.close()


@pytest.fixture(params=[0, OFFSET_END], ids=["all", "news"])
def followed(request: pytest.FixtureRequest, topics: Topics, monkeypatch: pytest.MonkeyPatch) -> Iterator[Followed]:
    monkeypatch.setattr("services.kafka.log_consumer.SILENCE_S", 1.0)
    with closing(Followed(topics, request.param)) as found:
        if request.param == OFFSET_END:
            assert found.read == []
            found.read = ["0"]
        yield found


def test_a_reader_whose_consumer_has_no_broker_goes_on_with_another(followed: Followed) -> None:
    followed.reader._consumer.close()
    followed.reader._consumer = log_consumer(KafkaClients("127.0.0.1:1"), followed.topic)
    followed.write("1")
    followed.awaits("0", "1")


def test_a_reader_whose_consumer_brings_nothing_goes_on_with_another(followed: Followed) -> None:
    stuck = followed.reader._consumer
    stuck.pause([TopicPartition(followed.topic, 0)])
    followed.write("1")
    followed.awaits("0", "1")
    assert followed.reader._consumer is not stuck
    followed.write("2")
    followed.awaits("0", "1", "2")


def test_a_reader_keeps_its_consumer_while_nothing_is_written(followed: Followed) -> None:
    consumer = followed.reader._consumer
    begin = time.monotonic()
    while time.monotonic() - begin < 4:
        followed.look()
    assert followed.reader._consumer is consumer
    followed.write("1")
    followed.awaits("0", "1")
