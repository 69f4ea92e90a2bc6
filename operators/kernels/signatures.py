"""An open-addressing table from 64-bit hashes to whole numbers, with linear probing.

`operators.feedback.signatures` calls these functions. A slot whose value is VACANT is free. Removing a hash moves
displaced hashes back into the gap, so there are no tombstones and a table never slows down with age. The hashes are
mixed already (`operators.data.keys`): their low bits give the first slot to examine. Callers keep a third of a table
free, so each operation takes O(1) per hash.
"""

from __future__ import annotations

import numpy as np

from operators.kernels.hashing import U64
from schemas.columns import I64, Mask
from schemas.compiled import compiled, inlined

VACANT = -(2**63)
"""The value of a free slot; entered values must differ from it."""


@inlined
def slot_of(word, keys, values):  # type: ignore[no-untyped-def]
    """The slot of a word, or the free slot where it belongs."""
    mask = keys.shape[0] - 1
    slot = np.int64(word & np.uint64(mask))
    while values[slot] != VACANT and keys[slot] != word:
        slot = (slot + 1) & mask
    return slot


@compiled
def enter_greatest(words: U64, given: I64, keys: U64, values: I64) -> int:
    """Enter (n,) words with values; a word already present keeps the greater value. Returns the number of new words."""
    added = 0
    for i in range(words.shape[0]):
        slot = slot_of(words[i], keys, values)
        if values[slot] == VACANT:
            keys[slot] = words[i]
            values[slot] = given[i]
            added += 1
        elif values[slot] < given[i]:
            values[slot] = given[i]
    return added


@compiled
def holds_words(words: U64, keys: U64, values: I64) -> Mask:
    """(n,) True where the table has the word."""
    out = np.empty(words.shape[0], np.bool_)
    for i in range(words.shape[0]):
        out[i] = values[slot_of(words[i], keys, values)] != VACANT
    return out


@compiled
def take_value(word: np.uint64, keys: U64, values: I64) -> int:
    """Remove a word; returns its value, VACANT if it is missing."""
    mask = keys.shape[0] - 1
    hole = slot_of(word, keys, values)
    value = values[hole]
    if value == VACANT:
        return int(value)
    at = (hole + 1) & mask
    while values[at] != VACANT:
        home = np.int64(keys[at] & np.uint64(mask))
        # It may move up unless its home lies behind the hole, cyclically in (hole, at].
        if ((at - home) & mask) >= ((at - hole) & mask):
            keys[hole] = keys[at]
            values[hole] = values[at]
            hole = at
        at = (at + 1) & mask
    values[hole] = VACANT
    return int(value)


@compiled
def drop_words(words: U64, keys: U64, values: I64) -> int:
    """Remove (n,) words; returns the number that were present."""
    dropped = 0
    for i in range(words.shape[0]):
        if take_value(words[i], keys, values) != VACANT:
            dropped += 1
    return int(dropped)
