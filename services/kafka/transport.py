"""Faust's aiokafka transport, changed to deliver each fetch of a partition as one message. The worker uses `Transport`.

A Faust agent processes some 14,000 messages a second. With one `RecordBatch` per fetched partition it processes well
over a million records a second. So the consumer overrides three places of Faust's driver: how fetched records are
drained (`_fetch_records`: one `RecordBatch` per partition), how a message is made from them (`_to_message`: value = the
batch, offset = its last), and where reading starts (`seek_to_committed`).

Three more things differ from Faust:

- **Offsets.** Faust commits nothing (`_commit` refuses); tasks commit offsets with their results.
- **Flow.** `Flow.wanted_positions` decides which partitions may be read now. Faust's own back-pressure sleeps for a
  second whenever every partition is full, which under load is always.
- **Seeks** are numbered, and each batch carries its seek's number, so that a batch that was fetched before a seek is
  recognised as stale wherever it is queued.

This uses private parts of faust-streaming 0.15.3 and aiokafka 0.14.0, which are pinned for that reason.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import CancelledError
from typing import Any, ClassVar, Protocol, cast

import aiokafka
from aiokafka.consumer.fetcher import FetchResult
from aiokafka.errors import (
    ConsumerStoppedError,
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
)
from aiokafka.protocol.group import LeaveGroupRequest
from aiokafka.structs import OffsetAndMetadata
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, ConsumerMessage
from mode import Service
from mode.threads import ServiceThread

from schemas.errors import BrokerError
from services.kafka.fetching import (
    AnswerWatch,
    answer_mark,
    describe,
    describe_membership,
    end_coordination,
    end_fetches,
    keep_first_errors,
    partition_state,
    reconnect,
    revive,
)
from services.kafka.records import RecordBatch, rough_size, unpack
from services.process.logs import get_log

BEGINNING_S = 0.01
"""How often it is checked whether a thread has begun."""

FETCH_WAIT_MS = 100
"""How long the broker may hold a fetch that finds nothing. aiokafka has one fetch in flight per broker, so
a partition that becomes wanted waits at most this long."""

GATHER_S = 0.005
"""Where tasks read each other's results, the next fetch begins no sooner than this after one that found little. Under a
steady trickle the broker answers one fetch per record or so, and Faust needs about a millisecond for each, however
little it brings. At 5,000 events/s a worker with one task would answer later by about this time."""

MUCH_BYTES = 64 << 10
"""A fetch that found so much is followed by the next at once."""

COMMIT_S = 30.0

GROUP_S = 0.2
"""How often errors of the consumer group are checked."""

WATCH_S = 1.0
"""How often the consumer checks that Kafka answers for every partition that is read."""

LEAVE_S = 5.0
"""How long a worker that ends waits for Kafka's answer that it has left the group."""

NEVER_MS = sys.maxsize
"""A worker without tasks reads nothing, which must not end its membership."""

NOT_JOINED = ("", -1)
"""`Consumer.generation` before the process has joined its group."""

AGAIN_S = 0.5
"""Pause before a consumer is started again that no broker has answered."""

POLL_SECONDS = 0.1
"""Longest wait of one poll. A partition that becomes wanted after its data were fetched waits at most this long."""

LOG = get_log("kafka")


class Flow(Protocol):
    """Decides what is read; `services.worker.task_manager.TaskManager` implements it. Its methods are called on the
    worker's event loop."""

    def wanted_positions(self) -> dict[TP, tuple[int, int]]:
        """Of all partitions that may be read now, the next offset and the number of the seek that led there."""

    async def changed(self, seconds: float) -> None:
        """Return when `wanted_positions` may have grown, at the latest after `seconds`."""

    def positions(self) -> dict[TP, tuple[int, int]]:
        """Where to read from, and the number of that seek, for the partitions that are ready. The others are sought
        later."""

    def failed(self, error: BrokerError) -> None:
        """The consumer cannot read any more."""

    def lost(self, tp: TP, offset: int) -> None:
        """The log of `tp` no longer has `offset`, which was to be read."""


