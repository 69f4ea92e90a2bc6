"""Hands batches and requests from the worker's event loop to a task's thread.

`services.task.task` puts items in; the task's thread takes them out while it replays and while it reads.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import NamedTuple

from services.kafka.records import RecordBatch
from services.kafka.topics import Lane

MAX_BYTES = 8 << 20
"""Raw input that may wait for the task's thread; beyond it the worker does not read the task's partitions."""


class Arrival(NamedTuple):
    """The next batch of a partition; None if the partition was silent for its idle timeout."""

    lane: Lane
    batch: RecordBatch | None


class FlushRequest(NamedTuple):
    """Asks for a delivery of everything that was put in before. `done` is set once that has happened."""

    done: threading.Event


class Inbox:
    """A queue of arrivals and flush requests.

    Args:
        has_room: called in the task's thread when the inbox is no longer full.

    Attributes:
        size_bytes: raw input that waits.
    """

    def __init__(self, has_room: Callable[[], None]) -> None:
        self.size_bytes = 0
        self._has_room = has_room
        self._items: queue.SimpleQueue[Arrival | FlushRequest | None] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def put(self, item: Arrival | FlushRequest) -> None:
        """Put an item in. Called by any thread."""
        if isinstance(item, Arrival) and item.batch is not None:
            with self._lock:
                self.size_bytes += item.batch.size_bytes
        self._items.put(item)

    def wake(self) -> None:
        """End a waiting `get`. Called by any thread."""
        self._items.put(None)

    @property
    def full(self) -> bool:
        """True while no more input should be put in."""
        return self.size_bytes > MAX_BYTES

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return self._items.empty()

    def get(self, seconds: float) -> Arrival | FlushRequest | None:
        """Take the next item; None if none came in time, or after `wake`. Called by the task's thread."""
        try:
            item = self._items.get(timeout=seconds) if seconds > 0 else self._items.get_nowait()
        except queue.Empty:
            return None
        if isinstance(item, Arrival) and item.batch is not None:
            with self._lock:
                was_full = self.full
                self.size_bytes -= item.batch.size_bytes
            if was_full and not self.full:
                self._has_room()
        return item
