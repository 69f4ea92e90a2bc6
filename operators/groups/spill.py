"""The shared operator within a memory budget: source tuples leave memory by age, what they owe is settled later.

The operator keeps source tuples and no intermediate results, and anything else that it keeps follows from those. So
what leaves are source tuples: when memory is beyond the budget, the oldest of all streams, those before one event time,
as compressed and checksummed blocks with every column that the stores keep. What stays is what a shorter window would
hold: new tuples go on meeting it at once. Nothing comes back. (The state-spill paper moves partition groups, which
queries without a common equality do not have; by age no query needs one.)

What is owed, by marks: every part on disk has `until`, the cut at which it left. A combination whose latest component
has ts t was found in its time if t < until for all its parts, since tuples leave between slices; and is owed else. All
results up to a time `settled` have been given. So exactly those are owed that have `settled <= t` and some component
with `until <= t`. Settling up to a cut gives these and moves `settled`: each result once.

Settling joins blocks: tuples on disk and in memory, stream by stream in their order, are cut into blocks of a share of
the budget, and for every set of inputs that some queries read every choice of one block per input is joined by an
operator of its own, which a combination has one of. Choices are left out where no combination can be owed or live.

It must come before a tuple is forgotten that may still be part of what is owed. So while something is on disk the
stores forget only what was dead at `settled`, whatever the cut; tuples that have died since leave for disk as the
oldest do. It is time to settle when half of what is on disk is dead, before a query comes or goes, and at the end.

Known limits: memory holds at least a slice, and what is being settled: one block per input, the structures over them,
and what they make. Settling is a pause. Streams with long windows leave as readily as those with short ones, and tables
stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from operators.juggler.rows import columns_of_rows
from operators.juggler.sources import GroupSources, nulls
from operators.spill.block_store import BlockStore
from operators.spill.part import Piece, Reader, Writer, batch_bytes
from operators.store import SourceStore
from operators.tuples import FOREVER, Tuples
from operators.watermark import END
from schemas.columns import I64, Batch
from schemas.groups import Member, QueryGroup, seeing

STAYS = 0.5
"""Of the budget, what is left in memory when it was exceeded."""
STAYS_BESIDE = 0.25
"""And what is left while something is settled, for which there is to be room."""
BLOCK_SHARE = 0.2
"""Of the budget, what the blocks of one choice take together before they are joined."""
LEAST_BLOCK_TUPLES = 256
"""Blocks are made no smaller than this for a budget's sake."""
DEAD_SHARE = 0.5
"""It is time to settle when so much of what is on disk is dead."""

Join = Callable[[GroupSources, QueryGroup, Mapping[str, Tuples]], Mapping[str, Tuples]]


