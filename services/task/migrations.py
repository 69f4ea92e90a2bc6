"""Plan changes of one task: which plan it begins with, when it changes, what it reports of it.

**Where a life begins.** A task commits the version of the plan in force with its offsets. Its next life begins
with the plan of that version, which the control log knows (version 0 is the worker's own), over the state that the
recovery rebuilds: the results of a window are the same under every plan, so nothing need be replayed through the
plan that first made them. A migration that had not finished then has: the new plan's states are made whole. The
versions after the committed one are asked for again, at their cuts: a task that had not committed a cut takes it once
more.

**A life's work.** Between epochs it looks at the log: asks the engine for decided changes, answers proposals, and
keeps its epochs within what it has promised (`services.control.participant`). Reports are sent until they are in the
log.
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
from services.control.participant import RESEND_S, Participant
from services.process.logs import Log
from services.process.metrics import TaskMetrics
from services.process.settings import EXECUTOR
from services.recovery.starting_point import RecoveryPlan

SPEED_S = 1.0
"""Over how long a task's speed in event time is measured."""

LOOK_S = 0.2
"""How often a task looks at the log at least, however long its epochs are."""

FIRST_RESULT_S = 1.0
"""How long the report of a finished migration waits for the first result at or after its cut."""

MAX_SPEED = 20_000.0
"""Event time (ms) per second that is taken for a task's speed at most: in a replay of history it would promise to
stay behind a bound that lies days ahead, and the cut would lie there too."""


class Control(Protocol):
    """What is asked of the control log."""

    view: View

    def append(self, *messages: BarrierMessage) -> None:
        """Send messages on their way."""


@dataclass(slots=True)
class _Asked:
    """A change that the engine has been asked for."""

    change: Change
    record: MigrationRecord | None
    began_s: float | None = None
    waited_s: float = 0.0
    first_result_ts: int | None = None
    first_result_s: float | None = None
    finished_s: float | None = None
    done: bool = False


