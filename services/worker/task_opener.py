"""Opens the tasks of a worker: decides where each delivers its output and where its input starts, and builds its parts.

`services.worker.plan_runner` makes a `TaskOpener` per plan. `task_manager.TaskManager` calls it in threads. It takes a
task over before it reads anything of the task: the sink fences the former incarnation, and the task's `Opened` in the
control log voids the promises of that incarnation. Only then do the committed offsets decide where the task starts.
"""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from schemas.columns import I64
from schemas.errors import BrokerError, StateError
from services.control.control_log import ControlLog
from services.control.plan_versions import PlanVersion
from services.delivery.repeats_log import KnownRepeats, RepeatsLog, joined, read_repeats
from services.delivery.sink import IdempotentSink, Repair, Sink
from services.delivery.transactional import TransactionalSink
from services.kafka.topics import ControlTopics, Lane, TopicAdmin
from services.placement.distributed import DistributedLayout
from services.placement.tasks import Layout
from services.process.logs import Log, get_log
from services.process.metrics import WorkerMetrics
from services.process.settings import Guarantee, Start
from services.process.tracing import Traces
from services.recovery.snapshots import SnapshotWriter
from services.recovery.starting_point import Committed, RecoveryPlan, Snapshot, plan_handover, plan_recovery
from services.recovery.state_dir import StateDir
from services.recovery.state_store import DamagedTableError, StateStore
from services.spill.spill_log import read_log
from services.task.context import TaskContext
from services.task.program import TaskEngine
from services.task.spec import CompletionCheck, TaskOutcome, TaskSpec
from services.task.spill import UNLIMITED, SpillStart
from services.task.task import Task
from services.worker.task_kind import TaskKind, TaskStart
from services.worker.task_manager import task_log

STALE_S = 5.0
"""For how long Kafka may report an end of the input that lies before committed offsets."""


@dataclass(frozen=True, slots=True)
class ActivePlan:
    """The plan that a worker runs until it is stopped or another plan takes over.

    Attributes:
        version: of the plan; 0 is the worker's own (`services.control.plan_versions`).
        group: the consumer group of that version.
        spec: of the whole query.
        plan_version: of a distributed query; None for any other.
        first_counts: partition counts of the input topics when the worker started.
    """

    version: int
    group: str
    layout: Layout | DistributedLayout
    spec: TaskSpec
    plan_version: PlanVersion | None = None
    first_counts: Mapping[str, int] = field(default_factory=dict)

    def added(self, lanes: Iterable[Lane]) -> list[Lane]:
        """The partitions that were added while the worker ran."""
        counts = self.first_counts
        return [(topic, number) for topic, number in lanes if topic in counts and number >= counts[topic]]


