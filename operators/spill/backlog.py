"""The backlog on disk: a description of all pending results, complete enough for any process that has the blocks.

At the end of a run the ledger is in memory, and so is the last part of each group with pending results. A `Backlog` is
the same with all parts on disk: per join and group, the parts in the order in which cleanup merges them. It also has
the groups of every join above one with pending results, even those that have none of their own yet: results from below
are joined with what these groups hold. `operators.spill.cleanup.offline` processes a backlog.

The format is JSON, so that it can be read in years: numbers, block keys and the plan as text. The writer adds the query
(`services.spill.backlog`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from operators.spill.ledger import Group
from operators.spill.spilled_part import UNSHARED, SpilledPart, SpilledPiece
from schemas.errors import InvariantError


class BacklogPiece(msgspec.Struct, frozen=True):
    """A block, or some of the tuples in one; see `operators.spill.spilled_part.SpilledPiece`."""

    key: str
    rows: int
    last: int
    begin: int = UNSHARED

    def piece(self) -> SpilledPiece:
        """The piece in the form that a `PieceReader` reads."""
        return SpilledPiece(self.rows, self.last, self.key, begin=self.begin)


class BacklogPart(msgspec.Struct, frozen=True):
    """The JSON form of an `operators.spill.spilled_part.SpilledPart`."""

    left: tuple[BacklogPiece, ...]
    right: tuple[BacklogPiece, ...]
    since: int
    late: bool = False

    def part(self) -> SpilledPart:
        """The part in the form that cleanup merges."""
        left, right = (tuple(piece.piece() for piece in side) for side in (self.left, self.right))
        return SpilledPart((left, right), self.since, self.late)


class BacklogGroup(msgspec.Struct, frozen=True):
    """A partition group that has pending results, or that pending results from below will be joined with.

    Attributes:
        join: the join's number, children before parents.
        parts: in the order in which cleanup merges them.
    """

    join: int
    group: int
    parts: tuple[BacklogPart, ...]


class Backlog(msgspec.Struct, frozen=True):
    """All pending results of one plan.

    Attributes:
        plan: text that `parse_plan` reads.
        partitions: partition groups per join.
        hashed: see `operators.engine.engine.Engine`.
        delivered: results before this event time are already delivered, so none of them is pending.
        cut: everything before this event time has been processed.
        groups: those that cleanup needs, ascending by join and group; `owed` in JSON.
    """

    plan: str
    partitions: int
    hashed: bool
    delivered: int
    cut: int
    groups: tuple[BacklogGroup, ...] = msgspec.field(name="owed")

    def tuples(self) -> int:
        """The number of tuples in all parts."""
        return sum(piece.rows for group in self.groups for part in group.parts for piece in (*part.left, *part.right))


@dataclass(frozen=True, slots=True)
class BacklogScope:
    """Determines which groups of which joins a backlog has to contain.

    Args:
        covers: per join the aliases that it covers, children before parents.
        spilled: the groups that have parts.
    """

    covers: Sequence[frozenset[str]]
    spilled: frozenset[Group]

    def whole_join(self, join: int) -> bool:
        """Whether any group of the join may receive pending results, because a join below it has some."""
        return any(self.covers[k] < self.covers[join] for k, _ in self.spilled)

    def groups(self, join: int, partitions: int) -> list[int]:
        """The groups of a join whose tuples have to be on disk, ascending."""
        if self.whole_join(join):
            return list(range(partitions))
        return sorted(g for k, g in self.spilled if k == join)


def backlog_groups(parts: Iterable[tuple[Group, Sequence[SpilledPart]]]) -> tuple[BacklogGroup, ...]:
    """Parts that are all on disk, in the form of a `Backlog`, ascending by join and group.

    Raises:
        InvariantError: a part has tuples in memory.
    """
    groups = [BacklogGroup(j, g, tuple(_backlog_part(part) for part in own)) for (j, g), own in parts]
    return tuple(sorted(groups, key=lambda group: (group.join, group.group)))


def _backlog_part(part: SpilledPart) -> BacklogPart:
    left, right = (tuple(_backlog_piece(piece) for piece in side) for side in part.pieces)
    return BacklogPart(left, right, part.since, part.late)


def _backlog_piece(piece: SpilledPiece) -> BacklogPiece:
    if piece.batch is not None:
        raise InvariantError(f"a backlog of {piece.rows} tuples that are in memory; they have to be blocks")
    return BacklogPiece(piece.key, piece.rows, piece.last, piece.begin)
