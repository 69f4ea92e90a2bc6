"""Joins tuples that enter a distributed join late with the whole state of the other side.

`operators.distributed.feedback.producer` calls it when a signature is resumed.
"""

from __future__ import annotations

import numpy as np

from operators.data.tuples import Tuples
from operators.join.binary_join import BinaryJoin


def rejoined(join: BinaryJoin, side: int, late: Tuples, hold: int) -> Tuples:
    """Return the results of tuples of one side with all tuples of the other side's state, earlier or later, in any
    order.

    The cost is linear in the size of the state and the number of results.

    Args:
        join: A join over single aliases, as all distributed joins are.
        side: The side of the late tuples.
        late: The late tuples.
        hold: Results that expired before it are left out.
    """
    match, other = join.match, 1 - side
    probing = match.prepare(side, late.reorder(match.sides[side]))
    state = join.states[other]
    parts = [part.living(hold)[1] for part in (state.older, state) if part is not None]
    there = match.prepare(other, Tuples.concat(parts, match.sides[other]))
    found = match.find_all(side, probing, there)
    ts, expiry = [], []
    for k, alias in enumerate(found.aliases):
        at = join.sources.store(alias).gather("_ts", found.rows[k]).values.astype(np.int64, copy=False)
        ts.append(at)
        expiry.append(join.sources.expiry(alias, found.rows[k], at))
    found = Tuples(found.aliases, found.rows, np.maximum.reduce(ts), np.minimum.reduce(expiry))
    return found.take((found.ts <= found.expiry) & (found.expiry >= hold))
