"""What of a task becomes durable: its source tuples, as they are stored, from which all state can be made again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from operators.store import SourceStore
from schemas.columns import Batch
from schemas.errors import StateError


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


def gathered(blocks: Iterable[Block], stores: Mapping[str, SourceStore]) -> dict[str, Batch]:
    """The tuples of each stream in their order; its empty store will number them as they were.

    Args:
        blocks: per stream in row order without gaps; streams may interleave.

    Raises:
        StateError: a block does not follow the one before it, or is of a stream that has no store.
    """
    parts: dict[str, list[Batch]] = {}
    following: dict[str, int] = {}
    for block in blocks:
        store = stores.get(block.stream)
        if store is None:
            raise StateError(f"snapshot block of unknown stream {block.stream!r}")
        if block.stream not in parts:
            store.begin_at(block.first_row)
        expected = following.get(block.stream, block.first_row)
        if block.first_row != expected:
            raise StateError(
                f"snapshot of stream {block.stream!r} has a gap: next row {expected}, got {block.first_row}"
            )
        following[block.stream] = expected + len(block.batch)
        parts.setdefault(block.stream, []).append(block.batch)
    return {name: Batch.concat(items) for name, items in parts.items()}
