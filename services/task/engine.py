"""The interfaces through which a task uses an engine, of one query or of a group.

`services.task.task` and the lanes use `TaskEngine`; `services.task.spill` uses `SpillingEngine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from operators.engine.intake import LateRows, ReplayPoint
from schemas.columns import I64, Batch
from schemas.messages.spills import SpillEvent


class TaskEngine(Protocol):
    """See `operators.engine.engine.Engine`.

    Attributes:
        hold: event time; the engine keeps tuples that had not expired at it.
        load: the share of its time that the engine is busy, as the task has measured it.
    """

    hold: int
    load: float

    @property
    def cut(self) -> int:
        """Event time (ms) before which everything has been processed."""
        ...

    @property
    def pending_tuples(self) -> int:
        """Tuples that wait for the watermark."""
        ...

    def push(
        self, stream: str, partition: int, batch: Batch, offsets: I64 | None = None, *, floor: int = 0
    ) -> LateRows:
        """Take tuples of one partition in arrival order."""
        ...

    def set_clock(self, stream: str, partition: int, max_ts: int) -> None:
        """Restore a partition's clock before a replay."""
        ...

    def set_idle(self, stream: str, partition: int, idle: bool) -> None:
        """Exclude a silent partition from the watermark, or include it again."""
        ...

    def watermark(self) -> int:
        """The largest cut that `advance` may be given."""
        ...

    def partition_watermark(self, stream: str, partition: int) -> int:
        """The watermark of one partition."""
        ...

    def horizon(self, stream: str) -> int:
        """The smallest ts whose tuples some window still needs."""
        ...

    def replay_point(self, stream: str, partition: int, horizon_ms: int) -> ReplayPoint:
        """Where to start reading again to see every tuple with ts >= `horizon_ms`."""
        ...

    def advance(self, cut: int | None = None) -> object:
        """Process all tuples with ts < cut."""
        ...


class SpillingEngine(Protocol):
    """An engine with a memory budget; see `operators.engine.engine.Engine` and `operators.groups.engine.GroupEngine`.

    Attributes:
        load: the share of its time that the engine is busy.
    """

    load: float

    def clean(self, most: int | None = None) -> bool:
        """Produce pending results of at most `most` groups; False if none were pending."""
        ...

    def least_budget(self) -> int:
        """The smallest sufficient budget in bytes; 0 if the present budget suffices."""
        ...

    def spill_events(self) -> list[SpillEvent]:
        """The spill events since the last call."""
        ...

    def play_spills(self, events: Sequence[SpillEvent], until: int) -> None:
        """Replay spill events up to an event time, and decide no others before it."""
        ...

    def spills_needed_from(self) -> int:
        """Event time up to which spill events need no replay."""
        ...