class StopsWhileStarting(ServiceThread):
    """A `ServiceThread` that can be stopped at once. Mode ignores that while the thread is beginning: it would run on,
    and fail when the loop that began it is closed."""

    async def stop(self) -> None:
        """Stop the thread."""
        while self._thread_started.is_set() and self._thread is not None and not self._started.is_set():
            if not self._thread.is_alive():
                return
            await asyncio.sleep(BEGINNING_S)
        await super().stop()


class ConsumerThread(StopsWhileStarting, driver.AIOKafkaConsumerThread):
    """The thread that owns the aiokafka consumer."""

    _seeks: dict[TP, int]
    _unreadable: BrokerError | None = None

    def _create_worker_consumer(self, transport: driver.Transport) -> aiokafka.AIOKafkaConsumer:
        conf = self.app.conf
        own = cast(Transport, transport)
        self._seeks = {}
        return aiokafka.AIOKafkaConsumer(
            bootstrap_servers=own.bootstrap_servers,
            client_id=conf.broker_client_id,
            group_id=conf.id,
            partition_assignment_strategy=[own.assignor],
            enable_auto_commit=False,
            # Tasks decide where reading starts, and what a lost offset means: a reset would silently lose input.
            auto_offset_reset="none",
            isolation_level="read_committed",
            max_poll_interval_ms=NEVER_MS,
            max_partition_fetch_bytes=conf.consumer_max_fetch_size,
            fetch_max_wait_ms=FETCH_WAIT_MS,
            request_timeout_ms=int(conf.broker_request_timeout * 1000),
            session_timeout_ms=int(conf.broker_session_timeout * 1000),
            rebalance_timeout_ms=int(conf.broker_rebalance_timeout * 1000),
            heartbeat_interval_ms=int(conf.broker_heartbeat_interval * 1000),
            metadata_max_age_ms=int(conf.consumer_metadata_max_age_ms),
            **own.security,
        )

    @property
    def coordinator(self) -> Any:
        """aiokafka's membership of the group; None before the consumer has started."""
        return None if self._consumer is None else self._consumer._coordinator

    async def on_start(self) -> None:
        """Start the consumer, unless the service is stopped before Kafka has answered."""
        await self.wait(self._start())

    async def _start(self) -> None:
        """Connect, and remove the member of an earlier process that could not leave the group."""
        self._consumer = self._create_consumer(loop=self.thread_loop)
        self.time_started = time.monotonic()
        if not await connect(self._consumer, lambda: self.should_stop):
            return
        keep_first_errors(self._consumer._fetcher)
        former = cast(Transport, self.transport).former_member
        if former:
            await self._leave(former)

    async def on_thread_stop(self) -> None:
        """Stop the consumer and leave the group, whatever the state of its fetches and of the group."""
        consumer = self._consumer
        if consumer is not None and consumer._fetcher is not None:
            await end_fetches(consumer._fetcher)
            await end_coordination(consumer._coordinator)
        try:
            async with asyncio.timeout(LEAVE_S):
                await super().on_thread_stop()
        except TimeoutError:
            if consumer is not None:
                await consumer._client.close()

    async def _leave(self, member: str) -> None:
        """Remove a dead member, so that the group need not wait for its session to time out."""
        coordinator = self._ensure_consumer()._coordinator
        try:
            await coordinator.ensure_coordinator_known()
            await coordinator._send_req(LeaveGroupRequest(coordinator.group_id, member))
        except KafkaError as error:
            self.log.info("could not remove former member %s: %r", member, error)

    async def seek(self, positions: Mapping[TP, tuple[int, int]]) -> None:
        """Read on from the given (offset, seek number) per partition."""
        await self.call_thread(self._seek, positions)

    async def _seek(self, positions: Mapping[TP, tuple[int, int]]) -> None:
        consumer = self._ensure_consumer()
        assigned = consumer.assignment()
        for tp, (offset, number) in positions.items():
            at = driver.ensure_aiokafka_TP(tp)
            if at in assigned:
                self._seeks[tp] = number
                consumer.seek(at, offset)

    async def _fetch_records(
        self,
        consumer: aiokafka.AIOKafkaConsumer,
        active_partitions: set[TP] | None,
        timeout: float | None = None,
        max_records: int | None = None,
    ) -> dict[TP, list[RecordBatch]]:
        if not self.consumer.flow_active:
            return {}
        fetcher = consumer._fetcher
        if consumer._closed or fetcher._closed:
            raise ConsumerStoppedError
        if (error := revive(fetcher)) is not None:
            self.log.error("fetching had ended with %r, it begins again", error)
        with fetcher._subscriptions.fetch_context():
            drained = self._drain(fetcher, active_partitions or set())
            if drained or fetcher._subscriptions.reassignment_in_progress:
                return drained
            waiter = fetcher._create_fetch_waiter()
            await asyncio.wait([waiter], timeout=min(timeout or POLL_SECONDS, POLL_SECONDS))
            if not waiter.done():
                waiter.set_result(None)
            if not self.consumer.flow_active or fetcher._subscriptions.reassignment_in_progress:
                return {}
            return self._drain(fetcher, active_partitions or set())

    async def check_group(self) -> None:
        """Fetch the error of aiokafka's group coordinator, which otherwise does not continue.

        Raises:
            BrokerError: the error is not temporary, or reading has failed.
        """
        if self._unreadable is not None:
            raise self._unreadable
        coordinator = self.coordinator
        if coordinator is None:
            return
        try:
            coordinator.check_errors()
        except KafkaError as error:
            if not error.retriable:
                why = f"Kafka refuses it, this user needs READ on group {self.app.conf.id!r}"
                refused = isinstance(error, GroupAuthorizationFailedError)
                raise BrokerError(f"consumer group {self.app.conf.id!r}: {why if refused else repr(error)}") from error
            self.log.warning("consumer group %s: %r, trying again", self.app.conf.id, error)

    async def watch_answers(self, watch: AnswerWatch, wanted_positions: Mapping[TP, tuple[int, int]]) -> None:
        """Reconnect to Kafka if `watch` reports partitions without answers.

        Args:
            wanted_positions: next offset and seek number of each partition that is to be read.
        """
        consumer = self._ensure_consumer()
        marks: dict[TP, Hashable] = {}
        for tp, (offset, seek) in wanted_positions.items():
            sought = self._seeks.get(tp) == seek
            marks[tp] = answer_mark(consumer, driver.ensure_aiokafka_TP(tp), offset) if sought else ("unsought", seek)
        silent = watch.look(marks, time.monotonic())
        if silent:
            partitions = ", ".join(sorted(f"{tp.topic}[{tp.partition}]" for tp in silent))
            LOG.warning("Kafka does not answer for partitions, connecting anew", partitions=partitions)
            client = describe(consumer, {tp: marks[tp] for tp in silent})
            LOG.info("state of the consumer before", flow=self.consumer.flow_active, client=client)
            await reconnect(consumer)

    def _drain(self, fetcher: Any, wanted: set[TP]) -> dict[TP, list[RecordBatch]]:
        drained: dict[TP, list[RecordBatch]] = {}
        for at in list(fetcher._records):
            tp = TP(at.topic, at.partition)
            if tp not in wanted:
                if not fetcher._subscriptions.is_assigned(at):
                    del fetcher._records[at]
                continue
            fetched = fetcher._records.pop(at)
            fetcher._notify(fetcher._wait_consume_future)
            if not isinstance(fetched, FetchResult):
                self._handle_fetch_error(tp, fetched)
                continue
            if not fetched.check_assignment(at):
                continue
            part = fetched._partition_records
            start = part.next_fetch_offset
            records = unpack(part)
            fetched._update_position()
            end, seek = part.next_fetch_offset, self._seeks.get(tp, 0)
            drained[tp] = [RecordBatch(at.topic, at.partition, start, end, seek, records, rough_size(records))]
        return drained

    def _handle_fetch_error(self, tp: TP, fetched: Any) -> None:
        try:
            fetched.check_raise()
        except NoOffsetForPartitionError:
            pass  # assigned and not yet sought
        except OffsetOutOfRangeError as error:
            offset = next(iter(error.args[0].values()), -1) if error.args and error.args[0] else -1
            # This is the consumer's thread, and the flow belongs to the worker's event loop.
            self.parent_loop.call_soon_threadsafe(cast(Transport, self.transport).flow.lost, tp, offset)
        except TopicAuthorizationFailedError:
            why = f"Kafka refuses it, this user needs READ on topic {tp.topic!r}"
            self._unreadable = BrokerError(f"reading {tp.topic}[{tp.partition}]: {why}")
        except KafkaError as error:
            self._unreadable = BrokerError(f"reading {tp.topic}[{tp.partition}]: {error!r}")


