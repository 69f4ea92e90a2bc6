"""One real task in a task manager or alone, whose Kafka is the test's."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from faust.types import TP

from operators.engine.engine import Engine
from schemas.language.program import parse_program
from schemas.messages.commits import decode_commit
from schemas.messages.control import BarrierMessage
from services.control.barrier import View
from services.delivery.epoch_output import Delivery
from services.delivery.sink import Aborted, Repair
from services.kafka.topics import Lane, OutputTopics
from services.process.logs import get_log
from services.process.metrics import WorkerMetrics
from services.process.security import KafkaClients
from services.process.settings import Start, WorkerSettings
from services.program.migrations import PlanChanges, StartingPlan, TaskMigrations
from services.program.query_program import QueryProgram
from services.recovery.snapshots import SnapshotWriter
from services.recovery.starting_point import Committed, plan_recovery
from services.task.context import TaskContext, make_lanes, partitions_of
from services.task.spec import TaskOutcome, TaskSpec, streams_by_topic
from services.task.task import Task

(QUERY,) = parse_program("""
CREATE STREAM l (k BIGINT, at TIMESTAMP) WITH (topic = 'l', format = 'json', timestamp = 'at');
CREATE STREAM r (k BIGINT, at TIMESTAMP) WITH (topic = 'r', format = 'json', timestamp = 'at');
INSERT INTO 'out' SELECT A.k FROM l A [RANGE 10 SECONDS], r B [RANGE 10 SECONDS] WHERE A.k = B.k
""").queries
SETTINGS = WorkerSettings(KafkaClients("localhost:1"), "g", epoch_ms=10, commit_ms=20, patience_ms=500)
SPEC = TaskSpec(
    QUERY,
    None,
    streams_by_topic(QUERY.streams()),
    "f",
    "c",
    OutputTopics("out", "out.late", "out.dead", {}, {}),
    SETTINGS,
)
LANES: tuple[Lane, ...] = (("l", 0), ("r", 0))


class Quiet:
    """A control log in which nothing happens."""

    view = View()

    def append(self, *messages: BarrierMessage) -> None:
        """Nobody reads it."""


@dataclass(frozen=True)
class Row:
    """A record as aiokafka has it."""

    offset: int
    value: bytes
    key: bytes | None = None
    timestamp: int = 0


class Kafka:
    """Takes what tasks deliver, unless it stands still or refuses; and their group's consumer. `end` is that of each
    partition's log."""

    incarnation = "one"

    def __init__(self) -> None:
        self.open_ = threading.Event()
        self.open_.set()
        self.deliveries: list[Delivery] = []
        self.refuses = False
        self.offsets: dict[Lane, Committed] = {}
        self.end = 1_000
        self.give_up = threading.Event()

    # As a task's sink.

    def open(self) -> Repair:
        """Nobody else has the task."""
        return Repair()

    def completion_check(self) -> Callable[[], Mapping[Lane, int]]:
        """Nothing is ever left open."""
        return dict

    def committed(self, lanes: Iterable[Lane]) -> dict[Lane, Committed]:
        """What was committed."""
        return dict(self.offsets)

    def deliver(self, delivery: Delivery) -> Counter[str]:
        """Commit."""
        while not self.open_.wait(0.01):
            if self.give_up.is_set():
                raise Aborted("stopped")
        if self.refuses:
            raise Aborted("epoch not committed: not enough replicas")
        self.deliveries.append(delivery)
        for lane, (offset, metadata) in delivery.offsets.items():
            self.offsets[lane] = Committed(offset, decode_commit(metadata, str(lane)))
        return Counter()

    def close(self) -> None:
        """Nothing to close."""

    # As the consumer of the task manager.

    async def seek_to(self, positions: object) -> None:
        """The test reads."""

    async def rejoin(self) -> None:
        """It is in."""

    def generation(self) -> tuple[str, int]:
        """It has joined."""
        return "member", 1

    def caught_up_ms(self, tp: TP, offset: int) -> int | None:
        """Nothing is known."""
        return None


def open_task(
    kafka: Kafka,
    executor: Executor,
    metrics: WorkerMetrics,
    give_up: threading.Event,
    ended: Callable[[Task, TaskOutcome], None],
    changed: Callable[[], None] = lambda: None,
    changes: PlanChanges | None = None,
    engine: Engine | None = None,
    snapshots: SnapshotWriter | None = None,
    start: Start = Start.EARLIEST,
) -> Task:
    """A task of `SPEC` that goes on from what is committed; without `changes` nobody asks for any, without `snapshots`
    none are written. A given `engine` is fresh, and runs `QUERY`."""
    kafka.give_up = give_up
    context = make_context(kafka, executor, metrics, changes, engine, snapshots, start)
    return Task(context, give_up, changed, ended)


def make_context(
    kafka: Kafka,
    executor: Executor,
    metrics: WorkerMetrics,
    changes: PlanChanges | None = None,
    engine: Engine | None = None,
    snapshots: SnapshotWriter | None = None,
    start: Start = Start.EARLIEST,
) -> TaskContext:
    """What a task consists of; see `open_task`."""
    recovery = plan_recovery(
        streams=dict.fromkeys(LANES, 1),
        fingerprint="f",
        cluster="c",
        committed=kafka.committed(LANES),
        snapshot=None,
        log=dict.fromkeys(LANES, (0, kafka.end)),
        from_latest=start is Start.LATEST,
        accept_loss=False,
    )
    spec, log, own = replace(SPEC, settings=replace(SETTINGS, start=start)), get_log("test"), metrics.of("0")
    lanes = make_lanes(spec, recovery, log)
    engine = engine or Engine(QUERY, partitions=partitions_of(lanes), clock=time.monotonic)
    changes = changes or TaskMigrations(
        engine,
        StartingPlan(0, None),
        task=0,
        tasks=1,
        incarnation="incarnation",
        fingerprint="f",
        committed_cut=recovery.cut,
        control=Quiet(),
        view=View(),
        log=log,
        metrics=own,
    )
    program = QueryProgram(spec, spec.query, engine, changes, recovery.cut, lambda found, version: None)
    snapshots = snapshots or SnapshotWriter(None, executor, 10_000, log, own)
    return TaskContext(spec, 0, recovery, lanes, program, changes, kafka, None, snapshots, log, own)
