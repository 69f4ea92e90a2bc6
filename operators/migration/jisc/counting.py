"""Records the keys of an incomplete state: which were attempted (JISC 4.4), and how many there are (JISC 4.3).

`operators.migration.jisc.completion` uses it. The paper counts the distinct join values at the transition and counts
down with each value that is completed. Counting them at once would make the first slice bear the cost of a whole state.
Here a complete state that has all of the keys is scanned a piece at a time, newest entries first. Meanwhile keys are
claimed. For a key that is not counted yet, the indexes tell whether there can be an entry under it; a claimed key that
is counted later counts as completed. So nothing waits for the count. The state is known to be complete when the count
has ended and every key that it found was claimed.

A claim takes two steps, because several states are requested together. Going down, keys are sifted by the inputs next
to the state. The remaining keys are requested of the states below too. Going up, the keys that these found possible are
claimed.

If an input of the state is incomplete too and is requested by the same keys, its keys are counted first: the state can
have no others.

The scan is newest first because compacting a ring moves entries only downwards: entries not scanned yet stay below the
position that the count has reached, and scanning a key twice does no harm.

A key enters the table when it is counted or claimed, and only if there is an entry under it. There are never more keys
than the state has entries, so the table is sized for that number and never grows beyond it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from operators.kernels.hashing import U64
from operators.kernels.marks import add_marks, new_table, read_marks, with_room
from operators.state.side_state import SideState
from schemas.columns import I64, Mask

ATTEMPTED, COUNTED, CLAIMED = 1, 2, 4


class KeyCount:
    """Counts the distinct keys of a state's old tuples, and those that are left.

    Args:
        state: A complete, hashed state in which every key that may be missing has an entry with ts < before.
        before: The tuples counted have a smaller ts.
        possible: Returns (n,) True where there can be entries to complete under a key; once False it stays False.
        attempted: The keys that an earlier transition completed.
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
        """The number of keys in the table."""
        return int(self._table[-1][0])

    def read_keys(self, lo: int, hi: int) -> U64:
        """Return those of keys lo .. hi - 1 in the table that have been counted."""
        keys, marks, *_ = self._table
        return np.asarray(keys[lo:hi][marks[lo:hi] & COUNTED != 0])

    def within(self, other: KeyCount) -> None:
        """Scan the keys that `other` has counted instead of the state. Every key is one of these. `other` has ended and
        this count has not started."""
        self._parts = [(other, other.hi)]

    @property
    def ended(self) -> bool:
        """True when all keys have been counted."""
        return not self._parts

    @property
    def exhausted(self) -> bool:
        """True when all keys have been counted and claimed."""
        return self.ended and self._left == 0

    def progress(self) -> tuple[int, int]:
        """Return how many keys are claimed, of how many; (0, 0) until all have been counted."""
        return (self._total - self._left, self._total) if self.ended else (0, 0)

    def attempted(self) -> U64:
        """Return the claimed keys, in any order. O(keys)."""
        keys, marks, *_ = self._table
        return np.asarray(keys[: self.hi][marks[: self.hi] & ATTEMPTED != 0])

    @property
    def left(self) -> int:
        """The number of keys that have been counted and not claimed."""
        return self._left

    def rest(self) -> U64:
        """Return the keys that have been counted and not claimed, ascending. O(keys)."""
        keys, marks, *_ = self._table
        return np.sort(keys[: self.hi][marks[: self.hi] == COUNTED])

    def known(self, keys: U64) -> tuple[Mask, I64]:
        """Return (n,) True where there can be entries under a key. This is valid when all keys have been counted, or
        when `sift` was called with these keys and `claim` with those left. Also return the keys for which that does not
        decide, because they were attempted earlier."""
        marks = read_marks(keys, self._table)
        if self.ended:
            return np.asarray(marks & COUNTED != 0), np.zeros(0, np.int64)
        return np.asarray(marks > ATTEMPTED), np.flatnonzero(marks == ATTEMPTED)

    def sift(self, keys: U64, possible: Callable[[U64], Mask]) -> U64:
        """Return those of some keys, which may repeat, that were not attempted and that have been counted or are
        `possible`; once all keys have been counted, only those that are both. Each once, ascending."""
        marks = read_marks(keys, self._table)
        good = marks == COUNTED
        if not self.ended:
            unknown = np.flatnonzero(marks == 0)
            good[unknown] = possible(keys[unknown])
        return np.unique(keys[good])

    def claim(self, keys: U64, possible: Callable[[U64], Mask]) -> U64:
        """Return those of sifted keys that have been counted or are `possible`; they count as attempted from now on."""
        if not self.ended:
            marks = read_marks(keys, self._table)
            good = marks == COUNTED
            unknown = np.flatnonzero(marks == 0)
            good[unknown] = possible(keys[unknown])
            self._left -= int(np.count_nonzero(marks == COUNTED))
            keys = keys[good]
        else:
            self._left -= len(keys)
        self._table = with_room(self._table, len(keys))
        add_marks(keys, ATTEMPTED | CLAIMED, self._table)
        return keys

    def count(self, most: int) -> int:
        """Scan up to `most` more entries, and return how many were scanned."""
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
        # `within` lets it scan keys whose entries have died since, and others may be possible without an entry.
        self._table = with_room(self._table, len(keys))
        new = add_marks(keys, COUNTED, self._table)
        self._total += int(np.count_nonzero(new))
        self._left += int(np.count_nonzero(marks[new] == 0))
