"""A consumer that gets no answers any more is noticed, and reads on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable
from types import MethodType, SimpleNamespace
from typing import Any

import aiokafka
import pytest
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.errors import NoOffsetForPartitionError
from aiokafka.protocol.fetch import FetchRequest
from confluent_kafka import Producer
from faust.types import TP

from services.kafka.fetching import ABSENCE_S, AnswerWatch, keep_first_errors
from services.kafka.records import RecordBatch
from services.kafka.transport import ConsumerThread
from tests.broker_fixture import Topics

PATIENCE_S = 3.0

LEFT, RIGHT = TP("left", 0), TP("right", 0)


def look(watch: AnswerWatch, begin: int, end: int, **marks: Hashable) -> list[tuple[int, set[TP]]]:
    """Look once a second; who is silent, and when. A mark of None changes each time."""
    names = {"left": LEFT, "right": RIGHT}
    found = []
    for now in range(begin, end):
        silent = watch.look({names[k]: now if mark is None else mark for k, mark in marks.items()}, float(now))
        if silent:
            found.append((now, silent))
    return found


def test_who_answers_is_not_silent() -> None:
    assert look(AnswerWatch(60), 0, 1_000, left=None, right=None) == []


def test_a_silent_partition_is_named_at_growing_distances() -> None:
    silent = look(AnswerWatch(60), 0, 1_000, left=None, right="same")
    assert silent == [(60, {RIGHT}), (181, {RIGHT}), (422, {RIGHT}), (903, {RIGHT})]


def test_whoever_answers_again_is_waited_for_as_at_first() -> None:
    watch = AnswerWatch(60)
    assert look(watch, 0, 100, left="same") == [(60, {LEFT})]
    assert look(watch, 100, 110, left=None) == []
    assert look(watch, 110, 180, left="same") == [(170, {LEFT})]


def test_who_is_not_to_be_read_is_not_silent() -> None:
    watch = AnswerWatch(60)
    assert look(watch, 0, 50, left="same", right=None) == []
    assert look(watch, 50, 55, right=None) == []
    assert look(watch, 55, 110, left="same", right=None) == []
    assert look(watch, 110, 120, left="same", right=None) == [(115, {LEFT})]


def test_the_first_of_two_errors_is_kept() -> None:
    """Two look-ups of a position at a time ended aiokafka's fetching, with a traceback."""
    fetcher = SimpleNamespace(_records={}, _prefetch_backoff=0.1)
    fetcher._set_error = MethodType(Fetcher._set_error, fetcher)
    first, second = NoOffsetForPartitionError("t"), NoOffsetForPartitionError("t")
    fetcher._set_error("t", first)
    with pytest.raises(AssertionError):
        fetcher._set_error("t", second)
    keep_first_errors(fetcher)
    fetcher._set_error("t", second)
    fetcher._set_error("u", second)
    assert [fetcher._records[tp]._error for tp in "tu"] == [first, second]


def test_who_stood_still_itself_blames_nobody() -> None:
    watch = AnswerWatch(60)
    assert look(watch, 0, 50, left="same") == []
    later = 50 + int(ABSENCE_S) + 100
    assert look(watch, later, later + 60, left="same") == []


