"""A thread that makes calls which may never return, so that whoever waits for one can go on without it.

librdkafka's `send_offsets_to_transaction` does not keep to its time limit (confluentinc/librdkafka#5456), and where the
group's coordinator went away in the middle of the call it waits for a connection that no longer exists (#5511): for
ever, unless something happens to another connection. To us this was a task that stood still after a restart of the
broker. Its version makes no difference: of producers that wrote while their only broker was restarted, some three in
four met a call that was out for more than 10 s, with 2.13.2 as with 2.16.1, stopped or killed; with rebootstrapping
(`services.process.security`) nearly all.

A thread per call would be simpler and cost up to 2 ms of every epoch; a call handed to one that waits costs some 10
microseconds.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class CallThread:
    """Makes one call after another. Used by one thread; a thread whose call never returns is left behind with it."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        # A daemon: the process must be able to end without it.
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def run(self, call: Callable[[], object], seconds: float) -> None:
        """Make the call; what it raises is raised here. Not to be used again after a TimeoutError.

        Raises:
            TimeoutError: it has not returned within `seconds`.
        """
        self._calls.put(call)
        try:
            error = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError from None
        if error is not None:
            raise error

    def close(self) -> None:
        """Let the thread end, once its call has returned."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except BaseException as error:
                self._answers.put(error)
            else:
                self._answers.put(None)
