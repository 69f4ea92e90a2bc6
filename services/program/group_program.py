"""Runs a group of queries in a task: one engine, and a topic of results per query.

`services.worker.group_tasks` makes a `GroupProgram` for each task of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from operators.groups.engine import GroupEngine
from operators.groups.statistics import GroupStatistics
from schemas.codecs.encode import Encoded
from schemas.columns import Batch
from schemas.query import CLEANUP_PHASE
from services.delivery.epoch_output import BlockRecord
from services.formats.encoders import Encoders
from services.process.metrics import TaskMetrics
from services.program.group_members import GroupMembers
from services.program.result_output import encode_pieces
from services.spill.budget import FixedMemoryLog


class GroupProgram:
    """A `services.task.program.TaskProgram` for a group.

    Args:
        encoders: of the queries' results.
        publish: receives the engine's statistics.
    """

    durable = None
    # A group does not end with a plan.
    settled = True
    numbers = ()

    def __init__(
        self,
        engine: GroupEngine,
        members: GroupMembers,
        encoders: Encoders,
        publish: Callable[[GroupStatistics], None],
    ) -> None:
        self.engine = engine
        self.pending_pairs = 0
        self._members = members
        self._encoders = encoders
        self._publish = publish
        self._fixed_log = FixedMemoryLog()
        self._found: dict[str, Batch] = {}

    def advance(self, cut: int) -> bool:
        """Process an epoch."""
        self._found = self.engine.advance(cut)
        return any(len(found) for found in self._found.values())

    def has_output(self) -> bool:
        """Whether a query has begun or ended."""
        return self._members.must_commit

    def encode(self) -> tuple[list[tuple[str, Encoded]], list[BlockRecord]]:
        """The last epoch's results, if they have not been returned yet, and the queries that have begun or ended."""
        found, self._found = self._found, {}
        encoded: list[tuple[str, Encoded]] = []
        for query in self._members.queries:
            results = found.get(query.name)
            if results is not None and len(results) and query.sink is not None:
                encoded += encode_pieces(query.sink, self._encoders.of(query), [results])
        return encoded, self._members.records()

    def count(self, delivered: Mapping[str, int], metrics: TaskMetrics) -> None:
        """Count results, of all queries and of each; the topic names the query."""
        for topic, results in delivered.items():
            metrics.results.inc(results)
            metrics.member(topic).inc(results)

    def report(self, metrics: TaskMetrics) -> float:
        """Publish to the metrics and to the statistics topic; returns the seconds that the engine has been busy."""
        found = self.engine.statistics()
        metrics.state_tuples.set(found.state_tuples)
        metrics.state_bytes.set(found.state_bytes)
        metrics.pending.set(found.pending_tuples)
        metrics.members(len(self.engine.names))
        self.pending_pairs = 0 if found.spill is None else found.spill.owed
        if found.spill is not None:
            metrics.spill(found.spill)
            self._fixed_log.look(found.spill)
        self._publish(found)
        return found.busy_s


def late_results_of(engine: GroupEngine, encoders: Encoders) -> list[tuple[str, Encoded]]:
    """The late results since the last call, also of queries that have ended; a query's name is its topic."""
    return [
        late
        for topic, batches in engine.cleaned().items()
        for batch in batches
        for late in encode_pieces(topic, encoders.late(topic, batch), [batch], CLEANUP_PHASE)
    ]
