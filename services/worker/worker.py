"""A worker: runs one query's tasks, by one version of its plan after the other. Entry: `Worker.run`.

Each version has a Faust app of its own (`services.worker.plan_runner`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from aiokafka.errors import KafkaError

from operators.distributed.rows_windows import counted_windows
from operators.plan.choose import choose_plan
from operators.plan.plan import parse_plan
from operators.spill.worker_memory import WorkerMemory
from schemas import refusals
from schemas.codecs.encode import check_output_names
from schemas.errors import BrokerError, StateError, UsageError, WeirError
from schemas.query import Query
from services.control.barrier import View
from services.control.control_log import ControlLog
from services.control.feedback_log import FeedbackLog
from services.control.plan_versions import PlanVersion, PlanVersions
from services.control.predecessor import Predecessor
from services.files.tables import Tables
from services.formats.decoders import Decoders
from services.formats.encoders import Encoders
from services.kafka.topics import OutputTopics, Refused, TopicAdmin
from services.placement.distributed import DistributedLayout
from services.placement.partition_growth import PartitionGrowth
from services.placement.tasks import Layout, check_partition_by, lay_out
from services.process import memory
from services.process.fingerprint import fingerprint
from services.process.logs import get_log
from services.process.metrics import WorkerMetrics
from services.process.settings import Guarantee, Placement, Start, WorkerSettings
from services.process.tracing import open_traces
from services.program.distributed_migrations import missing_reports
from services.recovery.committed_offsets import read_commits
from services.recovery.state_dir import StateDir
from services.registry.group_watch import GroupWatch
from services.spill.budget import prepare_memory
from services.task.spec import GroupWork, TaskSpec, streams_by_topic
from services.worker.connection import Connection
from services.worker.membership import Membership
from services.worker.plan_runner import PlanRunner, WorkerParts
from services.worker.preparation import Failed, Preparation
from services.worker.task_opener import ActivePlan
from services.worker.web import Pages

T = TypeVar("T")

CONTROL_S = 60.0
"""How long reading the control topic may take at the start."""

FORGOTTEN_S = 5.0
"""For how long Kafka may show older commits of a plan version that is over."""

AGAIN_S = 1.0
"""Pause before Kafka is asked again which plan is in force."""

ENDING_S = 0.05
"""How often the worker looks whether the threads of tasks have ended, before tasks begin anew."""


class Worker:
    """Runs one query until it is stopped.

    Args:
        accept_loss: continue where Kafka's retention has deleted input that is still needed.
        tables: the query's reference tables.
        decoders: of the streams' records.
        encoders: of the results.
        pages: where the worker reports what it waits for; by default nothing serves them.
        group: run the queries of a registered group; `query` then stands for what the group reads.
    """

    def __init__(
        self,
        query: Query,
        settings: WorkerSettings,
        accept_loss: bool = False,
        tables: Tables | None = None,
        pages: Pages | None = None,
        *,
        group: bool = False,
        decoders: Decoders | None = None,
        encoders: Encoders | None = None,
    ) -> None:
        """Check everything that can be checked without a broker.

        Raises:
            UsageError: the query cannot run as a service, or the plan is wrong.
        """
        self._decoders = decoders or Decoders()
        self._encoders = encoders or Encoders()
        for stream in query.streams():
            self._decoders.records_of(stream)
        if group:
            refusals.check(None, refusals.GROUP, *settings.refusable())
        else:
            _check_query(query)
            _check_start(query, settings)
            self._encoders.check(query)
            if len(query.sources) == 1:
                settings = replace(settings, placement=Placement.FUSED)  # it has one operator
            refusals.check(query, *settings.refusable())
        self._log = get_log("worker", query=query.name, group=settings.group)
        if _records_between_tasks(query, settings) and not settings.transactional:
            self._log.info("tasks record in transactions what they tell each other: results come exactly once")
            settings = replace(settings, guarantee=Guarantee.EXACTLY_ONCE)
        self._plan = parse_plan(settings.plan, query) if settings.plan else None
        if settings.placement is Placement.PER_OPERATOR:
            if settings.budget is not None:
                shared = WorkerMemory(settings.budget.limit_bytes)
                settings = replace(settings, budget=replace(settings.budget, shared=shared))
            # Every worker must distribute the same plan.
            self._plan = self._plan or choose_plan(query)
        if settings.adapt is not None and (why := _not_adapted(settings, group=group)):
            self._log.info("the plan is not adapted", reason=why)
            settings = replace(settings, adapt=None)
        self._query = query
        self._group = group
        self._watch: GroupWatch | None = None
        self._settings = settings
        self._accept_loss = accept_loss
        self._tables = tables or Tables()
        self._admin = TopicAdmin(settings.clients)
        self._metrics = WorkerMetrics(query.name)
        self._traces = open_traces(query.name)
        self._pages = pages or Pages()
        self._pages.query, self._pages.metrics = query.name, self._metrics
        self._snapshot_thread = ThreadPoolExecutor(1, "snapshot")
        self._state: StateDir | None = None
        self._spilled: StateDir | None = None
        self._versions: PlanVersions | None = None
        self._partitions: dict[str, int] = {}
        self._first_counts: dict[str, int] = {}
        self._control: ControlLog | None = None
        self._preparation: Preparation | None = None
        self._scratch = Path()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._stopped = threading.Event()

    def run(self) -> None:
        """Run until SIGTERM, SIGINT or a failure.

        Raises:
            WeirError: why the worker could not continue.
        """
        counts = self._partitions = self._first_counts = self._inputs()
        if not self._group:
            self._register_results()
        if self._stopped.is_set():
            return
        self._pages.waits_for("its control topic")
        lay_out(self._query, counts)
        topics_of_group = self._admin.control(self._settings.group, self._settings.replication)
        if self._settings.state_dir is not None:
            self._state = StateDir(self._settings.state_dir)
        if self._settings.placement is Placement.PER_OPERATOR and self._plan is not None:
            self._versions = PlanVersions(self._query, self._plan, self._settings, counts)
        if self._settings.spill_dir is not None:
            self._spilled = StateDir(self._settings.spill_dir)
        if self._settings.budget is None:
            memory.prepare()
        else:
            prepare_memory()
        name = f"{self._settings.client_id}-{self._settings.group}"
        self._control = ControlLog(self._settings.clients, topics_of_group.control, name).start()
        try:
            self._check_formats(counts)
            # A thread that Kafka keeps waiting may still write there.
            with tempfile.TemporaryDirectory(prefix="weir-", ignore_cleanup_errors=True) as scratch:
                asyncio.run(self._main(Path(scratch)))
        finally:
            self._control.close()
            if self._watch is not None:
                self._watch.close()
            self._snapshot_thread.shutdown()
            for folder in (self._state, self._spilled):
                if folder is not None:
                    folder.release()
            self._traces.close()
        if self._failure is not None:
            raise self._failure

    def _check_formats(self, counts: Mapping[str, int]) -> None:
        """Check that no newer Weir has written in the group, before this worker joins it.

        Raises:
            NewerFormatError: a newer Weir has.
            StateError: another program commits in this group.
            BrokerError: Kafka does not answer.
        """
        assert self._control is not None
        view = self._control.read_to_end(CONTROL_S)
        group = self._settings.group
        if self._versions is not None:
            group = self._versions.version(self._versions.current(view), view).group
        lanes = [(topic, number) for topic, count in counts.items() for number in range(count)]
        read_commits(self._settings.clients, group, lanes)

    def _inputs(self) -> dict[str, int]:
        """Partition counts of the input topics, once Kafka knows them; meaningless if the worker is stopped
        meanwhile."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stopped.set())
        settings, topics = self._settings, [stream.topic for stream in self._query.streams()]
        try:
            return self._admin.inputs(
                topics, settings.wait, settings.patience_ms, self._stopped.wait, self._pages.waits_for
            )
        except BrokerError:
            if self._stopped.is_set():
                return {}
            raise

    def _register_results(self) -> None:
        """Register the schema of the results, if their format has one, as soon as the registry answers; not if the
        worker is stopped meanwhile.

        Raises:
            UsageError: the registry refuses the schema.
        """
        if self._query.result_format.has_schema:
            self._pages.waits_for("the schema registry")
        told = ""
        while not self._stopped.is_set():
            try:
                return self._encoders.prepare(self._query)
            except BrokerError as error:
                if str(error) != told:
                    told = str(error)
                    self._log.warning("the schema of the results is not registered yet, trying again", reason=told)
            self._stopped.wait(AGAIN_S)

    async def _main(self, scratch: Path) -> None:
        """Run the plan in force over all partitions that exist. A distributed query runs one plan version after the
        other (`services.control.plan_versions`)."""
        loop = self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        if self._stopped.is_set():
            self._stop.set()
        self._scratch = scratch
        if self._versions is not None:
            self._preparation = Preparation(self._versions, self._prepare, self._discard, self._fail, self._log)
        next_id = ""
        try:
            for turn in itertools.count():
                if self._stop.is_set():
                    return
                runner = await self._take_over(next_id) or await self._next_runner(patient=turn > 0)
                self._pages.runs(runner.task_manager)
                try:
                    next_id = await self._until_stopped(runner)
                finally:
                    await self._end(runner)
                # The next runner's tasks would find the state tables locked, and do without them.
                while runner.task_manager.has_threads and not self._stop.is_set():
                    self._pages.waits_for("the threads of its former tasks to end")
                    await asyncio.sleep(ENDING_S)
                if not self._stop.is_set():
                    self._pages.waits_for("tasks to begin anew")
        finally:
            if self._preparation is not None:
                await self._preparation.close()

    async def _end(self, runner: PlanRunner) -> None:
        self._pages.waits_for("open epochs to be delivered", "stopping")
        self._log.info("worker stopping")
        await runner.stop()
        if self._state is not None:
            self._state.remember_member("")
        self._log.info("worker stopped")

    async def _start(self, active: ActivePlan) -> PlanRunner:
        """Start to run a version, and return its runner.

        Raises:
            BrokerError: Kafka does not answer.
        """
        version = active.plan_version
        follows = version is not None and version.prepared

        def load() -> tuple[Predecessor | None, FeedbackLog | None]:
            predecessor, feedback = self._companions(active, self._fail, follows=follows)
            if predecessor is not None and not predecessor.wait_until_over(FORGOTTEN_S):
                predecessor = None  # it ended so long ago that Kafka has forgotten its commits
            return predecessor, feedback

        predecessor, feedback = await self._in_thread(load)
        runner = PlanRunner(self._parts(), active, self._scratch_folder(), self._fail, feedback, predecessor)
        runner.start()
        return runner

    def _companions(
        self, active: ActivePlan, fail: Failed, *, follows: bool
    ) -> tuple[Predecessor | None, FeedbackLog | None]:
        """Start what a runner needs beside the version itself: what follows the former version, where it `follows`
        that, and the reader of the feedback topic. Blocks.

        Raises:
            BrokerError: Kafka does not answer.
        """
        control, versions, version = self._control, self._versions, active.plan_version
        assert control is not None
        with contextlib.ExitStack() as undo:
            predecessor = None
            if follows:
                assert versions is not None
                assert version is not None
                predecessor = Predecessor(versions, version, lambda: control.view, self._on_loop(fail)).start()
                undo.callback(predecessor.close)
            feedback = self._feedback_log(active)
            undo.pop_all()
        return predecessor, feedback

    def _on_loop(self, fail: Failed) -> Failed:
        """`fail`, for callers in other threads."""
        loop = self._loop
        assert loop is not None

        def report(error: BaseException) -> None:
            loop.call_soon_threadsafe(fail, error)

        return report

    async def _in_thread(self, blocking: Callable[[], T]) -> T:
        assert self._loop is not None
        return await self._loop.run_in_executor(None, blocking)

    def _scratch_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._scratch))

    def _parts(self) -> WorkerParts:
        """What all versions share."""
        assert self._control is not None
        return WorkerParts(
            self._settings,
            self._control,
            self._admin,
            self._metrics,
            self._traces,
            self._state,
            self._spilled,
            self._snapshot_thread,
            self._accept_loss,
            self._versions,
            self._preparation,
        )

    # --- Versions that are prepared -----------------------------------------------------------------

    async def _prepare(self, version: PlanVersion, failed: Failed) -> tuple[PlanRunner, Callable[[], bool]]:
        """Make the runner of a proposed version.

        Raises:
            WeirError: the version cannot be prepared.
        """

        def load() -> tuple[ActivePlan, Predecessor | None, FeedbackLog | None]:
            active = self._load(version)
            return active, *self._companions(active, failed, follows=True)

        active, predecessor, feedback = await self._in_thread(load)
        assert predecessor is not None
        follower = predecessor
        runner = PlanRunner(
            self._parts(), active, self._scratch_folder(), failed, feedback, predecessor, in_force=False
        )
        return runner, lambda: follower.ready

    async def _discard(self, version: PlanVersion) -> None:
        """Delete what is left of a version that was not agreed on."""
        await self._in_thread(lambda: self._delete(version))

    def _delete(self, version: PlanVersion) -> None:
        """Delete the topics and this worker's tables of a version."""
        assert self._versions is not None
        with contextlib.suppress(BrokerError):
            self._admin.delete(self._versions.topics(version))
        if self._state is not None:
            self._state.forget(version.group)

    async def _take_over(self, id_: str) -> PlanRunner | None:
        """The runner of the version that a request has brought into force, if it was prepared here."""
        runner = None if self._preparation is None else await self._preparation.take_over(id_)
        if runner is not None and self._control is not None:
            number, view = runner.active.version, self._control.view
            self._control.append(*missing_reports(view, number))
            await self._in_thread(lambda: self._delete_older(number, view))
        return runner

    def _delete_older(self, number: int, view: View) -> None:
        """Delete what is left of the version before the one before this. A slower worker may still ask for the commits
        of the version before this one, but not of older ones."""
        if number > 1 and self._versions is not None:
            self._delete(self._versions.version(number - 2, view))

    async def _next_runner(self, patient: bool) -> PlanRunner:
        """Start to run the plan that is in force.

        Args:
            patient: try again while Kafka does not answer; for a worker that has already run a plan.

        Raises:
            BrokerError: Kafka does not answer.
        """
        assert self._stop is not None
        while True:
            try:
                active = self._load_plan()  # blocks: nothing else runs on the loop now
                id_ = "" if active.plan_version is None else active.plan_version.id
                return await self._take_over(id_) or await self._start(active)
            except BrokerError as error:
                if not patient or self._stop.is_set():
                    raise
                self._log.warning("tasks cannot begin anew, trying again", reason=str(error))
                await asyncio.sleep(AGAIN_S)

    def _load_plan(self) -> ActivePlan:
        """The plan to run now; creates the topics that it needs."""
        control, versions = self._control, self._versions
        assert control is not None
        if versions is None:
            return self._load(None)
        view = control.read_to_end(CONTROL_S)
        number = versions.current(view)
        found = self._load(versions.version(number, view))
        if number > 0:
            control.append(*missing_reports(view, number))
        self._delete_older(number, view)
        return found

    def _load(self, version: PlanVersion | None) -> ActivePlan:
        """Create the topics of a version of a distributed plan, or of a plan in one task."""
        settings = self._settings
        layout: Layout | DistributedLayout = lay_out(self._query, self._partitions)
        group, plan = settings.group, self._plan
        if version is not None and self._versions is not None:
            group, plan = version.group, version.plan
            layout = self._versions.layout(version)
            self._admin.internal(layout.internal, settings.replication)
        if settings.adapt is not None:
            self._admin.decisions(settings.group, settings.replication)
        if settings.budget is not None:
            self._admin.spills(group, layout.tasks, settings.replication)
        if any(stream.deduplicate for stream in self._query.streams()):
            self._admin.repeats(group, layout.tasks, settings.replication)
        if settings.transactional:
            self._admin.transactions(group, layout.tasks, settings.replication)
        keyed = bool(self._query.result_format.key)
        outputs = self._admin.outputs(
            self._query.name,
            self._query.sink or "",
            layout.sinks,
            settings.replication,
            max(layout.sinks, *self._partitions.values()) if keyed else None,
        )
        spec = TaskSpec(
            query=self._query,
            plan=plan,
            streams=streams_by_topic(self._query.streams()),
            fingerprint=fingerprint(self._query),
            cluster=self._admin.cluster_id(),
            topics=outputs,
            settings=settings,
            tables=self._tables,
            decoders=self._decoders,
            encoders=self._encoders,
            group=self._group_work(outputs, layout.sinks) if self._group else None,
        )
        number = 0 if version is None else version.number
        return ActivePlan(number, group, layout, spec, version, self._first_counts)

    def _feedback_log(self, active: ActivePlan) -> FeedbackLog | None:
        """Start to read the feedback topic of a distributed query; None if there is none."""
        settings, control = self._settings, self._control
        assert control is not None
        version = active.plan_version
        on_demand = version is not None and version.on_demand
        wanted = on_demand or settings.jit or settings.has_idle_timeout(self._query) or settings.budget is not None
        if self._versions is None or not wanted:
            return None
        topic = self._admin.feedback(active.group, settings.replication)
        return FeedbackLog(settings.clients, topic, f"{settings.client_id}-{active.group}", control).start()

    def _group_work(self, outputs: OutputTopics, tasks: int) -> GroupWork:
        """What the tasks of a group need. From here on the worker follows the registry."""
        settings = self._settings
        members = self._admin.members(settings.group, settings.replication)
        if self._watch is not None:
            self._watch.close()
        self._watch = GroupWatch(
            settings.clients, self._query, outputs, tasks, settings.replication, self._encoders
        ).start()
        return GroupWork(self._watch, members)

    async def _replaced(self, runner: PlanRunner) -> str:
        """The request for the plan that has taken over from this one; empty if none has. Kafka is asked only when all
        tasks of this worker have ended."""
        if self._versions is None or self._control is None:
            return ""
        view, versions, number = self._control.view, self._versions, runner.active.version
        if len(view.changes) <= number or not runner.task_manager.ended():
            return ""

        def has_taken_over() -> bool:
            return versions.over(number, view) or versions.begun(number + 1, view)

        try:
            over = await self._in_thread(has_taken_over)
        except BrokerError:
            return ""  # asked again soon
        return view.changes[number].id if over else ""

    async def _until_stopped(self, runner: PlanRunner) -> str:
        """Wait for a signal, a failed task, a crash of the app, another plan, new partitions or a group that does
        not answer.

        Meanwhile store this worker's member id, so that a later process can make it leave the group.

        Returns:
            The request for the plan that has taken over; empty if none has.
        """
        assert self._stop is not None
        assert self._control is not None
        stored_member, consumer, manager = "", runner.consumer, runner.task_manager
        connection = Connection(self._admin, self._settings, self._pages, self._log)
        membership = Membership(connection.ask)
        distributed = self._versions is not None
        growth = PartitionGrowth(self._admin, self._query, self._partitions, distributed=distributed, log=self._log)
        while not self._stop.is_set():
            try:
                async with asyncio.timeout(0.2):
                    await self._stop.wait()
            except TimeoutError:
                pass
            if (failure := runner.failure()) is not None:
                self._fail(failure)
            if self._preparation is not None:
                await self._preparation.look(self._control.view)
            for log in (self._control, self._watch):
                if log is not None and log.refused is not None:
                    self._fail(log.refused)
            try:
                connection.check(consumer.connected())
            except Refused as error:
                self._fail(error)
            generation = consumer.generation()
            member, _ = generation
            if self._state is not None and member and member != stored_member:
                self._state.remember_member(member)
                stored_member = member
            assigned = manager.generation == generation and not consumer.is_joining()
            if membership.is_lost(assigned, generation):
                self._log.warning("the consumer group does not answer, joining anew")
                self._log.info("state of the membership before", client=consumer.describe_membership())
                return ""
            if next_id := await self._replaced(runner):
                self._log.info("another plan takes over", version=runner.active.version + 1)
                return next_id
            try:
                if (found := growth.check(manager.assignment_count)) is not None:
                    self._partitions = found
                    return ""
            except StateError as error:
                self._fail(error)
        return ""

    def _fail(self, error: BaseException) -> None:
        """Stop the worker because of `error`; only the first error counts."""
        if self._failure is None:
            if isinstance(error, KafkaError):
                where = self._settings.clients.bootstrap
                error = BrokerError(f"the consumer has lost Kafka at {where} and cannot go on: {error!r}")
            elif not isinstance(error, WeirError):
                self._log.error("unexpected error", reason=f"{type(error).__name__}: {error}")
                sys.excepthook(type(error), error, error.__traceback__)
                error = _as_weir_error(error)
            self._failure = error
        if self._stop is not None:
            self._stop.set()


