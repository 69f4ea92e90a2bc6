"""Cleans up partition groups, join by join from the sources to the root: `operators.spill.cleanup.steps` says which.

What a join owed comes to the join above as one more part of it, one that was joined with nothing yet (`Part.late`), and
what the root owed is a late result of the query. A part that can still be met stays on disk, and from then on has been
joined with all that was in memory (`Part.since`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from operators.data.evaluate import Resolve
from operators.data.keys import key_hashes
from operators.data.tuples import FOREVER, Tuples
from operators.join.binary_join import BinaryJoin
from operators.kernels.hashing import U64
from operators.kernels.index import I32
from operators.kernels.partition import groups_of
from operators.plan.predicates import Operand
from operators.spill.block_store import BlockStore
from operators.spill.cleanup.missed_results import CleanupSources, Merge
from operators.spill.counters import SpillCounters
from operators.spill.grouped import Grouped
from operators.spill.ledger import Ledger
from operators.spill.spilled_part import ROW, Part, Piece, Writer, alive, batch_bytes, materialise, shares
from operators.state.match import LEFT, RIGHT, Match
from operators.state.sources import Sources
from schemas.columns import I64, Batch

MERGED_TUPLES = 1 << 16
"""Groups of so many tuples are merged together, at most: memory against calls."""

LATE_BYTES = 4 * 1024 * 1024
"""Results of a cleanup that wait in memory for a join above, at most; twice for a short time."""

Above = tuple[int, int]
"""A join and the side of it that reads another's results."""


