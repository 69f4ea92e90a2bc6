"""Sorts the entries that a state has in memory by partition group. Spilling and cleanup read groups from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from operators.data.tuples import Tuples
from operators.state.side_state import SideState
from schemas.columns import I64


class GroupedEntries:
    """A state's entries by partition group; valid until the state changes.

    Args:
        now: entries that expired before it are left out, since their source tuples may be gone.
    """

    def __init__(self, state: SideState, now: int) -> None:
        self._state = state
        state.drop_dead_rows()
        self._entries, begins = state.by_group(now)
        self._begins: list[int] = begins.tolist()

    def size(self, group: int) -> int:
        """The number of entries in a group."""
        return self._begins[group + 1] - self._begins[group]

    def tuples(self, groups: Sequence[int]) -> Tuples:
        """The tuples of some groups, group by group."""
        runs: list[I64] = [self._entries[self._begins[g] : self._begins[g + 1]] for g in groups]
        return self._state.tuples_of(np.concatenate(runs))
