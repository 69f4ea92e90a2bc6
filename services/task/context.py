"""Defines what the phases of a task share, `TaskContext`, and makes the task's lanes.

`services.worker.task_opener` makes a `TaskContext`. The kinds of tasks (`services.worker.task_kind`) call `make_lanes`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from operators.distributed.feedback.feedback import DistributedFeedback
from services.control.predecessor import Predecessor
from services.delivery.epoch_output import RejectedRecords
from services.delivery.repeats_log import RepeatsLog
from services.delivery.sink import Sink
from services.formats.schema_registry import SchemaUnavailable
from services.kafka.topics import Lane
from services.process.logs import Log
from services.process.metrics import TaskMetrics
from services.process.tracing import EpochTrace
from services.recovery.snapshots import SnapshotWriter
from services.recovery.starting_point import LaneStart, RecoveryPlan
from services.recovery.state_store import StateStore
from services.task.block_lane import BlockLane
from services.task.feedback import TaskFeedback
from services.task.lane import InputLane
from services.task.program import TaskChanges, TaskEngine, TaskProgram
from services.task.silence import Silence
from services.task.spec import CompletionCheck, TaskSpec
from services.task.spill import TaskSpill

AHEAD_BYTES = 4 << 20
"""Bytes of a partition that a task reads before the former plan's tasks have committed them. They must be at hand when
these tasks end, since results wait for them then."""


@dataclass(slots=True)
class TaskContext:
    """One incarnation of a task.

    Attributes:
        spec: what all tasks of the worker share.
        number: of the task.
        recovery: where to start.
        lanes: per partition that the task reads.
        program: what it runs.
        changes: changes of the plan, or of a group's queries.
        store: the table of snapshots; None for a worker without a state directory.
        feedback: of an operator that takes part in feedback; None otherwise.
        spill: the task's spilled state; None without a memory budget and without pending results.
        silence: of a distributed operator with idle timeouts; None otherwise.
        predecessor: the former plan version, if the task was prepared while that ran.
        trim: deletes records of internal topics before the given offsets, once the sink's transactions are complete
            (`services.delivery.sink.Sink.completion_check`); None to delete nothing.
        trace: takes the phases of its epochs.
        repeats: the log of repeats; None if the task reads no stream without repeats.
        rejected: late and dead-letter records of the open epoch.
        step: what the thread is doing, for /healthz.
        commits, commit_s: how many epochs have been delivered, and the seconds that took.
        dead_letters: how many records have gone to the dead-letter topic.
    """

    spec: TaskSpec
    number: int
    recovery: RecoveryPlan
    lanes: Mapping[Lane, InputLane | BlockLane]
    program: TaskProgram
    changes: TaskChanges
    sink: Sink
    store: StateStore | None
    snapshots: SnapshotWriter
    log: Log
    metrics: TaskMetrics
    feedback: TaskFeedback | None = None
    spill: TaskSpill | None = None
    silence: Silence | None = None
    predecessor: Predecessor | None = None
    trim: Callable[[CompletionCheck, Mapping[Lane, int]], None] | None = None
    trace: EpochTrace = field(default_factory=EpochTrace)
    repeats: RepeatsLog | None = None
    rejected: RejectedRecords = field(init=False)
    step: str = field(init=False, default="beginning")
    commits: int = field(init=False, default=0)
    commit_s: float = field(init=False, default=0.0)
    dead_letters: int = field(init=False, default=0)
    _foreseen: dict[Lane, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.rejected = RejectedRecords(self.spec.topics.late, self.spec.topics.dead)

    @property
    def engine(self) -> TaskEngine:
        """The engine of the program."""
        return self.program.engine

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that the task reads."""
        return tuple(partitions_of(self.lanes))

    def is_closed(self, lane: InputLane | BlockLane) -> bool:
        """Whether the rest of a source's partition belongs to the plan that takes over.

        That plan's tasks may run already: this task may be a later incarnation of a task that had reached its end.
        """
        return self.changes.ends_at(self.engine.cut) and isinstance(lane, InputLane) and not lane.replaying

    def take(self, lane: InputLane | BlockLane) -> None:
        """Feed the batches that a lane has retained, as far as they are this plan's."""
        while lane.retained and not self.is_closed(lane):
            batch, rejected = lane.retained.popleft(), self.rejected
            if self.predecessor is not None and isinstance(lane, InputLane):
                is_final, offset = self.predecessor.is_final(lane.key), self.predecessor.offset(lane.key)
                if batch.start < offset:
                    # The former plan's tasks report what is rejected there.
                    rejected = RejectedRecords(self.spec.topics.late, self.spec.topics.dead)
                    if batch.next_offset > offset:
                        lane.retained.appendleft(batch.since(offset))
                        batch = batch.until(offset)
                elif not is_final:
                    lane.retained.appendleft(batch)
                    self._foresee(lane)
                    return
            began = time.monotonic()
            try:
                taken = lane.take(self.engine, batch, rejected)
            except SchemaUnavailable as error:
                lane.retained.appendleft(batch)
                lane.waits_for = str(error)
                if lane.idle:
                    lane.set_idle(self.engine, False)  # it is no longer silent, and its tuples must not become late
                return
            lane.waits_for = ""
            self.trace.decoded(began, taken)
            self.metrics.input_tuples.inc(taken)

    def _foresee(self, lane: InputLane) -> None:
        """Show the feedback what a lane may not take yet: it can request what these tuples will need."""
        if self.feedback is None or not self.feedback.foresees:
            return
        for batch in lane.retained:
            seen = self._foreseen.get(lane.key, 0)
            if batch.next_offset > seen:
                try:
                    found = list(lane.decode(batch.since(seen)))
                except SchemaUnavailable:
                    return
                self._foreseen[lane.key] = batch.next_offset
                for stream, tuples in found:
                    self.feedback.foresee(stream, tuples)

    def waits_for_predecessor(self, lane: InputLane | BlockLane) -> bool:
        """Whether a source's partition has been read so far ahead of the former plan's tasks that it must wait."""
        if self.predecessor is None or not isinstance(lane, InputLane):
            return False
        return sum(batch.size_bytes for batch in lane.retained) > AHEAD_BYTES


def make_lanes(
    spec: TaskSpec, recovery: RecoveryPlan, log: Log, feedback: DistributedFeedback | None = None
) -> dict[Lane, InputLane | BlockLane]:
    """Make the lanes of a task."""
    return {key: _make_lane(spec, key, start, recovery.floor, log, feedback) for key, start in recovery.lanes.items()}


def _make_lane(
    spec: TaskSpec, key: Lane, start: LaneStart, floor: int, log: Log, feedback: DistributedFeedback | None
) -> InputLane | BlockLane:
    if spec.part is None:
        return InputLane(key, spec.query, start, floor, decoders=spec.decoders)
    first, *others = spec.part.inputs(key[0])
    if first.edge is not None:
        return BlockLane(key, first, start, floor, log, feedback)
    positions = {given.stream.name: given.position for given in (first, *others) if given.position}
    return InputLane(key, spec.query, start, floor, positions, dict(spec.part.operator.kept), spec.decoders)


def partitions_of(lanes: Mapping[Lane, InputLane | BlockLane]) -> dict[str, list[int]]:
    """Per stream, the partitions that the lanes feed."""
    partitions: dict[str, list[int]] = {}
    for lane in lanes.values():
        for stream, partition in lane.inputs:
            partitions.setdefault(stream, []).append(partition)
    return partitions
