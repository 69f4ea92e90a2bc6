"""Deaths of a task: it consumes for some turns, dies, and a successor goes on from a snapshot or from the log alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from operators.data.positions import partition_and_offset
from operators.engine.intake import ReplayPoint
from operators.state.checkpoint import Block, blocks_by_time
from tests.cases import Case
from tests.feeding import engine_of, offsets_of, to_batch, to_rows


class Life:
    """One life of a task: an engine, how far each partition has been consumed, and what has been found to repeat."""

    def __init__(self, case: Case, **options: Any) -> None:
        self.case = case
        self.engine = engine_of(case, **options)
        self.engine.record_repeats()
        self.repeats: dict[str, list[int]] = {s.name: [] for s in case.query.streams() if s.deduplicate}
        self.at = {(name, p): 0 for name, parts in case.rows.items() for p in range(len(parts))}

    def is_versioned(self, name: str) -> bool:
        """Whether a source of rows is a table, whose versions are in no snapshot."""
        return next(s for s in self.case.query.streams() if s.name == name).is_versioned

    def push(self, name: str, p: int, begin: int, stop: int, floor: int | None = None) -> None:
        """Push rows begin .. stop of a partition under their log offsets."""
        stream = next(s for s in self.case.query.streams() if s.name == name)
        rows = self.case.rows[name][p][begin:stop]
        if rows:
            batch, offsets = to_batch(stream, rows), offsets_of(stream, rows, begin)
            remembered = 0 if name in self.repeats else None
            self.engine.push(name, p, batch, offsets, floor=floor, remembered=remembered)
        self.at[name, p] = max(self.at[name, p], begin + len(rows))

    def turn(self, size: int) -> list[dict[str, Any]]:
        """Consume a little of every partition, then advance as far as the watermark allows."""
        for (name, p), begin in list(self.at.items()):
            self.push(name, p, begin, begin + size)
        cut = self.engine.watermark()
        found = to_rows(self.engine.advance(cut)) if cut > self.engine.cut else []
        for name, places in self.engine.take_repeats().items():
            self.repeats[name] += places.tolist()
        return found

    def finish(self) -> list[dict[str, Any]]:
        """Consume the rest and close."""
        for (name, p), begin in list(self.at.items()):
            self.push(name, p, begin, len(self.case.rows[name][p]))
            self.engine.close(name, p)
        return to_rows(self.engine.advance())

    def points(self, cut: int) -> dict[tuple[str, int], ReplayPoint]:
        """Where to read on from a snapshot of `cut`, by stream and partition."""
        within = {s.name: s.deduplicate_within_ms for s in self.case.query.streams()}
        return {
            (name, p): self.engine.replay_point(name, p, 0 if self.is_versioned(name) else cut - within[name])
            for name, p in self.at
        }

    def resume(self, dead: Life, offsets: Mapping[tuple[str, int], int]) -> None:
        """Learn what the dead task has found to repeat from these offsets on."""
        for name, places in dead.repeats.items():
            parts, found = partition_and_offset(np.array(places, np.int64))
            needed = found >= np.array([offsets[name, p] for p in range(len(self.case.rows[name]))])[parts]
            self.engine.resume_repeats(name, np.array(places, np.int64)[needed], dead.engine.cut)
            self.repeats[name] = list(places)

    def replay_from(self, dead: Life, horizons: dict[str, int], floor: int) -> None:
        """Read again what the dead task had consumed, from its replay points."""
        points = {(name, p): dead.engine.replay_point(name, p, horizons[name]) for name, p in dead.at}
        self.resume(dead, {key: point.offset for key, point in points.items()})
        for (name, p), position in dead.at.items():
            point = points[name, p]
            self.engine.set_clock(name, p, point.max_ts)
            self.push(name, p, point.offset, position, floor)
            self.at[name, p] = position
        self.engine.advance(dead.engine.cut)

    def replay_from_snapshot(
        self, dead: Life, cut: int, blocks: Sequence[Block], points: Mapping[tuple[str, int], ReplayPoint]
    ) -> None:
        """Restore a snapshot of `cut`; read again what the dead task had consumed from `points` on. No snapshot has
        versions of tables, so all of theirs that come again are taken."""
        self.engine.restore(cut, blocks_by_time(blocks))
        self.resume(dead, {key: point.offset for key, point in points.items()})
        for (name, p), position in dead.at.items():
            self.engine.set_clock(name, p, points[name, p].max_ts)
            self.push(name, p, points[name, p].offset, position, floor=0 if self.is_versioned(name) else cut)
            self.at[name, p] = position
        self.engine.advance(dead.engine.cut)


def from_a_snapshot(case: Case, turns: Sequence[int], snapshots: int, successor: Case) -> list[dict[str, Any]]:
    """All that a task and its successor put out.

    Snapshots are incremental, lie at or before the last commit, and keep no block but those that `live_from` says
    are needed.

    Args:
        turns: how much of each partition is consumed before each advance; then the task dies.
        snapshots: after how many of the turns one is taken.
        successor: the same case, as the successor sees it: under another plan, say.
    """
    life = Life(case)
    got: list[dict[str, Any]] = []
    blocks: list[Block] = []
    cut = 0
    points: dict[tuple[str, int], Any] = {}
    for number, size in enumerate(turns):
        got += life.turn(size)
        if number < snapshots:
            checkpoint = life.engine.checkpoint()
            cut, live = checkpoint.cut, checkpoint.live_from
            blocks = [b for b in (*blocks, *checkpoint.blocks) if b.first_row + len(b.batch) > live[b.stream]]
            points = life.points(cut)
    born = Life(successor)
    if cut:
        born.replay_from_snapshot(life, cut, blocks, points)
    else:
        born.replay_from(life, {s.name: 0 for s in case.query.streams()}, floor=0)
    return [*got, *born.turn(3), *born.finish()]


def from_the_log(case: Case, turns: Sequence[int], successor: Case) -> list[dict[str, Any]]:
    """The same, with a successor that reads again no more than `horizon` says."""
    life = Life(case)
    got = [row for size in turns for row in life.turn(size)]
    born = Life(successor)
    born.replay_from(life, {s.name: life.engine.replay_horizon(s.name) for s in case.query.streams()}, floor=0)
    return [*got, *born.finish()]
