"""A broker that its peers have cut off believes for some seconds that it still leads its partitions.

A client that asks it sees the state at the moment of the split. Found by torture (103041), whose own reader trusted it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace

import aiokafka.client
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from services.delivery.sink import Aborted, Fenced
from services.kafka.partition_log import PartitionLogs
from services.kafka.readback import read_to_end
from services.kafka.topics import TopicAdmin
from services.process.security import KafkaClients
from tests.broker_fixture import Topics
from tests.services.delivery.test_transactional import Group, assert_exact, die_in
from tests.torture.cluster import Cluster
from tests.transaction_tearing import OFFSETS_TOPIC, STATE_TOPIC, partition_of
from tests.worker_harness import wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.unmeasured]

STALE = 2
"""The broker that is cut off; the others keep the majority."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "cluster", 3, "400m")
    if not cluster.splits:
        cluster.close()
        pytest.skip("network namespaces are not permitted here")
    yield cluster
    cluster.close()


def leaders(bootstrap: str, topic: str) -> dict[int, int]:
    """The leader of each partition, as one broker knows it."""
    described = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=10).topics[topic]
    return {number: partition.leader for number, partition in described.partitions.items()}


def group_led_by_the_stale(cluster: Cluster) -> Group:
    """A group whose topics the stale broker leads, and whose coordinators are other brokers."""
    bootstrap = cluster.bootstrap
    names = {stem: f"stale-{stem}" for stem in ("source", "out", "late", "dead", "inner")}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    warm = TopicAdmin(Group(bootstrap, "warm", **names).clients)
    replicas = [[STALE, *(node.number for node in cluster.nodes if node.number != STALE)]]
    created = [NewTopic(name, 1, replica_assignment=replicas) for name in names.values()]
    for future in admin.create_topics(created).values():
        future.result(30)
    # The first group has Kafka make its internal topics.
    first = Group(bootstrap, "first", **names)
    warm.transactions(first.name, 1, 3)
    sink = first.sink(warm, 0, 1)
    sink.open()
    sink.deliver(first.epoch(sink, 0, 1, results=0))
    sink.close()
    coordinators = {topic: leaders(bootstrap, topic) for topic in (OFFSETS_TOPIC, STATE_TOPIC)}
    for number in range(1000):
        group = Group(bootstrap, f"stale-{number}", **names)
        names_of = {OFFSETS_TOPIC: group.name, STATE_TOPIC: f"{group.name}.0"}
        if STALE not in {leads[partition_of(bootstrap, t, names_of[t])] for t, leads in coordinators.items()}:
            admin.create_topics([NewTopic(group.log, 1, replica_assignment=replicas)])[group.log].result(30)
            return group
    raise AssertionError("no group has its coordinators on other brokers")


def runs_to_end(group: Group) -> bool:
    """Run an incarnation that delivers all up to epoch 3; False when it must be restarted, as a worker does."""
    sink, lane = group.sink(TopicAdmin(group.clients), 0, 1), (group.source, 0)
    try:
        sink.open()
        for number in range(sink.committed([lane])[lane].offset + 1, 4):
            sink.deliver(group.epoch(sink, 0, number))
    except (Aborted, Fenced):
        return False
    finally:
        sink.close()
    return True


@pytest.mark.deep
def test_a_task_that_begins_beside_a_stale_leader(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stale leader shows the last transaction as open, though its new leaders have committed it.

    The task used to write it again.
    """
    group = group_led_by_the_stale(cluster)
    sink = group.sink(TopicAdmin(group.clients), 0, 1)
    sink.open()
    sink.deliver(group.epoch(sink, 0, 1))
    real = sink._producer
    die_in(sink, group.epoch(sink, 0, 2))
    others = [number for number in range(3) if number != STALE - 1]
    stale, healthy = cluster.nodes[STALE - 1].bootstrap, cluster.nodes[others[0]].bootstrap
    with cluster.split(STALE - 1, others):
        topics = (group.source, group.out, group.late, group.dead, group.inner, group.log)
        wait_for(lambda: all(leaders(healthy, topic)[0] != STALE for topic in topics), "others lead")
        sink._until_done(lambda: real.commit_transaction(30), "none", waiting="not yet", failed="not committed")
        beside = dataclasses.replace(group, bootstrap=stale)
        # A client may ask any broker for a partition's leader: here it asks the stale one, for a while.
        asked = itertools.count()
        order = SimpleNamespace(shuffle=lambda ids: ids.sort(key=lambda id: (id == STALE) ^ (next(asked) < 60)))
        monkeypatch.setattr(aiokafka.client, "random", order)
        wait_for(lambda: runs_to_end(beside), "the task goes on", 90)
    sink.close()
    cluster.wait()
    assert_exact(dataclasses.replace(group, bootstrap=healthy), 1, [1, 2, 3])


def test_reading_waits_for_what_is_known_to_be_there(topics: Topics) -> None:
    """A stale leader reports an earlier end; here the missing records are written while the reader waits for them."""
    topic, clients = topics("log"), KafkaClients(topics.bootstrap)
    # It sends when it is flushed, so that the values of one call are one batch.
    producer = Producer({"bootstrap.servers": topics.bootstrap, "linger.ms": 30_000})

    def write(*values: bytes) -> None:
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(30) == 0

    def read() -> list[bytes | None]:
        return [message.value() for _, message in read_to_end(clients, (topic, 0), 4)]

    def stored() -> list[int]:
        with PartitionLogs(clients) as logs:
            return [batch.offset for batch in logs.batches((topic, 0), 0, 3)]

    write(b"0", b"1")
    with ThreadPoolExecutor() as pool:
        found = [pool.submit(read), pool.submit(stored)]
        assert not wait(found, 1.0).done
        write(b"2")
        assert not wait(found, 1.0).done
        write(b"3")
        write(b"4")
        assert found[0].result(30) == [b"0", b"1", b"2", b"3"]
        assert found[1].result(30) == [0, 2]
