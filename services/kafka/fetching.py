"""Repairs of aiokafka's fetching, which can stop without an error while the worker stays a member of its group.

`AnswerWatch` notices it, whatever the reason: a partition that is to be read is sought, and gets an answer to each
fetch, be it an empty one. `reconnect` then begins anew all that fetching depends on. `revive` and `end_fetches` are
about one known fault each.

Uses private parts of aiokafka 0.14.0, which is pinned for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping
from typing import Any, cast

from aiokafka.conn import CloseReason
from faust.types import TP

PATIENCE_S = 60.0
"""Without an answer. Longer than `broker_request_timeout`, so that a slow answer never counts as none."""

LONGEST_PATIENCE_S = 960.0
"""Between attempts that do not help, as while no broker leads a partition. Each lets the group rebalance."""

ABSENCE_S = 10.0
"""Whoever has not looked for so long stood still itself, and can tell nothing from it."""


class AnswerWatch:
    """Which partitions bring nothing, not even an empty answer, though they are to be read."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._least_s = self._patience_s = patience_s
        self._looked_s = 0.0
        self._seen: dict[TP, tuple[Hashable, float]] = {}
        self._silent: set[TP] = set()

    def look(self, answers: Mapping[TP, Hashable], now_s: float) -> set[TP]:
        """The partitions that have been silent for too long; they are named again after twice that time.

        Args:
            answers: of each partition that is to be read now, something that changes with each answer.
            now_s: monotonic, in seconds. To be called every few seconds at least.
        """
        if now_s - self._looked_s > ABSENCE_S:
            self._seen.clear()
        self._looked_s = now_s
        heard = {tp for tp, (mark, _) in self._seen.items() if tp in answers and answers[tp] != mark}
        if heard & self._silent:
            self._silent, self._patience_s = set(), self._least_s
        self._seen = {
            tp: (mark, now_s if tp in heard or tp not in self._seen else self._seen[tp][1])
            for tp, mark in answers.items()
        }
        silent = {tp for tp, (_, since_s) in self._seen.items() if now_s - since_s >= self._patience_s}
        if silent:
            self._silent = silent
            self._patience_s = min(2 * self._patience_s, LONGEST_PATIENCE_S)
            self._seen.clear()
        return silent


def partition_state(consumer: Any, at: Any) -> Any:
    """aiokafka's state of a partition; None while it is not assigned."""
    assignment = consumer._subscription.subscription and consumer._subscription.subscription.assignment
    return assignment.state_value(at) if assignment and at in assignment.tps else None


def answer_mark(consumer: Any, at: Any, offset: int) -> Hashable:
    """Something that changes with each answer about a partition of which `offset` is to come next.

    It stays what it is, too, while the consumer has gone past that offset: what it took has not come to its task.
    """
    state = partition_state(consumer, at)
    if state is None or not state.has_valid_position:
        return "unassigned" if state is None else "unsought"
    return state.timestamp if state.position == offset else ("read", state.position, offset)


async def reconnect(consumer: Any) -> None:
    """Begin anew what fetching depends on: connections, metadata, and by a rebalance the fetches themselves.

    Nothing is lost: the group may well assign the same partitions, and they are sought anew.
    """
    client, metadata = consumer._client, consumer._client._sync_task
    if consumer._closed:
        return
    metadata.cancel()
    await asyncio.gather(metadata, return_exceptions=True)
    if consumer._closed:
        return
    # Whoever waits for metadata waits for `_md_update_fut`, which the new routine sets.
    client._md_update_waiter = asyncio.get_running_loop().create_future()
    client._md_update_waiter.set_result(None)
    client._sync_task = asyncio.get_running_loop().create_task(client._md_synchronizer())
    for connection in list(client._conns.values()):
        connection.close(CloseReason.CONNECTION_BROKEN)
    consumer._fetcher._in_flight.clear()
    consumer._coordinator.request_rejoin()


def describe(consumer: Any, partitions: Mapping[TP, Hashable]) -> str:
    """The state of aiokafka's parts, for the log.

    Args:
        partitions: the silent ones, with their marks.
    """
    client, fetcher = consumer._client, consumer._fetcher
    leaders = {f"{tp.topic}[{tp.partition}]": client.cluster.leader_for_partition(tp) for tp in sorted(partitions)}
    return (
        f"answers {list(partitions.values())}, leaders {leaders}, "
        f"brokers {sorted(b.nodeId for b in client.cluster.brokers())}, "
        f"connected {sorted(str(key) for key, conn in client._conns.items() if conn.connected())}, "
        f"fetching from {sorted(fetcher._in_flight)}, buffered {len(fetcher._records)}, "
        f"connecting {client._get_conn_lock.locked()}, metadata {client._sync_task!r}, fetches {fetcher._fetch_task!r}"
    )


def revive(fetcher: Any) -> BaseException | None:
    """Begin to fetch again if aiokafka's routine has died of an error; returns that error.

    Its death is told only to callers of aiokafka's own getters, which we do without: to us no partition would bring
    anything any more. Nothing is lost: what was fetched and not drained is fetched again, from the positions. One way
    to die, open to a worker of several tasks while brokers restart: two look-ups of one missing position at a time
    (aiokafka's `_set_error` asserts that it is the first).
    """
    routine = fetcher._fetch_task
    if not routine.done() or routine.cancelled() or fetcher._closed:
        return None
    # The failed task is among them, and would fail its successor too.
    fetcher._pending_tasks = {task for task in fetcher._pending_tasks if not task.done()}
    fetcher._fetch_task = asyncio.get_running_loop().create_task(fetcher._fetch_requests_routine())
    return cast(BaseException | None, routine.exception())


async def end_fetches(fetcher: Any) -> None:
    """Cancel aiokafka's fetches, and take what they end with.

    Its own `close` awaits each fetch that it cancels. One that waits to be tried again, since its broker is away, ends
    with CancelledError. That ended the consumer's thread before Faust heard of its end, and Faust waited for ever.
    """
    fetches = {fetcher._fetch_task, *fetcher._pending_tasks}
    for fetch in fetches:
        fetch.cancel()
    await asyncio.gather(*fetches, return_exceptions=True)
    fetcher._pending_tasks = set()


async def end_coordination(coordinator: Any) -> None:
    """Cancel aiokafka's coordination routine: its `close` waits for it, and so for a rebalance that may be under way. A
    rebalance takes until the slowest member has joined, or until the rebalance timeout where one is frozen."""
    coordinator._coordination_task.cancel()
    await asyncio.gather(coordinator._coordination_task, return_exceptions=True)