class TaskOpener:
    """Opens tasks; called in threads.

    Args:
        active: the plan whose tasks are opened.
        kind: builds what a task runs.
        state: the directory of snapshots; None to keep none.
        spilled: the directory of spilled state.
        snapshots: the executor that writes snapshots.
        commit: commits offsets as the group's member; only at-least-once delivery uses it.
        accept_loss: continue where Kafka's retention has deleted input that is still needed.
        traces: of the worker.
    """

    def __init__(
        self,
        active: ActivePlan,
        kind: TaskKind,
        control: ControlLog,
        admin: TopicAdmin,
        metrics: WorkerMetrics,
        state: StateDir | None,
        spilled: Path,
        snapshots: Executor,
        commit: Callable[[Mapping[Lane, tuple[int, str]]], bool],
        accept_loss: bool,
        traces: Traces,
    ) -> None:
        self._active = active
        self._kind = kind
        self._control = control
        self._admin = admin
        self._metrics = metrics
        self._state = state
        self._spilled = spilled
        self._snapshot_thread = snapshots
        self._commit = commit
        self._accept_loss = accept_loss
        self._traces = traces
        self._log = get_log("worker", query=active.spec.query.name, group=active.group)

    def wipe(self, number: int) -> None:
        """Empty a task's state table."""
        store = self._store(number)
        if store is not None:
            try:
                store.wipe()
            except StateError as error:
                self._log.error("state table cannot be emptied", task=number, reason=str(error))
            store.close()

    def _store(self, number: int) -> StateStore | None:
        if self._state is None or not self._kind.keeps_snapshots(number):
            return None
        names = [stream.name for stream in self._kind.spec(number).query.streams()]
        path = self._state.table(self._active.group, number)
        try:
            try:
                return StateStore(path, names)
            except DamagedTableError as error:
                self._metrics.of(str(number)).snapshot_failures.inc()
                self._log.warning("snapshot unusable, rebuilding from Kafka", task=number, reason=str(error))
                shutil.rmtree(path, ignore_errors=True)
                return StateStore(path, names)
        except StateError as error:
            self._metrics.of(str(number)).snapshot_failures.inc()
            self._log.error("no snapshots: continuing without a disk", task=number, reason=str(error))
            return None

    def __call__(
        self,
        number: int,
        give_up: threading.Event,
        ended: Callable[[Task, TaskOutcome], None],
        changed: Callable[[], None],
    ) -> Task:
        """Take a task over and plan its recovery. Blocking.

        Args:
            give_up: set when the task is no longer wanted.
            ended: called by the task's thread when it ends.
            changed: called when the task has room for input again.

        Raises:
            WeirError: the task cannot run, or not now (BrokerError).
        """
        spec = self._kind.spec(number)
        incarnation = uuid.uuid4().hex[:12]
        log = task_log(self._active.spec.query.name, number)
        metrics = self._metrics.of(str(number))
        with ExitStack() as resources:
            sink = self._sink(spec, number, give_up)
            resources.callback(sink.close)
            self._note(number, sink.open())
            view = self._control.view
            if self._kind.takes_part:
                view = self._control.open(number, incarnation, 0 if spec.part is None else self._active.layout.tasks)
            store = self._store(number)
            if store is not None:
                resources.callback(store.close)
            recovery = self._recovery(spec, number, sink, store)
            for note in recovery.notes:
                log.warning(note)
            log.info("task opening", source=recovery.source, epoch=recovery.epoch, records=recovery.records)
            snapshots = SnapshotWriter(store, self._snapshot_thread, spec.settings.snapshot_ms, log, metrics)
            spilled = self._spill_start(number, recovery, sink, log)
            if spilled is not None:
                resources.callback(spilled.close)
            repeats = self._known_repeats(spec, number, recovery, sink)
            start = TaskStart(number, spec, incarnation, recovery, view, sink, spilled, log, metrics, resources)
            parts = self._kind.build(start)
            context = TaskContext(
                spec,
                number,
                recovery,
                parts.lanes,
                parts.program,
                parts.changes,
                sink,
                store,
                snapshots,
                log,
                metrics,
                parts.feedback,
                parts.spill,
                parts.silence,
                parts.predecessor,
                self._trim,
                self._traces.of(number),
                self._resumed(repeats, number, parts.program.engine, sink),
            )
            task = Task(context, give_up, changed, ended)
            resources.pop_all()  # the task closes them when it ends
            return task

    def _spill_start(self, number: int, recovery: RecoveryPlan, sink: Sink, log: Log) -> SpillStart | None:
        """What spilling starts with; None if the task has no memory budget and no pending results."""
        settings, (first, following) = self._active.spec.settings, recovery.spilled
        if (settings.budget is None and first == following) or not self._kind.spills(number):
            return None
        if settings.budget is None:
            log.warning("an earlier --memory left results pending: producing them now, without a memory limit")
        lane, budget = (ControlTopics.of(self._active.group).spills, number), settings.budget or UNLIMITED
        marked = sink.mark_end([lane]).get(lane, 0) if first < following else 0
        events = read_log(
            settings.clients,
            lane,
            budget.groups,
            recovery.spilled,
            marked,
            former=recovery.incarnation,
            writer=self._writer(sink),
        )
        return SpillStart(budget, self._spilled / f"task-{number}", events)

    def _known_repeats(self, spec: TaskSpec, number: int, recovery: RecoveryPlan, sink: Sink) -> KnownRepeats | None:
        """What earlier incarnations, or tasks of the former plan, have found to be repeats; None for a task whose
        streams may have them."""
        streams = [stream for stream in spec.query.streams() if stream.deduplicate]
        if not streams:
            return None
        clients = spec.settings.clients
        if recovery.source != "handover":
            lane, writer = self._repeats_lane(number), self._writer(sink)
            marked = sink.mark_end([lane]).get(lane, 0) if recovery.repeats[0] < recovery.repeats[1] else 0
            known = read_repeats(clients, lane, recovery.repeats, marked, former=recovery.incarnation, writer=writer)
            return replace(known, until={stream.name: recovery.cut for stream in streams})
        parts: list[Mapping[str, I64]] = []
        until: dict[str, int] = {}
        for stream in streams:
            own = [lane for lane in recovery.lanes if lane[0] == stream.topic and lane in recovery.former]
            for task in {one.repeats: one for one in map(self._kind.former_task, own)}.values():
                commits = [recovery.former[lane].message for lane in task.lanes if lane in recovery.former]
                newest = max(commits, key=lambda commit: commit.epoch)
                try:
                    known = read_repeats(clients, task.repeats, newest.repeats, former=newest.incarnation)
                except StateError as error:
                    # The former plan may still run, and delete what it needs no more.
                    raise BrokerError(str(error)) from None
                parts.append({name: found for name, found in known.positions.items() if name == stream.name})
                until[stream.name] = min(newest.cut, until.get(stream.name, newest.cut))
        return KnownRepeats(joined(iter(parts)), until, own=False)

    def _resumed(self, known: KnownRepeats | None, number: int, engine: TaskEngine, sink: Sink) -> RepeatsLog | None:
        """Restore in a new engine what is known to be repeats; returns the log to continue."""
        if known is None:
            return None
        engine.record_repeats()
        for stream, until in known.until.items():
            engine.resume_repeats(stream, known.positions.get(stream, np.zeros(0, np.int64)), until)
        return RepeatsLog(self._repeats_lane(number), known, self._writer(sink))

    def _repeats_lane(self, number: int) -> Lane:
        return ControlTopics.of(self._active.group).repeats, number

    def _writer(self, sink: Sink) -> str:
        """How records of a task's logs name their writer; see `services.delivery.numbered_records`."""
        return "" if self._active.spec.settings.transactional else sink.incarnation

    def _recovery(self, spec: TaskSpec, number: int, sink: Sink, store: StateStore | None) -> RecoveryPlan:
        """Where a task starts to read, and from which state."""
        lanes = self._active.layout.lanes(number)
        streams = {lane: _points(spec, lane) for lane in lanes}
        committed = sink.committed(lanes)
        log = self._ranges(lanes, committed)
        topic_ids = self._admin.topic_ids({topic for topic, _ in lanes})
        former = None if committed else self._kind.former_commits(number)
        if former is not None:
            return plan_handover(
                streams=streams,
                former=former,
                version=self._active.version,
                log=log,
                accept_loss=self._accept_loss,
                topic_ids=topic_ids,
            )
        return plan_recovery(
            streams=streams,
            fingerprint=spec.fingerprint,
            cluster=spec.cluster,
            committed=committed,
            snapshot=self._snapshot(store, number),
            log=log,
            from_latest=self._active.spec.settings.start is Start.LATEST,
            accept_loss=self._accept_loss,
            from_beginning=[
                *self._kind.internal_input(number),
                *_of_tables(spec, lanes),
                *self._active.added(lanes),
            ],
            tables=spec.tables.contents,
            emits_changes=bool(spec.query.subtracted) or spec.query.aggregation is not None,
            topic_ids=topic_ids,
        )

    def _ranges(self, lanes: Sequence[Lane], committed: Mapping[Lane, Committed]) -> dict[Lane, tuple[int, int]]:
        """First and next offset of each partition in Kafka.

        A broker that its peers have cut off reports for some seconds an end that lies before committed offsets. Then it
        is asked again, for at most STALE_S.
        """
        deadline = time.monotonic() + STALE_S
        while True:
            log = self._admin.log_ranges(lanes)
            if all(at.offset <= log[lane][1] for lane, at in committed.items()) or time.monotonic() > deadline:
                return log
            time.sleep(0.1)

    def _note(self, number: int, repair: Repair) -> None:
        """Log and count that Kafka had not ended the task's last transaction on every partition."""
        if not repair:
            return
        metrics, log = self._metrics.of(str(number)), task_log(self._active.spec.query.name, number)
        metrics.repairs.inc()
        metrics.repaired.inc(sum(repair.records.values()))
        lanes = {*repair.ended, *repair.records}
        log.warning(
            "Kafka had ended a transaction in some places only: completed",
            records=sum(repair.records.values()),
            commits=repair.commits,
            partitions=", ".join(f"{topic}[{partition}]" for topic, partition in sorted(lanes)),
        )

    def _trim(self, settled: CompletionCheck, offsets: Mapping[Lane, int]) -> None:
        """Delete input that no recovery reads, in another thread. Nothing is deleted while Kafka has not completed the
        last commit, since a recovery might then start before it."""

        def trim() -> None:
            try:
                needless = settled()
            except BrokerError:
                return  # asked again with the next call
            if needless is not None:
                self._admin.trim({**offsets, **needless})

        self._snapshot_thread.submit(trim)

    def _snapshot(self, store: StateStore | None, number: int) -> Snapshot | None:
        """The snapshot in the state table, rolled back to it. A damaged table is emptied, with a warning."""
        if store is None:
            return None
        try:
            return store.roll_back()
        except StateError as error:
            self._metrics.of(str(number)).snapshot_failures.inc()
            self._log.warning("snapshot unusable, rebuilding from Kafka", task=number, reason=str(error))
            store.wipe()
            return None

    def _sink(self, spec: TaskSpec, number: int, give_up: threading.Event) -> Sink:
        settings, topics = self._active.spec.settings, ControlTopics.of(self._active.group)
        if settings.guarantee is Guarantee.EXACTLY_ONCE:
            return TransactionalSink(
                settings.clients,
                self._active.group,
                number,
                spec.topics,
                give_up,
                settings.transaction_timeout_ms,
                self._admin,
                (topics.transactions, number),
                [(topics.spills, number), self._repeats_lane(number), *self._kind.internal_output(number)],
            )
        return IdempotentSink(settings.clients, self._active.group, number, spec.topics, give_up, self._commit)


def _of_tables(spec: TaskSpec, lanes: Iterable[Lane]) -> list[Lane]:
    """The partitions of tables' topics, which are read from their beginning: a row may have changed long ago."""
    topics = {stream.topic for stream in spec.query.streams() if stream.is_versioned}
    return [lane for lane in lanes if lane[0] in topics]


def _points(spec: TaskSpec, lane: Lane) -> int:
    """How many replay points a partition has: one per stream that reads it, or per task that writes it."""
    edge = None if spec.part is None else spec.part.inputs(lane[0])[0].edge
    return len(spec.streams[lane[0]]) if edge is None else edge.channels
