"""The tasks of a distributed query (`operators.distributed`), whose operators each have tasks of their own.

    placement fused:         sources ------------------> one task: all joins --------> sink
    placement per-operator:  sources -> task: a join -> internal topic -> task: the next join -> sink

`DistributedLayout` decides what each task reads and writes. Tasks are numbered from the top operator's, so these write
the sink's partitions as a fused query's tasks do. Exactly one task reads each partition of every topic, so the group's
committed offsets belong to that task, as in a fused query. A task commits its results, the watermark after them, and
its input offsets in one transaction, and its readers read committed records only. So each link of the chain is exactly
once, and so is the chain.

**Internal topics** are named `<group>.<n>.<aliases>`: after the group, not the query, since two groups that run the
same query must not read each other's topics. They have no retention limit, because tuples of a window may have been
written any time ago. The task that reads a topic deletes the beginning that its commits no longer need
(`services.task.commits`), as Kafka Streams does with its repartition topics.

A reader and the tasks that write to it address each other by the topic, its partition and the channels in it
(`operators.distributed.decompose.Edge`). With feedback (`services.task.feedback`) readers send their demands in a
separate topic, `<group>.feedback`; the answers are in the internal topic.

**Limits.** If the split follows the sources' partitions and some are added, a new group is needed. A reader takes all
channels of a partition in the order of the records. If one channel is far ahead of the others, the reader keeps its
unprocessed tuples in memory; pausing the partition would delay the other channels. A reader also continues to read
while it waits for an answer, since the answer comes after all earlier records: it keeps whatever its producers have
written meanwhile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from operators.distributed.operator import DistributedOperator, OperatorInput
from operators.plan.plan import Plan
from schemas.query import Field, Query
from services.kafka.topics import Lane
from services.process.fingerprint import fingerprint


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a plan that one task runs: a share of an operator.

    Attributes:
        share: number of the task among those of its operator, from 0.
    """

    operator: DistributedOperator
    share: int

    def inputs(self, topic: str) -> list[OperatorInput]:
        """The operator's inputs from a topic: one, or the sources that share it."""
        return [given for given in self.operator.streams if given.stream.topic == topic]

    @property
    def name(self) -> str:
        """The operator's name, and the share if there are several; for people."""
        share = f" share {self.share}" if self.operator.tasks > 1 else ""
        return f"{self.operator.name}{share}"


class DistributedLayout:
    """The tasks of a distributed query; has the same methods as `services.placement.tasks.Layout`.

    Attributes:
        partitions: partition count per topic that is read, source or internal.
        internal: partition count per internal topic.
        tasks: how many tasks there are, numbered from 0.
        sinks: how many tasks, the first ones, write to the sink.
        name: distinguishes its tasks from those of any other layout.
        copartitioned: always False: tasks are not numbered by partitions.
    """

    copartitioned = False

    def __init__(self, operators: Sequence[DistributedOperator], sources: Mapping[str, int]) -> None:
        self._parts = [Part(operator, share) for operator in operators for share in range(operator.tasks)]
        self.tasks = len(self._parts)
        self.sinks = operators[0].tasks
        self.internal = {edge.topic: edge.partitions for operator in operators for edge in operator.outputs}
        self.partitions: Mapping[str, int] = {**sources, **self.internal}
        self._lanes = [self._lanes_of(part, sources) for part in self._parts]
        identity = repr([(part.name, lanes) for part, lanes in zip(self._parts, self._lanes, strict=True)])
        self.name = hashlib.sha256(identity.encode()).hexdigest()[:16]
        self._task_of_lane = {lane: number for number, lanes in enumerate(self._lanes) for lane in lanes}

    @staticmethod
    def _lanes_of(part: Part, sources: Mapping[str, int]) -> tuple[Lane, ...]:
        found: dict[Lane, None] = {}
        for given in part.operator.streams:
            topic = given.stream.topic
            whole = given.edge is None and not part.operator.forward
            for partition in range(sources[topic]) if whole else (part.share,):
                found[topic, partition] = None
        return tuple(found)

    def part(self, task: int) -> Part:
        """What a task runs."""
        return self._parts[task]

    def task_of(self, topic: str, partition: int) -> int | None:
        """The task that reads a partition; None for a partition that was added later."""
        return self._task_of_lane.get((topic, partition))

    def internal_lanes(self, task: int) -> tuple[Lane, ...]:
        """The partitions of a task that other tasks write to."""
        return tuple(lane for lane in self._lanes[task] if lane[0] in self.internal)

    def lanes(self, task: int) -> tuple[Lane, ...]:
        """The (topic, partition) pairs of a task, in a fixed order."""
        return self._lanes[task]


class _Text(str):
    """A text that is its own `repr`."""

    __repr__ = str.__str__

    @staticmethod
    def of(field: Field) -> _Text:
        """A field as the first fingerprints had it, before fields had more attributes."""
        return _Text(f"Field(name={field.name!r}, type={field.type!r})")


def part_fingerprint(query: Query, plan: Plan, operator: DistributedOperator, *, spills: bool = False) -> str:
    """16 hex digits that identify an operator: committed state is valid only for the same fingerprint.

    Args:
        spills: whether tasks have memory budgets, so that results of other tasks may come late.
    """
    edges = [
        (edge.topic, edge.partitions, edge.channels, tuple(map(_Text.of, edge.fields)), edge.kinds)
        for edge in (*(given.edge for given in operator.inputs if given.edge is not None), *operator.outputs)
    ]
    identity = repr((fingerprint(query), str(plan), operator.name, operator.tasks, operator.forward, edges))
    identity += "spills" if spills else ""
    return hashlib.sha256(identity.encode()).hexdigest()[:16]
