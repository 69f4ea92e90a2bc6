"""Leads the plan changes of a query from one of its tasks: the autopilot decides there, and the task coordinates.

Task 0 leads, so there is one leader at a time, wherever that task runs, and no process beside the workers is needed.
`services.worker.query_tasks` makes a `Leader`, and the task calls it between epochs, in its thread.

**A decision is a request in the control log.** Its id follows from the log: `adapt-` and the number of the version that
it would make. So of two leaders that see the same log, only the first one's request counts: a leader that has lost its
task without knowing does no harm. A leader that dies leaves its request, which the next one takes up, or has left none,
and the next one decides again. Before the request the leader publishes why (`services.control.decisions`); the next
one continues from there. The request is sent once Kafka has the reason, so that no change is made without one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from operators.autopilot.adaptation import Adaptation
from operators.autopilot.autopilot import Autopilot, History, Limits, Mode
from operators.engine.engine import Engine
from operators.migration.advise import Goal
from operators.plan.plan import Plan
from schemas.messages.control import Request
from services.control.barrier import View
from services.control.control_log import ControlLog
from services.control.coordination import RESEND_S
from services.control.coordinator import QueryCoordination
from services.control.decisions import decision
from services.control.surveys import SurveyLog, SurveyPublisher
from services.process.fingerprint import fingerprint
from services.process.logs import Log
from services.process.metrics import TaskMetrics


class Leader:
    """What the leading task does beside its own work.

    Args:
        topic: of decisions.
        history: what the task's former incarnation has left.
        surveys: what the other tasks measure; None where there are none. The leader closes it.
        publisher: publishes what this task measures, for people.
    """

    def __init__(
        self,
        engine: Engine,
        coordination: QueryCoordination,
        control: ControlLog,
        topic: str,
        *,
        mode: Mode,
        limits: Limits,
        history: History | None,
        surveys: SurveyLog | None,
        publisher: SurveyPublisher,
        log: Log,
        metrics: TaskMetrics,
    ) -> None:
        more: dict[str, Any] = {} if surveys is None else {"others": surveys.found}
        self._autopilot = Autopilot(engine, limits, mode=mode, changes=self, history=history, **more)
        self._surveys = surveys
        self._publisher = publisher
        self._query = engine.query
        self._coordination = coordination
        self._control = control
        self._topic = topic
        self._log = log
        self._metrics = metrics
        self._request: Request | None = None
        self._sent_s = 0.0
        self._written: dict[int, Adaptation] = dict(self._autopilot.decisions)
        self._sent: dict[int, tuple[Adaptation, float]] = {}

    def observe(self) -> None:
        """Let the autopilot look at the engine; called after each epoch."""
        self._autopilot.observe()

    def close(self) -> None:
        """Stop reading what other tasks measure."""
        if self._surveys is not None:
            self._surveys.close()

    def look(self, view: View, now: float) -> None:
        """Coordinate, follow the request, and publish what is new."""
        self._publish(view, now)
        self._publisher.publish(self._autopilot.found, now)
        self._control.append(*self._coordination.decide(view, now))
        if self._request is not None:
            self._follow(self._request, view, now)
        self._withdraw_lost(view)

    # --- The changes that the autopilot asks for ----------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether some change has been asked for that the engine does not know yet."""
        view = self._control.view
        return self._request is not None or view.open is not None or bool(view.waiting)

    def ask(self, plan: Plan, strategy: str, goal: Goal) -> str:
        """Make a request; `look` appends it to the control log."""
        request = Request(
            id=next_id(self._control.view),
            plan=str(plan),
            strategy=strategy,
            fingerprint=fingerprint(self._query),
            asked_ms=int(time.time() * 1000),
            prefer=goal.prefer,
        )
        self._request, self._sent_s = request, float("-inf")
        return request.id

    def _follow(self, request: Request, view: View, now: float) -> None:
        """Send the request until it is in the log, and forget it once it is decided."""
        change = view.change(request.id)
        if change is not None or request.id in view.withdrawn:
            if change is not None and change.plan != request.plan:
                self._autopilot.withdraw(request.id, "another incarnation of the task had decided otherwise")
            self._request = None
            return
        known = view.open is not None and view.open.id == request.id
        known = known or any(waiting.id == request.id for waiting in view.waiting)
        if not known and now - self._sent_s >= RESEND_S and self._has_reason(request):
            self._sent_s = now
            self._control.append(request)

    def _withdraw_lost(self, view: View) -> None:
        """Tell the autopilot which changes the tasks have not agreed on."""
        for one in self._autopilot.adaptations:
            if one.change in view.withdrawn:
                self._autopilot.withdraw(one.change, f"withdrawn: {view.withdrawn[one.change].reason}")

    # --- Decisions ----------------------------------------------------------------------------------

    def _has_reason(self, request: Request) -> bool:
        """Return whether Kafka has the decision that led to a request."""
        made = [(number, one) for number, one in self._autopilot.decisions.items() if one.change == request.id]
        return all(self._written.get(number) is one for number, one in made)

    def _publish(self, view: View, now: float) -> None:
        """Publish the decisions that are new, or of which more is known, until Kafka has them."""
        for number, one in list(self._autopilot.decisions.items()):
            if self._written.get(number) is one:
                continue
            sent, sent_s = self._sent.get(number, (None, 0.0))
            if sent is one:
                if now - sent_s < RESEND_S:
                    continue
            elif one.measured is not None:
                silences = [d.longest_silence_s for d in view.done.values() if d.id == one.change]
                longest = max([one.measured.silence, *silences])
                one = self._autopilot.decisions[number] = replace(one, measured=replace(one.measured, silence=longest))
            else:
                self._log.info("plan weighed", number=number, event_time=one.at, decision=one.line())
                self._metrics.decisions("made" if one.made else "kept").inc()
            self._sent[number] = one, now
            message = decision(self._query.name, number, self._autopilot)
            self._control.publish(self._topic, str(number), message, partial(self._note_written, number, one))

    def _note_written(self, number: int, one: Adaptation) -> None:
        """Note that Kafka has a decision; called in another thread."""
        self._written[number] = one


def next_id(view: View) -> str:
    """The id of the next request: it depends on the log alone."""
    return _free(f"adapt-{len(view.changes) + 1}", view.withdrawn)


def _free(stem: str, taken: Mapping[str, object]) -> str:
    found, number = stem, 1
    while found in taken:
        number += 1
        found = f"{stem}.{number}"
    return found
