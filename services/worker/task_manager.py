"""The tasks that this worker runs: `TaskManager` opens and ends them as the group assigns partitions, and feeds them.

`TaskManager` runs on the event loop, tasks run in threads. It implements the transport's `Flow`.

In a rebalance it first asks every task to deliver its results (`settle`). Then it compares the new assignment with the
running tasks. A task that stays assigned continues with its state in memory. A task that is no longer assigned ends and
a new task is opened in the background, so that group membership never waits for a task. Continuing is safe even if
another worker ran the task in between and this worker did not notice: that worker has fenced our producer, so our next
commit fails.

Each batch is checked against the previous one of its partition (`RecordBatch`). A batch of an earlier seek is dropped.
A gap ends the task, since a lost batch would be lost input.
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

from schemas.errors import BrokerError, SpillError, WeirError
from services.delivery.sink import Aborted, Fenced
from services.kafka.records import RecordBatch
from services.kafka.topics import Lane
from services.kafka.transport import NOT_JOINED
from services.placement.distributed import DistributedLayout
from services.placement.tasks import Layout
from services.process.logs import Log, get_log
from services.process.metrics import WorkerMetrics
from services.task.spec import TaskEnd, TaskOutcome, TaskSpec
from services.task.task import Task
from services.worker.assignment import PartitionReader, TaskAssignment, shown_lanes
from services.worker.health_problem import ANY_COMMIT, shown_time

SETTLE_S = 10.0
"""How long a rebalance waits for open epochs."""

SETTLE_POLL_S = 0.005
"""How often it looks whether they are delivered."""

BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Pauses before a task is opened again, by how often it failed lately."""

BACKOFF_RESET_S = 60.0
"""If a task has run for longer than this when it fails, the pauses begin again with the shortest."""

SILENCE_WARNING_S = 60.0
"""The log warns when a partition has been silent for longer than this and delays results. The warning also names the
partitions that have been silent for more than half of it."""

REMIND_S = 600.0
"""The log repeats a warning that still holds after this long."""

EVIDENCE_S = 2.0
"""A partition counts as idle only if the broker reported its end within this time."""


class ConsumerControl(Protocol):
    """What the task manager needs of the consumer."""

    async def seek_to(self, positions: Mapping[TP, tuple[int, int]]) -> None:
        """Read on from (offset, seek number)."""

    async def rejoin(self) -> None:
        """Ask the group for a new assignment."""

    def generation(self) -> tuple[str, int]:
        """The member id, empty while it has none, and the group's generation."""

    def caught_up_ms(self, tp: TP, offset: int) -> int | None:
        """When (wall clock, ms) the broker last reported nothing at `offset` or beyond; None if there is more, or if
        the consumer is elsewhere."""


Opener = Callable[[int, threading.Event, Callable[[Task, TaskOutcome], None], Callable[[], None]], Task]
"""Opens a task: takes it over and plans its recovery. Blocking; raises WeirError."""


