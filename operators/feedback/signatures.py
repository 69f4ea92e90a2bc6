"""The MNS buffer of one kind (JIT III-A): the suspended signatures, each with the time until which it matters.

A `operators.feedback.tree_guard.TreeGuard` uses it where its blacklist alone does not list every suspended signature. A
signature is the hash of the values that the kind's predicates read, so one entry stands for all similar tuples. A tuple
of the opposite side looks for its matches by the hash of its own values. Two different values with equal hashes share
an entry: they are suspended and resumed together, which costs work and changes no result.

An expired entry may stay: it suspends no living tuple, or the owner would have raised its expiry. `purge` removes
expired entries once as many hashes have been handled as there are entries. Every method therefore costs O(1) per hash,
and the memory grows and shrinks with the number of entries.
"""

from __future__ import annotations

import numpy as np

from operators.kernels.hashing import U64
from operators.kernels.signatures import VACANT, drop_words, enter_greatest, holds_words
from schemas.columns import I64, Mask

FIRST_CAPACITY = 64
"""The least number of slots of a non-empty buffer; a power of two."""

MAX_FILLED = 2 / 3
"""A buffer that would be filled by more than this share is rebuilt, at most half full."""


class Signatures:
    """A set of hashes, each with an expiry."""

    def __init__(self) -> None:
        self._count = 0
        self._handled = 0
        self._keys: U64 = np.zeros(0, np.uint64)
        self._expiry: I64 = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return self._count

    def add(self, hashes: U64, expiry: I64) -> None:
        """Add (n,) hashes, which may repeat; a hash that is already present keeps the later expiry."""
        need = self._count + len(hashes)
        if need > MAX_FILLED * len(self._keys):
            self._rebuild(np.flatnonzero(self._expiry != VACANT), need)
        self._count += enter_greatest(hashes, expiry, self._keys, self._expiry)
        self._handled += len(hashes)

    def contains(self, hashes: U64) -> Mask:
        """Return (n,) True where the hash is present."""
        if self._count == 0:
            return np.zeros(len(hashes), np.bool_)
        self._handled += len(hashes)
        return np.asarray(holds_words(hashes, self._keys, self._expiry))

    def hit(self, hashes: U64) -> U64:
        """Return the hashes that are present and occur among (n,) hashes: each once, ascending."""
        return np.unique(hashes[self.contains(hashes)])

    def remove(self, hashes: U64) -> None:
        """Remove those of (n,) hashes that are present."""
        if self._count:
            self._count -= drop_words(hashes, self._keys, self._expiry)
            self._handled += len(hashes)

    def hashes(self) -> U64:
        """Return all hashes, in any order."""
        return np.asarray(self._keys[self._expiry != VACANT])

    def purge(self, now: int) -> None:
        """Remove what expired before `now`, if enough hashes have been handled since the last sweep to bear the cost of
        one."""
        if self._handled >= self._count:
            self._handled = 0
            if len(self._keys):
                self._rebuild(np.flatnonzero(self._expiry >= max(now, VACANT + 1)), 0)

    def _rebuild(self, kept: I64, need: int) -> None:
        """Rebuild with the entries in some slots, and room for `need` entries in all."""
        keys, expiry = self._keys[kept], self._expiry[kept]
        capacity = FIRST_CAPACITY if need or len(kept) else 0
        while capacity < 2 * max(need, len(kept)):
            capacity *= 2
        self._keys = np.zeros(capacity, np.uint64)
        self._expiry = np.full(capacity, VACANT)
        self._count = enter_greatest(keys, expiry, self._keys, self._expiry)

    def size_bytes(self) -> int:
        """Bytes of the arrays, including free slots."""
        return self._keys.nbytes + self._expiry.nbytes
