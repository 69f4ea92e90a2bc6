"""A thread for calls that may never return, so that the caller can stop waiting. The transactional sink uses it.

librdkafka's `send_offsets_to_transaction` does not keep its time limit (confluentinc/librdkafka#5456). If the group's
coordinator disappears during the call, the call waits for a connection that no longer exists (#5511): for ever, unless
something happens to another connection. In Weir a task then stood still after a restart of the broker. The version
makes no difference. Of producers that wrote while their only broker was restarted, some three in four had a call that
took more than 10 s, with 2.13.2 as with 2.16.1, whether the broker was stopped or killed; with rebootstrapping
(`services.process.security`) nearly all had.

A thread per call would be simpler, but would cost up to 2 ms of every epoch. Handing a call to a waiting thread costs
some 10 microseconds.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class CallThread:
    """Makes one call after another, for one calling thread. A thread whose call never returns is abandoned."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        # A daemon, so that the process can end without it.
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def run(self, call: Callable[[], object], seconds: float) -> None:
        """Make the call, and raise what it raises. Do not use this object again after a TimeoutError.

        Raises:
            TimeoutError: the call has not returned within `seconds`.
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
