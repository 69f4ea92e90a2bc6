"""One partition of an internal topic as a task reads it: `services.task.lane.InputLane`'s counterpart for blocks.

Blocks hold no late tuples and no letters: what is late is decided where sources are read. Partitions of internal
topics never idle; a stream that is silent holds back what is joined with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from operators.distributed.decompose import Input
from operators.distributed.edge_reader import Channels
from operators.distributed.feedback import PlacedFeedback
from operators.engine.intake import ReplayPoint
from schemas.errors import InvariantError
from schemas.messages.commits import Commit, StreamPoint
from services.delivery.epoch_output import Letters
from services.kafka.records import RecordBatch
from services.kafka.topics import Lane as LaneKey
from services.process.logs import Log
from services.recovery.starting_point import LaneStart
from services.task.engine import TaskEngine


class BlockLane:
    """One partition; see `InputLane` for its attributes.

    Attributes:
        needed: the first record that a recovery from the last commit message would read.
    """

    may_idle = False

    def __init__(
        self,
        key: LaneKey,
        given: Input,
        start: LaneStart,
        floor: int,
        log: Log,
        feedback: PlacedFeedback | None = None,
    ) -> None:
        self.key = key
        self.position = start.offset
        self.live = start.live
        self.held: deque[RecordBatch] = deque()
        self.idle = False
        self.needed = 0
        self._start = start
        self._floor = floor
        self._log = log
        points = [ReplayPoint(point.offset, point.max_ts) for point in start.points]
        self._channels = Channels(given, points, feedback)
        self._stream = given.stream.name
        self._told = False

    @property
    def inputs(self) -> tuple[tuple[str, int], ...]:
        """The engine's (stream, partition) pairs that it feeds."""
        return tuple((self._stream, channel) for channel in range(len(self._start.points)))

    @property
    def replaying(self) -> bool:
        """True while records that were taken before are read again."""
        return self.position < self.live

    def restore_clocks(self, engine: TaskEngine) -> None:
        """Set the engine's clocks to where reading begins."""
        self._channels.restore_clocks(engine)

    def replay(self, engine: TaskEngine, batch: RecordBatch) -> int:
        """Feed records that were taken before; tuples taken."""
        return self._feed(engine, batch, self._floor)

    def take(self, engine: TaskEngine, batch: RecordBatch, letters: Letters) -> int:
        """Feed new records; tuples taken."""
        return self._feed(engine, batch, 0)

    def _feed(self, engine: TaskEngine, batch: RecordBatch, floor: int) -> int:
        if batch.start != self.position:
            raise InvariantError(
                f"{self.key[0]}[{self.key[1]}]: batch starts at offset {batch.start}, next is {self.position}"
            )
        taken = repeated = 0
        for record in batch.records:
            block = self._channels.decode(record.value, f"{self.key[0]}[{self.key[1]}]@{record.offset}")
            if record.offset < self._start.points[block.channel].offset:
                continue
            found = self._channels.take(engine, block, record.offset, floor)
            taken += found.tuples
            repeated += found.repeated
        if repeated and not self._told:
            self._told = True
            self._log.warning(
                "intermediate results came twice and were left out", topic=self.key[0], partition=self.key[1]
            )
        self.position = batch.next_offset
        return taken

    def points(self, engine: TaskEngine, horizons: Sequence[int]) -> tuple[StreamPoint, ...]:
        """Per channel, where to read again to see every tuple with ts >= its horizon."""
        found = []
        for (channel, known), horizon in zip(enumerate(self._start.window), horizons, strict=True):
            if horizon < self._floor:
                # What a snapshot spared us to read again, the channels were never shown.
                found.append(known)
            else:
                point = self._channels.point(channel, horizon, self.position)
                found.append(StreamPoint(point.offset, point.max_ts))
        return tuple(found)

    def horizons(self, engine: TaskEngine) -> list[int]:
        """The horizon of each channel now."""
        return [engine.horizon(self._stream)] * len(self._start.points)

    def commit_message(self, engine: TaskEngine, fingerprint: str, epoch: int, lanes: int, plan_version: int) -> Commit:
        """What to commit with `position`."""
        points = self.points(engine, self.horizons(engine))
        self._channels.forget(engine.horizon(self._stream))
        self.needed = min(point.offset for point in points)
        return Commit(fingerprint, epoch, engine.cut, plan_version, lanes, points)

    def watermark(self, engine: TaskEngine) -> int:
        """The least watermark of its channels; -1 before the first block of one."""
        return min(engine.partition_watermark(*place) for place in self.inputs)

    def set_idle(self, engine: TaskEngine, idle: bool) -> None:
        """Exclude the lane from the watermark while others replay, or include it again."""
        self.idle = idle
        for place in self.inputs:
            engine.set_idle(*place, idle)
