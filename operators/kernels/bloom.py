"""A Bloom filter of 64-bit blocks: all bits of an entry lie in one word, so a look-up waits for one cache miss.

`operators.feedback.bloom` calls these functions. The hashes are mixed already (`operators.data.keys`): the low 24 bits
select four bits within the word, the bits above them select the word. Blocks cost some precision against one large
filter, since entries spread unevenly over words; BITS_PER_ENTRY in `operators.feedback.bloom` allows for that.
"""

from __future__ import annotations

import numpy as np

from operators.kernels.hashing import U64
from schemas.columns import Mask
from schemas.compiled import compiled, inlined


@inlined
def _pattern(h):  # type: ignore[no-untyped-def]
    """A word with the four bits of a hash, of which some may coincide."""
    one, low = np.uint64(1), np.uint64(63)
    return (
        one << (h & low)
        | one << ((h >> np.uint64(6)) & low)
        | one << ((h >> np.uint64(12)) & low)
        | one << ((h >> np.uint64(18)) & low)
    )


@compiled
def set_bits(hashes: U64, blocks: U64) -> None:
    """Enter (n,) hashes into a filter whose number of blocks is a power of two."""
    last = np.uint64(blocks.shape[0] - 1)
    for i in range(hashes.shape[0]):
        h = hashes[i]
        blocks[np.int64((h >> np.uint64(24)) & last)] |= _pattern(h)


@compiled
def has_bits(hashes: U64, blocks: U64) -> Mask:
    """(n,) False where the hash was certainly never entered."""
    last = np.uint64(blocks.shape[0] - 1)
    out = np.empty(hashes.shape[0], np.bool_)
    for i in range(hashes.shape[0]):
        h = hashes[i]
        pattern = _pattern(h)
        out[i] = blocks[np.int64((h >> np.uint64(24)) & last)] & pattern == pattern
    return out
