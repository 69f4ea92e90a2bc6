"""Clients that a worker has for all its life find the broker again, however often it goes and comes."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaError, Message, Producer, TopicPartition

from schemas.errors import BrokerError
from services.control_log import ControlLog
from services.log_consumer import LogConsumer, log_consumer
from services.security import KafkaClients
from services.topics import TopicAdmin
from tests.broker_fixture import RestartableBroker, Topics, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.unmeasured]

CONSUMERS = 24
PRODUCERS = 8
RESTARTS = 2
DEADLINE_S = 60.0


def test_every_client_finds_a_broker_that_was_gone(restartable_broker: RestartableBroker) -> None:
    """Nearly half of them found none any more, for ever: a worker heard of no change of plans then, no task that began
    anew could write that it had, and /healthz said that the control topic does not answer. Found by torture."""
    clients = KafkaClients(restartable_broker.bootstrap)
    topics = [restartable_broker.topics("log") for _ in range(CONSUMERS)]
    consumers = [log_consumer(clients, topic) for topic in topics]
    producers = [Producer(clients.librdkafka(enable__idempotence=True, log_level=0)) for _ in range(PRODUCERS)]
    admin = TopicAdmin(clients)
    heard: dict[str, bytes] = {}
    written: set[tuple[int, bytes]] = set()

    def hear(consumer: LogConsumer) -> None:
        for message in consumer.consume(100, 0):
            if message.error() is None:
                heard[message.topic() or ""] = message.value() or b""

    def write(number: int, topic: str, value: bytes) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                written.add((number, value))

        producers[number].produce(topic, value, partition=0, on_delivery=delivered)

    def lost(value: bytes) -> str:
        """Who has not got through yet."""
        for consumer in consumers:
            hear(consumer)
        for producer in producers:
            producer.poll(0)
        unread = [topic for topic in topics if heard.get(topic) != value]
        unwritten = [number for number in range(PRODUCERS) if (number, value) not in written]
        return f"consumers of {unread}, producers {unwritten}" if unread or unwritten else ""

    def all_heard(value: bytes) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while who := lost(value):
            assert time.monotonic() < deadline, f"found no broker again in {DEADLINE_S:g} s: {who}"

    try:
        for consumer, topic in zip(consumers, topics, strict=True):
            consumer.assign([TopicPartition(topic, 0, 0)])
        for restart in range(RESTARTS + 1):
            if restart:
                restartable_broker.stop()
                restartable_broker.start()
            value = b"%d" % restart
            for number, topic in enumerate(topics):
                write(number % PRODUCERS, topic, value)
            all_heard(value)
            assert admin.log_ranges([(topics[0], 0)])[topics[0], 0][1] == restart + 1
    finally:
        for consumer in consumers:
            consumer.close()


def test_a_producer_that_gets_nothing_through_is_replaced(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """One was seen that never did again after its broker had restarted; no task could begin in that process."""
    monkeypatch.setattr("services.control_log.MESSAGE_TIMEOUT_S", 2.0)
    topic = topics("control")
    log = ControlLog(KafkaClients(topics.bootstrap), topic, "test").start()
    try:
        log._producer = Producer(KafkaClients("127.0.0.1:1").librdkafka(message__timeout__ms=2_000, log_level=0))
        with pytest.raises(BrokerError, match="cannot be written: Local: Message timed out"):
            log.open(0, "one")

        def begins() -> bool:
            # As a worker does, try again: a message may still be handed to the one that is being replaced.
            try:
                return log.open(0, "two").lives == {0: "two"}
            except BrokerError:
                return False

        wait_until(begins, "the task has begun")
    finally:
        log.close()
