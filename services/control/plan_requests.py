"""Requests another plan for a running query and follows the request; `weir migrate` without its output.

Entry: `PlanRequest.run`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from schemas.errors import BrokerError, WeirError
from schemas.messages.control import Done, Request, Started, Withdraw
from schemas.query import Query
from services.control.barrier import Change, View
from services.control.control_log import ControlLog
from services.kafka.topics import ControlTopics, TopicAdmin
from services.process.fingerprint import fingerprint
from services.process.security import KafkaClients

COORDINATOR_S = 8.0
"""How long a request waits for a coordinator to take it up."""

READ_S = 30.0
RESEND_S = 1.0
LOOK_S = 0.2


class Withdrawn(WeirError):
    """The plan stays as it is; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class MigrationProgress:
    """The progress of a migration.

    Attributes:
        tasks: how many the query has; 0 before the coordinator has made its proposal.
        answered: how many tasks have answered.
        change: None before the decision.
        started: the tasks' reports that they have changed plans, by task.
        done: the tasks' reports that only the new plan runs, by task.
    """

    tasks: int = 0
    answered: int = 0
    change: Change | None = None
    started: tuple[Started, ...] = ()
    done: tuple[Done, ...] = ()

    @property
    def finished(self) -> bool:
        """True when every task is done."""
        return self.change is not None and 0 < self.tasks <= len(self.done)


class PlanRequest:
    """One request for a plan, until the change is done.

    Args:
        watch: called with the progress whenever it may have changed.
    """

    def __init__(
        self, query: Query, clients: KafkaClients, group: str, watch: Callable[[MigrationProgress], None]
    ) -> None:
        self._query = query
        self._clients = clients
        self._group = group
        self._watch = watch

    def run(
        self, plan: str, strategy: str, *, prefer: str, at: int | None, timeout_ms: int, wait: bool
    ) -> MigrationProgress:
        """Send the request; return when the change is decided, or with `wait` when every task is done.

        Raises:
            Withdrawn: the request was refused.
            BrokerError: no worker or no coordinator runs, or Kafka does not answer.
        """
        topic = ControlTopics.of(self._group).control
        if not TopicAdmin(self._clients).exists(topic):
            raise BrokerError(
                f"no worker of group {self._group!r} has ever run on {self._clients.bootstrap} (topic {topic} is "
                "missing): start `weir worker`, or give its --group"
            )
        log = ControlLog(self._clients, topic, f"weir-{self._group}-migrate").start()
        try:
            view = log.read_to_end(READ_S)
            request = Request(
                id=uuid.uuid4().hex[:12],
                plan=plan,
                strategy=strategy,
                fingerprint=fingerprint(self._query),
                asked_ms=int(time.time() * 1000),
                at=at,
                timeout_ms=timeout_ms,
                prefer=prefer,
            )
            view = self._until_decided(log, view, request)
            progress = self._progress(view, request.id)
            while wait and not progress.finished:
                view = log.wait(view, LOOK_S)
                progress = self._progress(view, request.id)
            return progress
        finally:
            log.close()

    def _until_decided(self, log: ControlLog, view: View, request: Request) -> View:
        sent = float("-inf")
        patience = time.monotonic() + COORDINATOR_S
        while self._progress(view, request.id).change is None:
            now = time.monotonic()
            refused = view.withdrawn.get(request.id)
            if refused is not None:
                raise _withdrawn(refused, self._group)
            waiting = [asked.id for asked in view.waiting]
            taken_up = view.open is not None and view.open.id == request.id
            if not taken_up and request.id not in waiting and now - sent >= RESEND_S:
                sent = now
                log.append(request)
            if view.open is not None or waiting[:1] not in ([], [request.id]):
                patience = now + COORDINATOR_S  # the coordinator works on our request, or on an earlier one
            if now > patience + RESEND_S:
                raise self._unanswered()
            if now > patience:
                # In the log it keeps a coordinator that starts tomorrow from taking the request up.
                log.append(Withdraw(id=request.id, reason=NO_COORDINATOR, by="weir migrate"))
            view = log.wait(view, LOOK_S)
        return view

    def _unanswered(self) -> BrokerError:
        """Why the log never showed what was appended."""
        topic = ControlTopics.of(self._group).control
        if TopicAdmin(self._clients).not_writable([topic]):
            return BrokerError(f"cannot write: Kafka refuses it, this user needs WRITE on topic {topic!r}")
        return BrokerError(f"topic {topic} does not answer")

    def _progress(self, view: View, id_: str) -> MigrationProgress:
        answered = 0
        change, tasks = view.change(id_), 0
        if view.open is not None and view.open.id == id_:
            tasks, answered = view.open.tasks, len(view.answers)
        progress = MigrationProgress(
            tasks=tasks if change is None else change.tasks,
            answered=answered,
            change=change,
            started=tuple(report for (about, _), report in sorted(view.started.items()) if about == id_),
            done=tuple(report for (about, _), report in sorted(view.done.items()) if about == id_),
        )
        self._watch(progress)
        return progress


NO_COORDINATOR = "no coordinator took it up"


def _withdrawn(message: Withdraw, group: str) -> WeirError:
    if message.reason == NO_COORDINATOR:
        return BrokerError(
            f"no coordinator of group {group!r} answers within {COORDINATOR_S:g} s: start one with `weir coordinator`, "
            "given the same query and group"
        )
    return Withdrawn(f"the plan stays as it is: {message.reason} (withdrawn by {message.by})")
