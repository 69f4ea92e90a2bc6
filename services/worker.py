"""A worker: the Faust app that runs one query's tasks.

Faust gives lifecycle, an agent per input topic, consumer group membership and rebalances, and the web
server; the transport hands its agents whole fetches; the roster turns assignments into tasks. Nothing is
committed through Faust, and its own exactly-once mode and tables stay off.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import faust
from faust.types import TP

from operators.choose import choose_plan
from operators.placed.decompose import check_placeable, decompose
from operators.plan import parse_plan
from operators.statistics import EngineStatistics
from schemas.codecs.encode import check_output_names
from schemas.errors import BrokerError, StateError, UsageError, WeirError
from schemas.query import Query
from services import memory
from services.assignor import TaskAssignor
from services.control_log import ControlLog
from services.fingerprint import fingerprint
from services.lane import decoder_of
from services.logs import get_log
from services.metrics import WorkerMetrics
from services.placed import PlacedLayout, check_settings, part_fingerprint
from services.placement import Layout, check_partition_by, lay_out
from services.producer import IdempotentSink, Sink, TransactionalSink
from services.records import RecordBatch
from services.recovery import plan_recovery
from services.roster import Roster, task_log
from services.settings import Guarantee, Placement, Start, WorkerSettings
from services.snapshots import SnapshotWriter
from services.state_dir import StateDir
from services.state_store import DamagedTableError, StateStore
from services.tables import Tables
from services.task import Outcome, Task, TaskSpec, streams_by_topic
from services.task_migrations import TaskMigrations
from services.task_statistics import Publisher
from services.topics import ControlTopics, Lane, TopicAdmin
from services.transport import Consumer, Transport
from services.web import add_pages

LOST_S = 2.0
"""How long there is no connection to Kafka before the log says so."""


class WeirApp(faust.App):  # type: ignore[misc]
    """Faust's app, ending tasks before the consumer leaves the group."""

    roster: Roster

    async def on_stop(self) -> None:
        """Deliver open epochs, then let Faust stop its consumer."""
        await self.roster.close()
        await super().on_stop()


