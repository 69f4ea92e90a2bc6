"""Loads the kernels that results on demand need, before a plan that makes them takes over.

Numba loads a compiled kernel at its first call, which takes 10 to 40 ms. Most kernels of a join have been called by
then, since the former plan's joins use them. These have not. At their first use all results would wait for them: those
of the first answers.
"""

from __future__ import annotations

import numpy as np

from operators.data.tuples import FOREVER, Tuples
from operators.feedback.signatures import Signatures
from operators.state.side_state import SideState

_ROWS = 8


def rehearse() -> None:
    """Use everything once that `producer` and `consumer` use for an answer, on a few made-up tuples."""
    words, times = np.arange(_ROWS, dtype=np.uint64), np.arange(_ROWS, dtype=np.int64)
    received = Signatures()
    received.add(words, times)
    received.contains(words)
    received.remove(words)
    state, tuples = SideState(("A", "B"), FOREVER, hashed=True), Tuples(("A", "B"), np.stack([times] * 2), times, times)
    capacity = state.capacity
    while state.capacity == capacity:  # entries are retracted before it grows, and afterwards
        state.insert(tuples, words)
        entries, _ = state.living(0)
        state.retract(entries[:1])
    state.retract(entries[1:])
