"""One life of a group's task: it consumes, dies, and a successor reads again what it still needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from operators.groups.sharing import group_engine
from schemas.columns import Batch
from schemas.groups import streams_of
from schemas.query import Query
from tests.feeding import offsets_of, partitions_of, to_batch
from tests.group_cases import GroupCase


class GroupLife:
    """An engine and how far each partition has been consumed.

    Args:
        queries: those that run at first.
        since: what `add` told of them in former lives.
        options: of `group_engine`.

    Attributes:
        at: consumed of each partition.
    """

    def __init__(
        self, case: GroupCase, queries: Iterable[Query], since: Mapping[str, Mapping[str, int]], **options: Any
    ) -> None:
        self.case = case
        self._streams = {stream.name: stream for stream in streams_of(case.queries)}
        self.engine = group_engine(
            list(queries),
            streams=list(self._streams.values()),
            partitions=partitions_of(case.rows),
            since=since,
            **options,
        )
        self.engine.record_repeats()
        self.at = {(name, p): 0 for name, parts in case.rows.items() for p in range(len(parts))}
        self.repeats: dict[str, list[int]] = {s.name: [] for s in self._streams.values() if s.deduplicate}

    def _push(self, name: str, p: int, begin: int, stop: int) -> None:
        """Push rows begin .. stop of a partition under their log offsets."""
        rows = self.case.rows[name][p][begin:stop]
        if rows:
            stream = self._streams[name]
            self.engine.push(name, p, to_batch(stream, rows), offsets_of(stream, rows, begin))
        self.at[name, p] = max(self.at[name, p], begin + len(rows))

    def turn(self, size: int, *, last: bool = False) -> Mapping[str, Batch]:
        """Consume a little of every partition, or all of the rest, then advance as far as the watermark allows."""
        for (name, p), begin in list(self.at.items()):
            self._push(name, p, begin, len(self.case.rows[name][p]) if last else begin + size)
            if last:
                self.engine.close(name, p)
        found = self.engine.advance()
        for name, places in self.engine.take_repeats().items():
            self.repeats[name] += places.tolist()
        return found

    def points(self) -> dict[tuple[str, int], tuple[int, int]]:
        """By partition where a successor reads on from, no more than the horizons say, and the clock there."""
        found = {}
        for name, p in self.at:
            point = self.engine.replay_point(name, p, self.engine.replay_horizon(name))
            found[name, p] = point.offset, point.max_ts
        return found

    def read_again(
        self,
        at: Mapping[tuple[str, int], int],
        points: Mapping[tuple[str, int], tuple[int, int]],
        cut: int,
        repeats: Mapping[str, list[int]],
    ) -> None:
        """Stand where the dead one stood, which had found these repeats."""
        for name, places in repeats.items():
            self.repeats[name] = list(places)
            self.engine.resume_repeats(name, np.array(places, np.int64), cut)
        for (name, p), position in at.items():
            offset, max_ts = points[name, p]
            self.engine.set_clock(name, p, max_ts)
            self._push(name, p, offset, position)
            self.at[name, p] = position
        self.engine.advance(cut)
