"""Opens the tasks of a worker: what each runs, where it delivers, where it begins.

A task is taken over before anything is read of it: its sink fences whoever had it, its `Opened` in the control log
ends what that one promised, and only then do committed offsets say where it begins.
"""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from operators.data.statistics import EngineStatistics
from operators.distributed.feedback import takes_part
from operators.distributed.query_statistics import as_whole
from schemas.codecs.notice import Notice
from schemas.errors import BrokerError, StateError
from services.control.barrier import View
from services.control.control_log import ControlLog
from services.control.feedback_log import FeedbackLog
from services.control.plan_versions import Versions
from services.control.task_statistics import Publisher
from services.delivery.sink import IdempotentSink, Repair, Sink
from services.delivery.transactional import TransactionalSink
from services.kafka.topics import ControlTopics, Lane, TopicAdmin
from services.placement.distributed import PlacedLayout, part_fingerprint
from services.placement.tasks import Layout
from services.process.logs import Log, get_log
from services.process.metrics import TaskMetrics, WorkerMetrics
from services.process.settings import Guarantee, Start
from services.recovery.snapshots import SnapshotWriter
from services.recovery.starting_point import Committed, RecoveryPlan, Snapshot, plan_handover, plan_recovery
from services.recovery.state_dir import StateDir
from services.recovery.state_store import DamagedTableError, StateStore
from services.registry.member_log import known_members
from services.spill.spill_log import read_log
from services.task.distributed_migrations import PlacedMigrations
from services.task.feedback import TaskFeedback
from services.task.group_members import GroupMembers
from services.task.group_program import GroupProgram
from services.task.migrations import TaskMigrations
from services.task.notices import read_back
from services.task.query_program import Changes, Program, QueryProgram
from services.task.spec import GroupWork, Outcome, Settlement, TaskSpec, streams_by_topic
from services.task.spill import UNLIMITED, TaskSpill
from services.task.task import Task
from services.worker.assignments import task_log

STALE_S = 5.0
"""How long Kafka may tell an end of the input that commits are beyond already."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a worker runs until it is stopped, or another plan takes over; `spec` is of the whole query."""

    version: int
    group: str
    layout: Layout | PlacedLayout
    spec: TaskSpec


