"""Moves partition groups from memory to disk, in small steps between two slices, so that a spill causes no pause.

`operators.spill.spilling.StateSpiller` calls `Eviction.step` after a slice. The chosen groups go through three steps,
join by join:

1. Groups are taken out of both states of their join at once. That rebuilds the states, which takes time in proportion
   to what stays. So groups of TAKEN_SHARE of the budget are taken out together, which makes a few rebuilds per spill,
   whatever the size of the budget.
2. The tuples wait in memory as parts of the ledger, like any other part: a cleanup that needs them finds them there.
   Chunk by chunk they are written to disk.
3. When all groups of a join are on disk, source tuples that no state refers to any more are released, store by store.

A group has been spilled after step 1. Only that step is reported, and what follows it may be interrupted anywhere.

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
from operators.spill.grouped import GroupedEntries
from operators.spill.ledger import Ledger
from operators.spill.spilled_part import PieceWriter, SpilledPart, SpilledPiece, batch_bytes, materialise, shared_pieces
from operators.state.sources import Sources
from schemas.columns import I64, Batch, Mask

TAKEN_SHARE = 1.0 / 64.0
"""Share of the budget that is taken out at once, but at least one chunk. Until it is written it still uses memory, up
to twice as much, since a tuple of several components is written with the values of all."""

CHUNK_BYTES = 256 * 1024
"""What is written at once."""

SWEPT_BYTES = 64
"""Scanning this many bytes of states for references to source tuples takes as long as writing one byte."""

REBUILT_BYTES = 16
"""Rebuilding this many bytes of states takes as long as writing one byte."""

PIECE_BYTES = 1024
"""Taking a group out, or writing its piece of a chunk, takes as long as writing this many bytes, in addition to its
own."""

SAMPLED_TUPLES = 64
"""Number of tuples from which the number of tuples per chunk is estimated."""

Choice = tuple[int, int, int]
"""A join's number, its group, and the size of the group in bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """Tuples of one side of a join that wait to be written: a piece of each group, one after the other."""

    join: int
    side: int
    batch: Batch
    expiry: I64
    pieces: tuple[tuple[int, SpilledPiece], ...]

    def size_bytes(self) -> int:
        return batch_bytes(self.batch) + self.expiry.nbytes


