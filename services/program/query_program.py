"""Runs one query in a task, or an operator of a distributed query: one engine, and one topic of results.

`services.worker.task_opener` makes a `QueryProgram` for each task that does not run a group of queries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from operators.data.statistics import EngineStatistics
from operators.distributed.feedback import DistributedFeedback
from operators.engine.engine import Engine
from schemas.codecs.encode import Encoded
from schemas.columns import Batch
from services.delivery.epoch_output import BlockRecord
from services.process.metrics import TaskMetrics
from services.program.distributed_migrations import DistributedMigrations
from services.program.migrations import TaskMigrations
from services.program.result_output import encoder_of, late_records
from services.task.spec import TaskSpec
from services.task.spill import TaskSpill


class QueryProgram:
    """Runs one query, or an operator of a distributed query.

    Args:
        announced: the cut of the last commit.
        operator_feedback: the feedback of an operator that takes part in it; None otherwise.
        spill: the task's spilled state; None without a memory budget.
        publish: receives the engine's statistics and the plan's version.
        partitions: of each stream, those that the task reads.
    """

    def __init__(
        self,
        spec: TaskSpec,
        migrations: TaskMigrations | DistributedMigrations,
        announced: int,
        operator_feedback: DistributedFeedback | None,
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
        self.pending_pairs = 0
        self.engine = Engine(
            spec.query,
            plan=migrations.plan if spill is None else spill.plan(spec.query, migrations.plan),
            tables=spec.tables.batches,
            partitions=partitions,
            feedback=(spec.settings.jit and spec.part is None) if operator_feedback is None else operator_feedback.of,
            kept=() if operator_feedback is None else operator_feedback.columns_kept,
            budget=None if spill is None else spill.budget,
            blocks=None if spill is None else spill.blocks,
            clock=time.monotonic,
        )
        if operator_feedback is not None:
            operator_feedback.attach(self.engine)
        nothing = self.engine.advance(0)
        self._encoder = encoder_of(spec.topics.sink, spec.query, spec.part, announced, nothing, spec.since)

    @property
    def durable(self) -> Engine:
        """The engine."""
        return self.engine

    def begin(self) -> None:
        """Replay the spills of earlier incarnations, and schedule plan changes that were decided before."""
        if self._spill is not None:
            self._spill.attach(self.engine, self._announced, self._late, lambda: str(self.engine.plan))
            if self._spill.next_plan is not None:
                self.engine.migrate(self._spill.next_plan, "moving-state", self._announced)
        self._migrations.attach(self.engine)

    def _late(self) -> list[tuple[str, Encoded]]:
        return [(self._sink, piece) for batch in self.engine.cleaned() for piece in late_records(batch)]

    def advance(self, cut: int) -> bool:
        """Process an epoch."""
        self._found = self.engine.advance(cut)
        self._migrations.advanced(self._found, time.monotonic())
        return len(self._found) > 0

    def has_output(self) -> bool:
        """Whether other tasks wait for the watermark."""
        return self._encoder.must_announce(self.engine.cut)

    def encode(self) -> tuple[list[tuple[str, Encoded]], list[BlockRecord]]:
        """The last epoch's results, if they have not been returned yet."""
        found, self._found = self._found, None
        return self._encoder.encode(found, self.engine.cut)

    def count(self, delivered: Mapping[str, int], metrics: TaskMetrics) -> None:
        """Count all of them as results."""
        metrics.results.inc(sum(delivered.values()))

    def report(self, metrics: TaskMetrics) -> float:
        """Publish to the metrics and to the statistics topic."""
        found = self.engine.statistics()
        metrics.state_tuples.set(found.state_tuples)
        metrics.state_bytes.set(found.state_bytes)
        metrics.pending.set(found.pending_tuples)
        metrics.feedback(found.feedback)
        if found.spill is not None:
            self.pending_pairs = found.spill.owed
            metrics.spill(found.spill)
        self._publish(found, self._migrations.version)
        return found.busy_s
