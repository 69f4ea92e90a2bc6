"""The blacklist of one kind (JIT IV-B): suspended tuples, by signature, until a partner of theirs comes.

A list is taken out as a whole when its signature resumes, so a tuple costs O(1) to put and to take, however often its
signature comes and goes. What was taken, and what has died meanwhile, leaves its place in the pool when the pool is
full, or when as many tuples have been handled as it holds: also O(1) per tuple, and the memory follows the number of
living tuples, up and down.
"""

from __future__ import annotations

import numpy as np

from operators.kernels.blacklist import link_entries, take_lists
from operators.kernels.hashing import U64
from operators.kernels.signatures import VACANT
from operators.tuples import Tuples
from schemas.columns import I64, Mask

FIRST_CAPACITY = 64
"""Tuples that a blacklist has room for from its first one on; a power of two."""

FILLED = 0.75
"""A full pool that would be filled by more than this share after throwing out the dead is doubled instead."""


class Blacklist:
    """Tuples over `aliases` that are kept back.

    Attributes:
        aliases: what the tuples cover, in the order of their rows.
        signatures: how many signatures have tuples, some of which may have died since the last sweep.
    """

    def __init__(self, aliases: tuple[str, ...]) -> None:
        self.aliases = aliases
        self.signatures = 0
        self._dead_rows: dict[str, int] = {}
        self._count = 0
        self._handled = 0
        self._begin(0)

    def _begin(self, capacity: int) -> None:
        self._used = 0
        self._rows: I64 = np.zeros((len(self.aliases), capacity), np.int64)
        self._ts: I64 = np.zeros(capacity, np.int64)
        self._expiry: I64 = np.zeros(capacity, np.int64)
        self._signatures: U64 = np.zeros(capacity, np.uint64)
        self._behind: I64 = np.zeros(capacity, np.int64)
        # As many signatures as tuples at most: half full.
        self._keys: U64 = np.zeros(2 * capacity, np.uint64)
        self._heads: I64 = np.full(2 * capacity, VACANT)

    def __len__(self) -> int:
        """Tuples held, of which some may have died since the last sweep."""
        return self._count

    def put(self, tuples: Tuples, signatures: U64, now: int) -> None:
        """List tuples under their (n,) signatures. What expired before `now` may make room."""
        if self._used + len(tuples) > len(self._ts):
            self._sweep(now, len(tuples))
        self._append(tuples, signatures)
        self._handled += len(tuples)

    def _append(self, tuples: Tuples, signatures: U64) -> None:
        first, n = self._used, len(tuples)
        place = slice(first, first + n)
        self._rows[:, place] = tuples.rows
        self._ts[place], self._expiry[place], self._signatures[place] = tuples.ts, tuples.expiry, signatures
        self.signatures += link_entries(signatures, first, self._behind, self._keys, self._heads)
        self._used += n
        self._count += n

    def take(self, signatures: U64, now: int) -> Tuples:
        """Take out all tuples under (n,) signatures; those that live at `now`, ascending by ts."""
        self._handled += len(signatures)
        if self._count == 0:
            return Tuples.empty(self.aliases)
        entries, lists = take_lists(signatures, self._behind, self._keys, self._heads)
        self.signatures -= lists
        self._count -= int(np.count_nonzero(self._expiry[entries] != VACANT))
        self._handled += len(entries)
        living = np.sort(entries[self._lives(entries, now)])
        found = self._gathered(living[np.argsort(self._ts[living], kind="stable")])
        self._expiry[entries] = VACANT
        return found

    def take_all(self, now: int) -> Tuples:
        """Take out everything; what lives at `now`, ascending by ts."""
        return self.take(self._signatures[: self._used], now)

    def held(self, now: int) -> tuple[I64, Tuples]:
        """What lives at `now`, in the order of its entering, and the places where it is, for `drop`. O(n)."""
        places = np.flatnonzero(self._lives(np.arange(self._used), now))
        return places, self._gathered(places)

    def drop(self, places: I64) -> None:
        """Forget the tuples at some places of `held`, before anything else is done."""
        self._expiry[places] = VACANT
        self._count -= len(places)
        self._handled += len(places)

    def purge(self, now: int) -> None:
        """Throw out what expired before `now`, if enough has been done since the last sweep to pay for one."""
        if self._handled >= self._used and len(self._ts):
            self._sweep(now, 0)

    def purge_rows(self, alias: str, first_row: int) -> None:
        """Tuples whose component of `alias` (a ROWS window) lies before `first_row` are dead."""
        self._dead_rows[alias] = first_row

    def _lives(self, entries: I64, now: int) -> Mask:
        alive = np.asarray(self._expiry[entries] >= max(now, VACANT + 1))
        for alias, first_row in self._dead_rows.items():
            alive &= self._rows[self.aliases.index(alias), entries] >= first_row
        return alive

    def _gathered(self, entries: I64) -> Tuples:
        return Tuples(self.aliases, np.take(self._rows, entries, axis=1), self._ts[entries], self._expiry[entries])

    def _sweep(self, now: int, need: int) -> None:
        """Begin anew with the living, and room for `need` tuples more."""
        entries = np.arange(self._used)
        living = entries[self._lives(entries, now)]
        kept, signatures = self._gathered(living), self._signatures[living]
        capacity = FIRST_CAPACITY if len(living) + need else 0
        while FILLED * capacity < len(living) + need:
            capacity *= 2
        self._begin(capacity)
        self.signatures = self._count = self._handled = 0
        self._append(kept, signatures)

    def size_bytes(self) -> int:
        """Bytes of the arrays held, free places included."""
        pool = (self._rows, self._ts, self._expiry, self._signatures, self._behind)
        return sum(array.nbytes for array in (*pool, self._keys, self._heads))
