"""Delivering epochs to a real broker when the Kafka client itself misbehaves."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from schemas.codecs.encode import Encoded
from schemas.errors import BrokerError
from schemas.messages.commits import Commit, StreamPoint
from services.delivery import transactional
from services.delivery.epoch_output import Delivery
from services.delivery.sink import (
    CHUNK_RECORDS,
    HEADER_BYTES,
    Aborted,
    Fenced,
    IdempotentSink,
    ProducerSink,
    Sink,
)
from services.delivery.transactional import TransactionalSink
from services.kafka.call_thread import CallThread
from services.kafka.topics import Lane, OutputTopics, TopicAdmin
from services.process.security import KafkaClients
from services.recovery import committed_offsets
from tests.broker_fixture import RestartableBroker, Topics
from tests.worker_harness import Reader, wait_for


def test_calls_are_made_elsewhere_and_answered_here() -> None:
    """The caller receives what a call raises; a call that does not return is abandoned and blocks nothing."""
    calls, seen, never = CallThread("calls"), [], threading.Event()
    calls.run(lambda: seen.append(threading.current_thread().name), 20)
    assert seen == ["calls"]

    def fail() -> None:
        raise ValueError("of the call")

    with pytest.raises(ValueError, match="of the call"):
        calls.run(fail, 20)
    calls.run(lambda: seen.append("after it"), 20)
    with pytest.raises(TimeoutError):
        calls.run(never.wait, 0.05)
    calls.close()
    assert seen[1:] == ["after it"]
    (left,) = [thread for thread in threading.enumerate() if thread.name == "calls"]
    assert left.daemon
    never.set()
    left.join(20)
    assert not left.is_alive()


def delivery(lane: Lane, number: int, name: str = "epoch", incarnation: str = "") -> Delivery:
    """One result, and its offset; the commit message carries the incarnation."""
    text = b'{"%s": %d}\n' % (name.encode(), number)
    message = Commit("query", number, number, 0, 1, (StreamPoint(number, number),), incarnation=incarnation).encode()
    return Delivery([(lane[0], Encoded(text, np.array([0, len(text)])))], [], {lane: (number, message)})


def sink_of(bootstrap: str, topic: str, group: str) -> TransactionalSink:
    """A sink of the group's only task."""
    topics = OutputTopics(topic, topic, topic, {topic: 1}, {topic: 1 << 20})
    return transactional_sink(bootstrap, topics, group)


def transactional_sink(bootstrap: str, topics: OutputTopics, group: str) -> TransactionalSink:
    """A sink of the first task of a group, with its transaction log."""
    admin = TopicAdmin(KafkaClients(bootstrap))
    log = admin.transactions(group, 1, 1), 0
    return TransactionalSink(KafkaClients(bootstrap), group, 0, topics, threading.Event(), 60_000, admin, log)


def test_a_sink_that_is_closed_is_gone() -> None:
    """Closing frees the producer even with undelivered records.

    A worker that reopened tasks again and again used to leak a producer with its threads each time.
    """
    give_up = threading.Event()
    give_up.set()
    topics = OutputTopics("out", "out", "out", {"out": 1}, {"out": 1 << 20})
    sink = IdempotentSink(KafkaClients("127.0.0.1:1"), "group", 0, topics, give_up, lambda offsets: True)
    with pytest.raises(Aborted):
        sink.deliver(delivery(("out", 0), 1))
    sink.close()
    left = weakref.ref(sink)
    del sink
    gc.collect()
    assert left() is None


def test_a_producer_that_cannot_go_on_refuses_results() -> None:
    """It marks each of a batch, as a full queue does. The task offered them again for ever."""
    give_up = threading.Event()
    topics = OutputTopics("out", "out", "out", {"out": 1}, {"out": 1 << 20})
    # No transaction has begun.
    sink = ProducerSink(KafkaClients("127.0.0.1:1"), "group", 0, topics, give_up, transactional__id="group.0")
    hanging = threading.Timer(20, give_up.set)
    hanging.start()
    with pytest.raises(Aborted, match=r"^result not accepted: .*Erroneous state"):
        sink._produce(delivery(("out", 0), 1))
    hanging.cancel()
    sink.close()


