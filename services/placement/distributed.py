"""The tasks of a plan whose joins run apart (`operators.distributed`), and what each of them reads and writes.

    placement fused:         sources ------------------> one task: all joins --------> sink
    placement per-operator:  sources -> task: a join -> internal topic -> task: the next join -> sink

Tasks are numbered from the top operator's, which thus write the sink's partitions as a fused query's tasks do. Every
partition of every topic is read by exactly one task, so the group's committed offsets belong to that task, as in a
fused query. A task's results, the watermark behind them, and its input offsets are one transaction, and its readers
read committed records only: each link of the chain is exactly once, and so is the chain.

**Internal topics** are called `<group>.<n>.<aliases>`: by the group, not the query, since two groups that run one query
must not read each other's. They are kept without limit, because what a window still holds may have been written any
time ago; who reads one deletes from its beginning what its commits no longer need (`Task`), as Kafka Streams does with
its repartition topics.

A reader and the tasks that write to it know of each other by the topic, its partition and the channels in it
(`operators.distributed.decompose.Edge`): the address of whatever one of them has to tell the other. With feedback
(`services.task.feedback`) readers ask in a topic of their own, `<group>.feedback`; answers are in band.

**Limits.** Exactly once only. No idle timeouts: a silent source holds back what it is joined with. Where the split
follows the sources' partitions and some are added, a new group is needed. A reader takes all channels of a partition as
they come: of one that is far ahead of the others it keeps in memory what it cannot process yet. Pausing the partition
would hold back those that are behind. While it waits for an answer it reads on, too, since that comes behind all that
was written before: as far as its producers are ahead, it keeps what they wrote.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from operators.distributed.decompose import Input, PlacedOperator
from operators.plan.plan import Plan
from schemas.errors import UsageError
from schemas.query import Query
from services.kafka.topics import Lane
from services.process.fingerprint import fingerprint
from services.process.settings import Guarantee, WorkerSettings


@dataclass(frozen=True, slots=True)
class Part:
    """What one task runs of a plan: a share of an operator."""

    operator: PlacedOperator
    share: int

    def input(self, topic: str) -> Input:
        """The input that comes from a topic."""
        return next(given for given in self.operator.inputs if given.stream.topic == topic)

    @property
    def name(self) -> str:
        """For people."""
        share = f" share {self.share}" if self.operator.tasks > 1 else ""
        return f"{self.operator.name}{share}"


class PlacedLayout:
    """The tasks of a plan that was taken apart; answers what `services.placement.tasks.Layout` does.

    Attributes:
        partitions: partition count per topic that is read, sources' and internal ones.
        internal: those of the internal topics.
        tasks: how many tasks there are, numbered from 0.
        sinks: how many of them, the first, write to the sink.
        name: tells its tasks from those of any other layout.
        copartitioned: always False: tasks are not numbered by partitions.
    """

    copartitioned = False

    def __init__(self, operators: Sequence[PlacedOperator], sources: Mapping[str, int]) -> None:
        self._parts = [Part(operator, share) for operator in operators for share in range(operator.tasks)]
        self.tasks = len(self._parts)
        self.sinks = operators[0].tasks
        self.internal = {edge.topic: edge.partitions for operator in operators for edge in operator.outputs}
        self.partitions: Mapping[str, int] = {**sources, **self.internal}
        self._lanes = [self._lanes_of(part, sources) for part in self._parts]
        said = repr([(part.name, lanes) for part, lanes in zip(self._parts, self._lanes, strict=True)])
        self.name = hashlib.sha256(said.encode()).hexdigest()[:16]
        self._sets = {lane: number for number, lanes in enumerate(self._lanes) for lane in lanes}

    @staticmethod
    def _lanes_of(part: Part, sources: Mapping[str, int]) -> tuple[Lane, ...]:
        found: dict[Lane, None] = {}
        for given in part.operator.inputs:
            topic = given.stream.topic
            whole = given.edge is None and not part.operator.forward
            for partition in range(sources[topic]) if whole else (part.share,):
                found[topic, partition] = None
        return tuple(found)

    def part(self, task: int) -> Part:
        """What a task runs."""
        return self._parts[task]

    def set_of(self, topic: str, partition: int) -> int | None:
        """The task that reads a partition; None for one that was added later."""
        return self._sets.get((topic, partition))

    def internal_lanes(self, task: int) -> tuple[Lane, ...]:
        """Those partitions of a task that other tasks write to."""
        return tuple(lane for lane in self._lanes[task] if lane[0] in self.internal)

    def lanes(self, task: int) -> tuple[Lane, ...]:
        """The (topic, partition) pairs of a task, in a fixed order."""
        return self._lanes[task]


def check_settings(query: Query, settings: WorkerSettings) -> None:
    """Refuse settings that placed operators cannot keep.

    Raises:
        UsageError: the message says which.
    """
    why = ""
    idle = [stream.name for stream in query.streams() if stream.idle_timeout_ms is not None]
    if settings.guarantee is not Guarantee.EXACTLY_ONCE:
        why = f"guarantee {settings.guarantee} would repeat intermediate results"
    elif idle or settings.idle_timeout_ms is not None:
        what = f"stream {idle[0]} declares idle_timeout" if idle else "an idle timeout is given"
        why = f"{what}, and an operator cannot tell the next one that it waits for nobody"
    if why:
        raise UsageError(f"placement per-operator: {why}; use placement fused")


def part_fingerprint(query: Query, plan: Plan, operator: PlacedOperator) -> str:
    """16 hex digits: what must stay the same for an operator's committed state to mean the same."""
    edges = [
        (edge.topic, edge.partitions, edge.channels, edge.fields, edge.kinds)
        for edge in (*(given.edge for given in operator.inputs if given.edge is not None), *operator.outputs)
    ]
    said = repr((fingerprint(query), str(plan), operator.name, operator.tasks, operator.forward, edges))
    return hashlib.sha256(said.encode()).hexdigest()[:16]
