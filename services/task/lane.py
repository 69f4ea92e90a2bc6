"""One input partition of a task: decodes its records, feeds the engine, and knows how to be read again.

A topic that two streams declare is read once and decoded for each. All that a lane does to the engine is a
function of the log and of `floors`, so a replay from `replay_points` repeats it exactly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from operators.data.watermark import END
from operators.distributed.edge_writer import positions
from operators.distributed.replay_history import History
from schemas.codecs.decoded import Decoded
from schemas.columns import I64, Batch, Mask
from schemas.errors import InvariantError
from schemas.messages.commits import MAX_FLOOR_BYTES, UNSEEN, Commit, Floor, StreamPoint, floor_bytes, needed_floors
from schemas.query import Query, Stream
from services.delivery.epoch_output import Letters
from services.kafka.records import RecordBatch
from services.kafka.topics import Lane as LaneKey
from services.process.decoders import decoder_of
from services.recovery.starting_point import LaneStart
from services.task.engine import TaskEngine


class InputLane:
    """One partition.

    Attributes:
        position: the next record to take.
        live: records before it were committed by an earlier life of the task; while `position < live` the
            lane replays.
        held: batches that came while other lanes still replay.
        idle: it was silent and does not hold the watermark back.
    """

    def __init__(
        self,
        key: LaneKey,
        query: Query,
        start: LaneStart,
        floor: int,
        positions: Mapping[str, str] | None = None,
        kept: Mapping[str, int] | None = None,
    ) -> None:
        """Args:
        positions: by stream, the column that a tuple's position in the log is to be put into.
        kept: by stream, how long before the cut replay points are to reach, where the engine's windows are shorter.
        """
        self.key = key
        self._positions = positions or {}
        self._kept = kept or {}
        self.streams = tuple(stream for stream in query.streams() if stream.topic == key[0])
        self.position = start.offset
        self.live = start.live
        self.held: deque[RecordBatch] = deque()
        self.idle = False
        self._floor = floor
        self._start = start
        self._floors: list[list[Floor]] = [list(point.floors) for point in start.points]
        self._histories = [History() for _ in self.streams]
        self._decoders = [decoder_of(self._declared(stream)) for stream in self.streams]
        self._ranged = [
            all(s.window.kind == "RANGE" for s in query.sources if s.stream == stream) for stream in self.streams
        ]

    def _declared(self, stream: Stream) -> Stream:
        """The stream without the column that no record has."""
        own = self._positions.get(stream.name)
        return replace(stream, fields=tuple(field for field in stream.fields if field.name != own))

    @property
    def inputs(self) -> tuple[tuple[str, int], ...]:
        """The engine's (stream, partition) pairs that it feeds."""
        return tuple((stream.name, self.key[1]) for stream in self.streams)

    @property
    def replaying(self) -> bool:
        """True while records that were taken before are read again."""
        return self.position < self.live

    @property
    def may_idle(self) -> bool:
        """False while the commit message could not bear the consequences of another idle period."""
        return sum(map(floor_bytes, self._floors)) < MAX_FLOOR_BYTES

    def restore_clocks(self, engine: TaskEngine) -> None:
        """Set the engine's clocks to where reading begins."""
        for stream, point in zip(self.streams, self._start.points, strict=True):
            if point.max_ts != UNSEEN:
                engine.set_clock(stream.name, self.key[1], point.max_ts)

    def replay(self, engine: TaskEngine, batch: RecordBatch) -> int:
        """Feed records that were taken before: nothing is reported, what was refused is refused again.

        Returns:
            tuples taken.
        """
        taken = 0
        for ordinal, stream in enumerate(self.streams):
            part = batch.since(self._start.points[ordinal].offset)
            if not len(part):
                continue
            decoded = self._decode(ordinal, part)
            offsets = part.offsets()[decoded.rows]
            floors = [floor for floor in self._floors[ordinal] if floor.cut > self._floor]
            bounds = np.searchsorted(offsets, [floor.offset for floor in floors]).tolist()
            for begin, stop, floor in zip(
                [0, *bounds], [*bounds, len(offsets)], [self._floor, *(f.cut for f in floors)], strict=True
            ):
                if stop > begin:
                    rows = self._placed(stream, decoded.batch.slice(begin, stop), offsets[begin:stop])
                    before = engine.partition_watermark(stream.name, self.key[1])
                    late = self._push(engine, ordinal, rows, offsets[begin:stop], floor)
                    odd = late & ~_late_by_clock(rows.ts, before, stream.disorder_ms)
                    if odd.any():
                        raise InvariantError(
                            f"replay of {self.key[0]}[{self.key[1]}] refused offset {offsets[begin:stop][odd][0]} "
                            f"at cut {engine.cut}, which was taken before"
                        )
                    taken += len(rows)
        self._move(batch)
        return taken

    def take(self, engine: TaskEngine, batch: RecordBatch, letters: Letters) -> int:
        """Feed new records; late tuples and records that are no tuples become letters.

        Returns:
            tuples decoded.
        """
        taken = 0
        for ordinal, stream in enumerate(self.streams):
            if not len(batch):
                continue
            decoded = self._decode(ordinal, batch)
            for dead in decoded.dead:
                letters.add_dead(batch, dead.row, stream.name, dead.reason)
            rows = decoded.batch
            if not len(rows):
                continue
            offsets = batch.offsets()[decoded.rows]
            rows = self._placed(stream, rows, offsets)
            before = engine.partition_watermark(stream.name, self.key[1])
            late = self._push(engine, ordinal, rows, offsets, 0)
            if late.any():
                self._refused(engine, ordinal, rows, late, before, offsets)
                idle = late & ~_late_by_clock(rows.ts, before, stream.disorder_ms)
                for row in np.flatnonzero(late).tolist():
                    letters.add_late(batch, int(decoded.rows[row]), stream.name, bool(idle[row]))
            taken += len(rows)
            self.idle = False
        self._move(batch)
        return taken

    def _push(self, engine: TaskEngine, ordinal: int, rows: Batch, offsets: I64, floor: int) -> Mask:
        name, number = self.streams[ordinal].name, self.key[1]
        if name not in self._kept:
            return engine.push(name, number, rows, offsets, floor=floor)
        # What the clock stands at is said of the end of all that was pushed.
        before = engine.replay_point(name, number, END).max_ts
        late = engine.push(name, number, rows, offsets, floor=floor)
        after = engine.replay_point(name, number, END).max_ts
        self._histories[ordinal].remember(int(offsets[0]), before, after)
        return late

    def _placed(self, stream: Stream, rows: Batch, offsets: I64) -> Batch:
        """Tuples with their positions, where these are asked for."""
        own = self._positions.get(stream.name)
        if own is None:
            return rows
        return Batch(rows.ts, {**rows.columns, own: positions(self.key[1], offsets)})

    def _refused(self, engine: TaskEngine, ordinal: int, rows: Batch, late: Mask, before: int, offsets: I64) -> None:
        """Remember what only the task's progress, not the log, made late."""
        idle = late & ~_late_by_clock(rows.ts, before, self.streams[ordinal].disorder_ms)
        floors = self._floors[ordinal]
        if idle.any() and (not floors or floors[-1].cut < engine.cut):
            floors.append(Floor(int(offsets[int(np.argmax(idle))]), engine.cut))

    def _decode(self, ordinal: int, batch: RecordBatch) -> Decoded:
        times = batch.timestamps() if self.streams[ordinal].timestamp is None else None
        return self._decoders[ordinal].decode_values(batch.values(), times)

    def _move(self, batch: RecordBatch) -> None:
        if batch.start != self.position:
            raise InvariantError(
                f"{self.key[0]}[{self.key[1]}]: batch starts at offset {batch.start}, next is {self.position}"
            )
        self.position = batch.next_offset

    def points(self, engine: TaskEngine, horizons: Sequence[int]) -> tuple[StreamPoint, ...]:
        """Per stream, where to read again to see every tuple with ts >= its horizon."""
        out = []
        for ordinal, (stream, horizon) in enumerate(zip(self.streams, horizons, strict=True)):
            # What a snapshot spared us to read again, the engine was never shown.
            known = self._start.window if horizon < self._floor else self._start.points
            start = known[ordinal]
            point = engine.replay_point(stream.name, self.key[1], horizon)
            if stream.name in self._kept:
                point = self._histories[ordinal].point(horizon) or point
            # Before the first push the engine knows no offset.
            from_start = horizon < self._floor or point.offset <= start.offset
            offset, max_ts = (start.offset, start.max_ts) if from_start else (point.offset, point.max_ts)
            floors = needed_floors(self._floors[ordinal], offset, horizon if self._ranged[ordinal] else 0)
            out.append(StreamPoint(offset, max_ts, floors))
        return tuple(out)

    def horizons(self, engine: TaskEngine) -> list[int]:
        """The horizon of each stream now."""
        cut = min(engine.cut, engine.hold)
        return [
            max(cut - self._kept[s.name], 0) if s.name in self._kept else engine.horizon(s.name) for s in self.streams
        ]

    def commit_message(self, engine: TaskEngine, fingerprint: str, epoch: int, lanes: int, plan_version: int) -> Commit:
        """What to commit with `position`; also drops floors that nothing will ask for."""
        horizons = self.horizons(engine)
        points = self.points(engine, horizons)
        for history, horizon in zip(self._histories, horizons, strict=True):
            history.forget(horizon)
        self._floors = [list(point.floors) for point in points]
        return Commit(fingerprint, epoch, engine.cut, plan_version, lanes, points)

    def watermark(self, engine: TaskEngine) -> int:
        """The least watermark of its streams; -1 before the first tuple of one."""
        return min(engine.partition_watermark(stream.name, self.key[1]) for stream in self.streams)

    def set_idle(self, engine: TaskEngine, idle: bool) -> None:
        """Exclude the lane from the watermark, or include it again."""
        self.idle = idle
        for stream in self.streams:
            engine.set_idle(stream.name, self.key[1], idle)


def _late_by_clock(ts: I64, watermark_before: int, disorder_ms: int) -> Mask:
    """(n,) bool: late by the partition's own clock, whose watermark was `watermark_before` the first row."""
    before = np.full(len(ts), watermark_before, np.int64)
    np.maximum(before[1:], np.maximum.accumulate(ts)[:-1] - disorder_ms, out=before[1:])
    return ts < before
