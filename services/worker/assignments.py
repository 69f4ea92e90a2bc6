"""Which tasks this worker runs: opens and ends them as the group assigns partitions, and feeds them.

Lives on the event loop; tasks live in threads. It is the transport's `Flow`.

A rebalance first asks every task to deliver what it has (`settle`), then compares the new assignment with
the tasks at hand: a task whose partitions stay goes on with its state in memory, one whose partitions left
ends, one that is new is opened beside, so that membership never waits for a task. Going on is safe even
if another worker ran the task in between without this one noticing: that worker has fenced our producer, and
our next commit fails.

Each batch is checked against the chain of its partition (`RecordBatch`): what belongs to an earlier seek is
dropped, a gap ends the task, since a lost batch would be lost input.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from faust.types import TP

from schemas.errors import BrokerError, WeirError
from services.delivery.sink import Aborted, Fenced
from services.kafka.records import RecordBatch
from services.kafka.topics import Lane
from services.placement.distributed import PlacedLayout
from services.placement.tasks import Layout
from services.process.logs import Log, get_log
from services.process.metrics import WorkerMetrics
from services.spill.block_store import SpillError
from services.task.spec import End, Outcome, TaskSpec
from services.task.task import Task
from services.worker.assignment import Reader, Seat, shown_lanes
from services.worker.health import HEALTHY_S, NOWHERE, shown_time

SETTLE_S = 10.0
"""How long a rebalance waits for open epochs."""

BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Pauses before a task is opened again, by how often it failed lately."""

REMIND_S = 600.0
"""After how long a disk that still fails is complained of again."""

EVIDENCE_S = 2.0
"""How old the broker's word that a log has nothing more may be."""


class ConsumerControl(Protocol):
    """What the roster asks of the consumer."""

    async def seek_to(self, positions: Mapping[TP, tuple[int, int]]) -> None:
        """Read on from (offset, seek number)."""

    async def rejoin(self) -> None:
        """Ask the group for a new assignment."""

    def member_id(self) -> str:
        """The member id, empty before joining."""

    def caught_up_ms(self, tp: TP) -> int | None:
        """When the broker last said that there is nothing beyond our position; None if there is."""


Opener = Callable[[int, threading.Event, Callable[[Task, Outcome], None], Callable[[], None]], Task]
"""Makes a task: takes it over, plans its recovery. Blocking; raises WeirError."""


