"""What a task asks of an engine, of one query or of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from operators.engine.intake import ReplayPoint
from schemas.columns import I64, Batch, Mask
from schemas.messages.spills import SpillEvent


class TaskEngine(Protocol):
    """See `operators.engine.engine.Engine`.

    Attributes:
        hold: what had not expired before it is kept.
        load: the share of its time that it is busy, as the task has measured.
    """

    hold: int
    load: float

    @property
    def cut(self) -> int:
        """Everything with a smaller ts has been processed."""
        ...

    @property
    def pending_tuples(self) -> int:
        """Tuples that wait for the watermark."""
        ...

    def push(self, stream: str, partition: int, batch: Batch, offsets: I64 | None = None, *, floor: int = 0) -> Mask:
        """Take tuples of one partition in arrival order; True where late."""
        ...

    def set_clock(self, stream: str, partition: int, max_ts: int) -> None:
        """Restore a partition's clock before a replay."""
        ...

    def set_idle(self, stream: str, partition: int, idle: bool) -> None:
        """Exclude a silent partition from the watermark, or include it again."""
        ...

    def watermark(self) -> int:
        """Up to where `advance` may go."""
        ...

    def partition_watermark(self, stream: str, partition: int) -> int:
        """The watermark of one partition."""
        ...

    def horizon(self, stream: str) -> int:
        """The smallest ts whose tuples some window still needs."""
        ...

    def replay_point(self, stream: str, partition: int, horizon_ms: int) -> ReplayPoint:
        """Where to read again to see every tuple with ts >= `horizon_ms`."""
        ...

    def advance(self, cut: int | None = None) -> object:
        """Process all tuples with ts < cut."""
        ...


class SpillingEngine(Protocol):
    """What is asked of an engine that keeps to a memory budget; see `operators.engine.spilled` and
    `operators.groups.engine.GroupEngine`.

    Attributes:
        load: the share of its time that it is busy.
    """

    load: float

    def clean(self, most: int | None = None) -> bool:
        """Find results that are owed, of so many groups at most; False when nothing was owed."""
        ...

    def least_budget(self) -> int:
        """The least budget that would do, in bytes; 0 where the one that there is does."""
        ...

    def spill_events(self) -> list[SpillEvent]:
        """What has happened to spilled state since this was last asked."""
        ...

    def play_spills(self, events: Sequence[SpillEvent], until: int) -> None:
        """Do up to an event time exactly this to spilled state."""
        ...

    def spills_needed_from(self) -> int:
        """Events up to this event time need not be done again."""
        ...
