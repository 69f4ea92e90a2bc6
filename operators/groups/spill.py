"""The shared operator within a memory budget: source tuples leave memory by age, what they owe is settled later.

The operator keeps source tuples and no intermediate results, and anything else that it keeps follows from those. So
what leaves are source tuples: when memory is beyond the budget, the oldest of all streams, those before one event time,
as compressed and checksummed blocks with every column that the stores keep. What stays is what a shorter window would
hold: new tuples go on meeting it at once. Nothing comes back. (The state-spill paper moves partition groups, which
queries without a common equality do not have; by age no query needs one.)

What is owed, by marks: every part on disk has `until`, the cut at which it left. A combination whose latest component
has ts t was found in its time if t < until for all its parts, since tuples leave between slices; and is owed else. All
results up to a time `settled` have been given. So exactly those are owed that have `settled <= t` and some component
with `until <= t`. Settling up to another time (`operators.groups.rounds`) gives these and moves `settled`: each result
once.

It must come before a tuple is forgotten that may still be part of what is owed. So while something is on disk the
stores forget only what was dead at `settled`, whatever the cut; tuples that have died since leave for disk as the
oldest do.

Known limits: memory holds at least a slice. Streams with long windows leave as readily as those with short ones, and
tables stay.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from operators.groups.settling import LEAST_BLOCK_TUPLES, GroupSpillCounters, Mark, Part, Settlement, times_of
from operators.juggler.sources import GroupSources
from operators.spill.block_store import BlockStore
from operators.spill.part import Reader, Writer
from operators.store import SourceStore
from operators.tuples import FOREVER
from operators.watermark import END
from schemas.columns import Batch
from schemas.groups import QueryGroup

STAYS = 0.5
"""Of the budget, what is left in memory when it was exceeded."""
STAYS_BESIDE = 0.25
"""And what is left while something is settled, for which there is to be room."""
BLOCK_SHARE = 0.6
"""Of the budget, what the blocks of one choice take together, if their tuples take as much as those in memory did."""
PART_SHARE = 0.1
"""Of what the blocks of one choice take, what leaves as one part: blocks, which are made of whole parts, are full."""
ROUND_CHOICES = 2
"""What is settled together are so many times the tuples of one choice at least, or blocks would be half empty."""


class GroupSpill:
    """What a shared operator has on disk.

    Args:
        limit_bytes: of the operator and its stores.

    Attributes:
        settled: all results before this have been given; None while nothing is on disk.
    """

    def __init__(self, limit_bytes: int, blocks: BlockStore) -> None:
        self.limit_bytes = limit_bytes
        self.counters = GroupSpillCounters()
        self.settled: Mark | None = None
        self._writer = Writer(blocks)
        self._reader = Reader(blocks)
        self._parts: dict[str, list[Part]] = {}
        # Where tuples have left up to, ascending.
        self._left: list[Mark] = []
        # Tuples that may be read back at once.
        self._most = LEAST_BLOCK_TUPLES

    # --- What leaves ------------------------------------------------------------------------------------

    @property
    def on_disk_tuples(self) -> int:
        """Tuples on disk now."""
        return sum(part.hi - part.lo for parts in self._parts.values() for part in parts)

    @property
    def written_bytes(self) -> int:
        """As stored, so far."""
        return self._writer.written_bytes

    def kept_from(self, cut: int) -> int:
        """Tuples that are dead at this time may be forgotten, though they be needed before `cut`."""
        return cut if self.settled is None else min(cut, self.settled.ts)

    def leave(self, sources: GroupSources, cut: int, used_bytes: int, stays: float = STAYS) -> bool:
        """Let the oldest tuples leave when everything before `cut` was processed; False where there are none.

        Args:
            stays: how much of the budget is to be left.

        Raises:
            StateError: they could not be written.
        """
        streams = [stream.name for stream in sources.query.streams()]
        times = {name: times_of(sources.stores[name]) for name in streams}
        every = np.sort(np.concatenate([np.zeros(0, np.int64), *times.values()]))
        if not len(every):
            return False
        most = max(LEAST_BLOCK_TUPLES, int(BLOCK_SHARE * self.limit_bytes * len(every) / max(used_bytes, 1)))
        # With little in memory tuples seem larger than they are.
        self._most = most if stays >= STAYS else max(self._most, most)
        stay = min(STAYS, stays * self.limit_bytes / max(used_bytes, 1))
        end = int(every[len(every) - 1 - int(stay * (len(every) - 1))]) if stay * len(every) >= 1 else FOREVER
        # Those of one ts leave together, and some must.
        end = min(end if end > every[0] else int(every[0]) + 1, cut)
        self.settled = self.settled or here(sources, cut)
        for name in streams:
            count = int(np.searchsorted(times[name], end))
            if count:
                self._write(name, sources.stores[name], count, cut)
                self._tell(sources, name)
        self._left.append(Mark(end, {name: sources.stores[name].lo for name in streams}))
        self.counters.spills += 1
        return True

    def _write(self, name: str, store: SourceStore, count: int, cut: int) -> None:
        batch = store.read(store.lo, store.lo + count)
        beside = {column: store.gather(column, np.arange(store.lo, store.lo + count)) for column in store.horizons}
        columns = {column: values for column, values in batch.columns.items() if column != "_ts"}
        batch = Batch(batch.ts, columns | beside)
        at, step = 0, max(LEAST_BLOCK_TUPLES, int(PART_SHARE * self._most))
        for begin in range(0, count, step):
            some = batch.slice(begin, min(begin + step, count))
            for piece in self._writer.write(name, some, np.full(len(some), FOREVER)):
                ts = batch.ts[at : at + piece.rows]
                lo = store.lo + at
                part = Part(lo, lo + piece.rows, int(ts[0]), int(ts[-1]), cut, piece)
                self._parts.setdefault(name, []).append(part)
                at += piece.rows
        self.counters.spilled_tuples += count
        store.leave(store.lo + count)

    def _tell(self, sources: GroupSources, name: str) -> None:
        """Let the stores know what is known of a stream's rows on disk."""
        sources.away[name] = [(part.lo, part.hi, part.most) for part in self._parts.get(name, ())]

    # --- What is owed -----------------------------------------------------------------------------------

    def dead_tuples(self, sources: GroupSources, cut: int) -> int:
        """Of those on disk, how many meet nothing from `cut` on, to which everything was processed."""
        at = here(sources, cut)
        return sum(p.hi - p.lo for name, parts in self._parts.items() for p in parts[: self._dead(sources, name, at)])

    def behind(self, sources: GroupSources, cut: int) -> int:
        """How many tuples have come before `cut` since `settled`."""
        return 0 if self.settled is None else here(sources, cut).since(self.settled)

    def left_until(self, cut: int) -> int:
        """Up to where tuples have left since `settled`; `cut` where none have."""
        since = -FOREVER if self.settled is None else self.settled.ts
        return self._left[-1].ts if self._left and self._left[-1].ts > since else cut

    def settlement(
        self, group: QueryGroup, since: Mapping[str, Mapping[str, int]], sources: GroupSources, cut: int, end: int
    ) -> Settlement | None:
        """The next results that are owed, of those before `end`: up to where tuples have left together, so many of them
        that blocks are full, or to `end`. None where nothing is owed.

        Args:
            cut: everything before this has been processed.
        """
        if self.settled is None or self.settled.ts >= end:
            return None
        marks = [mark for mark in self._left if self.settled.ts < mark.ts <= end]
        if end == cut or not marks:
            marks.append(here(sources, cut))
        to = next((mark for mark in marks if mark.since(self.settled) >= ROUND_CHOICES * self._most), marks[-1])
        self.counters.settlements += 1
        return Settlement(
            self._parts, self._reader, self._most, self.settled, to, group, since, sources, self.counters
        )

    def forget(self, sources: GroupSources, to: Mark) -> None:
        """Everything before this was settled: drop what is dead."""
        for name in list(self._parts):
            parts = self._parts[name]
            dead = self._dead(sources, name, to) if name in sources.stores and to.ts != END else len(parts)
            self._writer.forget(tuple(part.piece for part in parts[:dead]))
            self._parts[name] = parts[dead:]
            self._tell(sources, name)
        self._parts = {name: parts for name, parts in self._parts.items() if parts}
        self.settled = to if self._parts else None
        self._left = [mark for mark in self._left if mark.ts > to.ts]

    def _dead(self, sources: GroupSources, name: str, at: Mark) -> int:
        """How many parts of a stream, the first ones, meet nothing from a place on."""
        ts, row = sources.needed_from(name, at.ts, at.rows.get(name, -FOREVER))
        parts = self._parts[name]
        alive = (n for n, part in enumerate(parts) if part.most >= ts or part.hi > row)
        return next(alive, len(parts))


def here(sources: GroupSources, cut: int) -> Mark:
    """Where a group has come to when everything before `cut` was processed."""
    return Mark(cut, {stream.name: sources.stores[stream.name].hi for stream in sources.query.streams()})
