"""Reads partitions as they are stored: with aborted and open transactions, producers and transaction markers.

Consumers hide all of these. `services.delivery.transaction_log` reads them when a task starts, with `PartitionLogs`, by
plain fetch requests over aiokafka's connections, in the calling thread.

A broker that its peers have cut off answers for some seconds as if it still led its partitions, and returns an older
state. So a caller that must not miss anything first writes a record of its own, which only the true leader can confirm,
and then reads up to that record (`until`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from aiokafka import errors
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.control_record import COMMIT_MARKER, ControlRecord
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition

from schemas.errors import BrokerError
from services.kafka.topics import Lane
from services.process.security import KafkaClients

TIMEOUT_S = 60.0
"""How long a partition may be unreachable before the task gives up, to try again later."""

ATTEMPT_S = 10.0
"""How long one answer may take. After that a new client asks, since a client whose metadata routine has died waits for
metadata for ever."""

RETRY_S = 0.1
FETCH_BYTES = 4 << 20
READ_UNCOMMITTED = 0


@dataclass(frozen=True, slots=True, eq=False)
class StoredBatch:
    """A record batch as it is stored, or a marker that ends a transaction.

    Attributes:
        producer: number and epoch of the producer; both -1 if it is neither idempotent nor transactional.
        offset: of the first record.
        marker: True for a commit, False for an abort, None for records.
        size: how many records the batch had when it was written; 0 for a marker.
        stored: aiokafka's batch.
    """

    producer: tuple[int, int]
    offset: int
    marker: bool | None
    size: int
    stored: Any

    def records(self) -> list[Any]:
        """The records: objects with `offset`, `timestamp`, `key`, `value` and `headers`; empty for a marker."""
        return [] if self.marker is not None else list(self.stored)


class GoneError(BrokerError):
    """The log no longer has the offset: retention has deleted it, or the topic was created again."""

    def __init__(self, lane: Lane, offset: int) -> None:
        super().__init__(f"{lane[0]}[{lane[1]}] does not hold offset {offset} any more")


class PartitionLogs:
    """Reads partitions; a context manager, for one thread that runs no event loop.

    Raises:
        BrokerError: Kafka does not answer, or refuses.
    """

    def __init__(self, clients: KafkaClients) -> None:
        self._clients = clients
        self._runner = asyncio.Runner()
        self._client: AIOKafkaClient | None = None
        self._made: list[AIOKafkaClient] = []
        self._stale = False

    def __enter__(self) -> PartitionLogs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._close())
        self._runner.close()

    async def _close(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ATTEMPT_S):
                for client in self._made:
                    await client.close()

    def batches(self, lane: Lane, offset: int, until: int | None = None) -> Iterator[StoredBatch]:
        """The batches of a partition from an offset on, up to its end when the call starts.

        Args:
            until: stop before this offset instead; a record is known to exist there.

        Raises:
            GoneError: the offset is not in the log.
            BrokerError: see the class.
        """
        if until is not None:
            self._runner.run(self._fetch(lane, until, until))
        end = -1 if until is None else until
        while end < 0 or offset < end:
            high, data = self._runner.run(self._fetch(lane, offset, until))
            if offset > high:
                raise GoneError(lane, offset)
            end = high if end < 0 else end
            if offset >= end:
                return
            memory = MemoryRecords(data)
            before = offset
            while memory.has_next():
                batch = memory.next_batch()
                if batch.next_offset <= offset:
                    continue
                if until is not None and batch.base_offset >= until:
                    return
                offset = batch.next_offset
                yield _stored(batch)
            if offset == before:
                raise BrokerError(f"{lane[0]}[{lane[1]}] gives no record at offset {offset}, though it ends at {end}")

    async def _fetch(self, lane: Lane, offset: int, until: int | None) -> tuple[int, bytes]:
        """The partition's end, which is after `until`, and the bytes of some batches from the offset on."""
        topic, number = lane
        deadline = time.monotonic() + TIMEOUT_S
        stale = f"its leader does not know offset {until}, which is written"
        while True:
            try:
                async with asyncio.timeout(ATTEMPT_S):
                    high, data = await self._answer(lane, offset)
                if until is None or high > until:
                    return high, data
                problem = stale
            except errors.OffsetOutOfRangeError:
                if offset != until:
                    raise GoneError(lane, offset) from None
                problem = stale
            except errors.TopicAuthorizationFailedError:
                raise BrokerError(
                    f"what became of the last transactions cannot be seen: Kafka refuses it, this user needs READ on "
                    f"topic {topic!r}"
                ) from None
            except TimeoutError:
                problem = f"no answer within {ATTEMPT_S:g} s"
                self._client = None
            except errors.KafkaError as error:
                problem = repr(error)
                if not error.retriable:
                    raise BrokerError(f"{topic}[{number}] cannot be read: {problem}") from None
            if time.monotonic() > deadline:
                raise BrokerError(f"{topic}[{number}] cannot be read: {problem}")
            self._stale = True
            await asyncio.sleep(RETRY_S)

    async def _answer(self, lane: Lane, offset: int) -> tuple[int, bytes]:
        topic, number = lane
        client = await self._connected()
        if self._stale:
            await client.force_metadata_update()
            self._stale = False
        await client.add_topic(topic)
        leader = client.cluster.leader_for_partition(TopicPartition(topic, number))
        if leader is None or leader == -1:
            raise errors.LeaderNotAvailableError
        request = FetchRequest(0, 0, FETCH_BYTES, READ_UNCOMMITTED, [(topic, [(number, offset, FETCH_BYTES)])])
        response = await client.send(leader, request)
        ((_, ((_, code, high, *_, data),)),) = response.topics
        if code:
            raise errors.for_code(code)
        return int(high), data or b""

    async def _connected(self) -> AIOKafkaClient:
        if self._client is None:
            client = AIOKafkaClient(
                bootstrap_servers=self._clients.servers(), client_id="weir-log", **self._clients.aiokafka()
            )
            self._made.append(client)
            await client.bootstrap()
            self._client = client
        return self._client


def _stored(batch: Any) -> StoredBatch:
    number = -1 if batch.producer_id is None else int(batch.producer_id)
    producer, offset = (number, int(batch.producer_epoch) if number >= 0 else -1), int(batch.base_offset)
    if batch.is_control_batch:
        marker = ControlRecord.parse(next(iter(batch)).key) == COMMIT_MARKER
        return StoredBatch(producer, offset, marker, 0, batch)
    return StoredBatch(producer, offset, None, int(batch.next_offset) - offset, batch)
