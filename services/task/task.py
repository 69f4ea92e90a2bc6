"""Runs one task: a query, or a group of queries, on one set of partitions, in its own thread.

`services.worker.task_opener` makes a `Task`; the worker's event loop hands in record batches. The thread decodes them,
feeds the engine, and every `epoch_ms` advances to the watermark and delivers the epoch. Kernels, decoders, the encoder
and librdkafka release the GIL, so they do not block the event loop, which fetches records and keeps the group
membership.

A task never repairs itself. Any failure ends the thread with a `TaskOutcome`, and the worker starts a new task from the
last commit. So there is one way to recover, the one that a killed worker takes, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack

from schemas.errors import BrokerError, SpillError
from services.delivery.sink import Aborted, Fenced
from services.kafka.records import RecordBatch
from services.kafka.topics import Lane
from services.task.alignment import Alignment
from services.task.commits import Committer
from services.task.context import TaskContext
from services.task.epochs import EpochLoop
from services.task.inbox import Arrival, FlushRequest, Inbox
from services.task.replay import SnapshotDamaged, replay, restore
from services.task.spec import RereadNeeded, TaskEnd, TaskOutcome


class Task:
    """One task. Methods without underscore may be called from any thread.

    Args:
        context: what it runs, from where, and to where.
        give_up: set once the thread must end without delivering the open epoch.
        changed: called when partitions may be read again, after `paused` or `full` has changed.
        ended: called in the task's thread with its outcome.

    Attributes:
        number: of the task.
        outcome: None while the thread runs.
        running: True once the replay has ended, until the thread ends.
        spec, recovery: as in the context.
    """

    def __init__(
        self,
        context: TaskContext,
        give_up: threading.Event,
        changed: Callable[[], None],
        ended: Callable[[Task, TaskOutcome], None],
    ) -> None:
        self.number = context.number
        self.spec = context.spec
        self.recovery = context.recovery
        self.outcome: TaskOutcome | None = None
        self.running = False
        self._context = context
        self._give_up = give_up
        self._ended = ended
        self._inbox = Inbox(changed)
        self._alignment = Alignment(context, changed)
        self._committer = Committer(context)
        self._loop = EpochLoop(context, self._inbox, self._alignment, self._committer)
        self._thread = threading.Thread(target=self._run, name=f"task-{context.number}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        if self._context.feedback is not None:
            self._context.feedback.listen(self._inbox.wake)
        if self._context.predecessor is not None:
            self._context.predecessor.listen(self._inbox.wake)
        self._thread.start()

    def offer(self, lane: Lane, batch: RecordBatch) -> None:
        """Hand in the next batch of a partition."""
        self._inbox.put(Arrival(lane, batch))

    def mark_idle(self, lane: Lane) -> None:
        """Report that a partition was silent for its idle timeout; batches offered before are taken first."""
        self._inbox.put(Arrival(lane, None))

    @property
    def paused(self) -> frozenset[Lane]:
        """Partitions that must not be read now, because they are ahead of the others."""
        return self._alignment.paused

    @property
    def slowest(self) -> frozenset[Lane]:
        """Partitions that the watermark waits for, as of the last second."""
        return self._loop.slowest

    @property
    def step(self) -> str:
        """What the thread is doing, for /healthz."""
        return self._context.step

    @property
    def commits(self) -> tuple[int, float]:
        """How many epochs it has delivered, and the seconds that took."""
        return self._context.commits, self._context.commit_s

    @property
    def dead_letters(self) -> int:
        """How many records it has sent to the dead-letter topic."""
        return self._context.dead_letters

    @property
    def pending_tuples(self) -> int:
        """Tuples that wait for the watermark."""
        return self._context.engine.pending_tuples

    @property
    def cut(self) -> int:
        """Event time up to which results have been computed."""
        return self._context.engine.cut

    @property
    def committed(self) -> int:
        """Event time up to which results are committed."""
        return self._committer.committed_cut

    @property
    def committed_pending(self) -> int:
        """Pending pairs of tuples, as of the last commit."""
        return self._committer.committed_pending

    @property
    def commit_progress(self) -> tuple[int, int]:
        """Progress of the commits: the sum of all offsets, and event time."""
        return sum(self._committer.committed.values()), self._committer.committed_cut

    @property
    def read(self) -> int:
        """Progress of reading: the sum of all offsets."""
        return sum(lane.position for lane in self._context.lanes.values())

    @property
    def replaying(self) -> list[Lane]:
        """Partitions that are still replayed."""
        return [key for key, lane in self._context.lanes.items() if lane.replaying]

    @property
    def missing_schema(self) -> str:
        """Why records cannot be decoded yet; empty if nothing is known to prevent it."""
        return next((lane.waits_for for lane in self._context.lanes.values() if lane.waits_for), "")

    @property
    def unread(self) -> int:
        """Number of offsets that the replay has yet to read."""
        return sum(max(0, lane.replay_end - lane.position) for lane in self._context.lanes.values())

    @property
    def has_input(self) -> bool:
        """Whether the task has input that is not committed."""
        taken = self._committer.moved() or bool(self._context.rejected.records)
        return taken or self._inbox.size_bytes > 0 or bool(self.missing_schema)

    @property
    def has_work(self) -> bool:
        """Whether the task has something to do: it recovers, has input or pending results, or has failed."""
        if self.outcome is not None:
            return self.outcome.end is not TaskEnd.FINISHED
        return not self.running or self.has_input or self._context.program.pending_pairs > 0

    @property
    def full(self) -> bool:
        """True while the event loop should read no more input for the task."""
        return self._inbox.full

    def flush(self) -> Callable[[], bool]:
        """Ask for the delivery of everything that was offered before. Call what is returned to know whether it is over:
        all is delivered, or the thread has ended."""
        done = threading.Event()
        self._inbox.put(FlushRequest(done))
        return lambda: done.is_set() or self.outcome is not None

    def finish(self) -> None:
        """Ask the thread to deliver the open epoch and end."""
        self._loop.stopping = True
        self._inbox.wake()

    def abandon(self) -> None:
        """Ask the thread to end as soon as it can, even without delivering the open epoch."""
        self._give_up.set()
        self.finish()

    def join(self, seconds: float) -> bool:
        """Wait for the thread; True if it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        outcome = TaskOutcome(TaskEnd.FINISHED)
        try:
            restore(self._context)
            replay(self._context, self._inbox, self._alignment, lambda: self._loop.stopping)
            self.running = not self._loop.stopping
            if self.running and self._loop.run() and not self._give_up.is_set():
                self._loop.epoch(final=True)
        except Fenced as error:
            outcome = TaskOutcome(TaskEnd.FENCED, error)
        except (Aborted, BrokerError) as error:
            outcome = TaskOutcome(TaskEnd.FINISHED if self._give_up.is_set() else TaskEnd.RESTART, error)
        except RereadNeeded as error:
            outcome = TaskOutcome(TaskEnd.REREAD, error)
        except SnapshotDamaged as error:
            outcome = TaskOutcome(TaskEnd.SNAPSHOT_DAMAGED, error)
        except SpillError as error:
            outcome = TaskOutcome(TaskEnd.SPILL_FAILED, error)
        except BaseException as error:
            outcome = TaskOutcome(TaskEnd.FAILED, error)
        finally:
            self.running = False
            try:
                if outcome.error is not None:
                    context = self._context
                    context.trace.failed(context.engine.cut, context.step, outcome.error)
                self._close()
            finally:
                self.outcome = outcome
                self._ended(self, outcome)

    def _close(self) -> None:
        """Release all resources, even if one of them fails: the next task opens the same store."""
        with ExitStack() as resources:
            resources.callback(self._context.engine.leave_budget)
            if self._context.spill is not None:
                resources.callback(self._context.spill.close)
            if self._context.feedback is not None:
                resources.callback(self._context.feedback.close)
            if self._context.silence is not None:
                resources.callback(self._context.silence.close)
            resources.callback(self._context.changes.close)
            resources.callback(self._context.snapshots.close)
            resources.callback(self._context.sink.close)
