"""Cleans up the backlog of a run that has ended, in any process.

`weir cleanup` does it all at once (`clean_up_all`), or each group in a task of a Spark cluster
(`OfflineCleanup.clean_up`).

The parts of a group are merged as they are while the query runs (`operators.spill.cleanup.missed_results.GroupMerge`).
A join's pending results go to the groups of the join above, as one late part per side. That is why joins are cleaned up
from the sources to the root. The root's pending results are results of the query.

The pending results of a root group are a function of the backlog: another cleanup finds the same results, in whatever
order parts arrive from below. So a root group is the unit in which results are delivered.

Results below the root go to disk as blocks under LATE_PREFIX, and stay there until the whole backlog is cleaned up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from operators.data.tuples import Tuples
from operators.data.watermark import NEVER
from operators.kernels.partition import groups_of
from operators.plan.plan import Join, parse_plan, postorder
from operators.spill.backlog import Backlog
from operators.spill.block_store import BlockStore
from operators.spill.cleanup.missed_results import CleanupSources, GroupMerge
from operators.spill.productivity import heights_of
from operators.spill.spilled_part import PieceWriter, SpilledPart, SpilledPiece, batch_bytes, materialise
from operators.state.match import LEFT, RIGHT, Match
from schemas.columns import I64, Batch
from schemas.query import Query

LATE_PREFIX = "late"
"""The keys of blocks that a cleanup writes begin with this and a slash."""

LATE_BYTES = 4 * 1024 * 1024
"""Tuples for the join above that wait in memory, at most."""


@dataclass(frozen=True, slots=True)
class LateInput:
    """Pending results of a join, as input to one group of the join above.

    Attributes:
        expiry: (n,) of each tuple.
    """

    join: int
    group: int
    side: int
    batch: Batch
    expiry: I64


CleanupOutput = LateInput | Batch
"""Pending results of a group: input for the join above, or results of the query if the group is of the root."""


class OfflineCleanup:
    """Produces the pending results of partition groups in a backlog.

    Attributes:
        joins: the number of joins in the plan.
        heights: per join its height over the sources; joins of equal height can be cleaned up at the same time.
        root: the topmost join's number.
    """

    def __init__(self, query: Query, backlog: Backlog) -> None:
        """Raises QueryError: the backlog's plan is not a plan of this query."""
        plan = parse_plan(backlog.plan, query)
        self._query = query
        self._partitions = backlog.partitions
        self._delivered = backlog.delivered
        self._nodes = [node for node in postorder(plan) if isinstance(node, Join)]
        self._sources = CleanupSources(query, hashed=backlog.hashed)
        self._matches: dict[int, Match] = {}
        self.joins = len(self._nodes)
        self.heights = heights_of([node.aliases for node in self._nodes])
        self.root = self.joins - 1

    def clean_up(self, join: int, parts: Sequence[SpilledPart], blocks: BlockStore) -> Iterator[CleanupOutput]:
        """Join the parts of a group and return their pending results, piece by piece.

        Raises:
            StateError: a block is missing or damaged.
        """
        for found in GroupMerge(self._sources, self._match(join), blocks, [parts]).missing_results():
            yield from self._found(join, found)

    def _match(self, join: int) -> Match:
        if join not in self._matches:
            node = self._nodes[join]
            self._matches[join] = Match(self._sources, node.left.aliases, node.right.aliases, implied=True)
        return self._matches[join]

    def _found(self, join: int, found: Tuples) -> Iterator[CleanupOutput]:
        if join == self.root:
            found = found.take(found.ts >= self._delivered)
            if len(found):
                yield self._sources.results(found)
            return
        parent, side = self._parent(join)
        prepared = self._match(parent).prepare(side, found)
        late = prepared.tuples
        if len(late) == 0:
            return
        groups = np.zeros(len(late), np.int32)
        if prepared.hashes is not None:
            groups = groups_of(prepared.hashes, self._partitions)
        batch = materialise(self._sources, late)
        order = np.argsort(groups, kind="stable").astype(np.int64)
        numbers, first = np.unique(groups[order], return_index=True)
        for group, own in zip(numbers.tolist(), np.split(order, first[1:]), strict=True):
            yield LateInput(parent, group, side, batch.take(own), late.expiry[own])

    def _parent(self, join: int) -> tuple[int, int]:
        """The join that reads this join's results, and on which side."""
        node = self._nodes[join]
        return next(
            (k, side)
            for k, above in enumerate(self._nodes)
            for side, child in enumerate((above.left, above.right))
            if child is node
        )


def with_late(parts: Sequence[SpilledPart], late: Sequence[Sequence[SpilledPiece]]) -> list[SpilledPart]:
    """A group's parts plus late results from below, given per side; those of one side are one part."""
    found = list(parts)
    for side in (LEFT, RIGHT):
        pieces = tuple(late[side])
        if pieces:
            found.append(SpilledPart((pieces, ()) if side == LEFT else ((), pieces), NEVER, late=True))
    return found


def clean_up_all(
    cleanup: OfflineCleanup, backlog: Backlog, blocks: BlockStore, done: Iterable[int] = ()
) -> Iterator[tuple[int, Iterator[Batch]]]:
    """Clean up a whole backlog: return the results of each root group that may have any, ascending by group.

    The results are produced during iteration. Blocks that an earlier cleanup has left are deleted first.

    Args:
        done: root groups whose results are not wanted.

    Raises:
        StateError: a block is missing, damaged or cannot be written.
    """
    blocks.delete(blocks.keys(f"{LATE_PREFIX}/"))
    known = set(done)
    late_inputs = _LateBuffer(blocks, cleanup.joins)
    parts = {(own.join, own.group): [part.part() for part in own.parts] for own in backlog.groups}
    for join in range(cleanup.joins):
        late_inputs.write()
        groups = sorted({g for j, g in parts if j == join} | set(late_inputs.pieces[join]))
        for group in groups:
            own = with_late(parts.get((join, group), ()), late_inputs.pieces[join].pop(group, ((), ())))
            if join < cleanup.root:
                for found in cleanup.clean_up(join, own, blocks):
                    if isinstance(found, LateInput):
                        late_inputs.add(found)
            elif group not in known:
                yield group, (found for found in cleanup.clean_up(join, own, blocks) if isinstance(found, Batch))


class _LateBuffer:
    """Collects results for joins above.

    Attributes:
        pieces: on disk, per join, group and side.
    """

    def __init__(self, blocks: BlockStore, joins: int) -> None:
        self._writer = PieceWriter(blocks)
        self._waiting: dict[tuple[int, int, int], list[LateInput]] = {}
        self._bytes = 0
        self.pieces: list[dict[int, tuple[list[SpilledPiece], list[SpilledPiece]]]] = [{} for _ in range(joins)]

    def add(self, late: LateInput) -> None:
        """Keep tuples for their join."""
        self._waiting.setdefault((late.join, late.group, late.side), []).append(late)
        self._bytes += batch_bytes(late.batch)
        if self._bytes > LATE_BYTES:
            self.write()

    def write(self) -> None:
        """Write everything that waits to disk."""
        for (join, group, side), late in self._waiting.items():
            batch = Batch.concat([own.batch for own in late])
            expiry = np.concatenate([own.expiry for own in late])
            written = self._writer.write(f"{LATE_PREFIX}/{join}/{group}/{side}", batch, expiry)
            self.pieces[join].setdefault(group, ([], []))[side].extend(written)
        self._waiting, self._bytes = {}, 0
