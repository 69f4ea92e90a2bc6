"""Feeds one input partition to a task's engine: decodes its records, and remembers where to read again after a crash.

`services.task.context` makes one `InputLane` per partition of a source. A topic that two streams declare is read once
and decoded for each. Everything that a lane does to the engine is a function of the log and of the `floors` in commit
messages, so a replay from the committed points repeats it exactly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from operators.data.positions import positions
from operators.data.watermark import END
from operators.distributed.replay_history import ReplayHistory
from operators.engine.intake import LateRows
from schemas.codecs.decoded import Decoded
from schemas.columns import I64, Batch, Mask
from schemas.errors import InvariantError
from schemas.messages.commits import MAX_FLOOR_BYTES, UNSEEN, Commit, Floor, StreamPoint, floor_bytes, needed_floors
from schemas.query import Query, Stream
from services.delivery.epoch_output import RejectedRecords
from services.formats.decoders import Decoders
from services.kafka.records import RecordBatch
from services.kafka.topics import Lane as LaneKey
from services.recovery.starting_point import LaneStart
from services.task.program import TaskEngine


class InputLane:
    """One partition.

    Attributes:
        key: topic and partition.
        streams: the streams that read the topic.
        position: offset of the next record to take.
        replay_end: an earlier incarnation has committed the records before this offset; while `position < replay_end`
            the lane replays.
        retained: batches that arrived while other lanes still replay.
        idle: True if the partition was silent and does not hold the watermark back.
        waits_for: why its next record cannot be decoded yet; empty if nothing is known to prevent it.
    """

    def __init__(
        self,
        key: LaneKey,
        query: Query,
        start: LaneStart,
        floor: int,
        positions: Mapping[str, str] | None = None,
        kept: Mapping[str, int] | None = None,
        decoders: Decoders | None = None,
    ) -> None:
        """Args:
        positions: by stream, the column that receives a tuple's position in the log.
        kept: by stream, how far (ms) replay points must reach back from the cut, if the engine's windows are shorter.
        """
        self.key = key
        self._positions = positions or {}
        self._kept = kept or {}
        self.streams = tuple(stream for stream in query.streams() if stream.topic == key[0])
        self._joined = [stream.name for stream in query.joined_streams()]
        self.position = start.offset
        self.replay_end = start.replay_end
        self.retained: deque[RecordBatch] = deque()
        self.idle = False
        self.waits_for = ""
        self._floor = floor
        self._start = start
        self._floors: list[list[Floor]] = [list(point.floors) for point in start.points]
        self._histories = [ReplayHistory() for _ in self.streams]
        self._decoders = [(decoders or Decoders()).records_of(self._declared(stream)) for stream in self.streams]
        self._time_windowed = [
            not stream.is_versioned and all(s.window.kind == "RANGE" for s in query.sources if s.stream == stream)
            for stream in self.streams
        ]

    def _declared(self, stream: Stream) -> Stream:
        """The stream without the column that no record has."""
        own = self._positions.get(stream.name)
        return replace(stream, fields=tuple(field for field in stream.fields if field.name != own))

    @property
    def inputs(self) -> tuple[tuple[str, int], ...]:
        """The engine's (stream, partition) pairs that the lane feeds."""
        return tuple((stream.name, self.key[1]) for stream in self.streams)

    @property
    def replaying(self) -> bool:
        """True while the lane reads again what an earlier incarnation took."""
        return self.position < self.replay_end

    @property
    def may_idle(self) -> bool:
        """False while the commit message has no room for the floors of another idle period."""
        return sum(map(floor_bytes, self._floors)) < MAX_FLOOR_BYTES

    def restore_clocks(self, engine: TaskEngine) -> None:
        """Set the engine's clocks to the start of reading."""
        for stream, point in zip(self.streams, self._start.points, strict=True):
            if point.max_ts != UNSEEN:
                engine.set_clock(stream.name, self.key[1], point.max_ts)

    def replay(self, engine: TaskEngine, batch: RecordBatch) -> int:
        """Feed records that an earlier incarnation took; late tuples are late again, and nothing is reported.

        Returns:
            The number of tuples taken.

        Raises:
            SchemaUnavailable: a record's schema is not known yet; nothing is taken.
        """
        taken = 0
        parts = [batch.since(point.offset) for point in self._start.points]
        for ordinal, decoded in enumerate([self._decode(*part) for part in enumerate(parts)]):
            part, stream = parts[ordinal], self.streams[ordinal]
            if not len(part):
                continue
            offsets = part.offsets()[decoded.rows]
            floors = self._floors[ordinal]
            bounds = np.searchsorted(offsets, [floor.offset for floor in floors]).tolist()
            for begin, stop, refused in zip(
                [0, *bounds], [*bounds, len(offsets)], [0, *(f.cut for f in floors)], strict=True
            ):
                if stop > begin:
                    rows = self._with_positions(stream, decoded.batch.slice(begin, stop), offsets[begin:stop])
                    overtaken = self._push(engine, ordinal, rows, offsets[begin:stop], refused).overtaken
                    if overtaken.any():
                        offset = offsets[begin:stop][overtaken][0]
                        raise InvariantError(
                            f"replay of {self.key[0]}[{self.key[1]}] refused offset {offset} "
                            f"at cut {engine.cut}, which was taken before"
                        )
                    taken += len(rows)
        self._advance_to(batch)
        return taken

    def decode(self, batch: RecordBatch) -> Iterator[tuple[str, Batch]]:
        """The tuples of records that are not taken yet, by stream.

        Raises:
            SchemaUnavailable: a record's schema is not known yet.
        """
        for ordinal, stream in enumerate(self.streams):
            yield stream.name, self._decode(ordinal, batch).batch

    def take(self, engine: TaskEngine, batch: RecordBatch, rejected: RejectedRecords) -> int:
        """Feed new records; late tuples and dead letters are added to `rejected`.

        Returns:
            The number of tuples decoded.

        Raises:
            SchemaUnavailable: a record's schema is not known yet; nothing is taken.
        """
        taken = 0
        for ordinal, decoded in enumerate([self._decode(o, batch) for o in range(len(self.streams))]):
            stream = self.streams[ordinal]
            for dead in decoded.dead:
                rejected.add_dead(batch, dead.row, stream.name, dead.reason)
            rows = decoded.batch
            if not len(rows):
                continue
            offsets = batch.offsets()[decoded.rows]
            rows = self._with_positions(stream, rows, offsets)
            late, overtaken = self._push(engine, ordinal, rows, offsets, None)
            if late.any():
                self._note_overtaken(engine, ordinal, overtaken, offsets)
                # The tuples of one record are late together.
                for row, first in zip(*np.unique(decoded.rows[late], return_index=True), strict=True):
                    rejected.add_late(batch, int(row), stream.name, bool(overtaken[late][first]))
            taken += len(rows)
            self.idle = False
        self._advance_to(batch)
        return taken

    def _push(self, engine: TaskEngine, ordinal: int, rows: Batch, offsets: I64, refused: int | None) -> LateRows:
        """Feed tuples; in a replay, those with ts < refused were refused before."""
        name, number = self.streams[ordinal].name, self.key[1]
        # A snapshot has no versions of tables' rows.
        floor = refused if refused is None or self.streams[ordinal].is_versioned else max(self._floor, refused)
        remembered = refused if self.streams[ordinal].deduplicate else None
        if name not in self._kept:
            return engine.push(name, number, rows, offsets, floor=floor, remembered=remembered)
        # A replay point at END holds the clock after everything that was pushed.
        before = engine.replay_point(name, number, END).max_ts
        found = engine.push(name, number, rows, offsets, floor=floor, remembered=remembered)
        after = engine.replay_point(name, number, END).max_ts
        self._histories[ordinal].remember(int(offsets[0]), before, after)
        return found

    def _with_positions(self, stream: Stream, rows: Batch, offsets: I64) -> Batch:
        """Add the column of positions, if the stream has one."""
        own = self._positions.get(stream.name)
        if own is None:
            return rows
        return Batch(rows.ts, {**rows.columns, own: positions(self.key[1], offsets)})

    def _note_overtaken(self, engine: TaskEngine, ordinal: int, overtaken: Mask, offsets: I64) -> None:
        """Add a floor if tuples were late only by the task's progress, which a replay of the log would not repeat."""
        floors = self._floors[ordinal]
        if overtaken.any() and (not floors or floors[-1].cut < engine.cut):
            floors.append(Floor(int(offsets[int(np.argmax(overtaken))]), engine.cut))

    def _decode(self, ordinal: int, batch: RecordBatch) -> Decoded:
        return self._decoders[ordinal].decode(batch)

    def _advance_to(self, batch: RecordBatch) -> None:
        if batch.start != self.position:
            raise InvariantError(
                f"{self.key[0]}[{self.key[1]}]: batch starts at offset {batch.start}, next is {self.position}"
            )
        self.position = batch.next_offset

    def points(self, engine: TaskEngine, horizons: Sequence[int]) -> tuple[StreamPoint, ...]:
        """Per stream, where to start reading again to see every tuple with ts >= its horizon."""
        out = []
        for ordinal, (stream, horizon) in enumerate(zip(self.streams, horizons, strict=True)):
            # The engine never saw the records that a snapshot replaced.
            known = self._start.window if horizon < self._floor else self._start.points
            start = known[ordinal]
            point = engine.replay_point(stream.name, self.key[1], horizon)
            if stream.name in self._kept:
                point = self._histories[ordinal].point(horizon) or point
            # Before the first push the engine knows no offset.
            from_start = horizon < self._floor or point.offset <= start.offset
            offset, max_ts = (start.offset, start.max_ts) if from_start else (point.offset, point.max_ts)
            known_from = horizon if self._time_windowed[ordinal] else 0
            if stream.is_versioned:
                # What held from where the task was then is older than every tuple that can be looked up again.
                known_from = min(map(engine.horizon, self._joined))
            floors = needed_floors(self._floors[ordinal], offset, known_from)
            out.append(StreamPoint(offset, max_ts, floors))
        return tuple(out)

    def points_at(self, engine: TaskEngine, cut: int) -> tuple[StreamPoint, ...]:
        """Per stream, where to start reading again if all tuples before a cut are in a snapshot. Versions of tables'
        rows, and what repeats repeat, are in none."""
        horizons = (max(cut - stream.deduplicate_within_ms, 0) for stream in self.streams)
        known = zip(self.streams, horizons, strict=True)
        return self.points(engine, [0 if stream.is_versioned else horizon for stream, horizon in known])

    def horizons(self, engine: TaskEngine) -> list[int]:
        """The current horizon of each stream."""
        found = [engine.replay_horizon(stream.name) for stream in self.streams]
        cut = min(engine.cut, engine.hold)
        # Pending results may need still older tuples than the windows of the whole query do.
        return [
            min(own, max(cut - self._kept[stream.name], 0)) if stream.name in self._kept else own
            for stream, own in zip(self.streams, found, strict=True)
        ]

    def commit_message(self, engine: TaskEngine, fingerprint: str, epoch: int, lanes: int, plan_version: int) -> Commit:
        """Make the message to commit with `position`; also drops floors that no recovery will need."""
        horizons = self.horizons(engine)
        points = self.points(engine, horizons)
        for history, horizon in zip(self._histories, horizons, strict=True):
            history.forget(horizon)
        self._floors = [list(point.floors) for point in points]
        return Commit(fingerprint, epoch, engine.cut, plan_version, lanes, points)

    def watermark(self, engine: TaskEngine) -> int:
        """The smallest watermark of the streams; -1 until each stream has had a tuple."""
        return min(engine.partition_watermark(stream.name, self.key[1]) for stream in self.streams)

    def set_idle(self, engine: TaskEngine, idle: bool) -> None:
        """Exclude the lane from the watermark, or include it again."""
        self.idle = idle
        for stream in self.streams:
            engine.set_idle(stream.name, self.key[1], idle)
