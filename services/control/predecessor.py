"""Follows the former plan version while the next one is prepared beside it. Entry: `Predecessor`.

The former version's tasks write all results and report all late tuples and dead letters up to the cut. So until the
former version is over, the next version's tasks

- read a partition of a source no further than the former version has committed (`offset`), and report nothing there;
- write no results, and those that would, advance no further than the former version's last commits (`limit`), or the
  cut once that is known. The cut is not below these commits, so such a task never passes it before it is known. Tasks
  that make results from before the cut on demand wait likewise, until the cut is known.

What each former task has committed is in Kafka; a thread asks for it every POLL_S. For the first SOON_S after the cut
is known it asks every POLL_SOON_S: no results come until the last commit has been seen.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from operators.data.watermark import END, NEVER
from schemas.errors import BrokerError
from services.control.barrier import View
from services.control.plan_versions import PlanVersion, PlanVersions, all_lanes
from services.kafka.topics import Lane
from services.placement.distributed import DistributedLayout
from services.recovery.starting_point import Committed

POLL_S = 0.04

POLL_SOON_S = 0.01

SOON_S = 2.0
"""A former task that has not reached the cut after so long has probably died; its successor takes seconds."""

READY_S = 1.0
"""The next version has caught up when it has come as far as the former one was so long ago."""


class Predecessor:
    """The version before a prepared one.

    Args:
        version: the prepared one.
        view: returns the newest view of the control log.
        fail: called, in a thread, with an error that does not pass.

    Attributes:
        commits: the former version's last commits.
        over: whether all of its tasks have reached the cut; then `commits` are final.
        ready: whether the next version has caught up.
    """

    def __init__(
        self,
        versions: PlanVersions,
        version: PlanVersion,
        view: Callable[[], View],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.commits: Mapping[Lane, Committed] = {}
        self.over = self.ready = False
        self._versions = versions
        self._version = version
        self._former = versions.version(version.number - 1, view())
        self._layout = versions.layout(self._former)
        self._next_layout = versions.layout(version)
        self._view = view
        self._fail = fail
        self._reader = versions.reader()
        self._reached: deque[tuple[float, int]] = deque()
        self._wake: list[Callable[[], None]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="predecessor", daemon=True)

    def start(self) -> Predecessor:
        """Ask once, then start the thread.

        Raises:
            BrokerError: Kafka does not answer.
        """
        try:
            self._look()
        except BaseException:
            self._reader.close()
            raise
        self._thread.start()
        return self

    def listen(self, wake: Callable[[], None]) -> None:
        """Let the thread call `wake` when the former version comes further on its way to the cut, or is over."""
        self._wake.append(wake)

    def wait_until_over(self, seconds: float) -> bool:
        """Wait until the former version is over, at most so long; stop the thread. Returns whether it is."""
        deadline = time.monotonic() + seconds
        while not self.over and time.monotonic() < deadline:
            time.sleep(POLL_S)
        self.close()
        return self.over

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()

    @property
    def cut(self) -> int | None:
        """Event time at which the next version begins; None while it is not decided."""
        change = self._view().change(self._version.id)
        return None if change is None else change.cut

    def offset(self, lane: Lane) -> int:
        """The offset up to which a partition of a source may be read; what lies before it has been reported."""
        found = self.commits.get(lane)
        return 0 if found is None else found.offset

    def is_final(self, lane: Lane) -> bool:
        """Whether `offset` is where the former version has ended: the rest of the partition is the next version's."""
        cut, found = self.cut, self.commits.get(lane)
        return cut is not None and found is not None and found.message.cut >= cut

    @property
    def limit(self) -> int:
        """Event time that the former version's tasks have all committed; END when it is over."""
        return END if self.over else self._least_cut(self._layout, self.commits)

    def _run(self) -> None:
        decided: float | None = None
        try:
            while not self.over and not self._stop.wait(self._pause(decided)):
                if decided is None and self.cut is not None:
                    decided = time.monotonic()
                before = self.commits
                with contextlib.suppress(BrokerError):  # the worker notices, too, that Kafka does not answer
                    self._look()
                if decided is not None and self.commits != before:
                    self._wake_all()
            self._wake_all()
        except Exception as error:
            self._fail(error)
        finally:
            self._reader.close()

    def _wake_all(self) -> None:
        for wake in self._wake:
            wake()

    @staticmethod
    def _pause(decided: float | None) -> float:
        """Seconds until the thread asks again; `decided` is when the cut was first seen."""
        soon = decided is not None and time.monotonic() - decided < SOON_S
        return POLL_SOON_S if soon else POLL_S

    def _look(self) -> None:
        lanes = all_lanes(self._layout)
        found = self._versions.commits(self._former, lanes, self._reader)
        cut = self.cut
        over = cut is not None and len(found) == len(lanes) and all(c.message.cut >= cut for c in found.values())
        # In this order: `limit` must not be free before `commits` are final.
        self.commits = {**self.commits, **found}
        self.over = over
        if cut is None:
            self._compare(time.monotonic())

    def _compare(self, now: float) -> None:
        """Update `ready`."""
        self._reached.append((now, self._least_cut(self._layout, self.commits)))
        while len(self._reached) > 1 and self._reached[1][0] <= now - READY_S:
            self._reached.popleft()
        since, reached = self._reached[0]
        own = self._next_layout
        lanes = [lane for task in range(own.sinks) for lane in own.lanes(task)]
        found = self._versions.commits(self._version, lanes, self._reader)
        self.ready = now - since >= READY_S and self._least_cut(own, found, own.sinks) >= reached

    @staticmethod
    def _least_cut(layout: DistributedLayout, commits: Mapping[Lane, Committed], tasks: int | None = None) -> int:
        """The event time that the first `tasks` tasks, or all, have committed; a task's newest commit counts."""
        return min(
            max((commits[lane].message.cut for lane in layout.lanes(task) if lane in commits), default=NEVER)
            for task in range(layout.tasks if tasks is None else tasks)
        )
