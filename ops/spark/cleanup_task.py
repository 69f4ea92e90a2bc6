"""What an executor does of a cleanup: pays partition groups, one after the other, from rows that are blocks.

A row is a block of a group's part, or one that was found for it. Rows of a group come together, in the order of
`ORDER`; what the group owed goes out as rows of the same form, to groups of the join above or, of the root, to
`join_no` one beyond it. Merging is `operators.spill.cleanup.offline`'s.

The module imports nothing of the engine at its top: an executor has to find a place for compiled kernels first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from schemas.query import Query

if TYPE_CHECKING:
    from operators.spill.cleanup.offline import Payer

ROW = (
    "join_no INT, group_no INT, part_no INT, side INT, key STRING, since BIGINT, late BOOLEAN, rows BIGINT, "
    "last BIGINT, block BINARY"
)
"""The columns of a row, for Spark."""

Row = tuple[int, int, int, int, str, int, bool, int, int, bytes]

ORDER = ("join_no", "group_no", "part_no", "side", "key")

LATE_PART = 2**31 - 1
"""The `part_no` of what has come from below: after all parts."""


class RowBlocks:
    """The blocks of the group that is being paid: an `operators.spill.block_store.BlockStore`."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def put(self, key: str, raw: bytes) -> None:
        """Hold a block."""
        self.held[key] = raw

    def get(self, key: str) -> bytes:
        """A block that is held."""
        return self.held[key]

    def delete(self, keys: Iterable[str]) -> None:
        """Forget blocks."""
        for key in keys:
            self.held.pop(key, None)

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin with `prefix`, ascending."""
        return sorted(key for key in self.held if key.startswith(prefix))


@dataclass(frozen=True)
class Paying:
    """Pays the groups of a Spark partition; goes to executors as it is.

    Attributes:
        debt: the debt without what is owed, as JSON.
    """

    query: Query
    debt: bytes

    def __call__(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Rows of groups in; what they owed, out."""
        payer: Payer | None = None
        for (join, group), own in groupby(rows, lambda row: (row[0], row[1])):
            payer = payer or self._payer()
            yield from _paid(payer, join, group, own)

    def _payer(self) -> Payer:
        from services.process import kernel_cache

        kernel_cache.prepare()
        import msgspec

        from operators.spill.backlog import Debt
        from operators.spill.cleanup.offline import Payer

        return Payer(self.query, msgspec.json.decode(self.debt, type=Debt))


def _paid(payer: Payer, join: int, group: int, rows: Iterable[Row]) -> Iterator[Row]:
    """What a group owed, a row per block."""
    from operators.spill.cleanup.offline import Late, with_late
    from operators.spill.spilled_part import FAR_PAST, Part, Piece, Writer

    blocks = RowBlocks()
    parts: list[Part] = []
    late: tuple[list[Piece], list[Piece]] = ([], [])
    for number, together in groupby(rows, lambda row: row[2]):
        own = list(together)
        since = own[0][5]
        pieces: tuple[list[Piece], list[Piece]] = ([], [])
        for _, _, _, side, key, _, _, count, last, block in own:
            blocks.put(key, bytes(block))
            pieces[side].append(Piece(count, last, key))
        if number == LATE_PART:
            late = pieces
        else:
            parts.append(Part((tuple(pieces[0]), tuple(pieces[1])), since))
    made = RowBlocks()
    writer = Writer(made)
    for found in payer.pay(join, with_late(parts, late), blocks):
        if isinstance(found, Late):
            name = f"late/{found.join}/{found.group}/{found.side}/{join}/{group}"
            to, batch, expiry = (found.join, found.group, LATE_PART, found.side), found.batch, found.expiry
        else:
            name, to, batch, expiry = f"results/{group}", (payer.joins, group, 0, 0), found, found.ts
        for piece in writer.write(name, batch, expiry):
            yield (*to, piece.key, FAR_PAST, to[2] == LATE_PART, piece.rows, piece.last, made.get(piece.key))
            made.delete([piece.key])
