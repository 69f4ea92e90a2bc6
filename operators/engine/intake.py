"""The intake of a task: sorts arriving tuples into their total order, by (ts, partition, offset) within a stream.

Tuples wait in `Intake` until the task's watermark passes them. `Intake.take(cut)` returns, per stream, all tuples with
`ts < cut` sorted by (ts, partition, offset), without repeats (`operators.engine.repeats`). Each arriving chunk is
sorted once and its prefix is taken by slicing. Where many small ones wait, such as those of an hour of disorder, they
are merged. So the cost of an epoch hardly depends on how many tuples wait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from operators.data.watermark import END, NEVER, PartitionClock
from operators.engine.repeats import Deduplication
from schemas.columns import I64, Batch, Mask
from schemas.errors import InvariantError
from schemas.query import Stream


@dataclass(frozen=True, slots=True)
class ReplayPoint:
    """Where to start reading a partition again.

    Attributes:
        offset: the log offset.
        max_ts: the `max_ts` of the partition's clock just before it.
    """

    offset: int
    max_ts: int


class LateRows(NamedTuple):
    """Which of n pushed tuples were late, and why.

    A stream's late tuples are not taken. Those of a table are: they hold from the watermark on that they are behind.

    Attributes:
        late: (n,) bool.
        overtaken: (n,) bool: late although their own partition's clock had not passed them. The task had passed their
            ts while the partition was idle, so a replay of the log alone would not find them late.
    """

    late: Mask
    overtaken: Mask


@dataclass(slots=True)
class _Chunk:
    """Waiting tuples of one push, ascending by ts (ties in offset order); the first `start` rows are already taken."""

    batch: Batch
    start: int


@dataclass(frozen=True, slots=True)
class _Mark:
    """A stretch of the partition's history: its first offset, and the clock before and after it."""

    offset: int
    clock_before: int
    clock_after: int


MAX_MARKS = 4096
"""Stretches are merged beyond this many, so that the history for an endless window takes bounded memory."""

MERGED_CHUNKS = 64
"""At least so many waiting chunks are merged at once,"""

MERGED_TUPLES = 4096
"""and none beyond so many tuples: larger ones are few."""


