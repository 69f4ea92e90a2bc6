"""Checkpoints of a task: blocks of its stored source tuples, from which all other state can be rebuilt.

`Durability` makes them; `Engine.restore` reads them back through `batches_in_order`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from operators.data.watermark import NEVER
from operators.state.store import SourceStore
from schemas.columns import Batch
from schemas.errors import StateError

PIECE_TUPLES = 65_536
"""Approximate number of tuples read back together. More would take memory that no budget counts."""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive source tuples of one stream as stored: rows first_row .. first_row + len(batch) - 1."""

    stream: str
    first_row: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The source tuples to make durable since the last checkpoint.

    Attributes:
        cut: every tuple with a smaller ts has been processed.
        blocks: source tuples that no earlier checkpoint has.
        live_from: per stream, the row below which no tuple is needed any more.
    """

    cut: int
    blocks: tuple[Block, ...]
    live_from: dict[str, int]


def blocks_by_time(blocks: Iterable[Block]) -> list[Block]:
    """Sort blocks by their first tuple's ts."""
    return sorted(blocks, key=lambda block: int(block.batch.ts[0]))


def batches_in_order(
    blocks: Iterable[Block], stores: Mapping[str, SourceStore], cut: int
) -> Iterator[tuple[dict[str, Batch], int]]:
    """Read all tuples by event time, about PIECE_TUPLES at once. Empty stores then number them as before.

    Args:
        blocks: ascending by their first tuple's ts; those of a stream in row order without gaps.
        stores: the empty stores by stream; they start numbering at the first row of their stream.
        cut: the checkpoint's cut.

    Yields:
        An event time, and per stream the tuples before it that have not been yielded yet, as (tuples, time).

    Raises:
        StateError: a block does not follow the block before it, or belongs to a stream without a store.
    """
    waiting: dict[str, Batch] = {}
    following: dict[str, int] = {}
    read_to = NEVER
    for block in blocks:
        _check(block, stores, following)
        begin = int(block.batch.ts[0])
        if begin < read_to:
            raise StateError(
                f"snapshot of stream {block.stream!r} is out of order: row {block.first_row} is of {begin}, and "
                f"everything before {read_to} has been read"
            )
        if begin > read_to and sum(map(len, waiting.values())) >= PIECE_TUPLES:
            yield take_before(waiting, begin), begin
            read_to = begin
        before = waiting.get(block.stream)
        waiting[block.stream] = block.batch if before is None else Batch.concat([before, block.batch])
    yield waiting, cut


def _check(block: Block, stores: Mapping[str, SourceStore], following: dict[str, int]) -> None:
    store = stores.get(block.stream)
    if store is None:
        raise StateError(f"snapshot block of unknown stream {block.stream!r}")
    if block.stream not in following:
        store.begin_at(block.first_row)
    expected = following.get(block.stream, block.first_row)
    if block.first_row != expected:
        raise StateError(f"snapshot of stream {block.stream!r} has a gap: next row {expected}, got {block.first_row}")
    following[block.stream] = expected + len(block.batch)


def take_before(waiting: dict[str, Batch], end: int) -> dict[str, Batch]:
    """Remove the tuples with ts < `end` from `waiting` and return them by stream, ascending by ts."""
    found: dict[str, Batch] = {}
    for name, batch in list(waiting.items()):
        stop = int(np.searchsorted(batch.ts, end, side="left"))
        if stop:
            found[name] = batch.slice(0, stop)
            del waiting[name]
        if stop < len(batch):
            waiting[name] = batch.slice(stop, len(batch))
    return found
