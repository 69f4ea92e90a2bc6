"""Checks how a torn transaction looks from outside: `tests/transaction_tearing.py` on a real broker."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.broker_fixture import RestartableBroker, wait_until
from tests.transaction_tearing import (
    Outcome,
    TearingError,
    Torn,
    describe,
    hanging,
    offsets_part,
    tear,
)

pytestmark = pytest.mark.kafka

OUTCOMES: tuple[Outcome, ...] = ("commit", "abort", "hang")


def _producer(bootstrap: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    return producer


def _fill(bootstrap: str, producer: Producer, topic: str, value: str, partitions: int, offset: int) -> None:
    """A complete transaction except for its end: a record per partition, and an offset of group `topic`."""
    producer.begin_transaction()
    for partition in range(partitions):
        producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0
    member = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    offsets = [TopicPartition(topic, 0, offset)]
    producer.send_offsets_to_transaction(offsets, member.consumer_group_metadata(), 30)
    member.close()


def _values(bootstrap: str, topic: str, isolation: str) -> list[list[str]]:
    """The values in each partition up to the end that this isolation level sees, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    values: list[list[str]] = [[] for _ in partitions]
    ended: set[int] = set()

    def all_ended() -> bool:
        if (message := consumer.poll(1)) is None:
            return False
        if (error := message.error()) is None:
            values[message.partition()].append(message.value().decode())
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
        return len(ended) == len(partitions)

    wait_until(all_ended, f"the end of {topic}")
    consumer.close()
    return values


def _committed(bootstrap: str, topic: str, isolation: str) -> int | None:
    """The group's offset; None when Kafka holds it back because a transaction may still change it."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "isolation.level": isolation})
    try:
        return consumer.committed([TopicPartition(topic, 0)], 3)[0].offset
    except KafkaException as error:
        if error.args[0].code() not in {KafkaError._TIMED_OUT, KafkaError.UNSTABLE_OFFSET_COMMIT}:
            raise
        return None
    finally:
        consumer.close()


@pytest.mark.deep
def test_parts_end_as_asked_and_the_next_transaction_ends_those_that_hang(
    restartable_broker: RestartableBroker,
) -> None:
    """Three transactions, each with data in all three ways and offsets in one of them.

    The last step is how Kafka 4.3.1 was seen to double results: the producer's next incarnation committed its own
    records, and its marker also made visible those of the hanging transaction.
    """
    bootstrap = restartable_broker.bootstrap
    torn: dict[Outcome, Torn] = {}
    for offsets in OUTCOMES:
        topic = restartable_broker.topics(offsets, partitions=3)
        producer = _producer(bootstrap, topic)
        _fill(bootstrap, producer, topic, "a", 3, 10)
        producer.commit_transaction(30)
        _fill(bootstrap, producer, topic, "b", 3, 20)
        data = {(topic, partition): outcome for partition, outcome in enumerate(OUTCOMES)}
        torn[offsets] = Torn(topic, {**data, offsets_part(bootstrap, topic): offsets})
    tear(restartable_broker, torn.values())

    for offsets, each in torn.items():
        topic = each.transactional_id
        assert describe(bootstrap, topic).state == "CompleteCommit"
        assert [hanging(bootstrap, topic, number) for number in range(3)] == [False, False, True]
        assert _values(bootstrap, topic, "read_committed") == [["a", "b"], ["a"], ["a"]]
        assert _values(bootstrap, topic, "read_uncommitted") == [["a", "b"]] * 3
        assert _committed(bootstrap, topic, "read_uncommitted") == (20 if offsets == "commit" else 10)
        shown = {"commit": 20, "abort": 10, "hang": None}
        assert _committed(bootstrap, topic, "read_committed") == shown[offsets]
    assert hanging(bootstrap, *offsets_part(bootstrap, torn["hang"].transactional_id))

    for each in torn.values():
        topic = each.transactional_id
        successor = _producer(bootstrap, topic)
        assert hanging(bootstrap, topic, 2)
        _fill(bootstrap, successor, topic, "c", 3, 30)
        successor.commit_transaction(30)

    # A commit returns when the outcome is decided; the markers follow. The groups may share a partition of offsets,
    # so the test ends all of them before it judges any.
    for each in torn.values():
        topic = each.transactional_id
        wait_until(lambda each=each: not any(hanging(bootstrap, *part) for part in each.outcomes), "nothing hangs")
        assert _values(bootstrap, topic, "read_committed") == [["a", "b", "c"], ["a", "c"], ["a", "b", "c"]]
        assert _committed(bootstrap, topic, "read_committed") == 30


@pytest.mark.deep
def test_other_transactions_go_on_and_a_living_producer_is_told_what_is_believed(
    restartable_broker: RestartableBroker,
) -> None:
    bootstrap = restartable_broker.bootstrap
    topics = [restartable_broker.topics("torn") for _ in range(3)]
    producers = [_producer(bootstrap, topic) for topic in topics]
    for producer, topic in zip(producers, topics, strict=True):
        _fill(bootstrap, producer, topic, "a", 1, 10)
    committed, aborted, whole = topics
    with pytest.raises(TearingError, match="its outcomes name"):
        tear(restartable_broker, [Torn(whole, {(whole, 0): "hang"})])
    with pytest.raises(TearingError, match="TRANSACTIONAL_ID_NOT_FOUND"):
        tear(restartable_broker, [Torn("nobody", {})])
    with pytest.raises(TearingError, match="UNKNOWN_TOPIC_OR_PART"):
        hanging(bootstrap, whole, 1)

    tear(
        restartable_broker,
        [
            Torn(committed, {(committed, 0): "hang", offsets_part(bootstrap, committed): "hang"}),
            Torn(aborted, {(aborted, 0): "hang", offsets_part(bootstrap, aborted): "abort"}, "abort"),
        ],
    )
    assert describe(bootstrap, aborted).state == "CompleteAbort"
    assert describe(bootstrap, whole).state == "Ongoing"
    assert [hanging(bootstrap, topic, 0) for topic in topics] == [True, True, False]

    producers[0].commit_transaction(30)  # succeeds, and yet nothing is visible
    with pytest.raises(KafkaException):
        producers[1].commit_transaction(30)
    producers[2].commit_transaction(30)
    assert [_values(bootstrap, topic, "read_committed") for topic in topics] == [[[]], [[]], [["a"]]]
    with pytest.raises(TearingError, match="its state is CompleteCommit"):
        tear(restartable_broker, [Torn(whole, {(whole, 0): "hang"})])
