"""Pays what a partition group owes: the results of tuples that were never in memory together.

Parts of a group are merged one after the other by incremental view maintenance (state-spill 4.1, equation 4): of two
inputs, what parts P and Q owe is `L(Q) x R(P)  +  L(P) x R(Q)`. Results within a part were found when it was in memory.
The part that is in memory now is merged last.

A part that has been through this before (`Part.since`) has met everything of the group that was in memory then, so of
a later part it owes only what is not older. The paper needs no such mark, since it cleans up once, at the end.

What is read back goes into stores of its own, one per alias, whose row numbers have nothing to do with the engine's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from operators.match import LEFT, RIGHT, Match, Prepared
from operators.sources import Sources
from operators.spill.block_store import BlockStore
from operators.spill.part import ROW, Part
from operators.store import SourceStore
from operators.tuples import Tuples
from schemas.columns import I64, Batch
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

    def load(self, aliases: tuple[str, ...], batch: Batch) -> Tuples:
        """Store what was materialised of tuples over these aliases; the tuples, in the same order."""
        rows: I64 = np.zeros((len(aliases), len(batch)), np.int64)
        for k, alias in enumerate(aliases):
            store = self._store_of[alias]
            columns = {name: batch.columns[f"{alias}.{name}"] for name in store.columns}
            times = columns.pop("_ts").values.astype(np.int64, copy=False)
            rows[k] = store.append(Batch(times, columns))
        return Tuples(aliases, rows, batch.ts, self.expiries(aliases, rows))

    def expiries(self, aliases: tuple[str, ...], rows: I64) -> I64:
        """(n,) when tuples over (k, n) component rows expire."""
        ends = []
        for alias, own in zip(aliases, rows, strict=True):
            times = self._store_of[alias].gather("_ts", own).values.astype(np.int64, copy=False)
            ends.append(self.expiry(alias, own, times))
        return np.asarray(np.minimum.reduce(ends), np.int64)


class Merge:
    """Merges the parts of one partition group of one join.

    Attributes:
        found: what they owed, piece by piece: tuples over `match.aliases`, in any order.
    """

    def __init__(self, sources: CleanupSources, match: Match, blocks: BlockStore) -> None:
        self._sources = sources
        self._match = match
        self._blocks = blocks
        self._states = [match.new_state(side, sorted_by_ts=False) for side in (LEFT, RIGHT)]
        self._tuples: list[list[Tuples]] = [[], []]
        self._since: list[list[I64]] = [[], []]
        self.found: list[Tuples] = []
        sources.begin(match.aliases)

    def add(self, part: Part, *, last: bool = False) -> None:
        """Join a part with all before it; the `last` is joined with nothing any more.

        Raises:
            StateError: a block of it is missing or damaged.
        """
        match = self._match
        prepared: list[Prepared] = []
        for side in (LEFT, RIGHT):
            aliases = match.sides[side]
            batches = [piece.read(self._blocks) for piece in part.pieces[side]]
            tuples = self._sources.load(aliases, Batch.concat(batches)) if batches else Tuples.empty(aliases)
            self._tuples[side].append(tuples)
            self._since[side].append(np.full(len(tuples), part.since))
            prepared.append(match.timeless(match.prepare(side, tuples)))
        for side in (LEFT, RIGHT):
            if len(prepared[side]) and self._states[1 - side].hi:
                self._keep(side, match.find_timeless(side, prepared[side], self._states[1 - side]), part.late)
        if not last:
            for side in (LEFT, RIGHT):
                match.enter(self._states[side], prepared[side], 0)

    def _keep(self, side: int, pairs: Tuples, late: bool) -> None:
        """Of pairs of equal keys those that were owed, with their times; the newer part's tuple is of `side`."""
        if len(pairs) == 0:
            return
        times: list[tuple[I64, I64]] = []
        picked: list[I64] = []
        for mine in (LEFT, RIGHT):
            # All components of a side's tuples were loaded together, so the first one's row is the tuple's number.
            at = pairs.rows[0 if mine == LEFT else len(self._match.sides[LEFT])]
            own = Tuples.concat(self._tuples[mine], self._match.sides[mine])
            self._tuples[mine] = [own]
            times.append((own.ts[at], own.expiry[at]))
            picked.append(at)
        ts = np.maximum(times[0][0], times[1][0])
        expiry = np.minimum(times[0][1], times[1][1])
        good = ts <= expiry
        if not late:
            since = np.concatenate(self._since[1 - side])
            self._since[1 - side] = [since]
            good &= times[side][0] >= since[picked[1 - side]]
        found = replace(pairs, ts=ts, expiry=expiry)
        self.found.append(found if good.all() else found.take(good))


