"""Builds the tasks of a query whose joins all run in one task."""

from __future__ import annotations

import time
from threading import Thread

from operators.autopilot.autopilot import Limits, why_not
from operators.autopilot.survey import load_kernels
from operators.engine.engine import Engine
from services.control.control_log import ControlLog
from services.control.coordinator import QueryCoordination
from services.control.decisions import history_of, read_decisions
from services.control.surveys import LEADER, SurveyLog, Surveyor, SurveyPublisher
from services.control.task_statistics import Publisher
from services.kafka.topics import ControlTopics
from services.program.leader import Leader
from services.program.migrations import PlanObserver, TaskMigrations, starting_plan
from services.program.query_program import QueryProgram
from services.task.context import make_lanes, partitions_of
from services.task.spec import TaskSpec
from services.task.spill import TaskSpill
from services.worker.task_kind import TaskKind, TaskParts, TaskStart


class QueryTasks(TaskKind):
    """The tasks of one query.

    Args:
        tasks: how many there are.
    """

    def __init__(self, spec: TaskSpec, tasks: int, control: ControlLog, publisher: Publisher) -> None:
        self._spec = spec
        self._tasks = tasks
        self._control = control
        self._publisher = publisher

    def spec(self, number: int) -> TaskSpec:
        """The query."""
        return self._spec

    def build(self, start: TaskStart) -> TaskParts:
        """Build a task whose plan can change while it runs."""
        spec, recovery, spilled = start.spec, start.recovery, start.spill
        lanes = make_lanes(spec, recovery, start.log)
        plan = starting_plan(spec.query, spec.plan, recovery, start.view, start.log)
        spilled_plan = None if spilled is None else spilled.plan(spec.query)
        engine = Engine(
            spec.query,
            plan=spilled_plan or plan.plan,
            tables=spec.tables.batches,
            partitions=partitions_of(lanes),
            feedback=spec.settings.jit,
            budget=None if spilled is None else spilled.budget,
            blocks=None if spilled is None else spilled.blocks,
            clock=time.monotonic,
        )
        start.resources.callback(engine.leave_budget)
        spill = None
        if spilled is not None:
            spill = TaskSpill(spilled, engine, recovery.cut, lambda: program.late_results(), lambda: str(engine.plan))
        if spilled_plan is not None and plan.plan is not None and plan.plan != spilled_plan:
            engine.migrate(plan.plan, "moving-state", recovery.cut)
        observer = self._observer(start, engine)
        migrations = TaskMigrations(
            engine,
            plan,
            task=start.number,
            tasks=self._tasks,
            incarnation=start.incarnation,
            fingerprint=spec.fingerprint,
            committed_cut=recovery.cut,
            control=self._control,
            view=start.view,
            log=start.log,
            metrics=start.metrics,
            observer=observer,
        )
        publish = self._publisher.of(start.number, start.incarnation)
        program = QueryProgram(spec, spec.query, engine, migrations, recovery.cut, publish)
        return TaskParts(lanes, program, migrations, spill)

    def _observer(self, start: TaskStart, engine: Engine) -> PlanObserver | None:
        """What measures for the choice of the plan, and in task 0 decides; None if the plan is not adapted."""
        settings, query = start.spec.settings, start.spec.query
        if settings.adapt is None:
            return None
        if why := why_not(engine):
            start.log.info("the plan is not adapted", reason=why)
            return None
        # Beside the task's start, which somebody may wait for.
        Thread(target=load_kernels, args=(query, engine.plan), daemon=True).start()
        topics = ControlTopics.of(settings.group)
        if start.number != LEADER:
            return Surveyor(engine, start.number, self._control, topics.statistics)
        messages = read_decisions(settings.clients, settings.group)
        surveys = None
        if self._tasks > 1:
            surveys = SurveyLog(settings.clients, topics.statistics, query, start.number, self._tasks).start()
            start.resources.callback(surveys.close)
        return Leader(
            engine,
            QueryCoordination(query, self._tasks, start.log),
            self._control,
            topics.decisions,
            mode=settings.adapt,
            limits=settings.limits or Limits(),
            history=history_of(messages, query, start.view, start.log),
            surveys=surveys,
            publisher=SurveyPublisher(engine, start.number, self._control, topics.statistics),
            log=start.log,
            metrics=start.metrics,
        )
