"""Gives each runner of a group its own key space in the group's block store. `operators.groups.sharing` calls it."""

from __future__ import annotations

from collections.abc import Iterable

from operators.kernels.pages import Pages
from operators.spill.block_store import StateDisk


class PrefixedBlocks:
    """A `StateDisk` that adds a prefix to every key and stores the block in another one."""

    def __init__(self, blocks: StateDisk, prefix: str) -> None:
        self._blocks = blocks
        self._prefix = prefix

    def put(self, key: str, raw: bytes) -> None:
        """See `StateDisk.put`."""
        self._blocks.put(self._prefix + key, raw)

    def get(self, key: str) -> bytes:
        """See `StateDisk.get`."""
        return self._blocks.get(self._prefix + key)

    def delete(self, keys: Iterable[str]) -> None:
        """See `StateDisk.delete`."""
        self._blocks.delete([self._prefix + key for key in keys])

    def keys(self, prefix: str) -> list[str]:
        """See `StateDisk.keys`."""
        return [key.removeprefix(self._prefix) for key in self._blocks.keys(self._prefix + prefix)]

    def map_file(self, size: int) -> Pages:
        """See `StateDisk.map_file`."""
        return self._blocks.map_file(size)