class Worker:
    """Runs one query until it is stopped.

    Args:
        accept_loss: go on where Kafka's retention has deleted input that is still needed.
        tables: the query's reference tables.
    """

    def __init__(
        self, query: Query, settings: WorkerSettings, accept_loss: bool = False, tables: Tables | None = None
    ) -> None:
        """Check everything that can be checked without a broker.

        Raises:
            UsageError: the query cannot run as a service, or the plan is wrong.
        """
        if query.sink is None:
            raise UsageError("a worker needs to know where results go: begin the query with INSERT INTO 'topic'")
        check_output_names(query)
        check_partition_by(query)
        for stream in query.streams():
            decoder_of(stream)
        if query.sink in {stream.topic for stream in query.streams()}:
            raise UsageError(f"query writes to {query.sink!r}, which it also reads")
        self._plan = parse_plan(settings.plan, query) if settings.plan else None
        if settings.placement is Placement.PER_OPERATOR:
            check_settings(query, settings)
            # Every worker must take the same plan apart.
            self._plan = self._plan or choose_plan(query)
            check_placeable(query, self._plan)
        self._query = query
        self._settings = settings
        self._accept_loss = accept_loss
        self._tables = tables or Tables()
        self._admin = TopicAdmin(settings.clients)
        self._metrics = WorkerMetrics(query.name)
        self._log = get_log("worker", query=query.name, group=settings.group)
        self._snapshot_thread = ThreadPoolExecutor(1, "snapshot")
        self._state: StateDir | None = None
        self._layout: Layout | PlacedLayout | None = None
        self._control: ControlLog | None = None
        self._failure: BaseException | None = None
        self._stop: asyncio.Event | None = None

    def run(self) -> None:
        """Run until SIGTERM, SIGINT or a failure.

        Raises:
            WeirError: what made it impossible to go on.
        """
        topics = [stream.topic for stream in self._query.streams()]
        counts = self._admin.inputs(topics, self._settings.wait)
        layout = self._layout = self._lay_out(counts)
        topics_of_group = self._admin.control(self._settings.group, self._settings.replication)
        if self._settings.state_dir is not None:
            self._state = StateDir(self._settings.state_dir)
        memory.prepare()
        name = f"{self._settings.client_id}-{self._settings.group}"
        self._control = ControlLog(self._settings.clients, topics_of_group.control, name).start()
        publisher = Publisher(self._control, topics_of_group.statistics, self._query.name, layout.tasks)
        try:
            with tempfile.TemporaryDirectory(prefix="weir-") as scratch:
                asyncio.run(self._main(layout, publisher, Path(scratch)))
        finally:
            self._control.close()
            self._snapshot_thread.shutdown()
            if self._state is not None:
                self._state.release()
        if self._failure is not None:
            raise self._failure

    def _lay_out(self, counts: Mapping[str, int]) -> Layout | PlacedLayout:
        """The tasks; makes the topics between those of a plan whose joins run apart."""
        fused = lay_out(self._query, counts)
        settings = self._settings
        if settings.placement is Placement.FUSED or self._plan is None:
            return fused
        prefix = ControlTopics.of(settings.group).control.removesuffix("control")
        operators = decompose(self._query, self._plan, counts, settings.operator_partitions, prefix)
        layout = PlacedLayout(operators, counts)
        self._admin.internal(layout.internal, settings.replication)
        for task in range(layout.tasks):
            part = layout.part(task)
            self._log.debug("operator", task=task, operator=part.name)
        return layout

    async def _main(self, layout: Layout | PlacedLayout, publisher: Publisher, scratch: Path) -> None:
        loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        assert self._query.sink is not None
        settings = self._settings
        spec = TaskSpec(
            query=self._query,
            plan=self._plan,
            streams=streams_by_topic(self._query.streams()),
            fingerprint=fingerprint(self._query),
            cluster=self._admin.cluster_id(),
            topics=self._admin.outputs(self._query.name, self._query.sink, layout.sinks, settings.replication),
            settings=settings,
            tables=self._tables,
        )
        app = self._app(scratch)
        roster = Roster(spec, layout, self._metrics, self._opener(app, spec, layout, publisher), self._wipe, self._fail)
        app.roster = roster
        transport = self._transport(app, roster, layout)
        app.transport = transport
        consumer = cast(Consumer, app.consumer)
        roster.consumer = consumer
        _agents(app, sorted(layout.partitions), roster)
        add_pages(app, roster, self._metrics, self._query.name)

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
            guarantee=settings.guarantee,
            state=str(self._state.path) if self._state else "none",
        )
        watcher = loop.create_task(roster.watch_silence())
        starter = loop.create_task(app.start())
        try:
            await self._until_stopped(app, starter, consumer)
        finally:
            watcher.cancel()
            self._log.info("worker stopping")
            await app.stop()
            starter.cancel()
            if self._state is not None:
                self._state.remember_member("")
            self._log.info("worker stopped")

    async def _until_stopped(self, app: WeirApp, starter: asyncio.Task[None], consumer: Consumer) -> None:
        """Wait for a signal, a failed task or a crash of the app; note the group member meanwhile."""
        assert self._stop is not None
        noted = ""
        seen = time.monotonic()
        lost = False
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
            if consumer.connected():
                seen = time.monotonic()
                if lost:
                    lost = False
                    self._log.info("connected to Kafka again")
            elif not lost and time.monotonic() - seen > LOST_S:
                lost = True
                self._log.warning(
                    "no connection to Kafka; trying on, nothing is lost meanwhile",
                    brokers=self._settings.clients.bootstrap,
                )
            member = consumer.member_id()
            if self._state is not None and member and member != noted:
                self._state.remember_member(member)
                noted = member

    def _fail(self, error: BaseException) -> None:
        """Stop the worker because of `error`; the first one counts."""
        if self._failure is None:
            self._failure = error if isinstance(error, WeirError) else _as_weir_error(error)
            if not isinstance(error, WeirError):
                self._log.error("unexpected error", reason=f"{type(error).__name__}: {error}")
                sys.excepthook(type(error), error, error.__traceback__)
        if self._stop is not None:
            self._stop.set()

    # --- Faust --------------------------------------------------------------------------------------

    def _app(self, scratch: Path) -> WeirApp:
        settings = self._settings
        app = WeirApp(
            settings.group,
            broker=f"kafka://{settings.clients.servers()[0]}",
            datadir=str(scratch),
            key_serializer="raw",
            value_serializer="raw",
            web_enabled=settings.http_port > 0,
            web_port=settings.http_port or 6066,
            web_bind=settings.http_bind,
            web_stats_enabled=False,
            web_tables_enabled=False,
            web_router_enabled=False,
            web_graph_enabled=False,
            web_metrics_enabled=False,
            stream_wait_empty=False,
            topic_allow_declare=False,
            topic_disable_leader=True,
            broker_client_id=f"{settings.client_id}-{settings.group}",
            broker_session_timeout=settings.session_timeout_ms / 1000,
            broker_heartbeat_interval=settings.session_timeout_ms / 4000,
            broker_rebalance_timeout=30.0,
            broker_request_timeout=40.0,
            broker_max_poll_interval=600.0,
            consumer_max_fetch_size=1 << 20,
            consumer_metadata_max_age_ms=30_000,
        )
        app.boot_strategy.enable_kafka_producer = False
        return app

    def _transport(self, app: WeirApp, roster: Roster, layout: Layout | PlacedLayout) -> Transport:
        clients = self._settings.clients
        transport = Transport(app.conf.broker_consumer, app)
        transport.flow = roster
        transport.assignor = TaskAssignor(layout.set_of, roster.held)
        transport.bootstrap_servers = clients.servers()
        transport.security = clients.aiokafka()
        transport.former_member = self._state.member() if self._state else ""
        return transport

    # --- Tasks --------------------------------------------------------------------------------------

    def _wipe(self, number: int) -> None:
        """Empty a task's table."""
        store = self._store(number, self._streams_of(number))
        if store is not None:
            try:
                store.wipe()
            except StateError as error:
                self._log.error("state table cannot be emptied", task=number, reason=str(error))
            store.close()

    def _streams_of(self, number: int) -> list[str]:
        """The streams of what a task runs."""
        layout = self._layout
        query = layout.part(number).operator.query if isinstance(layout, PlacedLayout) else self._query
        return [stream.name for stream in query.streams()]

    def _store(self, number: int, names: list[str]) -> StateStore | None:
        if self._state is None:
            return None
        path = self._state.table(self._settings.group, number)
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

    def _opener(
        self, app: WeirApp, whole: TaskSpec, layout: Layout | PlacedLayout, publisher: Publisher
    ) -> Callable[[int, threading.Event, Callable[[Task, Outcome], None], Callable[[], None]], Task]:
        def open_task(
            number: int,
            give_up: threading.Event,
            ended: Callable[[Task, Outcome], None],
            changed: Callable[[], None],
        ) -> Task:
            spec = self._spec(whole, layout, number)
            sink = self._sink(app, spec, number, give_up)
            store: StateStore | None = None
            life = uuid.uuid4().hex[:12]
            try:
                sink.open()
                assert self._control is not None
                view = self._control.open(number, life)
                lanes = layout.lanes(number)
                store = self._store(number, self._streams_of(number))
                log = task_log(self._query.name, number)
                recovery = plan_recovery(
                    streams={lane: _points(spec, lane) for lane in lanes},
                    fingerprint=spec.fingerprint,
                    cluster=spec.cluster,
                    committed=sink.committed(lanes),
                    snapshot=self._snapshot(store, number),
                    log=self._admin.log_ranges(lanes),
                    from_latest=self._settings.start is Start.LATEST,
                    accept_loss=self._accept_loss,
                    whole=layout.internal_lanes(number) if isinstance(layout, PlacedLayout) else (),
                    tables=spec.tables.contents,
                    changes=bool(spec.query.subtracted) or spec.query.aggregation is not None,
                )
                for note in recovery.notes:
                    log.warning(note)
                log.info("task opening", source=recovery.source, epoch=recovery.epoch, records=recovery.records)
                metrics = self._metrics.of(str(number))
                snapshots = SnapshotWriter(store, self._snapshot_thread, self._settings.snapshot_ms, log, metrics)
                migrations = TaskMigrations(
                    query=spec.query,
                    own=spec.plan,
                    task=number,
                    tasks=layout.tasks,
                    life=life,
                    fingerprint=spec.fingerprint,
                    recovery=recovery,
                    control=self._control,
                    view=view,
                    log=log,
                    metrics=metrics,
                    refusal="" if spec.part is None else "with placement per-operator a plan is changed by a new group",
                )
                return Task(
                    spec,
                    number,
                    recovery,
                    migrations,
                    publisher.of(number, life) if spec.part is None else _say_nothing,
                    sink,
                    store,
                    snapshots,
                    log,
                    metrics,
                    give_up,
                    changed,
                    ended,
                )
            except BaseException:
                sink.close()
                if store is not None:
                    store.close()
                raise

        return open_task

    def _spec(self, whole: TaskSpec, layout: Layout | PlacedLayout, number: int) -> TaskSpec:
        """What one task runs: the whole query, or a part of its plan."""
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
            trim=self._trim,
        )

    def _trim(self, offsets: Mapping[Lane, int]) -> None:
        self._snapshot_thread.submit(self._admin.trim, offsets)

    def _snapshot(self, store: StateStore | None, number: int) -> Any:
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

    def _sink(self, app: WeirApp, spec: TaskSpec, number: int, give_up: threading.Event) -> Sink:
        settings = self._settings
        if settings.guarantee is Guarantee.EXACTLY_ONCE:
            return TransactionalSink(
                settings.clients,
                settings.group,
                number,
                spec.topics,
                give_up,
                settings.transaction_timeout_ms,
            )
        consumer = cast(Consumer, app.consumer)

        def commit(offsets: Mapping[Lane, tuple[int, str]]) -> bool:
            return consumer.commit_as_member(offsets)

        return IdempotentSink(settings.clients, settings.group, number, spec.topics, give_up, commit)


def _points(spec: TaskSpec, lane: Lane) -> int:
    """How many replay points a partition has: one per stream that reads it, or per task that writes it."""
    given = None if spec.part is None else spec.part.input(lane[0])
    return len(spec.streams[lane[0]]) if given is None or given.edge is None else given.edge.channels


def _say_nothing(statistics: EngineStatistics, plan_version: int) -> None:
    """An operator's statistics are of its own query, which nobody has asked about."""


def _agents(app: WeirApp, topics: list[str], roster: Roster) -> None:
    """One agent per input topic, which hands each fetch to the roster."""
    for topic in topics:

        async def feed(stream: AsyncIterator[RecordBatch]) -> None:
            async for batch in stream:
                roster.deliver(batch)

        # Without acks Faust keeps no offsets of its own.
        channel = app.topic(topic, acks=False, key_serializer="raw", value_serializer="raw")
        app.agent(channel, name=f"feed.{topic}")(feed)


def _as_weir_error(error: BaseException) -> WeirError:
    failure = WeirError(f"worker stopped by {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
