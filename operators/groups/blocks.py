"""Gives each runner of a group its own key space in the group's block store. `operators.groups.sharing` calls it."""

from __future__ import annotations

from collections.abc import Iterable

from operators.spill.block_store import BlockStore


class PrefixedBlocks:
    """A `BlockStore` that adds a prefix to every key and stores the block in another one."""

    def __init__(self, blocks: BlockStore, prefix: str) -> None:
        self._blocks = blocks
        self._prefix = prefix

    def put(self, key: str, raw: bytes) -> None:
        """See `BlockStore.put`."""
        self._blocks.put(self._prefix + key, raw)

    def get(self, key: str) -> bytes:
        """See `BlockStore.get`."""
        return self._blocks.get(self._prefix + key)

    def delete(self, keys: Iterable[str]) -> None:
        """See `BlockStore.delete`."""
        self._blocks.delete([self._prefix + key for key in keys])

    def keys(self, prefix: str) -> list[str]:
        """See `BlockStore.keys`."""
        return [key.removeprefix(self._prefix) for key in self._blocks.keys(self._prefix + prefix)]
