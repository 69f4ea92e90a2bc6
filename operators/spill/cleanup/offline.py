"""Pays a debt group by group, wherever: all at once in a process (`pay_all`), or each group in a task of a cluster.

A group's parts are merged as while the query runs (`operators.spill.cleanup.missed_results.Merge`). What a join owed
comes to the groups of the join above, in one late part per side, which is why joins are paid from the sources to the
root; what the root owed are results.

What a group of the root owes is a function of the debt: who pays it again finds the same results, in whatever order
parts from below come. So a group of the root is the unit in which results are delivered.

What is found below the root goes to disk as blocks under LATE, and stays there until the debt is settled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from operators.data.tuples import Tuples
from operators.kernels.partition import groups_of
from operators.plan.plan import Join, parse_plan, postorder
from operators.spill.backlog import Debt
from operators.spill.block_store import BlockStore
from operators.spill.cleanup.missed_results import CleanupSources, Merge
from operators.spill.spilled_part import FAR_PAST, Part, Piece, Writer, batch_bytes, materialise
from operators.spill.strategies import heights_of
from operators.state.match import LEFT, RIGHT, Match
from schemas.columns import I64, Batch
from schemas.query import Query

LATE = "late"
"""What the keys of blocks begin with that a payment makes, after which comes a slash."""

LATE_BYTES = 4 * 1024 * 1024
"""Tuples for the join above that wait in memory, at most."""


@dataclass(frozen=True, slots=True)
class Late:
    """Tuples that a join owed, for one group of the join above.

    Attributes:
        expiry: (n,) of each tuple.
    """

    join: int
    group: int
    side: int
    batch: Batch
    expiry: I64


Found = Late | Batch
"""What a group has owed: tuples for the join above; of the root results."""


class Payer:
    """Finds what partition groups of a debt owe.

    Attributes:
        joins: how many the plan has.
        heights: per join how high it stands over the sources; what stands equally high can be paid at the same time.
        root: the topmost join's number.
    """

    def __init__(self, query: Query, debt: Debt) -> None:
        """Raises QueryError: the debt's plan is not one of this query."""
        plan = parse_plan(debt.plan, query)
        self._query = query
        self._partitions = debt.partitions
        self._delivered = debt.delivered
        self._nodes = [node for node in postorder(plan) if isinstance(node, Join)]
        self._sources = CleanupSources(query, hashed=debt.hashed)
        self._matches: dict[int, Match] = {}
        self.joins = len(self._nodes)
        self.heights = heights_of([node.aliases for node in self._nodes])
        self.root = self.joins - 1

    def pay(self, join: int, parts: Sequence[Part], blocks: BlockStore) -> Iterator[Found]:
        """What a group's parts owe each other, piece by piece.

        Raises:
            StateError: a block is missing or damaged.
        """
        for found in Merge(self._sources, self._match(join), blocks, [parts]).found():
            yield from self._found(join, found)

    def _match(self, join: int) -> Match:
        if join not in self._matches:
            node = self._nodes[join]
            self._matches[join] = Match(self._sources, node.left.aliases, node.right.aliases, implied=True)
        return self._matches[join]

    def _found(self, join: int, found: Tuples) -> Iterator[Found]:
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
            yield Late(parent, group, side, batch.take(own), late.expiry[own])

    def _parent(self, join: int) -> tuple[int, int]:
        """The join that reads this one's results, and on which side."""
        node = self._nodes[join]
        return next(
            (k, side)
            for k, above in enumerate(self._nodes)
            for side, child in enumerate((above.left, above.right))
            if child is node
        )


def with_late(parts: Sequence[Part], late: Sequence[Sequence[Piece]]) -> list[Part]:
    """A group's parts and what has come from below, per side; that of one side is one part."""
    found = list(parts)
    for side in (LEFT, RIGHT):
        pieces = tuple(late[side])
        if pieces:
            found.append(Part((pieces, ()) if side == LEFT else ((), pieces), FAR_PAST, late=True))
    return found


def pay_all(
    payer: Payer, debt: Debt, blocks: BlockStore, paid: Iterable[int] = ()
) -> Iterator[tuple[int, Iterator[Batch]]]:
    """Pay all of a debt: of each group of the root that may owe anything, ascending, its results.

    They are found while they are iterated over. What an earlier payment has left is deleted first.

    Args:
        paid: groups of the root that are not wanted.

    Raises:
        StateError: a block is missing, damaged or cannot be written.
    """
    blocks.delete(blocks.keys(f"{LATE}/"))
    known = set(paid)
    shelf = _Shelf(blocks, payer.joins)
    parts = {(owed.join, owed.group): [part.part() for part in owed.parts] for owed in debt.owed}
    for join in range(payer.joins):
        shelf.write()
        groups = sorted({g for j, g in parts if j == join} | set(shelf.pieces[join]))
        for group in groups:
            own = with_late(parts.get((join, group), ()), shelf.pieces[join].pop(group, ((), ())))
            if join < payer.root:
                for found in payer.pay(join, own, blocks):
                    if isinstance(found, Late):
                        shelf.add(found)
            elif group not in known:
                yield group, (found for found in payer.pay(join, own, blocks) if isinstance(found, Batch))


class _Shelf:
    """What has been found for joins above.

    Attributes:
        pieces: on disk, per join, group and side.
    """

    def __init__(self, blocks: BlockStore, joins: int) -> None:
        self._writer = Writer(blocks)
        self._waiting: dict[tuple[int, int, int], list[Late]] = {}
        self._bytes = 0
        self.pieces: list[dict[int, tuple[list[Piece], list[Piece]]]] = [{} for _ in range(joins)]

    def add(self, late: Late) -> None:
        """Keep tuples for their join."""
        self._waiting.setdefault((late.join, late.group, late.side), []).append(late)
        self._bytes += batch_bytes(late.batch)
        if self._bytes > LATE_BYTES:
            self.write()

    def write(self) -> None:
        """Put all that waits on disk."""
        for (join, group, side), late in self._waiting.items():
            batch = Batch.concat([own.batch for own in late])
            expiry = np.concatenate([own.expiry for own in late])
            written = self._writer.write(f"{LATE}/{join}/{group}/{side}", batch, expiry)
            self.pieces[join].setdefault(group, ([], []))[side].extend(written)
        self._waiting, self._bytes = {}, 0
