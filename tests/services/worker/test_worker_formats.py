"""A worker that meets what a newer Weir has written: it stops with a clear line and exit code 1, and leaves all."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from rocksdict import Options, Rdict

from schemas.errors import NewerFormatError
from services.formats.registry_access import RegistryAccess
from services.kafka.topics import REGISTRY, ControlTopics, TopicAdmin
from services.process.security import KafkaClients
from services.registry.group_registry import find_group
from services.registry.query_registry import find_query, registered
from tests.broker_fixture import RestartableBroker, Topics
from tests.group_workers import GroupTrial, select
from tests.services.worker.test_worker_faults import CLOSING, PLAIN, send
from tests.worker_harness import Case, Feed, Reader, WorkerProcess, Workers, assert_exact, wait_for

pytestmark = pytest.mark.kafka


class Group:
    """The consumer group of a case, seen from outside."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.name = f"weir-{case.sink}"
        self.lanes = [(stream.topic, 0) for stream in case.query.streams()]
        self.control = ControlTopics.of(self.name).control

    def _consumer(self) -> Consumer:
        return Consumer({"bootstrap.servers": self.case.bootstrap, "group.id": self.name, "log_level": 0})

    def commits(self) -> dict[tuple[str, int], tuple[int, str]]:
        """Committed offsets with their messages."""
        consumer = self._consumer()
        try:
            found = consumer.committed([TopicPartition(*lane) for lane in self.lanes], 30)
        finally:
            consumer.close()
        return {(tp.topic, tp.partition): (tp.offset, tp.metadata) for tp in found}

    def commit(self, commits: Mapping[tuple[str, int], tuple[int, str]]) -> None:
        """Commit in the place of the workers, none of which runs."""
        consumer = self._consumer()
        try:
            offsets = [TopicPartition(*lane, offset, metadata=text) for lane, (offset, text) in commits.items()]
            consumer.commit(offsets=offsets, asynchronous=False)
        finally:
            consumer.close()

    def ends(self) -> dict[str, int]:
        """How far each topic of the group reaches."""
        admin = TopicAdmin(KafkaClients(self.case.bootstrap))
        names = [self.case.sink, f"{self.case.sink}.late", f"{self.case.sink}.dead", self.control]
        return {topic: end for (topic, _), (_, end) in admin.log_ranges([(name, 0) for name in names]).items()}


def say(bootstrap: str, topic: str, raw: bytes | None, key: str | None = None) -> None:
    """Write a record."""
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, raw, key, partition=0)
    assert producer.flush(30) == 0


def refused(worker: WorkerProcess, what: str) -> None:
    """The worker ends with exit code 1 and one line about what a newer Weir has written."""
    assert worker.process.wait(60) == 1
    (line,) = [line for line in worker.text().splitlines() if "newer Weir" in line]
    assert line.startswith("weir: "), line
    assert what in line
    assert "was written by a newer Weir (format 99, this one reads 1): upgrade this Weir first" in line
    assert worker.text().splitlines()[-1] == line


def files(folder: Path) -> dict[str, bytes]:
    """What is on a disk, but for locks and what RocksDB says about its openings."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix == ".sst"
    }


@pytest.mark.deep
def test_newer_state_stops_a_worker_at_its_start(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """It joined the group, fenced whoever ran its tasks, and emptied a snapshot that it could not read."""
    case = Case.make(topics, tmp_path, PLAIN)
    group, feed, state = Group(case), Feed(case), tmp_path / "state"
    worker = workers.start(case, "--snapshot", "100ms").wait_running()
    send(feed, random.Random(1), 0, 200)
    Reader(case.bootstrap, case.sink).wait_for_count(20)
    wait_for(lambda: worker.metric("snapshot_watermark_milliseconds"), worker.with_log("a snapshot"))
    assert worker.stop() == 0

    commits = group.commits()
    newer = {lane: (offset, json.dumps(json.loads(text) | {"v": 99})) for lane, (offset, text) in commits.items()}
    group.commit(newer)
    ends, disk = group.ends(), files(state)
    refused(workers.start(case), "committed offset of ")
    assert group.commits() == newer
    assert (group.ends(), files(state)) == (ends, disk)
    group.commit(commits)

    ((path),) = state.glob("slot-0/*/task-0")
    table = Rdict(str(path), Options(raw_mode=True))
    manifest = bytes(table[b"m"])
    table[b"m"] = b'{"v": 99}'
    held = {bytes(key): bytes(value) for key, value in table.items()}
    table.close()
    refused(workers.start(case), "snapshot in ")
    assert group.commits() == commits
    assert group.ends() | {group.control: 0} == ends | {group.control: 0}
    table = Rdict(str(path), Options(raw_mode=True))
    assert {bytes(key): bytes(value) for key, value in table.items()} == held
    table[b"m"] = manifest
    table.close()

    # What was refused is what was left: its owner goes on with it.
    worker = workers.start(case).wait_running()
    assert "source=snapshot" in worker.text()
    send(feed, random.Random(2), 200, 50)
    feed.finish(CLOSING)
    assert_exact(case, Reader(case.bootstrap, case.sink), worker)


@pytest.mark.deep
def test_newer_control_messages_stop_a_worker_that_runs(topics: Topics, tmp_path: Path, workers: Workers) -> None:
    """They were passed over with a warning: a plan change of newer workers would have gone on without this one."""
    case = Case.make(topics, tmp_path, PLAIN)
    group, feed = Group(case), Feed(case)
    worker = workers.start(case).wait_running()
    send(feed, random.Random(1), 0, 100)
    Reader(case.bootstrap, case.sink).wait_for_count(5)
    say(case.bootstrap, group.control, b'{"type":"party","v":99}')
    refused(worker, f"'party' message {group.control}[0]@")
    commits, ends = group.commits(), group.ends()
    refused(workers.start(case), f"'party' message {group.control}[0]@")
    assert (group.commits(), group.ends()) == (commits, ends)


@pytest.mark.deep
def test_newer_queries_stop_the_workers_of_their_group_alone(
    restartable_broker: RestartableBroker, tmp_path: Path, workers: Workers
) -> None:
    """The registry is everybody's: what a newer Weir registers elsewhere concerns no other group, and no other name.

    The broker is the test's own, because version 808f51c, which other tests run, refuses a registry with such a record.
    """
    topics = Topics(restartable_broker.bootstrap)
    trial = GroupTrial.make(topics, tmp_path)
    trial.register({"one": select(random.Random(1))})
    newer, other = f"{trial.name}/newer", f"{trial.name}-other"
    say(topics.bootstrap, REGISTRY, b'{"type":"query","v":99}', other)
    worker = workers.start(trial.case).wait_running()
    with pytest.raises(NewerFormatError, match="this one reads 1"):
        find_query(Path(other), None, trial.clients, RegistryAccess())
    say(topics.bootstrap, REGISTRY, b'{"type":"query","v":99}', newer)
    refused(worker, f"'query' message {REGISTRY}[0]@")
    with pytest.raises(NewerFormatError, match="this one reads 1"):
        find_group(trial.clients, trial.name)
    say(topics.bootstrap, REGISTRY, None, newer)
    say(topics.bootstrap, REGISTRY, None, other)
    assert other not in registered(trial.clients)
    assert find_group(trial.clients, trial.name) is not None
