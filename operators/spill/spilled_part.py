"""What leaves memory: tuples with the values of their components, as blocks.

A tuple in a state is row ids into the stores of its streams. On its way out it takes with it every column that the
stores keep of its components, so that its rows can be released, and so that whoever reads it back needs nothing else:
a cleanup, a Spark job, or another plan (what is kept of a stream does not depend on the plan).

In the batch of a side's tuples `alias.column` is a component's column, `alias.` the component's row id.
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
from schemas.query import Type

ROW = ""
"""What the column with a component's row id is called, after the alias and a dot."""

BLOCK_BYTES = 256 * 1024
"""What a block holds at most before it is compressed, unless one row is larger. Partition groups that have less share
blocks: a small one costs as much as many tuples."""

ALONE = -1
"""`Piece.begin` of a piece that shares its block, or its batch, with no other."""

FAR_PAST = -(2**62)
"""Before every tuple."""


def materialise(sources: Sources, tuples: Tuples) -> Batch:
    """Tuples with all that is kept of their components; `ts` is the tuple's own."""
    columns: dict[str, Column] = {}
    for alias, rows in zip(tuples.aliases, tuples.rows, strict=True):
        store = sources.store(alias)
        if ROW not in store.columns:
            columns[f"{alias}.{ROW}"] = Column(Type.BIGINT, np.ascontiguousarray(rows))
        for name in store.columns:
            columns[f"{alias}.{name}"] = store.gather(name, rows)
    return Batch(tuples.ts, columns)


def batch_bytes(batch: Batch) -> int:
    """Bytes of a batch's values."""
    size = batch.ts.nbytes
    for column in batch.columns.values():
        size += column.values.nbytes if column.offsets is None else int(column.offsets[-1] - column.offsets[0])
        size += 0 if column.offsets is None else column.offsets.nbytes
    return size


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Tuples of one side: in memory (`batch`), or in a block, maybe beside those of other groups.

    Attributes:
        begin: of a block or batch that is shared, where these tuples begin; ALONE of others.
        last: no tuple of it can be met at or after this instant's end: the largest expiry.
    """

    rows: int
    last: int
    key: str = ""
    batch: Batch | None = None
    begin: int = ALONE

    def held(self) -> Batch | None:
        """Its tuples, if they are in memory."""
        if self.batch is None or self.begin == ALONE:
            return self.batch
        return self.batch.slice(self.begin, self.begin + self.rows)


class Reader:
    """Reads pieces. Of shared blocks the latest is held: pieces of one are to be read after each other."""

    def __init__(self, blocks: BlockStore) -> None:
        self._blocks = blocks
        self._key = ""
        self._shared: Batch | None = None

    def read(self, pieces: Iterable[Piece]) -> list[Batch]:
        """The tuples of some pieces, in their order; what lies together in a block is one batch.

        Raises:
            StateError: a block is missing or damaged.
        """
        return [self._run(*run) for run in _runs(pieces)]

    def own_block(self, piece: Piece) -> bytes:
        """The tuples of a piece on disk as a block that has no others.

        Raises:
            StateError: the block is missing; or, where it is shared, damaged.
        """
        if piece.begin == ALONE:
            return self._blocks.get(piece.key)
        return encode_block(piece.key, 0, Batch.concat(self.read([piece])))

    def _run(self, first: Piece, rows: int) -> Batch:
        if first.begin == ALONE:
            return self._block(first.key) if first.batch is None else first.batch
        shared = first.batch
        if shared is None:
            if self._shared is None or self._key != first.key:
                self._key, self._shared = first.key, self._block(first.key)
            shared = self._shared
        return shared.slice(first.begin, first.begin + rows)

    def _block(self, key: str) -> Batch:
        return decode_block(self._blocks.get(key), f"spilled block {key}").batch


def _runs(pieces: Iterable[Piece]) -> Iterator[tuple[Piece, int]]:
    """The first of pieces that follow each other in a block, and how many rows they have together."""
    first: Piece | None = None
    rows = 0
    for piece in pieces:
        if first is not None:
            shared = piece.begin != ALONE and first.batch is piece.batch
            if shared and (first.key, first.begin + rows) == (piece.key, piece.begin):
                rows += piece.rows
                continue
            yield first, rows
        first, rows = piece, piece.rows
    if first is not None:
        yield first, rows


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Tuples of both sides of a partition group whose results with each other have all been found: self-contained.

    Attributes:
        pieces: of the left and of the right side.
        since: it has been joined with everything in its group's memory that is older than this, and with nothing newer.
        late: it came after its time, as results of a cleanup below, and was joined with nothing, whatever its age.
    """

    pieces: tuple[tuple[Piece, ...], tuple[Piece, ...]]
    since: int
    late: bool = False

    def sizes(self) -> tuple[int, int]:
        """How many tuples each side has."""
        left, right = (sum(piece.rows for piece in side) for side in self.pieces)
        return left, right


