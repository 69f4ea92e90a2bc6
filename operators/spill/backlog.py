"""What is owed, written down: enough for anybody who has the blocks to pay it, at any time.

At the end of a run the ledger is in memory, and of what groups are owed their last part is too. A `Debt` is the same
with all parts on disk: per join and group the parts in the order in which they are to be merged. Groups of a join above
one that owes are in it though they owe nothing yet: what comes from below is owed with what they hold.

JSON, so that it can be read in years: numbers, block keys and the plan as text. Who writes it adds the query.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from operators.spill.ledger import Group
from operators.spill.spilled_part import ALONE, Part, Piece
from schemas.errors import InvariantError


class OwedPiece(msgspec.Struct, frozen=True):
    """A block, or tuples of one; see `operators.spill.spilled_part.Piece`."""

    key: str
    rows: int
    last: int
    begin: int = ALONE

    def piece(self) -> Piece:
        """As it is read."""
        return Piece(self.rows, self.last, self.key, begin=self.begin)


class OwedPart(msgspec.Struct, frozen=True):
    """See `operators.spill.spilled_part.Part`."""

    left: tuple[OwedPiece, ...]
    right: tuple[OwedPiece, ...]
    since: int
    late: bool = False

    def part(self) -> Part:
        """As it is merged."""
        left, right = (tuple(owed.piece() for owed in side) for side in (self.left, self.right))
        return Part((left, right), self.since, self.late)


class OwedGroup(msgspec.Struct, frozen=True):
    """A partition group that owes, or that is owed by one below.

    Attributes:
        join: its join's number, children before parents.
        parts: in the order in which they are to be merged.
    """

    join: int
    group: int
    parts: tuple[OwedPart, ...]


class Debt(msgspec.Struct, frozen=True):
    """All that one plan owes.

    Attributes:
        plan: as `parse_plan` reads it.
        partitions: groups per join.
        hashed: see `operators.engine.engine.Engine`.
        delivered: results of before this are known, and owed to nobody.
        cut: everything before it has been processed.
        owed: by join and group, ascending.
    """

    plan: str
    partitions: int
    hashed: bool
    delivered: int
    cut: int
    owed: tuple[OwedGroup, ...]

    def tuples(self) -> int:
        """How many tuples are in parts."""
        return sum(piece.rows for group in self.owed for part in group.parts for piece in (*part.left, *part.right))


@dataclass(frozen=True, slots=True)
class Owing:
    """Which groups of which joins a debt is about.

    Args:
        covers: per join its aliases, children before parents.
        indebted: the groups that have parts.
    """

    covers: Sequence[frozenset[str]]
    indebted: frozenset[Group]

    def whole(self, join: int) -> bool:
        """Whether all groups of the join may come to owe: something below it does."""
        return any(self.covers[k] < self.covers[join] for k, _ in self.indebted)

    def groups(self, join: int, partitions: int) -> list[int]:
        """The groups of a join whose tuples have to be on disk, ascending."""
        if self.whole(join):
            return list(range(partitions))
        return sorted(g for k, g in self.indebted if k == join)


def described(parts: Iterable[tuple[Group, Sequence[Part]]]) -> tuple[OwedGroup, ...]:
    """Parts that are all on disk, as they are written down."""
    groups = [OwedGroup(j, g, tuple(_described(part) for part in own)) for (j, g), own in parts]
    return tuple(sorted(groups, key=lambda group: (group.join, group.group)))


def _described(part: Part) -> OwedPart:
    left, right = (tuple(_piece(piece) for piece in side) for side in part.pieces)
    return OwedPart(left, right, part.since, part.late)


def _piece(piece: Piece) -> OwedPiece:
    if piece.batch is not None:
        raise InvariantError(f"a debt of {piece.rows} tuples that are in memory; they have to be blocks")
    return OwedPiece(piece.key, piece.rows, piece.last, piece.begin)