class Cleaning:
    """Cleans up the partition groups of one plan.

    Args:
        joins: children before parents.
        parents: per join what reads its results, None for the root.
        ledger: what is owed; loses what is paid.

    Attributes:
        delivered: results of before this have been delivered already.
    """

    def __init__(
        self,
        sources: Sources,
        joins: Sequence[BinaryJoin],
        parents: Sequence[Above | None],
        ledger: Ledger,
        blocks: BlockStore,
        writer: Writer,
        counters: SpillCounters,
        delivered: int,
    ) -> None:
        self._sources = sources
        self._joins = joins
        self._parents = parents
        self._ledger = ledger
        self._blocks = blocks
        self._writer = writer
        self._counters = counters
        self.delivered = delivered
        self._results: list[Batch] = []
        self._late: list[list[tuple[int, Batch]]] = [[] for _ in joins]
        self._late_bytes = 0
        # Of late parts that are held in memory, per join.
        self._held_bytes = [0] * len(joins)
        # Made when there is anything to clean up.
        self._read: CleanupSources | None = None
        self._matches: dict[int, Match] = {}

    def take(self) -> list[Batch]:
        """The results since this was last asked."""
        found, self._results = self._results, []
        return found

    def clean(
        self,
        j: int,
        groups: Sequence[int],
        cut: int,
        kept_from: int,
        most: int | None = None,
        between: Callable[[], None] | None = None,
    ) -> tuple[list[int], int]:
        """Clean up groups of a join, ascending; what that makes owed above are late parts there.

        Args:
            cut: everything before it has been processed.
            kept_from: what expired before this is owed nothing, and its source tuples may be gone.
            most: stop when so many tuples have been merged; None for all groups.
            between: called after each merge; may take what was found.

        Returns:
            The groups that were cleaned up, one at least, and how many tuples that has merged.

        Raises:
            StateError: a block could not be written or read.
        """
        memory = [Grouped(state, kept_from) for state in self._joins[j].states]
        cleaned: list[int] = []
        merged = 0
        for turn, tuples in self._together(j, groups, memory, most):
            self._clean_groups(j, turn, memory, cut)
            cleaned += turn
            merged += tuples
            if between is not None:
                between()
            if most is not None and merged >= most:
                break
        if not self._ledger.late(j):
            self._held_bytes[j] = 0
        above = self._parents[j]
        if above is not None:
            self._enter_late(above[0])
        return cleaned, merged

    def _together(
        self, j: int, groups: Sequence[int], memory: Sequence[Grouped], most: int | None
    ) -> Iterator[tuple[list[int], int]]:
        """The groups in turns of MERGED_TUPLES or of fewer, and how many tuples each has; those that do not fit into
        `most` come one by one."""
        turn: list[int] = []
        tuples = 0
        for g in groups:
            size = self._ledger.size((j, g)) + sum(own.size(g) for own in memory)
            if turn and tuples + size > (MERGED_TUPLES if most is None else min(most, MERGED_TUPLES)):
                yield turn, tuples
                most = None if most is None else most - tuples
                turn, tuples = [], 0
            turn.append(g)
            tuples += size
        yield turn, tuples

    def _clean_groups(self, j: int, groups: Sequence[int], memory: Sequence[Grouped], cut: int) -> None:
        match = self._match(j)
        assert self._read is not None
        parts = [self._ledger.pop((j, g)) for g in groups]
        left, right = (materialise(self._sources, own.tuples(groups)) for own in memory)
        merge = Merge(self._read, match, self._blocks, parts, (left, right))
        for found in merge.found():
            self._deliver(j, found)
        self._counters.cleanups += len(groups)
        bound = self._ledger.bound(j, cut)
        living = [self._living(j, side, parts, bound, merge) for side in (LEFT, RIGHT)]
        for g, *sides in zip(groups, *living, strict=True):
            if any(sides):
                self._ledger.add((j, g), Part((sides[LEFT], sides[RIGHT]), cut))

    def _match(self, j: int) -> Match:
        if self._read is None:
            self._read = CleanupSources(self._sources.query, hashed=self._sources.hashed)
        if j not in self._matches:
            left, right = self._joins[j].match.sides
            self._matches[j] = Match(self._read, left, right, implied=True)
        return self._matches[j]

    def _living(
        self, j: int, side: int, merged: Sequence[Sequence[Part]], bound: int, merge: Merge
    ) -> list[tuple[Piece, ...]]:
        """Per group the pieces of merged parts that can still be met, all on disk; the others are deleted."""
        # When ROWS windows end is known later than what ends in them is written.
        known = merge.ends(side, self._sources) if self._sources.rows_windows else {}
        living: list[list[Piece]] = [[] for _ in merged]
        dead: list[Piece] = []
        unwritten: list[tuple[int, Batch, I64]] = []
        for number, parts in enumerate(merged):
            for piece in (piece for part in parts for piece in part.pieces[side]):
                if min(piece.last, known.get((piece.key, piece.begin), piece.last)) < bound:
                    dead.append(piece)
                elif (held := piece.held()) is None:
                    living[number].append(piece)
                else:
                    expiry = self._expiry(self._joins[j].match.sides[side], held)
                    unwritten.append((number, *alive(held, expiry, bound)))
        self._writer.forget(tuple(dead))
        if unwritten:
            numbers, batches, ends = zip(*unwritten, strict=True)
            written = self._writer.write_groups(
                f"{j}/{side}", Batch.concat(batches), np.concatenate(ends), [len(batch) for batch in batches]
            )
            for number, pieces in zip(numbers, written, strict=True):
                living[number] += pieces
        return [tuple(pieces) for pieces in living]

    def _expiry(self, aliases: tuple[str, ...], batch: Batch) -> I64:
        """(n,) when materialised tuples expire, as far as it is known."""
        expiry: I64 = np.full(len(batch), FOREVER)
        for alias in aliases:
            rows, ts = (
                batch.columns[f"{alias}.{name}"].values.astype(np.int64, copy=False) for name in (ROW, "_ts")
            )
            np.minimum(expiry, self._sources.expiry(alias, rows, ts), out=expiry)
        return expiry

    def _deliver(self, j: int, found: Tuples) -> None:
        """Hand what was owed to the join above, or out."""
        assert self._read is not None
        above = self._parents[j]
        if above is None:
            found = found.take(found.ts >= self.delivered)
            self._results.append(self._read.results(found))
            self._counters.cleanup_results += len(found)
            return
        batch = materialise(self._read, found)
        self._late[above[0]].append((above[1], batch))
        self._late_bytes += batch_bytes(batch)
        if self._late_bytes > LATE_BYTES:
            self._enter_late(above[0], on_disk=True)

    def write_late(self) -> None:
        """Put what waits for joins above on disk.

        Raises:
            StateError: a block could not be written.
        """
        for j in range(len(self._joins)):
            self._enter_late(j, on_disk=True)
        for (j, g), parts in list(self._ledger.items()):
            pieces = [(side, piece) for part in parts for side in (LEFT, RIGHT) for piece in part.pieces[side]]
            for side, piece in pieces:
                held = piece.held()
                if held is not None:
                    expiry = self._expiry(self._joins[j].match.sides[side], held)
                    written = self._writer.write(f"{j}/{side}", held, expiry)
                    self._ledger.replace((j, g), side, piece, written)

    def _enter_late(self, j: int, *, on_disk: bool = False) -> None:
        """What cleanups below have found becomes parts of the join's groups."""
        for side in (LEFT, RIGHT):
            batches = [batch for own, batch in self._late[j] if own == side]
            if not batches:
                continue
            aliases, key = self._joins[j].match.sides[side], self._joins[j].match.key(side)
            batch, hashes = _keyed(Batch.concat(batches), key)
            count = self._joins[j].states[side].partition_groups
            groups = _split(hashes, len(batch), count)
            order = np.argsort(groups, kind="stable").astype(np.int64)
            batch = batch.take(order)
            expiry = self._expiry(aliases, batch)
            sizes = np.bincount(groups, minlength=count).tolist()
            size = batch_bytes(batch)
            if on_disk or self._held_bytes[j] + size > LATE_BYTES:
                pieces = self._writer.write_groups(f"{j}/{side}", batch, expiry, sizes)
            else:
                pieces = shares(expiry, sizes, batch=batch)
                self._held_bytes[j] += size
            for g, own in enumerate(pieces):
                if own:
                    self._ledger.add_late((j, g), side, own)
        self._late[j] = []
        self._late_bytes = sum(batch_bytes(batch) for late in self._late for _, batch in late)


def _keyed(batch: Batch, key: Sequence[Operand]) -> tuple[Batch, U64 | None]:
    """Materialised tuples without those that a null keeps from ever matching, and their keys' hashes."""
    if not key:
        return batch, None
    hashes, valid = key_hashes([operand.values(_reader(batch), len(batch)) for operand in key])
    return (batch, hashes) if valid is None or valid.all() else (batch.take(valid), hashes[valid])


def _reader(batch: Batch) -> Resolve:
    return lambda column: batch.columns[f"{column.alias}.{column.name}"]


def _split(hashes: U64 | None, n: int, groups: int) -> I32:
    """(n,) the partition groups of keys; what has no key is all of group 0."""
    return np.zeros(n, np.int32) if hashes is None else groups_of(hashes, groups)
