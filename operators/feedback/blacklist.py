"""The blacklist (JIT IV-B) stores the suspended tuples of one kind by signature until a matching partner arrives.

`operators.feedback.stem_guard` and `operators.feedback.tree_guard` put tuples in when they suspend a signature and take
the whole list of a signature when they resume it. A put or take therefore costs O(1) per tuple, however often a
signature is suspended and resumed.

A signature stays suspended as long as its list exists, even if all tuples in the list have expired: it still has no
partner.

Taken and expired tuples keep their entries in the pool until a sweep. A sweep runs when the pool is full, or on `purge`
once as many tuples have been handled as the pool holds. It also costs O(1) per tuple, and the memory grows and shrinks
with the number of living tuples.
"""

from __future__ import annotations

import math

import numpy as np

from operators.data.tuples import Tuples
from operators.kernels.blacklist import has_lists, link_entries, take_lists
from operators.kernels.hashing import U64
from operators.kernels.index import I32
from operators.kernels.signatures import VACANT
from schemas.columns import I64, Mask

FIRST_CAPACITY = 64
"""The least number of tuples that a non-empty blacklist has room for."""

MAX_FILLED = 0.75
"""A sweep sizes the new pool so that the living tuples fill at most this share of it."""

SLOTS_PER_TUPLE = 1.5
"""The hash table has at least this many slots per tuple that the pool has room for."""


class Blacklist:
    """Suspended tuples over `aliases`.

    Attributes:
        aliases: The aliases that each tuple covers, in the order of the tuples' rows.
        signatures: The number of signatures that have a list. Tuples in the lists may have expired since the last
            sweep.
    """

    def __init__(self, aliases: tuple[str, ...]) -> None:
        self.aliases = aliases
        self.signatures = 0
        self._dead_rows: dict[str, int] = {}
        self._count = 0
        self._handled = 0
        self._allocate(0)

    def _allocate(self, capacity: int) -> None:
        self._used = 0
        self._rows: I64 = np.zeros((len(self.aliases), capacity), np.int64)
        self._ts: I64 = np.zeros(capacity, np.int64)
        self._expiry: I64 = np.zeros(capacity, np.int64)
        self._signatures: U64 = np.zeros(capacity, np.uint64)
        self._behind: I32 = np.zeros(capacity, np.int32)
        # There are at most as many signatures as tuples.
        slots = 1 << (math.ceil(SLOTS_PER_TUPLE * capacity) - 1).bit_length() if capacity else 0
        self._heads: I32 = np.zeros(slots, np.int32)

    def __len__(self) -> int:
        """The number of stored tuples; some may have expired since the last sweep."""
        return self._count

    def put(self, tuples: Tuples, signatures: U64, now: int) -> int:
        """Put tuples under their (n,) signatures and return how many of the signatures are new. If the pool is full, a
        sweep first removes the tuples that expired before `now`."""
        if self._used + len(tuples) > len(self._ts):
            self._sweep(now, len(tuples))
        self._handled += len(tuples)
        return self._append(tuples, signatures)

    def _append(self, tuples: Tuples, signatures: U64) -> int:
        first, n = self._used, len(tuples)
        span = slice(first, first + n)
        self._rows[:, span] = tuples.rows
        self._ts[span], self._expiry[span], self._signatures[span] = tuples.ts, tuples.expiry, signatures
        added = int(link_entries(first, first + n, self._signatures, self._behind, self._heads))
        self.signatures += added
        self._used += n
        self._count += n
        return added

    def has(self, signatures: U64) -> Mask:
        """Return (n,) True for suspended signatures."""
        if self.signatures == 0:
            return np.zeros(len(signatures), np.bool_)
        return np.asarray(has_lists(signatures, self._signatures, self._heads))

    def take(self, signatures: U64, now: int) -> Tuples:
        """Remove all tuples under (n,) signatures. Return those that are alive at `now`, ascending by ts."""
        self._handled += len(signatures)
        if self.signatures == 0:
            return Tuples.empty(self.aliases)
        entries, lists = take_lists(signatures, self._signatures, self._behind, self._heads)
        self.signatures -= lists
        self._count -= int(np.count_nonzero(self._expiry[entries] != VACANT))
        self._handled += len(entries)
        living = np.sort(entries[self._alive(entries, now)])
        found = self._gather(living[np.argsort(self._ts[living], kind="stable")])
        self._expiry[entries] = VACANT
        return found

    def take_all(self, now: int) -> Tuples:
        """Remove all tuples. Return those that are alive at `now`, ascending by ts."""
        return self.take(self._signatures[: self._used], now)

    def living(self, now: int) -> tuple[I64, Tuples]:
        """Return the tuples that are alive at `now`, in the order they were put, and their positions for `drop`.
        O(n)."""
        positions = np.flatnonzero(self._alive(np.arange(self._used), now))
        return positions, self._gather(positions)

    def drop(self, positions: I64) -> None:
        """Remove the tuples at some positions that `living` returned. No other call may lie between the two."""
        self._expiry[positions] = VACANT
        self._count -= len(positions)
        self._handled += len(positions)

    def purge(self, now: int) -> None:
        """Remove what expired before `now`, if enough tuples have been handled since the last sweep to bear the cost of
        one."""
        if self._handled >= self._used and len(self._ts):
            self._sweep(now, 0)

    def purge_rows(self, alias: str, first_row: int) -> None:
        """Declare tuples dead whose component of `alias` (a ROWS window) has a row number below `first_row`."""
        self._dead_rows[alias] = first_row

    def _alive(self, entries: I64, now: int) -> Mask:
        alive = np.asarray(self._expiry[entries] >= max(now, VACANT + 1))
        for alias, first_row in self._dead_rows.items():
            alive &= self._rows[self.aliases.index(alias), entries] >= first_row
        return alive

    def _gather(self, entries: I64) -> Tuples:
        return Tuples(self.aliases, np.take(self._rows, entries, axis=1), self._ts[entries], self._expiry[entries])

    def _sweep(self, now: int, need: int) -> None:
        """Rebuild the pool from the living tuples, with room for `need` more."""
        entries = np.arange(self._used)
        living = entries[self._alive(entries, now)]
        kept, signatures = self._gather(living), self._signatures[living]
        need += len(living)
        self._allocate(max(math.ceil(need / MAX_FILLED), FIRST_CAPACITY) if need else 0)
        self.signatures = self._count = self._handled = 0
        self._append(kept, signatures)

    def size_bytes(self) -> int:
        """Bytes of the arrays, including free entries."""
        pool = (self._rows, self._ts, self._expiry, self._signatures, self._behind)
        return sum(array.nbytes for array in (*pool, self._heads))
