"""The keys of an incomplete state: which were attempted (JISC 4.4), and how many there are (JISC 4.3).

The paper counts the distinct join values at the transition and counts down with every one that is completed. To count
them at once would make the first slice pay for a whole state. Here a complete state that has all of them is looked
through a piece at a time, newest entries first. Meanwhile keys are claimed: whether there can be anything under a
key that was not counted yet is asked of the index; a claimed key that is counted later counts as completed. So
nothing waits for the count, and the state is known to be complete when it has ended and every key that it found was
claimed.

Where an input of the state is incomplete too, and asked for by the same keys, its keys are counted first: those are all
that there can be.

Newest first, because entries move only downwards when a ring is compacted: what was not looked at stays below the
place that the count has come to, and to look at a key twice does no harm.

A key enters the table when it is counted or claimed, and only if there is something under it: there are never more
than the state has entries, so the table is made for as many and grows within.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from operators.kernels.hashing import U64
from operators.kernels.marks import add_marks, new_table, read_marks
from operators.state import SideState
from schemas.columns import Mask

ATTEMPTED, COUNTED = 1, 2


class KeyCount:
    """Counts the distinct keys of a state's old tuples, and those that are left.

    Args:
        state: complete and hashed; every key that may be missing has an entry with ts < before in it.
        possible: (n,) True where there can be entries to complete under a key; once False it stays so.
        attempted: keys that an earlier transition has completed.
    """

    def __init__(self, state: SideState, before: int, possible: Callable[[U64], Mask], attempted: U64) -> None:
        self._possible = possible
        self._parts: list[tuple[SideState | KeyCount, int]] = [(state, state.first_at(before))]
        if state.older is not None:
            self._parts.append((state.older, state.older.hi))
        most = sum(stop - part.lo for part, stop in self._parts) + len(attempted)
        self._table = new_table(most)
        self._total = 0
        self._left = 0
        add_marks(attempted, ATTEMPTED, self._table)

    lo = 0

    @property
    def hi(self) -> int:
        """How many keys are in the table."""
        return int(self._table[-1][0])

    def read_keys(self, lo: int, hi: int) -> U64:
        """Those of keys lo .. hi in the table that have been counted."""
        keys, marks, *_ = self._table
        return np.asarray(keys[lo:hi][marks[lo:hi] & COUNTED != 0])

    def within(self, other: KeyCount) -> None:
        """Every key is one that `other` has counted, which has ended: look through those, before any other."""
        self._parts = [(other, other.hi)]

    @property
    def ended(self) -> bool:
        """True when all have been counted."""
        return not self._parts

    @property
    def exhausted(self) -> bool:
        """True when all have been counted and claimed."""
        return self.ended and self._left == 0

    def progress(self) -> tuple[int, int]:
        """Keys claimed, of how many; (0, 0) until all have been counted."""
        return (self._total - self._left, self._total) if self.ended else (0, 0)

    def attempted(self) -> U64:
        """The keys that were claimed, in any order. O(keys)."""
        keys, marks, *_ = self._table
        return np.asarray(keys[: self.hi][marks[: self.hi] & ATTEMPTED != 0])

    def counted(self, keys: U64) -> Mask:
        """(n,) True where a key has been counted."""
        return np.asarray(read_marks(keys, self._table) & COUNTED != 0)

    def claim(self, keys: U64) -> U64:
        """Those of some keys under which there may be entries and which were not claimed before, each once,
        ascending."""
        marks = read_marks(keys, self._table)
        fresh = marks == COUNTED
        if not self.ended:
            unknown = np.flatnonzero(marks == 0)
            fresh[unknown] = self._possible(keys[unknown])
        keys, marks = keys[fresh], marks[fresh]
        new = add_marks(keys, ATTEMPTED, self._table)
        self._left -= int(np.count_nonzero(marks[new]))
        return np.sort(keys[new])

    def count(self, most: int) -> int:
        """Look at up to so many entries more; at how many."""
        looked = 0
        while self._parts and looked < most:
            part, stop = self._parts[-1]
            stop = min(stop, part.hi)
            begin = max(part.lo, stop - (most - looked))
            if begin < stop:
                self._count(part.read_keys(begin, stop))
                looked += stop - begin
            if begin <= part.lo:
                self._parts.pop()
            else:
                self._parts[-1] = part, begin
        return looked

    def _count(self, keys: U64) -> None:
        marks = read_marks(keys, self._table)
        good = marks == ATTEMPTED
        unknown = np.flatnonzero(marks == 0)
        good[unknown] = self._possible(keys[unknown])
        keys, marks = keys[good], marks[good]
        new = add_marks(keys, COUNTED, self._table)
        self._total += int(np.count_nonzero(new))
        self._left += int(np.count_nonzero(marks[new] == 0))
