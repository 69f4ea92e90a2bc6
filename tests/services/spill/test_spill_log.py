"""The log of spilled state: what a commit records of it, what is kept, and what the next incarnation reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, Message, Producer

from schemas.errors import StateError
from schemas.messages.spills import SpillEvent, decode_events
from services.delivery.epoch_output import BlockRecord
from services.process.security import KafkaClients
from services.spill.spill_log import RECORD_EVENTS, LogRecord, SpillLog, read_log
from tests.broker_fixture import Topics


def left(at: int) -> SpillEvent:
    return SpillEvent(at, "leave", ((0, (at % 64,)),))


def telling(record: BlockRecord) -> Callable[[KafkaError | None, Message], None]:
    """Confirm each record, as Kafka does."""

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None
        assert record.written is not None
        record.written(message.offset() or 0)

    return delivered


def test_numbers_continue_over_incarnations() -> None:
    log = SpillLog(("q.spills", 3), 64, [LogRecord(7, (left(10),), "(A B)", offset=100)], 8)
    assert log.span == (7, 8)
    (record,) = log.add([left(11), left(12)], "(B A)")
    assert (record.topic, record.partition, record.key) == ("q.spills", 3, b"8")
    said = decode_events(record.value, 64, "it")
    assert (said.events, said.plan) == ((left(11), left(12)), "(B A)") == (said.events, log.plan)
    assert log.add([], "(A B)") == []
    assert log.events == [left(10), left(11), left(12)]
    assert log.span == (7, 9)


def test_many_events_are_many_records() -> None:
    log = SpillLog(("q.spills", 0), 64)
    records = log.add([left(at) for at in range(RECORD_EVENTS + 1)], "(A B)")
    assert [record.key for record in records] == [b"0", b"1"]
    assert len(log.events) == RECORD_EVENTS + 1
    assert log.span == (0, 2)


def test_the_oldest_records_are_dropped_first() -> None:
    """A record that is still needed also keeps those behind it, even if their events are older."""
    known = [LogRecord(0, (left(5),), "", offset=40), LogRecord(1, (left(9), left(6)), "", offset=42)]
    log = SpillLog(("q.spills", 0), 64, known, 2)
    (record,) = log.add([left(3)], "(A B)")
    log.forget(8)
    assert log.span == (1, 3)
    assert log.deletable() == {("q.spills", 0): 41}
    assert log.deletable() == {}
    assert record.written is not None
    record.written(44)
    log.forget(9)
    assert log.events == []
    assert log.span == (3, 3)
    assert log.deletable() == {("q.spills", 0): 45}
    log.add([left(10)], "(A B)")
    log.forget(10)
    assert log.deletable() == {}, "where it is is not known"


def test_a_writer_without_transactions_adopts_what_it_needs() -> None:
    """It writes the records of its predecessor again under its own name, before its first own."""
    known = [LogRecord(7, (left(5),), "(A B)", "x", offset=40), LogRecord(8, (left(9),), "(B A)", "x", offset=42)]
    log = SpillLog(("q.spills", 0), 64, known, 9, "y")
    assert log.span == (7, 9)
    records = log.add([left(11)], "(A B)")
    assert [record.key for record in records] == [b"9", b"10", b"11"]
    decoded = [decode_events(record.value, 64, "log") for record in records]
    assert [(one.events, one.plan) for one in decoded] == [
        ((left(5),), "(A B)"), ((left(9),), "(B A)"), ((left(11),), "(A B)")
    ]  # fmt: skip
    assert {one.writer for one in decoded} == {"y"}
    assert log.span == (9, 12)
    assert log.deletable() == {("q.spills", 0): 43}
    assert [record.key for record in log.add([left(12)], "(A B)")] == [b"12"]


def test_records_of_transactions_need_no_writer() -> None:
    """A predecessor without transactions named itself, so its records are written again, once."""
    log = SpillLog(("q.spills", 0), 64, [LogRecord(7, (left(5),), "(A B)", "x", offset=40)], 8)
    assert [decode_events(record.value, 64, "log").writer for record in log.add([], "(A B)")] == [""]
    assert log.add([], "(A B)") == []
    log = SpillLog(("q.spills", 0), 64, [LogRecord(7, (left(5),), "(A B)", offset=40)], 8)
    assert log.add([], "(A B)") == []


@pytest.mark.kafka
def test_what_another_writer_left_does_not_count(topics: Topics) -> None:
    """Without transactions the log also holds records behind the commit, and records of one that hung meanwhile."""
    topic = topics("spills", 1)
    clients = KafkaClients(topics.bootstrap)
    producer = Producer({"bootstrap.servers": topics.bootstrap, "log_level": 0})
    logs = {writer: SpillLog((topic, 0), 64, (), 3, writer) for writer in ("dead", "own", "hangs")}
    for writer, at in (("dead", 1), ("dead", 2), ("own", 10), ("own", 20), ("hangs", 5), ("hangs", 6)):
        for record in logs[writer].add([left(at)], "(A B)"):
            producer.produce(topic, record.value, record.key, partition=0, on_delivery=telling(record))
    assert producer.flush(30) == 0
    found = read_log(clients, (topic, 0), 64, (3, 5), former="own", writer="next")
    assert found.events == [left(10), left(20)]
    assert [record.key for record in found.add([], "(A B)")] == [b"5", b"6"]
    with pytest.raises(StateError, match="has no record 3"):
        read_log(clients, (topic, 0), 64, (3, 5), former="unknown")


@pytest.mark.kafka
def test_a_successor_reads_what_its_commit_needs(topics: Topics) -> None:
    """It reads the later record if a number occurs twice, and fails with a clear error if a record is missing."""
    topic = topics("spills", 2)
    clients = KafkaClients(topics.bootstrap)
    producer = Producer({"bootstrap.servers": topics.bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    for begin, texts in ((0, (1, 2, 3)), (1, (20, 30)), (3, (4,))):
        log = SpillLog((topic, 1), 64, (), begin)
        producer.begin_transaction()
        for at in texts:
            for record in log.add([left(at)], "(A B)"):
                producer.produce(topic, record.value, record.key, partition=1, on_delivery=telling(record))
        producer.commit_transaction(30)
    log.forget(4)
    assert log.deletable() == {(topic, 1): 8}, "the three transactions end with a mark each"
    producer.begin_transaction()
    producer.produce(topic, b"never", b"4", partition=1)
    # Otherwise nothing need be written, and the transaction markers of the commit before may still be under way.
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    found = read_log(clients, (topic, 1), 64, (1, 4))
    assert found.events == [left(20), left(30), left(4)]
    assert found.span == (1, 4)
    assert read_log(clients, (topic, 0), 64, (6, 6)).span == (6, 6)
    with pytest.raises(StateError, match=r"has no record 4, and the records up to 4 tell what is pending: "):
        read_log(clients, (topic, 1), 64, (2, 5))
    producer.begin_transaction()
    producer.produce(topic, b"x", b"mine", partition=1)
    producer.commit_transaction(30)
    with pytest.raises(StateError, match=r"has key b'mine', no number"):
        read_log(clients, (topic, 1), 64, (2, 4))
