"""Hashes column values to 64 bits, to index states by them. `operators.data.keys` combines the hashes of a join key.

`mix_words` applies MurmurHash3's 64-bit finaliser, a bijection: words are equal if and only if the inputs are, so a
single integer key needs no second comparison. Strings and composite keys can collide and are compared again.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from schemas.columns import I64, U8
from schemas.compiled import compiled, inlined

U64 = npt.NDArray[np.uint64]
F64 = npt.NDArray[np.float64]


@inlined
def _mix(x):  # type: ignore[no-untyped-def]
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xFF51AFD7ED558CCD)
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xC4CEB9FE1A85EC53)
    x ^= x >> np.uint64(33)
    return x


@compiled
def mix_words(words: U64) -> U64:
    """(n,) uint64 -> (n,) uint64, a bijection of each word."""
    out = np.empty(words.shape[0], np.uint64)
    for i in range(words.shape[0]):
        out[i] = _mix(words[i])
    return out


@compiled
def combine_words(acc: U64, words: U64) -> U64:
    """Fold a further key component into (n,) hashes; the order of components matters."""
    out = np.empty(acc.shape[0], np.uint64)
    for i in range(acc.shape[0]):
        out[i] = _mix(acc[i] * np.uint64(0x9E3779B97F4A7C15) + words[i])
    return out


@compiled
def double_words(values: F64) -> U64:
    """(n,) words of DOUBLEs. A whole number in int64's range has the word of that BIGINT, so that 1.0 joins 1 and -0.0
    joins 0. Any other value has its bits, partly flipped. Two unequal values can share a word."""
    out = np.empty(values.shape[0], np.uint64)
    one = np.empty(1, np.float64)
    bits = one.view(np.uint64)
    for i in range(values.shape[0]):
        v = values[i]
        if v == np.floor(v) and -9223372036854775808.0 <= v < 9223372036854775808.0:
            out[i] = np.uint64(np.int64(v))
        else:
            one[0] = v
            out[i] = bits[0] ^ np.uint64(0xA5A5A5A5A5A5A5A5)
    return out


@compiled
def string_words(offsets: I64, data: U8) -> U64:
    """(n,) words of strings, mixed 8 bytes at a time; `offsets` are (n + 1,) into `data`."""
    n = offsets.shape[0] - 1
    out = np.empty(n, np.uint64)
    for i in range(n):
        pos = offsets[i]
        end = offsets[i + 1]
        h = np.uint64(end - pos) * np.uint64(0x9E3779B97F4A7C15)
        while pos + 8 <= end:
            word = np.uint64(0)
            for b in range(8):
                word |= np.uint64(data[pos + b]) << np.uint64(8 * b)
            h = _mix(h ^ word)
            pos += 8
        word = np.uint64(0)
        for b in range(end - pos):
            word |= np.uint64(data[pos + b]) << np.uint64(8 * b)
        out[i] = _mix(h ^ word)
    return out
