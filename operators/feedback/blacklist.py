"""The blacklist of one kind (JIT IV-B): suspended tuples, by signature, until a partner of theirs comes.

A list is taken out as a whole when its signature resumes, so a tuple costs O(1) to put and to take, however often its
signature comes and goes. A signature is known as long as its list is there, though all in it may have died: it has no
partner still. What was taken, and what has died meanwhile, leaves its place in the pool when the pool is
full, or when as many tuples have been handled as it holds: also O(1) per tuple, and the memory follows the number of
living tuples, up and down.
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
"""Tuples that a blacklist has room for from its first one on."""

FILLED = 0.75
"""A full pool is made anew without the dead, of such a size that no more than this share of it is filled."""

SLOTS = 1.5
"""Slots of the table per tuple that the pool has room for, at least."""


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
        self._behind: I32 = np.zeros(capacity, np.int32)
        # As many signatures as tuples at most.
        slots = 1 << (math.ceil(SLOTS * capacity) - 1).bit_length() if capacity else 0
        self._heads: I32 = np.zeros(slots, np.int32)

    def __len__(self) -> int:
        """Tuples held, of which some may have died since the last sweep."""
        return self._count

    def put(self, tuples: Tuples, signatures: U64, now: int) -> int:
        """List tuples under their (n,) signatures; how many of these are new. What expired before `now` may make
        room."""
        if self._used + len(tuples) > len(self._ts):
            self._sweep(now, len(tuples))
        self._handled += len(tuples)
        return self._append(tuples, signatures)

    def _append(self, tuples: Tuples, signatures: U64) -> int:
        first, n = self._used, len(tuples)
        place = slice(first, first + n)
        self._rows[:, place] = tuples.rows
        self._ts[place], self._expiry[place], self._signatures[place] = tuples.ts, tuples.expiry, signatures
        begun = int(link_entries(first, first + n, self._signatures, self._behind, self._heads))
        self.signatures += begun
        self._used += n
        self._count += n
        return begun

    def has(self, signatures: U64) -> Mask:
        """(n,) True for signatures that are known."""
        if self.signatures == 0:
            return np.zeros(len(signatures), np.bool_)
        return np.asarray(has_lists(signatures, self._signatures, self._heads))

    def take(self, signatures: U64, now: int) -> Tuples:
        """Take out all tuples under (n,) signatures; those that live at `now`, ascending by ts."""
        self._handled += len(signatures)
        if self.signatures == 0:
            return Tuples.empty(self.aliases)
        entries, lists = take_lists(signatures, self._signatures, self._behind, self._heads)
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
        need += len(living)
        self._begin(max(math.ceil(need / FILLED), FIRST_CAPACITY) if need else 0)
        self.signatures = self._count = self._handled = 0
        self._append(kept, signatures)

    def size_bytes(self) -> int:
        """Bytes of the arrays held, free places included."""
        pool = (self._rows, self._ts, self._expiry, self._signatures, self._behind)
        return sum(array.nbytes for array in (*pool, self._heads))
