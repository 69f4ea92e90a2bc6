"""Runs one version of the plan: a Faust app with the version's tasks. Entry: `PlanRunner`.

Faust provides the lifecycle, an agent per input topic, consumer group membership and rebalances. The transport delivers
whole fetches to the agents. The task manager turns assignments into tasks. Weir commits nothing through Faust, and uses
neither Faust's exactly-once mode nor its tables.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import faust
from faust.tables.manager import TableManager
from faust.types import TP

from schemas.errors import BrokerError
from services.control.control_log import ControlLog
from services.control.feedback_log import FeedbackLog
from services.control.plan_versions import PlanVersions
from services.control.predecessor import Predecessor
from services.control.task_statistics import Publisher
from services.kafka.assignor import TaskAssignor
from services.kafka.records import RecordBatch
from services.kafka.topics import ControlTopics, TopicAdmin
from services.kafka.transport import GATHER_S, Consumer, Transport
from services.placement.partition_growth import METADATA_MS
from services.placement.tasks import Layout
from services.process.logs import get_log
from services.process.metrics import WorkerMetrics
from services.process.settings import WorkerSettings
from services.process.tracing import Traces
from services.program.distributed_migrations import Readiness
from services.recovery.state_dir import StateDir
from services.worker.group_tasks import GroupTasks
from services.worker.operator_tasks import OperatorTasks
from services.worker.query_tasks import QueryTasks
from services.worker.task_kind import TaskKind
from services.worker.task_manager import TaskManager
from services.worker.task_opener import ActivePlan, TaskOpener

REPORT_S = 1.0
"""How often the worker publishes how its tasks are."""


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


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What all versions of the plan that a worker runs share.

    Attributes:
        state: the directory of snapshots; None to keep none.
        spilled: the directory of spilled state, if it is another one.
        snapshots: the executor that writes snapshots.
        accept_loss: continue where Kafka's retention has deleted input that is still needed.
        versions, preparation: of a distributed query; None for any other.
    """

    settings: WorkerSettings
    control: ControlLog
    admin: TopicAdmin
    metrics: WorkerMetrics
    traces: Traces
    state: StateDir | None
    spilled: StateDir | None
    snapshots: Executor
    accept_loss: bool
    versions: PlanVersions | None
    preparation: Readiness | None


