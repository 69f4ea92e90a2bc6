"""The log of repeats: what a commit records of it, what is kept, and what the next incarnation reads."""

from __future__ import annotations

import numpy as np
import pytest
from confluent_kafka import Producer

from operators.data.positions import positions
from schemas.columns import I64
from schemas.errors import StateError
from schemas.messages.repeats import decode_repeats, encode_repeats
from services.delivery import repeats_log
from services.delivery.epoch_output import BlockRecord
from services.delivery.repeats_log import KnownRepeats, RepeatsLog, read_repeats
from services.process.security import KafkaClients
from tests.broker_fixture import Topics

LANE = ("q.repeats", 3)


def at(*places: tuple[int, int]) -> I64:
    """The positions of partitions and offsets."""
    found = [int(positions(partition, np.array([offset])).values[0]) for partition, offset in places]
    return np.array(sorted(found), np.int64)


def said(records: list[BlockRecord]) -> list[dict[str, list[int]]]:
    """What records hold."""
    found = [decode_repeats(record.value, "it").positions("it") for record in records]
    return [{stream: own.tolist() for stream, own in each.items()} for each in found]


def confirm(records: list[BlockRecord], offset: int) -> None:
    """Kafka has stored them from an offset on."""
    for number, record in enumerate(records):
        assert record.written is not None
        record.written(offset + number)


def test_records_are_numbered_and_hold_positions() -> None:
    log = RepeatsLog(LANE, KnownRepeats(following=8))
    assert log.span == (8, 8)
    records = log.add({"a": at((0, 5), (1, 7)), "b": at((0, 9)), "c": at()})
    assert [(record.topic, record.partition, record.key) for record in records] == [(*LANE, b"8"), (*LANE, b"9")]
    assert said(records) == [{"a": at((0, 5), (1, 7)).tolist()}, {"b": at((0, 9)).tolist()}]
    assert log.add({"a": at()}) == []
    assert log.span == (8, 10)


def test_many_repeats_are_many_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats_log, "RECORD_POSITIONS", 2)
    log = RepeatsLog(LANE, KnownRepeats())
    assert [len(each["a"]) for each in said(log.add({"a": at((0, 1), (0, 2), (0, 3), (1, 1), (1, 2))}))] == [2, 2, 1]
    assert log.span == (0, 3)


def test_a_record_is_needed_while_a_recovery_reads_one_of_its_repeats() -> None:
    log = RepeatsLog(LANE, KnownRepeats())
    for number, found in enumerate([at((0, 5), (1, 70)), at((0, 6)), at((0, 9))]):
        confirm(log.add({"a": found}), 10 * number)
    log.forget({("a", 0): 8, ("a", 1): 70})
    assert log.span == (0, 3)
    assert log.deletable() == {}
    log.forget({("a", 0): 9, ("a", 1): 71})
    assert log.span == (2, 3)
    assert log.deletable() == {LANE: 11}
    assert log.deletable() == {}
    log.forget({("a", 0): 10, ("a", 1): 71})
    assert log.span == (3, 3)


def test_what_an_endless_window_needs_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats_log, "MOST_KEPT", 8)
    log = RepeatsLog(LANE, KnownRepeats())
    for number in range(100):
        confirm(log.add({"a": at((0, number))}), number)
        log.forget({("a", 0): 0})
    assert len(log._records) <= 9
    assert log.span == (0, 100)
    log.forget({("a", 0): 50})
    assert log.span[0] <= 50
    log.forget({("a", 0): 99})
    assert 0 < log.span[0] <= 99
    log.forget({("a", 0): 100})
    assert log.span == (100, 100)
    assert log.deletable() == {LANE: 100}


def test_a_new_plan_writes_what_it_inherits_before_its_own() -> None:
    known = KnownRepeats({"a": at((0, 5), (0, 6))}, {"a": 77}, own=False)
    log = RepeatsLog(LANE, known, "me")
    records = log.add({"a": at((0, 9))})
    assert said(records) == [{"a": at((0, 5), (0, 6)).tolist()}, {"a": at((0, 9)).tolist()}]
    assert {decode_repeats(record.value, "it").writer for record in records} == {"me"}
    assert log.span == (0, 2)
    assert said(log.add({"a": at((0, 11))})) == [{"a": at((0, 11)).tolist()}], "what it inherits is written once"


def test_a_writer_without_transactions_adopts_what_it_needs() -> None:
    records = [(7, 40, {"a": at((0, 5))}), (8, 42, {"a": at((0, 6))})]
    log = RepeatsLog(LANE, KnownRepeats({"a": at((0, 5), (0, 6))}, {}, records, 9, own=False), "me")
    assert log.span == (7, 9)
    assert [record.key for record in log.add({})] == [b"9"]
    assert log.span == (9, 10)
    assert log.deletable() == {LANE: 43}


def test_damaged_positions() -> None:
    raw = encode_repeats({"a": at((0, 5))}).replace(b'"eJ', b'"eK')
    with pytest.raises(StateError, match="here has damaged positions"):
        decode_repeats(raw, "here").positions("here")


@pytest.mark.kafka
def test_a_successor_reads_what_its_commit_needs(topics: Topics) -> None:
    topic = topics("repeats", 1)
    clients = KafkaClients(topics.bootstrap)
    producer = Producer({"bootstrap.servers": topics.bootstrap, "log_level": 0})
    for writer, first, offsets in (("dead", 3, (1, 2)), ("own", 3, (10, 20)), ("hangs", 3, (5, 6))):
        log = RepeatsLog((topic, 0), KnownRepeats(following=first), writer)
        for offset in offsets:
            for record in log.add({"a": at((0, offset))}):
                producer.produce(topic, record.value, record.key, partition=0)
    assert producer.flush(30) == 0
    found = read_repeats(clients, (topic, 0), (3, 5), former="own", writer="next")
    assert found.positions["a"].tolist() == [10, 20]
    assert (found.following, found.own) == (5, False)
    assert [number for number, _, _ in found.records] == [3, 4]
    assert read_repeats(clients, (topic, 0), (4, 5), former="own", writer="own").own
    with pytest.raises(StateError, match=r"has no record 5, and the records up to 5 tell which tuples are repeats: "):
        read_repeats(clients, (topic, 0), (3, 6), former="own")
