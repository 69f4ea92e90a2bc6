"""Pays what partition groups owe: the results of tuples that were never in memory together.

Parts of a group are merged one after the other by incremental view maintenance (state-spill 4.1, equation 4): of two
inputs, what parts P and Q owe is `L(Q) x R(P)  +  L(P) x R(Q)`. Results within a part were found when it was in memory.
The part that is in memory now is merged last.

Equal keys are of one group, so what is of different groups never meets, and the groups of a join are merged side by
side: the first part of each, then the second of each. A group costs its tuples, and next to nothing by itself.

A part that has been through this before (`Part.since`) has met everything of the group that was in memory then, so of
a later part it owes only what is not older. The paper needs no such mark, since it cleans up once, at the end.

What is read back goes into stores of its own, one per alias, whose row numbers have nothing to do with the engine's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from operators.data.evaluate import evaluate
from operators.data.tuples import FOREVER, Tuples
from operators.kernels.order import order_ties
from operators.spill.block_store import BlockStore
from operators.spill.spilled_part import ROW, Part, Piece, Reader, in_memory
from operators.state.match import LEFT, RIGHT, Match, Prepared
from operators.state.sources import Sources
from operators.state.store import SourceStore
from schemas.columns import I64, Batch, Mask
from schemas.query import Query, Type


class CleanupSources(Sources):
    """The stores of what is read back: per alias, and with each tuple's row in the engine's store as a column."""

    def __init__(self, query: Query, *, hashed: bool = True) -> None:
        super().__init__(query, hashed=hashed)
        self._fields = {
            alias: [(name, self._type(store, name)) for name in store.columns] + [(ROW, Type.BIGINT)]
            for alias, store in self._store_of.items()
        }
        self.begin(())

    @staticmethod
    def _type(store: SourceStore, name: str) -> Type:
        return Type.TIMESTAMP if name == "_ts" else store.gather(name, np.zeros(0, np.int64)).type

    def begin(self, aliases: Iterable[str]) -> None:
        """Forget all tuples of these aliases; of every alias when there are none."""
        for alias in tuple(aliases) or tuple(self._fields):
            self._store_of[alias] = SourceStore(self._fields[alias])

    def numbers(self, alias: str, rows: I64) -> I64:
        """(n,) the numbers that tuples have in their stream."""
        return self.store(alias).gather(ROW, rows).values.astype(np.int64, copy=False)

    def expiry(self, alias: str, rows: I64, ts: I64) -> I64:
        """(n,) the last ts at which tuples may be alive; FOREVER of ROWS, since what came after them is not here."""
        return np.minimum(ts + self.life[alias], FOREVER)

    def load(self, aliases: tuple[str, ...], batch: Batch) -> Tuples:
        """Store what was materialised of tuples over these aliases; the tuples, in the same order."""
        rows: I64 = np.zeros((len(aliases), len(batch)), np.int64)
        expiry: I64 = np.full(len(batch), FOREVER)
        for k, alias in enumerate(aliases):
            store = self._store_of[alias]
            columns = {name: batch.columns[f"{alias}.{name}"] for name in store.columns}
            times = columns.pop("_ts").values.astype(np.int64, copy=False)
            rows[k] = store.append(Batch(times, columns))
            np.minimum(expiry, self.expiry(alias, rows[k], times), out=expiry)
        return Tuples(aliases, rows, batch.ts, expiry)

    def results(self, found: Tuples) -> Batch:
        """Results of the query over what was read back, as the engine has them: ascending by (ts, row ids in FROM
        order)."""
        found = found.reorder(tuple(source.alias for source in self.query.sources))
        found = found.take(np.argsort(found.ts, kind="stable").astype(np.int64))
        rows = [self.numbers(alias, own) for alias, own in zip(found.aliases, found.rows, strict=True)]
        found = found.take(order_ties(found.ts, np.array(rows)))
        resolve = self.resolver(found.aliases, found.rows)
        return Batch(found.ts, {o.name: evaluate(o.expr, resolve, len(found)) for o in self.query.outputs})


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """One side's tuples, numbered as they were read.

    Attributes:
        pieces: as they were read, one after the other.
        tuples: (n,) with their times.
        since, late: (n,) of the part that each is of.
        order: (n,) the numbers, ascending by the round in which they are merged.
        ends: (rounds,) up to where of `order` they are merged in each round.
    """

    pieces: tuple[Piece, ...]
    tuples: Tuples
    since: I64
    late: Mask
    order: I64
    ends: I64


class Merge:
    """Merges the parts of some partition groups of one join.

    Args:
        groups: per group its parts on disk, the oldest first.
        memory: of each side what these groups have in memory, materialised; None when all of it is on disk.

    Raises:
        StateError: a block is missing or damaged.
    """

    def __init__(
        self,
        sources: CleanupSources,
        match: Match,
        blocks: BlockStore,
        groups: Sequence[Sequence[Part]],
        memory: tuple[Batch, Batch] | None = None,
    ) -> None:
        sources.begin(match.aliases)
        self._sources = sources
        self._match = match
        rounds = [[parts[k] for parts in groups if k < len(parts)] for k in range(max(map(len, groups)))]
        if memory is not None:
            left, right = (in_memory(batch, batch.ts) for batch in memory)
            rounds.append([Part((left, right), since=0)])
        self._sides = [_read(sources, match.sides[side], side, rounds, blocks) for side in (LEFT, RIGHT)]

    def ends(self, side: int, sources: Sources) -> dict[tuple[str, int], int]:
        """When the last tuple of each piece that was read from disk expires, by key and begin, as far as ROWS windows
        know by now.

        Args:
            sources: where their streams are stored.
        """
        own = self._sides[side]
        if not own.pieces:
            return {}
        expiry: I64 = np.full(len(own.tuples), FOREVER)
        for alias, rows in zip(own.tuples.aliases, own.tuples.rows, strict=True):
            if alias in sources.rows_windows:
                np.minimum(expiry, sources.expiry(alias, self._sources.numbers(alias, rows), own.tuples.ts), out=expiry)
        begins = np.cumsum([0, *(piece.rows for piece in own.pieces[:-1])])
        last: list[int] = np.maximum.reduceat(expiry, begins).tolist()
        return {(p.key, p.begin): end for p, end in zip(own.pieces, last, strict=True) if p.batch is None}

    def found(self) -> Iterator[Tuples]:
        """What is owed, piece by piece: tuples over `match.aliases`, in any order."""
        match = self._match
        states = [match.new_state(side, sorted_by_ts=False) for side in (LEFT, RIGHT)]
        last = len(self._sides[LEFT].ends) - 1
        for number in range(last + 1):
            new = [self._prepared(side, number) for side in (LEFT, RIGHT)]
            for side in (LEFT, RIGHT):
                for pairs in match.find_timeless(side, new[side], states[1 - side]):
                    owed = self._owed(side, pairs)
                    if len(owed):
                        yield owed
            if number < last:
                for side in (LEFT, RIGHT):
                    match.enter(states[side], new[side], 0)

    def _prepared(self, side: int, number: int) -> Prepared:
        """What of a side is merged in a round, as if it lived for ever."""
        own = self._sides[side]
        begin, end = 0 if number == 0 else int(own.ends[number - 1]), int(own.ends[number])
        rows = np.take(own.tuples.rows, own.order[begin:end], axis=1)
        n = end - begin
        timeless = Tuples(own.tuples.aliases, rows, np.zeros(n, np.int64), np.full(n, FOREVER))
        return self._match.prepare(side, timeless)

    def _owed(self, side: int, pairs: Tuples) -> Tuples:
        """Of pairs of equal keys those that were owed, with their times; the newer part's tuple is of `side`."""
        # A side's tuples were stored as they were read, so the row of any component is the tuple's number.
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
    rounds: Sequence[Sequence[Part]],
    blocks: BlockStore,
) -> _Side:
    """Read a side of the parts that are merged in each round, block by block."""
    read = [
        (piece, part, number) for number, parts in enumerate(rounds) for part in parts for piece in part.pieces[side]
    ]
    read.sort(key=lambda one: (one[0].key, one[0].begin))
    batches = Reader(blocks).read(piece for piece, _, _ in read)
    sizes = [piece.rows for piece, _, _ in read]
    numbers = np.repeat(np.array([number for _, _, number in read], np.int64), sizes)
    return _Side(
        tuple(piece for piece, _, _ in read),
        sources.load(aliases, Batch.concat(batches)) if batches else Tuples.empty(aliases),
        np.repeat(np.array([part.since for _, part, _ in read], np.int64), sizes),
        np.repeat(np.array([part.late for _, part, _ in read], np.bool_), sizes),
        np.argsort(numbers, kind="stable").astype(np.int64),
        np.cumsum(np.bincount(numbers, minlength=len(rounds))),
    )
