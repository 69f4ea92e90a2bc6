"""The batched transport: what it unpacks is what any read_committed consumer sees, and batches chain."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import threading
import time
from types import SimpleNamespace
from typing import Any

import aiokafka
import pytest
from aiokafka.consumer.fetcher import FetchResult
from aiokafka.consumer.subscription_state import TopicPartitionState
from aiokafka.errors import KafkaError, OffsetOutOfRangeError
from confluent_kafka import Consumer, Producer, TopicPartition
from faust.types import TP

from services.kafka import transport
from services.kafka.records import RecordBatch, rough_size, unpack
from services.kafka.transport import GATHER_S, MUCH_BYTES, ConsumerThread, StopsWhileStarting, _NoReadOffsets, connect
from tests.broker_fixture import RestartableBroker, Topics
from tests.worker_harness import Reader, wait_for

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize(
    ("size", "gather_s", "waits"), [(100, GATHER_S, True), (MUCH_BYTES, GATHER_S, False), (100, 0.0, False)]
)
def test_fetches_that_find_little_are_not_repeated_at_once(size: int, gather_s: float, waits: bool) -> None:
    """Faust's work per fetch does not depend on what it brings."""
    lane, at = TP("a", 0), []

    class Thread:
        async def getmany(self, wanted: Any, timeout: float) -> Any:
            at.append(time.monotonic())
            return {lane: [RecordBatch("a", 0, 0, 1, 1, [], size)]}

    consumer: Any = transport.Consumer.__new__(transport.Consumer)
    flow = SimpleNamespace(wanted_positions=lambda: {lane: (0, 1)})
    consumer.transport = SimpleNamespace(flow=flow, gather_s=gather_s)
    consumer._thread, consumer._next_fetch = Thread(), 0.0

    async def fetch() -> None:
        for _ in range(6):
            await consumer._getmany({lane}, 1.0)

    asyncio.run(fetch())
    pauses = [b - a for a, b in itertools.pairwise(at)]
    assert (min(pauses) >= 0.9 * GATHER_S) == waits


@pytest.mark.parametrize(
    ("position", "highwater", "offset", "proves"),
    [(5, 5, 5, True), (5, 5, 3, False), (5, 6, 5, False), (2, 5, 5, False), (None, 5, 5, False), (5, None, 5, False)],
)
def test_what_proves_that_a_partition_is_silent(
    position: int | None, highwater: int | None, offset: int, proves: bool
) -> None:
    """The broker's answer about the end of the log is not about records that the consumer has read already and that its
    reader, which wants to go on at `offset`, has not got."""
    at = aiokafka.TopicPartition("a", 0)
    consumer: Any = transport.Consumer.__new__(transport.Consumer)

    async def asked() -> None:
        state = TopicPartitionState(None)
        if position is not None:
            state.seek(position)
        state.highwater, state.timestamp = highwater, 1_700_000_000_000
        assignment = SimpleNamespace(tps={at}, state_value={at: state}.get)
        subscription = SimpleNamespace(subscription=SimpleNamespace(assignment=assignment))
        consumer._thread = SimpleNamespace(_consumer=SimpleNamespace(_subscription=subscription))
        assert consumer.caught_up_ms(TP("a", 0), offset) == (1_700_000_000_000 if proves else None)
        assert consumer.caught_up_ms(TP("a", 1), offset) is None, "it is not assigned"

    asyncio.run(asked())


async def fetch_all(bootstrap: str, topic: str, start: int, end: int, fetch_bytes: int) -> list[RecordBatch]:
    """Fetch a partition as the consumer thread does."""
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="none",
        max_partition_fetch_bytes=fetch_bytes,
    )
    at = aiokafka.TopicPartition(topic, 0)
    await consumer.start()
    batches: list[RecordBatch] = []
    try:
        consumer.assign([at])
        consumer.seek(at, start)
        fetcher: Any = consumer._fetcher
        while start < end:
            if at not in fetcher._records:
                await asyncio.wait_for(fetcher._create_fetch_waiter(), 20)
                continue
            found = fetcher._records.pop(at)
            fetcher._notify(fetcher._wait_consume_future)
            assert isinstance(found, FetchResult)
            if not found.check_assignment(at):
                continue
            part = found._partition_records
            begin = part.next_fetch_offset
            records = unpack(part)
            found._update_position()
            start = part.next_fetch_offset
            batches.append(RecordBatch(topic, 0, begin, start, 1, records, rough_size(records)))
    finally:
        await consumer.stop()
    return batches


