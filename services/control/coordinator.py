"""The coordinator of a query: runs `services.control.coordination` on the control topic until it is stopped.

`weir coordinator` runs it. It stores nothing: any number may run, and one that was killed can be restarted anywhere.
Where workers adapt the plan by themselves, one of their tasks coordinates, too.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from operators.migration.strategies import check_strategy
from operators.plan.plan import check_plan, parse_plan
from schemas.errors import BrokerError, UsageError
from schemas.messages.control import BarrierMessage, Cut, Propose, Request, Withdraw
from schemas.query import Query
from services.control.barrier import View
from services.control.control_log import ControlLog
from services.control.coordination import Coordination
from services.kafka.topics import TopicAdmin
from services.placement.tasks import lay_out
from services.process.fingerprint import fingerprint
from services.process.logs import Log, get_log
from services.process.security import KafkaClients
from services.process.settings import EXECUTOR

LOOK_S = 0.2
"""How often the coordinator checks its time limits while the log is silent."""

STALE_S = 60.0
"""A request older than this is refused: its sender has given up, and the reasons for it may be gone."""


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """How a coordinator runs; see `WorkerSettings`."""

    clients: KafkaClients
    group: str
    wait: bool | None = None
    replication: int = -1


class QueryCoordination:
    """Coordinates the plan changes of one query, and logs what happens.

    `Coordinator` runs one on a connection of its own, `services.program.leader` one in a task.
    """

    def __init__(self, query: Query, tasks: int, log: Log) -> None:
        # A set difference has no lineage, and with idle timeouts two plans may find other tuples late.
        unprepared = bool(query.subtracted) or any(s.idle_timeout_ms is not None for s in query.streams())
        auto = "moving-state" if unprepared else "hybmig-bsc"
        self._query = query
        self._fingerprint = fingerprint(query)
        self._log = log
        self._coordination = Coordination(tasks, self._objection, auto)
        self._seen: View | None = None

    def decide(self, view: View, now: float) -> list[BarrierMessage]:
        """The messages to append now; see `Coordination.decide`."""
        if self._seen is not None and view is not self._seen:
            self._log_decisions(self._seen, view)
        self._seen = view
        messages = self._coordination.decide(view, now)
        for message in messages:
            self._log_message(message)
        return messages

    def _objection(self, request: Request) -> str:
        """Why a request cannot be taken up; empty when it can."""
        age_s = time.time() - request.asked_ms / 1000
        if age_s > STALE_S:
            ago = f"it was asked for {age_s:.0f} s ago"
            return f"{ago}, when no coordinator ran, or the clocks of the two machines differ; ask again"
        if request.fingerprint != self._fingerprint:
            return "the coordinator runs another query than the one that the plan is for"
        try:
            check_plan(parse_plan(request.plan, self._query), self._query)
            check_strategy(request.strategy, EXECUTOR, self._query)
        except UsageError as error:
            return str(error)
        return ""

    def _log_message(self, message: BarrierMessage) -> None:
        match message:
            case Propose():
                self._log.info("plan proposed", id=message.id, plan=message.plan, strategy=message.strategy)
            case Cut():
                self._log.info("cut announced", id=message.id, cut=message.cut)
            case Withdraw():
                self._log.warning("plan withdrawn", id=message.id, reason=message.reason)

    def _log_decisions(self, seen: View, view: View) -> None:
        for change in view.changes[len(seen.changes) :]:
            self._log.info("plan decided", id=change.id, version=change.version, plan=change.plan, cut=change.cut)
        for key in view.done.keys() - seen.done.keys():
            done = view.done[key]
            self._log.info("task done", id=done.id, task=done.task, version=done.version, problem=done.error)


class Coordinator:
    """Coordinates the plan changes of one query from a process of its own."""

    def __init__(self, query: Query, settings: CoordinatorSettings) -> None:
        self._query = query
        self._settings = settings
        self._log = get_log("coordinator", query=query.name, group=settings.group)

    def run(self, stop: threading.Event) -> None:
        """Run until `stop`.

        Raises:
            WeirError: input topics are missing, or Kafka cannot be reached at the start.
        """
        admin = TopicAdmin(self._settings.clients)
        try:
            counts = admin.inputs((s.topic for s in self._query.streams()), self._settings.wait, stopped=stop.wait)
        except BrokerError:
            if stop.is_set():
                return
            raise
        tasks = lay_out(self._query, counts).tasks
        topics = admin.control(self._settings.group, self._settings.replication)
        coordination = QueryCoordination(self._query, tasks, self._log)
        log = ControlLog(self._settings.clients, topics.control, f"weir-{self._settings.group}-coordinator").start()
        try:
            view = log.read_to_end(60.0)
            self._log.info("coordinator running", tasks=tasks, plan_version=len(view.changes))
            while not stop.is_set():
                log.append(*coordination.decide(view, time.monotonic()))
                view = log.wait(view, LOOK_S)
        finally:
            log.close()
            self._log.info("coordinator stopped")
