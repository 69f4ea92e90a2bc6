"""What a shared operator owes for want of memory, found by joining blocks; `operators.groups.spill` says what that is.

Tuples on disk and in memory, stream by stream in their order, are cut into blocks, and for every set of inputs that
some queries read every choice of one block per input is joined by an operator of its own: a combination has one choice.
Choices are left out where no combination can be owed or live.

A `Settlement` is over what was there when it began, and joins one choice at a time: tuples may come and leave between
two. What leaves then has been met until after its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from operators.juggler.rows import columns_of_rows
from operators.juggler.sources import GroupSources, nulls
from operators.spill.part import Piece, Reader
from operators.store import SourceStore
from operators.tuples import FOREVER, Tuples
from schemas.columns import I64, Batch
from schemas.groups import Member, QueryGroup, seeing

LEAST_BLOCK_TUPLES = 256
"""Blocks are made no smaller than this for a budget's sake."""

Join = Callable[[GroupSources, QueryGroup, Mapping[str, Tuples]], Mapping[str, Tuples]]

Found = tuple[GroupSources, Member, Tuples]
"""What a query was owed, ascending by (ts, rows), and the stores that its rows are of."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the total order.

    Attributes:
        rows: by stream the first one that is not older than `ts`.
    """

    ts: int
    rows: Mapping[str, int]

    def since(self, begin: Mark) -> int:
        """How many tuples came from another place on before this one."""
        return sum(row - begin.rows.get(name, row) for name, row in self.rows.items())


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


@dataclass(frozen=True, slots=True)
class Block:
    """Tuples of a stream for one join, rows lo .. hi.

    Attributes:
        least, most: the first and the last ts.
        until: of the first that had left when this was made.
    """

    lo: int
    hi: int
    least: int
    most: int
    until: int


@dataclass(slots=True)
class GroupSpillCounters:
    """What has been done so far; `joins` of blocks."""

    spills: int = 0
    spilled_tuples: int = 0
    settlements: int = 0
    joins: int = 0
    results: int = 0
    settling_s: float = 0.0
    longest_settling_s: float = 0.0
    longest_spill_s: float = 0.0