class _Partition:
    """The clock, the waiting tuples and the history of one partition."""

    def __init__(self, stream: Stream) -> None:
        self.clock = PartitionClock(stream.disorder_ms)
        self.of_table = stream.is_versioned
        self._in_log_order = stream.in_log_order
        self.chunks: list[_Chunk] = []
        self._merge_at = MERGED_CHUNKS
        self.marks: list[_Mark] = []
        self.next_offset = 0

    def push(
        self, batch: Batch, offsets: I64 | None, cut: int, floor: int | None, remembered: int | None
    ) -> tuple[LateRows, int]:
        n = len(batch)
        if n == 0:
            return LateRows(np.zeros(0, np.bool_), np.zeros(0, np.bool_)), 0
        first = self.next_offset if offsets is None else int(offsets[0])
        self.next_offset = first + n if offsets is None else int(offsets[-1]) + 1
        before = self.clock.max_ts
        late = self.clock.observe(batch.ts)
        if self.of_table:
            kept, found = self._versions(batch, late, before, cut, floor)
        else:
            kept, found = self._tuples(batch, late, cut, floor or 0, remembered)
        self.clock.idle = False
        self._remember(_Mark(first, before, self.clock.max_ts))
        if len(kept):
            self.wait(_ascending(kept))
        return found, len(kept)

    def wait(self, batch: Batch) -> None:
        """Let tuples wait, ascending by ts. Cost: O(1) copies of a tuple in the long run."""
        self.chunks.append(_Chunk(batch, 0))
        if len(self.chunks) >= self._merge_at:
            self._merge()
            self._merge_at = max(2 * len(self.chunks), MERGED_CHUNKS)

    def _merge(self) -> None:
        """Merge small chunks with those that follow them."""
        found: list[list[Batch]] = []
        size = MERGED_TUPLES
        for chunk in self.chunks:
            rest = chunk.batch.slice(chunk.start, len(chunk.batch))
            size += len(rest)
            if size > MERGED_TUPLES:
                found.append([])
                size = len(rest)
            found[-1].append(rest)
        self.chunks = [_Chunk(_ascending(Batch.concat(some)), 0) for some in found]

    def _tuples(self, batch: Batch, late: Mask, cut: int, floor: int, remembered: int | None) -> tuple[Batch, LateRows]:
        """Return the tuples that are taken, and which are late; `late` says which are so by the clock."""
        in_time = ~late
        if floor > 0:
            late &= batch.ts >= floor
            taken = in_time & (batch.ts >= floor)
        else:
            taken = in_time
        overtaken = taken & (batch.ts < cut)
        if overtaken.any():
            late |= overtaken
            taken = taken & ~overtaken
        if remembered is not None and remembered < floor:
            taken = taken | in_time & (batch.ts >= remembered) & (batch.ts < floor)
        return batch if taken.all() else batch.take(taken), LateRows(late, overtaken)

    def _versions(self, batch: Batch, late: Mask, before: int, cut: int, floor: int | None) -> tuple[Batch, LateRows]:
        """Return the versions of a table's rows with the times from which they hold, and which are late.

        A late version holds from its partition's watermark on; one that the task has overtaken, from the cut on. Where
        the order of the log counts, a version with a lower ts than one before it holds from that one's on, and is not
        late.

        Args:
            before: the largest ts before them.
        """
        ts = batch.ts
        if late.any():
            seen = np.maximum(np.maximum.accumulate(ts), before)
            reached = np.concatenate(([before], seen[:-1])) - self.clock.disorder_ms
            ts = np.where(late, np.maximum(reached, 0), ts)
            if self._in_log_order:
                late = np.zeros(len(ts), np.bool_)
        if floor is not None:
            return Batch(np.maximum(ts, floor), batch.columns), LateRows(late, np.zeros(len(ts), np.bool_))
        overtaken = ts < cut
        return Batch(np.maximum(ts, cut), batch.columns), LateRows(late | overtaken, overtaken)

    def _remember(self, mark: _Mark) -> None:
        self.marks.append(mark)
        if len(self.marks) > MAX_MARKS:
            pairs = zip(self.marks[::2], [*self.marks[1::2], mark], strict=False)
            self.marks = [_Mark(a.offset, a.clock_before, b.clock_after) for a, b in pairs]

    def first_mark(self, horizon_ms: int) -> int:
        """Return the index of the first stretch that may have a tuple with ts >= horizon. `clock_after` ascends."""
        return bisect_left(self.marks, horizon_ms, key=lambda mark: mark.clock_after)

    def take(self, cut: int) -> list[Batch]:
        parts: list[Batch] = []
        rest: list[_Chunk] = []
        for chunk in self.chunks:
            n = len(chunk.batch)
            stop = n if cut == END else int(np.searchsorted(chunk.batch.ts, cut, side="left"))
            if stop > chunk.start:
                parts.append(chunk.batch.slice(chunk.start, stop))
                chunk.start = stop
            if chunk.start < n:
                rest.append(chunk)
        self.chunks = rest
        return parts


def _ascending(batch: Batch) -> Batch:
    """Return the tuples ascending by ts, at equal ts in their order."""
    if not (batch.ts[1:] < batch.ts[:-1]).any():
        return batch
    return batch.take(np.argsort(batch.ts, kind="stable").astype(np.int64))


