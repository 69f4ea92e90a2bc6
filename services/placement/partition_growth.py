"""Notices partitions that are added to input topics while a worker runs; the worker then restarts its tasks.

The worker's loop calls `PartitionGrowth.check`. Kafka's clients notice new partitions within `METADATA_MS` and ask for
a new assignment; then the worker counts the partitions again. It also counts every `METADATA_MS`, because a broker that
its peers have cut off may answer with the old count. A task continues from its commits and reads the new partitions
from their beginning (`services.recovery.starting_point`). Their records that are older than the watermark are late by
then, and go to the late topic.

With PARTITION BY there is one task per partition. A key whose records now go to another partition does not join its
earlier records. The topics must have equal counts again before the new partitions are read. A distributed query has
internal topics and commits for its first partition counts, so its workers end with an error.

**Limit.** Nothing tells a worker that starts later which partitions were added. With PARTITION BY and `--from latest`,
if no other worker has opened the task of a new partition before, such a worker begins at the partition's end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from schemas.errors import BrokerError, StateError, UsageError
from schemas.query import Query
from services.kafka.topics import TopicAdmin
from services.placement.tasks import lay_out
from services.process.logs import Log

METADATA_MS = 10_000
"""How old a worker's knowledge of its topics may be."""


class PartitionGrowth:
    """The partition counts of one worker's input. Call `check` several times a second on the event loop.

    Args:
        partitions: the counts that the tasks were opened for, by input topic.
        distributed: whether each operator of the query has its own tasks.
    """

    def __init__(
        self, admin: TopicAdmin, query: Query, partitions: Mapping[str, int], *, distributed: bool, log: Log
    ) -> None:
        self._admin = admin
        self._query = query
        self._partitions = dict(partitions)
        self._distributed = distributed
        self._log = log
        self._counted_at = 0
        self._due_s = 0.0
        self._answer: asyncio.Future[dict[str, int] | None] | None = None
        self._reported = ""

    def check(self, assignments: int) -> dict[str, int] | None:
        """The partition counts to restart the tasks with; None to continue.

        Args:
            assignments: how many assignments the group has made; the partitions are counted after each of them.

        Raises:
            StateError: the group cannot continue with more partitions.
        """
        if self._answer is not None and self._answer.done():
            found, self._answer = self._answer.result(), None
            if found is not None:
                return self._judge(found)
            self._counted_at = 0  # count again
        if self._answer is None and (assignments > self._counted_at or time.monotonic() >= self._due_s):
            self._counted_at = assignments
            self._due_s = time.monotonic() + METADATA_MS / 1000
            self._answer = asyncio.get_running_loop().run_in_executor(None, self._count)
        return None

    def _count(self) -> dict[str, int] | None:
        """The current partition counts; None if Kafka does not answer. Blocks."""
        try:
            return self._admin.inputs(self._partitions, wait=False)
        except BrokerError:
            return None

    def _judge(self, found: Mapping[str, int]) -> dict[str, int] | None:
        now = {topic: max(count, found[topic]) for topic, count in self._partitions.items()}
        more = {topic: (n, had) for topic, n in now.items() if n > (had := self._partitions[topic])}
        grown = ", ".join(f"{topic} has {n}, had {had}" for topic, (n, had) in more.items())
        if not grown or grown == self._reported:
            return None
        self._reported = grown
        if self._distributed:
            raise StateError(
                f"partitions were added ({grown}): with --placement per-operator a group keeps the partitions that it "
                "began with; stop all workers and give them a new group (--group)"
            )
        try:
            layout = lay_out(self._query, now)
        except UsageError as error:
            self._log.warning(f"partitions were added and are not read yet ({grown}): {error}")
            return None
        if layout.copartitioned:
            self._log.warning(
                f"partitions were added ({grown}): tasks begin anew with them; a key that has changed its partition "
                "does not join its earlier records"
            )
        else:
            self._log.info(f"partitions were added ({grown}): tasks begin anew with them")
        return now
