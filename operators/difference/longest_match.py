"""Finds how long each left row of a set-difference operator stays covered: `LatestMatches`.

Matches of one stream end in their total order, since every window has one length. So the latest match of a row covers
it longest, and one row id per left row is enough. Rows wait in a chain per match. When matches end, the chains lead to
exactly the rows that may return to the answer: there is no heap, and an idle stream costs nothing.
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
"""Values of a ring for a row: the operator was never asked about it; it has no match; match row + FIRST_MATCH."""


class WindowStores(Protocol):
    """The part of `operators.state.sources.Sources` that `Lifetimes` and the aggregator need."""

    life: dict[str, int]
    rows_windows: dict[str, int]

    def store(self, alias: str) -> SourceStore:
        """Return the store behind an alias."""
        ...

    def resolver(self, aliases: Sequence[str], rows: I64) -> Resolve:
        """Return a function that reads columns of (k, n) component rows."""
        ...


class Lifetimes:
    """When the tuples of one alias are alive, as closed intervals of instants.

    At instant t everything with ts <= t has arrived. So a tuple of `[ROWS n]` is dead from the ts of its n-th successor
    on; if that has the same ts, the tuple is alive at no instant.
    """

    def __init__(self, sources: WindowStores, alias: str) -> None:
        self._store: SourceStore = sources.store(alias)
        self._life = sources.life[alias]
        self._rows = sources.rows_windows.get(alias)

    def begin(self, rows: I64) -> I64:
        """Return (n,) the first instants of stored rows."""
        return np.asarray(self._store.gather("_ts", rows).values, np.int64)

    def end(self, rows: I64) -> I64:
        """Return (n,) the last instants of stored rows; FOREVER while the end in a ROWS window is not known yet."""
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
        """Return the first row that is not known to be dead at some instant before `until`."""
        store = self._store
        if self._rows is not None:
            return max(store.first_at(until) - self._rows, store.lo)
        if self._life >= FOREVER:
            return store.lo
        return store.first_at(until - 1 - self._life)


class LatestMatches:
    """The latest match of each left row, and for each match the rows that wait for it to end.

    Attributes:
        waits_for: ring by left row with the row's latest match, see FIRST_MATCH.
        ended_before: all matches below this row have ended; no row waits for them.
    """

    def __init__(self, left: SourceStore, right: SourceStore, lifetimes: Lifetimes) -> None:
        self._left, self._right = left, right
        self._lifetimes = lifetimes
        self._left_hi, self._right_hi = left.lo, right.lo
        self.waits_for: I64 = np.zeros(left.capacity, np.int64)
        self._following: I64 = np.zeros(left.capacity, np.int64)
        self._preceding: I64 = np.zeros(left.capacity, np.int64)
        self._heads: I64 = np.zeros(right.capacity, np.int64)
        self.ended_before = 0

    def make_room(self) -> None:
        """Grow with the stores. To be called before anything else in a slice."""
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
        """Return the rows, in no order, that may return to the answer before `until` since their latest match ends."""
        begin = max(self.ended_before, self._right.lo)
        self.ended_before = max(begin, min(self._lifetimes.ended(until), self._right.hi))
        rows: I64 = take_chains(self._heads, self._following, begin + FIRST_MATCH, self.ended_before + FIRST_MATCH)
        return rows

    def asked(self, rows: I64) -> Mask:
        """Return (n,) bool: True where the operator has been asked about the row."""
        return np.asarray(self._of(rows) != UNASKED)

    def covering(self, rows: I64) -> Mask:
        """Return (n,) bool: True where a match covers the row up to the end of the last slice."""
        return np.asarray(self._of(rows) >= self.ended_before + FIRST_MATCH)

    def covered_to(self, rows: I64) -> I64:
        """Return (n,) the last instant covered by recorded matches; -1 where no recorded match is still stored."""
        matches = self._of(rows) - FIRST_MATCH
        known = np.flatnonzero(matches >= self._right.lo)
        covered = np.full(len(rows), -1)
        covered[known] = self._lifetimes.end(matches[known])
        return covered

    def ask(self, rows: I64) -> None:
        """Record that the operator is asked about rows, none of which has a match yet."""
        self.waits_for[rows & (len(self.waits_for) - 1)] = NO_MATCH

    def note(self, rows: I64, matches: I64) -> None:
        """Record the last of each row's given matches; it is later than any recorded before. Rows ascend."""
        if len(rows) == 0:
            return
        last = np.append(rows[1:] != rows[:-1], True)
        self._move(rows[last], matches[last] + FIRST_MATCH)

    def forget(self, rows: I64) -> None:
        """Forget rows that have died."""
        self._move(rows, np.zeros(len(rows), np.int64))

    def _move(self, rows: I64, matches: I64) -> None:
        # A match is represented by its row + FIRST_MATCH, which is also the position of its chain's head.
        ended = self.ended_before + FIRST_MATCH
        move_in_chains(rows, matches, self.waits_for, self._heads, self._following, self._preceding, ended)

    def _of(self, rows: I64) -> I64:
        return np.asarray(self.waits_for[rows & (len(self.waits_for) - 1)], np.int64)

    def size_bytes(self) -> int:
        """Return the bytes of all rings."""
        return self.waits_for.nbytes + self._following.nbytes + self._preceding.nbytes + self._heads.nbytes
