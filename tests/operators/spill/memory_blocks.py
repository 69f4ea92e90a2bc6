"""Blocks in a dict: the disk tier of tests that need no disk."""

from __future__ import annotations

from collections.abc import Iterable

from schemas.errors import StateError


class MemoryBlocks:
    """An `operators.spill.block_store.BlockStore`."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def put(self, key: str, raw: bytes) -> None:
        self.held[key] = bytes(raw)

    def get(self, key: str) -> bytes:
        if key not in self.held:
            raise StateError(f"block {key!r} is not held, there are {len(self.held)} others")
        return self.held[key]

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.held.pop(key, None)

    def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self.held if key.startswith(prefix))
