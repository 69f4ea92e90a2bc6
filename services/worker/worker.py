"""A worker: the Faust app that runs one query's tasks. Entry: `Worker.run`.

Faust provides the lifecycle, an agent per input topic, consumer group membership and rebalances. The transport delivers
whole fetches to the agents. The task manager turns assignments into tasks. Weir commits nothing through Faust, and uses
neither Faust's exactly-once mode nor its tables.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import faust
from aiokafka.errors import KafkaError
from faust.tables.manager import TableManager
from faust.types import TP

from operators.distributed.rows_windows import counted_windows
from operators.plan.choose import choose_plan
from operators.plan.plan import parse_plan
from schemas import refusals
from schemas.codecs.encode import check_output_names
from schemas.errors import BrokerError, StateError, UsageError, WeirError
from schemas.query import Query
from services.control.control_log import ControlLog
from services.control.feedback_log import FeedbackLog
from services.control.plan_versions import PlanVersions
from services.control.task_statistics import Publisher
from services.files.tables import Tables
from services.kafka.assignor import TaskAssignor
from services.kafka.records import RecordBatch
from services.kafka.topics import ControlTopics, OutputTopics, Refused, TopicAdmin
from services.kafka.transport import Consumer, Transport
from services.placement.distributed import DistributedLayout
from services.placement.partition_growth import METADATA_MS, PartitionGrowth
from services.placement.tasks import Layout, check_partition_by, lay_out
from services.process import memory
from services.process.decoders import decoder_of
from services.process.fingerprint import fingerprint
from services.process.logs import get_log
from services.process.metrics import WorkerMetrics
from services.process.settings import Guarantee, Placement, WorkerSettings
from services.program.distributed_migrations import missing_reports
from services.recovery.committed_offsets import read_commits
from services.recovery.state_dir import StateDir
from services.registry.group_watch import GroupWatch
from services.spill.budget import prepare_memory
from services.task.spec import GroupWork, TaskSpec, streams_by_topic
from services.worker.connection import Connection
from services.worker.group_tasks import GroupTasks
from services.worker.membership import Membership
from services.worker.operator_tasks import OperatorTasks
from services.worker.query_tasks import QueryTasks
from services.worker.task_kind import TaskKind
from services.worker.task_manager import TaskManager
from services.worker.task_opener import ActivePlan, TaskOpener
from services.worker.web import Pages

CONTROL_S = 60.0
"""How long reading the control topic may take at the start."""

AGAIN_S = 1.0
"""Pause before Kafka is asked again which plan is in force."""


class NoTables(TableManager):  # type: ignore[misc]
    """Faust's table manager without its pause. Faust waits a second before each start until all tables are declared,
    and no task starts before. Weir declares no tables."""

    async def on_start(self) -> None:
        """Start at once."""
        await self._update_channels()
        await self.recovery.start()


class WeirApp(faust.App):  # type: ignore[misc]
    """Faust's app, which ends the tasks before the consumer leaves the group.

    Attributes:
        task_manager: set before the app starts.
    """

    task_manager: TaskManager

    async def on_stop(self) -> None:
        """Deliver open epochs, then let Faust stop its consumer."""
        await self.task_manager.close()
        await super().on_stop()

    def _on_rebalance_when_stopped(self) -> None:
        """Do nothing. Faust would close aiokafka's consumer here from the wrong event loop. The consumer would then
        leave the group only when its session times out, and the other members would wait for it."""


class Worker:
    """Runs one query until it is stopped.

    Args:
        accept_loss: continue where Kafka's retention has deleted input that is still needed.
        tables: the query's reference tables.
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
    ) -> None:
        """Check everything that can be checked without a broker.

        Raises:
            UsageError: the query cannot run as a service, or the plan is wrong.
        """
        if group:
            refusals.check(None, refusals.GROUP, *settings.refusable())
        else:
            _check_query(query)
            if len(query.sources) == 1:
                settings = replace(settings, placement=Placement.FUSED)  # it has one operator
            refusals.check(query, *settings.refusable())
        self._log = get_log("worker", query=query.name, group=settings.group)
        if _records_between_tasks(query, settings) and not settings.transactional:
            self._log.info("tasks record in transactions what they tell each other: results come exactly once")
            settings = replace(settings, guarantee=Guarantee.EXACTLY_ONCE)
        self._plan = parse_plan(settings.plan, query) if settings.plan else None
        if settings.placement is Placement.PER_OPERATOR:
            # Every worker must distribute the same plan.
            self._plan = self._plan or choose_plan(query)
        self._query = query
        self._group = group
        self._watch: GroupWatch | None = None
        self._settings = settings
        self._accept_loss = accept_loss
        self._tables = tables or Tables()
        self._admin = TopicAdmin(settings.clients)
        self._metrics = WorkerMetrics(query.name)
        self._pages = pages or Pages()
        self._pages.query, self._pages.metrics = query.name, self._metrics
        self._snapshot_thread = ThreadPoolExecutor(1, "snapshot")
        self._state: StateDir | None = None
        self._spilled: StateDir | None = None
        self._versions: PlanVersions | None = None
        self._partitions: dict[str, int] = {}
        self._control: ControlLog | None = None
        self._failure: BaseException | None = None
        self._stop: asyncio.Event | None = None
        self._stopped = threading.Event()

    def run(self) -> None:
        """Run until SIGTERM, SIGINT or a failure.

        Raises:
            WeirError: why the worker could not continue.
        """
        counts = self._partitions = self._inputs()
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
                asyncio.run(self._main(topics_of_group.statistics, Path(scratch)))
        finally:
            self._control.close()
            if self._watch is not None:
                self._watch.close()
            self._snapshot_thread.shutdown()
            for folder in (self._state, self._spilled):
                if folder is not None:
                    folder.release()
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
            group = self._versions.group(self._versions.current(view))
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

    async def _main(self, statistics: str, scratch: Path) -> None:
        """Run the plan in force over all partitions that exist. A distributed query runs one plan version after the
        other (`services.control.plan_versions`)."""
        loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        if self._stopped.is_set():
            self._stop.set()
        assert self._control is not None
        for turn in itertools.count():
            if self._stop.is_set():
                return
            active = await self._next_plan(patient=turn > 0)
            publisher = Publisher(self._control, statistics, self._query.name, active.layout.tasks)
            await self._run_version(active, publisher, scratch / str(turn))
            if not self._stop.is_set():
                self._pages.waits_for("tasks to begin anew")

    async def _next_plan(self, patient: bool) -> ActivePlan:
        """The plan to run now.

        Args:
            patient: try again while Kafka does not answer; for a worker that has already run a plan.

        Raises:
            BrokerError: Kafka does not answer.
        """
        assert self._stop is not None
        while True:
            try:
                return self._load_plan()  # blocks: nothing else runs on the loop now
            except BrokerError as error:
                if not patient or self._stop.is_set():
                    raise
                self._log.warning("tasks cannot begin anew, trying again", reason=str(error))
                await asyncio.sleep(AGAIN_S)

    def _load_plan(self) -> ActivePlan:
        """The plan to run now; creates the topics that it needs."""
        settings, control, version, since = self._settings, self._control, 0, 0
        assert control is not None
        layout: Layout | DistributedLayout = lay_out(self._query, self._partitions)
        group, plan = settings.group, self._plan
        if self._versions is not None:
            view = control.read_to_end(CONTROL_S)
            version = self._versions.current(view)
            group, plan = self._versions.group(version), self._versions.plan(version, view)
            layout = self._versions.layout(version, view)
            self._admin.internal(layout.internal, settings.replication)
            if version > 0:
                since = view.changes[version - 1].cut
                control.append(*missing_reports(view, version))
            if version > 1:
                # A slower worker may still ask for the commits of the version before this one, but not of older ones.
                gone = ControlTopics.of(self._versions.group(version - 2))
                internal = self._versions.layout(version - 2, view).internal
                self._admin.delete([*internal, gone.feedback, gone.transactions])
        if settings.budget is not None:
            self._admin.spills(group, layout.tasks, settings.replication)
        if settings.transactional:
            self._admin.transactions(group, layout.tasks, settings.replication)
        outputs = self._admin.outputs(self._query.name, self._query.sink or "", layout.sinks, settings.replication)
        spec = TaskSpec(
            query=self._query,
            plan=plan,
            streams=streams_by_topic(self._query.streams()),
            fingerprint=fingerprint(self._query),
            cluster=self._admin.cluster_id(),
            topics=outputs,
            settings=settings,
            since=since,
            tables=self._tables,
            group=self._group_work(outputs, layout.sinks) if self._group else None,
        )
        return ActivePlan(version, group, layout, spec)

    def _group_work(self, outputs: OutputTopics, tasks: int) -> GroupWork:
        """What the tasks of a group need. From here on the worker follows the registry."""
        settings = self._settings
        members = self._admin.members(settings.group, settings.replication)
        if self._watch is not None:
            self._watch.close()
        self._watch = GroupWatch(settings.clients, self._query, outputs, tasks, settings.replication).start()
        return GroupWork(self._watch, members)

    async def _run_version(self, active: ActivePlan, publisher: Publisher, scratch: Path) -> None:
        """Run one plan until the worker is stopped or another plan takes over."""
        loop = asyncio.get_running_loop()
        layout, spec, settings = active.layout, active.spec, self._settings
        app = self._app(active.group, scratch)
        assert self._control is not None
        folder = self._spilled or self._state
        spilled = scratch / "spilled" if folder is None else folder.spill_folder(active.group)
        shutil.rmtree(spilled, ignore_errors=True)  # a process that was killed could not delete it
        feedback = self._feedback_log(active)
        opener = TaskOpener(
            active,
            self._task_kind(active, publisher, feedback),
            self._control,
            self._admin,
            self._metrics,
            self._state,
            spilled,
            self._snapshot_thread,
            lambda offsets: cast(Consumer, app.consumer).commit_as_member(offsets),
            self._accept_loss,
        )
        task_manager = TaskManager(spec, layout, self._metrics, opener, opener.wipe, self._fail)
        app.task_manager = task_manager
        transport = self._transport(app, task_manager, layout)
        app.transport = transport
        consumer = cast(Consumer, app.consumer)
        task_manager.consumer = consumer
        _agents(app, sorted(layout.partitions), task_manager)

        @app.on_partitions_revoked.connect(weak=False)  # type: ignore[untyped-decorator]
        async def settle(app: Any, revoked: set[TP], **kwargs: Any) -> None:
            await task_manager.settle()

        @app.on_rebalance_complete.connect(weak=False)  # type: ignore[untyped-decorator]
        async def assigned(app: Any, **kwargs: Any) -> None:
            await task_manager.assigned(consumer.assignment())

        self._log.info(
            "worker starting",
            tasks=layout.tasks,
            partitioned=layout.copartitioned,
            placement=settings.placement,
            version=active.version,
            guarantee=settings.guarantee,
            state=str(self._state.path) if self._state else "none",
        )
        self._pages.runs(task_manager)
        watcher = loop.create_task(task_manager.watch())
        starter = loop.create_task(app.start())
        try:
            await self._until_stopped(app, starter, consumer, active)
        finally:
            watcher.cancel()
            self._pages.waits_for("open epochs to be delivered", "stopping")
            self._log.info("worker stopping")
            await app.stop()
            starter.cancel()
            if feedback is not None:
                feedback.close()
            if self._state is not None:
                self._state.remember_member("")
            self._log.info("worker stopped")

    def _task_kind(self, active: ActivePlan, publisher: Publisher, feedback: FeedbackLog | None) -> TaskKind:
        """What builds the tasks of a plan."""
        spec, layout, control = active.spec, active.layout, self._control
        assert control is not None
        if spec.group is not None:
            return GroupTasks(spec, spec.group, layout.sinks, self._admin)
        if isinstance(layout, Layout):
            return QueryTasks(spec, layout.tasks, control, publisher)
        versions, plan = self._versions, spec.plan
        assert versions is not None
        assert plan is not None
        return OperatorTasks(spec, plan, layout, active.version, versions, control, publisher, feedback)

    def _feedback_log(self, active: ActivePlan) -> FeedbackLog | None:
        """Start to read the feedback topic of a distributed query; None if there is none."""
        wanted = self._settings.jit or self._settings.has_idle_timeout(self._query)
        if self._versions is None or self._control is None or not wanted:
            return None
        topic = self._admin.feedback(active.group, self._settings.replication)
        name = f"{self._settings.client_id}-{active.group}"
        return FeedbackLog(self._settings.clients, topic, name, self._control).start()

    async def _replaced(self, active: ActivePlan, task_manager: TaskManager) -> bool:
        """True when another plan has taken over from the active one. Kafka is asked only when all tasks of this worker
        have ended."""
        if self._versions is None or self._control is None:
            return False
        view, versions = self._control.view, self._versions
        if len(view.changes) <= active.version or not task_manager.ended():
            return False

        def has_taken_over() -> bool:
            return versions.over(active.version, view) or versions.begun(active.version + 1, view)

        try:
            return await asyncio.get_running_loop().run_in_executor(None, has_taken_over)
        except BrokerError:
            return False  # asked again soon

    async def _until_stopped(
        self, app: WeirApp, starter: asyncio.Task[None], consumer: Consumer, active: ActivePlan
    ) -> None:
        """Wait for a signal, a failed task, a crash of the app, another plan, new partitions or a group that does
        not answer.

        Meanwhile store this worker's member id, so that a later process can make it leave the group.
        """
        assert self._stop is not None
        stored_member = ""
        connection = Connection(self._admin, self._settings, self._pages, self._log)
        membership = Membership(connection.ask)
        distributed = self._versions is not None
        growth = PartitionGrowth(
            self._admin, self._query, self._partitions, distributed=distributed, log=self._log
        )
        while not self._stop.is_set():
            try:
                async with asyncio.timeout(0.2):
                    await self._stop.wait()
            except TimeoutError:
                pass
            if starter.done() and not starter.cancelled() and starter.exception() is not None:
                self._fail(cast(BaseException, starter.exception()))
            elif app.crashed:
                self._fail(app.crash_reason or BrokerError("the consumer ended unexpectedly"))
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
            assigned = app.task_manager.generation == generation and not consumer.is_joining()
            if membership.is_lost(assigned, generation):
                self._log.warning("the consumer group does not answer, joining anew")
                self._log.info("state of the membership before", client=consumer.describe_membership())
                return
            if await self._replaced(active, app.task_manager):
                self._log.info("another plan takes over", version=active.version + 1)
                return
            try:
                if (found := growth.check(app.task_manager.assignment_count)) is not None:
                    self._partitions = found
                    return
            except StateError as error:
                self._fail(error)

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

    # --- Faust --------------------------------------------------------------------------------------

    def _app(self, group: str, scratch: Path) -> WeirApp:
        settings = self._settings
        app = WeirApp(
            group,
            broker=f"kafka://{settings.clients.servers()[0]}",
            datadir=str(scratch),
            key_serializer="raw",
            value_serializer="raw",
            web_enabled=False,  # `services.worker.web` serves before the app starts and after it ends
            stream_wait_empty=False,
            topic_allow_declare=False,
            topic_disable_leader=True,
            broker_client_id=f"{settings.client_id}-{group}",
            broker_session_timeout=settings.session_timeout_ms / 1000,
            broker_heartbeat_interval=settings.session_timeout_ms / 4000,
            broker_rebalance_timeout=30.0,
            broker_request_timeout=40.0,
            consumer_max_fetch_size=1 << 20,
            consumer_metadata_max_age_ms=METADATA_MS,
            TableManager=NoTables,
        )
        app.boot_strategy.enable_kafka_producer = False
        return app

    def _transport(self, app: WeirApp, task_manager: TaskManager, layout: Layout | DistributedLayout) -> Transport:
        clients = self._settings.clients
        transport = Transport(app.conf.broker_consumer, app)
        transport.flow = task_manager
        transport.assignor = TaskAssignor(layout.set_of, task_manager.running_tasks, layout.name)
        transport.bootstrap_servers = clients.servers()
        transport.security = clients.aiokafka()
        transport.former_member = self._state.member() if self._state else ""
        return transport


