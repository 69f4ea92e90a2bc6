"""The inner loop of the nested-loop join: compares all pairs by tables of operators and values.

`operators.state.side_state` calls it for joins without a key.
"""

from __future__ import annotations

from operators.kernels.hashing import F64
from schemas.columns import I64
from schemas.compiled import compiled, inlined

OPS = {"<": 0, "<=": 1, ">": 2, ">=": 3, "=": 4}
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}


@inlined
def fails(op, a, b):  # type: ignore[no-untyped-def]
    """True if `a op b` does not hold."""
    if op == 0:
        return not a < b
    if op == 1:
        return not a <= b
    if op == 2:
        return not a > b
    if op == 3:
        return not a >= b
    return a != b


@compiled
def scan_terms(
    int_ops: I64,
    int_probe: I64,
    int_ring: I64,
    float_ops: I64,
    float_probe: F64,
    float_ring: F64,
    ts: I64,
    start: int,
    resume: int,
    strict: bool,
    life: int,
    ring_ts: I64,
    ring_expiry: I64,
    lo: int,
    hi: int,
    out_probe: I64,
    out_entry: I64,
) -> tuple[int, int, int, int]:
    """Pair probe rows with the earlier live entries for which every term `probe op entry` holds.

    Args:
        int_ops, float_ops: (t,) codes of OPS, seen from the probe's side.
        int_probe, float_probe: (t, n) values of the probing tuples.
        int_ring, float_ring: (t, capacity) values of the entries.
        ts: (n,) of the probing tuples, ascending; the rest as in `kernels.index.probe_keys`.

    Returns:
        As `probe_keys`: the number of pairs written, the row and entry from which to continue, entries compared.

    Cost: O(n * entries alive).
    """
    mask = ring_ts.shape[0] - 1
    has_expiry = ring_expiry.shape[0] > 0
    room = out_probe.shape[0]
    count = 0
    compared = 0
    for i in range(start, ts.shape[0]):
        now = ts[i]
        e = hi - 1 if resume < 0 else resume
        resume = -1
        while e >= lo:
            slot = e & mask
            t = ring_ts[slot]
            if t < now - life:
                break
            if (t < now or (t == now and not strict)) and (not has_expiry or ring_expiry[slot] >= now):
                good = True
                for k in range(int_ops.shape[0]):
                    if fails(int_ops[k], int_probe[k, i], int_ring[k, slot]):
                        good = False
                        break
                if good:
                    for k in range(float_ops.shape[0]):
                        if fails(float_ops[k], float_probe[k, i], float_ring[k, slot]):
                            good = False
                            break
                if good:
                    if count == room:
                        return count, i, e, compared
                    out_probe[count] = i
                    out_entry[count] = e
                    count += 1
                compared += 1
            e -= 1
    return count, ts.shape[0], -1, compared
