"""Keeps a shared operator within a memory budget: spills source tuples by age, and tracks which results are pending.

`operators.groups.budget` calls it. The operator stores source tuples and no intermediate results, and the rest of its
state follows from those. So source tuples are what it spills. When memory exceeds the budget, the oldest tuples of all
streams leave: those before one event time, as compressed and checksummed blocks with every column that the stores have.
What stays is what a shorter window would contain: new tuples are still joined with it at once. Spilled tuples never
return to memory's stores. (The state-spill paper moves partition groups, which queries without a common equality do not
have. Spilling by age needs no equality.)

Which results are pending, by positions: every part on disk has `left_at`, the cut at which it left. A combination whose
latest component has ts t was found in time if t < left_at for all of its parts, since tuples leave between slices;
otherwise it is pending. All results up to a time `cleaned_to` have been delivered. So exactly those results are pending
that have `cleaned_to <= t` and some component with `left_at <= t`. A cleanup up to another time
(`operators.groups.cleanup_steps`) produces them and moves `cleaned_to`: each result once.

The cleanup must come before a tuple is dropped that may be part of a pending result. So while something is on disk, the
stores drop only what was dead at `cleaned_to`, whatever the cut; tuples that have died since are spilled like the
oldest.

**A successor.** The tuples on disk, those in memory and the pending results are a function of the input and of the log
of events: when tuples older than some time left, and up to where results have been delivered (`events`). After a death,
the successor reads again the tuples that were alive at `cleaned_to` (`horizon`). It stamps spilled tuples with the cut
at which they left according to the log (`replay`): a tuple left at the first event whose limit is younger than it.
Until the successor reaches the end of the log it delivers nothing. So it does not matter when a tuple really leaves,
and tuples may leave whenever memory requires it. Tuples that leave meanwhile without an event in the log count as
leaving at the end of the log.

Known limits: memory has at least a slice. Streams with long windows are spilled as readily as those with short ones,
and tables stay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from operators.data.tuples import FOREVER
from operators.data.watermark import END
from operators.groups.cleanup import (
    MIN_BLOCK_TUPLES,
    CleanupQueries,
    GroupCleanup,
    GroupSpillCounters,
    InputPosition,
    SpilledRows,
    times_of,
)
from operators.juggler.state.sources import GroupSources
from operators.spill.block_store import BlockStore
from operators.spill.spilled_part import PieceReader, PieceWriter
from operators.state.store import SourceStore
from schemas.columns import Batch
from schemas.messages.spills import SpillEvent

KEPT_SHARE = 0.5
"""Share of the budget that stays in memory after it was exceeded."""
KEPT_SHARE_IN_CLEANUP = 0.25
"""The same during a cleanup, which needs room."""
BLOCK_SHARE = 0.6
"""Share of the budget for the blocks of one join, if their tuples take as much memory as those in the stores did."""
PART_SHARE = 0.1
"""Size of a part, as a share of the blocks of one join: blocks are made of whole parts, and so are full."""
MIN_CLEANUP_CHOICES = 2
"""A cleanup covers at least this many times the tuples of one join; otherwise blocks would be half empty."""


class GroupSpill:
    """The tuples that a shared operator has on disk.

    Args:
        limit_bytes: of the operator, its stores, and what counts beside them.

    Attributes:
        own_bytes: memory of the operator and its stores without tuples of streams.
        beside_bytes: memory outside the operator that counts against the limit.
        counters: totals so far.
        cleaned_to: all results before this have been delivered; None while nothing is on disk.
    """

    def __init__(self, limit_bytes: int, blocks: BlockStore) -> None:
        self.limit_bytes = limit_bytes
        self.own_bytes = self.beside_bytes = 0
        self.counters = GroupSpillCounters()
        self.cleaned_to: InputPosition | None = None
        self._writer = PieceWriter(blocks)
        self._reader = PieceReader(blocks)
        self._parts: dict[str, list[SpilledRows]] = {}
        # The positions up to which tuples have left, ascending.
        self._spilled_until: list[InputPosition] = []
        # Tuples that may be read back at once.
        self._choice_tuples = MIN_BLOCK_TUPLES
        self._events: list[SpillEvent] = []
        # The events of an earlier incarnation that are not replayed yet, and the event time where they end.
        self._replay: deque[SpillEvent] = deque()
        self._replay_until = -FOREVER

    @property
    def fixed_bytes(self) -> int:
        """The memory that counts against the limit without tuples of streams."""
        return self.own_bytes + self.beside_bytes

    # --- Spilling ---------------------------------------------------------------------------------------

    @property
    def on_disk_tuples(self) -> int:
        """Tuples on disk now."""
        return sum(part.hi - part.lo for parts in self._parts.values() for part in parts)

    @property
    def written_bytes(self) -> int:
        """Total size of the blocks written, as stored."""
        return self._writer.written_bytes

    def kept_from(self, cut: int) -> int:
        """Tuples that are dead at this time may be dropped. It is before `cut` while pending results need older
        tuples."""
        return cut if self.cleaned_to is None else min(cut, self.cleaned_to.ts)

    def spill_oldest(self, sources: GroupSources, cut: int, used_bytes: int, kept_share: float = KEPT_SHARE) -> bool:
        """Spill the oldest tuples when everything before `cut` was processed; False where there are none.

        Args:
            kept_share: the share of the budget that stays in memory.

        Raises:
            StateError: they could not be written.
        """
        streams = [stream.name for stream in sources.query.joined_streams()]
        every = np.sort(np.concatenate([np.zeros(0, np.int64), *(times_of(sources.stores[name]) for name in streams)]))
        if not len(every):
            return False
        self._measure(len(every), used_bytes, reset=kept_share >= KEPT_SHARE)
        fixed = self.fixed_bytes
        stay = max(0.0, min(KEPT_SHARE, (kept_share * self.limit_bytes - fixed) / max(used_bytes - fixed, 1)))
        end = int(every[len(every) - 1 - int(stay * (len(every) - 1))]) if stay * len(every) >= 1 else FOREVER
        # Tuples of one ts leave together, and some must.
        end = min(end if end > every[0] else int(every[0]) + 1, cut)
        for event in self._replay:
            self._spill_before(sources, min(end, event.before), event.at)
        if not self._replay or end > self._replay[-1].before:
            at = max(cut, self._replay_until)
            position = current_position(sources, cut) if cut == at else InputPosition(at, {})
            self.cleaned_to = self.cleaned_to or position
            self._spill_before(sources, end, at)
            self._events.append(SpillEvent(at, "age", before=end, settled=self.cleaned_to.ts))
        self.counters.spills += 1
        return True

    def _measure(self, tuples: int, used_bytes: int, *, reset: bool) -> None:
        """Estimate how many tuples may be read back at once. With few tuples in memory they seem larger than they are,
        so the largest estimate counts until a `reset`."""
        # Each join has an operator of its own.
        room, taken = BLOCK_SHARE * self.limit_bytes - self.fixed_bytes, used_bytes - self.fixed_bytes
        most = max(MIN_BLOCK_TUPLES, int(room * tuples / max(taken, 1)))
        self._choice_tuples = most if reset else max(self._choice_tuples, most)

    def _spill_before(self, sources: GroupSources, end: int, at: int) -> bool:
        """Spill tuples older than `end`, stamped with a cut; return whether there were any."""
        streams = [stream.name for stream in sources.query.joined_streams()]
        counts = {name: int(np.searchsorted(times_of(sources.stores[name]), end)) for name in streams}
        for name, count in counts.items():
            if count:
                self._write(name, sources.stores[name], count, at)
                self._update_stores(sources, name)
        if any(counts.values()):
            self._spilled_until.append(InputPosition(end, {name: sources.stores[name].lo for name in streams}))
        return any(counts.values())

    def _write(self, name: str, store: SourceStore, count: int, cut: int) -> None:
        batch = store.read(store.lo, store.lo + count)
        extra = {column: store.gather(column, np.arange(store.lo, store.lo + count)) for column in store.horizons}
        columns = {column: values for column, values in batch.columns.items() if column != "_ts"}
        batch = Batch(batch.ts, columns | extra)
        at, step = 0, max(MIN_BLOCK_TUPLES, int(PART_SHARE * self._choice_tuples))
        for begin in range(0, count, step):
            some = batch.slice(begin, min(begin + step, count))
            for piece in self._writer.write(name, some, np.full(len(some), FOREVER)):
                ts = batch.ts[at : at + piece.rows]
                lo = store.lo + at
                part = SpilledRows(lo, lo + piece.rows, int(ts[0]), int(ts[-1]), cut, piece)
                self._parts.setdefault(name, []).append(part)
                at += piece.rows
        self.counters.spilled_tuples += count
        store.leave(store.lo + count)

    def _update_stores(self, sources: GroupSources, name: str) -> None:
        """Report a stream's rows on disk to the stores."""
        sources.away[name] = [(part.lo, part.hi, part.last_ts) for part in self._parts.get(name, ())]

    def whole_bytes(self, sources: GroupSources, cut: int, used_bytes: int) -> int:
        """About the memory that all tuples of the windows would take."""
        in_memory = sum(len(sources.stores[stream.name]) for stream in sources.query.joined_streams())
        living = self.on_disk_tuples - self.dead_tuples(sources, cut)
        return used_bytes + living * (used_bytes - self.fixed_bytes) // max(in_memory, 1)

    # --- Pending results --------------------------------------------------------------------------------

    def dead_tuples(self, sources: GroupSources, cut: int) -> int:
        """The number of tuples on disk that match nothing from `cut` on; everything before `cut` has been processed."""
        at = current_position(sources, cut)
        return sum(p.hi - p.lo for name, parts in self._parts.items() for p in parts[: self._dead(sources, name, at)])

    def behind(self, sources: GroupSources, cut: int) -> int:
        """The number of tuples between `cleaned_to` and `cut`."""
        return 0 if self.cleaned_to is None else current_position(sources, cut).since(self.cleaned_to)

    def spilled_until(self, cut: int) -> int:
        """The event time up to which tuples have left since `cleaned_to`; `cut` where none have."""
        since = -FOREVER if self.cleaned_to is None else self.cleaned_to.ts
        return self._spilled_until[-1].ts if self._spilled_until and self._spilled_until[-1].ts > since else cut

    def next_cleanup(self, queries: CleanupQueries, sources: GroupSources, cut: int, end: int) -> GroupCleanup | None:
        """The cleanup of the next pending results before `end`. It ends where spilled tuples end, after enough of them
        to fill blocks, or at `end`. None where nothing is pending.

        Args:
            cut: everything before this has been processed.
        """
        if self.cleaned_to is None or self.cleaned_to.ts >= end:
            return None
        positions = [position for position in self._spilled_until if self.cleaned_to.ts < position.ts <= end]
        if end == cut or not positions:
            positions.append(current_position(sources, cut))
        full = MIN_CLEANUP_CHOICES * self._choice_tuples
        to = next((position for position in positions if position.since(self.cleaned_to) >= full), positions[-1])
        self.counters.cleanups += 1
        return GroupCleanup(
            self._parts, self._reader, self._choice_tuples, self.cleaned_to, to, queries, sources, self.counters
        )

    def forget(self, sources: GroupSources, to: InputPosition, cut: int) -> None:
        """Record that everything before `to` was cleaned up when everything before `cut` was processed, and drop dead
        tuples."""
        if self.cleaned_to is not None:
            self._events.append(SpillEvent(cut, "age", settled=to.ts))
        self.cleaned_to = to
        self._spilled_until = [position for position in self._spilled_until if position.ts > to.ts]
        self.trim(sources)

    def trim(self, sources: GroupSources) -> None:
        """Drop tuples that neither pending nor later results need."""
        at = self.cleaned_to
        if at is None:
            return
        for name, parts in list(self._parts.items()):
            dead = self._dead(sources, name, at) if name in sources.stores and at.ts != END else len(parts)
            self._writer.forget(tuple(part.piece for part in parts[:dead]))
            # In place: a cleanup in progress reads what is left.
            del parts[:dead]
            self._update_stores(sources, name)
            if not parts:
                del self._parts[name]
        if not self._parts:
            self.cleaned_to = None

    def has_pending(self, ts: int) -> bool:
        """Whether results before an event time may be pending."""
        return self.cleaned_to is not None and self.cleaned_to.ts < ts

    # --- Replay after a death ---------------------------------------------------------------------------

    def events(self) -> list[SpillEvent]:
        """The spill events since the last call."""
        found, self._events = self._events, []
        return found

    def needed_from(self, cut: int) -> int:
        """Events up to this time need not be replayed: what left then is dead."""
        return min((parts[0].left_at for parts in self._parts.values()), default=cut + 1) - 1

    def horizon(self, sources: GroupSources, stream: str) -> int | None:
        """The smallest ts whose tuples of a stream still have pending results; None while nothing is on disk."""
        if self.cleaned_to is None:
            return None
        ts, row = sources.needed_from(stream, self.cleaned_to.ts, self.cleaned_to.rows.get(stream, -FOREVER))
        store, parts = sources.stores[stream], self._parts.get(stream, [])
        if row < (parts[0].lo if parts else store.lo):
            # Perhaps so few have ever arrived.
            return 0
        on_disk = next((part.first_ts for part in parts if row < part.hi), None)
        if on_disk is not None:
            ts = min(ts, on_disk)
        elif row < store.hi:
            ts = min(ts, int(times_of(store, np.array([max(row, store.lo)]))[0]))
        return max(ts, 0)

    def replay(self, events: Sequence[SpillEvent], until: int) -> None:
        """Set the events of an earlier incarnation that are to be replayed up to an event time; before anything is
        processed."""
        self._replay = deque(event for event in events if event.before)
        self._replay_until = until
        if events:
            self.cleaned_to = InputPosition(events[-1].settled, {})

    def replaying(self, cut: int) -> bool:
        """Whether the results up to this cut were delivered by an earlier incarnation."""
        return cut <= self._replay_until

    def replay_to(self, sources: GroupSources, cut: int, used_bytes: int) -> bool:
        """Everything before `cut` was processed again: spill what had left by then; return whether there was any."""
        if self.cleaned_to is not None and not self.cleaned_to.rows and cut >= self.cleaned_to.ts:
            # Only older tuples have left yet.
            streams = sources.query.joined_streams()
            rows = {stream.name: sources.stores[stream.name].first_at(self.cleaned_to.ts) for stream in streams}
            self.cleaned_to = InputPosition(self.cleaned_to.ts, rows)
        self._measure(sum(len(sources.stores[s.name]) for s in sources.query.joined_streams()), used_bytes, reset=False)
        left = False
        while self._replay and self._replay[0].at <= cut:
            event = self._replay.popleft()
            left = self._spill_before(sources, event.before, event.at) or left
        if cut == self._replay_until and not self._parts:
            self.cleaned_to = None
        return left

    def _dead(self, sources: GroupSources, name: str, at: InputPosition) -> int:
        """The number of parts of a stream, from the first on, that match nothing from a position on."""
        ts, row = sources.needed_from(name, at.ts, at.rows.get(name, -FOREVER))
        parts = self._parts[name]
        alive = (n for n, part in enumerate(parts) if part.last_ts >= ts or part.hi > row)
        return next(alive, len(parts))


def current_position(sources: GroupSources, cut: int) -> InputPosition:
    """The position of a group when everything before `cut` was processed."""
    rows = {stream.name: sources.stores[stream.name].hi for stream in sources.query.joined_streams()}
    return InputPosition(cut, rows)
