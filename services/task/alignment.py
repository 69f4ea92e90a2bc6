"""Decides which partitions of a task must not be read now, because they are ahead of the others in event time.

The tuples of a partition that is ahead would only wait for the watermark, in memory. `services.task.replay` and
`services.task.epochs` call it after each batch.
"""

from __future__ import annotations

from collections.abc import Callable

from services.kafka.topics import Lane
from services.task.context import TaskContext


class Alignment:
    """The paused partitions of one task.

    Args:
        resumed: called when partitions may be read again.

    Attributes:
        paused: partitions that must not be read now.
        most_pending: tuples that may wait for the watermark before all partitions that are ahead are paused.
    """

    def __init__(self, context: TaskContext, resumed: Callable[[], None]) -> None:
        self.paused: frozenset[Lane] = frozenset()
        self.most_pending = context.spec.settings.max_pending_tuples
        if context.spill is not None:
            self.most_pending = min(self.most_pending, context.spill.waiting_tuples)
        self._context = context
        self._resumed = resumed
        self._over_limit = False

    def pause_lanes_ahead(self, more: frozenset[Lane] = frozenset()) -> None:
        """Pause the partitions that must wait for slower ones, and `more`; resume all others."""
        self.pause(self._lanes_ahead() | more)

    def pause(self, lanes: frozenset[Lane]) -> None:
        """Pause these partitions, and resume all others."""
        if lanes != self.paused:
            fewer = bool(self.paused - lanes)
            self.paused = lanes
            self._context.metrics.paused.set(len(lanes))
            if fewer:
                self._resumed()

    def _lanes_ahead(self) -> frozenset[Lane]:
        context, engine = self._context, self._context.engine
        watermark = engine.watermark()
        # Between the two limits the state stays as it is, so that partitions do not pause and resume in turn.
        self._over_limit = engine.pending_tuples > self.most_pending * (0.5 if self._over_limit else 1.0)
        ahead: set[Lane] = set()
        for key, lane in context.lanes.items():
            if context.is_closed(lane) or context.waits_for_predecessor(lane) or lane.waits_for:
                ahead.add(key)
                continue
            if context.feedback is not None and context.feedback.waits_for(key[0]):
                continue
            distance = lane.watermark(engine) - watermark
            too_far = watermark >= 0 and distance > context.spec.settings.max_ahead_ms
            if distance > 0 and (self._over_limit or too_far):
                ahead.add(key)
        return frozenset(ahead)
