"""Runs one query in a task, or an operator of a distributed query: one engine, and one topic of results.

`services.worker.query_tasks` and `services.worker.operator_tasks` make a `QueryProgram` for each task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from operators.data.statistics import EngineStatistics
from operators.engine.engine import Engine
from schemas.codecs.encode import Encoded
from schemas.columns import Batch
from schemas.query import Query
from services.delivery.epoch_output import BlockRecord
from services.process.metrics import TaskMetrics
from services.program.migrations import PlanChanges
from services.program.result_output import encoder_of
from services.spill.budget import FixedMemoryLog
from services.task.spec import TaskSpec

HOT_S = 10.0
"""How often hot keys are looked for."""


class QueryProgram:
    """A `services.task.program.TaskProgram` for one query, or for an operator of a distributed query but an intake.

    Args:
        whole: the query whose results the task's are, or become.
        announced: the cut of the last commit.
        publish: receives the engine's statistics and the plan's version.
        since: returns the event time from which on this plan delivers results.
    """

    numbers = ()

    def __init__(
        self,
        spec: TaskSpec,
        whole: Query,
        engine: Engine,
        changes: PlanChanges,
        announced: int,
        publish: Callable[[EngineStatistics, int], None],
        since: Callable[[], int] = int,
    ) -> None:
        self.engine = engine
        self.pending_pairs = 0
        self._changes = changes
        self._publish = publish
        self._fixed_log = FixedMemoryLog()
        self._found: Batch | None = None
        self._hot_s = time.monotonic()
        nothing = engine.advance(0)
        complete = (lambda: engine.complete) if engine.spills else None
        self._encoder = encoder_of(
            spec.topics.sink,
            spec.encoders.of(whole),
            spec.part,
            announced,
            nothing,
            since,
            complete,
        )

    @property
    def durable(self) -> Engine:
        """The engine."""
        return self.engine

    def advance(self, cut: int) -> bool:
        """Process an epoch."""
        self._found = self.engine.advance(cut)
        self._changes.advanced(self._found, time.monotonic())
        return len(self._found) > 0

    def has_output(self) -> bool:
        """Whether other tasks wait for the watermark."""
        return self._encoder.must_announce(self.engine.cut)

    def encode(self) -> tuple[list[tuple[str, Encoded]], list[BlockRecord]]:
        """The last epoch's results, if they have not been returned yet."""
        found, self._found = self._found, None
        return self._encoder.encode(found, self.engine.cut)

    @property
    def settled(self) -> bool:
        """Whether no results before the engine's cut are pending, here or in a task below."""
        return self.engine.complete >= self.engine.cut

    def late_results(self) -> list[tuple[str, Encoded]]:
        """The late results of the engine's cleanups since the last call, with their topic."""
        return self._encoder.encode_late(self.engine.cleaned())

    def count(self, delivered: Mapping[str, int], metrics: TaskMetrics) -> None:
        """Count all of them as results."""
        metrics.results.inc(sum(delivered.values()))

    def report(self, metrics: TaskMetrics) -> float:
        """Publish to the metrics and to the statistics topic."""
        now = time.monotonic()
        hot = now >= self._hot_s + HOT_S
        if hot:
            self._hot_s = now
        found = self.engine.statistics(hot=hot)
        metrics.state_tuples.set(found.state_tuples)
        metrics.state_bytes.set(found.state_bytes)
        metrics.pending.set(found.pending_tuples)
        metrics.feedback(found.feedback)
        if found.spill is not None:
            self.pending_pairs = found.spill.owed
            metrics.spill(found.spill)
            self._fixed_log.look(found.spill)
        self._publish(found, self._changes.version)
        return found.busy_s
