"""What a task runs: an engine, what becomes of its results, what it tells of itself.

A task feeds whatever it is given, commits, and comes back after a crash; the program knows whether that is one query
(`QueryProgram`, also of a part of a plan whose joins run apart) or a group of them (`services.task.group_program`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from operators.data.statistics import EngineStatistics
from operators.distributed.feedback import PlacedFeedback
from operators.engine.engine import Engine
from schemas.codecs.encode import Encoded
from schemas.columns import Batch
from services.delivery.epoch_output import BlockRecord
from services.process.metrics import TaskMetrics
from services.task.distributed_migrations import PlacedMigrations
from services.task.engine import TaskEngine
from services.task.migrations import TaskMigrations
from services.task.result_output import late_records, outlet_of
from services.task.spec import TaskSpec
from services.task.spill import TaskSpill


class Changes(Protocol):
    """How what a task runs changes while it runs: its plan, or the queries of a group.

    Attributes:
        version: of the plan, to commit with what has been processed.
        doubted: whether a commit is to show that no other life of the task has taken over.
    """

    @property
    def version(self) -> int:
        """See above."""
        ...

    @property
    def doubted(self) -> bool:
        """See above."""
        ...

    def glance(self, committed: float, now: float) -> None:
        """`look`, if the last one was a while ago."""
        ...

    def look(self, committed: float, now: float) -> None:
        """Between two epochs: see what is asked, and do it.

        Args:
            committed: when the last commit that succeeded was begun, in monotonic seconds.
        """
        ...

    def limit(self, watermark: int, now: float) -> int:
        """How far the next epoch may go."""
        ...

    def ended(self, cut: int) -> bool:
        """Whether the task is to end here."""
        ...

    def conclude(self, now: float) -> None:
        """The task has ended."""
        ...


class Program(Protocol):
    """See the module.

    Attributes:
        durable: the engine, where snapshots of it can be taken.
        owed: pairs of tuples that are still to be compared, as of the last report; 0 where nothing is owed.
    """

    owed: int

    @property
    def engine(self) -> TaskEngine:
        """The engine."""
        ...

    @property
    def durable(self) -> Engine | None:
        """See above."""
        ...

    def begin(self) -> None:
        """In the task's thread, before anything is read again."""
        ...

    def advance(self, cut: int) -> bool:
        """Process an epoch; whether it gave results."""
        ...

    def owes(self) -> bool:
        """Whether something is to be delivered even without results."""
        ...

    def encode(self) -> tuple[list[tuple[str, Encoded]], list[BlockRecord]]:
        """What is to be delivered since the last time: records by topic, and blocks."""
        ...

    def count(self, delivered: Mapping[str, int], metrics: TaskMetrics) -> None:
        """Count records of `encode` that have been delivered, by topic."""
        ...

    def report(self, metrics: TaskMetrics) -> float:
        """Tell of the engine; seconds that it has been busy."""
        ...


class QueryProgram:
    """One query, or an operator of one.

    Args:
        announced: the watermark that was committed last.
        placed: of a part of a plan that takes part in feedback.
        spill: what leaves memory.
        publish: told the engine's statistics and the plan's version.
    """

    def __init__(
        self,
        spec: TaskSpec,
        migrations: TaskMigrations | PlacedMigrations,
        announced: int,
        placed: PlacedFeedback | None,
        spill: TaskSpill | None,
        publish: Callable[[EngineStatistics, int], None],
        partitions: Mapping[str, Sequence[int]],
    ) -> None:
        self._migrations = migrations
        self._announced = announced
        self._spill = spill
        self._publish = publish
        self._sink = spec.topics.sink
        self._found: Batch | None = None
        self.owed = 0
        self.engine = Engine(
            spec.query,
            plan=migrations.plan if spill is None else spill.plan(spec.query, migrations.plan),
            tables=spec.tables.batches,
            partitions=partitions,
            feedback=(spec.settings.jit and spec.part is None) if placed is None else placed.of,
            kept=() if placed is None else placed.columns_kept,
            budget=None if spill is None else spill.budget,
            blocks=None if spill is None else spill.blocks,
            clock=time.monotonic,
        )
        if placed is not None:
            placed.attach(self.engine)
        self._outlet = outlet_of(spec.topics.sink, spec.query, spec.part, announced, self.engine.advance(0), spec.since)

    @property
    def durable(self) -> Engine:
        """The engine."""
        return self.engine

    def begin(self) -> None:
        """Ask for spills and for plan changes that were decided before."""
        if self._spill is not None:
            self._spill.attach(self.engine, self._announced, self._late, lambda: str(self.engine.plan))
            if self._spill.own is not None:
                self.engine.migrate(self._spill.own, "moving-state", self._announced)
        self._migrations.attach(self.engine)

    def _late(self) -> list[tuple[str, Encoded]]:
        return [(self._sink, piece) for batch in self.engine.cleaned() for piece in late_records(batch)]

    def advance(self, cut: int) -> bool:
        """Process an epoch."""
        self._found = self.engine.advance(cut)
        self._migrations.advanced(self._found, time.monotonic())
        return len(self._found) > 0

    def owes(self) -> bool:
        """Whether other tasks wait for the watermark."""
        return self._outlet.owes(self.engine.cut)

    def encode(self) -> tuple[list[tuple[str, Encoded]], list[BlockRecord]]:
        """The last epoch's results, if they have not been given yet."""
        found, self._found = self._found, None
        return self._outlet.encode(found, self.engine.cut)

    def count(self, delivered: Mapping[str, int], metrics: TaskMetrics) -> None:
        """As results."""
        metrics.results.inc(sum(delivered.values()))

    def report(self, metrics: TaskMetrics) -> float:
        """To metrics and to the statistics topic."""
        found = self.engine.statistics()
        metrics.state_tuples.set(found.state_tuples)
        metrics.state_bytes.set(found.state_bytes)
        metrics.pending.set(found.pending_tuples)
        metrics.feedback(found.feedback)
        if found.spill is not None:
            self.owed = found.spill.owed
            metrics.spill(found.spill)
        self._publish(found, self._migrations.version)
        return found.busy_s
