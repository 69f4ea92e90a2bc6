"""Handles the plan changes of one task: which plan it starts with, when the plan changes, and what the task reports.

`services.worker.query_tasks` makes a `TaskMigrations` for each task. `services.task.epochs` calls it between epochs and
while it reads, as the task's `TaskChanges`.

**Where an incarnation starts.** A task commits the version of the plan in force with its offsets. Its next incarnation
starts with the plan of that version, which the control log knows (version 0 is the worker's own), over the state that
the recovery rebuilds. The results of a window are the same under every plan, so nothing need be replayed through the
plan that first produced them. A migration that had not finished is finished then, because the recovery builds the new
plan's states completely. Versions after the committed one are scheduled again, at their cuts: a task that had not
committed a cut changes its plan there once more.

**What an incarnation does.** Between epochs it reads the log, schedules decided changes in the engine, answers
proposals, and keeps its epochs within what it has promised (`services.control.participant`). It repeats reports until
they are in the log.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Protocol, cast

from operators.engine.engine import Engine
from operators.migration.advise import PREFERENCES, Goal, Preference
from operators.migration.schedule import MigrationRecord
from operators.migration.strategies import check_strategy
from operators.plan.plan import Plan, check_plan, parse_plan
from schemas.columns import Batch
from schemas.errors import UsageError
from schemas.messages.control import BarrierMessage, Done, Propose, Started
from schemas.query import Query
from services.control.barrier import KEPT_REPORTS, Change, View
from services.control.participant import RESEND_S, Participant, Speedometer
from services.process.logs import Log
from services.process.metrics import TaskMetrics
from services.process.settings import EXECUTOR
from services.recovery.starting_point import RecoveryPlan
from services.task.program import TaskChanges

FIRST_RESULT_S = 1.0
"""How long the report of a finished migration waits for the first result at or after the migration's cut."""


class Control(Protocol):
    """The part of the control log that a task uses."""

    view: View

    def append(self, *messages: BarrierMessage) -> None:
        """Send messages to the log, without waiting."""


class PlanObserver(Protocol):
    """Measures a task for the choice of the plan: `services.program.leader.Leader` in the task that decides, and
    `services.control.surveys.Surveyor` in the others."""

    def observe(self) -> None:
        """Look at the engine; called after each epoch."""

    def look(self, view: View, now: float) -> None:
        """Send messages; called between epochs."""

    def close(self) -> None:
        """Release what it uses."""


@dataclass(slots=True)
class _ScheduledChange:
    """A plan change that is scheduled in the engine.

    Attributes:
        record: the engine's record of the migration; None if the engine refused it.
        began_s, finished_s, first_result_s: wall-clock times; the last counts from `began_s`.
        waited_s: how long the task had to stop at its promised bound.
        first_result_ts: event time of the first result at or after the cut.
        done: True once its end has been reported.
    """

    change: Change
    record: MigrationRecord | None
    began_s: float | None = None
    waited_s: float = 0.0
    first_result_ts: int | None = None
    first_result_s: float | None = None
    finished_s: float | None = None
    done: bool = False


@dataclass(frozen=True, slots=True)
class StartingPlan:
    """The plan with which an incarnation starts.

    Attributes:
        version: of the plan.
        plan: None if the engine chooses.
    """

    version: int
    plan: Plan | None


def starting_plan(query: Query, own: Plan | None, recovery: RecoveryPlan, view: View, log: Log) -> StartingPlan:
    """Find the plan of the committed version.

    Args:
        own: the plan of version 0; None if the engine chooses.
        view: the log up to this incarnation's `Opened`.
    """
    version = recovery.plan_version
    if version > len(view.changes):
        version = view.version_at(recovery.cut)
        log.warning(
            "the control topic does not know the committed plan version: was it deleted? using the one at the cut",
            committed=recovery.plan_version,
            known=len(view.changes),
            version=version,
        )
    if version == 0:
        return StartingPlan(0, own)
    change = view.changes[version - 1]
    log.info("plan", version=change.version, plan=change.plan)
    return StartingPlan(version, parse_plan(change.plan, query))


class PlanChanges(TaskChanges):
    """Changes of a query's plan. This one has none."""

    def advanced(self, results: Batch, now: float) -> None:
        """Note what has changed with an epoch that has been processed."""