class PlanRunner:
    """One version of the plan in this worker. Runs on the event loop.

    Args:
        scratch: an empty folder of its own.
        fail: called with the error when it cannot go on.
        feedback: its feedback topic; None without feedback. The runner closes it.
        predecessor: the former version, if this one is prepared while that runs.
        in_force: whether results come of this version now; its membership is then that of the worker's slot.

    Attributes:
        active: the version.
        task_manager, consumer: of the app.
    """

    def __init__(
        self,
        parts: WorkerParts,
        active: ActivePlan,
        scratch: Path,
        fail: Callable[[BaseException], None],
        feedback: FeedbackLog | None = None,
        predecessor: Predecessor | None = None,
        *,
        in_force: bool = True,
    ) -> None:
        self.active = active
        self._parts = parts
        self._predecessor = predecessor
        self._log = get_log("worker", query=active.spec.query.name, group=active.group)
        self._app = app = self._make_app(scratch)
        folder = parts.spilled or parts.state
        spilled = scratch / "spilled" if folder is None else folder.spill_folder(active.group)
        shutil.rmtree(spilled, ignore_errors=True)  # a process that was killed could not delete it
        self._feedback = feedback
        query, tasks = active.spec.query.name, active.layout.tasks
        self._publisher = Publisher(
            parts.control, ControlTopics.of(parts.settings.group), query, tasks, parts.settings.client_id
        )
        opener = TaskOpener(
            active,
            self._task_kind(),
            parts.control,
            parts.admin,
            parts.metrics,
            parts.state,
            spilled,
            parts.snapshots,
            lambda offsets: cast(Consumer, app.consumer).commit_as_member(offsets),
            parts.accept_loss,
            parts.traces,
        )
        manager = TaskManager(active.spec, active.layout, parts.metrics, opener, opener.wipe, fail)
        self.task_manager = app.task_manager = manager
        former = parts.state.member() if parts.state is not None and in_force else ""
        app.transport = self._make_transport(former)
        self.consumer = cast(Consumer, app.consumer)
        manager.consumer = self.consumer
        _agents(app, sorted(active.layout.partitions), manager)
        consumer = self.consumer

        @app.on_partitions_revoked.connect(weak=False)  # type: ignore[untyped-decorator]
        async def settle(app: Any, revoked: set[TP], **kwargs: Any) -> None:
            await manager.settle()

        @app.on_rebalance_complete.connect(weak=False)  # type: ignore[untyped-decorator]
        async def assigned(app: Any, **kwargs: Any) -> None:
            await manager.assigned(consumer.assignment())

        self._starter: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._reporter: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to join the group."""
        layout, settings, state = self.active.layout, self._parts.settings, self._parts.state
        self._log.info(
            "worker starting",
            tasks=layout.tasks,
            partitioned=layout.copartitioned,
            placement=settings.placement,
            version=self.active.version,
            guarantee=settings.guarantee,
            state=str(state.path) if state else "none",
        )
        loop = asyncio.get_running_loop()
        self._watcher = loop.create_task(self.task_manager.watch())
        self._reporter = loop.create_task(self._report())
        self._starter = loop.create_task(self._app.start())

    async def stop(self) -> None:
        """Deliver open epochs, and leave the group."""
        if self._watcher is not None and self._starter is not None and self._reporter is not None:
            self._watcher.cancel()
            self._reporter.cancel()
            await self._app.stop()
            self._starter.cancel()
        if self._feedback is not None:
            self._feedback.close()
        if self._predecessor is not None:
            self._predecessor.close()

    async def _report(self) -> None:
        """Publish how the tasks are, until cancelled."""
        while True:
            await asyncio.sleep(REPORT_S)
            for assignment in self.task_manager.assignments():
                self._publisher.health(assignment.number, assignment.report())

    def failure(self) -> BaseException | None:
        """Why the app has ended by itself; None while it runs."""
        starter = self._starter
        if starter is not None and starter.done() and not starter.cancelled() and starter.exception() is not None:
            return starter.exception()
        if self._app.crashed:
            return cast(BaseException, self._app.crash_reason or BrokerError("the consumer ended unexpectedly"))
        return None

    def _task_kind(self) -> TaskKind:
        """What builds the tasks."""
        parts, spec, layout = self._parts, self.active.spec, self.active.layout
        publisher = self._publisher
        if spec.group is not None:
            return GroupTasks(spec, spec.group, layout.sinks, parts.admin, publisher)
        if isinstance(layout, Layout):
            return QueryTasks(spec, layout.tasks, parts.control, publisher)
        assert parts.versions is not None
        assert parts.preparation is not None
        assert self.active.plan_version is not None
        return OperatorTasks(
            spec,
            layout,
            self.active.plan_version,
            parts.versions,
            parts.control,
            publisher,
            self._feedback,
            parts.preparation,
            self._predecessor,
        )

    def _make_app(self, scratch: Path) -> WeirApp:
        settings, group = self._parts.settings, self.active.group
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

    def _make_transport(self, former_member: str) -> Transport:
        clients, layout = self._parts.settings.clients, self.active.layout
        transport = Transport(self._app.conf.broker_consumer, self._app)
        transport.flow = self.task_manager
        transport.assignor = TaskAssignor(layout.task_of, self.task_manager.running_tasks, layout.name)
        transport.bootstrap_servers = clients.servers()
        transport.security = clients.aiokafka()
        transport.former_member = former_member
        transport.gather_s = 0.0 if isinstance(layout, Layout) else GATHER_S
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
