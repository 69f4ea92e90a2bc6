"""What leaves memory: tuples with the values of their components, as blocks.

A tuple in a state is row ids into the stores of its streams. On its way out it takes with it every column that the
stores keep of its components, so that its rows can be released, and so that whoever reads it back needs nothing else:
a cleanup, a Spark job, or another plan (what is kept of a stream does not depend on the plan).

In the batch of a side's tuples `alias.column` is a component's column, `alias.` the component's row id.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from operators.sources import Sources
from operators.spill.block_store import BlockStore
from operators.tuples import Tuples
from schemas.codecs.blocks import decode_block, encode_block
from schemas.columns import I64, Batch, Column, Mask
from schemas.query import Type

ROW = ""
"""What the column with a component's row id is called, after the alias and a dot."""

BLOCK_BYTES = 256 * 1024
"""What a block holds at most before it is compressed, unless one row is larger."""

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
    """Tuples of one side: in memory (`batch`) or as a block.

    Attributes:
        last: no tuple of it can be met at or after this instant's end: the largest expiry.
    """

    rows: int
    last: int
    key: str = ""
    batch: Batch | None = None

    def read(self, blocks: BlockStore) -> Batch:
        """The tuples.

        Raises:
            StateError: the block is missing or damaged.
        """
        if self.batch is not None:
            return self.batch
        return decode_block(blocks.get(self.key), f"spilled block {self.key}").batch


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
            self._number += 1
            key = f"{name}/{self._number:08d}"
            raw = encode_block(name, self._number, batch.slice(begin, end))
            self._blocks.put(key, raw)
            self.written_bytes += len(raw)
            pieces.append(Piece(end - begin, int(expiry[begin:end].max()), key))
        return tuple(pieces)

    def forget(self, pieces: tuple[Piece, ...]) -> None:
        """Delete what is not needed any more."""
        self._blocks.delete([piece.key for piece in pieces if piece.key])


def _blocks_of(batch: Batch) -> Iterator[tuple[int, int]]:
    step = max(1, len(batch) * BLOCK_BYTES // max(batch_bytes(batch), 1))
    for begin in range(0, len(batch), step):
        yield begin, min(begin + step, len(batch))


def in_memory(batch: Batch, expiry: I64) -> tuple[Piece, ...]:
    """Tuples as a piece that is held in memory."""
    return (Piece(len(batch), int(expiry.max()), batch=batch),) if len(batch) else ()


def alive(batch: Batch, expiry: I64, bound: int) -> tuple[Batch, I64]:
    """Of tuples those that can still be met at `bound`."""
    good: Mask = expiry >= bound
    return (batch, expiry) if good.all() else (batch.take(good), expiry[good])
