"""Cleans up partition groups of a running plan, join by join from the sources to the root.

`operators.spill.cleanup.steps` decides which groups are next. A join's pending results become one more part of the join
above. That part has not been joined with anything yet (`SpilledPart.late`). The root's pending results are late results
of the query. A part that later tuples can still match stays on disk. From then on it counts as joined with everything
that was in memory (`SpilledPart.since`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from operators.data.evaluate import Resolve
from operators.data.keys import key_hashes
from operators.data.tuples import FOREVER, Tuples
from operators.difference.longest_match import WindowStores
from operators.join.binary_join import BinaryJoin
from operators.kernels.hashing import U64
from operators.kernels.index import I32
from operators.kernels.partition import groups_of
from operators.plan.predicates import Operand
from operators.spill.block_store import BlockStore
from operators.spill.cleanup.missed_results import CleanupSources, GroupMerge
from operators.spill.counters import SpillCounters
from operators.spill.grouped import GroupedEntries
from operators.spill.ledger import Ledger
from operators.spill.spilled_part import (
    ROW,
    PieceWriter,
    SpilledPart,
    SpilledPiece,
    batch_bytes,
    materialise,
    shared_pieces,
    unexpired,
)
from operators.state.match import LEFT, RIGHT, Match
from operators.state.sources import Sources
from schemas.columns import I64, Batch
from schemas.query import qualified

MERGED_TUPLES = 1 << 16
"""Cleanup merges groups of at most this many tuples together: memory against the number of calls."""

LATE_BYTES = 4 * 1024 * 1024
"""Pending results that wait in memory for the join above, at most; twice as many for a short time."""

ConsumeResults = Callable[[Tuples, WindowStores], None]
"""Takes results, and the stores that their row ids refer to."""

ParentInput = tuple[int, int]
"""The number of the join that reads another join's results, and the side on which it reads them."""