class Intake:
    """Per-partition clocks and the tuples that wait for the watermark.

    Attributes:
        streams: the streams that are read.
        cut: all tuples with a smaller ts have been taken.
        pending_tuples: number of waiting tuples.
        late_tuples: number of tuples refused as late so far.
    """

    def __init__(self, streams: Sequence[Stream], partitions: Mapping[str, Sequence[int]]) -> None:
        self.streams = tuple(streams)
        self.cut = 0
        self.pending_tuples = 0
        self.late_tuples = 0
        self._deduplications = {s.name: Deduplication(s) for s in streams if s.deduplicate}
        self._within_ms = {s.name: s.deduplicate_within_ms for s in streams if s.deduplicate}
        self._parts: dict[str, dict[int, _Partition]] = {
            s.name: {p: _Partition(s) for p in sorted(partitions[s.name])} for s in streams
        }

    def _all(self) -> list[_Partition]:
        return [part for parts in self._parts.values() for part in parts.values()]

    def _part(self, stream: str, partition: int) -> _Partition:
        parts = self._parts.get(stream)
        if parts is None:
            raise InvariantError(f"no stream {stream!r}; the query reads {', '.join(self._parts)}")
        if partition not in parts:
            raise InvariantError(f"no partition {partition} of {stream!r}; this task reads {list(parts)}")
        return parts[partition]

    def push(
        self,
        stream: str,
        partition: int,
        batch: Batch,
        offsets: I64 | None = None,
        floor: int | None = None,
        remembered: int | None = None,
    ) -> LateRows:
        """Take tuples in arrival order.

        Args:
            offsets: (n,) int64 ascending log offsets; by default they continue from the last offset. With
                `record_repeats` they must be given.
            floor: for a replay: rows with ts below it advance the clock but are neither taken nor late; those of a
                table hold from then on. None where this is no replay.
            remembered: for a replay of a deduplicated stream: rows with ts from it on and below `floor`, which `cut`
                has passed, were taken before. They are only remembered as firsts. `floor` when None.
        """
        deduplication = self._deduplications.get(stream)
        if deduplication is not None and offsets is not None:
            batch = deduplication.with_positions(batch, partition, offsets)
        found, taken = self._part(stream, partition).push(batch, offsets, self.cut, floor, remembered)
        self.pending_tuples += taken
        self.late_tuples += int(np.count_nonzero(found.late))
        return found

    def insert(self, stream: str, partition: int, batch: Batch) -> None:
        """Take tuples, ascending by ts and none below `cut`, that a partition's clock has already passed."""
        if len(batch):
            self._part(stream, partition).wait(batch)
            self.pending_tuples += len(batch)

    def withdraw(self, stream: str, partition: int, useless: Callable[[Batch], Mask]) -> int:
        """Forget the waiting tuples of a partition for which `useless` is True; return how many. O(waiting tuples)."""
        part = self._part(stream, partition)
        gone = 0
        for chunk in part.chunks:
            rest = chunk.batch.slice(chunk.start, len(chunk.batch))
            lost = useless(rest)
            if lost.any():
                gone += int(np.count_nonzero(lost))
                chunk.batch, chunk.start = rest.take(~lost), 0
        part.chunks = [chunk for chunk in part.chunks if chunk.start < len(chunk.batch)]
        self.pending_tuples -= gone
        return gone

    def close(self, stream: str, partition: int) -> None:
        """Mark a partition as ended: it no longer holds the watermark back."""
        self._part(stream, partition).clock.closed = True

    def set_idle(self, stream: str, partition: int, idle: bool) -> None:
        """Exclude a silent partition from the watermark, or include it again."""
        self._part(stream, partition).clock.idle = idle

    def set_clock(self, stream: str, partition: int, max_ts: int) -> None:
        """Restore a partition's clock before a replay."""
        self._part(stream, partition).clock.max_ts = max_ts

    def partition_watermark(self, stream: str, partition: int) -> int:
        """Return the watermark of one partition; -1 before its first tuple."""
        return self._part(stream, partition).clock.watermark()

    def watermark(self) -> int:
        """Return the task's watermark: the smallest of the open partitions that are not idle, but at least `cut`.

        It is -1 while one of these has no tuple yet and nothing has been taken, and END when all partitions have ended.
        When all open partitions are idle, it is the largest of theirs: of those of streams, unless there are none. A
        table may have versions that hold from some future time on.
        """
        open_ = [p.clock for p in self._all() if not p.clock.closed]
        if not open_:
            return END
        marks = [clock.watermark() for clock in open_ if not clock.idle]
        if not marks:
            of_streams = [p.clock for p in self._all() if not p.clock.closed and not p.of_table]
            return max(self.cut, *(clock.watermark() for clock in of_streams or open_))
        low = min(marks)
        return low if low < 0 and self.cut == 0 else max(low, self.cut)

    def take(self, cut: int) -> dict[str, Batch]:
        """Take all waiting tuples with ts < cut, per stream, sorted by (ts, partition, offset), without repeats.

        Streams without such tuples are absent. Afterwards `self.cut` is at least `cut`.
        """
        out: dict[str, Batch] = {}
        for stream in self.streams:
            parts: list[Batch] = []
            for partition in self._parts[stream.name].values():
                parts += partition.take(cut)
            if not parts:
                continue
            batch = parts[0] if len(parts) == 1 else _ascending(Batch.concat(parts))
            self.pending_tuples -= len(batch)
            deduplication = self._deduplications.get(stream.name)
            if deduplication is not None:
                batch = deduplication.firsts(batch, cut)
                batch = batch.slice(int(np.searchsorted(batch.ts, self.cut, side="left")), len(batch))
                if not len(batch):
                    continue
            out[stream.name] = batch
        self.cut = max(self.cut, cut)
        return out

    # --- Repeats ------------------------------------------------------------------------------------

    @property
    def repeats(self) -> int:
        """Number of repeats dropped so far."""
        return sum(each.repeats for each in self._deduplications.values())

    def record_repeats(self) -> None:
        """From now on, keep the positions of repeats for `take_repeats`. To be called before any push."""
        for each in self._deduplications.values():
            each.records = True

    def resume_repeats(self, stream: str, positions: I64, until: int) -> None:
        """Before any push: restore what was decided about tuples with ts < until. Repeats are at these positions."""
        self._deduplications[stream].resume(positions, until)

    def take_repeats(self) -> dict[str, I64]:
        """Return, per deduplicated stream, the positions of repeats dropped since the last call, ascending."""
        return {name: each.take() for name, each in self._deduplications.items()}

    def repeats_from(self, stream: str, cut: int) -> int:
        """Return the smallest ts of firsts that tuples with ts >= cut can repeat; `cut` in streams without repeats."""
        return cut - self._within_ms.get(stream, 0)

    def repeats_bytes(self) -> int:
        """Return the bytes that remember firsts."""
        return sum(each.size_bytes() for each in self._deduplications.values())

    def take_versions(self, table: str, before: int) -> Batch | None:
        """Take the versions of a table with ts < before that none can precede any more; None without such versions."""
        parts = self._parts[table].values()
        until = min([before, *(part.clock.watermark() for part in parts if not part.clock.closed)])
        found = [piece for part in parts for piece in part.take(until)]
        if not found:
            return None
        batch = Batch.concat(found)
        self.pending_tuples -= len(batch)
        return batch.take(np.argsort(batch.ts, kind="stable").astype(np.int64))

    def replay_point(self, stream: str, partition: int, horizon_ms: int) -> ReplayPoint:
        """Return the latest known position from which reading again shows every tuple with ts >= horizon."""
        part = self._part(stream, partition)
        index = part.first_mark(horizon_ms)
        if index < len(part.marks):
            return ReplayPoint(part.marks[index].offset, part.marks[index].clock_before)
        return ReplayPoint(part.next_offset, part.clock.max_ts)

    def known_from(self, stream: str) -> int:
        """Return the smallest horizon for which `replay_point` covers the whole stream; NEVER for any horizon."""
        known = NEVER
        for part in self._parts[stream].values():
            before = part.marks[0].clock_before if part.marks else part.clock.max_ts
            known = max(known, before if before == NEVER else before + 1)
        return known

    def forget(self, stream: str, horizon_ms: int) -> None:
        """Drop the history of a stream that only horizons before `horizon_ms` would need."""
        for part in self._parts[stream].values():
            if part.marks and part.marks[0].clock_after < horizon_ms:
                del part.marks[: part.first_mark(horizon_ms)]


