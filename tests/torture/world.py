"""The processes and clients of one trial: topics, a feeder, workers in slots, a coordinator, and a watch on progress.

A *slot* is a position at which a worker should run. Like an operator, `World.supervise` restarts a worker that has
ended by itself. `Watch` notes when anything last made progress: all deadlines of a trial count from then.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from schemas.errors import BrokerError, WeirError
from schemas.messages.commits import decode_commit
from services.kafka.topics import ControlTopics
from services.process.security import KafkaClients
from services.registry.group_registration import register_in_group
from services.registry.group_registry import drop_from_group, find_group
from tests.torture.clock import Clock, library
from tests.torture.cluster import Attached, Cluster, mount_memory
from tests.torture.data import Record, closing, records
from tests.torture.expected import Content
from tests.torture.scenario import Scenario
from tests.worker_harness import CoordinatorProcess, MigrateProcess, WorkerProcess

STALL_S = 75.0
"""A trial is given up after so long without any progress. A restarted worker may wait for a session of 6 s, a
transaction of 20 s and a backoff of 10 s, one after the other."""

DISK = "48m"
"""Size of a worker's disk where it is to be filled."""


class Stalled(Exception):
    """The trial makes no progress any more."""


@dataclass
class Case:
    """What a worker is started with; see `tests.worker_harness`."""

    bootstrap: str
    path: Path


@dataclass
class Slot:
    """A position at which a worker may run.

    Attributes:
        wanted: whether a worker should run there.
        worker: the newest worker; None before the first.
        workers: all workers so far, the newest last.
        exits: code and last line of workers that ended by themselves, and whether they had begun.
    """

    number: int
    wanted: bool = True
    worker: WorkerProcess | None = None
    workers: list[WorkerProcess] = field(default_factory=list)
    exits: list[tuple[int, str, bool]] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)


