"""Joins the parts of partition groups: produces the pending results of tuples that were never in memory together.

`operators.spill.cleanup.by_join` and `operators.spill.cleanup.offline` call `GroupMerge`. It merges the parts of a
group one after the other by incremental view maintenance (state-spill 4.1, equation 4). For two inputs, the pending
results of parts P and Q are `L(Q) x R(P)  +  L(P) x R(Q)`. The results within a part were found while it was in memory.
The part that is in memory now is merged last.

Tuples with equal keys are in the same group, so tuples of different groups never match. The groups of a join are
therefore merged side by side: first the first part of each, then the second part of each. The cost of a group is its
tuples, and next to nothing for the group itself.

A part that a cleanup has merged before (`SpilledPart.since`) was joined with everything that was in the group's memory
then. Of a later part, only tuples that are not older have pending results with it. The paper needs no such mark, since
it cleans up once, at the end.

Tuples that are read back go into separate stores, one per alias. Row numbers in these stores are unrelated to the
engine's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from operators.data.evaluate import evaluate
from operators.data.tuples import FOREVER, Tuples
from operators.kernels.order import order_ties
from operators.spill.block_store import BlockStore
from operators.spill.spilled_part import ROW, PieceReader, SpilledPart, SpilledPiece, memory_pieces
from operators.state.match import LEFT, RIGHT, Match, Prepared
from operators.state.sources import Sources
from operators.state.store import SourceStore
from schemas.columns import I64, Batch, Mask
from schemas.query import ColumnRef, Query, Type, qualified


class CleanupSources(Sources):
    """Stores for tuples that are read back: one per alias. Each tuple's row in the engine's store is a column."""

    def __init__(self, query: Query, *, hashed: bool = True, kept: Sequence[ColumnRef] = ()) -> None:
        super().__init__(query, hashed=hashed, kept=kept)
        self._fields = {
            alias: [(name, self._type(store, name)) for name in store.columns] + [(ROW, Type.BIGINT)]
            for alias, store in self._store_of.items()
        }
        self.clear(())

    @staticmethod
    def _type(store: SourceStore, name: str) -> Type:
        return Type.TIMESTAMP if name == "_ts" else store.gather(name, np.zeros(0, np.int64)).type

    def clear(self, aliases: Iterable[str]) -> None:
        """Remove all tuples of these aliases; of every alias when there are none."""
        for alias in tuple(aliases) or tuple(self._fields):
            self._store_of[alias] = SourceStore(self._fields[alias])

    def numbers(self, alias: str, rows: I64) -> I64:
        """(n,) the row numbers of tuples in the engine's store of their stream."""
        return self.store(alias).gather(ROW, rows).values.astype(np.int64, copy=False)

    def expiry(self, alias: str, rows: I64, ts: I64) -> I64:
        """(n,) the last ts at which tuples may be alive. FOREVER for ROWS windows, since the tuples that came after
        them are not stored here."""
        return np.minimum(ts + self.life[alias], FOREVER)

    def load(self, aliases: tuple[str, ...], batch: Batch) -> Tuples:
        """Store materialised tuples over these aliases; return the tuples in the same order."""
        rows: I64 = np.zeros((len(aliases), len(batch)), np.int64)
        expiry: I64 = np.full(len(batch), FOREVER)
        for k, alias in enumerate(aliases):
            store = self._store_of[alias]
            columns = {name: batch.columns[qualified(alias, name)] for name in store.columns}
            times = columns.pop("_ts").values.astype(np.int64, copy=False)
            rows[k] = store.append(Batch(times, columns))
            np.minimum(expiry, self.expiry(alias, rows[k], times), out=expiry)
        return Tuples(aliases, rows, batch.ts, expiry)

    def results(self, found: Tuples) -> Batch:
        """Results of the query over tuples that were read back, in the engine's order: ascending by (ts, row ids in
        FROM order)."""
        found = found.reorder(tuple(source.alias for source in self.query.sources))
        found = found.take(np.argsort(found.ts, kind="stable").astype(np.int64))
        rows = [self.numbers(alias, own) for alias, own in zip(found.aliases, found.rows, strict=True)]
        found = found.take(order_ties(found.ts, np.array(rows)))
        resolve = self.resolver(found.aliases, found.rows)
        return Batch(found.ts, {o.name: evaluate(o.expr, resolve, len(found)) for o in self.query.outputs})


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """The tuples of one side, numbered in the order in which they were read.

    Attributes:
        pieces: in the order in which they were read.
        tuples: (n,) with their times.
        since, late: (n,) of the part that each tuple is in.
        order: (n,) the numbers, ascending by the merge step of each tuple.
        ends: (merge steps,) the end of each step's tuples in `order`.
    """

    pieces: tuple[SpilledPiece, ...]
    tuples: Tuples
    since: I64
    late: Mask
    order: I64
    ends: I64


