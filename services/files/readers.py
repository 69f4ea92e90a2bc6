"""`SourceReader` decodes a file in a thread ahead of the engine, by at most DEPTH blocks, so that memory is bounded."""

from __future__ import annotations

import queue
import threading
from typing import Final

from services.files.sources import SourceBlock, SourceFile

DEPTH: Final = 2
"""Decoded blocks that wait: one lets decoding overlap with the engine, two also hide an uneven block."""

WAKE_SECONDS: Final = 0.2


class SourceReader:
    """Reads one source in a daemon thread, so that a pipe without data cannot keep the process from ending."""

    def __init__(self, source: SourceFile) -> None:
        self.source = source
        self._queue: queue.Queue[SourceBlock | BaseException | None] = queue.Queue(DEPTH)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, name=f"read {source.name}", daemon=True)
        self._thread.start()

    def ready(self) -> bool:
        """Whether `next` would return at once."""
        return not self._queue.empty()

    def next(self) -> SourceBlock | None:
        """The next block, waiting for it; None at the end of the file.

        Raises:
            DataError: the thread cannot read the file further.
        """
        # Wake up regularly: once polars has written, a signal no longer interrupts a wait, and Ctrl-C is handled only
        # when the interpreter runs.
        item: SourceBlock | BaseException | None
        while True:
            try:
                item = self._queue.get(timeout=WAKE_SECONDS)
                break
            except queue.Empty:
                continue
        if isinstance(item, BaseException):
            raise item
        return item

    def stop(self) -> None:
        """Let the thread end and drop its blocks. Does not wait for a read that blocks."""
        self._stopped.set()
        while not self._queue.empty():
            self._queue.get_nowait()

    def _read(self) -> None:
        try:
            for block in self.source.blocks():
                self._queue.put(block)
                if self._stopped.is_set():
                    return
            self._queue.put(None)
        except BaseException as error:  # handed to the engine's thread, which raises it
            self._queue.put(error)
