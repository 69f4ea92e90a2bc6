"""Opens the tasks of a worker: decides what each runs, where it delivers, and where its input starts.

`assignments.TaskManager` calls a `TaskOpener` in threads. It takes a task over before it reads anything of the task:
the sink fences the former incarnation, and the task's `Opened` in the control log voids the promises of that
incarnation. Only then do the committed offsets decide where the task starts.
"""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path

from operators.data.statistics import EngineStatistics
from operators.distributed.feedback import has_feedback
from operators.distributed.query_statistics import as_query_statistics
from schemas.codecs.notice import Notice
from schemas.errors import BrokerError, StateError
from services.control.barrier import View
from services.control.control_log import ControlLog
from services.control.feedback_log import FeedbackLog
from services.control.plan_versions import PlanVersions
from services.control.task_statistics import Publisher
from services.delivery.sink import IdempotentSink, Repair, Sink
from services.delivery.transactional import TransactionalSink
from services.kafka.topics import ControlTopics, Lane, TopicAdmin
from services.placement.distributed import DistributedLayout, part_fingerprint
from services.placement.tasks import Layout
from services.process.logs import Log, get_log
from services.process.metrics import TaskMetrics, WorkerMetrics
from services.process.settings import Guarantee, Start
from services.program.distributed_migrations import DistributedMigrations
from services.program.group_members import GroupMembers
from services.program.group_program import GroupProgram
from services.program.migrations import TaskMigrations
from services.program.query_program import QueryProgram
from services.recovery.snapshots import SnapshotWriter
from services.recovery.starting_point import Committed, RecoveryPlan, Snapshot, plan_handover, plan_recovery
from services.recovery.state_dir import StateDir
from services.recovery.state_store import DamagedTableError, StateStore
from services.registry.member_log import known_members
from services.spill.spill_log import read_log
from services.task.context import TaskContext, make_lanes, partitions_of
from services.task.feedback import TaskFeedback
from services.task.notices import read_back
from services.task.program import TaskChanges, TaskProgram
from services.task.spec import CompletionCheck, GroupWork, TaskOutcome, TaskSpec, streams_by_topic
from services.task.spill import UNLIMITED, TaskSpill
from services.task.task import Task
from services.worker.assignments import task_log

STALE_S = 5.0
"""For how long Kafka may report an end of the input that lies before committed offsets."""


@dataclass(frozen=True, slots=True)
class ActivePlan:
    """The plan that a worker runs until it is stopped or another plan takes over.

    Attributes:
        version: of the plan; 0 is the worker's own (`services.control.plan_versions`).
        group: the consumer group of that version.
        spec: of the whole query.
    """

    version: int
    group: str
    layout: Layout | DistributedLayout
    spec: TaskSpec