class PlanCleanup:
    """Cleans up the partition groups of one plan.

    Args:
        joins: children before parents.
        parents: per join the input that reads its results, None for the root.
        consume: takes the results of the root; None to keep them for `take`.
        ledger: the parts; cleanup removes those that it merges.

    Attributes:
        delivered: results before this event time are already delivered and are not produced again.
    """

    def __init__(
        self,
        sources: Sources,
        joins: Sequence[BinaryJoin],
        parents: Sequence[ParentInput | None],
        ledger: Ledger,
        blocks: BlockStore,
        writer: PieceWriter,
        counters: SpillCounters,
        delivered: int,
        consume: ConsumeResults | None,
    ) -> None:
        self._sources = sources
        self._joins = joins
        self._parents = parents
        self._ledger = ledger
        self._blocks = blocks
        self._writer = writer
        self._counters = counters
        self.delivered = delivered
        self._consume = consume
        self._results: list[Batch] = []
        self._late: list[list[tuple[int, Batch]]] = [[] for _ in joins]
        self._late_bytes = 0
        # Bytes of late parts in memory, per join.
        self._late_memory_bytes = [0] * len(joins)
        # Created by the first cleanup.
        self._disk_sources: CleanupSources | None = None
        self._matches: dict[int, Match] = {}

    def take(self) -> list[Batch]:
        """Return the results found since the last call."""
        found, self._results = self._results, []
        return found

    def clean(
        self,
        j: int,
        groups: Sequence[int],
        cut: int,
        kept_from: int,
        max_tuples: int | None = None,
        between: Callable[[], None] | None = None,
    ) -> tuple[list[int], int]:
        """Clean up groups of a join, ascending. Their results become late parts of the join above.

        Args:
            cut: everything before it has been processed.
            kept_from: what expired before this has no pending results, and its source tuples may be gone.
            max_tuples: stop after merging this many tuples; None for all groups.
            between: called after each merge; it may take the results found so far.

        Returns:
            The groups that were cleaned up, at least one, and the number of tuples that were merged.

        Raises:
            StateError: a block could not be written or read.
        """
        memory = [GroupedEntries(state, kept_from) for state in self._joins[j].states]
        cleaned: list[int] = []
        merged = 0
        for chunk, tuples in self._chunks(j, groups, memory, max_tuples):
            self._clean_groups(j, chunk, memory, cut)
            cleaned += chunk
            merged += tuples
            if between is not None:
                between()
            if max_tuples is not None and merged >= max_tuples:
                break
        if not self._ledger.late(j):
            self._late_memory_bytes[j] = 0
        parent = self._parents[j]
        if parent is not None:
            self._add_late_parts(parent[0])
        return cleaned, merged

    def _chunks(
        self, j: int, groups: Sequence[int], memory: Sequence[GroupedEntries], max_tuples: int | None
    ) -> Iterator[tuple[list[int], int]]:
        """The groups in chunks of at most MERGED_TUPLES, and the number of tuples of each chunk. Groups that do not fit
        into `max_tuples` are chunks of their own."""
        chunk: list[int] = []
        tuples = 0
        for g in groups:
            size = self._ledger.size((j, g)) + sum(own.size(g) for own in memory)
            if chunk and tuples + size > (MERGED_TUPLES if max_tuples is None else min(max_tuples, MERGED_TUPLES)):
                yield chunk, tuples
                max_tuples = None if max_tuples is None else max_tuples - tuples
                chunk, tuples = [], 0
            chunk.append(g)
            tuples += size
        yield chunk, tuples

    def _clean_groups(self, j: int, groups: Sequence[int], memory: Sequence[GroupedEntries], cut: int) -> None:
        match = self._match(j)
        assert self._disk_sources is not None
        parts = [self._ledger.pop((j, g)) for g in groups]
        left, right = (materialise(self._sources, own.tuples(groups)) for own in memory)
        merge = GroupMerge(self._disk_sources, match, self._blocks, parts, (left, right))
        for found in merge.missing_results():
            self._deliver(j, found)
        self._counters.cleanups += len(groups)
        bound = self._ledger.bound(j, cut)
        kept = [self._keep_joinable(j, side, parts, bound, merge) for side in (LEFT, RIGHT)]
        for g, *sides in zip(groups, *kept, strict=True):
            if any(sides):
                self._ledger.add((j, g), SpilledPart((sides[LEFT], sides[RIGHT]), cut))

    def _match(self, j: int) -> Match:
        if self._disk_sources is None:
            self._disk_sources = CleanupSources(
                self._sources.query, hashed=self._sources.hashed, kept=self._sources.kept
            )
        if j not in self._matches:
            left, right = self._joins[j].match.sides
            self._matches[j] = Match(self._disk_sources, left, right, implied=True)
        return self._matches[j]

    def _keep_joinable(
        self, j: int, side: int, merged: Sequence[Sequence[SpilledPart]], bound: int, merge: GroupMerge
    ) -> list[tuple[SpilledPiece, ...]]:
        """Per group the pieces of merged parts that later tuples can still match, all on disk. The others are
        deleted."""
        # The end of a tuple's ROWS window may become known only after the tuple has been written.
        counts = bool(self._sources.rows_windows) or self._sources.numbered is not None
        known = merge.ends(side, self._sources) if counts else {}
        kept: list[list[SpilledPiece]] = [[] for _ in merged]
        expired: list[SpilledPiece] = []
        unwritten: list[tuple[int, Batch, I64]] = []
        for number, parts in enumerate(merged):
            for piece in (piece for part in parts for piece in part.pieces[side]):
                if min(piece.last, known.get((piece.key, piece.begin), piece.last)) < bound:
                    expired.append(piece)
                elif (in_memory := piece.memory_batch()) is None:
                    kept[number].append(piece)
                else:
                    expiry = self._expiry(self._joins[j].match.sides[side], in_memory)
                    unwritten.append((number, *unexpired(in_memory, expiry, bound)))
        self._writer.forget(tuple(expired))
        if unwritten:
            numbers, batches, ends = zip(*unwritten, strict=True)
            written = self._writer.write_groups(
                f"{j}/{side}", Batch.concat(batches), np.concatenate(ends), [len(batch) for batch in batches]
            )
            for number, pieces in zip(numbers, written, strict=True):
                kept[number] += pieces
        return [tuple(pieces) for pieces in kept]

    def _expiry(self, aliases: tuple[str, ...], batch: Batch) -> I64:
        """(n,) when materialised tuples expire, as far as that is known."""
        expiry: I64 = np.full(len(batch), FOREVER)
        for alias in aliases:
            rows, ts = (
                batch.columns[qualified(alias, name)].values.astype(np.int64, copy=False) for name in (ROW, "_ts")
            )
            np.minimum(expiry, self._sources.expiry(alias, rows, ts), out=expiry)
            for column, numbered in self._sources.numbered_columns(alias):
                values = batch.columns[qualified(alias, column.name)].values.astype(np.int64, copy=False)
                np.minimum(expiry, numbered.expiry(column, values), out=expiry)
        return expiry

    def _deliver(self, j: int, found: Tuples) -> None:
        """Pass a join's pending results to the join above, or output them if it is the root."""
        assert self._disk_sources is not None
        parent = self._parents[j]
        if parent is None:
            found = found.take(found.ts >= self.delivered)
            if self._consume is None:
                self._results.append(self._disk_sources.results(found))
            else:
                self._consume(found, self._disk_sources)
            self._counters.cleanup_results += len(found)
            return
        batch = materialise(self._disk_sources, found)
        self._late[parent[0]].append((parent[1], batch))
        self._late_bytes += batch_bytes(batch)
        if self._late_bytes > LATE_BYTES:
            self._add_late_parts(parent[0], on_disk=True)

    def enter_late(self, j: int, side: int, batch: Batch) -> None:
        """Add materialised tuples as late parts of a join's groups."""
        self._late[j].append((side, batch))
        self._add_late_parts(j)

    def write_late(self) -> None:
        """Write all results that wait for joins above, and all late parts in memory, to disk.

        Raises:
            StateError: a block could not be written.
        """
        for j in range(len(self._joins)):
            self._add_late_parts(j, on_disk=True)
        for (j, g), parts in list(self._ledger.items()):
            pieces = [(side, piece) for part in parts for side in (LEFT, RIGHT) for piece in part.pieces[side]]
            for side, piece in pieces:
                in_memory = piece.memory_batch()
                if in_memory is not None:
                    expiry = self._expiry(self._joins[j].match.sides[side], in_memory)
                    written = self._writer.write(f"{j}/{side}", in_memory, expiry)
                    self._ledger.replace((j, g), side, piece, written)

    def _add_late_parts(self, j: int, *, on_disk: bool = False) -> None:
        """Turn the results that cleanups below have found into parts of the join's groups."""
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
            if on_disk or self._late_memory_bytes[j] + size > LATE_BYTES:
                pieces = self._writer.write_groups(f"{j}/{side}", batch, expiry, sizes)
            else:
                pieces = shared_pieces(expiry, sizes, batch=batch)
                self._late_memory_bytes[j] += size
            for g, own in enumerate(pieces):
                if own:
                    self._ledger.add_late((j, g), side, own)
        self._late[j] = []
        self._late_bytes = sum(batch_bytes(batch) for late in self._late for _, batch in late)


def _keyed(batch: Batch, key: Sequence[Operand]) -> tuple[Batch, U64 | None]:
    """Materialised tuples and the hashes of their keys. Tuples that a null keeps from ever matching are left out."""
    if not key:
        return batch, None
    hashes, valid = key_hashes([operand.values(_reader(batch), len(batch)) for operand in key])
    return (batch, hashes) if valid is None or valid.all() else (batch.take(valid), hashes[valid])


def _reader(batch: Batch) -> Resolve:
    return lambda column: batch.columns[qualified(column.alias, column.name)]


def _split(hashes: U64 | None, n: int, groups: int) -> I32:
    """(n,) the partition groups of keys. Without a key, all tuples are in group 0."""
    return np.zeros(n, np.int32) if hashes is None else groups_of(hashes, groups)
