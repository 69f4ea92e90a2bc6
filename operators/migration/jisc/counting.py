"""The keys of an incomplete state: which were attempted (JISC 4.4), and how many there are (JISC 4.3).

The paper counts the distinct join values at the transition and counts down with every one that is completed. To count
them at once would make the first slice pay for a whole state. Here a complete state that has all of them is looked
through a piece at a time, newest entries first. Meanwhile keys are claimed: whether there can be anything under a
key that was not counted yet is asked of the indexes; a claimed key that is counted later counts as completed. So
nothing waits for the count, and the state is known to be complete when it has ended and every key that it found was
claimed.

To claim takes two steps, for what is asked of several states together. Going down, keys are sifted by what is near.
What is left is asked of the states below, too; going up, those are claimed that these have found to be possible.

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
from operators.state.side_state import SideState
from schemas.columns import I64, Mask

ATTEMPTED, COUNTED, CLAIMED = 1, 2, 4


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

    @property
    def left(self) -> int:
        """How many keys have been counted and not claimed."""
        return self._left

    def rest(self) -> U64:
        """The keys that have been counted and not claimed, ascending. O(keys)."""
        keys, marks, *_ = self._table
        return np.sort(keys[: self.hi][marks[: self.hi] == COUNTED])

    def known(self, keys: U64) -> tuple[Mask, I64]:
        """(n,) True where there can be entries under a key: when all have been counted, or `sift` was asked for them
        and `claim` for what was left. And which of them that does not tell of, as they were attempted earlier."""
        marks = read_marks(keys, self._table)
        if self.ended:
            return np.asarray(marks & COUNTED != 0), np.zeros(0, np.int64)
        return np.asarray(marks > ATTEMPTED), np.flatnonzero(marks == ATTEMPTED)

    def sift(self, keys: U64, possible: Callable[[U64], Mask]) -> U64:
        """Those of some keys, which may repeat, that were not attempted and have been counted, or are `possible`, or
        both as soon as all have been counted; each once, ascending."""
        marks = read_marks(keys, self._table)
        good = marks == COUNTED
        if not self.ended:
            unknown = np.flatnonzero(marks == 0)
            good[unknown] = possible(keys[unknown])
        return np.unique(keys[good])

    def claim(self, keys: U64, possible: Callable[[U64], Mask]) -> U64:
        """Those of sifted keys that have been counted or are `possible`; from now on they count as attempted."""
        if not self.ended:
            marks = read_marks(keys, self._table)
            good = marks == COUNTED
            unknown = np.flatnonzero(marks == 0)
            good[unknown] = possible(keys[unknown])
            self._left -= int(np.count_nonzero(marks == COUNTED))
            keys = keys[good]
        else:
            self._left -= len(keys)
        add_marks(keys, ATTEMPTED | CLAIMED, self._table)
        return keys

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
        good = marks & ATTEMPTED != 0
        unknown = np.flatnonzero(marks == 0)
        good[unknown] = self._possible(keys[unknown])
        keys, marks = keys[good], marks[good]
        new = add_marks(keys, COUNTED, self._table)
        self._total += int(np.count_nonzero(new))
        self._left += int(np.count_nonzero(marks[new] == 0))
