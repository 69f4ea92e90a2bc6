"""Writes a task's snapshots in the background: the task hands over columns, another thread encodes and writes them.

`services.worker.task_opener` makes a `SnapshotWriter` for each task, and `services.task.commits` calls it after
commits. A snapshot that cannot be written only makes a later recovery longer: the failure is logged once and counted,
and the task continues without snapshots until it is restarted. Results never depend on snapshots.

`services.recovery` says when snapshots are deleted.
"""

from __future__ import annotations

import time
from concurrent.futures import Executor, Future

from operators.state.checkpoint import Checkpoint
from schemas.errors import StateError
from services.process.logs import Log
from services.process.metrics import TaskMetrics
from services.recovery.starting_point import Snapshot
from services.recovery.state_store import StateStore


class SnapshotWriter:
    """Writes the snapshots of one task; used by the task's thread.

    Args:
        store: the task's table; None for a worker without a state directory.
        executor: runs the writes.
        every_ms: the time between snapshots.

    Attributes:
        failed: True once a write has failed; nothing is written any more.
    """

    def __init__(
        self, store: StateStore | None, executor: Executor, every_ms: int, log: Log, metrics: TaskMetrics
    ) -> None:
        self._store = store
        self._executor = executor
        self._every_s = every_ms / 1000
        self._due = time.monotonic() + self._every_s
        self._log = log
        self._metrics = metrics
        self._running: Future[None] | None = None
        self.failed = False

    @property
    def due(self) -> bool:
        """True when it is time for a snapshot and the last one is on disk."""
        return self.ready and time.monotonic() >= self._due

    @property
    def ready(self) -> bool:
        """True when a snapshot could be written now."""
        idle = self._running is None or self._running.done()
        return self._store is not None and not self.failed and idle

    def add(self, checkpoint: Checkpoint) -> None:
        """Start to write blocks ahead of the snapshot that will hold them, so that it need not write all at once."""
        self._running = self._executor.submit(self._write, None, checkpoint)

    def write(self, snapshot: Snapshot, checkpoint: Checkpoint) -> None:
        """Start to write a snapshot; both arguments must be of the last committed epoch."""
        self._due = time.monotonic() + self._every_s
        self._running = self._executor.submit(self._write, snapshot, checkpoint)

    def _write(self, snapshot: Snapshot | None, checkpoint: Checkpoint) -> None:
        store = self._store
        if store is None:
            return
        try:
            began = time.monotonic()
            if snapshot is None:
                store.add(checkpoint.blocks)
                return
            size = store.write(snapshot, checkpoint)
        except StateError as error:
            self.failed = True
            self._metrics.snapshot_failures.inc()
            self._log.error(
                "snapshot failed; continuing without snapshots until restarted, recovery will read more input again",
                reason=str(error),
            )
            return
        self._metrics.saved(snapshot.cut)
        self._log.debug(
            "snapshot", epoch=snapshot.epoch, cut=snapshot.cut, bytes=size, seconds=time.monotonic() - began
        )

    def close(self) -> None:
        """Wait for the last write and close the table, whatever the write raised."""
        try:
            if self._running is not None:
                self._running.result()
        finally:
            if self._store is not None:
                self._store.close()
