"""Blocks in a dict: the disk tier of tests that need no disk."""

from __future__ import annotations

import mmap
from collections.abc import Iterable

from schemas.errors import StateError


class MemoryBlocks:
    """An `operators.spill.block_store.StateDisk`, whose files are in memory, too."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}

    def put(self, key: str, raw: bytes) -> None:
        self.stored[key] = bytes(raw)

    def get(self, key: str) -> bytes:
        if key not in self.stored:
            raise StateError(f"block {key!r} is not stored, there are {len(self.stored)} others")
        return self.stored[key]

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.stored.pop(key, None)

    def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self.stored if key.startswith(prefix))

    def map_file(self, size: int) -> mmap.mmap:
        return mmap.mmap(-1, size)
