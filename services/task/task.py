"""Runs one task: a query, or a group of queries, on one set of partitions, in its own thread.

`services.worker.task_opener` makes a `Task`; the worker's event loop hands in record batches. The thread decodes them,
feeds the engine, and every `epoch_ms` advances to the watermark and delivers the epoch. Kernels, decoders, the encoder
and librdkafka release the GIL, so they do not block the event loop, which fetches records and keeps the group
membership.

A task never repairs itself. Any failure ends the thread with a `TaskOutcome`, and the worker starts a new task from the
last commit. So there is one way to recover, the one that a killed worker takes, too.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from operators.distributed.feedback import DistributedFeedback
from operators.engine.engine import Engine
from schemas.errors import BrokerError, StateError
from services.delivery.epoch_output import Delivery, RejectedRecords
from services.delivery.sink import Aborted, Fenced, Sink
from services.kafka.records import RecordBatch
from services.kafka.topics import Lane
from services.process.logs import Log
from services.process.metrics import TaskMetrics
from services.recovery.snapshots import SnapshotWriter
from services.recovery.starting_point import LaneStart, RecoveryPlan, Snapshot
from services.recovery.state_store import StateStore
from services.spill.block_store import SpillError
from services.task.block_lane import BlockLane
from services.task.epoch_timer import EpochTimer
from services.task.feedback import TaskFeedback
from services.task.lane import InputLane
from services.task.migrations import LOOK_S
from services.task.query_program import TaskChanges, TaskProgram
from services.task.spec import RereadNeeded, TaskEnd, TaskOutcome, TaskSpec
from services.task.spill import QUIET_S, TaskSpill

INBOX_BYTES = 8 << 20
"""Raw input that may wait for the task's thread; beyond it the worker does not read the task's partitions."""

REJECTED_BYTES = 16 << 20
"""Bytes of rejected records that an epoch collects before it is delivered early."""

REPLAY_TUPLES = 65_536
"""Source tuples that a replay reads before it processes them."""

TRIM_S = 30.0
"""How often records of internal topics that no recovery needs are deleted."""

STATISTICS_S = 1.0

RENEWAL_S = 60.0
"""How often all partitions are committed, also those without progress: Kafka deletes offsets that are not renewed."""


class Task:
    """One task. Methods without underscore may be called from any thread.

    Args:
        spec: what all tasks of the worker share.
        number: of the task.
        recovery: where to start.
        changes: changes of the plan, or of a group's queries.
        program: makes the program, given the partitions of each stream.
        store: the table of snapshots; None for a worker without a state directory.
        give_up: set once the thread must end without delivering the open epoch.
        changed: called when partitions may be read again, after `paused` or `full` has changed.
        ended: called in the task's thread with its outcome.
        feedback: of an operator that takes part in feedback; None otherwise.
        spill: the task's spilled state; None without a memory budget and without pending results.

    Attributes:
        paused: partitions that must not be read now, because they are ahead of the others.
        slowest: partitions that the watermark waits for, as of the last second.
        outcome: None while the thread runs.
        running: True once the replay has ended, until the thread ends.
        step: what the thread is doing, for /healthz.
        committed_pending: pending pairs of tuples, as of the last commit.
    """

    def __init__(
        self,
        spec: TaskSpec,
        number: int,
        recovery: RecoveryPlan,
        changes: TaskChanges,
        program: Callable[[Mapping[str, Sequence[int]]], TaskProgram],
        sink: Sink,
        store: StateStore | None,
        snapshots: SnapshotWriter,
        log: Log,
        metrics: TaskMetrics,
        give_up: threading.Event,
        changed: Callable[[], None],
        ended: Callable[[Task, TaskOutcome], None],
        feedback: TaskFeedback | None = None,
        spill: TaskSpill | None = None,
    ) -> None:
        self.spec = spec
        self.number = number
        self.recovery = recovery
        self.paused: frozenset[Lane] = frozenset()
        self.slowest: frozenset[Lane] = frozenset()
        self.outcome: TaskOutcome | None = None
        self.running = False
        self.step = "beginning"
        self.committed_pending = 0
        self._changes = changes
        self._sink = sink
        self._store = store
        self._snapshots = snapshots
        self._log = log
        self._metrics = metrics
        self._give_up = give_up
        self._changed = changed
        self._ended = ended
        self._feedback = feedback
        self._spill = spill
        self._most_pending = spec.settings.max_pending_tuples
        if spill is not None:
            self._most_pending = min(self._most_pending, spill.waiting_tuples)
        operator_feedback = None if feedback is None else feedback.operator_feedback
        self._lanes = {
            key: _make_lane(spec, key, start, recovery.floor, log, operator_feedback)
            for key, start in recovery.lanes.items()
        }
        partitions: dict[str, list[int]] = {}
        for lane in self._lanes.values():
            for stream, partition in lane.inputs:
                partitions.setdefault(stream, []).append(partition)
        self._streams = tuple(partitions)
        self._program = program(partitions)
        self._engine = self._program.engine
        self._rejected = RejectedRecords(spec.topics.late, spec.topics.dead)
        self._epoch_number = recovery.epoch
        self._committed: dict[Lane, int] = {key: start.replay_end for key, start in recovery.lanes.items()}
        self._committed_cut = recovery.cut
        self._last_commit = time.monotonic()
        self._snapshot_epoch = recovery.epoch if recovery.source == "fresh" else -1
        self._renewed = float("-inf")
        self._reach: dict[str, int] = {}
        self._trimmed = time.monotonic()
        self._last_statistics = 0.0
        self._last_input = time.monotonic()
        self._busy = (time.monotonic(), 0.0)
        self._inbox: queue.SimpleQueue[tuple[Lane, RecordBatch | None] | threading.Event | None] = queue.SimpleQueue()
        self._inbox_bytes = 0
        self._lock = threading.Lock()
        self._stop = False
        self._over_limit = False
        self._thread = threading.Thread(target=self._run, name=f"task-{number}", daemon=True)

    # --- From the event loop ------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        if self._feedback is not None:
            self._feedback.listen(lambda: self._inbox.put(None))
        self._thread.start()

    def offer(self, lane: Lane, batch: RecordBatch) -> None:
        """Hand in the next batch of a partition."""
        with self._lock:
            self._inbox_bytes += batch.size_bytes
        self._inbox.put((lane, batch))

    def mark_idle(self, lane: Lane) -> None:
        """Report that a partition was silent for its idle timeout; batches offered before are taken first."""
        self._inbox.put((lane, None))

    @property
    def pending_tuples(self) -> int:
        """Tuples that wait for the watermark."""
        return self._engine.pending_tuples

    @property
    def cut(self) -> int:
        """Event time up to which results have been computed."""
        return self._engine.cut

    @property
    def committed(self) -> int:
        """Event time up to which results are committed."""
        return self._committed_cut

    @property
    def commit_progress(self) -> tuple[int, int]:
        """Progress of the commits: the sum of all offsets, and event time."""
        return sum(self._committed.values()), self._committed_cut

    @property
    def read(self) -> int:
        """Progress of reading: the sum of all offsets."""
        return sum(lane.position for lane in self._lanes.values())

    @property
    def replaying(self) -> list[Lane]:
        """Partitions that are still replayed."""
        return [key for key, lane in self._lanes.items() if lane.replaying]

    @property
    def unread(self) -> int:
        """Number of offsets that the replay has yet to read."""
        return sum(max(0, lane.replay_end - lane.position) for lane in self._lanes.values())

    @property
    def has_input(self) -> bool:
        """Whether the task has input that is not committed."""
        return self._inbox_bytes > 0 or self._moved() or bool(self._rejected.records)

    @property
    def has_work(self) -> bool:
        """Whether the task has something to do: it recovers, has input or pending results, or has failed."""
        if self.outcome is not None:
            return self.outcome.end is not TaskEnd.FINISHED
        return not self.running or self.has_input or self._program.pending_pairs > 0

    @property
    def full(self) -> bool:
        """True while the event loop should read no more input for the task."""
        return self._inbox_bytes > INBOX_BYTES

    def flush(self, seconds: float) -> bool:
        """Deliver everything that was offered before; True if that was done within `seconds`.

        Must not be called from the event loop.
        """
        done = threading.Event()
        self._inbox.put(done)
        until = time.monotonic() + seconds
        while self.outcome is None and time.monotonic() < until:
            if done.wait(0.05):
                return True
        return False

    def finish(self) -> None:
        """Ask the thread to deliver the open epoch and end."""
        self._stop = True
        self._inbox.put(None)

    def abandon(self) -> None:
        """Ask the thread to end as soon as it can, even without delivering the open epoch."""
        self._give_up.set()
        self.finish()

    def join(self, seconds: float) -> bool:
        """Wait for the thread; True if it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    # --- The thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        outcome = TaskOutcome(TaskEnd.FINISHED)
        try:
            self._restore()
            self._replay()
            self._serve()
        except Fenced as error:
            outcome = TaskOutcome(TaskEnd.FENCED, error)
        except (Aborted, BrokerError) as error:
            outcome = TaskOutcome(TaskEnd.FINISHED if self._give_up.is_set() else TaskEnd.RESTART, error)
        except RereadNeeded as error:
            outcome = TaskOutcome(TaskEnd.REREAD, error)
        except _SnapshotDamaged as error:
            outcome = TaskOutcome(TaskEnd.SNAPSHOT_DAMAGED, error)
        except StateError as error:
            # Only spilling reads and writes durable state in this thread; another thread writes snapshots.
            outcome = TaskOutcome(TaskEnd.FAILED if self._spill is None else TaskEnd.SPILL_FAILED, error)
        except BaseException as error:
            outcome = TaskOutcome(TaskEnd.FAILED, error)
        finally:
            self.running = False
            try:
                self._close()
            finally:
                self.outcome = outcome
                self._ended(self, outcome)

    def _close(self) -> None:
        """Release all resources, even if one of them fails: the next task opens the same store."""
        with ExitStack() as resources:
            if self._spill is not None:
                resources.callback(self._spill.close)
            if self._feedback is not None:
                resources.callback(self._feedback.close)
            resources.callback(self._snapshots.close)
            resources.callback(self._sink.close)

    def _restore(self) -> None:
        self._program.begin()
        for lane in self._lanes.values():
            lane.restore_clocks(self._engine)
        engine = self._program.durable
        if self._store is None or engine is None:
            return
        engine.durable = True
        try:
            if self.recovery.source == "snapshot":
                engine.restore(self.recovery.floor, self._store.blocks())
            elif self._store.snapshot() is not None:
                # Row numbers start again, so blocks of an earlier incarnation do not fit any more.
                self._store.wipe()
        except SpillError:
            raise
        except StateError as error:
            raise _SnapshotDamaged(str(error)) from error

    def _replay(self) -> None:
        """Read again what an earlier incarnation took, and advance exactly to the last commit."""
        self.step = "reading again what an earlier incarnation took"
        lanes = self._lanes.values()
        replayed = 0
        for lane in lanes:
            if not lane.replaying:
                lane.set_idle(self._engine, True)
        while any(lane.replaying for lane in lanes) and not self._stop:
            item = self._next(0.1)
            if item is None or item[1] is None:
                continue
            replayed += self._replay_batch(self._lanes[item[0]], item[1])
            cut = min(self._engine.watermark(), self.recovery.cut)
            if cut > self._engine.cut and self._engine.pending_tuples > min(self._most_pending, REPLAY_TUPLES):
                self._engine.advance(cut)
            self._pause({key for key, lane in self._lanes.items() if lane.retained} | self._lanes_ahead())
        if self._stop:
            return
        if self.recovery.cut > self._engine.cut:
            self._engine.advance(self.recovery.cut)
        if self._feedback is not None:
            self._feedback.restore()
        for lane in lanes:
            lane.set_idle(self._engine, False)
            while lane.retained and not self._is_closed(lane):
                self._metrics.input_tuples.inc(lane.take(self._engine, lane.retained.popleft(), self._rejected))
        self._metrics.replayed.inc(replayed)
        self._log.info(
            "task running",
            source=self.recovery.source,
            epoch=self.recovery.epoch,
            cut=self._engine.cut or "nothing read yet",
            replayed=replayed,
        )

    def _replay_batch(self, lane: InputLane | BlockLane, batch: RecordBatch) -> int:
        if not lane.replaying:
            lane.retained.append(batch)
            return 0
        taken = lane.replay(self._engine, batch.until(lane.replay_end))
        if not lane.replaying:
            lane.set_idle(self._engine, True)
            if batch.next_offset > lane.replay_end:
                lane.retained.append(batch.since(lane.replay_end))
        return taken

    def _serve(self) -> None:
        self.running = not self._stop
        epoch_timer = EpochTimer(self.spec.settings.epoch_ms / 1000, time.monotonic())
        while not self._stop:
            ends = self._changes.ends_at(self._engine.cut)
            if ends and (self._feedback is None or self._feedback.nothing_suspended()):
                self._conclude()
                return
            self._take(epoch_timer)
            epoch_timer.epoch_began(time.monotonic())
            self._epoch(final=False)
            epoch_timer.epoch_ended(time.monotonic())
        if self.running and not self._give_up.is_set():
            self._epoch(final=True)

    def _conclude(self) -> None:
        """End the task with its plan: commit the position of every partition, and read no more."""
        self._pause(set(self._lanes))
        self._renewed = float("-inf")
        self._deliver(commit=True, ending=True)
        self._changes.conclude(time.monotonic())

    def _take(self, epoch_timer: EpochTimer) -> None:
        """Feed the engine until the next epoch is due."""
        self.step = "reading"
        while not self._stop and self._rejected.size_bytes < REJECTED_BYTES:
            seconds_left = epoch_timer.seconds_left(time.monotonic())
            item = self._next(0 if self._clean_up_if_quiet() else min(max(seconds_left, 0), LOOK_S))
            self._changes.look_if_due(self._last_commit, time.monotonic())
            if item is not None:
                lane = self._lanes[item[0]]
                if item[1] is None:
                    if lane.may_idle and not self._is_closed(lane):
                        lane.set_idle(self._engine, True)
                elif self._is_closed(lane):
                    lane.retained.append(item[1])
                else:
                    self._metrics.input_tuples.inc(lane.take(self._engine, item[1], self._rejected))
                    self._last_input = time.monotonic()
            self._pause(self._lanes_ahead())
            if self._feedback is not None and self._feedback.serve(self._engine.watermark(), time.monotonic()):
                epoch_timer.request()
            if seconds_left <= 0:
                return

    def _clean_up_if_quiet(self) -> bool:
        """Run a cleanup step if no input arrives; the next epoch commits its results."""
        now = time.monotonic()
        quiet = now - self._last_input >= QUIET_S and self._inbox.empty()
        return self._spill is not None and quiet and self._spill.run_cleanup_step(now)

    def _next(self, seconds: float) -> tuple[Lane, RecordBatch | None] | None:
        try:
            item = self._inbox.get(timeout=seconds) if seconds > 0 else self._inbox.get_nowait()
        except queue.Empty:
            return None
        if isinstance(item, threading.Event):
            if self.running:
                self._epoch(final=True)
            item.set()
            return None
        if item is not None and item[1] is not None:
            with self._lock:
                was_full = self.full
                self._inbox_bytes -= item[1].size_bytes
            if was_full and not self.full:
                self._changed()
        return item

    def _is_closed(self, lane: InputLane | BlockLane) -> bool:
        """Whether the rest of a source's partition belongs to the plan that takes over.

        That plan's tasks may run already: this task may be a later incarnation of a task that had reached its end.
        """
        return self._changes.ends_at(self._engine.cut) and isinstance(lane, InputLane) and not lane.replaying

    def _lanes_ahead(self) -> set[Lane]:
        """Find the partitions that must wait for slower ones (temporal alignment)."""
        settings = self.spec.settings
        watermark = self._engine.watermark()
        pending = self._engine.pending_tuples
        # Between the two limits the state stays as it is, so that partitions do not pause and resume in turn.
        self._over_limit = pending > self._most_pending * (0.5 if self._over_limit else 1.0)
        ahead: set[Lane] = set()
        for key, lane in self._lanes.items():
            if self._is_closed(lane):
                ahead.add(key)
                continue
            if self._feedback is not None and self._feedback.waits_for(key[0]):
                continue
            distance = lane.watermark(self._engine) - watermark
            if distance > 0 and (self._over_limit or (watermark >= 0 and distance > settings.max_ahead_ms)):
                ahead.add(key)
        return ahead

    def _pause(self, lanes: set[Lane]) -> None:
        if lanes != self.paused:
            grew = bool(self.paused - lanes)
            self.paused = frozenset(lanes)
            self._metrics.paused.set(len(lanes))
            if grew:
                self._changed()

    # --- Epochs -------------------------------------------------------------------------------------

    def _epoch(self, final: bool) -> None:
        now = time.monotonic()
        self._changes.look(self._last_commit, now)
        cut = self._changes.limit(self._engine.watermark(), now)
        has_results = answering = False
        if self._feedback is not None:
            self._feedback.serve(cut, now)
            cut = min(cut, self._feedback.limit)
            answering = self._feedback.has_answers()
        if cut > self._engine.cut:
            self.step = "computing an epoch"
            has_results = self._program.advance(cut)
            self._metrics.epoch.observe(time.monotonic() - now)
            self._pause(self._lanes_ahead())
        if self._spill is not None and self._spill.advanced():
            has_results = True
        delivering = has_results or answering or bool(self._rejected.records) or self._program.has_output()
        moved = self._moved()
        # Cleanup can reduce the backlog without producing results.
        cleaned_up = self._program.pending_pairs != self.committed_pending
        due = final or now - self._last_commit >= self.spec.settings.commit_ms / 1000
        if delivering or (due and (moved or cleaned_up or self._changes.ownership_in_doubt)):
            self._deliver(commit=due or self.spec.settings.transactional)
        if self._feedback is not None:
            self._feedback.send_requests(now)
        if self._spill is not None and not final:
            self.step = "producing pending results"
            self._spill.clean_up_between_epochs(time.monotonic())
        if now - self._last_statistics >= STATISTICS_S:
            self._last_statistics = now
            self._report()
        if self._program.durable is not None:
            self._keep(self._program.durable, final)

    def _keep(self, engine: Engine, final: bool) -> None:
        """Write a snapshot or its next blocks, if they are due."""
        if self._snapshots.due or (final and self._snapshots.ready):
            self._snapshot(engine)
        elif self._snapshots.failed and engine.durable:
            # Tuples that wait for a snapshot would fill the memory, but no snapshot will be written any more.
            engine.durable = False
            engine.checkpoint()
        elif engine.unsaved_tuples >= AHEAD_TUPLES and self._snapshots.ready:
            self._snapshots.add(engine.checkpoint())

    def _moved(self) -> bool:
        return self._engine.cut != self._committed_cut or any(
            lane.position != self._committed[key] for key, lane in self._lanes.items()
        )

    def _deliver(self, commit: bool, ending: bool = False) -> None:
        self.step = "delivering to Kafka"
        began = time.monotonic()
        overdue, events = ([], []) if self._spill is None else self._spill.commit()
        offsets = self._offsets() if commit else {}
        late, dead = self._rejected.late, self._rejected.dead
        encoded, blocks = self._program.encode()
        encoded = [*encoded, *overdue]
        if self._feedback is not None:
            blocks = [*blocks, *self._feedback.answer(blocks, ending)]
        delivery = Delivery(encoded, self._rejected.take(), offsets, [*blocks, *events])
        refused = self._sink.deliver(delivery)
        self._metrics.commit.observe(time.monotonic() - began)
        delivered = Counter({topic: -count for topic, count in refused.items()})
        for topic, piece in encoded:
            delivered[topic] += len(piece.offsets) - 1
        self._program.count(delivered, self._metrics)
        self._metrics.internal_blocks.inc(len(blocks))
        self._metrics.internal_bytes.inc(sum(len(block.value) for block in blocks))
        self._metrics.internal_tuples.inc(sum(block.tuples for block in blocks))
        self._metrics.late.inc(late)
        self._metrics.dead.inc(dead + refused.total())
        if commit:
            self._last_commit = began
            self._committed = {key: lane.position for key, lane in self._lanes.items()}
            self._committed_cut = self._engine.cut
            self.committed_pending = self._program.pending_pairs
            if self._feedback is not None:
                self._feedback.committed(self._engine.cut)
            self._metrics.commits.inc()
            self._metrics.reached(self._engine.cut, time.time() * 1000)
            self._trim(began)

    def _trim(self, now: float) -> None:
        """Delete records of internal topics that no recovery from the last commit would read."""
        if self.spec.trim is None or now - self._trimmed < TRIM_S:
            return
        self._trimmed = now
        deletable = {key: lane.needed for key, lane in self._lanes.items() if isinstance(lane, BlockLane)}
        if self._spill is not None:
            deletable |= self._spill.deletable()
        self.spec.trim(self._sink.completion_check(), deletable)

    def _offsets(self) -> dict[Lane, tuple[int, str]]:
        """Offsets and messages of the partitions with progress, and from time to time of all partitions.

        The newest message counts for the task. All partitions are also committed if a stream's horizon has moved back:
        the messages committed before for the others do not reach back far enough.
        """
        self._epoch_number += 1
        now = time.monotonic()
        reach = {stream: self._engine.horizon(stream) for stream in self._streams}
        further = any(reach[stream] < before for stream, before in self._reach.items())
        self._reach = reach
        renew = further or now - self._renewed >= RENEWAL_S
        if renew:
            self._renewed = now
        moved = [key for key, lane in self._lanes.items() if renew or lane.position != self._committed[key]]
        version, count = self._changes.version, len(self._lanes)
        tables = tuple(self.spec.tables.contents.values())
        spilled = (0, 0) if self._spill is None else self._spill.span
        offsets: dict[Lane, tuple[int, str]] = {}
        for key in moved or list(self._lanes)[:1]:
            lane = self._lanes[key]
            own = lane.commit_message(self._engine, self.spec.fingerprint, self._epoch_number, count, version)
            message = replace(own, tables=tables, spilled=spilled, incarnation=self._sink.incarnation)
            offsets[key] = lane.position, message.encode()
        return offsets

    def _snapshot(self, engine: Engine) -> None:
        if self._moved() or self._rejected.records or self._snapshot_epoch == self._epoch_number:
            return  # the disk must not be ahead of Kafka, and one snapshot per commit is enough
        self._snapshot_epoch = self._epoch_number
        cut = engine.cut
        points = {key: lane.points(engine, [cut] * len(lane.inputs)) for key, lane in self._lanes.items()}
        snapshot = Snapshot(self.spec.cluster, self.spec.fingerprint, self._epoch_number, cut, points)
        self._snapshots.write(snapshot, engine.checkpoint())

    def _report(self) -> None:
        self._metrics.reached(self._committed_cut, time.time() * 1000)
        total_busy_s = self._program.report(self._metrics)
        self.slowest = frozenset(
            key for key, lane in self._lanes.items() if lane.watermark(self._engine) <= self._engine.cut
        )
        self._metrics.idle.set(sum(lane.idle for lane in self._lanes.values()))
        now = time.monotonic()
        began, busy_s = self._busy
        self._busy = now, total_busy_s
        self._engine.load = min(1.0, (total_busy_s - busy_s) / max(now - began, 0.001))


class _SnapshotDamaged(Exception):
    """The snapshot on disk cannot be used."""


AHEAD_TUPLES = 20_000
"""Source tuples that are written ahead of the next snapshot, so that the copy for the snapshot itself stays small."""


def _make_lane(
    spec: TaskSpec, key: Lane, start: LaneStart, floor: int, log: Log, feedback: DistributedFeedback | None
) -> InputLane | BlockLane:
    """Make the lane of a partition."""
    if spec.part is None:
        return InputLane(key, spec.query, start, floor)
    given = spec.part.input(key[0])
    if given.edge is not None:
        return BlockLane(key, given, start, floor, log, feedback)
    kept = dict(spec.part.operator.kept)
    return InputLane(key, spec.query, start, floor, {given.stream.name: given.position}, kept)