class TaskManager:
    """The assigned tasks of a worker. Runs on the event loop unless a method says otherwise.

    Args:
        open_task: opens tasks; called in threads.
        wipe: empties the state table of a task, by its number; called in threads.
        fatal: called with the error when the worker cannot go on.

    Attributes:
        generation: the member id and the group's generation of the last assignment; NOT_JOINED before the first.
        assignment_count: how many assignments the group has made.
        consumer: set before the first assignment.
    """

    def __init__(
        self,
        spec: TaskSpec,
        layout: Layout | DistributedLayout,
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
        self._log = get_log("tasks", query=spec.query.name)
        self._assignments: dict[int, TaskAssignment] = {}
        self._seeks = itertools.count(1)
        self._threads = ThreadPoolExecutor(8, "open")
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._ending: set[Task] = set()
        self._unwanted: dict[asyncio.Task[None], int] = {}
        self._spawned: set[asyncio.Task[None]] = set()
        settings = spec.settings
        # A task commits and computes only at these intervals, so it cannot be late any sooner.
        self._patience_s = (settings.patience_ms + settings.commit_ms + settings.epoch_ms) / 1000
        self._last_beat_s = time.monotonic()
        self._silence_reported_s = float("-inf")
        self.generation = NOT_JOINED
        self.assignment_count = 0
        self.consumer: ConsumerControl | None = None

    @property
    def joined(self) -> bool:
        """Whether the group has assigned tasks (or none) to this worker."""
        return self.generation != NOT_JOINED

    # --- The transport's Flow -----------------------------------------------------------------------

    def wanted_positions(self) -> dict[TP, tuple[int, int]]:
        """The partitions to read now: those whose task has room and that are not ahead of the task's other partitions.

        Returns:
            of each, the next offset and the number of the seek that led there.
        """
        return {
            TP(*lane): (reader.offset, reader.seek)
            for assignment in self._assignments.values()
            if assignment.task is not None and not assignment.task.full
            for lane, reader in assignment.readers.items()
            if lane not in assignment.task.paused
        }

    async def changed(self, seconds: float) -> None:
        """Wait until a task reports that it has room again, at most for so many seconds."""
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    def positions(self) -> dict[TP, tuple[int, int]]:
        """Start a new seek for every partition whose task is open: where to read, and the number of that seek."""
        return {tp: at for assignment in self._assignments.values() for tp, at in self._positions(assignment).items()}

    def _assignment_of(self, topic: str, partition: int) -> TaskAssignment | None:
        number = self._layout.task_of(topic, partition)
        return None if number is None else self._assignments.get(number)

    # --- The group ----------------------------------------------------------------------------------

    async def assigned(self, partitions: Collection[TP]) -> None:
        """The group has assigned exactly these partitions: open and end tasks to match."""
        found = {self._layout.task_of(tp.topic, tp.partition) for tp in partitions}
        # A partition that was added meanwhile may belong to a task that does not exist yet.
        numbers = {number for number in found if number is not None and number < self._layout.tasks}
        # Tasks end in the background, too: aiokafka sends no heartbeats before this method returns.
        for number in sorted(set(self._assignments) - numbers):
            self._spawn(self._end_dropped(number, self._take_task(self._assignments.pop(number))))
        generation = self.consumer.generation() if self.consumer else NOT_JOINED
        member, _ = generation
        if not member or self._closing:
            return  # already out of the group again; the next assignment, if any, opens tasks
        self.generation = generation
        self.assignment_count += 1
        for number in sorted(numbers):
            assignment = self._assignments.get(number)
            if assignment is None:
                assignment = self._assignments[number] = TaskAssignment(number)
                self._metrics.assigned(number)
                self._start_opening(assignment, 0.0)
            elif assignment.fenced:
                assignment.fenced = False
                self._start_opening(assignment, 0.0)
            elif assignment.task is not None and assignment.member != member:
                # We dropped out of the group in between, and another worker may have run the task.
                self._take_task(assignment)
                self._start_opening(assignment, 0.0)

    def failed(self, error: BrokerError) -> None:
        """The worker cannot go on."""
        self._fatal(error)

    def lost(self, tp: TP, offset: int) -> None:
        """Kafka no longer has an offset. Opening the task again decides whether that input was still needed."""
        assignment = self._assignment_of(tp.topic, tp.partition)
        if assignment is not None and assignment.task is not None:
            self._log.warning("offset gone from the log", topic=tp.topic, partition=tp.partition, offset=offset)
            assignment.task.abandon()
            self._reopen(assignment, BrokerError(f"offset {offset} of {tp.topic}[{tp.partition}] is gone"))

    # --- Feeding ------------------------------------------------------------------------------------

    def deliver(self, batch: RecordBatch) -> None:
        """Deliver a batch to its task, or drop it if it is stale."""
        assignment = self._assignment_of(batch.topic, batch.partition)
        lane = (batch.topic, batch.partition)
        if assignment is None or assignment.task is None:
            return
        reader = assignment.readers[lane]
        if batch.seek != reader.seek:
            return
        if batch.start != reader.offset:
            assignment.task.abandon()
            self._reopen(
                assignment,
                BrokerError(f"{batch.topic}[{batch.partition}]: got offset {batch.start}, next is {reader.offset}"),
            )
            return
        reader.offset = batch.next_offset
        if len(batch):
            reader.last_record_s = time.monotonic()
            reader.idle_reported_s = 0.0
        assignment.task.offer(lane, batch)

    async def watch(self) -> None:
        """Check the progress of every task, and which partitions are silent. Runs until cancelled."""
        while True:
            await asyncio.sleep(0.05)
            self._last_beat_s = now = time.monotonic()
            for assignment in self._assignments.values():
                self._check_progress(assignment)
                if assignment.task is not None and assignment.task.running:
                    for lane, reader in assignment.readers.items():
                        self._check_idle(assignment.task, lane, reader, now)
            if now - self._silence_reported_s > REMIND_S:
                self._report_silence(now)

    def _check_progress(self, assignment: TaskAssignment) -> None:
        assignment.update(self._patience_s)
        unhealthy_reason = assignment.unhealthy_reason(self._patience_s)
        if bool(unhealthy_reason) == assignment.stall_logged:
            return
        assignment.stall_logged = not assignment.stall_logged
        if unhealthy_reason:
            self._log.warning("a task makes no progress: /healthz answers 503 until it does", reason=unhealthy_reason)
        else:
            self._log.info("the task makes progress again", task=assignment.number)

    def _check_idle(self, task: Task, lane: Lane, reader: PartitionReader, now: float) -> None:
        if reader.last_record_s == 0.0:
            reader.last_record_s = now
        timeout = self.idle_timeout_s(lane[0])
        if timeout is None or self.consumer is None or lane in task.paused:
            return
        if now - max(reader.last_record_s, reader.idle_reported_s) < timeout:
            return
        evidence = self.consumer.caught_up_ms(TP(*lane), reader.offset)
        # A clock that was set back makes old evidence one of the future.
        if evidence is not None and abs(time.time() - evidence / 1000) < EVIDENCE_S:
            reader.idle_reported_s = now
            task.mark_idle(lane)

    def _report_silence(self, now: float) -> None:
        """Log one line for all silent partitions that delay results, at most every REMIND_S."""
        silent = [
            lane_since
            for assignment in self._assignments.values()
            for lane_since in assignment.silent_lanes(SILENCE_WARNING_S / 2, now)
        ]
        lanes = {lane for lane, _ in silent if lane[0] in self._spec.streams and self.idle_timeout_s(lane[0]) is None}
        first_s = min((last_record_s for lane, last_record_s in silent if lane in lanes), default=now)
        if now - first_s <= SILENCE_WARNING_S:
            return
        self._silence_reported_s = now
        self._log.warning(
            "results wait for partitions that are silent; if their input has not just ended, declare idle_timeout for "
            "their streams to continue without them",
            partitions=shown_lanes(lanes),
            since=shown_time(time.time() - (now - first_s)),
        )

    def idle_timeout_s(self, topic: str) -> float | None:
        """The idle timeout of a topic in seconds: the longest of its streams'; None if it is never idle."""
        default = self._spec.settings.idle_timeout_ms
        declared = [
            default if stream.idle_timeout_ms is None else stream.idle_timeout_ms
            for stream in self._spec.streams.get(topic, ())
        ]
        known = [ms for ms in declared if ms is not None]
        return max(known) / 1000 if known and len(known) == len(declared) else None

    # --- Opening and ending -------------------------------------------------------------------------

    def _start_opening(self, assignment: TaskAssignment, pause_s: float) -> None:
        # The group may have taken it away while its former task ended, or its table was emptied.
        if self._assignments.get(assignment.number) is assignment:
            assignment.opening = self._spawn(self._open(assignment, pause_s))

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

    async def _open(self, assignment: TaskAssignment, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        if unwanted := [ending for ending, number in self._unwanted.items() if number == assignment.number]:
            await asyncio.wait(unwanted)
        # Former tasks of this number hold the state table until their threads have ended, however long that takes.
        for former in [task for task in self._ending if task.number == assignment.number]:
            await self._end(former)
            while not former.join(0):
                assignment.no_task_reason = "the thread of its former incarnation has not ended yet"
                await asyncio.sleep(SETTLE_POLL_S)
            self._ending.discard(former)
        give_up = threading.Event()
        opened = self._loop.run_in_executor(
            self._threads, self._open_task, assignment.number, give_up, self._on_end, self._on_change
        )
        try:
            task = await asyncio.shield(opened)
        except asyncio.CancelledError:
            give_up.set()
            ending = self._spawn(self._end_unwanted(opened))
            self._unwanted[ending] = assignment.number
            ending.add_done_callback(self._unwanted.pop)
            raise
        except SpillError as error:
            self._metrics.of(str(assignment.number)).spill_failures.inc()
            self._reopen_after_spill_error(assignment, error)
            return
        except Fenced as error:
            if self._assignments.get(assignment.number) is assignment:
                self._drop(assignment, str(error))
            return
        except (Aborted, BrokerError) as error:
            self._open_again(assignment, error)
            return
        except WeirError as error:
            self._fatal(error)
            return
        assignment.task, assignment.no_task_reason, assignment.since_s = task, "", time.monotonic()
        assignment.member, _ = self.generation
        assignment.readers = {lane: PartitionReader(start.offset) for lane, start in task.recovery.lanes.items()}
        task.start()
        if self.consumer is not None:
            await self.consumer.seek_to(self._positions(assignment))
        self._on_change()

    async def _end_unwanted(self, opened: asyncio.Future[Task]) -> None:
        """Wait until a thread has opened a task that is no longer wanted, and end the task, which releases what it
        holds."""
        try:
            task = await opened
        except WeirError:
            return
        task.abandon()
        task.start()
        await self._end(task)

    def _positions(self, assignment: TaskAssignment) -> dict[TP, tuple[int, int]]:
        if assignment.task is None:
            return {}
        for reader in assignment.readers.values():
            reader.seek = next(self._seeks)
        return {TP(*lane): (reader.offset, reader.seek) for lane, reader in assignment.readers.items()}

    def _on_change(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:
            return  # the event loop is closed; nothing waits for this

    def _on_end(self, task: Task, outcome: TaskOutcome) -> None:
        try:
            self._loop.call_soon_threadsafe(self._ended, task, outcome)
        except RuntimeError:
            return

    def _ended(self, task: Task, outcome: TaskOutcome) -> None:
        """React to how a task ended. Runs on the event loop after the task's thread has ended."""
        self._ending.discard(task)
        assignment = self._assignments.get(task.number)
        ours = assignment is not None and assignment.task is task
        if outcome.end is TaskEnd.FAILED and outcome.error is not None:
            self._fatal(outcome.error)
        if assignment is None or not ours or outcome.end in (TaskEnd.FINISHED, TaskEnd.FAILED):
            return
        reason = str(outcome.error)
        if outcome.end is TaskEnd.FENCED:
            self._drop(assignment, reason)
        elif outcome.end is TaskEnd.SNAPSHOT_DAMAGED:
            self._metrics.of(str(task.number)).snapshot_failures.inc()
            self._log.warning("snapshot unusable, rebuilding from Kafka", task=task.number, reason=reason)
            self._spawn(self._wipe_and_reopen(assignment))
        elif outcome.end is TaskEnd.SPILL_FAILED:
            self._metrics.of(str(task.number)).spill_failures.inc()
            self._reopen_after_spill_error(assignment, outcome.error)
        elif outcome.end is TaskEnd.REREAD:
            self._log.info("task begins anew", task=task.number, reason=reason)
            assignment.clear_task()
            self._start_opening(assignment, 0.0)
        else:
            self._log.warning("task goes back to its last commit", task=task.number, reason=reason)
            self._reopen(assignment, outcome.error)

    def _drop(self, assignment: TaskAssignment, reason: str) -> None:
        """Another worker has taken the task over. Only the group can decide whose it is now: if this worker opened it
        again unasked, it would fence the rightful owner."""
        self._metrics.of(str(assignment.number)).fenced.inc()
        self._log.warning(
            "task dropped: another worker has taken it over, or this one stood still beyond its "
            "transaction timeout; asking the group whose it is",
            task=assignment.number,
            reason=reason,
        )
        assignment.clear_task()
        assignment.fenced = True
        assignment.no_task_reason = "task dropped, waiting for the group's assignment"
        if self.consumer is not None:
            self._spawn(self.consumer.rejoin())

    async def _wipe_and_reopen(self, assignment: TaskAssignment) -> None:
        assignment.clear_task()
        await self._loop.run_in_executor(self._threads, self._wipe, assignment.number)
        self._start_opening(assignment, 0.0)

    def _reopen_after_spill_error(self, assignment: TaskAssignment, error: BaseException | None) -> None:
        """Spilled state cannot be written or read. The task tries until it can; the log repeats that every REMIND_S."""
        now = time.monotonic()
        remind = now - assignment.spill_error_logged_s > REMIND_S
        if remind:
            assignment.spill_error_logged_s = now
        (self._log.error if remind else self._log.debug)(
            "spilled state cannot be used: the task goes back to its last commit and rebuilds it from Kafka",
            task=assignment.number,
            reason=str(error),
        )
        assignment.no_task_reason = str(error)
        self._reopen(assignment, error)

    def _reopen(self, assignment: TaskAssignment, error: BaseException | None) -> None:
        over_at = ANY_COMMIT
        if assignment.task is not None:
            assignment.update(self._patience_s)
            over_at = max(assignment.task.cut, assignment.task.committed + 1)
            self._metrics.of(str(assignment.number)).restarts.inc()
            if time.monotonic() - assignment.since_s > BACKOFF_RESET_S:
                assignment.failures = 0
            if assignment.task.outcome is None:
                self._ending.add(assignment.task)
            assignment.clear_task()
        self._open_again(assignment, error, over_at)

    def _open_again(self, assignment: TaskAssignment, error: BaseException | None, over_at: int = ANY_COMMIT) -> None:
        if self._closing or self._assignments.get(assignment.number) is not assignment:
            return
        reason = str(error)
        assignment.record_failure(reason, over_at)
        pause = BACKOFF_S[min(assignment.failures, len(BACKOFF_S) - 1)]
        assignment.failures += 1
        if reason != assignment.no_task_reason:
            assignment.no_task_reason = reason
            self._log.warning("task not running, trying again", task=assignment.number, reason=reason)
        self._start_opening(assignment, pause)

    async def settle(self) -> None:
        """Let every task deliver its open epoch, within SETTLE_S."""
        tasks = [assignment.task for assignment in self._assignments.values() if assignment.task is not None]
        delivered = [task.flush() for task in tasks]
        await self._settled(lambda: all(is_over() for is_over in delivered))

    async def _settled(self, is_over: Callable[[], bool]) -> bool:
        """Wait for tasks, for at most SETTLE_S; whether that is over. There may be more tasks than an executor has
        threads to wait in."""
        until = time.monotonic() + SETTLE_S
        while not (over := is_over()) and time.monotonic() < until:
            await asyncio.sleep(SETTLE_POLL_S)
        return over

    def _take_task(self, assignment: TaskAssignment) -> Task | None:
        """Take its task from an assignment; returns it if its thread has to be ended."""
        if assignment.opening is not None and not assignment.opening.done():
            assignment.opening.cancel()
        task = assignment.task
        assignment.clear_task()
        if task is None or task.outcome is not None:
            return None
        self._ending.add(task)
        return task

    async def _end_dropped(self, number: int, task: Task | None) -> None:
        """End the task of an assignment that is no longer this worker's; what it has open is delivered if Kafka answers
        in time."""
        if task is not None:
            await self._end(task)
        self._metrics.revoked(number)

    async def _end(self, task: Task) -> None:
        """End a task. If its thread does not end in time, the next task of its number will wait for that."""
        task.finish()
        if not await self._settled(lambda: task.join(0)):
            self._log.warning("task did not end in time; its open epoch is given up", task=task.number)
            task.abandon()
            if not await self._settled(lambda: task.join(0)):
                self._ending.add(task)

    async def close(self) -> None:
        """End all tasks, delivering their open epochs."""
        self._closing = True
        assignments, self._assignments = list(self._assignments.values()), {}
        ending = list(self._ending)
        dropped = [self._end_dropped(one.number, self._take_task(one)) for one in assignments]
        await asyncio.gather(*map(self._end, ending), *dropped)
        if self._unwanted:
            await asyncio.wait(self._unwanted, timeout=SETTLE_S)
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def has_threads(self) -> bool:
        """Whether threads of its tasks still run, or open one; after `close`. They hold state tables."""
        return bool(self._unwanted) or any(not task.join(0) for task in self._ending)

    # --- For other modules --------------------------------------------------------------------------

    def running_tasks(self) -> Iterable[int]:
        """The numbers of the tasks whose state this worker has, for the assignor. Called from the consumer's thread."""
        return [number for number, assignment in list(self._assignments.items()) if assignment.task is not None]

    def assignments(self) -> list[TaskAssignment]:
        """The assignments, for health and tests."""
        return list(self._assignments.values())

    def ended(self) -> bool:
        """True when every task has ended, since another plan takes over, or there are no tasks."""
        tasks = [assignment.task for assignment in self._assignments.values()]
        return all(task is not None and task.outcome is not None for task in tasks)

    def unhealthy_reason(self) -> str:
        """What keeps a task from its work for too long; empty when all tasks are healthy. For any thread."""
        stood_s = time.monotonic() - self._last_beat_s
        if stood_s > self._patience_s:
            return f"the worker's event loop has stood still for {stood_s:.0f} s: restart the worker"
        reasons = (assignment.unhealthy_reason(self._patience_s) for assignment in self.assignments())
        return "; ".join(filter(None, reasons))

    def status(self) -> list[dict[str, Any]]:
        """What /healthz reports of each task. For any thread."""
        return [assignment.status() for assignment in self.assignments()]


def task_log(query: str, number: int) -> Log:
    """The logger of one task."""
    return get_log("task", query=query, task=number)