class Roster:
    """All seats of a worker.

    Args:
        open_task: makes tasks; called in threads.
        fatal: told the error when the worker cannot go on.

    Attributes:
        joined: whether the group has said which tasks this worker has.
        assignments: how often it has.
    """

    def __init__(
        self,
        spec: TaskSpec,
        layout: Layout | PlacedLayout,
        metrics: WorkerMetrics,
        open_task: Opener,
        wipe: Callable[[int], None],
        fatal: Callable[[BaseException], None],
    ) -> None:
        self._spec = spec
        self._layout = layout
        self._metrics = metrics
        self._open_task = open_task
        self._wipe = wipe
        self._fatal = fatal
        self._log = get_log("roster", query=spec.query.name)
        self._seats: dict[int, Seat] = {}
        self._seeks = itertools.count(1)
        self._threads = ThreadPoolExecutor(8, "open")
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._ending: set[Task] = set()
        self._spawned: set[asyncio.Task[None]] = set()
        settings = spec.settings
        # What is committed or computed only every so often is not late before.
        self._patience_s = (settings.patience_ms + settings.commit_ms + settings.epoch_ms) / 1000
        self._beat_s = time.monotonic()
        self._told_silent_s = float("-inf")
        self.joined = False
        self.assignments = 0
        self.consumer: ConsumerControl | None = None

    # --- The transport's Flow -----------------------------------------------------------------------

    def awaited(self) -> dict[TP, tuple[int, int]]:
        """Of each partition whose task has room and that is not ahead of the others: the next offset, and the number of
        the seek that led there."""
        return {
            TP(*lane): (reader.offset, reader.seek)
            for seat in self._seats.values()
            if seat.task is not None and not seat.task.full
            for lane, reader in seat.readers.items()
            if lane not in seat.task.held
        }

    async def changed(self, seconds: float) -> None:
        """Wait until a task says that it has room again."""
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    def positions(self) -> dict[TP, tuple[int, int]]:
        """Where to read, and the number of that seek, for the partitions whose task is there."""
        return {tp: at for seat in self._seats.values() for tp, at in self._positions(seat).items()}

    def _seat_of(self, topic: str, partition: int) -> Seat | None:
        number = self._layout.set_of(topic, partition)
        return None if number is None else self._seats.get(number)

    # --- The group ----------------------------------------------------------------------------------

    async def assigned(self, partitions: Collection[TP]) -> None:
        """The group has assigned exactly these: make the seats match."""
        found = {self._layout.set_of(tp.topic, tp.partition) for tp in partitions}
        # A partition that was added since may belong to a task that is not there yet.
        numbers = {number for number in found if number is not None and number < self._layout.tasks}
        for number in sorted(set(self._seats) - numbers):
            # While one task ends, `close` may take the others.
            if (seat := self._seats.pop(number, None)) is not None:
                await self._leave(seat)
        member = self.consumer.member_id() if self.consumer else ""
        if not member or self._closing:
            return  # out of the group again already; the next assignment, if any, will tell
        self.joined = True
        self.assignments += 1
        for number in sorted(numbers):
            seat = self._seats.get(number)
            if seat is None:
                seat = self._seats[number] = Seat(number)
                self._begin(seat, 0.0)
            elif seat.fenced:
                seat.fenced = False
                self._begin(seat, 0.0)
            elif seat.task is not None and seat.member != member:
                # We dropped out of the group in between, and somebody else may have had the task.
                await self._leave(seat)
                self._begin(seat, 0.0)
        self._metrics.tasks.labels(self._spec.query.name).set(len(self._seats))

    def failed(self, error: BrokerError) -> None:
        """The worker cannot go on."""
        self._fatal(error)

    def lost(self, tp: TP, offset: int) -> None:
        """The log no longer holds an offset: opening the task again finds out what that means."""
        seat = self._seat_of(tp.topic, tp.partition)
        if seat is not None and seat.task is not None:
            self._log.warning("offset gone from the log", topic=tp.topic, partition=tp.partition, offset=offset)
            seat.task.abandon()
            self._reopen(seat, BrokerError(f"offset {offset} of {tp.topic}[{tp.partition}] is gone"))

    # --- Feeding ------------------------------------------------------------------------------------

    def deliver(self, batch: RecordBatch) -> None:
        """Hand a batch to its task; stale ones are dropped."""
        seat = self._seat_of(batch.topic, batch.partition)
        lane = (batch.topic, batch.partition)
        if seat is None or seat.task is None:
            return
        reader = seat.readers[lane]
        if batch.seek != reader.seek:
            return
        if batch.start != reader.offset:
            seat.task.abandon()
            self._reopen(
                seat,
                BrokerError(f"{batch.topic}[{batch.partition}]: got offset {batch.start}, next is {reader.offset}"),
            )
            return
        reader.offset = batch.next_offset
        if len(batch):
            reader.last_s = time.monotonic()
            reader.told_idle_s = 0.0
        seat.task.offer(lane, batch)

    async def watch(self) -> None:
        """Look after the tasks: whether they get on, and which partitions are silent. Runs until cancelled."""
        while True:
            await asyncio.sleep(0.05)
            self._beat_s = now = time.monotonic()
            for seat in self._seats.values():
                self._look_for_progress(seat)
                if seat.task is not None and seat.task.running:
                    for lane, reader in seat.readers.items():
                        self._look_for_silence(seat.task, lane, reader, now)
            if now - self._told_silent_s > REMIND_S:
                self._tell_silence(now)

    def _look_for_progress(self, seat: Seat) -> None:
        seat.look(self._patience_s)
        illness = seat.illness(self._patience_s)
        if bool(illness) == seat.stands:
            return
        seat.stands = not seat.stands
        if illness:
            self._log.warning("a task makes no progress: /healthz answers 503 until it does", reason=illness)
        else:
            self._log.info("the task makes progress again", task=seat.number)

    def _look_for_silence(self, task: Task, lane: Lane, reader: Reader, now: float) -> None:
        if reader.last_s == 0.0:
            reader.last_s = now
        timeout = self.idle_timeout_s(lane[0])
        if timeout is None or self.consumer is None or lane in task.held:
            return
        if now - max(reader.last_s, reader.told_idle_s) < timeout:
            return
        evidence = self.consumer.caught_up_ms(TP(*lane))
        if evidence is not None and time.time() - evidence / 1000 < EVIDENCE_S:
            reader.told_idle_s = now
            task.mark_idle(lane)

    def _tell_silence(self, now: float) -> None:
        """One line for all silent partitions that hold results back, at most every REMIND_S."""
        silent = [found for seat in self._seats.values() for found in seat.silent(HEALTHY_S / 2, now)]
        lanes = {lane for lane, _ in silent if lane[0] in self._spec.streams and self.idle_timeout_s(lane[0]) is None}
        first_s = min((last_s for lane, last_s in silent if lane in lanes), default=now)
        if now - first_s <= HEALTHY_S:
            return
        self._told_silent_s = now
        self._log.warning(
            "results wait for partitions that are silent; if their input has not just ended, declare idle_timeout for "
            "their streams to go on without them",
            partitions=shown_lanes(lanes),
            since=shown_time(time.time() - (now - first_s)),
        )

    def idle_timeout_s(self, topic: str) -> float | None:
        """The idle timeout of a topic: the longest of its streams', None for never."""
        default = self._spec.settings.idle_timeout_ms
        declared = [
            default if stream.idle_timeout_ms is None else stream.idle_timeout_ms
            for stream in self._spec.streams.get(topic, ())
        ]
        known = [ms for ms in declared if ms is not None]
        return max(known) / 1000 if known and len(known) == len(declared) else None

    # --- Opening and ending -------------------------------------------------------------------------

    def _begin(self, seat: Seat, pause_s: float) -> None:
        seat.opening = self._spawn(self._open(seat, pause_s))

    def _spawn(self, routine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a routine beside the others. An error that it does not expect ends the worker: asyncio would keep it to
        itself, and a task that was being opened would never be opened nor tried again."""
        spawned = self._loop.create_task(routine)
        self._spawned.add(spawned)
        spawned.add_done_callback(self._done)
        return spawned

    def _done(self, spawned: asyncio.Task[None]) -> None:
        self._spawned.discard(spawned)
        error = None if spawned.cancelled() else spawned.exception()
        if error is not None:
            self._fatal(error)

    async def _open(self, seat: Seat, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        for former in [task for task in self._ending if task.number == seat.number]:
            # It holds the state table until its thread has ended.
            await self._end(former)
        give_up = threading.Event()
        try:
            task = await self._loop.run_in_executor(
                self._threads, self._open_task, seat.number, give_up, self._on_end, self._on_change
            )
        except asyncio.CancelledError:
            give_up.set()
            raise
        except SpillError as error:
            self._metrics.of(str(seat.number)).spill_failures.inc()
            self._unspilled(seat, error)
            return
        except Fenced as error:
            if self._seats.get(seat.number) is seat:
                self._dropped(seat, str(error))
            return
        except (Aborted, BrokerError) as error:
            self._again(seat, error)
            return
        except WeirError as error:
            self._fatal(error)
            return
        if self._closing or self._seats.get(seat.number) is not seat:
            task.abandon()
            task.start()
            return
        seat.task, seat.problem, seat.since_s = task, "", time.monotonic()
        seat.member = self.consumer.member_id() if self.consumer else ""
        seat.readers = {lane: Reader(start.offset) for lane, start in task.recovery.lanes.items()}
        task.start()
        if self.consumer is not None:
            await self.consumer.seek_to(self._positions(seat))
        self._on_change()

    def _positions(self, seat: Seat) -> dict[TP, tuple[int, int]]:
        if seat.task is None:
            return {}
        for reader in seat.readers.values():
            reader.seek = next(self._seeks)
        return {TP(*lane): (reader.offset, reader.seek) for lane, reader in seat.readers.items()}

    def _on_change(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:
            return  # the loop is gone; nobody waits

    def _on_end(self, task: Task, outcome: Outcome) -> None:
        try:
            self._loop.call_soon_threadsafe(self._ended, task, outcome)
        except RuntimeError:
            return

    def _ended(self, task: Task, outcome: Outcome) -> None:
        """On the loop, after a task's thread has ended."""
        self._ending.discard(task)
        seat = self._seats.get(task.number)
        ours = seat is not None and seat.task is task
        if outcome.end is End.FAILED and outcome.error is not None:
            self._fatal(outcome.error)
        if seat is None or not ours or outcome.end in (End.FINISHED, End.FAILED):
            return
        reason = str(outcome.error)
        if outcome.end is End.FENCED:
            self._dropped(seat, reason)
        elif outcome.end is End.DAMAGED:
            self._metrics.of(str(task.number)).snapshot_failures.inc()
            self._log.warning("snapshot unusable, rebuilding from Kafka", task=task.number, reason=reason)
            self._spawn(self._wipe_and_reopen(seat))
        elif outcome.end is End.UNSPILLED:
            self._metrics.of(str(task.number)).spill_failures.inc()
            self._unspilled(seat, outcome.error)
        elif outcome.end is End.AGAIN:
            self._log.info("task begins anew", task=task.number, reason=reason)
            seat.vacate()
            self._begin(seat, 0.0)
        else:
            self._log.warning("task goes back to its last commit", task=task.number, reason=reason)
            self._reopen(seat, outcome.error)

    def _dropped(self, seat: Seat, reason: str) -> None:
        """Somebody has taken the task over. Whose it is now the group must say: opening it unasked would fence the
        rightful owner in turn."""
        self._metrics.of(str(seat.number)).fenced.inc()
        self._log.warning(
            "task dropped: another worker has taken it over, or this one stood still beyond its "
            "transaction timeout; asking the group whose it is",
            task=seat.number,
            reason=reason,
        )
        seat.vacate()
        seat.fenced = True
        seat.problem = "task dropped, waiting for the group's assignment"
        if self.consumer is not None:
            self._spawn(self.consumer.rejoin())

    async def _wipe_and_reopen(self, seat: Seat) -> None:
        seat.vacate()
        await self._loop.run_in_executor(self._threads, self._wipe, seat.number)
        self._begin(seat, 0.0)

    def _unspilled(self, seat: Seat, error: BaseException | None) -> None:
        """What a task has spilled cannot be written or read. It tries until it can: said once in a while."""
        now = time.monotonic()
        anew = now - seat.complained_s > REMIND_S
        if anew:
            seat.complained_s = now
        (self._log.error if anew else self._log.debug)(
            "spilled state cannot be used: the task goes back to its last commit, rebuilds it from Kafka and tries on",
            task=seat.number,
            reason=str(error),
        )
        seat.problem = str(error)
        self._reopen(seat, error)

    def _reopen(self, seat: Seat, error: BaseException | None) -> None:
        failed_at = NOWHERE
        if seat.task is not None:
            seat.look(self._patience_s)
            failed_at = seat.task.cut
            self._metrics.of(str(seat.number)).restarts.inc()
            if time.monotonic() - seat.since_s > HEALTHY_S:
                seat.failures = 0
            if seat.task.outcome is None:
                self._ending.add(seat.task)
            seat.vacate()
        self._again(seat, error, failed_at)

    def _again(self, seat: Seat, error: BaseException | None, failed_at: int = NOWHERE) -> None:
        if self._closing or self._seats.get(seat.number) is not seat:
            return
        seat.ail(str(error), failed_at)
        pause = BACKOFF_S[min(seat.failures, len(BACKOFF_S) - 1)]
        seat.failures += 1
        if str(error) != seat.problem:
            seat.problem = str(error)
            self._log.warning("task not running, trying again", task=seat.number, reason=seat.problem)
        self._begin(seat, pause)

    async def settle(self) -> None:
        """Deliver every open epoch, as far as that goes within SETTLE_S."""
        waiting = [
            self._loop.run_in_executor(None, seat.task.settle, SETTLE_S)
            for seat in self._seats.values()
            if seat.task is not None
        ]
        if waiting:
            await asyncio.gather(*waiting)

    async def _leave(self, seat: Seat) -> None:
        """End a seat's task; what it has open is delivered if Kafka answers in time."""
        if seat.opening is not None and not seat.opening.done():
            seat.opening.cancel()
        task = seat.task
        seat.vacate()
        if task is not None:
            if task.outcome is None:
                await self._end(task)
            self._metrics.of(str(seat.number)).retire()

    async def _end(self, task: Task) -> None:
        task.finish()
        if not await self._loop.run_in_executor(None, task.join, SETTLE_S):
            self._log.warning("task did not end in time; its open epoch is given up", task=task.number)
            task.abandon()
            await self._loop.run_in_executor(None, task.join, SETTLE_S)

    async def close(self) -> None:
        """End all tasks, delivering their open epochs."""
        self._closing = True
        seats, self._seats = list(self._seats.values()), {}
        await asyncio.gather(*(self._leave(seat) for seat in seats))
        for task in list(self._ending):
            await self._end(task)
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- For others ---------------------------------------------------------------------------------

    def held(self) -> Iterable[int]:
        """The sets this worker has state of, for the assignor. Called from the consumer's thread."""
        return [number for number, seat in list(self._seats.items()) if seat.task is not None]

    def seats(self) -> list[Seat]:
        """The seats, for health and tests."""
        return list(self._seats.values())

    def ended(self) -> bool:
        """True when no task has anything left to do: their plan was left, or there are none."""
        return all(seat.task is not None and seat.task.outcome is not None for seat in self._seats.values())

    def illness(self) -> str:
        """What keeps a task from its work for too long; empty when all is well. Any thread may ask."""
        stood_s = time.monotonic() - self._beat_s
        if stood_s > self._patience_s:
            return f"the worker's event loop has stood still for {stood_s:.0f} s: restart the worker"
        return "; ".join(filter(None, (seat.illness(self._patience_s) for seat in self.seats())))

    def seen(self) -> list[dict[str, Any]]:
        """What /healthz tells of each task. Any thread may ask."""
        return [seat.seen() for seat in self.seats()]


def task_log(query: str, number: int) -> Log:
    """The logger of one task."""
    return get_log("task", query=query, task=number)
