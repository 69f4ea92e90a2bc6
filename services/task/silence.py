"""Lets a distributed operator proceed while its sources are silent: it follows the tasks that wait for it.

With an idle timeout, a silent source does not hold its task's watermark back. In a distributed plan the task above
would still wait for the operator that reads the source. So a task that waits for one of its inputs alone tells the
tasks that write it how far it could go (`Awaited`). An operator whose sources are all silent advances to what
all of its readers await, or passes it on to the operators below. From then on older tuples of these sources are late,
there as in a fused query: the operator that reads a source decides, and before any of its readers goes on.

Results do not depend on whether a message arrives, how often, or how soon; only what is late does, as with every idle
timeout.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Mapping

from schemas.messages.control import Awaited
from services.control.feedback_log import FeedbackLog, Inbox
from services.kafka.topics import Lane
from services.placement.distributed import Part
from services.task.block_lane import BlockLane
from services.task.lane import InputLane
from services.task.program import TaskEngine

REPEAT_S = 0.5
"""How often a task repeats that it waits; it tells at once when it could go further, at most every TELL_S."""

TELL_S = 0.05

UNKNOWN = -1


class Silence:
    """What one incarnation of a task knows of its readers, and tells the tasks whose results it reads."""

    def __init__(self, part: Part, lanes: Mapping[Lane, InputLane | BlockLane], link: FeedbackLog) -> None:
        self._lanes = lanes
        self._link = link
        self._awaited: dict[Lane, int] = {
            (edge.topic, partition): UNKNOWN
            for edge in part.operator.outputs
            for partition in ((part.share,) if edge.forward else range(edge.partitions))
        }
        self._told: dict[Lane, tuple[float, int]] = {}
        self._inbox: Inbox = link.open({topic for topic, _ in self._awaited})

    def close(self) -> None:
        """Stop receiving."""
        self._link.leave(self._inbox)

    def watermark(self, watermark: int) -> int:
        """Return how far the task may advance, where its sources alone allow `watermark`."""
        with contextlib.suppress(queue.Empty):
            while True:
                message = self._inbox.get_nowait()
                if not isinstance(message, Awaited):
                    continue
                lane = message.topic, message.partition
                if lane in self._awaited:
                    self._awaited[lane] = max(self._awaited[lane], message.until)
        silent = all(isinstance(lane, InputLane) and lane.idle for lane in self._lanes.values())
        return max(watermark, self._wanted()) if silent else watermark

    def _wanted(self) -> int:
        """How far all readers could go if this task did."""
        return min(self._awaited.values(), default=UNKNOWN)

    def tell(self, engine: TaskEngine, now: float) -> None:
        """Tell the writers of each internal partition how far the task could go without waiting for it."""
        for key, lane in self._lanes.items():
            if not isinstance(lane, BlockLane):
                continue
            others = [other.watermark(engine) for at, other in self._lanes.items() if at != key and not other.idle]
            could = min(others) if others else self._wanted()
            told_at, told = self._told.get(key, (float("-inf"), UNKNOWN))
            due = now - told_at >= (TELL_S if could > told else REPEAT_S)
            if due and could > lane.watermark(engine):
                self._told[key] = now, could
                topic, partition = key
                self._link.send(Awaited(topic=topic, partition=partition, until=could))
