"""`BlockStore` and `StateDisk`: the interfaces of the disk tier to which the engine moves state.

`services.spill.block_store` implements them with RocksDB and mapped files.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from operators.kernels.pages import Pages


class BlockStore(Protocol):
    """Stores blocks of bytes by key. This process finds a block until it deletes it. Whether the next process finds it
    depends on the store's owner.

    Every method raises `schemas.errors.StateError` when the tier fails. After a failure, earlier blocks are readable
    only as far as the failure has left them intact.
    """

    def put(self, key: str, raw: bytes) -> None:
        """Store a block. It replaces any earlier block of the key."""
        ...

    def get(self, key: str) -> bytes:
        """Return the key's block; a key without a block is an error."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete blocks; keys without a block are skipped."""
        ...

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with `prefix`, ascending."""
        ...


class StateDisk(BlockStore, Protocol):
    """A `BlockStore` that can also keep state in mapped files, as part of the process's memory."""

    def map_file(self, size: int) -> Pages:
        """Map so many bytes of a new file, zeros. The file is gone when nothing refers to the mapping. It stays open
        only as a mapping: a process may have far fewer open files than rings."""
        ...
