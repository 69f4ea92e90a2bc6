"""State of one set-difference operator beside its sides: which match covers each left row longest.

Matches of one stream end in their total order (every window has one length), so the latest match of a row is
the one that covers it longest, and one row id per left row says all. Rows wait in a chain per match, so that
when matches end, exactly the rows that may come back are found: no heap, nothing per instant of silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from operators.data.evaluate import Resolve
from operators.data.tuples import FOREVER
from operators.kernels.cover import move_in_chains, take_chains
from operators.kernels.ring import ring_grow
from operators.state.store import SourceStore
from schemas.columns import I64, Mask

UNASKED, NO_MATCH, FIRST_MATCH = 0, 1, 2
"""What a ring says of a row: the operator was never asked about it; no match so far; match row + FIRST_MATCH."""


class Windows(Protocol):
    """What is asked of the stores of a query's streams; see `operators.state.sources.Sources`."""

    life: dict[str, int]
    rows_windows: dict[str, int]

    def store(self, alias: str) -> SourceStore:
        """The store behind an alias."""
        ...

    def resolver(self, aliases: Sequence[str], rows: I64) -> Resolve:
        """Reads columns of (k, n) component rows."""
        ...


class Lives:
    """When the tuples of one alias are alive, as closed intervals of instants.

    At instant t everything with ts <= t has arrived: a tuple of `[ROWS n]` is dead from the ts of its n-th
    successor on, and alive at no instant when that has its own ts.
    """

    def __init__(self, sources: Windows, alias: str) -> None:
        self._store: SourceStore = sources.store(alias)
        self._life = sources.life[alias]
        self._rows = sources.rows_windows.get(alias)

    def begin(self, rows: I64) -> I64:
        """(n,) first instants of stored rows."""
        return np.asarray(self._store.gather("_ts", rows).values, np.int64)

    def end(self, rows: I64) -> I64:
        """(n,) last instants of stored rows, as far as is known: FOREVER while a ROWS window is not full."""
        if self._rows is None:
            if self._life >= FOREVER:
                return np.full(len(rows), FOREVER)
            return np.asarray(np.minimum(self.begin(rows) + self._life, FOREVER), np.int64)
        end = np.full(len(rows), FOREVER)
        successors = rows + self._rows
        known = np.flatnonzero(successors < self._store.hi)
        end[known] = self.begin(successors[known]) - 1
        return end

    def ended(self, until: int) -> int:
        """The row before which every row's life has ended, and been over for an instant before `until`."""
        store = self._store
        if self._rows is not None:
            return max(store.first_at(until) - self._rows, store.lo)
        if self._life >= FOREVER:
            return store.lo
        return store.first_at(until - 1 - self._life)


class Covers:
    """Per left row its latest match, and per match the rows that wait for it to end.

    Attributes:
        waits_for: ring by left row, see FIRST_MATCH.
        taken: matches below it have ended; nobody waits for them.
    """

    def __init__(self, left: SourceStore, right: SourceStore, lives: Lives) -> None:
        self._left, self._right = left, right
        self._lives = lives
        self._left_hi, self._right_hi = left.lo, right.lo
        self.waits_for: I64 = np.zeros(left.capacity, np.int64)
        self._following: I64 = np.zeros(left.capacity, np.int64)
        self._preceding: I64 = np.zeros(left.capacity, np.int64)
        self._heads: I64 = np.zeros(right.capacity, np.int64)
        self.taken = 0

    def make_room(self) -> None:
        """Follow the stores' growth; before anything else of a slice."""
        left, right = self._left, self._right
        if left.capacity > len(self.waits_for):
            lo, capacity = min(left.lo, self._left_hi), left.capacity
            self.waits_for, self._following, self._preceding = (
                ring_grow(ring, lo, self._left_hi, capacity)
                for ring in (self.waits_for, self._following, self._preceding)
            )
        if right.capacity > len(self._heads):
            lo, hi = min(right.lo, self._right_hi) + FIRST_MATCH, self._right_hi + FIRST_MATCH
            self._heads = ring_grow(self._heads, lo, hi, right.capacity)
        self._left_hi, self._right_hi = left.hi, right.hi

    def take_ended(self, until: int) -> I64:
        """The rows, in no order, whose latest match ends so that they may come back at an instant before `until`."""
        begin = max(self.taken, self._right.lo)
        self.taken = max(begin, min(self._lives.ended(until), self._right.hi))
        rows: I64 = take_chains(self._heads, self._following, begin + FIRST_MATCH, self.taken + FIRST_MATCH)
        return rows

    def asked(self, rows: I64) -> Mask:
        """(n,) True where the operator has been asked about the row."""
        return np.asarray(self._of(rows) != UNASKED)

    def covering(self, rows: I64) -> Mask:
        """(n,) True where a match covers the row up to the end of the last slice."""
        return np.asarray(self._of(rows) >= self.taken + FIRST_MATCH)

    def covered_to(self, rows: I64) -> I64:
        """(n,) the last instant covered by matches noted so far; -1 where there is none that is still stored."""
        matches = self._of(rows) - FIRST_MATCH
        known = np.flatnonzero(matches >= self._right.lo)
        covered = np.full(len(rows), -1)
        covered[known] = self._lives.end(matches[known])
        return covered

    def ask(self, rows: I64) -> None:
        """The operator is asked about rows, of which it knows no match yet."""
        self.waits_for[rows & (len(self.waits_for) - 1)] = NO_MATCH

    def note(self, rows: I64, matches: I64) -> None:
        """Note the last match given of each row, later than any before; rows ascend."""
        if len(rows) == 0:
            return
        last = np.append(rows[1:] != rows[:-1], True)
        self._move(rows[last], matches[last] + FIRST_MATCH)

    def forget(self, rows: I64) -> None:
        """Rows have died."""
        self._move(rows, np.zeros(len(rows), np.int64))

    def _move(self, rows: I64, matches: I64) -> None:
        # A match is known here by its row + FIRST_MATCH; its chain's head is at that place, too.
        move_in_chains(
            rows, matches, self.waits_for, self._heads, self._following, self._preceding, self.taken + FIRST_MATCH
        )

    def _of(self, rows: I64) -> I64:
        return np.asarray(self.waits_for[rows & (len(self.waits_for) - 1)], np.int64)

    def size_bytes(self) -> int:
        """Bytes of all rings."""
        return self.waits_for.nbytes + self._following.nbytes + self._preceding.nbytes + self._heads.nbytes