def _records_between_tasks(query: Query, settings: WorkerSettings) -> bool:
    """Whether the tasks of a distributed query tell each other what must be recorded together with results.

    That is what they withhold and what comes late, which no reader could tell from a repetition, and how many tuples
    they have counted.
    """
    distributed = settings.placement is Placement.PER_OPERATOR
    return distributed and (settings.jit or settings.budget is not None or bool(counted_windows(query)))


def _not_adapted(settings: WorkerSettings, *, group: bool) -> str:
    """Why no plan can be adapted with these settings; empty if one may."""
    if group:
        return "the queries of a group share an operator that has no join order"
    if settings.placement is Placement.PER_OPERATOR:
        return "each join runs in tasks of its own, and none of them sees all streams"
    return ""


def _check_query(query: Query) -> None:
    """Raise UsageError for a query that cannot run as a service."""
    if query.sink is None:
        raise UsageError("a worker needs to know where results go: begin the query with INSERT INTO 'topic'")
    check_output_names(query)
    check_partition_by(query)
    if query.sink in {stream.topic for stream in query.streams()}:
        raise UsageError(f"query writes to {query.sink!r}, which it also reads")


def _check_start(query: Query, settings: WorkerSettings) -> None:
    """Raise UsageError for a topic that would have to be read from its beginning and from its end."""
    tables = {stream.topic: stream for stream in query.streams() if stream.is_versioned}
    for stream in query.joined_streams():
        if settings.start is Start.LATEST and stream.topic in tables:
            raise UsageError(
                f"--from latest does not go with {stream} and {tables[stream.topic]} in one topic: a table's is read "
                "from its beginning"
            )


def _as_weir_error(error: BaseException) -> WeirError:
    failure = WeirError(f"worker stopped by {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
