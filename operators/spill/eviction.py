"""How partition groups leave memory: a bounded part between two slices, so that a spill is no pause.

What was chosen goes through three steps, join by join, and a slice has room for so many bytes of them:

1. Groups are taken out of both states of their join at once. That rebuilds the states, which takes time by what stays;
   so it is done for TAKEN_SHARE of the budget together, a few times per spill, whatever the size of the budget.
2. What was taken out waits in memory as parts of the ledger, like any other part: a cleanup that needs it finds it
   there. Chunk by chunk it is written to disk.
3. When a join's groups are all on disk, source tuples are given back that no state refers to any more, store by store.

A group has left with step 1. So that and nothing else is told, and what comes after it may be interrupted anywhere.

Limits: a rebuild cannot be interrupted. It takes some 25 ns per entry that stays, as when a ring grows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from operators.data.tuples import Tuples
from operators.join.binary_join import BinaryJoin
from operators.spill.counters import SpillCounters
from operators.spill.grouped import Grouped
from operators.spill.ledger import Ledger
from operators.spill.spilled_part import Part, Piece, Writer, batch_bytes, materialise, shares
from operators.state.sources import Sources
from schemas.columns import I64, Batch, Mask

TAKEN_SHARE = 1.0 / 64.0
"""Of the budget: what is taken out at once, but for what makes one chunk. Until it is written it goes on to take
memory, up to twice as much, since a tuple of several components is written with the values of all."""

CHUNK_BYTES = 256 * 1024
"""What is written at once."""

SWEPT_BYTES = 64
"""To look through so many bytes of states for what refers to source tuples takes as long as to write one."""

REBUILT_BYTES = 16
"""To rebuild so many bytes of states takes as long as to write one."""

PIECE_BYTES = 1024
"""To take a group out, or to write its piece of a chunk, takes as long as to write so many bytes, beside its own."""

SAMPLED_TUPLES = 64
"""Tuples by which it is told how many make a chunk."""

Choice = tuple[int, int, int]
"""A join's number, its group, and how many bytes that has."""


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """Tuples of a join's side that wait to be written: of each group a piece, one after the other."""

    join: int
    side: int
    batch: Batch
    expiry: I64
    pieces: tuple[tuple[int, Piece], ...]

    def size_bytes(self) -> int:
        return batch_bytes(self.batch) + self.expiry.nbytes