class Reading:
    """One partition, read as the task manager and Faust do."""

    def __init__(self, consumer: Any, tp: TP, write: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
        self.consumer = consumer
        self.tp = tp
        self.at = aiokafka.TopicPartition(*tp)
        self.write = write
        self.monkeypatch = monkeypatch
        self.seek = 7
        self.thread = thread = object.__new__(ConsumerThread)
        thread._consumer = consumer
        thread.consumer = SimpleNamespace(flow_active=True)  # Faust's
        thread.log = logging.getLogger("transport")
        thread._seeks = {tp: self.seek}

    async def fetch(self, offset: int) -> list[RecordBatch]:
        """What one poll brings; after a rebalance it is sought first."""
        state = self.consumer._subscription.subscription.assignment.state_value(self.at)
        if state is not None and not state.has_valid_position:
            await self.thread._seek({self.tp: (offset, self.seek)})
        batches = (await self.thread._fetch_records(self.consumer, {self.tp})).get(self.tp, [])
        return [batch for batch in batches if batch.seek == self.seek]


async def no_fault(reading: Reading) -> None:
    """All is well."""
    reading.write()


async def no_metadata(reading: Reading) -> None:
    """Nobody asks for metadata any more, and the leader is lost."""
    reading.consumer._client._sync_task.cancel()
    reading.consumer._client.cluster._partitions.clear()
    reading.write()


async def no_answer(reading: Reading) -> None:
    """A fetch never comes back."""
    client = reading.consumer._client
    send = client.send

    async def silent(node: Any, request: Any, **options: Any) -> Any:
        if isinstance(request, FetchRequest):
            reading.monkeypatch.setattr(client, "send", send)
            await asyncio.get_running_loop().create_future()
        return await send(node, request, **options)

    reading.monkeypatch.setattr(client, "send", silent)
    await asyncio.sleep(1.0)
    reading.write()


async def no_connection(reading: Reading) -> None:
    """Whoever connects never comes to an end, and nobody else can connect meanwhile."""
    client = reading.consumer._client
    client._sync_task.cancel()

    async def connect_for_ever() -> None:
        async with client._get_conn_lock:
            await asyncio.get_running_loop().create_future()

    client._sync_task = asyncio.get_running_loop().create_task(connect_for_ever())
    for connection in client._conns.values():
        connection.close()
    reading.write()


async def a_lost_seek(reading: Reading) -> None:
    """The task has asked for a seek that did not come about: what is read is of the one before."""
    reading.seek += 1
    reading.write()


async def a_lost_batch(reading: Reading) -> None:
    """What was read has not come to its task, and nothing follows that would show the gap."""
    reading.write()
    while not await reading.fetch(1):
        pass


@pytest.mark.deep
@pytest.mark.kafka
@pytest.mark.parametrize(
    "fault",
    [no_fault, no_metadata, no_answer, no_connection, a_lost_seek, a_lost_batch],
    ids=lambda fault: fault.__name__,
)
def test_reading_goes_on_after_a_silence(
    topics: Topics, fault: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Found by torture: after brokers had restarted a worker read some partitions no more, while it was a member."""
    topic = topics("silent")
    writer = Producer({"bootstrap.servers": topics.bootstrap})

    def write() -> None:
        writer.produce(topic, b"value", partition=0)
        writer.flush()

    async def read() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=topics.bootstrap,
            group_id=topic,
            enable_auto_commit=False,
            auto_offset_reset="none",
        )
        reading = Reading(consumer, TP(topic, 0), write, monkeypatch)
        watch = AnswerWatch(PATIENCE_S)
        await consumer.start()
        try:
            for offset, what in enumerate([no_fault, fault]):
                await what(reading)
                batches: list[RecordBatch] = []
                async with asyncio.timeout(30):
                    while not batches:
                        batches = await reading.fetch(offset)
                        wanted_positions = {reading.tp: (offset, reading.seek)}
                        if not batches:
                            await reading.thread.watch_answers(watch, wanted_positions)
                assert [batch.start for batch in batches] == [offset]
            async with asyncio.timeout(30):
                end = time.monotonic() + 2 * PATIENCE_S
                while fault is no_fault and time.monotonic() < end:  # answers without records are answers
                    await reading.fetch(2)
                    await reading.thread.watch_answers(watch, {reading.tp: (2, reading.seek)})
        finally:
            await consumer.stop()

    asyncio.run(read())
    said = [record.getMessage() for record in caplog.records if record.name == "weir.kafka"]
    # On a busy machine connecting anew may take longer than the patience.
    assert set(said) == (set() if fault is no_fault else {"Kafka does not answer for partitions, connecting anew"})