class TaskMigrations:
    """One life of one task; used by its thread alone.

    Args:
        own: the plan of version 0, None where the engine chooses.
        view: the log up to this life's `Opened`.

    Attributes:
        plan: to begin with.
    """

    def __init__(
        self,
        *,
        query: Query,
        own: Plan | None,
        task: int,
        tasks: int,
        life: str,
        fingerprint: str,
        recovery: RecoveryPlan,
        control: Control,
        view: View,
        log: Log,
        metrics: TaskMetrics,
    ) -> None:
        self._query = query
        self._task = task
        self._tasks = tasks
        self._fingerprint = fingerprint
        self._control = control
        self._log = log
        self._metrics = metrics
        self._engine: Engine | None = None
        self._least_cut = recovery.cut
        self._base = self._committed_version(recovery, view)
        self._participant = Participant(task, life, self._objection, self._base)
        self._asked: list[_Asked] = []
        self._reports: list[tuple[Started | Done, float]] = []
        self._mark = (0.0, 0)
        self._looked = 0.0
        self._speed = 0.0
        self.plan = own
        if self._base:
            change = view.changes[self._base - 1]
            self.plan = parse_plan(change.plan, query)
            log.info("plan", version=change.version, plan=change.plan)
        for change in view.changes[max(0, len(view.changes) - KEPT_REPORTS) : self._base]:
            if (change.id, task) not in view.done:
                self._report(Done(id=change.id, task=task, version=change.version, restored=True))
                self._count("restored")
        metrics.plan_version.set(self._base)
        metrics.migrating.set(0)

    def _committed_version(self, recovery: RecoveryPlan, view: View) -> int:
        if recovery.plan_version <= len(view.changes):
            return recovery.plan_version
        found = view.version_at(recovery.cut)
        self._log.warning(
            "the control topic does not know the committed plan version: was it deleted? going on with what it knows",
            committed=recovery.plan_version,
            known=len(view.changes),
            version=found,
        )
        return found

    def _objection(self, proposal: Propose) -> str:
        """Why this task cannot change to a proposed plan; empty when it can."""
        if proposal.fingerprint != self._fingerprint:
            return "it runs another query than the one that the plan is for"
        if proposal.tasks != self._tasks:
            asked = proposal.tasks
            return f"it is one of {self._tasks} tasks, not {asked}: were partitions added? restart the coordinator"
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
        for asked in self._asked:
            if asked.record is not None and asked.record.began_at is None:
                break
            version = asked.change.version
        return version

    @property
    def doubted(self) -> bool:
        """True while another life of the task is the newest in the log: a commit shows who is."""
        return self._participant.superseded is not None

    def ended(self, cut: int) -> bool:
        """Never: the task itself changes plans."""
        return False

    def conclude(self, now: float) -> None:
        """Nothing: the task does not end with its plan."""

    def attach(self, engine: Engine) -> None:
        """Begin to change plans of this engine; asks for what was decided before this life."""
        self._engine = engine
        self._ask(self._control.view)

    def glance(self, committed: float, now: float) -> None:
        """`look`, if the last one was a while ago."""
        if now - self._looked >= LOOK_S:
            self.look(committed, now)

    def look(self, committed: float, now: float) -> None:
        """See what the log says, and say what there is to say.

        Args:
            committed: when the last commit that succeeded was begun, in monotonic seconds.
        """
        assert self._engine is not None
        self._looked = now
        # One view for both: what it decides must be asked for before the promise is let go.
        view, reached = self._control.view, self._engine.cut
        self._ask(view)
        since, at = self._mark
        if now - since >= SPEED_S:
            # The first stretch begins before the first tuple, at event time 0.
            self._speed = min((reached - at) / (now - since), MAX_SPEED) if at else 0.0
            self._mark = now, reached
        self._control.append(
            *self._participant.look(view, reached=reached, speed=self._speed, committed=committed, now=now)
        )
        for asked in self._asked:
            self._finish(asked, now)
        while self._asked and self._asked[0].done:
            self._base = self._asked.pop(0).change.version
        if self._reports:
            self._resend(view, now)

    def limit(self, watermark: int, now: float) -> int:
        """How far the next epoch may go."""
        bound = self._participant.bound
        if bound is None or watermark <= bound:
            self._participant.let_go(now)
            return watermark
        self._participant.hold(now)
        return bound

    def advanced(self, results: Batch, now: float) -> None:
        """An epoch has been processed: see which migrations have begun and ended with it."""
        for asked in self._asked:
            record = asked.record
            if asked.done or record is None:
                continue
            if record.began_at is None:
                break
            if asked.began_s is None:
                self._started(asked, record, record.began_at, now)
            if asked.first_result_ts is None and len(results):
                fresh = results.ts[results.ts >= record.began_at]
                if len(fresh):
                    asked.first_result_ts, asked.first_result_s = int(fresh[0]), now - (asked.began_s or now)
            if record.finished_at is not None and asked.finished_s is None:
                asked.finished_s = now

    # --- Asking the engine --------------------------------------------------------------------------

    def _ask(self, view: View) -> None:
        for change in self._participant.changes(view):
            self._asked.append(self._scheduled(change))

    def _scheduled(self, change: Change) -> _Asked:
        assert self._engine is not None
        # What is decided is never below the committed cut, but an earlier life may have had to wait with it.
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
            self._log.error("plan cannot be changed, the old one goes on", version=change.version, reason=str(error))
            self._report(Done(id=change.id, task=self._task, version=change.version, error=str(error)))
            self._count("refused")
            return _Asked(change, None, done=True)
        self._log.info("plan will change", version=change.version, plan=change.plan, strategy=change.strategy, cut=cut)
        return _Asked(change, next(record for record in self._engine.migrations if record.plan is plan))

    # --- Reporting ----------------------------------------------------------------------------------

    def _started(self, asked: _Asked, record: MigrationRecord, began_at: int, now: float) -> None:
        asked.began_s, asked.waited_s = now, self._participant.take_waited(asked.change.id)
        version = asked.change.version
        self._metrics.plan_version.set(version)
        self._metrics.migrating.inc()
        self._log.info(
            "plan changed", version=version, plan=asked.change.plan, strategy=record.strategy, event_time=began_at
        )
        self._report(
            Started(
                id=asked.change.id,
                task=self._task,
                version=version,
                began_at=began_at,
                exact=began_at == asked.change.cut,
                strategy=record.strategy,
                why="" if record.advice is None else record.advice.reason,
                silence_s=asked.waited_s,
            )
        )

    def _finish(self, asked: _Asked, now: float) -> None:
        """Report a migration that is over, once its first result is out or seems not to come."""
        record = asked.record
        if record is None or asked.done or asked.finished_s is None:
            return
        if asked.first_result_ts is None and now - asked.finished_s < FIRST_RESULT_S:
            return
        asked.done = True
        self._metrics.migrating.dec()
        silence_s = max(record.longest_silence_s, asked.waited_s)
        self._metrics.migration_silence.set(silence_s)
        self._count("done")
        self._log.info(
            "migration done",
            version=asked.change.version,
            strategy=record.strategy,
            event_time=record.finished_at,
            longest_silence_s=silence_s,
            extra_tuples=record.counters.peak_extra_tuples,
        )
        self._report(
            Done(
                id=asked.change.id,
                task=self._task,
                version=asked.change.version,
                began_at=record.began_at,
                finished_at=record.finished_at,
                longest_silence_s=silence_s,
                comparisons=record.comparisons,
                peak_extra_tuples=record.counters.peak_extra_tuples,
                completed_keys=record.counters.completed_keys,
                first_result_ts=asked.first_result_ts,
                first_result_s=asked.first_result_s,
                predicted=None if record.advice is None else asdict(record.advice.predicted),
            )
        )

    def _count(self, outcome: str) -> None:
        self._metrics.migrations(outcome).inc()

    def _report(self, message: Started | Done) -> None:
        self._reports.append((message, float("-inf")))

    def _resend(self, view: View, now: float) -> None:
        """Send reports that are not in the log, and forget the others."""
        left: list[tuple[Started | Done, float]] = []
        for message, sent in self._reports:
            known = view.started if isinstance(message, Started) else view.done
            if (message.id, message.task) in known or not view.reports_of(message.id):
                continue
            if now - sent >= RESEND_S:
                self._control.append(message)
                sent = now
            left.append((message, sent))
        self._reports = left