class Leaving:
    """What leaves the states of one plan's joins.

    Args:
        joins: children before parents.
        taken_bytes: about what is taken out at once.
        tell: told of each instant's groups that leave a join.

    Attributes:
        waiting_bytes: of what was taken out and is not written yet.
    """

    def __init__(
        self,
        sources: Sources,
        joins: Sequence[BinaryJoin],
        ledger: Ledger,
        writer: Writer,
        counters: SpillCounters,
        groups: int,
        taken_bytes: int,
        tell: Callable[[int, int, Sequence[int]], None],
    ) -> None:
        self._sources = sources
        self._joins = joins
        self._ledger = ledger
        self._writer = writer
        self._counters = counters
        self._groups = groups
        self._taken_bytes = taken_bytes
        self._tell = tell
        self._chosen: list[Choice] = []
        self._chunks: deque[_Chunk] = deque()
        # The stores whose tuples groups that have left referred to, and of which join the last groups were.
        self._unreleased: dict[str, None] = {}
        self._join = -1
        self.waiting_bytes = 0

    def __bool__(self) -> bool:
        """Whether anything is still on its way."""
        return bool(self._chosen or self._chunks or self._unreleased)

    def choose(self, groups: Sequence[Choice]) -> None:
        """These are to leave, the last one first; those of a join one after the other."""
        self._chosen = list(groups)

    def go_on(self, cut: int, kept_from: int, most_bytes: int) -> None:
        """Let as much leave as so many bytes take to be written.

        Args:
            cut: everything before it has been processed.
            kept_from: what expired before this can be met by nothing, and its source tuples may be gone.

        Raises:
            StateError: a block could not be written.
        """
        done = 0
        while done < most_bytes and self:
            if self._chunks:
                done += self._write()
            elif self._unreleased and not (self._chosen and self._chosen[-1][0] == self._join):
                done += self._release(kept_from) // SWEPT_BYTES
            else:
                done += self._take_next(cut, kept_from)

    def leave(self, join: int, groups: Sequence[int], cut: int, kept_from: int) -> None:
        """These groups leave, ascending, to the end.

        Raises:
            StateError: a block could not be written.
        """
        self._take_out(join, groups, cut, kept_from)
        self.write_all()
        while self._unreleased:
            self._release(kept_from)

    def write_all(self) -> None:
        """Write all that waits for it.

        Raises:
            StateError: a block could not be written.
        """
        while self._chunks:
            self._write()

    def forget(self) -> None:
        """What waits to be written is wanted no more."""
        self._chunks.clear()
        self.waiting_bytes = 0

    def _take_next(self, cut: int, kept_from: int) -> int:
        """Take out the next groups of one join; how many bytes could be written meanwhile."""
        join, freed = self._chosen[-1][0], 0
        groups: list[int] = []
        while self._chosen and self._chosen[-1][0] == join and freed < self._taken_bytes:
            _, g, size = self._chosen.pop()
            groups.append(g)
            freed += size
        rebuilt = sum(state.touched_bytes() for state in self._joins[join].states)
        waited = self.waiting_bytes
        self._take_out(join, sorted(groups), cut, kept_from)
        return rebuilt // REBUILT_BYTES + self.waiting_bytes - waited + PIECE_BYTES * len(groups)

    def _take_out(self, j: int, groups: Sequence[int], cut: int, kept_from: int) -> None:
        """The groups' entries leave their states, each group as one part."""
        self._tell(cut, j, groups)
        bounds = np.array(self._ledger.kept_from(j, groups, cut), np.int64)
        chosen: Mask = np.zeros(self._groups, np.bool_)
        chosen[list(groups)] = True
        parts: list[tuple[list[Piece], list[Piece]]] = [([], []) for _ in groups]
        for side, state in enumerate(self._joins[j].states):
            memory = Grouped(state, kept_from)
            tuples = memory.tuples(groups)
            of = np.repeat(np.arange(len(groups)), [memory.size(g) for g in groups])
            alive = tuples.expiry >= bounds[of]
            tuples, of = tuples.take(alive), of[alive]
            state.take_out(state.in_groups(chosen))
            self._counters.spilled_tuples += len(tuples)
            for begin, end in self._cut(tuples):
                self._wait(j, side, groups, tuples.take(np.arange(begin, end, dtype=np.int64)), of[begin:end], parts)
        for g, (left, right) in zip(groups, parts, strict=True):
            if left or right:
                self._ledger.add((j, g), Part((tuple(left), tuple(right)), cut))
                self._counters.spilled_groups += 1
        for alias in self._joins[j].aliases:
            self._unreleased[self._sources.query.source(alias).stream.name] = None
        self._join = j

    def _cut(self, tuples: Tuples) -> Iterator[tuple[int, int]]:
        """Where chunks begin and end."""
        n = len(tuples)
        if n == 0:
            return
        few = min(n, SAMPLED_TUPLES)
        size = batch_bytes(materialise(self._sources, tuples.take(np.linspace(0, n - 1, few).astype(np.int64))))
        step = max(1, few * CHUNK_BYTES // max(size, 1))
        for begin in range(0, n, step):
            yield begin, min(begin + step, n)

    def _wait(
        self,
        j: int,
        side: int,
        groups: Sequence[int],
        tuples: Tuples,
        of: I64,
        parts: Sequence[tuple[list[Piece], list[Piece]]],
    ) -> None:
        """Make a chunk of tuples, the n-th of the `of`-th group, and add its pieces to the groups' parts."""
        batch = materialise(self._sources, tuples)
        numbers, sizes = np.unique(of, return_counts=True)
        held: list[tuple[int, Piece]] = []
        for number, (piece,) in zip(numbers.tolist(), shares(tuples.expiry, sizes.tolist(), batch=batch), strict=True):
            parts[number][side].append(piece)
            held.append((groups[number], piece))
        chunk = _Chunk(j, side, batch, tuples.expiry, tuple(held))
        self._chunks.append(chunk)
        self.waiting_bytes += chunk.size_bytes()

    def _write(self) -> int:
        """Write the next chunk, but for what was cleaned up meanwhile; how many bytes could be written if it was one
        piece."""
        chunk = self._chunks[0]
        wanted = [self._ledger.has((chunk.join, g), chunk.side, piece) for g, piece in chunk.pieces]
        batch, expiry = chunk.batch, chunk.expiry
        if not all(wanted):
            rows: Mask = np.repeat(np.array(wanted, np.bool_), [piece.rows for _, piece in chunk.pieces])
            batch, expiry = batch.take(rows), expiry[rows]
        pieces = [one for one, good in zip(chunk.pieces, wanted, strict=True) if good]
        if pieces:
            sizes = [piece.rows for _, piece in pieces]
            written = self._writer.write_groups(f"{chunk.join}/{chunk.side}", batch, expiry, sizes)
            for (g, piece), own in zip(pieces, written, strict=True):
                self._ledger.replace((chunk.join, g), chunk.side, piece, own)
        self._chunks.popleft()
        size = chunk.size_bytes()
        self.waiting_bytes -= size
        return size + PIECE_BYTES * len(chunk.pieces)

    def _release(self, kept_from: int) -> int:
        """Give back those of the next store's source tuples that no state refers to any more: mark and sweep; how many
        bytes of states were looked through."""
        name = next(iter(self._unreleased))
        store = self._sources.stores[name]
        held: Mask = np.zeros(store.hi - store.lo, np.bool_)
        looked = 0
        for state in (state for join in self._joins for state in join.states):
            for alias in state.aliases:
                if self._sources.query.source(alias).stream.name == name:
                    state.bury()
                    state.mark_rows(alias, kept_from, store.lo, held)
                    looked += state.touched_bytes()
        store.release(~held)
        del self._unreleased[name]
        return looked
