"""Reads one partition of an internal topic for a task: the counterpart of `services.task.lane.InputLane` for blocks.

`services.task.context` makes one `BlockLane` per partition of an internal topic. Blocks hold no late tuples and no dead
letters: the tasks that read sources decide what is late. Partitions of internal topics never idle: where sources have
idle timeouts, the task that reads a silent source follows the others (`services.task.silence`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from operators.distributed.edge_reader import EdgeReader
from operators.distributed.feedback.feedback import DistributedFeedback
from operators.distributed.operator import OperatorInput
from operators.engine.intake import ReplayPoint
from schemas.errors import InvariantError
from schemas.messages.commits import Commit, StreamPoint
from services.delivery.epoch_output import RejectedRecords
from services.kafka.records import RecordBatch
from services.kafka.topics import Lane as LaneKey
from services.process.logs import Log
from services.recovery.starting_point import LaneStart
from services.task.program import TaskEngine


class BlockLane:
    """One partition; see `InputLane` for its attributes.

    Attributes:
        needed: offset of the first record that a recovery from the last commit message would read.
    """

    may_idle = False

    def __init__(
        self,
        key: LaneKey,
        given: OperatorInput,
        start: LaneStart,
        floor: int,
        log: Log,
        feedback: DistributedFeedback | None = None,
    ) -> None:
        self.key = key
        self.position = start.offset
        self.replay_end = start.replay_end
        self.retained: deque[RecordBatch] = deque()
        self.idle = False
        self.waits_for = ""
        self.needed = 0
        self._start = start
        self._floor = floor
        self._log = log
        points = [ReplayPoint(point.offset, point.max_ts) for point in start.points]
        self._channels = EdgeReader(given, points, feedback)
        self._stream = given.stream.name
        self._repeats_reported = False

    @property
    def inputs(self) -> tuple[tuple[str, int], ...]:
        """The engine's (stream, partition) pairs that the lane feeds."""
        return tuple((self._stream, channel) for channel in range(len(self._start.points)))

    @property
    def replaying(self) -> bool:
        """True while the lane reads again what an earlier incarnation took."""
        return self.position < self.replay_end

    def restore_clocks(self, engine: TaskEngine) -> None:
        """Set the engine's clocks to the start of reading."""
        self._channels.restore_clocks(engine)

    def replay(self, engine: TaskEngine, batch: RecordBatch) -> int:
        """Feed records that an earlier incarnation took; returns the number of tuples taken."""
        return self._feed(engine, batch, self._floor, again=True)

    def take(self, engine: TaskEngine, batch: RecordBatch, rejected: RejectedRecords) -> int:
        """Feed new records; returns the number of tuples taken."""
        return self._feed(engine, batch, 0, again=False)

    def _feed(self, engine: TaskEngine, batch: RecordBatch, floor: int, *, again: bool) -> int:
        if batch.start != self.position:
            raise InvariantError(
                f"{self.key[0]}[{self.key[1]}]: batch starts at offset {batch.start}, next is {self.position}"
            )
        taken = repeated = 0
        for record in batch.records:
            block = self._channels.decode(record.value, f"{self.key[0]}[{self.key[1]}]@{record.offset}")
            if record.offset < self._start.points[block.channel].offset:
                continue
            found = self._channels.take(engine, block, record.offset, floor, again=again)
            taken += found.tuples
            repeated += found.repeated
        if repeated and not self._repeats_reported:
            self._repeats_reported = True
            self._log.warning(
                "intermediate results came twice and were left out", topic=self.key[0], partition=self.key[1]
            )
        self.position = batch.next_offset
        return taken

    def points(self, engine: TaskEngine, horizons: Sequence[int]) -> tuple[StreamPoint, ...]:
        """Per channel, where to start reading again to see every tuple with ts >= its horizon."""
        found = []
        for (channel, known), horizon in zip(enumerate(self._start.window), horizons, strict=True):
            if horizon < self._floor:
                # The channels never saw the records that a snapshot replaced.
                found.append(known)
            else:
                point = self._channels.point(channel, horizon)
                found.append(StreamPoint(point.offset, point.max_ts))
        return tuple(found)

    def points_at(self, engine: TaskEngine, cut: int) -> tuple[StreamPoint, ...]:
        """Per channel, where to start reading again if all tuples before a cut are in a snapshot."""
        return self.points(engine, [cut] * len(self._start.points))

    def horizons(self, engine: TaskEngine) -> list[int]:
        """The current horizon of each channel."""
        return [engine.horizon(self._stream)] * len(self._start.points)

    def commit_message(self, engine: TaskEngine, fingerprint: str, epoch: int, lanes: int, plan_version: int) -> Commit:
        """Make the message to commit with `position`."""
        points = self.points(engine, self.horizons(engine))
        self._channels.forget(engine.horizon(self._stream))
        self.needed = min(point.offset for point in points)
        return Commit(fingerprint, epoch, engine.cut, plan_version, lanes, points)

    def watermark(self, engine: TaskEngine) -> int:
        """The smallest watermark of the channels; -1 until each channel has sent a block."""
        return min(engine.partition_watermark(*own) for own in self.inputs)

    def set_idle(self, engine: TaskEngine, idle: bool) -> None:
        """Exclude the lane from the watermark while others replay, or include it again."""
        self.idle = idle
        for own in self.inputs:
            engine.set_idle(*own, idle)
