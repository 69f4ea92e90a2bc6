"""Repairs of aiokafka's fetching, which can stop without an error while the worker stays a member of its group.

`transport.ConsumerThread` calls them. `AnswerWatch` notices that fetching has stopped, whatever the reason: normally a
partition that is to be read is sought, and every fetch of it gets an answer, if only an empty one. `reconnect` then
restarts everything that fetching depends on. `keep_first_errors`, `revive` and `end_fetches` work around known faults.

This uses private parts of aiokafka; version 0.14.0 is pinned for that reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from typing import Any, cast

from aiokafka.conn import CloseReason
from faust.types import TP

PATIENCE_S = 60.0
"""Time without an answer before the first repair. Longer than `broker_request_timeout`, so that a slow answer never
counts as none."""

LONGEST_PATIENCE_S = 960.0
"""Longest time between repairs that do not help, as while no broker leads a partition. Each repair causes a
rebalance."""

ABSENCE_S = 10.0
"""If `look` was not called for so long, this process itself stood still, and earlier times prove nothing."""


class AnswerWatch:
    """Finds partitions that are to be read and get no answers, not even empty ones."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._least_s = self._patience_s = patience_s
        self._looked_s = 0.0
        self._seen: dict[TP, tuple[Hashable, float]] = {}
        self._silent: set[TP] = set()

    def look(self, answers: Mapping[TP, Hashable], now_s: float) -> set[TP]:
        """The partitions without an answer for too long. Later calls return them again only after twice that time.

        Call this at least every few seconds.

        Args:
            answers: for each partition that is to be read now, a value that changes with each answer (`answer_mark`).
            now_s: monotonic, in seconds.
        """
        if now_s - self._looked_s > ABSENCE_S:
            self._seen.clear()
        self._looked_s = now_s
        answered = {tp for tp, (mark, _) in self._seen.items() if tp in answers and answers[tp] != mark}
        if answered & self._silent:
            self._silent, self._patience_s = set(), self._least_s
        self._seen = {
            tp: (mark, now_s if tp in answered or tp not in self._seen else self._seen[tp][1])
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
    """A value that changes with each answer about a partition whose next offset for its task is `offset`.

    It stays the same while the consumer's position is beyond that offset: then the records have not reached the task.
    """
    state = partition_state(consumer, at)
    if state is None or not state.has_valid_position:
        return "unassigned" if state is None else "unsought"
    return state.timestamp if state.position == offset else ("read", state.position, offset)


async def reconnect(consumer: Any) -> None:
    """Restart what fetching depends on: connections, metadata, and by a rebalance the fetches themselves.

    No input is lost: even if the group assigns the same partitions, they are sought again.
    """
    client, metadata = consumer._client, consumer._client._sync_task
    if consumer._closed:
        return
    metadata.cancel()
    await asyncio.gather(metadata, return_exceptions=True)
    if consumer._closed:
        return
    # Callers that wait for metadata wait for `_md_update_fut`, which the new routine sets.
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
        partitions: those without answers, with their marks.
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


def describe_membership(consumer: Any) -> str:
    """What aiokafka's coordination waits for, for the log."""
    if consumer is None or consumer._coordinator is None:
        return "the consumer has not started"
    coordinator, client = consumer._coordinator, consumer._client
    return (
        f"coordinator {coordinator.coordinator_id}, member {coordinator.member_id!r}, "
        f"generation {coordinator.generation}, rejoin needed {coordinator._rejoin_needed_fut.done()}, "
        f"coordination {_awaited(coordinator._coordination_task)}, metadata {_awaited(client._sync_task)}, "
        f"connecting {client._get_conn_lock.locked()}"
    )


def _awaited(task: asyncio.Task[Any]) -> str:
    """The coroutines of a task, each of which waits for the next one; for a task that has ended, its outcome."""
    if task.done():
        return repr(task)
    names, coroutine = [], task.get_coro()
    while (code := getattr(coroutine, "cr_code", None)) is not None:
        names.append(code.co_qualname)
        coroutine = coroutine.cr_await
    return " > ".join(names)


def keep_first_errors(fetcher: Any) -> None:
    """Make aiokafka keep the first of two errors of a partition; it would end its fetch routine.

    A partition that is assigned and not sought yet has no position. When its leader changes, aiokafka looks the
    position up a second time while the first look-up is under way. Both fail, and its `_set_error` asserts that it is
    the first.
    """
    set_error: Callable[[Any, Exception], None] = fetcher._set_error

    def set_first_error(tp: Any, error: Exception) -> None:
        if tp not in fetcher._records:
            set_error(tp, error)

    fetcher._set_error = set_first_error


def revive(fetcher: Any) -> BaseException | None:
    """Restart aiokafka's fetch routine if it has ended by an error; returns that error.

    aiokafka reports the error only to callers of its own getters, which Weir does not use: without this no partition
    would deliver anything any more. No input is lost: records that were fetched and not drained are fetched again, from
    the positions. For one known cause see `keep_first_errors`.
    """
    routine = fetcher._fetch_task
    if not routine.done() or routine.cancelled() or fetcher._closed:
        return None
    # The failed task is among the pending ones, and would make the new routine fail too.
    fetcher._pending_tasks = {task for task in fetcher._pending_tasks if not task.done()}
    fetcher._fetch_task = asyncio.get_running_loop().create_task(fetcher._fetch_requests_routine())
    return cast(BaseException | None, routine.exception())


async def end_fetches(fetcher: Any) -> None:
    """Cancel aiokafka's fetches, and ignore their errors.

    aiokafka's own `close` awaits each fetch that it cancels. A fetch that waits to be retried, since its broker is
    unreachable, ends with CancelledError. That ended the consumer's thread before Faust was notified, and Faust waited
    for ever.
    """
    fetches = {fetcher._fetch_task, *fetcher._pending_tasks}
    for fetch in fetches:
        fetch.cancel()
    await asyncio.gather(*fetches, return_exceptions=True)
    fetcher._pending_tasks = set()


async def end_coordination(coordinator: Any) -> None:
    """Cancel aiokafka's coordination routine. Its `close` would wait for it, and so for a rebalance under way, until
    the slowest member has joined or, if a member is frozen, until the rebalance timeout."""
    coordinator._coordination_task.cancel()
    await asyncio.gather(coordinator._coordination_task, return_exceptions=True)