def _agents(app: WeirApp, topics: list[str], task_manager: TaskManager) -> None:
    """Declare one agent per input topic, which hands each fetch to the task manager."""
    for topic in topics:

        async def feed(stream: AsyncIterator[RecordBatch]) -> None:
            async for batch in stream:
                task_manager.deliver(batch)

        # Without acks Faust keeps no offsets of its own.
        channel = app.topic(topic, acks=False, key_serializer="raw", value_serializer="raw")
        app.agent(channel, name=f"feed.{topic}")(feed)


def _records_between_tasks(query: Query, settings: WorkerSettings) -> bool:
    """Whether the tasks of a distributed query tell each other what must be recorded together with results.

    That is what they withhold and what comes late, which no reader could tell from a repetition, and how many tuples
    they have counted.
    """
    distributed = settings.placement is Placement.PER_OPERATOR
    return distributed and (settings.jit or settings.budget is not None or bool(counted_windows(query)))


def _check_query(query: Query) -> None:
    """Raise UsageError for a query that cannot run as a service."""
    if query.sink is None:
        raise UsageError("a worker needs to know where results go: begin the query with INSERT INTO 'topic'")
    check_output_names(query)
    check_partition_by(query)
    for stream in query.streams():
        decoder_of(stream)
    if query.sink in {stream.topic for stream in query.streams()}:
        raise UsageError(f"query writes to {query.sink!r}, which it also reads")


def _as_weir_error(error: BaseException) -> WeirError:
    failure = WeirError(f"worker stopped by {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
