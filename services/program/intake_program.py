"""Runs an intake of a distributed query in a task: one engine, and blocks for the operators that read its streams.

`services.worker.operator_tasks` makes an `IntakeProgram` for each task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from operators.data.statistics import EngineStatistics
from operators.distributed.edge_writer import EdgeWriter
from operators.distributed.intake import SourceIntake
from schemas.codecs.encode import Encoded
from schemas.columns import Batch
from services.delivery.epoch_output import BlockRecord
from services.placement.distributed import Part
from services.process.metrics import TaskMetrics
from services.program.result_output import BlockEncoder
from services.spill.budget import FixedMemoryLog
from services.task.program import TaskChanges


class IntakeProgram:
    """A `services.task.program.TaskProgram` for an intake.

    Args:
        announced: the cut of the last commit.
        publish: receives the engine's statistics and the plan's version.
    """

    durable = None
    pending_pairs = 0
    settled = True

    def __init__(
        self,
        part: Part,
        engine: SourceIntake,
        changes: TaskChanges,
        announced: int,
        publish: Callable[[EngineStatistics, int], None],
    ) -> None:
        self.engine = engine
        self._changes = changes
        self._publish = publish
        self._fixed_log = FixedMemoryLog()
        self._found: dict[str, Batch] = {}
        query = part.operator.query
        routes: dict[str, list[EdgeWriter]] = {}
        for edge in part.operator.outputs:
            routes.setdefault(query.source(edge.aliases[0]).stream.name, []).append(EdgeWriter(edge, part.share))
        self._encoders = {
            stream: BlockEncoder(own, announced, engine.nothing(stream)) for stream, own in routes.items()
        }

    @property
    def numbers(self) -> tuple[int, ...]:
        """Per stream that is counted, how many tuples have been numbered."""
        return self.engine.numbers

    def advance(self, cut: int) -> bool:
        """Process an epoch."""
        self._found = self.engine.advance(cut)
        return bool(self._found)

    def has_output(self) -> bool:
        """Whether other tasks wait for the watermark."""
        return any(encoder.must_announce(self.engine.cut) for encoder in self._encoders.values())

    def encode(self) -> tuple[list[tuple[str, Encoded]], list[BlockRecord]]:
        """The last epoch's blocks, if they have not been returned yet."""
        found, self._found = self._found, {}
        blocks: list[BlockRecord] = []
        for stream, encoder in self._encoders.items():
            blocks += encoder.encode(found.get(stream), self.engine.cut)[1]
        return [], blocks

    def count(self, delivered: Mapping[str, int], metrics: TaskMetrics) -> None:
        """Count nothing: an intake has no results."""

    def report(self, metrics: TaskMetrics) -> float:
        """Publish to the metrics and to the statistics topic."""
        found = self.engine.statistics()
        metrics.state_tuples.set(0)
        metrics.state_bytes.set(found.state_bytes)
        metrics.pending.set(found.pending_tuples)
        if found.spill is not None:
            metrics.spill(found.spill)
            self._fixed_log.look(found.spill)
        self._publish(found, self._changes.version)
        return found.busy_s
