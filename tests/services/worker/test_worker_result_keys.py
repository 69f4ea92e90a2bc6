"""Workers whose results have keys: each lies in the partition where Kafka's own producers would have put it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.broker_fixture import Topics
from tests.registry_fixture import rows_of_avro
from tests.services.worker.test_exactly_once import CLOSING, PARTITIONED, SENSORS, send
from tests.worker_harness import Case, Feed, Reader, Workers, assert_exact, canonical, unmarked, wait_for

pytestmark = pytest.mark.kafka

KEYED = "INSERT INTO '{sink}' KEY (mote)"


def partitions_by_kafka(topics: Topics, keys: list[bytes], count: int) -> dict[bytes, int]:
    """Where a producer with Java's partitioner puts keys."""
    topic = topics("keyed", count)
    found: dict[bytes, int] = {}
    producer = Producer({"bootstrap.servers": topics.bootstrap, "partitioner": "murmur2", "log_level": 0})
    for key in keys:
        producer.produce(topic, b"", key, on_delivery=lambda _, m: found.setdefault(m.key(), m.partition()))
    assert producer.flush(30) == 0
    return found


def check_keys(topics: Topics, reader: Reader, partitions: int) -> None:
    """Each record has the text of its column as key, and is where the key belongs."""
    keys = {str(row["mote"]).encode() for row in reader.rows()}
    places = partitions_by_kafka(topics, sorted(keys), partitions)
    assert len(set(places.values())) > 1
    for record, row in zip(reader.records, reader.rows(), strict=True):
        assert record.key == str(row["mote"]).encode()
        assert record.partition == places[record.key]


def test_one_task_writes_to_all_partitions(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """The topic has as many as the input; in each, results are in order, through a kill -9."""
    case = Case.make(topics, tmp_path, SENSORS.replace("INSERT INTO '{sink}'", KEYED), partitions=3)
    feed, rng = Feed(case), random.Random(3)
    reader = Reader(case.bootstrap, case.sink)
    worker = workers.start(case).wait_running()
    send(feed, rng, 0, 100)
    wait_for(lambda: worker.metric("watermark_milliseconds") == case.watermark(), worker.with_log("progress"))
    worker.kill()
    worker = workers.start(case).wait_running()
    send(feed, rng, 100, 100)
    feed.finish(CLOSING)
    assert_exact(case, reader, worker)
    check_keys(topics, reader, 3)
    assert worker.stop() == 0


@pytest.mark.deep
@pytest.mark.parametrize(
    "options",
    [("--guarantee", "at-least-once"), ("--memory", "20KiB"), ("--jit", "on")],
)
def test_every_way_of_execution(options: tuple[str, ...], topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Late results have keys, too."""
    case = Case.make(topics, tmp_path, SENSORS.replace("INSERT INTO '{sink}'", KEYED), partitions=3)
    feed, rng = Feed(case), random.Random(4)
    reader = Reader(case.bootstrap, case.sink)
    worker = workers.start(case, *options).wait_running()
    for part in range(4):
        send(feed, rng, 100 * part, 100)
        wait_for(lambda: worker.metric("watermark_milliseconds") == case.watermark(), worker.with_log("progress"))
    feed.finish(CLOSING)
    assert_exact(case, reader, worker)
    check_keys(topics, reader, 3)
    assert worker.stop() == 0


def test_a_key_from_an_object(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Results and their keys are objects in each other, also those that come late."""
    inside = SENSORS.replace("AS mote", 'AS "what.mote"').replace("T.celsius", 'T.celsius AS "what.celsius"', 1)
    assert inside.count("what.") == 2
    keyed = "INSERT INTO '{sink}' KEY (what.mote) WITH (key_format = 'json')"
    case = Case.make(topics, tmp_path, inside.replace("INSERT INTO '{sink}'", keyed), partitions=3)
    feed, rng = Feed(case), random.Random(7)
    reader = Reader(case.bootstrap, case.sink)
    worker = workers.start(case, "--memory", "20KiB").wait_running()
    for part in range(3):
        send(feed, rng, 100 * part, 100)
        wait_for(lambda: worker.metric("watermark_milliseconds") == case.watermark(), worker.with_log("progress"))
    feed.finish(CLOSING)
    expected = case.expected()
    reader.wait_for_count(expected.total(), worker.alive)
    assert canonical(unmarked(reader.rows())) == expected
    assert any("_phase" in row for row in reader.rows())
    for record, row in zip(reader.records, reader.rows(), strict=True):
        assert record.key == b'{"what":{"mote":%d}}' % row["what"]["mote"]
    assert worker.stop() == 0


@pytest.mark.deep
def test_joins_in_tasks_of_their_own(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """Several tasks of the last join write to each partition."""
    case = Case.make(topics, tmp_path, SENSORS.replace("INSERT INTO '{sink}'", KEYED), partitions=3)
    feed, reader = Feed(case), Reader(case.bootstrap, case.sink)
    worker = workers.start(case, "--placement", "per-operator")
    send(feed, random.Random(6), 0, 300)
    feed.finish(CLOSING)
    expected = case.expected()
    reader.wait_for_count(expected.total(), worker.alive)
    assert canonical(reader.rows()) == expected
    check_keys(topics, reader, 3)
    assert worker.stop() == 0


@pytest.mark.deep
def test_several_tasks_mix_in_a_partition(topics: Topics, tmp_path: Path, workers: Workers, registry: str) -> None:
    """Two workers, keys in JSON and values in Avro."""
    options = f"{KEYED} WITH (format = 'avro', key_format = 'json', registry = '{registry}')"
    named = PARTITIONED.replace("T.room,", "T.room AS room,").replace("T.celsius,", "T.celsius AS celsius,")
    named = named.replace("H.percent,", "H.percent AS percent,").replace("L.lux\n", "L.lux AS lux\n")
    case = Case.make(topics, tmp_path, named.replace("INSERT INTO '{sink}'", options), partitions=3)
    feed, rng = Feed(case), random.Random(5)
    reader = Reader(case.bootstrap, case.sink, decode=rows_of_avro(registry, case.sink))
    team = [workers.start(case) for _ in range(2)]
    send(feed, rng, 0, 200)
    feed.finish(CLOSING)
    expected = case.expected()
    reader.wait_for_count(expected.total(), team[0].alive)
    assert canonical(unmarked(reader.rows())) == expected
    for record, row in zip(reader.records, reader.rows(), strict=True):
        assert record.key == b'{"mote":%d}' % row["mote"]
    places = partitions_by_kafka(topics, sorted({record.key or b"" for record in reader.records}), 3)
    assert all(record.partition == places[record.key or b""] for record in reader.records)
    assert [worker.stop() for worker in team] == [0, 0]
