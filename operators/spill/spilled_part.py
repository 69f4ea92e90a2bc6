"""Spilled tuples: parts of partition groups, and how they are written to blocks and read back.

A tuple in a state is row ids into the stores of its streams. When it is spilled, it takes along every column that the
stores have of its components. So its rows can be released, and a reader needs nothing else: whether it is a cleanup, a
Spark job, or another plan (the columns that are stored of a stream do not depend on the plan).

In the batch of a side's tuples `alias.column` is a component's column, and `alias.` the component's row id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from operators.data.tuples import Tuples
from operators.spill.block_store import BlockStore
from operators.state.sources import Sources
from schemas.codecs.blocks import decode_block, encode_block
from schemas.columns import I64, Batch, Column, Mask
from schemas.errors import SpillError, StateError
from schemas.query import Type, qualified

ROW = ""
"""The name of the column with a component's row id, after the alias and a dot."""

BLOCK_BYTES = 256 * 1024
"""Maximum size of a block before compression, unless one row is larger. Smaller partition groups share blocks: a small
block costs as much as many tuples."""

UNSHARED = -1
"""`SpilledPiece.begin` of a piece that is alone in its block or batch."""


def materialise(sources: Sources, tuples: Tuples) -> Batch:
    """Tuples with all stored columns of their components; `ts` is the tuple's own."""
    columns: dict[str, Column] = {}
    for alias, rows in zip(tuples.aliases, tuples.rows, strict=True):
        store = sources.store(alias)
        if ROW not in store.columns:
            columns[qualified(alias, ROW)] = Column(Type.BIGINT, np.ascontiguousarray(rows))
        for name in store.columns:
            columns[qualified(alias, name)] = store.gather(name, rows)
    return Batch(tuples.ts, columns)


def batch_bytes(batch: Batch) -> int:
    """Bytes of a batch's values."""
    size = batch.ts.nbytes
    for column in batch.columns.values():
        size += column.values.nbytes if column.offsets is None else int(column.offsets[-1] - column.offsets[0])
        size += 0 if column.offsets is None else column.offsets.nbytes
    return size


@dataclass(frozen=True, slots=True, eq=False)
class SpilledPiece:
    """Tuples of one side: in memory (`batch`) or in a block, possibly next to those of other groups.

    Attributes:
        rows: the number of tuples.
        last: the largest expiry: later tuples cannot match any of these.
        key: of the block; empty in memory.
        batch: the tuples in memory; None on disk.
        begin: in a shared block or batch, the position where these tuples begin; UNSHARED otherwise.
    """

    rows: int
    last: int
    key: str = ""
    batch: Batch | None = None
    begin: int = UNSHARED

    def memory_batch(self) -> Batch | None:
        """Its tuples, if they are in memory."""
        if self.batch is None or self.begin == UNSHARED:
            return self.batch
        return self.batch.slice(self.begin, self.begin + self.rows)


class PieceReader:
    """Reads pieces. It caches the latest shared block, so pieces of one block should be read one after the other."""

    def __init__(self, blocks: BlockStore) -> None:
        self._blocks = blocks
        self._key = ""
        self._shared: Batch | None = None

    def read(self, pieces: Iterable[SpilledPiece]) -> list[Batch]:
        """The tuples of some pieces, in their order. Pieces that are adjacent in a block are returned as one batch.

        Raises:
            StateError: a block is missing or damaged.
        """
        return [self._run(*run) for run in _runs(pieces)]

    def own_block(self, piece: SpilledPiece) -> bytes:
        """The tuples of a piece on disk as a block without other tuples.

        Raises:
            StateError: the block is missing; or, where it is shared, damaged.
        """
        if piece.begin == UNSHARED:
            return self._blocks.get(piece.key)
        return encode_block(piece.key, 0, Batch.concat(self.read([piece])))

    def _run(self, first: SpilledPiece, rows: int) -> Batch:
        if first.begin == UNSHARED:
            return self._block(first.key) if first.batch is None else first.batch
        shared = first.batch
        if shared is None:
            if self._shared is None or self._key != first.key:
                self._key, self._shared = first.key, self._block(first.key)
            shared = self._shared
        return shared.slice(first.begin, first.begin + rows)

    def _block(self, key: str) -> Batch:
        raw = self._blocks.get(key)
        try:
            return decode_block(raw, f"spilled block {key}").batch
        except StateError as error:
            raise SpillError(str(error)) from None


def _runs(pieces: Iterable[SpilledPiece]) -> Iterator[tuple[SpilledPiece, int]]:
    """Join adjacent pieces of a block: the first piece of each run, and the number of rows in the run."""
    first: SpilledPiece | None = None
    rows = 0
    for piece in pieces:
        if first is not None:
            shared = piece.begin != UNSHARED and first.batch is piece.batch
            if shared and (first.key, first.begin + rows) == (piece.key, piece.begin):
                rows += piece.rows
                continue
            yield first, rows
        first, rows = piece, piece.rows
    if first is not None:
        yield first, rows


@dataclass(frozen=True, slots=True, eq=False)
class SpilledPart:
    """Tuples of both sides of a partition group that were spilled together. The results among them have all been found:
    the part is self-contained.

    Attributes:
        pieces: of the left and of the right side.
        since: the part has been joined with everything in its group's memory that is older than this, and with nothing
            newer.
        late: the part consists of results of a cleanup below, and was joined with nothing, whatever its age.
    """

    pieces: tuple[tuple[SpilledPiece, ...], tuple[SpilledPiece, ...]]
    since: int
    late: bool = False

    def sizes(self) -> tuple[int, int]:
        """The number of tuples on each side."""
        left, right = (sum(piece.rows for piece in side) for side in self.pieces)
        return left, right


