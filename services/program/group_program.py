"""Runs a group of queries in a task: one engine, and a topic of results per query.

`services.worker.task_opener` makes a `GroupProgram` for each task of a group.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from operators.groups.sharing import group_engine
from schemas.codecs.encode import Encoded, key_names
from schemas.columns import Batch
from services.delivery.epoch_output import BlockRecord
from services.kafka.topics import TopicAdmin
from services.process.metrics import TaskMetrics
from services.program.group_members import GroupMembers
from services.program.result_output import late_records, pieces
from services.task.spec import TaskSpec
from services.task.spill import TaskSpill


class GroupProgram:
    """A `services.program.query_program.TaskProgram` for a group.

    Args:
        spill: the task's spilled state; None without a memory budget.
        committed: the cut of the last commit.
        partitions: of each stream, those that the task reads.
    """

    durable = None

    def __init__(
        self,
        spec: TaskSpec,
        members: GroupMembers,
        spill: TaskSpill | None,
        committed: int,
        partitions: Mapping[str, Sequence[int]],
    ) -> None:
        self._members = members
        self._spill = spill
        self._committed = committed
        self._partitions = partitions
        self._found: dict[str, Batch] = {}
        self._topics = spec.topics
        self._settings = spec.settings
        self._ended = [] if spill is None else members.ended_with_pending(spill.delivered_before)
        self.pending_pairs = 0
        self.engine = group_engine(
            members.queries,
            streams=spec.query.streams(),
            tables=spec.tables.batches,
            partitions=partitions,
            since=members.since,
            began=members.began,
            ended=self._ended,
            clock=time.monotonic,
            budget=None if spill is None else spill.budget,
            blocks=None if spill is None else spill.blocks,
        )

    def begin(self) -> None:
        """Start to add and drop queries, and replay the spills of earlier incarnations.

        Raises:
            BrokerError: the topic of an ended query with pending results cannot be looked up.
        """
        for query in (ended.query for ended in self._ended):
            if query.name not in self._topics.limits:
                # The worker learns its output topics from the registry, which has dropped the ended query.
                sinks = self._topics.partitions[self._topics.late]
                TopicAdmin(self._settings.clients).add_output(
                    self._topics, query.name, sinks, self._settings.replication
                )
        if self._spill is not None:
            self._spill.attach(self.engine, self._committed, self._late)
        self._members.attach(self.engine, self._partitions)

    def _late(self) -> list[tuple[str, Encoded]]:
        """Late results, also of queries that have ended since; a query's name is its topic."""
        found = self.engine.cleaned().items()
        return [(name, piece) for name, batches in found for batch in batches for piece in late_records(batch)]

    def advance(self, cut: int) -> bool:
        """Process an epoch."""
        self._found = self.engine.advance(cut)
        return any(len(found) for found in self._found.values())

    def has_output(self) -> bool:
        """Whether a query has begun or ended."""
        return self._members.has_changes

    def encode(self) -> tuple[list[tuple[str, Encoded]], list[BlockRecord]]:
        """The last epoch's results, if they have not been returned yet, and the queries that have begun or ended."""
        found, self._found = self._found, {}
        encoded: list[tuple[str, Encoded]] = []
        for query in self._members.queries:
            results = found.get(query.name)
            if results is not None and len(results) and query.sink is not None:
                encoded += [(query.sink, piece) for piece in pieces(results, key_names(query))]
        return encoded, self._members.records()

    def count(self, delivered: Mapping[str, int], metrics: TaskMetrics) -> None:
        """Count results, of all queries and of each; the topic names the query."""
        for topic, results in delivered.items():
            metrics.results.inc(results)
            metrics.member(topic).inc(results)

    def report(self, metrics: TaskMetrics) -> float:
        """Update the metrics; returns the seconds that the engine has been busy."""
        found = self.engine.statistics()
        metrics.state_tuples.set(found.state_tuples)
        metrics.state_bytes.set(found.state_bytes)
        metrics.pending.set(found.pending_tuples)
        metrics.members(len(self.engine.names))
        self.pending_pairs = sum(part.spill.owed for part in found.runners if part.spill is not None)
        for part in found.runners:
            if part.spill is not None:
                metrics.spill(part.spill)
        return found.busy_s
