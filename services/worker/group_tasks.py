"""Builds the tasks of a group of queries, which share one engine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from operators.data.watermark import END
from operators.groups.sharing import group_engine
from schemas.query import Query
from services.control.task_statistics import Publisher
from services.kafka.topics import Lane, TopicAdmin
from services.program.group_members import GroupMembers, StartingQueries
from services.program.group_program import GroupProgram, late_results_of
from services.recovery.starting_point import RecoveryPlan
from services.registry.group_watch import WantedQuery
from services.registry.member_log import known_members
from services.task.context import make_lanes, partitions_of
from services.task.spec import GroupWork, TaskSpec
from services.task.spill import TaskSpill
from services.worker.task_kind import TaskKind, TaskParts, TaskStart


class GroupTasks(TaskKind):
    """The tasks of a group.

    Args:
        sinks: how many tasks write to each query's topic of results.
    """

    def __init__(self, spec: TaskSpec, group: GroupWork, sinks: int, admin: TopicAdmin, publisher: Publisher) -> None:
        self._spec = spec
        self._group = group
        self._sinks = sinks
        self._admin = admin
        self._publisher = publisher

    def spec(self, number: int) -> TaskSpec:
        """The union of what the group's queries read."""
        return self._spec

    def build(self, start: TaskStart) -> TaskParts:
        """Build a task that runs the queries which earlier incarnations have recorded."""
        spec, recovery, spilled = start.spec, start.recovery, start.spill
        queries = self._starting_queries(start)
        self._add_outputs(spec, [*(query.query for query in queries.ended), *queries.queries])
        lanes = make_lanes(spec, recovery, start.log)
        partitions = partitions_of(lanes)
        engine = group_engine(
            queries.queries,
            streams=spec.query.streams(),
            tables=spec.tables.batches,
            partitions=partitions,
            since=queries.since,
            began=queries.began,
            ended=queries.ended,
            clock=time.monotonic,
            feedback=spec.settings.jit,
            budget=None if spilled is None else spilled.budget,
            blocks=None if spilled is None else spilled.blocks,
        )
        start.resources.callback(engine.leave_budget)
        spill = None
        if spilled is not None:
            spill = TaskSpill(spilled, engine, recovery.cut, lambda: late_results_of(engine, spec.encoders))
        members = GroupMembers(
            engine,
            queries,
            partitions,
            task=start.number,
            topic=self._group.members,
            wanted=self._wanted,
            readable=lambda offsets: self._is_readable(spec, recovery, offsets),
            transactional=spec.settings.transactional,
            log=start.log,
        )
        publish = self._publisher.of_group(start.number, start.incarnation)
        return TaskParts(lanes, GroupProgram(engine, members, spec.encoders, publish), members, spill)

    def _starting_queries(self, start: TaskStart) -> StartingQueries:
        topic, known = self._group.members, None
        self._group.watch.catch_up()
        if start.recovery.source != "fresh":
            marked = start.sink.mark_end([(topic, 0)]).get((topic, 0), 0)
            known = known_members(start.spec.settings.clients, topic, start.number, marked)
        delivered_before = END if start.spill is None else start.spill.delivered_before
        return StartingQueries(start.number, known, start.recovery.cut, self._wanted(), delivered_before)

    def _wanted(self) -> tuple[WantedQuery, ...]:
        return self._group.watch.wanted or ()

    def _is_readable(self, spec: TaskSpec, recovery: RecoveryPlan, offsets: Mapping[Lane, int]) -> bool:
        """Whether the log still has everything from these offsets on, and tells which tuples were late."""
        idle = any(stream.idle_timeout_ms is not None for stream in spec.query.streams())
        if idle or spec.settings.idle_timeout_ms is not None:
            return False
        first = self._admin.log_ranges(offsets)
        return all(max(at, recovery.lanes[lane].offset) >= first[lane][0] for lane, at in offsets.items())

    def _add_outputs(self, spec: TaskSpec, queries: Iterable[Query]) -> None:
        """Look up the topics of queries that the registry has dropped, but that may still have pending results, and the
        schemas of these."""
        for query in queries:
            spec.encoders.prepare(query)
            if query.sink is not None and query.sink not in spec.topics.limits:
                keyed = bool(query.result_format.key)
                self._admin.add_output(spec.topics, query.sink, self._sinks, spec.settings.replication, spread=keyed)

    def keeps_snapshots(self, number: int) -> bool:
        """No: the queries that come and go decide what a group keeps, so it reads its input again."""
        return False

    def internal_output(self, number: int) -> Sequence[Lane]:
        """The topic of members."""
        return [(self._group.members, 0)]