class TaskOpener:
    """Opens tasks; called in threads.

    Args:
        active: the plan whose tasks are opened.
        state: the directory of snapshots; None to keep none.
        spilled: the directory of spilled state.
        snapshots: the executor that writes snapshots.
        versions: the plan versions of a distributed query, else None.
        commit: commits offsets as the group's member; only at-least-once delivery uses it.
        accept_loss: continue where Kafka's retention has deleted input that is still needed.

    Attributes:
        feedback: the feedback topic of a distributed query, if feedback is on; set before the first task is opened.
    """

    def __init__(
        self,
        active: ActivePlan,
        control: ControlLog,
        publisher: Publisher,
        admin: TopicAdmin,
        metrics: WorkerMetrics,
        state: StateDir | None,
        spilled: Path,
        snapshots: Executor,
        versions: PlanVersions | None,
        commit: Callable[[Mapping[Lane, tuple[int, str]]], bool],
        accept_loss: bool,
    ) -> None:
        self._active = replace(active, spec=replace(active.spec, trim=self._trim))
        self._control = control
        self._publisher = publisher
        self._admin = admin
        self._metrics = metrics
        self._state = state
        self._spilled = spilled
        self._snapshot_thread = snapshots
        self._versions = versions
        self._commit = commit
        self._accept_loss = accept_loss
        self.feedback: FeedbackLog | None = None
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
        if self._state is None or self._active.spec.group is not None or self._takes_part(number):
            return None
        names = [stream.name for stream in self._spec(number).query.streams()]
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
        spec = self._spec(number)
        sink = self._sink(spec, number, give_up)
        store: StateStore | None = None
        spill: TaskSpill | None = None
        incarnation = uuid.uuid4().hex[:12]
        try:
            self._note(number, sink.open())
            view = self._control.open(number, incarnation, 0 if spec.part is None else self._active.layout.tasks)
            store = self._store(number)
            log = task_log(self._active.spec.query.name, number)
            recovery = self._recovery(spec, number, sink, store)
            for note in recovery.notes:
                log.warning(note)
            log.info("task opening", source=recovery.source, epoch=recovery.epoch, records=recovery.records)
            metrics = self._metrics.of(str(number))
            interval_ms = self._active.spec.settings.snapshot_ms
            snapshots = SnapshotWriter(store, self._snapshot_thread, interval_ms, log, metrics)
            spill = self._spill(number, recovery, sink, log)
            feedback = self._feedback(spec, recovery, sink, metrics, log)
            operator_feedback = None if feedback is None else feedback.operator_feedback
            lanes = make_lanes(spec, recovery, log, operator_feedback)
            changes: TaskChanges
            program: TaskProgram
            if spec.group is not None:
                changes = members = self._members(spec, spec.group, number, recovery, sink, log)
                program = GroupProgram(spec, members, spill, recovery.cut, partitions_of(lanes))
            else:
                changes = migrations = self._migrations(spec, number, incarnation, recovery, view, log, metrics)
                program = QueryProgram(
                    spec,
                    migrations,
                    recovery.cut,
                    operator_feedback,
                    spill,
                    self._publish(spec, number, incarnation),
                    partitions_of(lanes),
                )
            context = TaskContext(
                spec, number, recovery, lanes, program, changes, sink, store, snapshots, log, metrics, feedback, spill
            )
            return Task(context, give_up, changed, ended)
        except BaseException:
            sink.close()
            if store is not None:
                store.close()
            if spill is not None:
                spill.close()
            raise

    def _spill(self, number: int, recovery: RecoveryPlan, sink: Sink, log: Log) -> TaskSpill | None:
        """The spilling of a task; None if it has no memory budget and no pending results."""
        settings, (first, following) = self._active.spec.settings, recovery.spilled
        if settings.budget is None and first == following:
            return None
        if not settings.transactional:
            raise StateError(
                f"task {number} has results that are still pending for lack of memory, which could come twice with "
                f"--guarantee {settings.guarantee}: run it with --guarantee {Guarantee.EXACTLY_ONCE}"
            )
        if settings.budget is None:
            log.warning("an earlier --memory left results pending: producing them now, without a memory limit")
        lane, budget = (ControlTopics.of(self._active.group).spills, number), settings.budget or UNLIMITED
        marked = sink.mark_end([lane])[lane] if first < following else 0
        events = read_log(settings.clients, lane, budget.groups, recovery.spilled, marked)
        return TaskSpill(budget, self._spilled / f"task-{number}", events)

    def _publish(self, spec: TaskSpec, number: int, incarnation: str) -> Callable[[EngineStatistics, int], None]:
        """A function that publishes a task's statistics. Those of one operator are published as the whole query's."""
        publish, whole, part = self._publisher.of(number, incarnation), self._active.spec, spec.part
        if part is None or whole.plan is None:
            return publish
        plan = whole.plan
        return lambda found, version: publish(as_query_statistics(found, part.operator, whole.query, plan), version)

    def _recovery(self, spec: TaskSpec, number: int, sink: Sink, store: StateStore | None) -> RecoveryPlan:
        """Where a task starts to read, and from which state."""
        lanes = self._active.layout.lanes(number)
        streams = {lane: _points(spec, lane) for lane in lanes}
        committed = sink.committed(lanes)
        log = self._ranges(lanes, committed)
        layout = self._active.layout
        internal = layout.internal_lanes(number) if isinstance(layout, DistributedLayout) else ()
        if self._versions is not None and self._active.version > 0 and not committed:
            handed = self._versions.handed_over(self._active.version - 1, self._control.view)
            former = {lane: found for lane, found in handed.items() if lane in lanes and lane not in internal}
            return plan_handover(
                streams=streams, former=former, version=self._active.version, log=log, accept_loss=self._accept_loss
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
            from_beginning=internal,
            tables=spec.tables.contents,
            emits_changes=bool(spec.query.subtracted) or spec.query.aggregation is not None,
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

    def _takes_part(self, number: int) -> bool:
        """Whether a task exchanges feedback with other tasks. Then its input alone does not determine its states, and
        it keeps no snapshots."""
        layout = self._active.layout
        placed = self.feedback is not None and isinstance(layout, DistributedLayout)
        return placed and has_feedback(layout.part(number).operator)

    def _feedback(
        self, spec: TaskSpec, recovery: RecoveryPlan, sink: Sink, metrics: TaskMetrics, log: Log
    ) -> TaskFeedback | None:
        """The feedback of a task; None if it exchanges none."""
        part = spec.part
        if self.feedback is None or part is None or not has_feedback(part.operator):
            return None
        notices: dict[int, list[Notice]] = {}
        for edge in part.operator.outputs:
            if edge.kinds:
                partitions = (part.share,) if edge.forward else range(edge.partitions)
                channel = 0 if edge.forward else part.share
                marked = sink.mark_end((edge.topic, partition) for partition in partitions)
                notices |= read_back(spec.settings.clients, edge, partitions, channel, marked)
        return TaskFeedback(part, self.feedback, notices, recovery.cut, metrics, log)

    def _migrations(
        self,
        spec: TaskSpec,
        number: int,
        incarnation: str,
        recovery: RecoveryPlan,
        view: View,
        log: Log,
        metrics: TaskMetrics,
    ) -> TaskMigrations | DistributedMigrations:
        """How a task takes part in plan changes."""
        if self._versions is not None and spec.plan is not None:
            return DistributedMigrations(
                query=self._active.spec.query,
                plan=spec.plan,
                version=self._active.version,
                task=number,
                tasks=self._active.layout.tasks,
                incarnation=incarnation,
                fingerprint=self._active.spec.fingerprint,
                objection=self._versions.objection,
                control=self._control,
                log=log,
                metrics=metrics,
            )
        return TaskMigrations(
            query=spec.query,
            own=spec.plan,
            task=number,
            tasks=self._active.layout.tasks,
            incarnation=incarnation,
            fingerprint=spec.fingerprint,
            recovery=recovery,
            control=self._control,
            view=view,
            log=log,
            metrics=metrics,
        )

    def _members(
        self, spec: TaskSpec, group: GroupWork, number: int, recovery: RecoveryPlan, sink: Sink, log: Log
    ) -> GroupMembers:
        """The queries that a task of a group runs."""
        known = None
        if recovery.source != "fresh":
            marked = sink.mark_end([(group.members, 0)]).get((group.members, 0), 0)
            known = known_members(spec.settings.clients, group.members, number, marked)
        idle = [s.name for s in spec.query.streams() if s.idle_timeout_ms is not None]

        def readable(offsets: Mapping[Lane, int]) -> bool:
            if idle or spec.settings.idle_timeout_ms is not None:
                return False
            first = self._admin.log_ranges(offsets)
            return all(max(at, recovery.lanes[lane].offset) >= first[lane][0] for lane, at in offsets.items())

        members = GroupMembers(number, group.members, known, lambda: group.watch.wanted or (), readable, log)
        for query in members.queries:
            # A query that was dropped while no worker ran it may still have pending results.
            if query.sink is not None and query.sink not in spec.topics.limits:
                self._admin.add_output(spec.topics, query.sink, self._active.layout.sinks, spec.settings.replication)
        return members

    def _spec(self, number: int) -> TaskSpec:
        """What one task runs: the whole query, or one operator of its plan."""
        whole, layout = self._active.spec, self._active.layout
        if isinstance(layout, Layout) or whole.plan is None:
            return whole
        part = layout.part(number)
        query = part.operator.query
        return replace(
            whole,
            query=query,
            plan=part.operator.plan,
            streams=streams_by_topic(query.streams()),
            fingerprint=part_fingerprint(whole.query, whole.plan, part.operator),
            part=part,
        )

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
        """The snapshot in the state table. A damaged table is emptied, with a warning."""
        if store is None:
            return None
        try:
            return store.snapshot()
        except StateError as error:
            self._metrics.of(str(number)).snapshot_failures.inc()
            self._log.warning("snapshot unusable, rebuilding from Kafka", task=number, reason=str(error))
            store.wipe()
            return None

    def _sink(self, spec: TaskSpec, number: int, give_up: threading.Event) -> Sink:
        settings = self._active.spec.settings
        if settings.guarantee is Guarantee.EXACTLY_ONCE:
            return TransactionalSink(
                settings.clients,
                self._active.group,
                number,
                spec.topics,
                give_up,
                settings.transaction_timeout_ms,
                self._admin,
                (ControlTopics.of(self._active.group).transactions, number),
                self._writes(spec, number),
            )
        return IdempotentSink(settings.clients, self._active.group, number, spec.topics, give_up, self._commit)


    def _writes(self, spec: TaskSpec, number: int) -> Iterator[Lane]:
        """Partitions of internal topics that a task may write to; they need not exist."""
        yield ControlTopics.of(self._active.group).spills, number
        if spec.group is not None:
            yield spec.group.members, 0
        if spec.part is not None:
            for edge in spec.part.operator.outputs:
                yield from ((edge.topic, partition) for partition in range(edge.partitions))


def _points(spec: TaskSpec, lane: Lane) -> int:
    """How many replay points a partition has: one per stream that reads it, or per task that writes it."""
    given = None if spec.part is None else spec.part.input(lane[0])
    return len(spec.streams[lane[0]]) if given is None or given.edge is None else given.edge.channels
