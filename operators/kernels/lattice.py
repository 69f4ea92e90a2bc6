"""Identify_MNS (JIT, Fig. 8) for many tuples at once: finds sub-tuples without a partner among a state's entries.

`operators.feedback` calls these functions. A node of the lattice is a set of level-1 nodes and is numbered by its bits,
so node 5 is {0, 2}, and node 0 is the empty sub-tuple. Level-1 node k matches an entry when all its terms hold. A
single pass records, for each probing tuple, which sets of level-1 nodes matched some entry together. A node is dead if
it is a subset of a recorded set, since all of it then matched one entry. The minimal live nodes are the tuple's MNSs.
For each pair, this does what lines 6-10 of Fig. 8 do level by level, with one comparison per term; it does lines 7-9
once per tuple instead of once per pair.
"""

from __future__ import annotations

import numpy as np

from operators.kernels.hashing import F64
from operators.kernels.scan import fails
from schemas.columns import I64, Mask
from schemas.compiled import compiled

MOST_NODES = 8
"""The most level-1 nodes that one pass considers: the lattice of n has 2**n nodes."""


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
    """Record per probing tuple the sets of level-1 nodes that match some entry together.

    Args:
        int_ops, int_probe, int_ring, float_ops, float_probe, float_ring: the terms as in `kernels.scan.scan_terms`.
        int_nodes, float_nodes: (t,) each term's level-1 node, -1 for a term to ignore.
        ts: (n,) of the probing tuples; entries that expired before do not count.
        every: True to compare later entries too, False to compare earlier ones only, as `scan_terms` does.
        strict: of earlier entries, True for smaller ts only, False for equal ts too.
        life, ring_ts, ring_expiry, lo, hi: the state's lifetime and rings.
        seen: (n, 2**nodes), set to True where a tuple matched some entry in exactly these nodes; entries of another
            state may have set it before. Row i is all False as long as there is no entry for tuple i.

    Returns:
        The number of entries compared. A tuple needs no more comparisons once it matches an entry in all nodes.

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
    """Find the MNSs from the sets that `note_matches` recorded.

    Returns:
        (n, 2**nodes) bool, True where the node is an MNS of the tuple. Only [i, 0] is True where there was no entry;
        no node is True where some entry matched in all nodes.
    """
    n, size = seen.shape
    out = np.zeros((n, size), np.bool_)
    dead = np.empty(size, np.bool_)
    for i in range(n):
        dead[:] = seen[i]
        # If a set matched together, each of its subsets did too.
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
                # All smaller subsets are dead if the subsets that lack one member are.
                if node & bit and not dead[node ^ bit]:
                    minimal = False
                    break
                bit <<= 1
            out[i, node] = minimal
    return out
