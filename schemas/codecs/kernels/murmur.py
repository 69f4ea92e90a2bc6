"""Kafka's hash of a record's key, by which its default partitioner chooses the partition: murmur2, as Java has it."""

from __future__ import annotations

from typing import Final

import numpy as np

from schemas.columns import I64, U8
from schemas.compiled import compiled

_SEED: Final = np.uint64(0x9747B28C)
_M: Final = np.uint64(0x5BD1E995)
_R: Final = np.uint64(24)
_32_BITS: Final = np.uint64(0xFFFFFFFF)
_POSITIVE: Final = np.uint64(0x7FFFFFFF)
_8: Final = np.uint64(8)
_13: Final = np.uint64(13)
_15: Final = np.uint64(15)


@compiled
def key_hashes(data: U8, offsets: I64, hashes: I64) -> None:
    """Hash keys; the partition of a key is its hash modulo the number of partitions.

    Args:
        data: (bytes,) the keys, each with one byte behind it that is not of it.
        offsets: (n + 1,) key i is data[offsets[i]:offsets[i + 1] - 1].
        hashes: (n,) output, each from 0 to 2^31 - 1.
    """
    for row in range(len(hashes)):
        p, end = offsets[row], offsets[row + 1] - 1
        found = (_SEED ^ np.uint64(end - p)) & _32_BITS
        while end - p >= 4:
            word = np.uint64(0)
            for k in range(4):
                word |= np.uint64(data[p + k]) << (np.uint64(k) * _8)
            p += 4
            word = (word * _M) & _32_BITS
            word ^= word >> _R
            word = (word * _M) & _32_BITS
            found = (found * _M) & _32_BITS
            found ^= word
        if end > p:
            for k in range(end - p):
                found ^= np.uint64(data[p + k]) << (np.uint64(k) * _8)
            found = (found * _M) & _32_BITS
        found ^= found >> _13
        found = (found * _M) & _32_BITS
        found ^= found >> _15
        hashes[row] = np.int64(found & _POSITIVE)
