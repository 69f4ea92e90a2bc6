"""Notices that a worker is kept out of its consumer group, so that it joins anew. The worker's loop calls `is_lost`.

aiokafka joins in a routine of its own, which waits for connections, metadata, answers and Faust's callbacks. If one of
them never comes, the worker would wait for its tasks for ever. This module does not ask which one is missing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable

from schemas.errors import BrokerError

PATIENCE_S = 45.0
"""How long the group may keep a worker waiting. A rebalance ends after 30 s, even if a member is frozen, and an
unanswered request after 40 s."""

ABSENCE_S = 10.0
"""If `is_lost` was not called for so long, this process itself stood still, and earlier times prove nothing."""


class Membership:
    """The membership of one worker in its group.

    Args:
        ask_kafka: why another client cannot connect to Kafka, None if it can; blocks, called in a thread.
    """

    def __init__(self, ask_kafka: Callable[[], BrokerError | None]) -> None:
        self._ask_kafka = ask_kafka
        self._generation: Hashable = None
        self._since_s = self._called_s = time.monotonic()
        self._answer: asyncio.Future[BrokerError | None] | None = None

    def is_lost(self, assigned: bool, generation: Hashable) -> bool:
        """Whether the group has kept the worker waiting for too long, although Kafka can be reached.

        Call this several times a second on the event loop.

        Args:
            assigned: the worker has the assignment of the group's generation.
            generation: a value that changes whenever a rebalance makes progress.
        """
        now = time.monotonic()
        if assigned or generation != self._generation or now - self._called_s > ABSENCE_S:
            self._since_s, self._answer = now, None
        self._generation, self._called_s = generation, now
        if now - self._since_s < PATIENCE_S:
            return False
        if self._answer is None:
            self._answer = asyncio.get_running_loop().run_in_executor(None, self._ask_kafka)
        elif self._answer.done():
            problem, self._answer = self._answer.result(), None
            return problem is None
        return False
