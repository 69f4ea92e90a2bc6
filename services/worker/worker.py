"""A worker: the Faust app that runs one query's tasks.

Faust gives lifecycle, an agent per input topic, consumer group membership and rebalances; the transport hands
its agents whole fetches; the roster turns assignments into tasks. Nothing is committed through Faust, and
its own exactly-once mode and tables stay off.
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
from pathlib import Path
from typing import Any, cast

import faust
from aiokafka.errors import KafkaError
from faust.tables.manager import TableManager
from faust.types import TP

from operators.distributed.decompose import check_placeable
from operators.feedback.feedback import check_feedback
from operators.plan.choose import choose_plan
from operators.plan.plan import parse_plan
from schemas.codecs.encode import check_output_names
from schemas.errors import BrokerError, StateError, UsageError, WeirError
from schemas.query import Query
from services.control.control_log import ControlLog
from services.control.feedback_log import FeedbackLog
from services.control.plan_versions import Versions
from services.control.task_statistics import Publisher
from services.files.tables import Tables
from services.kafka.assignor import TaskAssignor
from services.kafka.records import RecordBatch
from services.kafka.topics import ControlTopics, OutputTopics, Refused, TopicAdmin
from services.kafka.transport import Consumer, Transport
from services.placement.distributed import PlacedLayout, check_settings
from services.placement.partition_growth import METADATA_MS, Growth
from services.placement.tasks import Layout, check_partition_by, lay_out
from services.process import memory
from services.process.decoders import decoder_of
from services.process.fingerprint import fingerprint
from services.process.logs import get_log
from services.process.metrics import WorkerMetrics
from services.process.settings import Placement, WorkerSettings
from services.recovery.committed_offsets import read_commits
from services.recovery.state_dir import StateDir
from services.registry.group_watch import GroupWatch, check_group_settings
from services.spill.budget import prepare_memory
from services.task.distributed_migrations import reports_of_the_dead
from services.task.spec import GroupWork, TaskSpec, streams_by_topic
from services.task.spill import check_budget
from services.worker.assignments import Roster
from services.worker.connection import Connection
from services.worker.task_opener import TaskOpener, Work
from services.worker.web import Pages

CONTROL_S = 60.0
"""How long reading the control topic may take at the start."""

AGAIN_S = 1.0
"""Pause before Kafka is asked again what there is to run."""


class NoTables(TableManager):  # type: ignore[misc]
    """Faust's manager of tables, which waits for a second before each start, so that all tables are declared: no task
    begins before. Weir declares none."""

    async def on_start(self) -> None:
        """Begin at once."""
        await self._update_channels()
        await self.recovery.start()


class WeirApp(faust.App):  # type: ignore[misc]
    """Faust's app, ending tasks before the consumer leaves the group."""

    roster: Roster

    async def on_stop(self) -> None:
        """Deliver open epochs, then let Faust stop its consumer."""
        await self.roster.close()
        await super().on_stop()

    def _on_rebalance_when_stopped(self) -> None:
        """Do nothing. Faust would close aiokafka's consumer here, from another event loop than its own, which then
        leaves the group only when its session has ended, and the others wait for it."""