class Eviction:
    """Evicts partition groups from the states of one plan's joins.

    Args:
        joins: children before parents.
        groups: partition groups per join.
        taken_bytes: about how many bytes are taken out at once.
        report: called with the cut, the join and its groups whenever groups are evicted.

    Attributes:
        waiting_bytes: bytes that were taken out of states and are not written yet.
    """

    def __init__(
        self,
        sources: Sources,
        joins: Sequence[BinaryJoin],
        ledger: Ledger,
        writer: PieceWriter,
        counters: SpillCounters,
        groups: int,
        taken_bytes: int,
        report: Callable[[int, int, Sequence[int]], None],
    ) -> None:
        self._sources = sources
        self._joins = joins
        self._ledger = ledger
        self._writer = writer
        self._counters = counters
        self._groups = groups
        self._taken_bytes = taken_bytes
        self._report = report
        self._chosen: list[Choice] = []
        self._chunks: deque[_Chunk] = deque()
        # The stores that evicted groups referred to, and the join of the groups taken out last.
        self._unreleased: dict[str, None] = {}
        self._join = -1
        self.waiting_bytes = 0

    def __bool__(self) -> bool:
        """Whether an eviction is in progress."""
        return bool(self._chosen or self._chunks or self._unreleased)

    def choose(self, groups: Sequence[Choice]) -> None:
        """Set the groups to evict, the last one first; groups of a join follow each other."""
        self._chosen = list(groups)

    def step(self, cut: int, kept_from: int, max_bytes: int) -> None:
        """Evict as much as can be done in the time that writing `max_bytes` takes.

        Args:
            cut: everything before it has been processed.
            kept_from: what expired before this can match nothing, and its source tuples may be gone.

        Raises:
            StateError: a block could not be written.
        """
        done = 0
        while done < max_bytes and self:
            if self._chunks:
                done += self._write()
            elif self._unreleased and not (self._chosen and self._chosen[-1][0] == self._join):
                done += self._release(kept_from) // SWEPT_BYTES
            else:
                done += self._take_next(cut, kept_from)

    def evict(self, join: int, groups: Sequence[int], cut: int, kept_from: int) -> None:
        """Evict these groups, ascending, completely: all three steps.

        Raises:
            StateError: a block could not be written.
        """
        self._take_out(join, groups, cut, kept_from)
        self.write_all()
        while self._unreleased:
            self._release(kept_from)

    def write_all(self) -> None:
        """Write all chunks that wait.

        Raises:
            StateError: a block could not be written.
        """
        while self._chunks:
            self._write()

    def discard(self) -> None:
        """Drop the chunks that wait to be written."""
        self._chunks.clear()
        self.waiting_bytes = 0

    def _take_next(self, cut: int, kept_from: int) -> int:
        """Take out the next groups of one join; return how many bytes could be written in the same time."""
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
        """Take the groups' entries out of their states; each group becomes one part."""
        self._report(cut, j, groups)
        bounds = np.array(self._ledger.kept_from(j, groups, cut), np.int64)
        chosen: Mask = np.zeros(self._groups, np.bool_)
        chosen[list(groups)] = True
        parts: list[tuple[list[SpilledPiece], list[SpilledPiece]]] = [([], []) for _ in groups]
        for side, state in enumerate(self._joins[j].states):
            memory = GroupedEntries(state, kept_from)
            tuples = memory.tuples(groups)
            group_of = np.repeat(np.arange(len(groups)), [memory.size(g) for g in groups])
            alive = tuples.expiry >= bounds[group_of]
            tuples, group_of = tuples.take(alive), group_of[alive]
            state.take_out(state.in_groups(chosen))
            self._counters.spilled_tuples += len(tuples)
            for begin, end in self._chunk_ranges(tuples):
                own = tuples.take(np.arange(begin, end, dtype=np.int64))
                self._queue_chunk(j, side, groups, own, group_of[begin:end], parts)
        for g, (left, right) in zip(groups, parts, strict=True):
            if left or right:
                self._ledger.add((j, g), SpilledPart((tuple(left), tuple(right)), cut))
                self._counters.spilled_groups += 1
        for alias in self._joins[j].aliases:
            self._unreleased[self._sources.query.source(alias).stream.name] = None
        self._join = j

    def _chunk_ranges(self, tuples: Tuples) -> Iterator[tuple[int, int]]:
        """Where chunks begin and end."""
        n = len(tuples)
        if n == 0:
            return
        sample = min(n, SAMPLED_TUPLES)
        size = batch_bytes(materialise(self._sources, tuples.take(np.linspace(0, n - 1, sample).astype(np.int64))))
        step = max(1, sample * CHUNK_BYTES // max(size, 1))
        for begin in range(0, n, step):
            yield begin, min(begin + step, n)

    def _queue_chunk(
        self,
        j: int,
        side: int,
        groups: Sequence[int],
        tuples: Tuples,
        group_of: I64,
        parts: Sequence[tuple[list[SpilledPiece], list[SpilledPiece]]],
    ) -> None:
        """Make a chunk of tuples, and add its pieces to the groups' parts.

        Args:
            groups: the numbers of all groups that are taken out.
            group_of: (n,) each tuple's index into `groups` and `parts`.
            parts: per group the pieces of the left and of the right side.
        """
        batch = materialise(self._sources, tuples)
        numbers, sizes = np.unique(group_of, return_counts=True)
        chunk_pieces: list[tuple[int, SpilledPiece]] = []
        pieces = shared_pieces(tuples.expiry, sizes.tolist(), batch=batch)
        for number, (piece,) in zip(numbers.tolist(), pieces, strict=True):
            parts[number][side].append(piece)
            chunk_pieces.append((groups[number], piece))
        chunk = _Chunk(j, side, batch, tuples.expiry, tuple(chunk_pieces))
        self._chunks.append(chunk)
        self.waiting_bytes += chunk.size_bytes()

    def _write(self) -> int:
        """Write the next chunk, without the pieces that were cleaned up meanwhile. Return how many bytes could be
        written in the same time if the chunk was one piece."""
        chunk = self._chunks[0]
        wanted = [self._ledger.has((chunk.join, g), chunk.side, piece) for g, piece in chunk.pieces]
        batch, expiry = chunk.batch, chunk.expiry
        if not all(wanted):
            rows: Mask = np.repeat(np.array(wanted, np.bool_), [piece.rows for _, piece in chunk.pieces])
            batch, expiry = batch.take(rows), expiry[rows]
        pieces = [piece for piece, good in zip(chunk.pieces, wanted, strict=True) if good]
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
        """Release those source tuples of the next store that no state refers to any more: mark and sweep. Return how
        many bytes of states were scanned."""
        name = next(iter(self._unreleased))
        store = self._sources.stores[name]
        referenced: Mask = np.zeros(store.hi - store.lo, np.bool_)
        scanned = 0
        for state in (state for join in self._joins for state in join.states):
            for alias in state.aliases:
                if self._sources.query.source(alias).stream.name == name:
                    state.drop_dead_rows()
                    state.mark_rows(alias, kept_from, store.lo, referenced)
                    scanned += state.touched_bytes()
        store.release(~referenced)
        del self._unreleased[name]
        return scanned
