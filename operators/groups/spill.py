"""The shared operator within a memory budget: source tuples leave memory by age, what they owe is settled later.

The operator keeps source tuples and no intermediate results, and anything else that it keeps follows from those. So
what leaves are source tuples: when memory is beyond the budget, the oldest of all streams, those before one event time,
as compressed and checksummed blocks with every column that the stores keep. What stays is what a shorter window would
hold: new tuples go on meeting it at once. Nothing comes back. (The state-spill paper moves partition groups, which
queries without a common equality do not have; by age no query needs one.)

What is owed, by marks: every part on disk has `until`, the cut at which it left. A combination whose latest component
has ts t was found in its time if t < until for all its parts, since tuples leave between slices; and is owed else. All
results up to a time `settled` have been given. So exactly those are owed that have `settled <= t` and some component
with `until <= t`. Settling up to another time (`operators.groups.cleanup_steps`) gives these and moves `settled`: each
result once.

It must come before a tuple is forgotten that may still be part of what is owed. So while something is on disk the
stores forget only what was dead at `settled`, whatever the cut; tuples that have died since leave for disk as the
oldest do.

**A successor.** What is on disk, in memory and owed is a function of the input and of the log of events: when what was
older than which time left, and up to where results have been given (`events`). A process that has died is made again by
reading again what was alive at `settled` (`horizon`), and by stamping what leaves with when it left in the log
(`play`): a tuple left at the first event that is about what was older than something younger than it. Until it stands
where the log ends it gives nothing, so it does not matter when a tuple really leaves, and whatever memory asks for may.
What leaves meanwhile that the log does not know of leaves as if at the log's end.

Known limits: memory holds at least a slice. Streams with long windows leave as readily as those with short ones, and
tables stay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from operators.data.tuples import FOREVER
from operators.data.watermark import END
from operators.groups.cleanup import LEAST_BLOCK_TUPLES, GroupSpillCounters, Mark, Part, Queries, Settlement, times_of
from operators.juggler.state.sources import GroupSources
from operators.spill.block_store import BlockStore
from operators.spill.spilled_part import Reader, Writer
from operators.state.store import SourceStore
from schemas.columns import Batch
from schemas.messages.spills import SpillEvent

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
        fixed_bytes: what the operator and its stores take without tuples of streams.
        settled: all results before this have been given; None while nothing is on disk.
    """

    def __init__(self, limit_bytes: int, blocks: BlockStore) -> None:
        self.limit_bytes = limit_bytes
        self.fixed_bytes = 0
        self.counters = GroupSpillCounters()
        self.settled: Mark | None = None
        self._writer = Writer(blocks)
        self._reader = Reader(blocks)
        self._parts: dict[str, list[Part]] = {}
        # Where tuples have left up to, ascending.
        self._left: list[Mark] = []
        # Tuples that may be read back at once.
        self._most = LEAST_BLOCK_TUPLES
        self._events: list[SpillEvent] = []
        # What happened in a former life and has not happened again yet, and up to where it went.
        self._script: deque[SpillEvent] = deque()
        self._until = -FOREVER

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
        every = np.sort(np.concatenate([np.zeros(0, np.int64), *(times_of(sources.stores[name]) for name in streams)]))
        if not len(every):
            return False
        self._measure(len(every), used_bytes, anew=stays >= STAYS)
        fixed = self.fixed_bytes
        stay = max(0.0, min(STAYS, (stays * self.limit_bytes - fixed) / max(used_bytes - fixed, 1)))
        end = int(every[len(every) - 1 - int(stay * (len(every) - 1))]) if stay * len(every) >= 1 else FOREVER
        # Those of one ts leave together, and some must.
        end = min(end if end > every[0] else int(every[0]) + 1, cut)
        for event in self._script:
            self._part_with(sources, min(end, event.before), event.at)
        if not self._script or end > self._script[-1].before:
            at = max(cut, self._until)
            self.settled = self.settled or (here(sources, cut) if cut == at else Mark(at, {}))
            self._part_with(sources, end, at)
            self._events.append(SpillEvent(at, "age", before=end, settled=self.settled.ts))
        self.counters.spills += 1
        return True

    def _measure(self, tuples: int, used_bytes: int, *, anew: bool) -> None:
        """See how many tuples may be read back at once. With little in memory they seem larger than they are, so what
        was seen once counts on, if it is not to be seen `anew`."""
        # Who joins them has an operator of its own.
        room, taken = BLOCK_SHARE * self.limit_bytes - self.fixed_bytes, used_bytes - self.fixed_bytes
        most = max(LEAST_BLOCK_TUPLES, int(room * tuples / max(taken, 1)))
        self._most = most if anew else max(self._most, most)

    def _part_with(self, sources: GroupSources, end: int, at: int) -> bool:
        """Let what is older than `end` leave, stamped with a cut; whether there was any."""
        streams = [stream.name for stream in sources.query.streams()]
        counts = {name: int(np.searchsorted(times_of(sources.stores[name]), end)) for name in streams}
        for name, count in counts.items():
            if count:
                self._write(name, sources.stores[name], count, at)
                self._tell(sources, name)
        if any(counts.values()):
            self._left.append(Mark(end, {name: sources.stores[name].lo for name in streams}))
        return any(counts.values())

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

    def whole_bytes(self, sources: GroupSources, cut: int, used_bytes: int) -> int:
        """What all that windows hold would take in memory, about."""
        in_memory = sum(len(sources.stores[stream.name]) for stream in sources.query.streams())
        living = self.on_disk_tuples - self.dead_tuples(sources, cut)
        return used_bytes + living * (used_bytes - self.fixed_bytes) // max(in_memory, 1)

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
        self, queries: Queries, sources: GroupSources, cut: int, end: int
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
            self._parts, self._reader, self._most, self.settled, to, queries, sources, self.counters
        )

    def forget(self, sources: GroupSources, to: Mark, cut: int) -> None:
        """Everything before `to` was settled when everything before `cut` was processed: drop what is dead."""
        if self.settled is not None:
            self._events.append(SpillEvent(cut, "age", settled=to.ts))
        self.settled = to
        self._left = [mark for mark in self._left if mark.ts > to.ts]
        self.trim(sources)

    def trim(self, sources: GroupSources) -> None:
        """Drop what is dead for all that is owed and to come."""
        at = self.settled
        if at is None:
            return
        for name, parts in list(self._parts.items()):
            dead = self._dead(sources, name, at) if name in sources.stores and at.ts != END else len(parts)
            self._writer.forget(tuple(part.piece for part in parts[:dead]))
            # In place: whoever settles something reads what is left.
            del parts[:dead]
            self._tell(sources, name)
            if not parts:
                del self._parts[name]
        if not self._parts:
            self.settled = None

    def owes(self, ts: int) -> bool:
        """Whether results of before an event time may be owed."""
        return self.settled is not None and self.settled.ts < ts

    # --- What a successor is told -----------------------------------------------------------------------

    def events(self) -> list[SpillEvent]:
        """What has happened since this was last asked."""
        found, self._events = self._events, []
        return found

    def needed_from(self, cut: int) -> int:
        """Events up to this time need not happen again: what left then is dead."""
        return min((parts[0].until for parts in self._parts.values()), default=cut + 1) - 1

    def horizon(self, sources: GroupSources, stream: str) -> int | None:
        """The smallest ts whose tuples of a stream are still owed something; None while nothing is on disk."""
        if self.settled is None:
            return None
        ts, row = sources.needed_from(stream, self.settled.ts, self.settled.rows.get(stream, -FOREVER))
        store, parts = sources.stores[stream], self._parts.get(stream, [])
        if row < (parts[0].lo if parts else store.lo):
            # Perhaps so few have ever come.
            return 0
        on_disk = next((part.least for part in parts if row < part.hi), None)
        if on_disk is not None:
            ts = min(ts, on_disk)
        elif row < store.hi:
            ts = min(ts, int(times_of(store, np.array([max(row, store.lo)]))[0]))
        return max(ts, 0)

    def play(self, events: Sequence[SpillEvent], until: int) -> None:
        """Have happen again, up to an event time, what happened in a former life; before anything is processed."""
        self._script = deque(event for event in events if event.before)
        self._until = until
        if events:
            self.settled = Mark(events[-1].settled, {})

    def playing(self, cut: int) -> bool:
        """Whether what happened up to here was given in a former life."""
        return cut <= self._until

    def played(self, sources: GroupSources, cut: int, used_bytes: int) -> bool:
        """Everything before `cut` was processed again: let leave what had left by then; whether there was any."""
        if self.settled is not None and not self.settled.rows and cut >= self.settled.ts:
            # Nothing that is not older has left yet.
            streams = sources.query.streams()
            rows = {stream.name: sources.stores[stream.name].first_at(self.settled.ts) for stream in streams}
            self.settled = Mark(self.settled.ts, rows)
        self._measure(sum(len(sources.stores[s.name]) for s in sources.query.streams()), used_bytes, anew=False)
        left = False
        while self._script and self._script[0].at <= cut:
            event = self._script.popleft()
            left = self._part_with(sources, event.before, event.at) or left
        if cut == self._until and not self._parts:
            self.settled = None
        return left

    def _dead(self, sources: GroupSources, name: str, at: Mark) -> int:
        """How many parts of a stream, the first ones, meet nothing from a place on."""
        ts, row = sources.needed_from(name, at.ts, at.rows.get(name, -FOREVER))
        parts = self._parts[name]
        alive = (n for n, part in enumerate(parts) if part.most >= ts or part.hi > row)
        return next(alive, len(parts))


def here(sources: GroupSources, cut: int) -> Mark:
    """Where a group has come to when everything before `cut` was processed."""
    return Mark(cut, {stream.name: sources.stores[stream.name].hi for stream in sources.query.streams()})