class Writer:
    """Writes tuples as blocks with names of their own.

    Attributes:
        written_bytes: as stored, so far.
    """

    def __init__(self, blocks: BlockStore) -> None:
        self._blocks = blocks
        self._number = 0
        # Of a shared block how many pieces are not forgotten yet.
        self._sharing: dict[str, int] = {}
        self.written_bytes = 0

    def write(self, name: str, batch: Batch, expiry: I64) -> tuple[Piece, ...]:
        """Tuples as pieces on disk, in blocks of BLOCK_BYTES.

        Args:
            name: whose they are, for who looks at the names.
            expiry: (n,) of each tuple.

        Raises:
            StateError: they could not be written.
        """
        pieces: list[Piece] = []
        for begin, end in _blocks_of(batch):
            key = self._put(name, batch.slice(begin, end))
            pieces.append(Piece(end - begin, int(expiry[begin:end].max()), key))
        return tuple(pieces)

    def write_groups(self, name: str, batch: Batch, expiry: I64, sizes: Sequence[int]) -> list[tuple[Piece, ...]]:
        """Tuples of several groups, one group after the other, as pieces on disk; small groups share blocks.

        Args:
            sizes: how many tuples each group has.

        Raises:
            StateError: they could not be written.
        """
        most = max(1, len(batch) * BLOCK_BYTES // max(batch_bytes(batch), 1))
        found: list[tuple[Piece, ...]] = []
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
    ) -> list[tuple[Piece, ...]]:
        """Groups begin .. end as pieces of one block; one alone as pieces of its own."""
        sizes = [end - begin for begin, end in groups]
        sharing = len(sizes) - sizes.count(0)
        if sharing <= 1:
            return [self.write(name, batch.slice(begin, end), expiry[begin:end]) for begin, end in groups]
        first, last = groups[0][0], groups[-1][1]
        key = self._put(name, batch.slice(first, last))
        self._sharing[key] = sharing
        return shares(expiry[first:last], sizes, key)

    def _put(self, name: str, batch: Batch) -> str:
        """Store a block; its key."""
        self._number += 1
        key = f"{name}/{self._number:08d}"
        raw = encode_block(name, self._number, batch)
        self._blocks.put(key, raw)
        self.written_bytes += len(raw)
        return key

    def forget(self, pieces: tuple[Piece, ...]) -> None:
        """Delete what is not needed any more: a shared block when no piece of it is."""
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


def shares(expiry: I64, sizes: Sequence[int], key: str = "", batch: Batch | None = None) -> list[tuple[Piece, ...]]:
    """The piece of each group, none of one without tuples: one after the other in a block, or a batch that is held.

    Args:
        expiry: (n,) of each tuple in it.
        sizes: how many tuples each group has, n together.
    """
    held = [size for size in sizes if size]
    if not held:
        return [() for _ in sizes]
    begins = np.cumsum([0, *held[:-1]])
    lasts = np.maximum.reduceat(expiry, begins)
    found = zip(held, lasts.tolist(), begins.tolist(), strict=True)
    pieces = [Piece(rows, last, key, batch, begin) for rows, last, begin in found]
    own = iter(pieces)
    return [(next(own),) if size else () for size in sizes]


def in_memory(batch: Batch, expiry: I64) -> tuple[Piece, ...]:
    """Tuples as a piece that is held in memory."""
    return (Piece(len(batch), int(expiry.max()), batch=batch),) if len(batch) else ()


def alive(batch: Batch, expiry: I64, bound: int) -> tuple[Batch, I64]:
    """Of tuples those that can still be met at `bound`."""
    good: Mask = expiry >= bound
    return (batch, expiry) if good.all() else (batch.take(good), expiry[good])
