"""What of a task becomes durable: its source tuples, as they are stored, from which all state can be made again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from operators.data.watermark import NEVER
from operators.state.store import SourceStore
from schemas.columns import Batch
from schemas.errors import StateError

PIECE_TUPLES = 65_536
"""Tuples that are read back together, about: more would be memory that nobody counts."""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive source tuples of one stream as stored: rows first_row .. first_row + len(batch)."""

    stream: str
    first_row: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What became durable-worthy since the last checkpoint, as of `cut`.

    Attributes:
        blocks: new source tuples.
        live_from: per stream, the row below which no tuple is needed any more.
    """

    cut: int
    blocks: tuple[Block, ...]
    live_from: dict[str, int]


def by_time(blocks: Iterable[Block]) -> list[Block]:
    """Blocks ascending by their first tuple's ts."""
    return sorted(blocks, key=lambda block: int(block.batch.ts[0]))


def in_order(
    blocks: Iterable[Block], stores: Mapping[str, SourceStore], cut: int
) -> Iterator[tuple[dict[str, Batch], int]]:
    """All tuples by event time, about PIECE_TUPLES at once; empty stores will number them as they were.

    Args:
        blocks: ascending by their first tuple's ts; those of a stream in row order without gaps.
        cut: of the checkpoint.

    Returns:
        The tuples of each stream that have not been given yet and lie before an event time, and that time.

    Raises:
        StateError: a block does not follow the one before it, or is of a stream that has no store.
    """
    waiting: dict[str, Batch] = {}
    following: dict[str, int] = {}
    given_to = NEVER
    for block in blocks:
        _check(block, stores, following)
        begin = int(block.batch.ts[0])
        if begin < given_to:
            raise StateError(
                f"snapshot of stream {block.stream!r} is out of order: row {block.first_row} is of {begin}, and "
                f"everything before {given_to} has been read"
            )
        if begin > given_to and sum(map(len, waiting.values())) >= PIECE_TUPLES:
            yield taken(waiting, begin), begin
            given_to = begin
        held = waiting.get(block.stream)
        waiting[block.stream] = block.batch if held is None else Batch.concat([held, block.batch])
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


def taken(waiting: dict[str, Batch], end: int) -> dict[str, Batch]:
    """Take the tuples before `end` out of `waiting`, ascending by ts."""
    found: dict[str, Batch] = {}
    for name, batch in list(waiting.items()):
        stop = int(np.searchsorted(batch.ts, end, side="left"))
        if stop:
            found[name] = batch.slice(0, stop)
            del waiting[name]
        if stop < len(batch):
            waiting[name] = batch.slice(stop, len(batch))
    return found