class GroupMerge:
    """Merges the parts of some partition groups of one join.

    Args:
        groups: per group its parts on disk, the oldest first.
        memory: per side the materialised tuples that these groups have in memory; None when all of them are on disk.

    Raises:
        StateError: a block is missing or damaged.
    """

    def __init__(
        self,
        sources: CleanupSources,
        match: Match,
        blocks: BlockStore,
        groups: Sequence[Sequence[SpilledPart]],
        memory: tuple[Batch, Batch] | None = None,
    ) -> None:
        sources.clear(match.aliases)
        self._sources = sources
        self._match = match
        merge_steps = [[parts[k] for parts in groups if k < len(parts)] for k in range(max(map(len, groups)))]
        if memory is not None:
            left, right = (memory_pieces(batch, batch.ts) for batch in memory)
            merge_steps.append([SpilledPart((left, right), since=0)])
        self._sides = [_read(sources, match.sides[side], side, merge_steps, blocks) for side in (LEFT, RIGHT)]

    def ends(self, side: int, sources: Sources) -> dict[tuple[str, int], int]:
        """When the last tuple of each piece that was read from disk expires, by key and begin, as far as ROWS windows
        determine it by now.

        Args:
            sources: the stores of the streams.
        """
        own = self._sides[side]
        if not own.pieces:
            return {}
        expiry: I64 = np.full(len(own.tuples), FOREVER)
        for alias, rows in zip(own.tuples.aliases, own.tuples.rows, strict=True):
            if alias in sources.rows_windows:
                np.minimum(expiry, sources.expiry(alias, self._sources.numbers(alias, rows), own.tuples.ts), out=expiry)
            for column, numbered in sources.numbered_columns(alias):
                values = self._sources.store(alias).gather(column.name, rows).values.astype(np.int64, copy=False)
                np.minimum(expiry, numbered.expiry(column, values), out=expiry)
        begins = np.cumsum([0, *(piece.rows for piece in own.pieces[:-1])])
        last: list[int] = np.maximum.reduceat(expiry, begins).tolist()
        return {(p.key, p.begin): end for p, end in zip(own.pieces, last, strict=True) if p.batch is None}

    def missing_results(self) -> Iterator[Tuples]:
        """The pending results, piece by piece: tuples over `match.aliases`, in any order."""
        match = self._match
        states = [match.new_state(side, sorted_by_ts=False) for side in (LEFT, RIGHT)]
        last = len(self._sides[LEFT].ends) - 1
        for number in range(last + 1):
            new = [self._prepared(side, number) for side in (LEFT, RIGHT)]
            for side in (LEFT, RIGHT):
                for pairs in match.find_timeless(side, new[side], states[1 - side]):
                    missing = self._missing(side, pairs)
                    if len(missing):
                        yield missing
            if number < last:
                for side in (LEFT, RIGHT):
                    match.enter(states[side], new[side], 0)

    def _prepared(self, side: int, number: int) -> Prepared:
        """The tuples of a side in a merge step, as if they never expired."""
        own = self._sides[side]
        begin, end = 0 if number == 0 else int(own.ends[number - 1]), int(own.ends[number])
        rows = np.take(own.tuples.rows, own.order[begin:end], axis=1)
        n = end - begin
        timeless = Tuples(own.tuples.aliases, rows, np.zeros(n, np.int64), np.full(n, FOREVER))
        return self._match.prepare(side, timeless)

    def _missing(self, side: int, pairs: Tuples) -> Tuples:
        """The pairs of equal keys that were pending results, with their times; the newer part's tuple is of `side`."""
        # A side's tuples were stored in the order in which they were read, so the row of any component is the
        # tuple's number.
        at = pairs.rows[0], pairs.rows[-1]
        left, right = (own.tuples for own in self._sides)
        ts = np.maximum(left.ts[at[LEFT]], right.ts[at[RIGHT]])
        expiry = np.minimum(left.expiry[at[LEFT]], right.expiry[at[RIGHT]])
        newer, older = self._sides[side], self._sides[1 - side]
        met = (newer.tuples.ts[at[side]] < older.since[at[1 - side]]) & ~newer.late[at[side]]
        good = (ts <= expiry) & ~met
        found = replace(pairs, ts=ts, expiry=expiry)
        return found if good.all() else found.take(good)


def _read(
    sources: CleanupSources,
    aliases: tuple[str, ...],
    side: int,
    merge_steps: Sequence[Sequence[SpilledPart]],
    blocks: BlockStore,
) -> _Side:
    """Read one side of the parts of each merge step, block by block."""
    read = [
        (piece, part, step) for step, parts in enumerate(merge_steps) for part in parts for piece in part.pieces[side]
    ]
    read.sort(key=lambda item: (item[0].key, item[0].begin))
    batches = PieceReader(blocks).read(piece for piece, _, _ in read)
    sizes = [piece.rows for piece, _, _ in read]
    steps = np.repeat(np.array([step for _, _, step in read], np.int64), sizes)
    return _Side(
        tuple(piece for piece, _, _ in read),
        sources.load(aliases, Batch.concat(batches)) if batches else Tuples.empty(aliases),
        np.repeat(np.array([part.since for _, part, _ in read], np.int64), sizes),
        np.repeat(np.array([part.late for _, part, _ in read], np.bool_), sizes),
        np.argsort(steps, kind="stable").astype(np.int64),
        np.cumsum(np.bincount(steps, minlength=len(merge_steps))),
    )
