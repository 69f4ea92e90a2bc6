"""The shared operator within a memory budget: source tuples leave memory by age, what they owe is settled later.

The operator keeps source tuples and no intermediate results, and anything else that it keeps follows from those. So
what leaves are source tuples: when memory is beyond the budget, the oldest of all streams, those before one event time,
as compressed and checksummed blocks with every column that the stores keep. What stays is what a shorter window would
hold: new tuples go on meeting it at once. Nothing comes back. (The state-spill paper moves partition groups, which
queries without a common equality do not have; by age no query needs one.)

What is owed, by marks: every part on disk has `until`, the cut at which it left. A combination whose latest component
has ts t was found in its time if t < until for all its parts, since tuples leave between slices; and is owed else. All
results up to a time `settled` have been given. So exactly those are owed that have `settled <= t` and some component
with `until <= t`. Settling up to a cut (`operators.groups.settling`) gives these and moves `settled`: each result
once.

It must come before a tuple is forgotten that may still be part of what is owed. So while something is on disk the
stores forget only what was dead at `settled`, whatever the cut; tuples that have died since leave for disk as the
oldest do. It is time to settle when half of what is on disk is dead, before a query comes or goes, and at the end.

Known limits: memory holds at least a slice, and what is being settled: one block per input, the structures over them,
and what they make. Settling is a pause. Streams with long windows leave as readily as those with short ones, and tables
stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from operators.groups.settling import LEAST_BLOCK_TUPLES, GroupSpillCounters, Join, Part, Settlement, times_of
from operators.juggler.sources import GroupSources
from operators.spill.block_store import BlockStore
from operators.spill.part import Reader, Writer
from operators.store import SourceStore
from operators.tuples import FOREVER, Tuples
from operators.watermark import END
from schemas.columns import Batch
from schemas.groups import Member, QueryGroup

STAYS = 0.5
"""Of the budget, what is left in memory when it was exceeded."""
STAYS_BESIDE = 0.25
"""And what is left while something is settled, for which there is to be room."""
BLOCK_SHARE = 0.6
"""Of the budget, what the blocks of one choice take together, if their tuples take as much as those in memory did."""
DEAD_SHARE = 0.5
"""It is time to settle when so much of what is on disk is dead."""


class GroupSpill:
    """What a shared operator has on disk.

    Args:
        limit_bytes: of the operator and its stores.

    Attributes:
        settled: all results before this have been given, while anything is on disk.
    """

    def __init__(self, limit_bytes: int, blocks: BlockStore) -> None:
        self.limit_bytes = limit_bytes
        self.counters = GroupSpillCounters()
        self.settled = FOREVER
        self._writer = Writer(blocks)
        self._reader = Reader(blocks)
        self._parts: dict[str, list[Part]] = {}
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
        return min(cut, self.settled)

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
        self._most = max(LEAST_BLOCK_TUPLES, int(BLOCK_SHARE * self.limit_bytes * len(every) / max(used_bytes, 1)))
        stay = min(STAYS, stays * self.limit_bytes / max(used_bytes, 1))
        end = int(every[len(every) - 1 - int(stay * (len(every) - 1))]) if stay * len(every) >= 1 else FOREVER
        # Those of one ts leave together, and some must.
        end = end if end > every[0] else int(every[0]) + 1
        for name in streams:
            count = int(np.searchsorted(times[name], end))
            if count:
                self._write(name, sources.stores[name], count, cut)
                self._tell(sources, name)
        self.settled = min(self.settled, cut)
        self.counters.spills += 1
        return True

    def _write(self, name: str, store: SourceStore, count: int, cut: int) -> None:
        batch = store.read(store.lo, store.lo + count)
        beside = {column: store.gather(column, np.arange(store.lo, store.lo + count)) for column in store.horizons}
        columns = {column: values for column, values in batch.columns.items() if column != "_ts"}
        batch = Batch(batch.ts, columns | beside)
        at = 0
        for begin in range(0, count, self._most):
            some = batch.slice(begin, min(begin + self._most, count))
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

    # --- What is forgotten ------------------------------------------------------------------------------

    def due(self, sources: GroupSources, cut: int) -> bool:
        """Whether it is time to settle."""
        total = self.on_disk_tuples
        dead = sum(p.hi - p.lo for name, parts in self._parts.items() for p in parts[: self._dead(sources, name, cut)])
        return total > 0 and dead >= DEAD_SHARE * total

    def _dead(self, sources: GroupSources, name: str, cut: int) -> int:
        """How many parts of a stream, the first ones, meet nothing from `cut` on."""
        ts, row = sources.needed_from(name, cut)
        parts = self._parts[name]
        alive = (n for n, part in enumerate(parts) if part.most >= ts or part.hi > row)
        return next(alive, len(parts))

    def forget(self, sources: GroupSources, cut: int) -> None:
        """Everything before `cut` was settled: drop what is dead."""
        for name in list(self._parts):
            parts = self._parts[name]
            dead = self._dead(sources, name, cut) if name in sources.stores and cut != END else len(parts)
            self._writer.forget(tuple(part.piece for part in parts[:dead]))
            self._parts[name] = parts[dead:]
            self._tell(sources, name)
        self._parts = {name: parts for name, parts in self._parts.items() if parts}
        self.settled = cut if self._parts else FOREVER

    # --- What is owed -----------------------------------------------------------------------------------

    def settle(
        self, group: QueryGroup, since: Mapping[str, Mapping[str, int]], sources: GroupSources, cut: int, join: Join
    ) -> Iterator[tuple[GroupSources, Member, Tuples]]:
        """What is owed of results before `cut`; see `Settlement.owed`. `forget` is to follow."""
        if self._parts:
            self.counters.settlements += 1
            yield from Settlement(self._parts, self._reader, self._most, self.settled, cut, self.counters).owed(
                group, since, sources, join
            )