async def connect(consumer: aiokafka.AIOKafkaConsumer, stopped: Callable[[], bool]) -> bool:
    """Start a consumer; try again while no broker answers. False if it was stopped meanwhile.

    A worker starts a consumer when it has found its topics, and again with each plan of a distributed query. The broker
    may have become unreachable in between. A consumer that has started reconnects by itself.
    """
    while not stopped():
        try:
            await consumer.start()
            return True
        except KafkaConnectionError:
            await asyncio.sleep(AGAIN_S)
    return False


class _NoReadOffsets(dict[TP, int | None]):
    """Replaces Faust's record of the last offset read, by which it drops records before that offset; stores nothing.

    A task that goes back to its last commit reads offsets again while later ones are still queued. Seek numbers tell
    them apart; Faust's record would not.
    """

    def __missing__(self, tp: TP) -> None:
        return None

    def __setitem__(self, tp: TP, offset: int | None) -> None:
        return

    def update(self, *args: Any, **kwargs: Any) -> None:
        return


class Consumer(driver.Consumer):
    """Faust's consumer over `ConsumerThread`."""

    _thread: ConsumerThread

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._read_offset = _NoReadOffsets()
        self._answers = AnswerWatch()
        self._next_fetch = 0.0

    @property
    def _flow(self) -> Flow:
        return cast(Transport, self.transport).flow

    @Service.task
    async def _watch_group(self) -> None:
        """Check for errors of the group and of reading, also while nothing is assigned: a refused member never
        reads."""
        while not self.should_stop:
            try:
                await self._thread.call_thread(self._thread.check_group)
            except BrokerError as error:
                self._flow.failed(error)
                return
            await self.sleep(GROUP_S)

    @Service.task
    async def _watch_answers(self) -> None:
        """Reconnect to Kafka when it no longer answers for partitions that are to be read."""
        while not self.should_stop:
            await self.sleep(WATCH_S)
            if self._thread._consumer is not None:
                await self._thread.call_thread(self._thread.watch_answers, self._answers, self._flow.wanted_positions())

    def _new_consumer_thread(self) -> ConsumerThread:
        return ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> dict[TP, list[RecordBatch]]:
        wanted = self._flow.wanted_positions().keys() & (active_partitions or set())
        if not wanted:
            await self._flow.changed(POLL_SECONDS)
            return {}
        if (pause_s := self._next_fetch - time.monotonic()) > 0:
            await asyncio.sleep(pause_s)
        found = cast(dict[TP, list[RecordBatch]], await self._thread.getmany(wanted, timeout))
        much = sum(batch.size_bytes for batches in found.values() for batch in batches) >= MUCH_BYTES
        self._next_fetch = 0.0 if much else time.monotonic() + cast(Transport, self.transport).gather_s
        return found

    def _to_message(self, tp: TP, record: RecordBatch) -> ConsumerMessage:
        return ConsumerMessage(
            record.topic,
            record.partition,
            record.next_offset - 1,
            None,
            0,
            None,
            None,
            record,
            None,
            None,
            record.size_bytes,
            tp,
            generation_id=self.app.consumer_generation_id,
        )

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Seek to where the tasks want to read, according to their own commits."""
        assigned = self.assignment()
        positions = {tp: at for tp, at in self._flow.positions().items() if tp in assigned}
        await self.seek_to(positions)
        return {tp: offset for tp, (offset, _) in positions.items()}

    async def seek_to(self, positions: Mapping[TP, tuple[int, int]]) -> None:
        """Read on from the given (offset, seek number) per partition."""
        await self._thread.seek(positions)

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        """Refuse: tasks commit offsets together with their results."""
        return False

    def commit_as_member(self, offsets: Mapping[tuple[str, int], tuple[int, str]]) -> bool:
        """Commit offsets with metadata as this member of the group; False when the group refuses, or when the consumer
        ends meanwhile.

        Blocking; for threads other than the loop's.
        """
        # librdkafka reads it back, and writes and expects C's terminating zero.
        wanted = {
            aiokafka.TopicPartition(*lane): OffsetAndMetadata(offset, metadata + "\0")
            for lane, (offset, metadata) in offsets.items()
        }
        attempt = self._thread._ensure_consumer().commit(wanted)
        try:
            done = asyncio.run_coroutine_threadsafe(attempt, self._thread.thread_loop)
        except RuntimeError:  # the loop is closed
            attempt.close()
            self.log.info("offsets not committed: the consumer has ended")
            return False
        try:
            done.result(COMMIT_S)
        except (KafkaError, TimeoutError, CancelledError) as error:
            # Else it could still commit these offsets after the task's next incarnation has committed newer ones.
            done.cancel()
            self.log.info("offsets not committed: %r", error)
            return False
        return True

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Check nothing: Faust would look for its own commits here."""

    def caught_up_ms(self, tp: TP, offset: int) -> int | None:
        """When (wall clock, ms) the broker last reported that the log has nothing at `offset` or beyond.

        None if its last answer did not report that, or if the consumer's position is another: then records before that
        position are still on their way, or it has yet to seek. A recent time proves that a partition is silent, rather
        than slow, paused or unreachable.
        """
        consumer = self._thread._consumer
        state = consumer and partition_state(consumer, driver.ensure_aiokafka_TP(tp))
        if state is None or not state.has_valid_position or state.highwater is None or state.timestamp is None:
            return None
        # The consumer's thread may take the next answer meanwhile, so the time comes first.
        answered_ms = int(state.timestamp)
        return answered_ms if state.position == offset >= state.highwater else None

    def connected(self) -> bool:
        """False while there is a consumer without a connection to any broker."""
        consumer = self._thread._consumer
        return consumer is None or any(c.connected() for c in list(consumer._client._conns.values()))

    def generation(self) -> tuple[str, int]:
        """The member id and the group's generation; NOT_JOINED at first."""
        coordinator = self._thread.coordinator
        return NOT_JOINED if coordinator is None else (str(coordinator.member_id), int(coordinator.generation))

    def is_joining(self) -> bool:
        """Whether this process has yet to join the group's generation, as far as it knows."""
        coordinator = self._thread.coordinator
        if coordinator is None or coordinator._rejoin_needed_fut.done():
            return True
        heartbeats = coordinator._heartbeat_task
        return heartbeats is None or heartbeats.done()

    def describe_membership(self) -> str:
        """What joining the group waits for, for the log."""
        return describe_membership(self._thread._consumer)

    async def rejoin(self) -> None:
        """Ask the group for a new assignment: after a task was fenced, the group decides whose task it is."""
        await self._thread.call_thread(self._request_rejoin)

    async def _request_rejoin(self) -> None:
        self._thread._ensure_consumer()._coordinator.request_rejoin()


class Transport(driver.Transport):
    """The transport of a Weir worker; the attributes are set before the app starts.

    Attributes:
        bootstrap_servers: `host:port` list, as aiokafka takes it.
        security: security keyword arguments of an aiokafka client.
        former_member: member id of a dead process that is known to be gone, or empty.
        gather_s: the pause after a fetch that found little; see GATHER_S.
    """

    Consumer: ClassVar[type] = Consumer
    flow: Flow
    assignor: Any
    bootstrap_servers: list[str]
    security: dict[str, Any]
    former_member: str = ""
    gather_s: float = 0.0
