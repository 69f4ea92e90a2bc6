"""Builds the tasks of a distributed query: each runs one operator of the plan, or a share of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from operators.data.statistics import EngineStatistics
from operators.data.watermark import END
from operators.distributed.feedback.feedback import has_feedback
from operators.distributed.feedback.on_demand import PlanStart
from operators.distributed.feedback.rehearsal import rehearse
from operators.distributed.intake import SourceIntake
from operators.distributed.lineage import TaskProductivity
from operators.distributed.query_statistics import as_query_statistics
from operators.distributed.task_budget import task_budget
from operators.engine.engine import Engine
from operators.plan.plan import Join
from operators.state.sources import Sources
from schemas.codecs.notice import Notice
from schemas.errors import BrokerError, InvariantError
from services.control.control_log import ControlLog
from services.control.feedback_log import FeedbackLog
from services.control.plan_versions import PlanVersion, PlanVersions
from services.control.predecessor import Predecessor
from services.control.task_statistics import Publisher
from services.kafka.topics import ControlTopics, Lane
from services.placement.distributed import DistributedLayout, Part, part_fingerprint
from services.program.distributed_migrations import DistributedMigrations, Readiness
from services.program.intake_program import IntakeProgram
from services.program.query_program import QueryProgram
from services.recovery.starting_point import Committed
from services.spill.productivity_link import ProductivityLink
from services.task.block_lane import BlockLane
from services.task.context import make_lanes, partitions_of
from services.task.feedback import TaskFeedback
from services.task.lane import InputLane
from services.task.notices import read_back
from services.task.program import TaskEngine
from services.task.silence import Silence
from services.task.spec import TaskSpec, streams_by_topic
from services.task.spill import TaskSpill
from services.worker.task_kind import FormerTask, TaskKind, TaskParts, TaskStart


class OperatorTasks(TaskKind):
    """The tasks of one plan version of a distributed query.

    Args:
        whole: of the whole query.
        version: of the whole plan.
        feedback: the feedback topic; None without feedback.
        preparation: of the next version in this worker.
        predecessor: the former version, if this one is prepared while that runs.
    """

    def __init__(
        self,
        whole: TaskSpec,
        layout: DistributedLayout,
        version: PlanVersion,
        versions: PlanVersions,
        control: ControlLog,
        publisher: Publisher,
        feedback: FeedbackLog | None,
        preparation: Readiness,
        predecessor: Predecessor | None = None,
    ) -> None:
        self._whole = whole
        self._plan = version.plan
        self._layout = layout
        self._version = version
        self._versions = versions
        self._control = control
        self._publisher = publisher
        self._feedback = feedback
        self._preparation = preparation
        self._predecessor = predecessor

    def spec(self, number: int) -> TaskSpec:
        """One operator of the plan."""
        part = self._layout.part(number)
        query = part.operator.query
        return replace(
            self._whole,
            query=query,
            plan=part.operator.plan,
            streams=streams_by_topic(query.streams()),
            fingerprint=part_fingerprint(
                self._whole.query, self._plan, part.operator, spills=self._whole.settings.budget is not None
            ),
            part=part,
        )

    def build(self, start: TaskStart) -> TaskParts:
        """Build a task that ends when another plan takes over."""
        part = self._layout.part(start.number)
        if part.operator.is_intake:
            return self._intake(part, start)
        spec, recovery, spilled = start.spec, start.recovery, start.spill
        feedback = self._task_feedback(part, start)
        operator_feedback = None if feedback is None else feedback.operator_feedback
        budget = None
        if spilled is not None:
            budget = task_budget(self._whole.query, spilled.budget, feedback=spec.settings.jit)
        # A set difference, or a query that is one operator, has feedback of its own.
        within = spec.settings.jit and (bool(spec.query.subtracted) or not part.operator.columns)
        lanes = make_lanes(spec, recovery, start.log, operator_feedback)
        made: list[TaskProductivity] = []

        def productivity(sources: Sources, groups: int) -> TaskProductivity:
            made.append(TaskProductivity(sources, part.operator, part.share, groups))
            return made[-1]

        kept = () if operator_feedback is None else operator_feedback.columns_kept
        engine = Engine(
            spec.query,
            plan=spec.plan,
            tables=part.operator.with_row_numbers(spec.tables.batches),
            partitions=partitions_of(lanes),
            feedback=within if operator_feedback is None else operator_feedback.of,
            kept=[*kept, *(column for traced in part.operator.traced for column in traced.columns)],
            numbered=part.operator.numbered,
            budget=budget,
            blocks=None if spilled is None else spilled.blocks,
            productivity=productivity if part.operator.traced else None,
            clock=time.monotonic,
        )
        start.resources.callback(engine.leave_budget)
        spill = None
        if spilled is not None:
            spill = TaskSpill(
                spilled,
                engine,
                recovery.cut,
                lambda: program.late_results(),
                lambda: str(engine.plan),
                self._link(part, start, made[-1]) if made else None,
            )
        migrations = self._migrations(engine, start)
        publish = self._publish(part, start)
        program = QueryProgram(spec, self._whole.query, engine, migrations, recovery.cut, publish, self._begin)
        silence = self._silence(part, start, lanes)
        return TaskParts(lanes, program, migrations, spill, feedback, silence, self._predecessor)

    def _intake(self, part: Part, start: TaskStart) -> TaskParts:
        """Build a task that passes sources on to others."""
        recovery, lanes = start.recovery, make_lanes(start.spec, start.recovery, start.log)
        query, numbers = part.operator.query, recovery.numbers
        former = min((recovery.former[lane].message.cut for lane in lanes if lane in recovery.former), default=0)
        settings, budget = start.spec.settings, None
        if settings.budget is not None:
            budget = task_budget(self._whole.query, settings.budget, feedback=settings.jit)
        engine = SourceIntake(query, partitions_of(lanes), recovery.cut, numbers, time.monotonic, former, budget)
        start.resources.callback(engine.leave_budget)
        migrations = self._migrations(engine, start)
        program = IntakeProgram(part, engine, migrations, recovery.cut, self._publish(part, start))
        silence = self._silence(part, start, lanes)
        return TaskParts(lanes, program, migrations, silence=silence, predecessor=self._predecessor)

    def _link(self, part: Part, start: TaskStart, own: TaskProductivity) -> ProductivityLink | None:
        """What exchanges productivity with the other tasks."""
        if self._feedback is None:
            return None
        link = ProductivityLink(
            own.exchange,
            self._feedback,
            query=self._whole.query.name,
            operator=part.operator.name,
            task=start.number,
            incarnation=start.incarnation,
            log=start.log,
        )
        start.resources.callback(link.close)
        return link

    def _migrations(self, engine: TaskEngine, start: TaskStart) -> DistributedMigrations:
        on_demand = any(edge.on_demand for edge in self._layout.part(start.number).operator.outputs)
        return DistributedMigrations(
            engine,
            query=self._whole.query,
            version=self._version.number,
            task=start.number,
            tasks=self._layout.tasks,
            incarnation=start.incarnation,
            fingerprint=self._whole.fingerprint,
            objection=self._versions.objection,
            preparation=self._preparation,
            predecessor=self._predecessor,
            writes_results=start.number < self._layout.sinks,
            on_demand=on_demand,
            control=self._control,
            log=start.log,
            metrics=start.metrics,
        )

    def _publish(self, part: Part, start: TaskStart) -> Callable[[EngineStatistics, int], None]:
        """What publishes the statistics of a task, as those of the query."""
        publish = self._publisher.of(start.number, start.incarnation)

        def publish_as_query(found: EngineStatistics, version: int) -> None:
            if not self.takes_part:
                return  # the former version's tasks have the same numbers
            publish(as_query_statistics(found, part.operator, self._whole.query, self._plan), version)

        return publish_as_query

    def _silence(self, part: Part, start: TaskStart, lanes: Mapping[Lane, InputLane | BlockLane]) -> Silence | None:
        """What lets the task proceed while sources are silent; None without idle timeouts."""
        if self._feedback is None or not start.spec.settings.has_idle_timeout(self._whole.query):
            return None
        silence = Silence(part, lanes, self._feedback)
        start.resources.callback(silence.close)
        return silence

    def _task_feedback(self, part: Part, start: TaskStart) -> TaskFeedback | None:
        """The feedback of a task; None if it exchanges none."""
        if self._feedback is None or not has_feedback(part.operator):
            return None
        notices: dict[int, list[Notice]] = {}
        for edge in part.operator.outputs:
            if edge.kinds:
                partitions = (part.share,) if edge.forward else range(edge.partitions)
                channel = 0 if edge.forward else part.share
                marked = start.sink.mark_end((edge.topic, partition) for partition in partitions)
                notices |= read_back(start.spec.settings.clients, edge, partitions, channel, marked)
        cut = start.recovery.cut
        if self._version.on_demand:
            rehearse()
        return TaskFeedback(
            part,
            self._feedback,
            notices,
            cut,
            start.metrics,
            start.log,
            suspends=start.spec.settings.jit,
            start=PlanStart(self._begin, self._former, cut) if self._version.on_demand else None,
        )

    def keeps_snapshots(self, number: int) -> bool:
        """Not if the task exchanges feedback with others: then what they withhold is missing from its input. Nor if
        others have memory budgets: then some of its input comes late. An intake has no state, and a join of ROWS
        windows keeps its tuples only while they are alive."""
        operator, spilling = self._layout.part(number).operator, self._whole.settings.budget is not None
        withheld = self._feedback is not None and has_feedback(operator)
        return not (spilling or withheld or operator.is_intake or operator.numbered)

    def spills(self, number: int) -> bool:
        """Joins do: others have hardly any state."""
        return isinstance(self._layout.part(number).operator.plan, Join)

    def internal_input(self, number: int) -> Sequence[Lane]:
        """The partitions that other operators write to."""
        return self._layout.internal_lanes(number)

    def internal_output(self, number: int) -> Sequence[Lane]:
        """The partitions of the operators above."""
        edges = self._layout.part(number).operator.outputs
        return [(edge.topic, partition) for edge in edges for partition in range(edge.partitions)]

    @property
    def takes_part(self) -> bool:
        """Not while the former version runs."""
        return self._predecessor is None or self._predecessor.over

    def _begin(self) -> int:
        """Event time from which on this version delivers results; END while that is not decided."""
        if self._version.number == 0:
            return 0
        change = self._control.view.change(self._version.id)
        return END if change is None else change.cut

    def _former(self) -> int:
        """Event time that the former version has reached; END if it is over."""
        return END if self._predecessor is None else self._predecessor.limit

    def former_commits(self, number: int) -> dict[Lane, Committed] | None:
        """What the tasks of the former version have committed, of the task's sources at least.

        Raises:
            BrokerError: they still run, and have not committed all of these partitions. A task must not start before:
                it could not tell where they began to read.
        """
        if self._version.number == 0:
            return None
        own = {*self._layout.lanes(number)} - {*self.internal_input(number)}
        if self._predecessor is None:
            found = self._versions.handed_over(self._version.number - 1, self._control.view)
        else:
            over, found = self._predecessor.over, dict(self._predecessor.commits)
            if not over and own - found.keys():
                raise BrokerError("the plan in force has not committed anything yet")
        return found

    def former_task(self, lane: Lane) -> FormerTask:
        """The task of the former version that read a partition."""
        former = self._versions.version(self._version.number - 1, self._control.view)
        layout = self._versions.layout(former)
        task = layout.task_of(*lane)
        if task is None:
            raise InvariantError(f"version {former.number} has not read {lane[0]}[{lane[1]}]")
        return FormerTask(layout.lanes(task), (ControlTopics.of(former.group).repeats, task))
