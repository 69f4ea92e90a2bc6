"""Where the engine puts spilled parts: the little that it asks of a disk tier."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class BlockStore(Protocol):
    """Blocks of bytes by key. This process finds a block until it deletes it; whether the next one does is its owner's
    affair.

    Every method raises `schemas.errors.StateError` where the tier fails; of what was put before as much can be read
    then as the failure has left.
    """

    def put(self, key: str, raw: bytes) -> None:
        """Store a block, in place of any that the key has."""
        ...

    def get(self, key: str) -> bytes:
        """The key's block; a key that has none is an error."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Forget blocks; keys that have none are passed over."""
        ...

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin with `prefix`, ascending."""
        ...
