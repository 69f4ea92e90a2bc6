"""A group of queries as a task runs it: one engine, every query's results to its own topic."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from operators.groups.sharing import group_engine
from schemas.codecs.encode import Encoded, key_names
from schemas.columns import Batch
from services.delivery.epoch_output import BlockRecord
from services.kafka.topics import TopicAdmin
from services.process.metrics import TaskMetrics
from services.task.group_members import GroupMembers
from services.task.result_output import late_records, pieces
from services.task.spec import TaskSpec
from services.task.spill import TaskSpill


class GroupProgram:
    """See `services.task.query_program.Program`.

    Args:
        spill: what leaves memory.
        committed: the watermark that was committed last.
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
        self._gone = [] if spill is None else members.gone(spill.settled)
        self.owed = 0
        self.engine = group_engine(
            members.queries,
            streams=spec.query.streams(),
            tables=spec.tables.batches,
            partitions=partitions,
            since=members.since,
            began=members.began,
            gone=self._gone,
            clock=time.monotonic,
            budget=None if spill is None else spill.budget,
            blocks=None if spill is None else spill.blocks,
        )

    def begin(self) -> None:
        """Let queries come and go, and ask for spills that were decided before.

        Raises:
            BrokerError: the topic of a query that has ended, and is owed results, is not known and cannot be.
        """
        for query in (one.query for one in self._gone):
            if query.name not in self._topics.limits:
                # Who has ended is not in the registry any more, by which the worker knows where it writes.
                sinks = self._topics.partitions[self._topics.late]
                TopicAdmin(self._settings.clients).add_output(
                    self._topics, query.name, sinks, self._settings.replication
                )
        if self._spill is not None:
            self._spill.attach(self.engine, self._committed, self._late)
        self._members.attach(self.engine, self._partitions)

    def _late(self) -> list[tuple[str, Encoded]]:
        """What was found late, also of queries that have ended since; a query's name is its topic."""
        found = self.engine.cleaned().items()
        return [(name, piece) for name, batches in found for batch in batches for piece in late_records(batch)]

    def advance(self, cut: int) -> bool:
        """Process an epoch."""
        self._found = self.engine.advance(cut)
        return any(len(found) for found in self._found.values())

    def owes(self) -> bool:
        """Whether a query has begun or ended."""
        return self._members.owes

    def encode(self) -> tuple[list[tuple[str, Encoded]], list[BlockRecord]]:
        """The last epoch's results, if they have not been given yet, and which queries have begun and ended."""
        found, self._found = self._found, {}
        encoded: list[tuple[str, Encoded]] = []
        for query in self._members.queries:
            results = found.get(query.name)
            if results is not None and len(results) and query.sink is not None:
                encoded += [(query.sink, piece) for piece in pieces(results, key_names(query))]
        return encoded, self._members.records()

    def count(self, delivered: Mapping[str, int], metrics: TaskMetrics) -> None:
        """As results, of all queries and of each, which its topic names."""
        for topic, results in delivered.items():
            metrics.results.inc(results)
            metrics.member(topic).inc(results)

    def report(self, metrics: TaskMetrics) -> float:
        """To metrics."""
        found = self.engine.statistics()
        metrics.state_tuples.set(found.state_tuples)
        metrics.state_bytes.set(found.state_bytes)
        metrics.pending.set(found.pending_tuples)
        metrics.members(len(self.engine.names))
        self.owed = sum(part.spill.owed for part in found.parts if part.spill is not None)
        for part in found.parts:
            if part.spill is not None:
                metrics.spill(part.spill)
        return found.busy_s
