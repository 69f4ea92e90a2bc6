"""Identify_MNS (JIT, Fig. 8) for many tuples at once: which sub-tuples have no partner among a state's entries.

A node of the lattice is a set of level-1 nodes and is numbered by its bits, so node 5 is {0, 2}, and node 0 is the
empty sub-tuple. Level-1 node k matches an entry when all its terms hold. The single pass notes for each probing tuple
which sets of level-1 nodes matched some entry together. A node is dead if all of it matched together once, as a
subset of what was noted; the minimal ones of those alive are the tuple's MNSs. That does for each pair what Fig. 8
does in lines 6-10, level by level, in one comparison per term, and lines 7-9 once per tuple instead of once per pair.
"""

from __future__ import annotations

import numpy as np

from operators.kernels.hashing import F64
from operators.kernels.scan import fails
from schemas.columns import I64, Mask
from schemas.compiled import compiled

MOST_NODES = 8
"""Level-1 nodes that one pass looks at: the lattice has 2**n nodes."""


@compiled
def note_matches(
    int_ops: I64,
    int_probe: I64,
    int_ring: I64,
    int_nodes: I64,
    float_ops: I64,
    float_probe: F64,
    float_ring: F64,
    float_nodes: I64,
    ts: I64,
    every: bool,
    strict: bool,
    life: int,
    ring_ts: I64,
    ring_expiry: I64,
    lo: int,
    hi: int,
    seen: Mask,
) -> int:
    """Note per probing tuple the sets of level-1 nodes that match some entry together.

    Args:
        int_ops, int_probe, int_ring, float_ops, float_probe, float_ring: the terms as in `kernels.scan.scan_terms`.
        int_nodes, float_nodes: (t,) each term's level-1 node, -1 for a term that is not looked at.
        ts: (n,) of the probing tuples: entries that died before do not count.
        every: True to look at later entries too, False at earlier ones only, as `scan_terms` does.
        strict: of earlier ones, True for smaller ts, False for equal ts too.
        life, ring_ts, ring_expiry, lo, hi: of the state.
        seen: (n, 2**nodes), set where a tuple matched some entry in just these nodes; may have been set before,
            by another state's entries. Row i is all False as long as there is no entry for tuple i.

    Returns:
        The number of entries compared. A tuple is done with when it matches an entry in all nodes.

    Cost: O(n * entries alive).
    """
    mask = ring_ts.shape[0] - 1
    has_expiry = ring_expiry.shape[0] > 0
    full = seen.shape[1] - 1
    compared = 0
    for i in range(ts.shape[0]):
        if seen[i, full]:
            continue
        now = ts[i]
        for e in range(hi - 1, lo - 1, -1):
            slot = e & mask
            t = ring_ts[slot]
            if t < now - life:
                break
            if not (every or t < now or (t == now and not strict)) or (has_expiry and ring_expiry[slot] < now):
                continue
            matched = full
            for k in range(int_ops.shape[0]):
                if int_nodes[k] >= 0 and fails(int_ops[k], int_probe[k, i], int_ring[k, slot]):
                    matched &= ~(1 << int_nodes[k])
            for k in range(float_ops.shape[0]):
                if float_nodes[k] >= 0 and fails(float_ops[k], float_probe[k, i], float_ring[k, slot]):
                    matched &= ~(1 << float_nodes[k])
            seen[i, matched] = True
            compared += 1
            if matched == full:
                break
    return compared


@compiled
def minimal_alive(seen: Mask) -> Mask:
    """The MNSs by what `note_matches` noted.

    Returns:
        (n, 2**nodes) bool, True where the node is an MNS of the tuple: [i, 0], and no other, where there was no entry;
        nothing where some entry matched in all nodes.
    """
    n, size = seen.shape
    out = np.zeros((n, size), np.bool_)
    dead = np.empty(size, np.bool_)
    for i in range(n):
        dead[:] = seen[i]
        # Every subset of what matched together matched together.
        bit = 1
        while bit < size:
            for node in range(size):
                if node & bit and dead[node]:
                    dead[node ^ bit] = True
            bit <<= 1
        for node in range(size):
            if dead[node]:
                continue
            minimal = True
            bit = 1
            while bit <= node:
                # All smaller sets are dead if those without one member are.
                if node & bit and not dead[node ^ bit]:
                    minimal = False
                    break
                bit <<= 1
            out[i, node] = minimal
    return out
