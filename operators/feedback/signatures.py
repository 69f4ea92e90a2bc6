"""The MNS buffer of one kind (JIT III-A): the signatures that are suspended, and until when each matters.

A signature is the hash of a tuple's values that the kind's predicates read, so one entry stands for all similar
tuples, and a tuple of the opposite side is probed for by the hash of its own values. Two different values with
equal hashes share an entry: they are suspended and resumed together, which costs work and changes no result.

An entry whose time is over may stay: nothing is suspended by it that still lives, or the owner would have raised
its expiry. `purge` sweeps such entries out once as many hashes have been handled as there are entries, so every
method costs O(1) per hash, and the memory follows the number of entries, up and down.
"""

from __future__ import annotations

import numpy as np

from operators.kernels.hashing import U64
from operators.kernels.signatures import VACANT, drop_words, enter_greatest, holds_words
from schemas.columns import I64, Mask

FIRST_CAPACITY = 64
"""Slots of a buffer from its first entry on; a power of two."""

FULL = 2 / 3
"""A buffer that would be filled by more than this share is made anew, at most half full."""


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
        """Add (n,) hashes, which may repeat; one that is there keeps the later expiry."""
        need = self._count + len(hashes)
        if need > FULL * len(self._keys):
            self._rebuild(np.flatnonzero(self._expiry != VACANT), need)
        self._count += enter_greatest(hashes, expiry, self._keys, self._expiry)
        self._handled += len(hashes)

    def contains(self, hashes: U64) -> Mask:
        """(n,) True where the hash is there."""
        if self._count == 0:
            return np.zeros(len(hashes), np.bool_)
        self._handled += len(hashes)
        return np.asarray(holds_words(hashes, self._keys, self._expiry))

    def hit(self, hashes: U64) -> U64:
        """Those that are there and occur among (n,) hashes: each once, ascending."""
        return np.unique(hashes[self.contains(hashes)])

    def remove(self, hashes: U64) -> None:
        """Take out those of (n,) hashes that are there."""
        if self._count:
            self._count -= drop_words(hashes, self._keys, self._expiry)
            self._handled += len(hashes)

    def hashes(self) -> U64:
        """All of them, in any order."""
        return np.asarray(self._keys[self._expiry != VACANT])

    def purge(self, now: int) -> None:
        """Drop what expired before `now`, if enough has been done since the last sweep to pay for one."""
        if self._handled >= self._count:
            self._handled = 0
            if len(self._keys):
                self._rebuild(np.flatnonzero(self._expiry >= max(now, VACANT + 1)), 0)

    def _rebuild(self, kept: I64, need: int) -> None:
        """Begin anew with the entries in some slots, and room for `need` entries in all."""
        keys, expiry = self._keys[kept], self._expiry[kept]
        capacity = FIRST_CAPACITY if need or len(kept) else 0
        while capacity < 2 * max(need, len(kept)):
            capacity *= 2
        self._keys = np.zeros(capacity, np.uint64)
        self._expiry = np.full(capacity, VACANT)
        self._count = enter_greatest(keys, expiry, self._keys, self._expiry)

    def size_bytes(self) -> int:
        """Bytes of the arrays held, free slots included."""
        return self._keys.nbytes + self._expiry.nbytes