@pytest.mark.kafka
def test_a_transaction_fails_while_many_results_are_handed_over(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above; and the client says why only where it is asked about the transaction."""
    topic = topics("sink", max_message_bytes="200")
    given = OutputTopics(topic, topic, topic, {topic: 1}, {topic: 1 << 20})
    sink = transactional_sink(topics.bootstrap, given, topic)
    sink.open()
    produce_chunk = sink._produce_chunk

    def has_failed() -> bool:
        try:
            sink._producer.begin_transaction()
        except KafkaException as error:
            return error.args[0].code() != KafkaError._STATE
        return False

    def then_wait(*args: Any) -> None:
        produce_chunk(*args)
        wait_for(has_failed, "the broker has refused the first results")

    monkeypatch.setattr(sink, "_produce_chunk", then_wait)
    hanging = threading.Timer(60, sink._give_up.set)
    hanging.start()
    with pytest.raises(Aborted, match=r"^result not accepted: .*too large"):
        sink.deliver(Delivery([(topic, encoded_texts([b"%d" % n for n in range(2 * CHUNK_RECORDS)]))], [], {}))
    hanging.cancel()
    sink.close()


@pytest.mark.kafka
def test_a_producer_that_fails_for_ever_has_written_nothing(topics: Topics) -> None:
    """The client raises its fatal error out of the next call, whichever that is. At least once, nobody expected that,
    and the worker ended; a task that begins again has another producer."""
    topic = topics("sink", max_message_bytes="200")
    clients, given = KafkaClients(topics.bootstrap), OutputTopics(topic, topic, topic, {topic: 1}, {topic: 1 << 20})
    sink = IdempotentSink(clients, topic, 0, given, threading.Event(), lambda offsets: True)
    # With this setting a refused record is a fatal error; else a broker must have lost what it knew of the producer.
    gapless = {"enable.idempotence": True, "enable.gapless.guarantee": True}
    sink._producer = Producer(clients.librdkafka(log_level=0, **gapless))
    with pytest.raises(BrokerError, match=r"^records not written: "):
        sink.deliver(delivery((topic, 0), 1, "too long" * 100))
    sink.close()


@pytest.mark.kafka
@pytest.mark.parametrize("transactional", [True, False])
def test_results_with_headers(transactional: bool, topics: Topics) -> None:
    """Each has its own, also a null one that is absent; one that is too large with them is a dead letter."""
    topic, dead = topics("sink", 2), topics("dead")
    given = OutputTopics(topic, dead, dead, {topic: 2, dead: 1}, {topic: HEADER_BYTES + 20, dead: 1 << 20})
    sink: Sink
    if transactional:
        sink = transactional_sink(topics.bootstrap, given, topic)
    else:
        clients = KafkaClients(topics.bootstrap)
        sink = IdempotentSink(clients, topic, 0, given, threading.Event(), lambda offsets: True)
    sink.open()
    count = 300
    values, texts = [b"%d" % n for n in range(count)], ["" if n % 3 else f"ä{n}" for n in range(count)]
    texts[7] = "x" * 20
    headers = ("a", encoded_texts([text.encode() for text in texts], [n % 5 == 1 for n in range(count)]))
    other = ("b.c", encoded_texts([b"-"] * count, [n > 100 for n in range(count)]))
    hashes = np.arange(count)
    results = replace(encoded_texts(values), headers=(headers, other), hashes=hashes)
    refused = sink.deliver(Delivery([(topic, results)], [], {}))
    sink.close()
    assert refused == {topic: 1}
    expected = {}
    for n in range(count):
        own = {} if n % 5 == 1 else {"a": texts[n]}
        expected[n] = own if n > 100 else own | {"b.c": "-"}
    assert len(expected.pop(7)) == 2
    reader = Reader(topics.bootstrap, topic)
    reader.wait_for_count(count - 1)
    assert {int(record.value or b""): record.headers for record in reader.records} == expected
    assert all(record.partition == int(record.value or b"") % 2 for record in reader.records)
    letters = Reader(topics.bootstrap, dead)
    (letter,) = letters.wait_for_count(1)
    assert letter.value == b"7"
    assert letter.headers == {"reason": f"result of 26 bytes, topic {topic!r} takes 20", "topic": topic}


def encoded_texts(texts: list[bytes], missing: list[bool] | None = None) -> Encoded:
    offsets = np.cumsum([0, *(len(text) + 1 for text in texts)])
    absent = None if missing is None else np.array(missing)
    return Encoded(b"".join(text + b"\n" for text in texts), offsets, missing=absent)


@pytest.mark.kafka
def test_a_sink_that_is_fenced_can_be_closed(topics: Topics) -> None:
    """Closing also frees it: librdkafka raises its fatal error out of the next call, whichever that is."""
    topic = topics("sink")
    first, successor = (sink_of(topics.bootstrap, topic, topic) for _ in range(2))
    first.open()
    successor.open()
    with pytest.raises(Fenced):
        first.deliver(delivery((topic, 0), 1))
    first.close()
    left = weakref.ref(first)
    del first
    gc.collect()
    assert left() is None
    successor.close()


class Stuck:
    """A producer that sends offsets only once it is released, as librdkafka behaves after a broker restart."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.released, self.returned = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def send_offsets_to_transaction(self, *args: Any) -> None:
        self.released.wait(60)
        try:
            self._real.send_offsets_to_transaction(*args)
        finally:
            self.returned.set()


@pytest.mark.kafka
def test_a_client_that_does_not_come_back(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task gives the epoch up, the successor delivers it, and the late call has no effect.

    A task used to hang for ever after a broker restart, in a call that ignored its time limit.
    """
    topic = topics("sink")
    lane = (topic, 0)
    first = sink_of(topics.bootstrap, topic, topic)
    first.open()
    first.deliver(delivery(lane, 1))
    stuck = Stuck(first._producer)
    first._producer = stuck  # type: ignore[assignment]
    with monkeypatch.context() as now:
        now.setattr(transactional, "OVERDUE_S", 0.5)
        with pytest.raises(Aborted, match=r"offsets not accepted: the Kafka client has not come back for 0\.5 s"):
            first.deliver(delivery(lane, 2))
    first.close()
    successor = sink_of(topics.bootstrap, topic, topic)
    successor.open()
    assert successor.committed([lane])[lane].offset == 1
    successor.deliver(delivery(lane, 2, incarnation=successor.incarnation))
    stuck.released.set()
    assert stuck.returned.wait(60)
    successor.deliver(delivery(lane, 3, incarnation=successor.incarnation))
    assert successor.committed([lane])[lane].offset == 3
    successor.close()
    reader = Reader(topics.bootstrap, topic)
    reader.wait_for_count(3)
    assert reader.rows() == [{"epoch": number} for number in (1, 2, 3)]


class Lost:
    """A producer whose commits Kafka never answers: it has lost all brokers after a broker restart."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def commit_transaction(self, seconds: float) -> None:
        time.sleep(0.1)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "retry call to resume", retriable=True))


