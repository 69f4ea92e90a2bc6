"""What a shared operator owes for want of memory, found by joining blocks; `operators.groups.spill` says what that is.

Tuples on disk and in memory, stream by stream in their order, are cut into blocks, and for every set of inputs that
some queries read every choice of one block per input is joined by an operator of its own: a combination has one choice.
Choices are left out where no combination can be owed or live.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

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


class Settlement:
    """Finds what is owed of the results from `settled` on before `cut`.

    Args:
        parts: by stream what is on disk, in its order.
        most: how many tuples the blocks of one choice have together.
        counters: changed.
    """

    def __init__(
        self,
        parts: Mapping[str, Sequence[Part]],
        reader: Reader,
        most: int,
        settled: int,
        cut: int,
        counters: GroupSpillCounters,
    ) -> None:
        self._parts = parts
        self._reader = reader
        self._most = most
        self._settled = settled
        self._cut = cut
        self._counters = counters

    def owed(
        self, group: QueryGroup, since: Mapping[str, Mapping[str, int]], sources: GroupSources, join: Join
    ) -> Iterator[tuple[GroupSources, Member, Tuples]]:
        """Per query what was found together, ascending by (ts, rows), and the stores that its rows are of.

        Args:
            sources: with what is in memory.
            since: by query and input, the least ts of tuples that the query may see.
            join: makes every query's results of tuples by input, which lie in stores of their own.

        Raises:
            StateError: a block cannot be read.
        """
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
                if self._may_owe(part, chosen):
                    yield from self._joined(part, dict(zip(names, chosen, strict=True)), sources, join)

    def _blocks(self, sources: GroupSources, name: str, inputs: int) -> list[Block]:
        """The tuples of a stream, cut into blocks; those of a table are one."""
        store = sources.stores[name]
        most = max(LEAST_BLOCK_TUPLES, self._most // inputs)
        blocks: list[Block] = []
        together: list[Part] = []

        def close() -> None:
            if together:
                until = min(part.until for part in together)
                blocks.append(Block(tuple(together), None, together[0].least, together[-1].most, until))
                together.clear()

        for part in self._parts.get(name, ()):
            if together and part.hi - together[0].lo > most:
                close()
            together.append(part)
        close()
        times = times_of(store)
        step = len(store) if name in {table.name for table in sources.query.tables()} else most
        for begin in range(0, len(store), max(step, 1)):
            ts = times[begin : begin + step]
            rest = store.lo + begin, store.lo + begin + len(ts)
            blocks.append(Block((), rest, int(ts[0]), int(ts[-1]), FOREVER))
        return blocks

    def _may_owe(self, group: QueryGroup, chosen: Sequence[Block]) -> bool:
        """Whether some combination of the blocks' tuples may be owed."""
        latest = max(block.most for block in chosen)
        if latest < self._settled or min(block.until for block in chosen) > latest:
            return False
        begin = max(block.least for block in chosen)
        for source, block in zip(group.inputs, chosen, strict=True):
            windows = group.windows(source.alias)
            if all(window.kind == "RANGE" for window in windows) and block.most + windows[0].size < begin:
                return False
        return True

    def _joined(
        self, group: QueryGroup, chosen: Mapping[str, Block], sources: GroupSources, join: Join
    ) -> Iterator[tuple[GroupSources, Member, Tuples]]:
        """What is owed of combinations of some blocks, one per input."""
        self._counters.joins += 1
        own = GroupSources(group)
        own.cut = self._cut
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
            owed = tuples.take((tuples.ts >= self._settled) & (left_at <= tuples.ts))
            if len(owed):
                self._counters.results += len(owed)
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
            batches.append(_with_columns(Batch(times_of(store, ids), columns), lo, into))
            until.append(np.full(hi - lo, FOREVER))
        return Batch.concat(batches), np.concatenate(until)


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