@dataclass(frozen=True, slots=True)
class Part:
    """Tuples of a stream that have left together, rows lo .. hi.

    Attributes:
        least, most: the first and the last ts.
        until: the cut at which they left.
    """

    lo: int
    hi: int
    least: int
    most: int
    until: int
    piece: Piece
    size_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Tuples of a stream for one join.

    Attributes:
        parts: on disk; rest: rows in memory after those, or None.
        until: of the first that left.
    """

    parts: tuple[Part, ...]
    rest: tuple[int, int] | None
    least: int
    most: int
    until: int

    @property
    def lo(self) -> int:
        """The first row."""
        return self.parts[0].lo if self.parts else self.rest[0] if self.rest else 0


@dataclass(slots=True)
class GroupSpillCounters:
    """What has been done so far; `joins` of blocks."""

    spills: int = 0
    spilled_tuples: int = 0
    settlements: int = 0
    joins: int = 0
    results: int = 0
    settling_s: float = 0.0
    longest_spill_s: float = 0.0


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
        times = {name: _times(sources.stores[name]) for name in streams}
        every = np.sort(np.concatenate([np.zeros(0, np.int64), *times.values()]))
        if not len(every):
            return False
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
        lo, size = store.lo, batch_bytes(batch)
        for piece in self._writer.write(name, batch, np.full(count, FOREVER)):
            first, last = lo - store.lo, lo - store.lo + piece.rows
            ts = batch.ts[first:last]
            part = Part(lo, lo + piece.rows, int(ts[0]), int(ts[-1]), cut, piece, size * piece.rows // count)
            self._parts.setdefault(name, []).append(part)
            lo = part.hi
        self.counters.spilled_tuples += count
        store.leave(lo)

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
        """What is owed of results before `cut`: per query what was found together, ascending by (ts, rows), and the
        stores that its rows are of. `forget` is to follow.

        Args:
            since: by query and input, the least ts of tuples that the query may see.
            join: makes every query's results of tuples by input, which lie in stores of their own.

        Raises:
            StateError: a block cannot be read.
        """
        if not self._parts:
            return
        self.counters.settlements += 1
        sets: dict[frozenset[str], list[Member]] = {}
        for member in group.members:
            if len(member.inputs) > 1:
                sets.setdefault(frozenset(member.inputs), []).append(_seeing(member, since.get(member.name, {})))
        for members in sets.values():
            part = group.restricted(members)
            names = [source.alias for source in part.inputs]
            streams = [source.stream.name for source in part.inputs]
            blocks = {name: self._blocks(sources, name, len(names)) for name in dict.fromkeys(streams)}
            for chosen in product(*(blocks[stream] for stream in streams)):
                if self._may_owe(part, chosen, cut):
                    yield from self._joined(part, dict(zip(names, chosen, strict=True)), sources, cut, join)

    def _blocks(self, sources: GroupSources, name: str, inputs: int) -> list[Block]:
        """The tuples of a stream, cut into blocks; those of a table are one."""
        store = sources.stores[name]
        most = int(BLOCK_SHARE * self.limit_bytes / inputs)
        blocks: list[Block] = []
        together: list[Part] = []

        def close() -> None:
            if together:
                until = min(part.until for part in together)
                blocks.append(Block(tuple(together), None, together[0].least, together[-1].most, until))
                together.clear()

        for part in self._parts.get(name, ()):
            rows, size = (sum(x) for x in zip(*((p.hi - p.lo, p.size_bytes) for p in [*together, part]), strict=True))
            if together and size > most and rows > LEAST_BLOCK_TUPLES:
                close()
            together.append(part)
        close()
        times = _times(store)
        step = len(store)
        if name not in {table.name for table in sources.query.tables()}:
            step = max(LEAST_BLOCK_TUPLES, len(store) * most // max(store.size_bytes(), 1))
        for begin in range(0, len(store), max(step, 1)):
            ts = times[begin : begin + step]
            rest = store.lo + begin, store.lo + begin + len(ts)
            blocks.append(Block((), rest, int(ts[0]), int(ts[-1]), FOREVER))
        return blocks

    def _may_owe(self, group: QueryGroup, chosen: Sequence[Block], cut: int) -> bool:
        """Whether some combination of the blocks' tuples may be owed."""
        latest = min(max(block.most for block in chosen), cut - 1)
        if latest < self.settled or min(block.until for block in chosen) > latest:
            return False
        begin = max(block.least for block in chosen)
        for source, block in zip(group.inputs, chosen, strict=True):
            windows = group.windows(source.alias)
            if all(window.kind == "RANGE" for window in windows) and block.most + windows[0].size < begin:
                return False
        return True

    def _joined(
        self, group: QueryGroup, chosen: Mapping[str, Block], sources: GroupSources, cut: int, join: Join
    ) -> Iterator[tuple[GroupSources, Member, Tuples]]:
        """What is owed of combinations of some blocks, one per input."""
        self.counters.joins += 1
        own = GroupSources(group)
        own.cut = cut
        rows: dict[str, I64] = {}
        until: dict[str, I64] = {}
        for stream, store in own.stores.items():
            readers = [source.alias for source in group.inputs if source.stream.name == stream]
            left = [np.zeros(0, np.int64)]
            for block in sorted({chosen[name] for name in readers}, key=lambda block: block.lo):
                batch, left_at = self._read(sources.stores[stream], store, block)
                ids = store.append(batch)
                left.append(left_at)
                rows |= {name: ids for name in readers if chosen[name] is block}
            until[stream] = np.concatenate(left)
        epoch = {}
        for name, ids in rows.items():
            ts = np.asarray(own.store(name).gather("_ts", ids).values, np.int64)
            epoch[name] = Tuples((name,), ids[np.newaxis], ts, np.full(len(ids), FOREVER))
        stream_of = {source.alias: source.stream.name for source in group.inputs}
        found = join(own, group, epoch)
        for member in group.members:
            tuples = found.get(member.name)
            if tuples is None or not len(tuples):
                continue
            left_at = np.full(len(tuples), FOREVER)
            for name, ids in zip(tuples.aliases, tuples.rows, strict=True):
                left_at = np.minimum(left_at, until[stream_of[name]][ids])
            owed = tuples.take((tuples.ts >= self.settled) & (tuples.ts < cut) & (left_at <= tuples.ts))
            if len(owed):
                self.counters.results += len(owed)
                yield own, member, owed

    def _read(self, store: SourceStore, into: SourceStore, block: Block) -> tuple[Batch, I64]:
        """A block's tuples with the columns of another store, and (n,) when each left."""
        batches: list[Batch] = []
        until: list[I64] = []
        for part in block.parts:
            (batch,) = self._reader.read([part.piece])
            batches.append(_with_columns(batch, part.lo, into))
            until.append(np.full(len(batch), part.until))
        if block.rest is not None:
            lo, hi = block.rest
            ids = np.arange(lo, hi)
            columns = {name: store.gather(name, ids) for name in into.columns if name in store.columns}
            batches.append(_with_columns(Batch(_times(store, ids), columns), lo, into))
            until.append(np.full(hi - lo, FOREVER))
        return Batch.concat(batches), np.concatenate(until)


def _times(store: SourceStore, rows: I64 | None = None) -> I64:
    """(n,) the ts of rows, of all held where None."""
    return np.asarray(store.gather("_ts", store.held_rows() if rows is None else rows).values, np.int64)


def _with_columns(batch: Batch, lo: int, store: SourceStore) -> Batch:
    """Tuples, rows `lo` and on, with the columns of a store: nulls where a column was not kept when they left."""
    missing = [name for name in store.columns if name not in batch.columns and name != "_ts"]
    beside = columns_of_rows([n for n in missing if n in store.horizons], np.arange(lo, lo + len(batch)))
    beside |= {name: nulls(store.type_of(name), len(batch)) for name in missing if name not in store.horizons}
    columns = {**batch.columns, **beside}
    return Batch(batch.ts, {name: columns[name] for name in store.columns if name != "_ts"})


def _seeing(member: Member, since: Mapping[str, int]) -> Member:
    """A query that sees no older tuples of its inputs."""
    return replace(member, over_inputs=seeing(member.over_inputs, since))
