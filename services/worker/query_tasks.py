"""Builds the tasks of a query whose joins all run in one task."""

from __future__ import annotations

import time

from operators.autopilot.autopilot import Limits, why_not
from operators.engine.engine import Engine
from services.control.control_log import ControlLog
from services.control.coordinator import QueryCoordination
from services.control.decisions import history_of, read_decisions
from services.control.task_statistics import Publisher
from services.kafka.topics import ControlTopics
from services.program.leader import Leader
from services.program.migrations import TaskMigrations, starting_plan
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
        spill = None
        if spilled is not None:
            spill = TaskSpill(spilled, engine, recovery.cut, lambda: program.late_results(), lambda: str(engine.plan))
        if spilled_plan is not None and plan.plan is not None and plan.plan != spilled_plan:
            engine.migrate(plan.plan, "moving-state", recovery.cut)
        leader = self._leader(start, engine) if start.number == 0 else None
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
            leader=leader,
        )
        publish = self._publisher.of(start.number, start.incarnation)
        program = QueryProgram(spec, engine, migrations, recovery.cut, publish)
        return TaskParts(lanes, program, migrations, spill)

    def _leader(self, start: TaskStart, engine: Engine) -> Leader | None:
        """What leads the plan changes; None if the plan is not adapted."""
        settings, query = start.spec.settings, start.spec.query
        if settings.adapt is None:
            return None
        if why := why_not(engine):
            start.log.info("the plan is not adapted", reason=why)
            return None
        messages = read_decisions(settings.clients, settings.group)
        return Leader(
            engine,
            QueryCoordination(query, self._tasks, start.log),
            self._control,
            ControlTopics.of(settings.group).decisions,
            mode=settings.adapt,
            limits=settings.limits or Limits(),
            history=history_of(messages, query, start.view, start.log),
            log=start.log,
            metrics=start.metrics,
        )
