"""Which source tuples of a task become durable: each once, before it is forgotten or leaves memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from operators.state.checkpoint import Block, Checkpoint, in_order
from operators.state.sources import Sources
from schemas.columns import Batch
from schemas.errors import InvariantError


class Durability:
    """What has become durable of the streams' stores.

    Args:
        streams: their names.
    """

    def __init__(self, streams: Iterable[str]) -> None:
        # Per stream the row up to which tuples have been exported; of these, `_unsaved` wait for a checkpoint.
        self._exported = dict.fromkeys(streams, 0)
        self._unsaved: list[Block] = []

    def unsaved_tuples(self, sources: Sources) -> int:
        """Source tuples stored since the last checkpoint that are still needed."""
        stores = {name: sources.stores[name] for name in self._exported}
        new = sum(max(0, store.hi - max(self._exported[name], store.lo)) for name, store in stores.items())
        return new + sum(len(block.batch) for block in self._unsaved)

    def checkpoint(self, sources: Sources, cut: int) -> Checkpoint:
        """Source tuples stored since the last checkpoint. Cost: proportional to those."""
        self.keep(sources)
        blocks, self._unsaved = self._unsaved, []
        return Checkpoint(cut, tuple(blocks), {name: sources.stores[name].lo for name in self._exported})

    def keep(self, sources: Sources) -> None:
        """Some of the source tuples are to leave memory: hold what the next checkpoint is to have of them."""
        for name in self._exported:
            store = sources.stores[name]
            first = max(self._exported[name], store.lo)
            if store.hi > first:
                self._unsaved.append(Block(name, first, store.read(first, store.hi)))
            # While plans change, what has been exported is stored again.
            self._exported[name] = max(self._exported[name], store.hi)

    def read_back(self, sources: Sources, blocks: Iterable[Block], cut: int) -> Iterator[tuple[dict[str, Batch], int]]:
        """What a checkpoint has, for empty stores to take in: see `operators.state.checkpoint.in_order`.

        Raises:
            StateError: a block does not follow the one before it.
            InvariantError: the stores are not empty.
        """
        stores = {name: sources.stores[name] for name in self._exported}
        if any(store.hi for store in stores.values()):
            raise InvariantError("restore needs a fresh engine")
        yield from in_order(blocks, stores, cut)
        for name, store in stores.items():
            self._exported[name] = store.hi
