"""Sorted multisets with ranks: treaps whose nodes are the slots of live results.

`operators.aggregate` calls these functions. There is one treap per group, sorted by (code, slot); codes are int64 in
the order of the values. A slot's priority is a hash of its number, so nothing is random. The shape of a tree does not
affect any value read from it. Inserting, erasing and finding by rank take O(log n) steps on average for n values in a
group.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from operators.kernels.hashing import _mix
from schemas.columns import I64, Mask
from schemas.compiled import compiled

I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]
NOTHING = -1
LEFT, RIGHT, SIZE = 0, 1, 2


@compiled
def _priority(slot: int) -> np.uint64:
    return np.uint64(_mix(np.uint64(slot) + np.uint64(0x9E3779B97F4A7C15)))


@compiled
def _before(codes: I64, a: int, b: int) -> bool:
    return bool(codes[a] < codes[b] or (codes[a] == codes[b] and a < b))


@compiled
def _size(nodes: I32, slot: int) -> np.int64:
    return np.int64(nodes[SIZE, slot]) if slot != NOTHING else np.int64(0)


@compiled
def _hang(roots: I32, group: int, nodes: I32, parent: int, side: int, child: int) -> None:
    """Make `child` the child of `parent` on a side, or the root if the parent is NOTHING."""
    if parent == NOTHING:
        roots[group] = child
    else:
        nodes[side, parent] = child


@compiled
def ordered_insert(roots: I32, group: int, slot: int, codes: I64, nodes: I32) -> None:
    """Enter a slot into a group's treap."""
    priority = _priority(slot)
    parent, side = np.int64(NOTHING), LEFT
    at = np.int64(roots[group])
    while at != NOTHING and _priority(at) >= priority:
        nodes[SIZE, at] += 1
        parent = at
        side = LEFT if _before(codes, slot, at) else RIGHT
        at = np.int64(nodes[side, at])
    # Count how many nodes of the subtree split here go to either side, so that sizes can be set on the way down.
    more = _size(nodes, at)
    less = np.int64(0)
    probe = at
    while probe != NOTHING:
        if _before(codes, probe, slot):
            less += 1 + _size(nodes, np.int64(nodes[LEFT, probe]))
            probe = np.int64(nodes[RIGHT, probe])
        else:
            probe = np.int64(nodes[LEFT, probe])
    more -= less
    nodes[SIZE, slot] = less + more + 1
    _hang(roots, group, nodes, parent, side, slot)
    low, low_side, high, high_side = np.int64(slot), LEFT, np.int64(slot), RIGHT
    while at != NOTHING:
        if _before(codes, at, slot):
            nodes[low_side, low] = at
            nodes[SIZE, at] = less
            less -= 1 + _size(nodes, np.int64(nodes[LEFT, at]))
            low, low_side = at, RIGHT
            at = np.int64(nodes[RIGHT, at])
        else:
            nodes[high_side, high] = at
            nodes[SIZE, at] = more
            more -= 1 + _size(nodes, np.int64(nodes[RIGHT, at]))
            high, high_side = at, LEFT
            at = np.int64(nodes[LEFT, at])
    nodes[low_side, low] = NOTHING
    nodes[high_side, high] = NOTHING


@compiled
def ordered_erase(roots: I32, group: int, slot: int, codes: I64, nodes: I32) -> None:
    """Remove a slot from a group's treap, which must hold it."""
    parent, side = np.int64(NOTHING), LEFT
    at = np.int64(roots[group])
    while at != slot:
        nodes[SIZE, at] -= 1
        parent = at
        side = LEFT if _before(codes, slot, at) else RIGHT
        at = np.int64(nodes[side, at])
    a, b = np.int64(nodes[LEFT, slot]), np.int64(nodes[RIGHT, slot])
    while a != NOTHING and b != NOTHING:
        both = _size(nodes, a) + _size(nodes, b)
        if _priority(a) >= _priority(b):
            _hang(roots, group, nodes, parent, side, a)
            nodes[SIZE, a] = both
            parent, side = a, RIGHT
            a = np.int64(nodes[RIGHT, a])
        else:
            _hang(roots, group, nodes, parent, side, b)
            nodes[SIZE, b] = both
            parent, side = b, LEFT
            b = np.int64(nodes[LEFT, b])
    _hang(roots, group, nodes, parent, side, a if a != NOTHING else b)


@compiled
def ordered_at(root: int, rank: int, nodes: I32) -> int:
    """The slot at a rank, counted from 0; the treap must have more values than that."""
    at = np.int64(root)
    while True:
        before = _size(nodes, np.int64(nodes[LEFT, at]))
        if rank == before:
            return int(at)
        if rank < before:
            at = np.int64(nodes[LEFT, at])
        else:
            rank -= before + 1
            at = np.int64(nodes[RIGHT, at])


@compiled
def ordered_quantiles(roots: I32, groups: I64, codes: I64, nodes: I32) -> I64:
    """(4, n) codes of each group's least, greatest and two middle values; 0 for a group without values."""
    out = np.zeros((4, groups.shape[0]), np.int64)
    for i in range(groups.shape[0]):
        _quantiles(roots[groups[i]], codes, nodes, out, i)
    return out


@compiled
def _quantiles(root: int, codes: I64, nodes: I32, out: I64, i: int) -> None:
    if root == NOTHING:
        return
    n = _size(nodes, np.int64(root))
    out[0, i] = codes[ordered_at(root, 0, nodes)]
    out[1, i] = codes[ordered_at(root, n - 1, nodes)]
    out[2, i] = codes[ordered_at(root, (n - 1) >> 1, nodes)]
    out[3, i] = codes[ordered_at(root, n >> 1, nodes)]


@compiled
def ordered_events(
    roots: I32, slots: I64, signs: I8, groups: I64, ends: I64, valid: Mask, codes: I64, nodes: I32
) -> I64:
    """Insert (sign 1) and erase (-1) slots, touch by touch, and read each touched group's values after its touch.

    Args:
        roots: by group, the root of its treap, changed.
        slots, signs: (m,) events; slots that are not valid are skipped.
        groups, ends: (t,) per touch its group, and the position where its events end.
        valid, codes, nodes: by slot; nodes are changed.

    Returns:
        (4, t), see `ordered_quantiles`.
    """
    out = np.zeros((4, groups.shape[0]), np.int64)
    at = 0
    for touch in range(groups.shape[0]):
        group = groups[touch]
        while at < ends[touch]:
            slot = slots[at]
            if valid[slot]:
                if signs[at] > 0:
                    ordered_insert(roots, group, slot, codes, nodes)
                else:
                    ordered_erase(roots, group, slot, codes, nodes)
            at += 1
        _quantiles(roots[group], codes, nodes, out, touch)
    return out