class Worker:
    """Runs one query until it is stopped.

    Args:
        accept_loss: go on where Kafka's retention has deleted input that is still needed.
        tables: the query's reference tables.
        pages: told what the worker waits for; by default nobody asks.
        group: the query stands for what a registered group reads, and the group's queries run.
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
            check_group_settings(settings)
        else:
            _check_query(query)
        self._plan = parse_plan(settings.plan, query) if settings.plan else None
        if settings.jit:
            check_feedback(query)
        if settings.placement is Placement.PER_OPERATOR:
            check_settings(query, settings)
            # Every worker must take the same plan apart.
            self._plan = self._plan or choose_plan(query)
            check_placeable(query, self._plan)
        if settings.budget is not None:
            check_budget(query, settings)
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
        self._log = get_log("worker", query=query.name, group=settings.group)
        self._snapshot_thread = ThreadPoolExecutor(1, "snapshot")
        self._state: StateDir | None = None
        self._spilled: StateDir | None = None
        self._versions: Versions | None = None
        self._partitions: dict[str, int] = {}
        self._control: ControlLog | None = None
        self._failure: BaseException | None = None
        self._stop: asyncio.Event | None = None
        self._stopped = threading.Event()

    def run(self) -> None:
        """Run until SIGTERM, SIGINT or a failure.

        Raises:
            WeirError: what made it impossible to go on.
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
            self._versions = Versions(self._query, self._plan, self._settings, counts)
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
            with tempfile.TemporaryDirectory(prefix="weir-") as scratch:
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
        """See that the group is no newer Weir's, before this worker takes part in it.

        Raises:
            NewerFormatError: it is.
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
        """Partition counts of the input topics, as soon as Kafka knows them; nothing of worth where the worker is told
        to stop meanwhile."""
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
        """Run the plan in force, over the partitions that there are; where joins run apart, one plan after the other
        (`services.control.plan_versions`)."""
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
            work = await self._next_work(patient=turn > 0)
            publisher = Publisher(self._control, statistics, self._query.name, work.layout.tasks)
            await self._run_version(work, publisher, scratch / str(turn))
            if not self._stop.is_set():
                self._pages.waits_for("tasks to begin anew")

    async def _next_work(self, patient: bool) -> Work:
        """What there is to run now; a worker that runs already is `patient` when Kafka does not answer.

        Raises:
            BrokerError: Kafka does not answer.
        """
        assert self._stop is not None
        while True:
            try:
                return self._work()  # blocks: nothing else runs on the loop now
            except BrokerError as error:
                if not patient or self._stop.is_set():
                    raise
                self._log.warning("tasks cannot begin anew, trying again", reason=str(error))
                await asyncio.sleep(AGAIN_S)

    def _work(self) -> Work:
        """What there is to run now; makes the topics that it needs."""
        settings, control, version, since = self._settings, self._control, 0, 0
        assert control is not None
        layout: Layout | PlacedLayout = lay_out(self._query, self._partitions)
        group, plan = settings.group, self._plan
        if self._versions is not None:
            view = control.read_to_end(CONTROL_S)
            version = self._versions.current(view)
            group, plan = self._versions.group(version), self._versions.plan(version, view)
            layout = self._versions.layout(version, view)
            self._admin.internal(layout.internal, settings.replication)
            if version > 0:
                since = view.changes[version - 1].cut
                control.append(*reports_of_the_dead(view, version))
            if version > 1:
                # A slower worker may still ask what became of the version before this one, but not of older ones.
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
        return Work(version, group, layout, spec)

    def _group_work(self, outputs: OutputTopics, tasks: int) -> GroupWork:
        """What tasks of a group need; follows the registry from here on."""
        settings = self._settings
        members = self._admin.members(settings.group, settings.replication)
        if self._watch is not None:
            self._watch.close()
        self._watch = GroupWatch(settings.clients, self._query, outputs, tasks, settings.replication).start()
        return GroupWork(self._watch, members)

    async def _run_version(self, work: Work, publisher: Publisher, scratch: Path) -> None:
        """Run until the worker is to stop, or another plan takes over."""
        loop = asyncio.get_running_loop()
        layout, spec, settings = work.layout, work.spec, self._settings
        app = self._app(work.group, scratch)
        assert self._control is not None
        place = self._spilled or self._state
        spilled = scratch / "spilled" if place is None else place.spilled(work.group)
        shutil.rmtree(spilled, ignore_errors=True)  # a process that was killed could not
        opener = TaskOpener(
            work,
            self._control,
            publisher,
            self._admin,
            self._metrics,
            self._state,
            spilled,
            self._snapshot_thread,
            self._versions,
            lambda offsets: cast(Consumer, app.consumer).commit_as_member(offsets),
            self._accept_loss,
        )
        feedback = self._feedback_log(work)
        if feedback is not None:
            opener.feedback = feedback.start()
        roster = Roster(spec, layout, self._metrics, opener, opener.wipe, self._fail)
        app.roster = roster
        transport = self._transport(app, roster, layout)
        app.transport = transport
        consumer = cast(Consumer, app.consumer)
        roster.consumer = consumer
        _agents(app, sorted(layout.partitions), roster)

        @app.on_partitions_revoked.connect(weak=False)  # type: ignore[untyped-decorator]
        async def settle(app: Any, revoked: set[TP], **kwargs: Any) -> None:
            await roster.settle()

        @app.on_rebalance_complete.connect(weak=False)  # type: ignore[untyped-decorator]
        async def assigned(app: Any, **kwargs: Any) -> None:
            await roster.assigned(consumer.assignment())

        self._log.info(
            "worker starting",
            tasks=layout.tasks,
            partitioned=layout.copartitioned,
            placement=settings.placement,
            version=work.version,
            guarantee=settings.guarantee,
            state=str(self._state.path) if self._state else "none",
        )
        self._pages.runs(roster)
        watcher = loop.create_task(roster.watch())
        starter = loop.create_task(app.start())
        try:
            await self._until_stopped(app, starter, consumer, work)
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

    def _feedback_log(self, work: Work) -> FeedbackLog | None:
        """Where the joins of a plan that run apart ask each other; None where they do not."""
        if self._versions is None or self._control is None or not self._settings.jit:
            return None
        topic = self._admin.feedback(work.group, self._settings.replication)
        return FeedbackLog(self._settings.clients, topic, f"{self._settings.client_id}-{work.group}", self._control)

    async def _replaced(self, work: Work, roster: Roster) -> bool:
        """True when another plan has taken over from the one that runs. Kafka is asked only when no task of this worker
        has anything left to do."""
        if self._versions is None or self._control is None:
            return False
        view, versions = self._control.view, self._versions
        if len(view.changes) <= work.version or not roster.ended():
            return False

        def found() -> bool:
            return versions.over(work.version, view) or versions.begun(work.version + 1, view)

        try:
            return await asyncio.get_running_loop().run_in_executor(None, found)
        except BrokerError:
            return False  # asked again soon

    async def _until_stopped(self, app: WeirApp, starter: asyncio.Task[None], consumer: Consumer, work: Work) -> None:
        """Wait for a signal, a failed task, a crash of the app or another plan; note the group member meanwhile."""
        assert self._stop is not None
        noted = ""
        connection = Connection(self._admin, self._settings, self._pages, self._log)
        growth = Growth(self._admin, self._query, self._partitions, apart=self._versions is not None, log=self._log)
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
                connection.look(consumer.connected())
            except Refused as error:
                self._fail(error)
            member = consumer.member_id()
            if self._state is not None and member and member != noted:
                self._state.remember_member(member)
                noted = member
            if await self._replaced(work, app.roster):
                self._log.info("another plan takes over", version=work.version + 1)
                return
            try:
                if (found := growth.look(app.roster.assignments)) is not None:
                    self._partitions = found
                    return
            except StateError as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Stop the worker because of `error`; the first one counts."""
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
            web_enabled=False,  # `services.worker.web` is there before the app and after it
            stream_wait_empty=False,
            topic_allow_declare=False,
            topic_disable_leader=True,
            broker_client_id=f"{settings.client_id}-{group}",
            broker_session_timeout=settings.session_timeout_ms / 1000,
            broker_heartbeat_interval=settings.session_timeout_ms / 4000,
            broker_rebalance_timeout=30.0,
            broker_request_timeout=40.0,
            broker_max_poll_interval=600.0,
            consumer_max_fetch_size=1 << 20,
            consumer_metadata_max_age_ms=METADATA_MS,
            TableManager=NoTables,
        )
        app.boot_strategy.enable_kafka_producer = False
        return app

    def _transport(self, app: WeirApp, roster: Roster, layout: Layout | PlacedLayout) -> Transport:
        clients = self._settings.clients
        transport = Transport(app.conf.broker_consumer, app)
        transport.flow = roster
        transport.assignor = TaskAssignor(layout.set_of, roster.held, layout.name)
        transport.bootstrap_servers = clients.servers()
        transport.security = clients.aiokafka()
        transport.former_member = self._state.member() if self._state else ""
        return transport


def _agents(app: WeirApp, topics: list[str], roster: Roster) -> None:
    """One agent per input topic, which hands each fetch to the roster."""
    for topic in topics:

        async def feed(stream: AsyncIterator[RecordBatch]) -> None:
            async for batch in stream:
                roster.deliver(batch)

        # Without acks Faust keeps no offsets of its own.
        channel = app.topic(topic, acks=False, key_serializer="raw", value_serializer="raw")
        app.agent(channel, name=f"feed.{topic}")(feed)


def _check_query(query: Query) -> None:
    """Refuse a query that cannot run as a service."""
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
