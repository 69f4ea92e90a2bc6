"""Handles plan changes in a task of a distributed query: the task promises a bound for the cut, and ends at the cut.

This is the counterpart of `services.program.migrations.TaskMigrations`, whose task changes its plan in place. Here the
tasks of the next plan version take over (`services.control.plan_versions`). A task of a version that is prepared takes
no part in the barrier until the former version is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from operators.data.watermark import END
from operators.plan.plan import Plan, parse_plan
from schemas.errors import UsageError
from schemas.messages.control import Done, Opened, Propose, Started
from schemas.query import Query
from services.control.barrier import Change, View
from services.control.participant import RESEND_S, Participant, Speedometer
from services.control.plan_versions import PREPARED
from services.control.predecessor import Predecessor
from services.process.logs import Log
from services.process.metrics import TaskMetrics
from services.program.migrations import Control, PlanChanges
from services.task.program import TaskEngine


class Readiness(Protocol):
    """How far a worker has prepared the version that a request makes necessary. For any thread."""

    def is_prepared(self, id_: str) -> bool:
        """Whether the version can take over."""

    def failure(self, id_: str) -> str:
        """Why the version cannot be prepared; empty when it can."""


class DistributedMigrations(PlanChanges):
    """The plan changes of one incarnation of one task; used by its thread alone.

    Args:
        engine: of the task's operator; its progress is reported.
        query: the whole query, to which `fingerprint` belongs.
        version: of the whole plan that the task is a part of.
        incarnation: a name that no other incarnation of the task has.
        objection: returns why the query cannot change to a plan by a strategy; an empty text if it can.
        preparation: of the next version in this worker.
        predecessor: the former version, if this one is prepared while that runs.
        writes_results: whether the task writes results of the query; then it may not pass the former version.
        on_demand: whether the task makes results from before the cut on demand; then it waits until the cut is known.
    """

    def __init__(
        self,
        engine: TaskEngine,
        *,
        query: Query,
        version: int,
        task: int,
        tasks: int,
        incarnation: str,
        fingerprint: str,
        objection: Callable[[Plan, str], str],
        preparation: Readiness,
        predecessor: Predecessor | None = None,
        writes_results: bool = False,
        on_demand: bool = False,
        control: Control,
        log: Log,
        metrics: TaskMetrics,
    ) -> None:
        self._engine = engine
        self._version = version
        self._query = query
        self._task = task
        self._tasks = tasks
        self._fingerprint = fingerprint
        self._objection = objection
        self._control = control
        self._log = log
        self._metrics = metrics
        self._preparation = preparation
        self._predecessor = predecessor  # until an epoch has passed the cut
        self._in_force = predecessor is None
        self._writes_results = writes_results
        self._on_demand = on_demand
        self._speedometer = Speedometer()
        self._incarnation = incarnation
        self._opened_s = float("-inf")
        self._participant = Participant(task, incarnation, self._check, version)
        self._next: Change | None = None
        self._concluded = False
        metrics.plan_version.set(version)
        metrics.migrating.set(0)
        self._take(control.view)

    def _check(self, proposal: Propose) -> str:
        if proposal.fingerprint != self._fingerprint:
            return "it runs another query than the one that the plan is for"
        if proposal.tasks != self._tasks:
            return f"it is one of {self._tasks} tasks, not {proposal.tasks}: has the plan just changed? ask again"
        if proposal.strategy in PREPARED and (failure := self._preparation.failure(proposal.id)):
            return f"its worker cannot prepare the plan: {failure}"
        try:
            return self._objection(parse_plan(proposal.plan, self._query), proposal.strategy)
        except UsageError as error:
            return str(error)

    @property
    def version(self) -> int:
        """The version of the whole plan, to commit with what has been processed."""
        return self._version

    @property
    def ownership_in_doubt(self) -> bool:
        """True while another incarnation of the task is the newest in the log; a commit then shows which is."""
        return self._participant.superseded is not None

    @property
    def hurries(self) -> bool:
        """Whether a plan change waits for this task: the cut is known, and the tuples up to it are here."""
        return self._next is not None or (
            self._predecessor is not None and not self._is_before_cut(self._engine.watermark())
        )

    @property
    def prepares(self) -> bool:
        """Whether the task is one of a version that is prepared beside another, and has not come to the cut."""
        former = self._predecessor
        return former is not None and not former.over and self._is_before_cut(self._engine.cut)

    def _is_before_cut(self, ts: int) -> bool:
        """Whether an event time is before the cut at which this version takes over, or the cut is not known.

        A task that writes results is held at the cut until the former version is over. All other epochs go beyond the
        cut at once: one that ended there would cost a transaction, and have no results to send.
        """
        former = self._predecessor
        if former is None or (cut := former.cut) is None:
            return True
        return ts < cut or (ts == cut and (former.over or not self._writes_results))

    def look(self, committed: float, now: float) -> None:
        """Read the log, and answer proposals. A task that will end answers no more: the next version's task does."""
        view = self._control.view
        if self._predecessor is not None:
            if not self._in_force and not self._takes_part(self._predecessor, view, now):
                return
            if not self._is_before_cut(self._engine.cut):
                self._predecessor = None
        self._take(view)
        proposal = view.open
        if (
            proposal is not None
            and proposal.strategy in PREPARED
            and proposal.id != self._participant.answered  # a promise is kept, even if the next version falls behind
            and not self._preparation.is_prepared(proposal.id)
            and not self._check(proposal)
        ):
            view = replace(view, open=None)  # answered later
        reached = self._engine.cut
        speed = self._speedometer.speed(reached, now)
        if view.open is not None and view.open.strategy not in PREPARED:
            speed = 0.0  # it takes seconds anyway, and a cut ahead of input that ends would never be reached
        if self._next is None:
            self._control.append(
                *self._participant.look(view, reached=reached, speed=speed, committed=committed, now=now)
            )

    def _takes_part(self, predecessor: Predecessor, view: View, now: float) -> bool:
        """Whether a prepared task has become one of the version in force, and the log says so."""
        if not predecessor.over:
            return False
        if view.incarnations.get(self._task) == self._incarnation:
            self._in_force = True
            self._log.info("plan taken over", version=self._version)
            return True
        if now - self._opened_s >= RESEND_S:
            self._opened_s = now
            self._control.append(Opened(task=self._task, incarnation=self._incarnation, tasks=self._tasks))
        return False

    def _take(self, view: View) -> None:
        for change in self._participant.changes(view):
            if self._next is None:
                self._next = change
                self._log.info("plan will change", version=change.version, plan=change.plan, cut=change.cut)

    def limit(self, watermark: int, now: float) -> int:
        """The largest cut of the next epoch."""
        if self._predecessor is not None:
            watermark = min(watermark, self._limit_beside(self._predecessor))
        if self._next is not None:
            return min(watermark, self._next.cut)
        bound = self._participant.bound
        return watermark if bound is None else min(watermark, bound)

    def _limit_beside(self, former: Predecessor) -> int:
        """How far the task may advance while the former version may run."""
        cut = former.cut
        if self._writes_results:  # those before the cut are discarded, later ones must come after the former version's
            return former.limit if cut is None else max(former.limit, cut)
        return former.limit if self._on_demand and cut is None else END

    def ends_at(self, cut: int) -> bool:
        """Whether the task has reached the cut at which the next version begins."""
        return self._next is not None and cut >= self._next.cut

    def is_awaited(self, watermark: int) -> bool:
        """Whether the epoch that ends at this watermark is the one in which the task comes to a cut: that at which its
        version begins, or the one at which it ends."""
        former, reached = self._predecessor, self._engine.cut
        if former is None or not self._is_before_cut(reached):
            return super().is_awaited(watermark)
        # What is made on demand holds a task at the cut until it has come there.
        comes_there = self._writes_results and former.cut is not None and reached < former.cut <= watermark
        return comes_there or not self._is_before_cut(watermark)

    def conclude(self, now: float) -> None:
        """Report that the task has committed everything up to the cut."""
        change = self._next
        if change is None or self._concluded:
            return
        self._concluded = True
        self._log.info("plan left", version=self.version, cut=change.cut)
        strategy = change.strategy if change.strategy in PREPARED else "moving-state"
        self._control.append(
            Started(
                id=change.id,
                task=self._task,
                version=change.version,
                began_at=change.cut,
                exact=True,
                strategy=strategy,
                why="" if change.strategy == strategy else "distributed operators have no other",
            ),
            Done(
                id=change.id,
                task=self._task,
                version=change.version,
                began_at=change.cut,
                finished_at=change.cut,
            ),
        )


def missing_reports(view: View, version: int) -> list[Done]:
    """Make the reports of the former version's tasks that died before they reported.

    These tasks have reached their cut; otherwise the present version would not be in force.
    """
    change = view.changes[version - 1]
    if not view.keeps_reports_of(change.id):
        return []
    return [
        Done(id=change.id, task=task, version=version, began_at=change.cut, finished_at=change.cut, restored=True)
        for task in range(change.tasks)
        if (change.id, task) not in view.done
    ]
