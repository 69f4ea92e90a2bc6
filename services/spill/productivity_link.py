"""Exchanges productivity counts of partition groups between tasks, by the feedback topic of a distributed query.

`services.task.spill` calls `ProductivityLink.step` between epochs. What a task spills depends on the counts, but what
it has spilled is in its log, so results do not depend on whether a message arrives, how often, or how soon.
"""

from __future__ import annotations

import contextlib
import queue

from operators.spill.exchange import ProductivityExchange
from schemas.errors import StateError
from schemas.messages.control import PartitionTotals
from services.control.feedback_log import FeedbackLog, Inbox
from services.process.logs import Log

EXCHANGE_S = 1.0
"""How often a task reports what it has counted for other tasks."""


class ProductivityLink:
    """What one incarnation of a task reports to other tasks, and learns from them.

    Args:
        operator: the name of the task's join.
    """

    def __init__(
        self,
        exchange: ProductivityExchange,
        link: FeedbackLog,
        *,
        query: str,
        operator: str,
        task: int,
        incarnation: str,
        log: Log,
    ) -> None:
        self._exchange = exchange
        self._link = link
        self._query = query
        self._task = task
        self._incarnation = incarnation
        self._log = log
        self._sent = float("-inf")
        self._inbox: Inbox = link.open([operator])

    def step(self, now: float) -> None:
        """Add what other tasks have counted, and report at times what this one has."""
        with contextlib.suppress(queue.Empty):
            while True:
                message = self._inbox.get_nowait()
                if isinstance(message, PartitionTotals):
                    self._merge(message)
        if now - self._sent >= EXCHANGE_S:
            self._sent = now
            for update in self._exchange.updates(self._query, self._task, self._incarnation):
                self._link.send(update)

    def _merge(self, message: PartitionTotals) -> None:
        try:
            self._exchange.merge(message)
        except StateError as error:
            self._log.warning("counts of another task passed over", reason=str(error))

    def close(self) -> None:
        """Stop receiving."""
        self._link.leave(self._inbox)