class Settlement:
    """Finds what is owed of the results from one place on before another.

    Args:
        parts: by stream what is on disk, in its order; it may become more while this goes on, and not less.
        most: how many tuples the blocks of one choice have together.
        since: by query and input, the least ts of tuples that the query may see.
        counters: changed.

    Attributes:
        end: it is over the results before this.
        tuples: how many came between the two places.
        choices: of blocks, all; `left` of them have not been joined yet.
        work: the tuples of all choices together.
    """

    def __init__(
        self,
        parts: Mapping[str, Sequence[Part]],
        reader: Reader,
        most: int,
        begin: Mark,
        end: Mark,
        group: QueryGroup,
        since: Mapping[str, Mapping[str, int]],
        sources: GroupSources,
        counters: GroupSpillCounters,
    ) -> None:
        self._parts = parts
        self._reader = reader
        self._most = most
        self._begin = begin
        self.end = end
        self._counters = counters
        self.tuples = end.since(begin)
        sets: dict[frozenset[str], list[Member]] = {}
        for member in group.members:
            if len(member.inputs) > 1:
                sets.setdefault(frozenset(member.inputs), []).append(_seeing(member, since.get(member.name, {})))
        self._choices = [
            (part, chosen)
            for part in (group.restricted(members) for members in sets.values())
            for chosen in self._chosen(part, sources)
        ]
        self.choices = len(self._choices)
        self.work = sum(block.hi - block.lo for _, chosen in self._choices for block in chosen)

    @property
    def left(self) -> int:
        """See above."""
        return len(self._choices)

    def go_on(self, sources: GroupSources, join: Join) -> Iterator[Found]:
        """Join one choice of blocks; per query what was found.

        Args:
            sources: with what is in memory.
            join: makes every query's results of tuples by input, which lie in stores of their own.

        Raises:
            StateError: a block cannot be read.
        """
        part, chosen = self._choices.pop()
        names = [source.alias for source in part.inputs]
        yield from self._joined(part, dict(zip(names, chosen, strict=True)), sources, join)

    # --- Choices ----------------------------------------------------------------------------------------

    def _chosen(self, group: QueryGroup, sources: GroupSources) -> Iterator[tuple[Block, ...]]:
        """Every choice of blocks, one per input, of whose tuples some combination may be owed."""
        streams = [source.stream.name for source in group.inputs]
        blocks = {name: self._blocks(sources, name, len(streams)) for name in dict.fromkeys(streams)}
        old = {name: [block for block in own if block.most < self._begin.ts] for name, own in blocks.items()}
        new = {name: [block for block in own if block.most >= self._begin.ts] for name, own in blocks.items()}
        reaches = [self._reach(group, source.alias) for source in group.inputs]
        for first in range(len(streams)):
            # The first input of which what comes late is new: that leaves few blocks of the others.
            given = [(old if i < first else new if i == first else blocks)[name] for i, name in enumerate(streams)]
            order = [first, *(i for i in range(len(streams)) if i != first)]
            for found in _together([given[i] for i in order], [reaches[i] for i in order]):
                if min(block.until for block in found) <= max(block.most for block in found):
                    place = dict(zip(order, found, strict=True))
                    yield tuple(place[i] for i in range(len(streams)))

    def _reach(self, group: QueryGroup, name: str) -> int:
        """For how long a tuple of an input can be met, at most."""
        windows = group.windows(name)
        return windows[0].size if all(window.kind == "RANGE" for window in windows) else FOREVER

    def _blocks(self, sources: GroupSources, name: str, inputs: int) -> list[Block]:
        """The tuples of a stream before the end, cut into blocks; those of a table are one."""
        store = sources.stores[name]
        most = max(LEAST_BLOCK_TUPLES, self._most // inputs)
        begin = self._begin.rows.get(name, store.lo)
        blocks: list[Block] = []
        for part in self._parts.get(name, ()):
            if part.lo >= self.end.rows.get(name, FOREVER):
                break
            last = blocks[-1] if blocks else None
            if last is None or part.hi - last.lo > most or last.lo < begin <= part.lo:
                blocks.append(Block(part.lo, part.hi, part.least, part.most, part.until))
            else:
                blocks[-1] = replace(last, hi=part.hi, most=part.most, until=min(last.until, part.until))
        end = min(store.hi, self.end.rows.get(name, store.hi))
        bounds = sorted({store.lo, max(store.lo, min(begin, end)), end} if store.lo < end else ())
        for lo, hi in pairwise(bounds):
            step = hi - lo if name in {table.name for table in sources.query.tables()} else most
            for at in range(lo, hi, step):
                ts = times_of(store, np.arange(at, min(at + step, hi)))
                blocks.append(Block(at, at + len(ts), int(ts[0]), int(ts[-1]), FOREVER))
        return blocks

    # --- Joins ------------------------------------------------------------------------------------------

    def _joined(
        self, group: QueryGroup, chosen: Mapping[str, Block], sources: GroupSources, join: Join
    ) -> Iterator[Found]:
        """What is owed of combinations of some blocks, one per input."""
        self._counters.joins += 1
        own = GroupSources(group)
        own.cut = self.end.ts
        rows: dict[str, I64] = {}
        until: dict[str, I64] = {}
        for stream, store in own.stores.items():
            readers = [source.alias for source in group.inputs if source.stream.name == stream]
            left = [np.zeros(0, np.int64)]
            for block in sorted({chosen[name] for name in readers}, key=lambda block: block.lo):
                batch, left_at = self._read(sources.stores[stream], stream, store, block)
                ids = store.append(batch)
                left.append(left_at)
                rows |= {name: ids for name in readers if chosen[name] == block}
            until[stream] = np.concatenate(left)
        if not all(len(ids) for ids in rows.values()):
            return
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
            late = (tuples.ts >= self._begin.ts) & (tuples.ts < self.end.ts)
            owed = tuples.take(late & (left_at <= tuples.ts))
            if len(owed):
                self._counters.results += len(owed)
                yield own, member, owed

    def _read(self, store: SourceStore, name: str, into: SourceStore, block: Block) -> tuple[Batch, I64]:
        """A block's tuples with the columns of another store, and (n,) when each left. What is dead may be missing."""
        batches: list[Batch] = []
        until: list[I64] = []
        for part in self._parts.get(name, ()):
            lo, hi = max(part.lo, block.lo), min(part.hi, block.hi)
            if lo < hi:
                (batch,) = self._reader.read([part.piece])
                batches.append(_with_columns(batch.slice(lo - part.lo, hi - part.lo), lo, into))
                until.append(np.full(hi - lo, part.until))
        lo, hi = max(store.lo, block.lo), block.hi
        if lo < hi or not batches:
            ids = np.arange(lo, max(lo, hi))
            columns = {column: store.gather(column, ids) for column in into.columns if column in store.columns}
            batches.append(_with_columns(Batch(times_of(store, ids), columns), lo, into))
            until.append(np.full(len(ids), FOREVER))
        return Batch.concat(batches), np.concatenate(until)


def _together(blocks: Sequence[Sequence[Block]], reaches: Sequence[int]) -> Iterator[tuple[Block, ...]]:
    """Every choice of one block per input whose tuples some windows can hold together.

    Args:
        reaches: for how long a tuple of an input can be met.
    """
    chosen: list[Block] = []

    def more() -> Iterator[tuple[Block, ...]]:
        if len(chosen) == len(blocks):
            yield tuple(chosen)
            return
        for block in blocks[len(chosen)]:
            chosen.append(block)
            begin = max(one.least for one in chosen)
            if all(one.most + reach >= begin for one, reach in zip(chosen, reaches, strict=False)):
                yield from more()
            chosen.pop()

    return more()


def times_of(store: SourceStore, rows: I64 | None = None) -> I64:
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