class TaskMigrations(PlanChanges):
    """The plan changes of one incarnation of one task; used by its thread alone.

    Args:
        engine: the engine, which runs the plan of `start`. Changes that were decided before this incarnation are
            scheduled in it.
        start: the plan with which the incarnation starts.
        task, tasks: number of the task, and how many there are.
        incarnation: a name that no other incarnation of the task has.
        committed_cut: the cut of the last commit.
        view: the log up to this incarnation's `Opened`.
        observer: measures for the choice of the plan; None where no worker chooses it.
    """

    def __init__(
        self,
        engine: Engine,
        start: StartingPlan,
        *,
        task: int,
        tasks: int,
        incarnation: str,
        fingerprint: str,
        committed_cut: int,
        control: Control,
        view: View,
        log: Log,
        metrics: TaskMetrics,
        observer: PlanObserver | None = None,
    ) -> None:
        self._query = engine.query
        self._task = task
        self._tasks = tasks
        self._fingerprint = fingerprint
        self._control = control
        self._log = log
        self._metrics = metrics
        self._engine = engine
        self._observer = observer
        self._least_cut = committed_cut
        self._base = start.version
        self._participant = Participant(task, incarnation, self._objection, self._base)
        self._scheduled_changes: list[_ScheduledChange] = []
        self._reports: list[tuple[Started | Done, float]] = []
        self._speedometer = Speedometer()
        for change in view.changes[max(0, len(view.changes) - KEPT_REPORTS) : self._base]:
            if (change.id, task) not in view.done:
                self._report(Done(id=change.id, task=task, version=change.version, restored=True))
                self._count("restored")
        metrics.plan_version.set(self._base)
        metrics.migrating.set(0)
        self._take_up(control.view)

    def _objection(self, proposal: Propose) -> str:
        """Why this task cannot change to a proposed plan; an empty text if it can."""
        if proposal.fingerprint != self._fingerprint:
            return "it runs another query than the one that the plan is for"
        if proposal.tasks != self._tasks:
            expected = proposal.tasks
            return f"it is one of {self._tasks} tasks, not {expected}: were partitions added? restart the coordinator"
        if proposal.prefer not in PREFERENCES:
            return f"cannot prefer {proposal.prefer!r}; there are {', '.join(PREFERENCES)}"
        try:
            check_plan(parse_plan(proposal.plan, self._query), self._query)
            check_strategy(proposal.strategy, EXECUTOR, self._query)
        except UsageError as error:
            return str(error)
        return ""

    # --- The task's thread --------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version of the plan in force, to commit with what has been processed."""
        version = self._base
        for scheduled in self._scheduled_changes:
            if scheduled.record is not None and scheduled.record.began_at is None:
                break
            version = scheduled.change.version
        return version

    @property
    def ownership_in_doubt(self) -> bool:
        """True while another incarnation of the task is the newest in the log; a commit then shows which is."""
        return self._participant.superseded is not None

    def look(self, committed: float, now: float) -> None:
        """Read the log, schedule changes, answer proposals, and send reports.

        Args:
            committed: when the last successful commit began, in monotonic seconds.
        """
        # One view for both: a decided change must be scheduled before the promise is released.
        view, reached = self._control.view, self._engine.cut
        self._take_up(view)
        speed = self._speedometer.speed(reached, now)
        self._control.append(*self._participant.look(view, reached=reached, speed=speed, committed=committed, now=now))
        for scheduled in self._scheduled_changes:
            self._finish(scheduled, now)
        while self._scheduled_changes and self._scheduled_changes[0].done:
            self._base = self._scheduled_changes.pop(0).change.version
        if self._reports:
            self._resend(view, now)
        if self._observer is not None:
            self._observer.look(view, now)

    def limit(self, watermark: int, now: float) -> int:
        """The largest cut of the next epoch."""
        bound = self._participant.bound
        if bound is None or watermark <= bound:
            self._participant.let_go(now)
            return watermark
        self._participant.hold(now)
        return bound

    def advanced(self, results: Batch, now: float) -> None:
        """Note which migrations have begun and ended with an epoch that has been processed."""
        for scheduled in self._scheduled_changes:
            record = scheduled.record
            if scheduled.done or record is None:
                continue
            if record.began_at is None:
                break
            if scheduled.began_s is None:
                self._started(scheduled, record, record.began_at, now)
            if scheduled.first_result_ts is None and len(results):
                fresh = results.ts[results.ts >= record.began_at]
                if len(fresh):
                    scheduled.first_result_ts = int(fresh[0])
                    scheduled.first_result_s = now - (scheduled.began_s or now)
            if record.finished_at is not None and scheduled.finished_s is None:
                scheduled.finished_s = now

    def observe(self) -> None:
        """Let the observer look at the engine."""
        if self._observer is not None:
            self._observer.observe()

    def close(self) -> None:
        """Release what the observer uses."""
        if self._observer is not None:
            self._observer.close()

    # --- Asking the engine --------------------------------------------------------------------------

    def _take_up(self, view: View) -> None:
        for change in self._participant.changes(view):
            self._scheduled_changes.append(self._schedule(change))

    def _schedule(self, change: Change) -> _ScheduledChange:
        # A decided cut is never below the committed cut, but an earlier incarnation may have changed its plan later.
        reached = max(self._engine.cut, self._least_cut)
        cut = max(change.cut, reached)
        if cut > change.cut:
            self._log.warning(
                "plan changes later than at its cut", version=change.version, cut=change.cut, reached=reached
            )
        try:
            plan = parse_plan(change.plan, self._query)
            self._engine.migrate(plan, change.strategy, cut, Goal(cast(Preference, change.prefer)))
        except UsageError as error:
            self._log.error("plan cannot be changed, the old one continues", version=change.version, reason=str(error))
            self._report(Done(id=change.id, task=self._task, version=change.version, error=str(error)))
            self._count("refused")
            return _ScheduledChange(change, None, done=True)
        self._log.info("plan will change", version=change.version, plan=change.plan, strategy=change.strategy, cut=cut)
        return _ScheduledChange(change, next(record for record in self._engine.migrations if record.plan is plan))

    # --- Reporting ----------------------------------------------------------------------------------

    def _started(self, scheduled: _ScheduledChange, record: MigrationRecord, began_at: int, now: float) -> None:
        scheduled.began_s, scheduled.waited_s = now, self._participant.take_waited(scheduled.change.id)
        version = scheduled.change.version
        self._metrics.plan_version.set(version)
        self._metrics.migrating.inc()
        self._log.info(
            "plan changed", version=version, plan=scheduled.change.plan, strategy=record.strategy, event_time=began_at
        )
        self._report(
            Started(
                id=scheduled.change.id,
                task=self._task,
                version=version,
                began_at=began_at,
                exact=began_at == scheduled.change.cut,
                strategy=record.strategy,
                why="" if record.advice is None else record.advice.reason,
                silence_s=scheduled.waited_s,
            )
        )

    def _finish(self, scheduled: _ScheduledChange, now: float) -> None:
        """Report a finished migration, once its first result is out or FIRST_RESULT_S have passed."""
        record = scheduled.record
        if record is None or scheduled.done or scheduled.finished_s is None:
            return
        if scheduled.first_result_ts is None and now - scheduled.finished_s < FIRST_RESULT_S:
            return
        scheduled.done = True
        self._metrics.migrating.dec()
        silence_s = max(record.longest_silence_s, scheduled.waited_s)
        self._metrics.migration_silence.set(silence_s)
        self._count("done")
        self._log.info(
            "migration done",
            version=scheduled.change.version,
            strategy=record.strategy,
            event_time=record.finished_at,
            longest_silence_s=silence_s,
            extra_tuples=record.counters.peak_extra_tuples,
        )
        self._report(
            Done(
                id=scheduled.change.id,
                task=self._task,
                version=scheduled.change.version,
                began_at=record.began_at,
                finished_at=record.finished_at,
                longest_silence_s=silence_s,
                comparisons=record.comparisons,
                peak_extra_tuples=record.counters.peak_extra_tuples,
                completed_keys=record.counters.completed_keys,
                first_result_ts=scheduled.first_result_ts,
                first_result_s=scheduled.first_result_s,
                predicted=None if record.advice is None else asdict(record.advice.predicted),
            )
        )

    def _count(self, outcome: str) -> None:
        self._metrics.migrations(outcome).inc()

    def _report(self, message: Started | Done) -> None:
        self._reports.append((message, float("-inf")))

    def _resend(self, view: View, now: float) -> None:
        """Send reports that are not in the log yet, and drop the others."""
        remaining: list[tuple[Started | Done, float]] = []
        for message, sent in self._reports:
            known = view.started if isinstance(message, Started) else view.done
            if (message.id, message.task) in known or not view.keeps_reports_of(message.id):
                continue
            if now - sent >= RESEND_S:
                self._control.append(message)
                sent = now
            remaining.append((message, sent))
        self._reports = remaining
