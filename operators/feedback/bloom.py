"""The Bloom-filter detector (JIT IV-A): what certainly has no partner, in one look-up per tuple.

The filter holds the hashes of the values that the observed tuples show to the predicates of a kind. A signature that
it does not contain matches none of them. The reverse does not hold: a false positive, or an entry that has died
since, only makes the detector miss. A filter cannot forget, so its owner rebuilds it from the living when it is
`full` or too much of it is stale.
"""

from __future__ import annotations

import numpy as np

from operators.kernels.bloom import has_bits, set_bits
from operators.kernels.hashing import U64
from schemas.columns import Mask

BITS_PER_ENTRY = 16
"""Bits per entry that the filter is sized for: it then takes less than one hash in a hundred for an entry."""

LEAST_EXPECTED = 1024
"""Entries that any filter has room for."""


class Bloom:
    """A set of hashes that answers "certainly not" or "perhaps". Empty it takes no room.

    Attributes:
        expected: how many entries it is sized for.
        added: how many have been added, repetitions included.
    """

    def __init__(self, expected: int = LEAST_EXPECTED) -> None:
        self.added = 0
        needed = -(-max(expected, LEAST_EXPECTED) * BITS_PER_ENTRY // 64)
        self._size = 1 << (needed - 1).bit_length()
        self.expected = self._size * 64 // BITS_PER_ENTRY
        self._blocks: U64 = np.zeros(0, np.uint64)

    @property
    def full(self) -> bool:
        """True when it holds more than it is sized for and says "perhaps" too often."""
        return self.added > self.expected

    def add(self, hashes: U64) -> None:
        """Add (n,) hashes."""
        if len(self._blocks) == 0:
            self._blocks = np.zeros(self._size, np.uint64)
        self.added += len(hashes)
        set_bits(hashes, self._blocks)

    def contains(self, hashes: U64) -> Mask:
        """(n,) False where the hash was certainly not added."""
        if len(self._blocks) == 0:
            return np.zeros(len(hashes), np.bool_)
        return np.asarray(has_bits(hashes, self._blocks))

    def size_bytes(self) -> int:
        """Bytes of the filter."""
        return self._blocks.nbytes
