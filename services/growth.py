"""Partitions that are added to input topics while a worker runs: its tasks begin anew with them.

Kafka's clients notice within `METADATA_MS` and ask for a new assignment; then the worker counts anew. It also counts
every `METADATA_MS`, because a broker that its peers have cut off may answer with the old count. A task goes on from its
commits, and reads the new partitions from their beginning (`services.recovery`). Records in them that are older than
the watermark are late by then: they are in the late topic.

With PARTITION BY a partition is a task. A key whose records now go to another partition does not meet its earlier ones,
and topics must have equal counts again before the new partitions are read. Where joins run apart, their topics and
commits are made for the counts of the beginning: the group ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from schemas.errors import BrokerError, StateError, UsageError
from schemas.query import Query
from services.logs import Log
from services.placement import lay_out
from services.topics import TopicAdmin

METADATA_MS = 10_000
"""How old a worker's knowledge of its topics may be."""


class Growth:
    """Looked after by `look`, several times a second, on the event loop.

    Args:
        partitions: of the input topics, as the tasks read them.
        apart: whether joins run apart.
    """

    def __init__(
        self, admin: TopicAdmin, query: Query, partitions: Mapping[str, int], *, apart: bool, log: Log
    ) -> None:
        self._admin = admin
        self._query = query
        self._partitions = dict(partitions)
        self._apart = apart
        self._log = log
        self._seen = 0
        self._due_s = 0.0
        self._answer: asyncio.Future[dict[str, int] | None] | None = None
        self._told = ""

    def look(self, assignments: int) -> dict[str, int] | None:
        """The partitions to begin anew with; None to go on.

        Args:
            assignments: how often the group has assigned something.

        Raises:
            StateError: the group cannot go on with more partitions.
        """
        if self._answer is not None and self._answer.done():
            found, self._answer = self._answer.result(), None
            if found is not None:
                return self._judge(found)
            self._seen = 0  # to be asked again
        if self._answer is None and (assignments > self._seen or time.monotonic() >= self._due_s):
            self._seen = assignments
            self._due_s = time.monotonic() + METADATA_MS / 1000
            self._answer = asyncio.get_running_loop().run_in_executor(None, self._count)
        return None

    def _count(self) -> dict[str, int] | None:
        """Partitions as they are; None where Kafka does not say. Blocks."""
        try:
            return self._admin.inputs(self._partitions, wait=False)
        except BrokerError:
            return None

    def _judge(self, found: Mapping[str, int]) -> dict[str, int] | None:
        now = {topic: max(count, found[topic]) for topic, count in self._partitions.items()}
        more = {topic: (n, had) for topic, n in now.items() if n > (had := self._partitions[topic])}
        grown = ", ".join(f"{topic} has {n}, had {had}" for topic, (n, had) in more.items())
        if not grown or grown == self._told:
            return None
        self._told = grown
        if self._apart:
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