class World:
    """One trial's own topics and processes on a cluster."""

    def __init__(self, scenario: Scenario, cluster: Cluster | Attached, folder: Path) -> None:
        self.scenario = scenario
        self.cluster = cluster
        self.folder = folder
        self.prefix = f"t{scenario.seed}-{os.urandom(3).hex()}"
        self.began = 0.0
        self.log: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.known: list[Record] = [*records(scenario), *closing(scenario)]
        self.delivered: dict[tuple[str, int], dict[int, Content]] = defaultdict(dict)
        self.registered: dict[str, str] = {}
        self._select_of: dict[str, str] = {}
        # One change at a time, so that the last one in the registry is the last one here.
        self._registry = threading.Lock()
        self.grown: Counter[str] = Counter()
        self._growing = threading.Lock()
        self.one_broker_less = threading.Lock()
        """Held while a broker is missing that must be the only one."""
        self.stopping = threading.Event()
        self.client = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
        self.admin = AdminClient(self.client)
        self.clients = KafkaClients(cluster.bootstrap)
        self._producer = Producer(
            {
                **self.client,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.max.bytes": 20_000_000,
                # It was once seen to hang for minutes on one partition. Only the log's contents count.
                "message.timeout.ms": 40_000,
                "topic.metadata.refresh.interval.ms": 1_000,
                "reconnect.backoff.max.ms": 500,
            }
        )
        self._make_topics()
        self.bootstrap = cluster.proxied if scenario.proxied else cluster.bootstrap
        path = folder / "query.sql"
        path.write_text(scenario.text(self.prefix))
        self.case = Case(self.bootstrap, Path(self.prefix) if scenario.group else path)
        self.clock = self._clock()
        disks = any(fault.kind == "worker-disk-full" for fault in scenario.faults)
        self.slots = [Slot(number) for number in range(scenario.workers)]
        self.disks = self._disks() if disks else {}
        self.coordinators: list[CoordinatorProcess] = []
        self.migrations: list[MigrateProcess] = []
        self.watch = Watch(self)
        if scenario.group:
            self.register([name for name in scenario.selects if name.startswith("q")], from_now=False)

    # --- Names --------------------------------------------------------------------------------------

    @property
    def stem(self) -> str:
        """The prefix of the names of the group, the late topic and the dead-letter topic."""
        return self.prefix if self.scenario.group else f"{self.prefix}.q"

    @property
    def group(self) -> str:
        """The consumer group."""
        return f"weir-{self.stem}"

    def groups(self) -> set[str]:
        """The consumer group, and those of later plans where joins are distributed; only the former where Kafka does
        not answer."""
        found = {self.group}
        if "per-operator" in self.scenario.options:
            with contextlib.suppress(KafkaException):
                known = self.admin.list_consumer_groups(request_timeout=5).result().valid
                found |= {one.group_id for one in known if one.group_id.startswith(f"{self.group}.v")}
        return found

    @property
    def sinks(self) -> list[str]:
        """The topics of results."""
        return [f"{self.prefix}.{name}" for name in self.scenario.selects]

    @property
    def members(self) -> str:
        """The topic in which a group's task reports its queries."""
        return ControlTopics.of(self.group).members

    def stream(self, topic: str) -> str:
        """The stream of an input topic."""
        return f"s{topic.rpartition('.')[2].lower()}"

    @property
    def lanes(self) -> list[TopicPartition]:
        """All partitions of the input."""
        return [
            TopicPartition(f"{self.prefix}.{alias}", partition)
            for alias in self.scenario.inputs
            for partition in range(self.scenario.partitions + self.grown[alias])
        ]

    # --- Input --------------------------------------------------------------------------------------

    def _make_topics(self) -> None:
        replication = 3 if len(self.cluster.nodes) > 1 else 1
        names = [f"{self.prefix}.{alias}" for alias in self.scenario.inputs]
        for made in self.admin.create_topics(
            [NewTopic(name, self.scenario.partitions, replication) for name in names], operation_timeout=60
        ).values():
            made.result(60)

    def grow(self, alias: str) -> None:
        """Give a stream's topic one more partition. It gets closing records only: other records that arrive before the
        workers notice the partition might or might not be late."""
        topic = f"{self.prefix}.{alias}"
        with self._growing:
            count = self.scenario.partitions + self.grown[alias] + 1
            self._insist(lambda: self._enlarge(topic, count))
            self.grown[alias] += 1

    def _enlarge(self, topic: str, count: int) -> None:
        if len(self.admin.list_topics(topic, 5).topics[topic].partitions) < count:
            self.admin.create_partitions([NewPartitions(topic, count)], request_timeout=15)[topic].result()

    def feed(self) -> None:
        """Produce all records but the closing ones, each when it is due."""
        start = time.monotonic()
        for record in self.known:
            if record.row is not None and record.row["n"] == -1:
                return
            while (wait := start + record.due_s - time.monotonic()) > 0 and not self.stopping.is_set():
                self._producer.poll(min(wait, 0.05))
            self.produce(record)

    def produce(self, record: Record) -> None:
        """Hand one record to the producer."""

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.notes.append(f"the trial's own record was refused: {error}")
                return
            place = (self.stream(str(message.topic())), int(message.partition() or 0))
            value = message.value() if record.value is not None else None
            self.delivered[place][int(message.offset() or 0)] = record.key, value

        while not self.stopping.is_set():
            try:
                topic = f"{self.prefix}.{record.alias}"
                told: dict[str, Any] = {}
                if record.key is not None and record.row is not None:
                    # A record without a value ends its row at its timestamp.
                    told = {"key": record.key, "timestamp": record.row["at"]}
                self._producer.produce(topic, record.value, partition=record.partition, on_delivery=delivered, **told)
                return
            except BufferError:
                self._producer.poll(0.05)
            except KafkaException as error:
                if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                    raise
                self._producer.poll(0.1)  # the partition has just been added

    def close_input(self) -> None:
        """Produce the closing records."""
        for record in closing(self.scenario):
            self.produce(record)

    def written(self) -> bool:
        """Whether all produced records are in the log."""
        return self._producer.flush(0.5) == 0

    # --- Groups of queries --------------------------------------------------------------------------

    def register(self, names: list[str], *, from_now: bool, by: str = "") -> None:
        """Register queries of the group; retries while Kafka does not answer.

        Args:
            by: the query whose SELECT they have; their own where empty.
        """
        text = self.scenario.declarations(self.prefix) + "".join(
            f"INSERT INTO '{self.prefix}.{name}'\n{self.scenario.selects[by or name]};\n" for name in names
        )
        with self._registry:
            self._insist(
                lambda: register_in_group(self.clients, self.prefix, text, None, from_now=from_now, replication=-1)
            )
            for name in names:
                sink = f"{self.prefix}.{name}"
                # What is registered with the same meaning again stays as it is.
                if sink not in self.registered or self._select_of[sink] != self.scenario.selects[by or name]:
                    self.registered[sink], self._select_of[sink] = text, self.scenario.selects[by or name]

    def drop(self, name: str) -> None:
        """Drop a query of the group once it is registered: on a busy machine the registration may still be under
        way."""
        sink = f"{self.prefix}.{name}"
        while sink not in self.registered and not self.stopping.wait(0.05):
            pass

        tried = False

        def once() -> None:
            nonlocal tried
            entry = find_group(self.clients, self.prefix)
            if entry is not None and sink in entry.queries:
                tried = True
                drop_from_group(self.clients, entry, sink)
            elif not tried:
                # A broker that has just become leader, or leads no more, may report an earlier end of the topic.
                raise BrokerError(f"{sink} is registered, and not to be seen")

        with self._registry:
            self._insist(once)
            self.registered.pop(sink, None)

    def _insist(self, what: Callable[[], object]) -> None:
        while not self.stopping.is_set():
            try:
                what()
                return
            except (WeirError, KafkaException) as error:
                self.notes.append(f"tried again: {error}")
                self.stopping.wait(0.5)

    # --- Workers ------------------------------------------------------------------------------------

    def _clock(self) -> Clock | None:
        """The workers' wall clock, if the scenario lets it jump."""
        if not self.scenario.clock:
            return None
        if library() is None:
            self.notes.append("clocks do not jump: no C compiler `cc` for tests/torture/clock.c")
            return None
        return Clock(self.folder / "clock")

    def _disks(self) -> dict[int, Path]:
        """A small disk per slot, where such disks can be mounted."""
        found = {}
        for slot in self.slots:
            path = self.folder / f"disk-{slot.number}"
            path.mkdir()
            if not mount_memory(path, DISK):
                self.notes.append("file systems cannot be mounted: no full disk of a worker")
                return found
            found[slot.number] = path
        return found

    def state(self, slot: Slot) -> str:
        """The state folder of a slot."""
        match self.scenario.state:
            case "none":
                return "none"
            case "own":
                return str(self.disks.get(slot.number, self.folder / f"state-{slot.number}"))
        return str(self.folder / "state")

    def start(self, slot: Slot) -> None:
        """Start a worker in a slot, if none runs there."""
        with slot.lock:
            if self.stopping.is_set() or (slot.worker is not None and slot.worker.process.poll() is None):
                return
            options = list(self.scenario.options)
            if "--memory" in options and self.scenario.state != "own" and slot.number in self.disks:
                options += ["--spill-dir", str(self.disks[slot.number])]
            env = self.clock.environment if self.clock is not None else {}
            log = self.folder / f"worker-{slot.number}-{len(slot.workers)}.log"
            slot.worker = WorkerProcess(self.case, self.state(slot), *options, log=log, env=env)  # type: ignore[arg-type]
            slot.workers.append(slot.worker)

    def running(self) -> list[WorkerProcess]:
        """The workers that run now."""
        return [slot.worker for slot in self.slots if slot.worker is not None and slot.worker.process.poll() is None]

    def open_records(self) -> dict[str, int]:
        """How many records lie beyond the last stable offset, by partition."""
        try:
            topics = self.admin.list_topics(timeout=10).topics
            lanes = [
                TopicPartition(name, number)
                for name, described in topics.items()
                if self.prefix in name or name == "__consumer_offsets"
                for number in described.partitions
            ]
            ends = {}
            for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
                asked = {lane: OffsetSpec.latest() for lane in lanes}
                answers = self.admin.list_offsets(asked, isolation_level=isolation, request_timeout=10)
                ends[isolation] = {f"{one.topic}-{one.partition}": int(a.result().offset) for one, a in answers.items()}
        except KafkaException as error:
            return {f"Kafka does not answer: {error}": 1}
        stable, all_ = ends[IsolationLevel.READ_COMMITTED], ends[IsolationLevel.READ_UNCOMMITTED]
        return {lane: all_[lane] - stable[lane] for lane in all_ if all_[lane] > stable[lane]}

    def supervise(self) -> None:
        """Restart workers that have ended by themselves, until the trial stops."""
        while not self.stopping.wait(0.2):
            for slot in list(self.slots):
                if not slot.wanted or not slot.lock.acquire(blocking=False):
                    continue
                try:
                    worker = slot.worker
                    if worker is not None and (code := worker.process.poll()) is not None:
                        text = worker.text()
                        last = (text.strip().splitlines() or [""])[-1]
                        slot.exits.append((code, last[:500], "worker starting" in text))
                        self.say("worker ended by itself", worker=slot.number, code=code, last=last[:300])
                        self.start(slot)
                finally:
                    slot.lock.release()

    def coordinate(self) -> None:
        """Start a coordinator."""
        log = self.folder / f"coordinator-{len(self.coordinators)}.log"
        self.coordinators.append(CoordinatorProcess(self.case, log=log))  # type: ignore[arg-type]

    def say(self, what: str, **more: Any) -> None:
        """Note an event, with the seconds since the first record."""
        self.log.append({"at": round(time.monotonic() - self.began, 3), "what": what, **more})

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition as long as there is progress.

        Raises:
            Stalled: there was no progress for STALL_S.
        """
        begin = time.monotonic()
        while not condition():
            if time.monotonic() - max(begin, self.watch.moved_s) > STALL_S:
                raise Stalled(f"{what}: nothing has moved for {STALL_S:g} s")
            time.sleep(0.1)

    def close(self) -> None:
        """End all processes and clients that are left, and unmount disks."""
        self.stopping.set()
        for migration in self.migrations:
            if migration.process.poll() is None:
                migration.process.kill()
            migration.process.communicate()
        for coordinator in self.coordinators:
            coordinator.kill()
        for slot in self.slots:
            with slot.lock:
                if slot.worker is not None and slot.worker.process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        slot.worker.process.send_signal(signal.SIGCONT)
                    slot.worker.kill()
        self.watch.close()
        for disk in self.disks.values():
            subprocess.run(["umount", "-l", str(disk)], check=False)

    def clean(self) -> None:
        """Remove topics and states of a trial without violations."""
        names = [name for name in self.admin.list_topics(timeout=30).topics if self.prefix in name]
        with contextlib.suppress(KafkaException):
            for gone in self.admin.delete_topics(names, operation_timeout=30).values():
                gone.result(30)
        shutil.rmtree(self.folder, ignore_errors=True)


class Watch:
    """Notes when offsets were last committed and results last arrived.

    Attributes:
        moves: the times of progress, by the monotonic clock.
        moved_s: the last of them.
        taken: committed offsets by lane.
        cuts: event times before which all results have been written, by lane.
        seen: committed records of the output topics.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.moves: list[float] = []
        self.moved_s = time.monotonic()
        self.taken: dict[tuple[str, int], int] = {}
        self.cuts: dict[tuple[str, int], int] = {}
        self.seen = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._commits), threading.Thread(target=self._outputs)]

    def start(self) -> None:
        """Start the watching thread."""
        for thread in self._threads:
            thread.start()

    def ends(self) -> dict[tuple[str, int], int]:
        """The ends of the input; empty while Kafka does not answer."""
        lanes = self._world.lanes
        try:
            answers = self._world.admin.list_offsets({lane: OffsetSpec.latest() for lane in lanes}, request_timeout=5)
            return {(lane.topic, lane.partition): int(answer.result().offset) for lane, answer in answers.items()}
        except KafkaException:
            with contextlib.suppress(KafkaException):
                self._world.admin.list_topics(timeout=5)
            return {}

    def caught_up(self) -> bool:
        """Whether all input is committed."""
        ends = self.ends()
        return bool(ends) and all(self.taken.get(lane, 0) >= end for lane, end in ends.items())

    def _moved(self) -> None:
        self.moved_s = time.monotonic()
        self.moves.append(self.moved_s)

    def _commits(self) -> None:
        consumers: dict[str, Consumer] = {}
        looked = -math.inf
        while not self._stop.wait(0.15):
            if time.monotonic() - looked > 1.0:
                looked = time.monotonic()
                for group in self._world.groups() - consumers.keys():
                    client = {**self._world.client, "group.id": group, "enable.auto.commit": False}
                    consumers[group] = Consumer(client)
            now = dict(self.taken)
            for consumer in consumers.values():
                try:
                    for found in consumer.committed(self._world.lanes, 3):
                        if found.error is None and found.offset > now.get((found.topic, found.partition), 0):
                            lane = found.topic, found.partition
                            now[lane] = found.offset
                            self.cuts[lane] = decode_commit(found.metadata, str(lane)).cut
                except KafkaException:
                    continue
            if now != self.taken:
                self.taken = now
                self._moved()
        for consumer in consumers.values():
            consumer.close()

    def _outputs(self) -> None:
        """Follow the topics of results; late and dead-letter records arrive with commits."""
        world = self._world
        consumer = Consumer(
            {
                **world.client,
                "group.id": f"watch-{world.prefix}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "reconnect.backoff.max.ms": 500,
            }
        )
        known: set[tuple[str, int]] = set()
        looked = 0.0
        names = {*world.sinks, f"{world.stem}.late", f"{world.stem}.dead"}
        while not self._stop.is_set():
            if time.monotonic() - looked > 2.0:
                looked = time.monotonic()
                with contextlib.suppress(KafkaException):
                    topics = consumer.list_topics(timeout=2).topics
                    found = {(n, p) for n in names if n in topics for p in topics[n].partitions}
                    if new := found - known:
                        consumer.incremental_assign([TopicPartition(n, p, 0) for n, p in sorted(new)])
                        known |= new
            if not known:
                self._stop.wait(0.2)
                continue
            came = [message for message in consumer.consume(5000, 0.1) if message.error() is None]
            if came:
                self.seen += len(came)
                self._moved()
        consumer.close()

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(20)