def log_end(bootstrap: str, topic: str) -> int:
    """The offset after the last record, markers of transactions included."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "isolation.level": "read_uncommitted"})
    _, end = reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)
    reader.close()
    return int(end)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_committed_records_and_nothing_else(topics: Topics, compression: str) -> None:
    """Transactions of two producers, some aborted, interleaved with plain records; fetched in small pieces."""
    topic = topics(f"mixed-{compression}")
    rng = random.Random(compression)
    conf = {"bootstrap.servers": topics.bootstrap, "compression.type": compression, "linger.ms": 0}
    plain = Producer(conf)
    writers = [Producer({**conf, "transactional.id": f"{topic}-{i}"}) for i in range(2)]
    for writer in writers:
        writer.init_transactions(30)
    open_: set[int] = set()
    for step in range(120):
        who = rng.randrange(3)
        if who == 2:
            plain.produce(topic, b"plain %d" % step, key=b"k", partition=0)
            plain.flush()
            continue
        if who not in open_:
            writers[who].begin_transaction()
            open_.add(who)
        for i in range(rng.randrange(1, 6)):
            writers[who].produce(topic, b"%d %d %d" % (who, step, i), partition=0)
        writers[who].flush()
        if rng.random() < 0.5:
            (writers[who].commit_transaction if rng.random() < 0.6 else writers[who].abort_transaction)(30)
            open_.discard(who)
    for who in open_:
        writers[who].abort_transaction(30)
    plain.produce(topic, b"last", partition=0)
    plain.flush()
    reader = Reader(topics.bootstrap, topic)
    wait_for(lambda: bool(reader.poll()) and reader.records[-1].value == b"last", "the last record is read")
    expected = [(r.offset, r.key, r.value) for r in reader.records]
    end = log_end(topics.bootstrap, topic)
    for start in (0, expected[len(expected) // 2][0], end - 1):
        batches = asyncio.run(fetch_all(topics.bootstrap, topic, start, end, 600))
        found = [(r.offset, r.key, r.value) for batch in batches for r in batch.records]
        assert found == [record for record in expected if record[0] >= start]
        assert batches[0].start == start
        assert all(a.next_offset == b.start for a, b in itertools.pairwise(batches))
        for batch in batches:
            assert batch.offsets().tolist() == [r.offset for r in batch.records]
            assert batch.values() == [r.value for r in batch.records]
            assert batch.timestamps().tolist() == [r.timestamp for r in batch.records]


def test_fetching_begins_again_after_an_error(topics: Topics, caplog: pytest.LogCaptureFixture) -> None:
    """aiokafka's fetch routine dies of an error without a word to us: all partitions would be silent for ever."""
    topic = topics("revived")
    writer = Producer({"bootstrap.servers": topics.bootstrap})

    async def read() -> None:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=topics.bootstrap, auto_offset_reset="none")
        thread = object.__new__(ConsumerThread)
        thread.consumer = SimpleNamespace(flow_active=True)  # Faust's
        thread.log = logging.getLogger("transport")
        tp, at = TP(topic, 0), aiokafka.TopicPartition(topic, 0)
        thread._seeks = {tp: 7}
        await consumer.start()
        try:
            consumer.assign([at])
            consumer.seek(at, 0)
            for number, value in enumerate([b"before", b"between", b"after"]):
                if number:
                    await _end_fetching(consumer._fetcher)
                writer.produce(topic, value, partition=0)
                writer.flush()
                batches: list[RecordBatch] = []
                async with asyncio.timeout(20):
                    while not batches:
                        batches = (await thread._fetch_records(consumer, {tp})).get(tp, [])
                assert [batch.values() for batch in batches] == [[value]]
                assert (batches[0].start, batches[0].seek) == (number, 7)
        finally:
            await consumer.stop()

    asyncio.run(read())
    told = [record for record in caplog.records if "it begins again" in record.getMessage()]
    assert len(told) == 2


async def _end_fetching(fetcher: Any) -> None:
    """As aiokafka's own assertions do, in one of the tasks that it waits for."""

    async def fail() -> bool:
        raise AssertionError("a second error of one partition")

    fetcher._pending_tasks.add(asyncio.get_running_loop().create_task(fail()))
    fetcher._notify(fetcher._wait_consume_future)
    await asyncio.wait([fetcher._fetch_task], timeout=20)
    assert isinstance(fetcher._fetch_task.exception(), KafkaError)


def test_an_offset_that_is_gone_is_told_on_the_event_loop() -> None:
    """The task manager ended and opened the task in the consumer's thread, beside its own work on the loop: asyncio's
    tasks may only be made there."""
    told: list[tuple[TP, int, int]] = []

    class Gone:
        def check_raise(self) -> None:
            raise OffsetOutOfRangeError({aiokafka.TopicPartition("t", 3): 7})

    async def read() -> None:
        thread: Any = object.__new__(ConsumerThread)
        flow = SimpleNamespace(lost=lambda tp, offset: told.append((tp, offset, threading.get_ident())))
        thread.transport, thread.parent_loop = SimpleNamespace(flow=flow), asyncio.get_running_loop()
        await asyncio.to_thread(thread._handle_fetch_error, TP("t", 3), Gone())

    asyncio.run(read())
    assert told == [(TP("t", 3), 7, threading.get_ident())]