class IntakeMethods(ABC):
    """Base class of engines: the methods that an engine passes on to its `Intake`."""

    hold: int
    _intake: Intake

    @abstractmethod
    def horizon(self, stream: str) -> int:
        """Return the smallest ts of tuples of the stream that some window still needs."""

    def replay_horizon(self, stream: str) -> int:
        """Return the smallest ts of tuples of the stream that a restart needs: for windows, and to find repeats."""
        return max(min(self.horizon(stream), self._intake.repeats_from(stream, min(self.cut, self.hold))), 0)

    def record_repeats(self) -> None:
        """Keep the positions of repeats from now on. See `Intake.record_repeats`."""
        self._intake.record_repeats()

    def resume_repeats(self, stream: str, positions: I64, until: int) -> None:
        """Restore what was decided before. See `Intake.resume_repeats`."""
        self._intake.resume_repeats(stream, positions, until)

    def take_repeats(self) -> dict[str, I64]:
        """Return the positions of repeats since the last call. See `Intake.take_repeats`."""
        return self._intake.take_repeats()

    @property
    def cut(self) -> int:
        """Everything with a smaller ts has been processed."""
        return self._intake.cut

    @property
    def pending_tuples(self) -> int:
        """Tuples taken in that wait for the watermark."""
        return self._intake.pending_tuples

    def take_versions(self) -> int:
        """See `Engine.take_versions`; 0 for an engine that looks nothing up."""
        return 0

    def close(self, stream: str, partition: int) -> None:
        """Mark a partition as ended."""
        self._intake.close(stream, partition)

    def set_idle(self, stream: str, partition: int, idle: bool) -> None:
        """Exclude a silent partition from the watermark; a push includes it again."""
        self._intake.set_idle(stream, partition, idle)

    def set_clock(self, stream: str, partition: int, max_ts: int) -> None:
        """Restore a partition's clock before a replay."""
        self._intake.set_clock(stream, partition, max_ts)

    def watermark(self) -> int:
        """Return the watermark of all partitions, up to which `advance` may go; see `Intake.watermark`."""
        return self._intake.watermark()

    def partition_watermark(self, stream: str, partition: int) -> int:
        """Return the watermark of one partition; -1 before its first tuple."""
        return self._intake.partition_watermark(stream, partition)

    def replay_point(self, stream: str, partition: int, horizon_ms: int) -> ReplayPoint:
        """Return where to read a partition from, to see again every tuple with ts >= horizon.

        The engine only knows the part of the partition that it has seen, not the part below what it was restored to;
        see `Engine.restore`.
        """
        return self._intake.replay_point(stream, partition, horizon_ms)
