"""The Bloom filter (JIT IV-A) tells with one look-up per tuple that the tuple certainly has no partner.

A guard adds the signatures of all tuples that it observes and looks up the signatures of the tuples that it guards. A
signature that is not in the filter matches no observed tuple. The reverse does not hold: after a false positive, or for
an entry that has expired since, the detector only misses a tuple that it could suspend. A filter cannot forget, so its
owner rebuilds it from the living tuples when it is `full` or too much of it is stale.
"""

from __future__ import annotations

import numpy as np

from operators.kernels.bloom import has_bits, set_bits
from operators.kernels.hashing import U64
from schemas.columns import Mask

BITS_PER_ENTRY = 16
"""The filter's size in bits per expected entry; the false-positive rate is then below one in a hundred."""

MIN_EXPECTED = 1024
"""The least number of entries that a filter is sized for."""


class Bloom:
    """A set of hashes that answers "certainly not" or "perhaps". An empty filter allocates nothing.

    Attributes:
        expected: The number of entries that it is sized for.
        added: The number of entries added so far, including repetitions.
    """

    def __init__(self, expected: int = MIN_EXPECTED) -> None:
        self.added = 0
        needed = -(-max(expected, MIN_EXPECTED) * BITS_PER_ENTRY // 64)
        self._size = 1 << (needed - 1).bit_length()
        self.expected = self._size * 64 // BITS_PER_ENTRY
        self._blocks: U64 = np.zeros(0, np.uint64)

    @property
    def full(self) -> bool:
        """True when the filter holds more entries than it is sized for, so that it answers "perhaps" too often."""
        return self.added > self.expected

    def add(self, hashes: U64) -> None:
        """Add (n,) hashes."""
        if len(self._blocks) == 0:
            self._blocks = np.zeros(self._size, np.uint64)
        self.added += len(hashes)
        set_bits(hashes, self._blocks)

    def contains(self, hashes: U64) -> Mask:
        """Return (n,) False where the hash was certainly not added."""
        if len(self._blocks) == 0:
            return np.zeros(len(hashes), np.bool_)
        return np.asarray(has_bits(hashes, self._blocks))

    def missing_share(self, hashes: U64, valid: Mask | None) -> float:
        """Return the share of (n,) hashes that were certainly not added, or are not `valid`; 0.0 for no hashes."""
        missing = ~self.contains(hashes)
        return float((missing if valid is None else missing | ~valid).mean()) if len(hashes) else 0.0

    def size_bytes(self) -> int:
        """Bytes of the filter."""
        return self._blocks.nbytes