class TaskOpener:
    """Opens tasks; called in threads.

    Args:
        state: where snapshots live, None for nowhere.
        spilled: where what leaves memory goes.
        snapshots: what writes them.
        versions: of a query whose joins run apart, else None.
        commit: commits offsets as the group's member, for those who deliver at least once.
        accept_loss: go on where Kafka's retention has deleted input that is still needed.
    """

    def __init__(
        self,
        work: Work,
        control: ControlLog,
        publisher: Publisher,
        admin: TopicAdmin,
        metrics: WorkerMetrics,
        state: StateDir | None,
        spilled: Path,
        snapshots: Executor,
        versions: Versions | None,
        commit: Callable[[Mapping[Lane, tuple[int, str]]], bool],
        accept_loss: bool,
    ) -> None:
        self._work = replace(work, spec=replace(work.spec, trim=self._trim))
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
        self._log = get_log("worker", query=work.spec.query.name, group=work.group)

    def wipe(self, number: int) -> None:
        """Empty a task's table."""
        store = self._store(number)
        if store is not None:
            try:
                store.wipe()
            except StateError as error:
                self._log.error("state table cannot be emptied", task=number, reason=str(error))
            store.close()

    def _store(self, number: int) -> StateStore | None:
        if self._state is None or self._work.spec.group is not None or self._takes_part(number):
            return None
        names = [stream.name for stream in self._spec(number).query.streams()]
        path = self._state.table(self._work.group, number)
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
            self._log.error("no snapshots: going on without a disk", task=number, reason=str(error))
            return None

    def __call__(
        self,
        number: int,
        give_up: threading.Event,
        ended: Callable[[Task, Outcome], None],
        changed: Callable[[], None],
    ) -> Task:
        """Take a task over and plan how it begins. Blocking.

        Raises:
            WeirError: it cannot be run, or not now (BrokerError).
        """
        spec = self._spec(number)
        sink = self._sink(spec, number, give_up)
        store: StateStore | None = None
        spill: TaskSpill | None = None
        life = uuid.uuid4().hex[:12]
        try:
            self._note(number, sink.open())
            view = self._control.open(number, life, 0 if spec.part is None else self._work.layout.tasks)
            store = self._store(number)
            log = task_log(self._work.spec.query.name, number)
            recovery = self._recovery(spec, number, sink, store)
            for note in recovery.notes:
                log.warning(note)
            log.info("task opening", source=recovery.source, epoch=recovery.epoch, records=recovery.records)
            metrics = self._metrics.of(str(number))
            snapshots = SnapshotWriter(store, self._snapshot_thread, self._work.spec.settings.snapshot_ms, log, metrics)
            spill = self._spill(number, recovery, sink, log)
            feedback = self._feedback(spec, recovery, sink, metrics, log)
            changes: Changes
            program: Callable[[Mapping[str, Sequence[int]]], Program]
            if spec.group is not None:
                changes = members = self._members(spec, spec.group, number, recovery, sink, log)
                program = partial(GroupProgram, spec, members, spill, recovery.cut)
            else:
                changes = migrations = self._migrations(spec, number, life, recovery, view, log, metrics)
                placed = None if feedback is None else feedback.placed
                publish = self._publish(spec, number, life)
                program = partial(QueryProgram, spec, migrations, recovery.cut, placed, spill, publish)
            return Task(
                spec,
                number,
                recovery,
                changes,
                program,
                sink,
                store,
                snapshots,
                log,
                metrics,
                give_up,
                changed,
                ended,
                feedback,
                spill,
            )
        except BaseException:
            sink.close()
            if store is not None:
                store.close()
            if spill is not None:
                spill.close()
            raise

    def _spill(self, number: int, recovery: RecoveryPlan, sink: Sink, log: Log) -> TaskSpill | None:
        """What a task may spill, or has spilled and still owes."""
        settings, (first, following) = self._work.spec.settings, recovery.spilled
        if settings.budget is None and first == following:
            return None
        if not settings.transactional:
            raise StateError(
                f"task {number} still owes results that it had no memory for, which could come twice with --guarantee "
                f"{settings.guarantee}: run it with --guarantee {Guarantee.EXACTLY_ONCE}"
            )
        if settings.budget is None:
            log.warning("what was spilled under an earlier --memory is still owed: paying it, without a limit")
        lane, budget = (ControlTopics.of(self._work.group).spills, number), settings.budget or UNLIMITED
        marked = sink.mark_end([lane])[lane] if first < following else 0
        events = read_log(settings.clients, lane, budget.groups, recovery.spilled, marked)
        return TaskSpill(budget, self._spilled / f"task-{number}", events)

    def _publish(self, spec: TaskSpec, number: int, life: str) -> Callable[[EngineStatistics, int], None]:
        """Tells what a task knows of itself, in the words of the whole query."""
        publish, whole, part = self._publisher.of(number, life), self._work.spec, spec.part
        if part is None or whole.plan is None:
            return publish
        plan = whole.plan
        return lambda found, version: publish(as_whole(found, part.operator, whole.query, plan), version)

    def _recovery(self, spec: TaskSpec, number: int, sink: Sink, store: StateStore | None) -> RecoveryPlan:
        """Where a task begins."""
        lanes = self._work.layout.lanes(number)
        streams = {lane: _points(spec, lane) for lane in lanes}
        committed = sink.committed(lanes)
        log = self._ranges(lanes, committed)
        internal = self._work.layout.internal_lanes(number) if isinstance(self._work.layout, PlacedLayout) else ()
        if self._versions is not None and self._work.version > 0 and not committed:
            handed = self._versions.handed_over(self._work.version - 1, self._control.view)
            former = {lane: found for lane, found in handed.items() if lane in lanes and lane not in internal}
            return plan_handover(
                streams=streams, former=former, version=self._work.version, log=log, accept_loss=self._accept_loss
            )
        return plan_recovery(
            streams=streams,
            fingerprint=spec.fingerprint,
            cluster=spec.cluster,
            committed=committed,
            snapshot=self._snapshot(store, number),
            log=log,
            from_latest=self._work.spec.settings.start is Start.LATEST,
            accept_loss=self._accept_loss,
            whole=internal,
            tables=spec.tables.contents,
            changes=bool(spec.query.subtracted) or spec.query.aggregation is not None,
        )

    def _ranges(self, lanes: Sequence[Lane], committed: Mapping[Lane, Committed]) -> dict[Lane, tuple[int, int]]:
        """Where the input begins and ends. A broker that its peers have cut off tells for some seconds an end that
        commits are beyond already, so then it is asked again."""
        deadline = time.monotonic() + STALE_S
        while True:
            log = self._admin.log_ranges(lanes)
            if all(at.offset <= log[lane][1] for lane, at in committed.items()) or time.monotonic() > deadline:
                return log
            time.sleep(0.1)

    def _takes_part(self, number: int) -> bool:
        """Whether joins that run apart tell a task, or it them, what is not demanded. Then its states are not what its
        input alone makes them, and it keeps no snapshots."""
        layout = self._work.layout
        placed = self.feedback is not None and isinstance(layout, PlacedLayout)
        return placed and takes_part(layout.part(number).operator)

    def _feedback(
        self, spec: TaskSpec, recovery: RecoveryPlan, sink: Sink, metrics: TaskMetrics, log: Log
    ) -> TaskFeedback | None:
        """A task's part in feedback."""
        part = spec.part
        if self.feedback is None or part is None or not takes_part(part.operator):
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
        life: str,
        recovery: RecoveryPlan,
        view: View,
        log: Log,
        metrics: TaskMetrics,
    ) -> TaskMigrations | PlacedMigrations:
        """A task's part in plan changes."""
        if self._versions is not None and spec.plan is not None:
            return PlacedMigrations(
                query=self._work.spec.query,
                plan=spec.plan,
                version=self._work.version,
                task=number,
                tasks=self._work.layout.tasks,
                life=life,
                fingerprint=self._work.spec.fingerprint,
                objection=self._versions.objection,
                control=self._control,
                log=log,
                metrics=metrics,
            )
        return TaskMigrations(
            query=spec.query,
            own=spec.plan,
            task=number,
            tasks=self._work.layout.tasks,
            life=life,
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
        """Which queries a group's task runs."""
        known = None
        if recovery.source != "fresh":
            marked = sink.mark_end([(group.members, 0)]).get((group.members, 0), 0)
            known = known_members(spec.settings.clients, group.members, number, marked)
        idle = [s.name for s in spec.query.streams() if s.idle_timeout_ms is not None]

        def readable(places: Mapping[Lane, int]) -> bool:
            if idle or spec.settings.idle_timeout_ms is not None:
                return False
            first = self._admin.log_ranges(places)
            return all(max(at, recovery.lanes[lane].offset) >= first[lane][0] for lane, at in places.items())

        members = GroupMembers(number, group.members, known, lambda: group.watch.wanted or (), readable, log)
        for query in members.queries:
            # One that was dropped while nobody ran it may still be owed results.
            if query.sink is not None and query.sink not in spec.topics.limits:
                self._admin.add_output(spec.topics, query.sink, self._work.layout.sinks, spec.settings.replication)
        return members

    def _spec(self, number: int) -> TaskSpec:
        """What one task runs: the whole query, or a part of its plan."""
        whole, layout = self._work.spec, self._work.layout
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
        """Tell the operator that Kafka had not ended the task's transactions everywhere."""
        if not repair:
            return
        metrics, log = self._metrics.of(str(number)), task_log(self._work.spec.query.name, number)
        metrics.repairs.inc()
        metrics.repaired.inc(sum(repair.records.values()))
        places = {*repair.ended, *repair.records}
        log.warning(
            "Kafka had ended a transaction in some places only: completed",
            records=sum(repair.records.values()),
            commits=repair.commits,
            partitions=", ".join(f"{topic}[{partition}]" for topic, partition in sorted(places)),
        )

    def _trim(self, settled: Settlement, offsets: Mapping[Lane, int]) -> None:
        """Delete what no recovery reads, in another thread, unless a recovery may have to begin before the last
        commit: when Kafka has not completed it."""

        def trim() -> None:
            try:
                needless = settled()
            except BrokerError:
                return  # asked again with the next call
            if needless is not None:
                self._admin.trim({**offsets, **needless})

        self._snapshot_thread.submit(trim)

    def _snapshot(self, store: StateStore | None, number: int) -> Snapshot | None:
        """The table's snapshot; a damaged one is emptied, with a warning."""
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
        settings = self._work.spec.settings
        if settings.guarantee is Guarantee.EXACTLY_ONCE:
            return TransactionalSink(
                settings.clients,
                self._work.group,
                number,
                spec.topics,
                give_up,
                settings.transaction_timeout_ms,
                self._admin,
                (ControlTopics.of(self._work.group).transactions, number),
                self._writes(spec, number),
            )
        return IdempotentSink(settings.clients, self._work.group, number, spec.topics, give_up, self._commit)


    def _writes(self, spec: TaskSpec, number: int) -> Iterator[Lane]:
        """Partitions of internal topics that a task may write to; whether they are there is not said."""
        yield ControlTopics.of(self._work.group).spills, number
        if spec.group is not None:
            yield spec.group.members, 0
        if spec.part is not None:
            for edge in spec.part.operator.outputs:
                yield from ((edge.topic, partition) for partition in range(edge.partitions))


def _points(spec: TaskSpec, lane: Lane) -> int:
    """How many replay points a partition has: one per stream that reads it, or per task that writes it."""
    given = None if spec.part is None else spec.part.input(lane[0])
    return len(spec.streams[lane[0]]) if given is None or given.edge is None else given.edge.channels
