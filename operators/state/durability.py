"""Tracks which source tuples of a task are durable: each becomes so once, before it is forgotten or leaves memory.

The engine asks `Durability` for checkpoints and restores through it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from operators.state.checkpoint import Block, Checkpoint, batches_in_order
from operators.state.sources import Sources
from schemas.columns import Batch
from schemas.errors import InvariantError


class Durability:
    """The progress of checkpoints through the stores of the streams.

    Args:
        streams: the names of the streams.
    """

    def __init__(self, streams: Iterable[str]) -> None:
        # Per stream the row up to which tuples have been exported. The exported tuples in `_unsaved` wait for the next
        # checkpoint.
        self._exported = dict.fromkeys(streams, 0)
        self._unsaved: list[Block] = []
        # Rows of former stores that are needed until nothing before `_former_until` is.
        self._former: dict[str, int] = {}
        self._former_until = 0

    def unsaved_tuples(self, sources: Sources) -> int:
        """Count the source tuples stored since the last checkpoint that are still needed."""
        stores = {name: sources.stores[name] for name in self._exported}
        new = sum(max(0, store.hi - max(self._exported[name], store.lo)) for name, store in stores.items())
        return new + sum(len(block.batch) for block in self._unsaved)

    def checkpoint(self, sources: Sources, cut: int, needed_from: int) -> Checkpoint:
        """Return the source tuples stored since the last checkpoint. Cost: proportional to their number.

        Args:
            sources: the stores.
            cut: up to where everything has been processed.
            needed_from: the event time from which tuples are needed.
        """
        self.retain(sources)
        blocks, self._unsaved = self._unsaved, []
        return Checkpoint(cut, tuple(blocks), self._needed_rows(sources, needed_from))

    def replace(self, sources: Sources, at: int, needed_from: int) -> None:
        """Note that the stores are about to be replaced by others, which begin with the tuples that are alive at `at`.

        Earlier tuples remain durable while they are needed: aggregates need results that have died since the last
        emission.
        """
        self._former, self._former_until = self._needed_rows(sources, needed_from), at

    def _needed_rows(self, sources: Sources, needed_from: int) -> dict[str, int]:
        """Return by stream the row below which no tuple is needed any more."""
        if needed_from >= self._former_until:
            self._former = {}
        rows = {name: sources.stores[name].lo for name in self._exported}
        return {name: min(row, self._former.get(name, row)) for name, row in rows.items()}

    def retain(self, sources: Sources) -> None:
        """Copy the source tuples that the next checkpoint needs, before some of them leave memory."""
        for name in self._exported:
            store = sources.stores[name]
            first = max(self._exported[name], store.lo)
            if store.hi > first:
                self._unsaved.append(Block(name, first, store.read(first, store.hi)))
            # During a change of plans, exported tuples are stored again.
            self._exported[name] = max(self._exported[name], store.hi)

    def read_back(self, sources: Sources, blocks: Iterable[Block], cut: int) -> Iterator[tuple[dict[str, Batch], int]]:
        """Read a checkpoint's tuples back for empty stores; see `operators.state.checkpoint.batches_in_order`.

        Raises:
            StateError: a block does not follow the block before it.
            InvariantError: the stores are not empty.
        """
        stores = {name: sources.stores[name] for name in self._exported}
        if any(store.hi for store in stores.values()):
            raise InvariantError("restore needs a fresh engine")
        yield from batches_in_order(blocks, stores, cut)
        for name, store in stores.items():
            self._exported[name] = store.hi
