"""A binary min-heap of (key, item) pairs in arrays: a queue of items in the order of their keys.

`operators.aggregate.lifetimes` queues the beginnings and ends of results in it.
"""

from __future__ import annotations

import numpy as np

from schemas.columns import I64
from schemas.compiled import compiled


@compiled
def heap_push(keys: I64, items: I64, size: int, new_keys: I64, new_items: I64) -> int:
    """Enter (n,) pairs into a heap of `size` pairs whose arrays have room; returns the new size. O(log size) each."""
    for i in range(new_keys.shape[0]):
        key = new_keys[i]
        at = size
        size += 1
        while at > 0:
            parent = (at - 1) >> 1
            if keys[parent] <= key:
                break
            keys[at] = keys[parent]
            items[at] = items[parent]
            at = parent
        keys[at] = key
        items[at] = new_items[i]
    return size


@compiled
def heap_take(keys: I64, items: I64, size: int, until: int) -> tuple[I64, I64]:
    """Remove all pairs with key < until.

    Returns:
        Their keys and items, ascending by key; ties in no defined order. Cost: O(log size) each.
    """
    # Count the pairs first, so that the output is no larger than needed. They form the top of the heap. On the way
    # down, the stack holds one sibling per level.
    stack = np.empty(128, np.int64)
    depth = 0
    count = 0
    if size > 0 and keys[0] < until:
        stack[0] = 0
        depth = 1
    while depth > 0:
        depth -= 1
        at = stack[depth]
        count += 1
        for child in (2 * at + 1, 2 * at + 2):
            if child < size and keys[child] < until:
                stack[depth] = child
                depth += 1
    out_keys = np.empty(count, np.int64)
    out_items = np.empty(count, np.int64)
    for i in range(count):
        out_keys[i] = keys[0]
        out_items[i] = items[0]
        size -= 1
        key = keys[size]
        item = items[size]
        at = 0
        while True:
            child = 2 * at + 1
            if child >= size:
                break
            if child + 1 < size and keys[child + 1] < keys[child]:
                child += 1
            if keys[child] >= key:
                break
            keys[at] = keys[child]
            items[at] = items[child]
            at = child
        keys[at] = key
        items[at] = item
    return out_keys, out_items
