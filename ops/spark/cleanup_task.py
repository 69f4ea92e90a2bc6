"""The part of a cleanup that runs in Spark executors: cleans up partition groups, from rows that are blocks.

`ops.spark.cleanup` maps a `CleanupTask` over Spark partitions. A row is a block of a group's part, or a block of late
input that a lower level produced for the group. The rows of a group arrive together, in the order of `ORDER`. The
group's pending results leave as rows of the same form, addressed to groups of the join above; results of the root have
the next `join_no` after it. `operators.spill.cleanup.offline` does the merging.

The module imports nothing of the engine at its top: an executor must choose the folder for compiled kernels first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from schemas.query import Query

if TYPE_CHECKING:
    from operators.spill.cleanup.offline import OfflineCleanup

ROW = (
    "join_no INT, group_no INT, part_no INT, side INT, key STRING, since BIGINT, late BOOLEAN, rows BIGINT, "
    "last BIGINT, block BINARY"
)
"""The columns of a row, for Spark."""

Row = tuple[int, int, int, int, str, int, bool, int, int, bytes]

ORDER = ("join_no", "group_no", "part_no", "side", "key")

LATE_PART = 2**31 - 1
"""The `part_no` of late input from lower levels; it sorts after all parts."""


class RowBlocks:
    """The blocks of the group that is being cleaned up: an `operators.spill.block_store.BlockStore`."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}

    def put(self, key: str, raw: bytes) -> None:
        """Store a block."""
        self.stored[key] = raw

    def get(self, key: str) -> bytes:
        """A stored block."""
        return self.stored[key]

    def delete(self, keys: Iterable[str]) -> None:
        """Delete blocks."""
        for key in keys:
            self.stored.pop(key, None)

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin with `prefix`, ascending."""
        return sorted(key for key in self.stored if key.startswith(prefix))


@dataclass(frozen=True)
class CleanupTask:
    """Cleans up the groups of a Spark partition; Spark sends it to executors as it is.

    Attributes:
        backlog: the backlog without its groups, as JSON.
    """

    query: Query
    backlog: bytes

    def __call__(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Turn the rows of groups into rows with their pending results."""
        cleanup: OfflineCleanup | None = None
        for (join, group), own in groupby(rows, lambda row: (row[0], row[1])):
            cleanup = cleanup or self._offline_cleanup()
            yield from _pending_rows(cleanup, join, group, own)

    def _offline_cleanup(self) -> OfflineCleanup:
        from services.process import kernel_cache

        kernel_cache.prepare()
        import msgspec

        from operators.spill.backlog import Backlog
        from operators.spill.cleanup.offline import OfflineCleanup

        return OfflineCleanup(self.query, msgspec.json.decode(self.backlog, type=Backlog))


def _pending_rows(cleanup: OfflineCleanup, join: int, group: int, rows: Iterable[Row]) -> Iterator[Row]:
    """A group's pending results, a row per block."""
    from operators.data.watermark import NEVER
    from operators.spill.cleanup.offline import LateInput, with_late
    from operators.spill.spilled_part import PieceWriter, SpilledPart, SpilledPiece

    blocks = RowBlocks()
    parts: list[SpilledPart] = []
    late: tuple[list[SpilledPiece], list[SpilledPiece]] = ([], [])
    for number, together in groupby(rows, lambda row: row[2]):
        own = list(together)
        since = own[0][5]
        pieces: tuple[list[SpilledPiece], list[SpilledPiece]] = ([], [])
        for _, _, _, side, key, _, _, count, last, block in own:
            blocks.put(key, bytes(block))
            pieces[side].append(SpilledPiece(count, last, key))
        if number == LATE_PART:
            late = pieces
        else:
            parts.append(SpilledPart((tuple(pieces[0]), tuple(pieces[1])), since))
    made = RowBlocks()
    writer = PieceWriter(made)
    for found in cleanup.clean_up(join, with_late(parts, late), blocks):
        if isinstance(found, LateInput):
            name = f"late/{found.join}/{found.group}/{found.side}/{join}/{group}"
            to, batch, expiry = (found.join, found.group, LATE_PART, found.side), found.batch, found.expiry
        else:
            name, to, batch, expiry = f"results/{group}", (cleanup.joins, group, 0, 0), found, found.ts
        for piece in writer.write(name, batch, expiry):
            yield (*to, piece.key, NEVER, to[2] == LATE_PART, piece.rows, piece.last, made.get(piece.key))
            made.delete([piece.key])