@pytest.mark.parametrize("ends", ["before", "meanwhile"])
def test_a_commit_that_outlasts_its_consumer_is_refused(ends: str) -> None:
    """At least once, a task that waited for the group's coordinator while the worker ended, or joined the group anew,
    failed of an error that nobody expected, and ended the worker with exit code 1."""
    loop, asked = asyncio.new_event_loop(), threading.Event()

    async def never(offsets: object) -> None:
        asked.set()
        await asyncio.sleep(600)

    async def until_asked() -> None:
        await asyncio.to_thread(asked.wait, 20)

    def consumer_ends() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(until_asked())
        for pending in asyncio.all_tasks(loop):
            pending.cancel()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    if ends == "before":
        asked.set()
    consumer: Any = transport.Consumer.__new__(transport.Consumer)
    consumer.log = logging.getLogger("transport")
    consumer._thread = SimpleNamespace(_ensure_consumer=lambda: SimpleNamespace(commit=never), thread_loop=loop)
    thread = threading.Thread(target=consumer_ends)
    thread.start()
    if ends == "before":
        thread.join(20)
    assert not consumer.commit_as_member({("t", 0): (7, "message")})
    thread.join(20)


def test_a_batch_is_cut_by_offset() -> None:
    """Whatever the gaps, the two parts of a cut chain and hold everything."""

    class Fake:
        def __init__(self, offset: int) -> None:
            self.offset, self.value, self.key, self.timestamp = offset, b"v", None, None

    batch = RecordBatch("t", 0, 5, 20, 1, [Fake(n) for n in (6, 7, 9, 15)], 4)
    for at in range(5, 21):
        low, high = batch.until(at), batch.since(at)
        assert (low.start, low.next_offset, high.start, high.next_offset) == (5, at, at, 20)
        assert [r.offset for r in (*low.records, *high.records)] == [6, 7, 9, 15]
        assert all(r.offset < at for r in low.records)
    assert batch.timestamps().tolist() == [-1] * 4
    assert RecordBatch("t", 0, 5, 5, 1, [], 0).offsets().tolist() == []


def test_faust_is_kept_from_remembering_offsets() -> None:
    """Faust drops what lies before the last offset it noted; a task that goes back would lose input."""
    noted = _NoReadOffsets()
    noted[TP("t", 0)] = 7
    noted.update({TP("t", 0): 9})
    assert noted[TP("t", 0)] is None
    assert noted.pop(TP("t", 0), None) is None


def test_a_thread_that_has_just_been_begun_can_be_stopped(capfd: pytest.CaptureFixture[str]) -> None:
    """A worker that was stopped in the moment in which another plan took over ended with a stack trace of its consumer:
    the thread found the loop closed (found by torture, 252041)."""
    threads: list[Slow] = []

    class Slow(StopsWhileStarting):
        wait_for_thread = False

        def _start_thread(self) -> None:
            time.sleep(0.3)
            super()._start_thread()

    async def begin() -> None:
        threads.append(Slow())
        await threads[0].start()
        await threads[0].stop()

    asyncio.run(begin())
    assert threads[0]._thread is not None
    threads[0]._thread.join(10)
    assert not threads[0]._thread.is_alive()
    assert "Traceback" not in capfd.readouterr().err


def test_a_thread_that_was_not_begun_can_be_stopped() -> None:
    async def stop() -> None:
        await StopsWhileStarting().stop()

    asyncio.run(stop())


@pytest.mark.deep
def test_a_consumer_begins_although_no_broker_answers_yet(restartable_broker: RestartableBroker) -> None:
    """It keeps trying until one does, or until it is told to stop.

    A worker whose broker went away between its first look at the topics and the start of its consumer, or while another
    plan took over, ended with three stack traces and exit code 1.
    """
    restartable_broker.stop()

    async def begin() -> None:
        stopped = False
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=restartable_broker.bootstrap, group_id="late")
        beginning = asyncio.create_task(connect(consumer, lambda: stopped))
        done, _ = await asyncio.wait([beginning], timeout=2)
        assert not done
        await asyncio.to_thread(restartable_broker.start)
        assert await asyncio.wait_for(beginning, 60)
        await consumer.stop()
        await asyncio.to_thread(restartable_broker.stop)
        other = aiokafka.AIOKafkaConsumer(bootstrap_servers=restartable_broker.bootstrap, group_id="late")
        beginning = asyncio.create_task(connect(other, lambda: stopped))
        await asyncio.sleep(0)
        stopped = True
        assert not await asyncio.wait_for(beginning, 60)
        await other.stop()

    asyncio.run(begin())
