"""A task: one query, or a group, on one set of partitions, in a thread of its own.

The asyncio side hands in record batches; the thread decodes them, feeds the engine, and every `epoch_ms`
advances to the watermark and delivers the epoch. Kernels, decoders, the encoder and librdkafka release the
GIL, so the event loop, which fetches and keeps the group membership, is not held up.

A task never repairs itself. Whatever goes wrong ends the thread with an `Outcome`, and the roster begins a
new task from the last commit: there is one way back, the one that a killed worker takes too.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from operators.distributed.feedback import PlacedFeedback
from operators.engine.engine import Engine
from schemas.errors import BrokerError, StateError
from services.delivery.epoch_output import Delivery, Letters
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
from services.task.epoch_timer import Pace
from services.task.feedback import TaskFeedback
from services.task.lane import InputLane
from services.task.migrations import LOOK_S
from services.task.query_program import Changes, Program
from services.task.spec import Again, End, Outcome, TaskSpec
from services.task.spill import QUIET_S, TaskSpill

INBOX_BYTES = 8 << 20
"""Raw input that waits for the task's thread; beyond it the task's partitions are not read."""

LETTER_BYTES = 16 << 20
"""Letters that an epoch collects before it is delivered early."""

REPLAY_TUPLES = 65_536
"""Source tuples that are read again before they are processed."""

TRIM_S = 30.0
"""How often records of internal topics that nobody needs any more are deleted."""

STATISTICS_S = 1.0

RENEWAL_S = 60.0
"""How often all partitions are committed, also those that did not move: Kafka forgets offsets that are not
renewed."""


class Task:
    """One task. Methods without underscore may be called from any thread.

    Args:
        changes: of the plan, or of what a group runs.
        program: makes what runs, given the partitions of each stream.
        feedback: of a part of a plan that takes part in feedback.
        spill: what leaves memory, or has left it and is owed.

    Attributes:
        held: partitions that must not be read now: they are ahead of the others.
        slowest: partitions that the watermark waits for, as of the last second.
        outcome: None while the thread lives.
        step: what the thread is at, for /healthz.
        committed_owed: what is owed, as of the last commit.
    """

    def __init__(
        self,
        spec: TaskSpec,
        number: int,
        recovery: RecoveryPlan,
        changes: Changes,
        program: Callable[[Mapping[str, Sequence[int]]], Program],
        sink: Sink,
        store: StateStore | None,
        snapshots: SnapshotWriter,
        log: Log,
        metrics: TaskMetrics,
        give_up: threading.Event,
        changed: Callable[[], None],
        ended: Callable[[Task, Outcome], None],
        feedback: TaskFeedback | None = None,
        spill: TaskSpill | None = None,
    ) -> None:
        self.spec = spec
        self.number = number
        self.recovery = recovery
        self.held: frozenset[Lane] = frozenset()
        self.slowest: frozenset[Lane] = frozenset()
        self.outcome: Outcome | None = None
        self.running = False
        self.step = "beginning"
        self.committed_owed = 0
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
        placed = None if feedback is None else feedback.placed
        self._lanes = {
            key: _lane(spec, key, start, recovery.floor, log, placed) for key, start in recovery.lanes.items()
        }
        partitions: dict[str, list[int]] = {}
        for lane in self._lanes.values():
            for stream, partition in lane.inputs:
                partitions.setdefault(stream, []).append(partition)
        self._streams = tuple(partitions)
        self._program = program(partitions)
        self._engine = self._program.engine
        self._letters = Letters(spec.topics.late, spec.topics.dead)
        self._epoch_number = recovery.epoch
        self._committed: dict[Lane, int] = {key: start.live for key, start in recovery.lanes.items()}
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
        self._over = False
        self._thread = threading.Thread(target=self._run, name=f"task-{number}", daemon=True)

    # --- From the event loop ------------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        if self._feedback is not None:
            self._feedback.listen(lambda: self._inbox.put(None))
        self._thread.start()

    def offer(self, lane: Lane, batch: RecordBatch) -> None:
        """Hand in the next batch of a partition."""
        with self._lock:
            self._inbox_bytes += batch.size_bytes
        self._inbox.put((lane, batch))

    def mark_idle(self, lane: Lane) -> None:
        """The partition has been silent for its idle timeout: all offered batches still count first."""
        self._inbox.put((lane, None))

    @property
    def pending_tuples(self) -> int:
        """Tuples that wait for the watermark."""
        return self._engine.pending_tuples

    @property
    def cut(self) -> int:
        """Event time up to which results are out."""
        return self._engine.cut

    @property
    def committed(self) -> int:
        """Event time up to which results are committed."""
        return self._committed_cut

    @property
    def committed_to(self) -> tuple[int, int]:
        """How far commits have come: offsets, added up, and event time."""
        return sum(self._committed.values()), self._committed_cut

    @property
    def read(self) -> int:
        """How far the task has read: offsets, added up."""
        return sum(lane.position for lane in self._lanes.values())

    @property
    def replaying(self) -> list[Lane]:
        """Partitions that are read again."""
        return [key for key, lane in self._lanes.items() if lane.replaying]

    @property
    def unread(self) -> int:
        """Offsets that are to be read again before the task runs."""
        return sum(max(0, lane.live - lane.position) for lane in self._lanes.values())

    @property
    def has_input(self) -> bool:
        """Whether input was handed in that is not committed."""
        return self._inbox_bytes > 0 or self._moved() or bool(self._letters.letters)

    @property
    def works(self) -> bool:
        """Whether the task has something to do: it recovers, has input, or owes results, or failed to."""
        if self.outcome is not None:
            return self.outcome.end is not End.FINISHED
        return not self.running or self.has_input or self._program.owed > 0

    @property
    def full(self) -> bool:
        """True while no more input should be read for it."""
        return self._inbox_bytes > INBOX_BYTES

    def settle(self, seconds: float) -> bool:
        """Deliver all that was offered before; True when that was done within `seconds`.

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
        """Ask for the open epoch to be delivered and the thread to end."""
        self._stop = True
        self._inbox.put(None)

    def abandon(self) -> None:
        """Ask for the thread to end as soon as it can, whatever becomes of the open epoch."""
        self._give_up.set()
        self.finish()

    def join(self, seconds: float) -> bool:
        """Wait for the thread; True when it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    # --- The thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        outcome = Outcome(End.FINISHED)
        try:
            self._restore()
            self._replay()
            self._serve()
        except Fenced as error:
            outcome = Outcome(End.FENCED, error)
        except (Aborted, BrokerError) as error:
            outcome = Outcome(End.FINISHED if self._give_up.is_set() else End.RESTART, error)
        except Again as error:
            outcome = Outcome(End.AGAIN, error)
        except _Damaged as error:
            outcome = Outcome(End.DAMAGED, error)
        except StateError as error:
            # Of what a task does only spilling reads and writes durable state: a snapshot is written beside it.
            outcome = Outcome(End.FAILED if self._spill is None else End.UNSPILLED, error)
        except BaseException as error:
            outcome = Outcome(End.FAILED, error)
        finally:
            self.running = False
            try:
                self._close()
            finally:
                self.outcome = outcome
                self._ended(self, outcome)

    def _close(self) -> None:
        """Give back all that the task holds, whichever part of it fails: the next task opens the same store."""
        with ExitStack() as parts:
            if self._spill is not None:
                parts.callback(self._spill.close)
            if self._feedback is not None:
                parts.callback(self._feedback.close)
            parts.callback(self._snapshots.close)
            parts.callback(self._sink.close)

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
                # Rows are numbered anew, so blocks of an earlier life do not fit any more.
                self._store.wipe()
        except SpillError:
            raise
        except StateError as error:
            raise _Damaged(str(error)) from error

    def _replay(self) -> None:
        """Read again what was taken before, then stand exactly at the last commit."""
        self.step = "reading again what was taken before"
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
            self._hold({key for key, lane in self._lanes.items() if lane.held} | self._ahead())
        if self._stop:
            return
        if self.recovery.cut > self._engine.cut:
            self._engine.advance(self.recovery.cut)
        if self._feedback is not None:
            self._feedback.restore()
        for lane in lanes:
            lane.set_idle(self._engine, False)
            while lane.held and not self._closed(lane):
                self._metrics.input_tuples.inc(lane.take(self._engine, lane.held.popleft(), self._letters))
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
            lane.held.append(batch)
            return 0
        taken = lane.replay(self._engine, batch.until(lane.live))
        if not lane.replaying:
            lane.set_idle(self._engine, True)
            if batch.next_offset > lane.live:
                lane.held.append(batch.since(lane.live))
        return taken

    def _serve(self) -> None:
        self.running = not self._stop
        pace = Pace(self.spec.settings.epoch_ms / 1000, time.monotonic())
        while not self._stop:
            if self._changes.ended(self._engine.cut) and (self._feedback is None or self._feedback.clear()):
                self._conclude()
                return
            self._take(pace)
            pace.begin(time.monotonic())
            self._epoch(final=False)
            pace.ended(time.monotonic())
        if self.running and not self._give_up.is_set():
            self._epoch(final=True)

    def _conclude(self) -> None:
        """The plan ends here: commit of every partition how far it came, and read no more."""
        self._hold(set(self._lanes))
        self._renewed = float("-inf")
        self._deliver(commit=True, ending=True)
        self._changes.conclude(time.monotonic())

    def _take(self, pace: Pace) -> None:
        """Feed the engine until the epoch is due."""
        self.step = "reading"
        while not self._stop and self._letters.size_bytes < LETTER_BYTES:
            left = pace.left(time.monotonic())
            item = self._next(0 if self._pay() else min(max(left, 0), LOOK_S))
            self._changes.glance(self._last_commit, time.monotonic())
            if item is not None:
                lane = self._lanes[item[0]]
                if item[1] is None:
                    if lane.may_idle and not self._closed(lane):
                        lane.set_idle(self._engine, True)
                elif self._closed(lane):
                    lane.held.append(item[1])
                else:
                    self._metrics.input_tuples.inc(lane.take(self._engine, item[1], self._letters))
                    self._last_input = time.monotonic()
            self._hold(self._ahead())
            if self._feedback is not None and self._feedback.attend(self._engine.watermark(), time.monotonic()):
                pace.call()
            if left <= 0:
                return

    def _pay(self) -> bool:
        """While no input comes find a little of what is owed; the next epoch commits it."""
        now = time.monotonic()
        quiet = now - self._last_input >= QUIET_S and self._inbox.empty()
        return self._spill is not None and quiet and self._spill.pay(now)

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

    def _closed(self, lane: InputLane | BlockLane) -> bool:
        """Whether the rest of a source's partition is not this task's to take, but that of the plan that takes over.

        Its tasks may have begun already: this one may be a later life of a task that had come to its end.
        """
        return self._changes.ended(self._engine.cut) and isinstance(lane, InputLane) and not lane.replaying

    def _ahead(self) -> set[Lane]:
        """Temporal alignment: who must wait for the slower partitions."""
        settings = self.spec.settings
        watermark = self._engine.watermark()
        pending = self._engine.pending_tuples
        # Between the two limits things stay as they are, so that partitions do not flap.
        self._over = pending > self._most_pending * (0.5 if self._over else 1.0)
        ahead: set[Lane] = set()
        for key, lane in self._lanes.items():
            if self._closed(lane):
                ahead.add(key)
                continue
            if self._feedback is not None and self._feedback.waits_for(key[0]):
                continue
            distance = lane.watermark(self._engine) - watermark
            if distance > 0 and (self._over or (watermark >= 0 and distance > settings.max_ahead_ms)):
                ahead.add(key)
        return ahead

    def _hold(self, lanes: set[Lane]) -> None:
        if lanes != self.held:
            grew = bool(self.held - lanes)
            self.held = frozenset(lanes)
            self._metrics.paused.set(len(lanes))
            if grew:
                self._changed()

    # --- Epochs -------------------------------------------------------------------------------------

    def _epoch(self, final: bool) -> None:
        now = time.monotonic()
        self._changes.look(self._last_commit, now)
        cut = self._changes.limit(self._engine.watermark(), now)
        found = answering = False
        if self._feedback is not None:
            self._feedback.attend(cut, now)
            cut = min(cut, self._feedback.limit)
            answering = self._feedback.owes()
        if cut > self._engine.cut:
            self.step = "computing an epoch"
            found = self._program.advance(cut)
            self._metrics.epoch.observe(time.monotonic() - now)
            self._hold(self._ahead())
        if self._spill is not None and self._spill.advanced():
            found = True
        delivering = found or answering or bool(self._letters.letters) or self._program.owes()
        moved = self._moved()
        # What is owed grows less without results, too.
        paid = self._program.owed != self.committed_owed
        due = final or now - self._last_commit >= self.spec.settings.commit_ms / 1000
        if delivering or (due and (moved or paid or self._changes.doubted)):
            self._deliver(commit=due or self.spec.settings.transactional)
        if self._feedback is not None:
            self._feedback.say(now)
        if self._spill is not None and not final:
            self.step = "finding results that are owed"
            self._spill.clean(time.monotonic())
        if now - self._last_statistics >= STATISTICS_S:
            self._last_statistics = now
            self._report()
        if self._program.durable is not None:
            self._keep(self._program.durable, final)

    def _keep(self, engine: Engine, final: bool) -> None:
        """Bring to disk what is due."""
        if self._snapshots.due or (final and self._snapshots.ready):
            self._snapshot(engine)
        elif self._snapshots.failed and engine.durable:
            # What waits for a snapshot that will not come would fill the memory.
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
        late, dead = self._letters.late, self._letters.dead
        encoded, blocks = self._program.encode()
        encoded = [*encoded, *overdue]
        if self._feedback is not None:
            blocks = [*blocks, *self._feedback.answer(blocks, ending)]
        delivery = Delivery(encoded, self._letters.take(), offsets, [*blocks, *events])
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
            self.committed_owed = self._program.owed
            if self._feedback is not None:
                self._feedback.committed(self._engine.cut)
            self._metrics.commits.inc()
            self._metrics.reached(self._engine.cut, time.time() * 1000)
            self._trim(began)

    def _trim(self, now: float) -> None:
        """Let go of what no recovery from the last commit would read."""
        if self.spec.trim is None or now - self._trimmed < TRIM_S:
            return
        self._trimmed = now
        needless = {key: lane.needed for key, lane in self._lanes.items() if isinstance(lane, BlockLane)}
        if self._spill is not None:
            needless |= self._spill.trimming()
        self.spec.trim(self._sink.settlement(), needless)

    def _offsets(self) -> dict[Lane, tuple[int, str]]:
        """The partitions that moved, and from time to time all: the newest message speaks for the task.

        All, too, where more of the past is needed than before: what was committed of the others reaches back less far.
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
            said = lane.commit_message(self._engine, self.spec.fingerprint, self._epoch_number, count, version)
            message = replace(said, tables=tables, spilled=spilled, incarnation=self._sink.incarnation)
            offsets[key] = lane.position, message.encode()
        return offsets

    def _snapshot(self, engine: Engine) -> None:
        if self._moved() or self._letters.letters or self._snapshot_epoch == self._epoch_number:
            return  # the disk must not be ahead of Kafka, and need not be written twice
        self._snapshot_epoch = self._epoch_number
        cut = engine.cut
        points = {key: lane.points(engine, [cut] * len(lane.inputs)) for key, lane in self._lanes.items()}
        snapshot = Snapshot(self.spec.cluster, self.spec.fingerprint, self._epoch_number, cut, points)
        self._snapshots.write(snapshot, engine.checkpoint())

    def _report(self) -> None:
        self._metrics.reached(self._committed_cut, time.time() * 1000)
        found_busy_s = self._program.report(self._metrics)
        self.slowest = frozenset(
            key for key, lane in self._lanes.items() if lane.watermark(self._engine) <= self._engine.cut
        )
        self._metrics.idle.set(sum(lane.idle for lane in self._lanes.values()))
        now = time.monotonic()
        began, busy_s = self._busy
        self._busy = now, found_busy_s
        self._engine.load = min(1.0, (found_busy_s - busy_s) / max(now - began, 0.001))


class _Damaged(Exception):
    """The snapshot cannot be used."""


AHEAD_TUPLES = 20_000
"""Source tuples that go to disk ahead of the next snapshot: what is copied for it at once stays small."""


def _lane(
    spec: TaskSpec, key: Lane, start: LaneStart, floor: int, log: Log, feedback: PlacedFeedback | None
) -> InputLane | BlockLane:
    """A partition as the task reads it."""
    if spec.part is None:
        return InputLane(key, spec.query, start, floor)
    given = spec.part.input(key[0])
    if given.edge is not None:
        return BlockLane(key, given, start, floor, log, feedback)
    kept = dict(spec.part.operator.kept)
    return InputLane(key, spec.query, start, floor, {given.stream.name: given.position}, kept)
