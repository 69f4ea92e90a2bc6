"""What differs between the kinds of tasks: those of a query, of an operator of a distributed query, and of a group.

`services.worker.task_opener` takes a task over and finds out where its input starts; a `TaskKind` then builds what the
task runs. Each kind has a module: `query_tasks`, `operator_tasks`, `group_tasks`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from schemas.errors import InvariantError
from services.control.barrier import View
from services.control.predecessor import Predecessor
from services.delivery.sink import Sink
from services.kafka.topics import Lane
from services.process.logs import Log
from services.process.metrics import TaskMetrics
from services.recovery.starting_point import Committed, RecoveryPlan
from services.task.block_lane import BlockLane
from services.task.feedback import TaskFeedback
from services.task.lane import InputLane
from services.task.program import TaskChanges, TaskProgram
from services.task.silence import Silence
from services.task.spec import TaskSpec
from services.task.spill import SpillStart, TaskSpill


@dataclass(frozen=True, slots=True)
class TaskStart:
    """A task that has been taken over from its former incarnation and is about to be built.

    Attributes:
        spec: what the task runs.
        incarnation: a name that no other incarnation of the task has.
        recovery: where the task starts.
        view: the control log up to this incarnation's `Opened`.
        spill: None without a memory budget and without pending results.
        resources: what is released if the task cannot be built. A task that was built releases it when it ends.
    """

    number: int
    spec: TaskSpec
    incarnation: str
    recovery: RecoveryPlan
    view: View
    sink: Sink
    spill: SpillStart | None
    log: Log
    metrics: TaskMetrics
    resources: ExitStack


@dataclass(frozen=True, slots=True)
class TaskParts:
    """What a task is built of; see `services.task.context.TaskContext`."""

    lanes: Mapping[Lane, InputLane | BlockLane]
    program: TaskProgram
    changes: TaskChanges
    spill: TaskSpill | None = None
    feedback: TaskFeedback | None = None
    silence: Silence | None = None
    predecessor: Predecessor | None = None


@dataclass(frozen=True, slots=True)
class FormerTask:
    """A task of the former plan.

    Attributes:
        lanes: the partitions that it read.
        repeats: its log of repeats.
    """

    lanes: tuple[Lane, ...]
    repeats: Lane


class TaskKind(ABC):
    """A kind of task; its methods are called in threads."""

    @abstractmethod
    def spec(self, number: int) -> TaskSpec:
        """What a task runs."""

    @abstractmethod
    def build(self, start: TaskStart) -> TaskParts:
        """Build a task: its engine first, then what uses the engine. What must be released goes into `start.resources`
        at once, too.

        Raises:
            WeirError: the task cannot run, or not now (BrokerError).
        """

    def keeps_snapshots(self, number: int) -> bool:
        """Whether a task's input alone determines its state, so that snapshots can replace a part of the input."""
        return True

    def spills(self, number: int) -> bool:
        """Whether a task uses the memory budget."""
        return True

    def internal_input(self, number: int) -> Sequence[Lane]:
        """The partitions of internal topics that a task reads."""
        return ()

    def internal_output(self, number: int) -> Sequence[Lane]:
        """The partitions of internal topics that a task may write to; they need not exist."""
        return ()

    @property
    def takes_part(self) -> bool:
        """Whether tasks take part in the barrier of plan changes as soon as they are opened."""
        return True

    def former_commits(self, number: int) -> dict[Lane, Committed] | None:
        """What the tasks of the former plan have committed, of a task's input at least; None without a former plan.

        Raises:
            BrokerError: Kafka does not answer.
        """
        return None

    def former_task(self, lane: Lane) -> FormerTask:
        """The task of the former plan that read a partition of `former_commits`."""
        raise InvariantError(f"no former plan has read {lane[0]}[{lane[1]}]")