@pytest.mark.kafka
def test_a_client_that_gets_no_answers(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task gives the epoch up, and the successor delivers it.

    The task used to try for ever to commit. Found by torture.
    """
    monkeypatch.setattr(transactional, "PATIENCE_S", 1.0)
    topic = topics("sink")
    lane = (topic, 0)
    first = sink_of(topics.bootstrap, topic, topic)
    first.open()
    first._producer = Lost(first._producer)  # type: ignore[assignment]
    with pytest.raises(Aborted, match="epoch not committed: no answer from Kafka for 1 s: retry call to resume"):
        first.deliver(delivery(lane, 1))
    first.close()
    successor = sink_of(topics.bootstrap, topic, topic)
    successor.open()
    assert successor.committed([lane]) == {}
    successor.deliver(delivery(lane, 1, incarnation=successor.incarnation))
    successor.close()
    reader = Reader(topics.bootstrap, topic)
    reader.wait_for_count(1)
    assert reader.rows() == [{"epoch": 1}]


@pytest.mark.kafka
def test_committed_offsets_are_asked_for_by_another_client(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sink used to ask a client that had lost all brokers for ever, without a log line."""
    monkeypatch.setattr(committed_offsets, "ASKING_S", 0.1)
    monkeypatch.setattr(committed_offsets, "ATTEMPT_S", 0.5)
    topic = topics("sink")
    sink = sink_of(topics.bootstrap, topic, topic)
    sink.open()
    sink.deliver(delivery((topic, 0), 1, incarnation=sink.incarnation))
    sink._offsets.close()
    sink._offsets.consumer = Consumer(KafkaClients("127.0.0.1:1").librdkafka(group__id=topic, log_level=0))
    assert sink.committed([(topic, 0)])[topic, 0].offset == 1
    sink.close()


@pytest.mark.kafka
def test_what_is_too_large_for_a_topic(topics: Topics) -> None:
    """Each topic has a limit of its own; refused results are counted by topic and become dead letters."""
    names = small, large, dead = topics("small"), topics("large"), topics("dead")
    places = OutputTopics("", dead, dead, dict.fromkeys(names, 1), {small: 600, large: 700, dead: 1 << 20})
    sink = transactional_sink(topics.bootstrap, places, small)
    sink.open()
    texts = [b"%d" % 10**digits + b"\n" for digits in (10, 100, 150)]
    offsets = np.cumsum([0, *map(len, texts)])
    results = [(topic, Encoded(b"".join(texts), offsets)) for topic in (small, small, large)]
    assert sink.deliver(Delivery(results, [], {})) == {small: 4}
    assert sink.deliver(Delivery(results[2:], [], {})) == {}
    sink.close()
    for topic, count in ((small, 2), (large, 6), (dead, 4)):
        reader = Reader(topics.bootstrap, topic)
        reader.wait_for_count(count)
        assert len(reader.rows()) == count


class Writer:
    """Delivers numbered epochs in a thread, as a task does, and returns to the last commit after each failure."""

    def __init__(self, bootstrap: str, topic: str, name: str) -> None:
        self.name = name
        self.delivered = 0
        self._lane = (topic, 0)
        self._make: Callable[[], TransactionalSink] = lambda: sink_of(bootstrap, topic, f"{topic}-{name}")
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.stop.is_set():
            try:
                sink = self._make()
            except BrokerError:
                continue
            try:
                sink.open()
                found = sink.committed([self._lane])
                for number in itertools.count(found[self._lane].offset + 1 if found else 1):
                    if self.stop.is_set():
                        break
                    sink.deliver(delivery(self._lane, number, self.name))
                    self.delivered = number
                    self.stop.wait(0.05)
            except (Aborted, BrokerError):
                pass
            finally:
                sink.close()


def wait_for_all(writers: list[Writer]) -> None:
    """Wait until every writer has delivered another epoch."""
    before = {writer: writer.delivered for writer in writers}

    def late() -> list[str]:
        return [writer.name for writer in writers if writer.delivered == before[writer]]

    wait_for(lambda: not late(), lambda: f"another epoch of {late()}")


@pytest.mark.kafka
@pytest.mark.slow
def test_every_task_goes_on_after_a_restart(restartable_broker: RestartableBroker) -> None:
    """The broker stops amid many transactions: all writers continue, and each epoch is there once and in order.

    At every other restart some of twenty producers met the call that does not return.
    """
    topic = restartable_broker.topics("sink")
    writers = [Writer(restartable_broker.bootstrap, topic, f"w{number}") for number in range(20)]
    try:
        wait_for_all(writers)
        for _ in range(4):
            restartable_broker.stop()
            restartable_broker.start()
            wait_for_all(writers)
    finally:
        for writer in writers:
            writer.stop.set()
    for writer in writers:
        writer.thread.join(60)
        assert not writer.thread.is_alive(), f"{writer.name} does not end"
    reader, last = Reader(restartable_broker.bootstrap, topic), {writer.name: 0 for writer in writers}
    reader.wait_for_count(sum(writer.delivered for writer in writers))
    for row in reader.rows():
        ((name, number),) = row.items()
        assert number == last[name] + 1, f"{name}: {number} after {last[name]}"
        last[name] = number
    # An epoch may be there without its writer knowing it.
    assert all(last[writer.name] >= writer.delivered for writer in writers)
