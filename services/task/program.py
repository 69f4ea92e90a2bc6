"""What a task runs: interfaces of the program, of its engine, and of the changes that it makes while it runs.

`TaskProgram` hides whether a task runs one query (`services.program.query_program`, also for an operator of a
distributed query) or a group of queries (`services.program.group_program`). The lanes use `TaskEngine`;
`services.task.spill` uses `SpillingEngine`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from operators.engine.engine import Engine
from operators.engine.intake import LateRows, ReplayPoint
from schemas.codecs.encode import Encoded
from schemas.columns import I64, Batch
from schemas.messages.spills import SpillEvent
from services.delivery.epoch_output import BlockRecord
from services.process.metrics import TaskMetrics

LOOK_S = 0.2
"""Upper limit of the time between two calls of `TaskChanges.look`, however long epochs are."""


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
        self,
        stream: str,
        partition: int,
        batch: Batch,
        offsets: I64 | None = None,
        *,
        floor: int | None = None,
        remembered: int | None = None,
    ) -> LateRows:
        """Take tuples of one partition in arrival order."""
        ...

    def set_clock(self, stream: str, partition: int, max_ts: int) -> None:
        """Restore a partition's clock before a replay."""
        ...

    def take_versions(self) -> int:
        """See `Engine.take_versions`."""
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

    def replay_horizon(self, stream: str) -> int:
        """The smallest ts that a restart needs: for windows, and to find repeats."""
        ...

    def record_repeats(self) -> None:
        """Keep the positions of repeats from now on."""
        ...

    def resume_repeats(self, stream: str, positions: I64, until: int) -> None:
        """Restore which tuples with ts < until are repeats."""
        ...

    def take_repeats(self) -> Mapping[str, I64]:
        """The positions of repeats since the last call, by stream."""
        ...

    def replay_point(self, stream: str, partition: int, horizon_ms: int) -> ReplayPoint:
        """Where to start reading again to see every tuple with ts >= `horizon_ms`."""
        ...

    def advance(self, cut: int | None = None) -> object:
        """Process all tuples with ts < cut."""
        ...

    def leave_budget(self) -> None:
        """The engine is not used any more."""
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

    def replay_limit(self, read: Mapping[str, int]) -> int:
        """Event time up to which a replay may advance when streams have been read again up to these offsets."""
        ...

    def spills_needed_from(self) -> int:
        """Event time up to which spill events need no replay."""
        ...


class TaskChanges:
    """Changes of a task's program while it runs: of the plan, or of the queries of a group. This one has none.

    Attributes:
        looks_within_epochs: whether `look` is also called while an epoch's input is read, at least every LOOK_S.
    """

    looks_within_epochs = True

    @property
    def version(self) -> int:
        """The version of the plan, to commit with what has been processed."""
        return 0

    @property
    def ownership_in_doubt(self) -> bool:
        """True if the task must commit to learn whether another incarnation has taken over."""
        return False

    @property
    def hurries(self) -> bool:
        """Whether the task's next epochs hold up a change of plans."""
        return False

    @property
    def prepares(self) -> bool:
        """Whether the task's plan is being prepared, and nobody waits for its epochs."""
        return False

    @property
    def must_commit(self) -> bool:
        """Whether the next delivery must be committed, even if no commit is due."""
        return False

    def look(self, committed: float, now: float) -> None:
        """Find requested changes and apply them; called between two epochs.

        Args:
            committed: when the last successful commit began, in monotonic seconds.
        """

    def limit(self, watermark: int, now: float) -> int:
        """The largest cut of the next epoch."""
        return watermark

    def observe(self) -> None:
        """Measure the engine; called after each epoch, once its results are delivered."""

    def ends_at(self, cut: int) -> bool:
        """Whether the task must end at this cut."""
        return False

    def is_awaited(self, watermark: int) -> bool:
        """Whether a change of plans waits for an epoch that ends at this watermark."""
        return self.ends_at(watermark)

    def conclude(self, now: float) -> None:
        """Report that the task has ended."""

    def close(self) -> None:
        """Release what the changes use; the task's thread has ended its work."""


class TaskProgram(Protocol):
    """See the module.

    Attributes:
        durable: the engine, if snapshots of it can be taken.
        pending_pairs: pairs of tuples that are still to be compared, as of the last report; 0 without pending results.
        numbers: per stream whose tuples the task counts for other tasks, how many it has numbered.
    """

    pending_pairs: int

    @property
    def numbers(self) -> tuple[int, ...]:
        """See above."""
        ...

    @property
    def settled(self) -> bool:
        """Whether no results before the engine's cut are pending, here or in a task whose results it reads."""
        ...

    @property
    def engine(self) -> TaskEngine:
        """The engine."""
        ...

    @property
    def durable(self) -> Engine | None:
        """See above."""
        ...

    def advance(self, cut: int) -> bool:
        """Process an epoch; returns whether it produced results."""
        ...

    def has_output(self) -> bool:
        """Whether records must be delivered even without results."""
        ...

    def encode(self) -> tuple[list[tuple[str, Encoded]], list[BlockRecord]]:
        """The output since the last call: encoded results with their topics, and blocks."""
        ...

    def count(self, delivered: Mapping[str, int], metrics: TaskMetrics) -> None:
        """Count delivered results, by topic."""
        ...

    def report(self, metrics: TaskMetrics) -> float:
        """Publish the engine's statistics; returns the seconds that it has been busy."""
        ...