class PieceWriter:
    """Writes tuples as blocks under unique keys.

    Attributes:
        written_bytes: total size of the blocks, as stored.
    """

    def __init__(self, blocks: BlockStore) -> None:
        self._blocks = blocks
        self._number = 0
        # Per shared block the number of its pieces that are not deleted yet.
        self._sharing: dict[str, int] = {}
        self.written_bytes = 0

    def write(self, name: str, batch: Batch, expiry: I64) -> tuple[SpilledPiece, ...]:
        """Write tuples to disk as pieces, in blocks of BLOCK_BYTES.

        Args:
            name: prefix of the keys. It identifies the owner of the tuples to people who look at the keys.
            expiry: (n,) of each tuple.

        Raises:
            StateError: they could not be written.
        """
        pieces: list[SpilledPiece] = []
        for begin, end in _blocks_of(batch):
            key = self._put(name, batch.slice(begin, end))
            pieces.append(SpilledPiece(end - begin, int(expiry[begin:end].max()), key))
        return tuple(pieces)

    def write_groups(
        self, name: str, batch: Batch, expiry: I64, sizes: Sequence[int]
    ) -> list[tuple[SpilledPiece, ...]]:
        """Write tuples of several groups, one group after the other, to disk as pieces; small groups share blocks.

        Args:
            name: as in `write`.
            expiry: (n,) of each tuple.
            sizes: the number of tuples of each group.

        Returns:
            The pieces of each group.

        Raises:
            StateError: they could not be written.
        """
        most = max(1, len(batch) * BLOCK_BYTES // max(batch_bytes(batch), 1))
        found: list[tuple[SpilledPiece, ...]] = []
        together: list[tuple[int, int]] = []
        end = 0
        for size in sizes:
            begin, end = end, end + size
            if together and end - together[0][0] > most:
                found += self._share(name, batch, expiry, together)
                together = []
            together.append((begin, end))
        return found + self._share(name, batch, expiry, together)

    def _share(
        self, name: str, batch: Batch, expiry: I64, groups: Sequence[tuple[int, int]]
    ) -> list[tuple[SpilledPiece, ...]]:
        """Write groups, given by begin and end, as pieces of one block; a single group gets blocks of its own."""
        sizes = [end - begin for begin, end in groups]
        sharing = len(sizes) - sizes.count(0)
        if sharing <= 1:
            return [self.write(name, batch.slice(begin, end), expiry[begin:end]) for begin, end in groups]
        first, last = groups[0][0], groups[-1][1]
        key = self._put(name, batch.slice(first, last))
        self._sharing[key] = sharing
        return shared_pieces(expiry[first:last], sizes, key)

    def _put(self, name: str, batch: Batch) -> str:
        """Store a block and return its key."""
        self._number += 1
        key = f"{name}/{self._number:08d}"
        raw = encode_block(name, self._number, batch)
        self._blocks.put(key, raw)
        self.written_bytes += len(raw)
        return key

    def forget(self, pieces: tuple[SpilledPiece, ...]) -> None:
        """Delete pieces. A shared block is deleted with the last of its pieces."""
        dead: list[str] = []
        for key in (piece.key for piece in pieces if piece.key):
            left = self._sharing.pop(key, 1) - 1
            if left:
                self._sharing[key] = left
            else:
                dead.append(key)
        self._blocks.delete(dead)


def _blocks_of(batch: Batch) -> Iterator[tuple[int, int]]:
    step = max(1, len(batch) * BLOCK_BYTES // max(batch_bytes(batch), 1))
    for begin in range(0, len(batch), step):
        yield begin, min(begin + step, len(batch))


def shared_pieces(
    expiry: I64, sizes: Sequence[int], key: str = "", batch: Batch | None = None
) -> list[tuple[SpilledPiece, ...]]:
    """The piece of each group in a shared block or batch, one after the other; no piece for a group without tuples.

    Args:
        expiry: (n,) of each tuple in it.
        sizes: the number of tuples of each group, n together.
        key: of the block, if they are on disk.
        batch: the tuples, if they are in memory.
    """
    nonempty = [size for size in sizes if size]
    if not nonempty:
        return [() for _ in sizes]
    begins = np.cumsum([0, *nonempty[:-1]])
    lasts = np.maximum.reduceat(expiry, begins)
    found = zip(nonempty, lasts.tolist(), begins.tolist(), strict=True)
    pieces = [SpilledPiece(rows, last, key, batch, begin) for rows, last, begin in found]
    own = iter(pieces)
    return [(next(own),) if size else () for size in sizes]


def memory_pieces(batch: Batch, expiry: I64) -> tuple[SpilledPiece, ...]:
    """Tuples in memory as a piece; none if there are no tuples."""
    return (SpilledPiece(len(batch), int(expiry.max()), batch=batch),) if len(batch) else ()


def unexpired(batch: Batch, expiry: I64, bound: int) -> tuple[Batch, I64]:
    """The tuples that can still be matched at `bound`, and their expiry."""
    good: Mask = expiry >= bound
    return (batch, expiry) if good.all() else (batch.take(good), expiry[good])
