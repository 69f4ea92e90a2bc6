"""Which results are alive at which multiples of EMIT EVERY.

Time is counted in multiples here: a result with ts <= t <= expiry is alive from multiple `begin` = ceil(ts / every)
up to, not including, `end` = floor(expiry / every) + 1. One that lives between two multiples is never seen and never
stored. The others have a slot; they wait until their first multiple comes, then for the end of their life.

The end under a ROWS window is known when the tuple that ends it has come; until then the result is watched by the
row of its component. Cost: O(log n) per result, nothing per multiple without changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from operators.aggregate.groups import grown
from operators.kernels.heap import heap_push, heap_take
from schemas.columns import I64, Mask

FIRST_CAPACITY = 1024
NEVER = 2**62
"""The end of what does not end, as far as is known."""

_SLOT = np.int64(2**32 - 1)
_LIFE = np.int64(2**31 - 1)


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Results that enter (sign 1) and leave (-1) the sight of some multiple, grouped into touches.

    A touch is all that happens to one group at one multiple. Touches ascend by (multiple, group).

    Attributes:
        slots, signs: (m,) events, touch after touch.
        multiples, groups, ends: (t,) per touch its multiple, its group, and where its events end.
    """

    slots: I64
    signs: npt.NDArray[np.int8]
    multiples: I64
    groups: I64
    ends: I64

    def __len__(self) -> int:
        return len(self.ends)


class Queue:
    """A growing heap; see `operators.kernels.heap`."""

    def __init__(self) -> None:
        self._keys: I64 = np.zeros(FIRST_CAPACITY, np.int64)
        self._items: I64 = np.zeros(FIRST_CAPACITY, np.int64)
        self._size = 0

    def push(self, keys: I64, items: I64) -> None:
        """Enter (n,) pairs."""
        need = self._size + len(keys)
        if need > len(self._keys):
            capacity = 1 << (need - 1).bit_length()
            self._keys, self._items = grown(self._keys, capacity), grown(self._items, capacity)
        self._size = heap_push(self._keys, self._items, self._size, keys, items)

    def take(self, until: int) -> tuple[I64, I64]:
        """Remove what has key < until, ascending."""
        keys, items = heap_take(self._keys, self._items, self._size, until)
        self._size -= len(keys)
        return np.asarray(keys, np.int64), np.asarray(items, np.int64)

    def size_bytes(self) -> int:
        """Bytes of its arrays."""
        return self._keys.nbytes + self._items.nbytes


class Living:
    """Slots of results that are seen at some multiple.

    Attributes:
        capacity: slots are below it.
        group: (capacity,) the group of each slot's result.
    """

    def __init__(self, watched: Iterable[str] = ()) -> None:
        """Args: `watched` the aliases with ROWS windows."""
        self.capacity = FIRST_CAPACITY
        self.group: I64 = np.zeros(self.capacity, np.int64)
        self._begin: I64 = np.zeros(self.capacity, np.int64)
        # How often a slot has been freed: what a queue says of an earlier life is void.
        self._lives: I64 = np.zeros(self.capacity, np.int64)
        self._free: I64 = np.arange(self.capacity, dtype=np.int64)
        self._free_count = self.capacity
        self._waiting: deque[tuple[I64, I64]] = deque()
        self._leaving = Queue()
        self._watched = {alias: Queue() for alias in watched}

    def __len__(self) -> int:
        return self.capacity - self._free_count

    def add(self, groups: I64, begin: I64, end: I64) -> I64:
        """Take in results; (n,) slots.

        Args:
            begin, end: (n,) multiples, begin < end; ascending begin, none before what was added last.
        """
        n = len(groups)
        if self._free_count < n:
            before = self.capacity
            self.capacity = 1 << (len(self) + n - 1).bit_length()
            added = self.capacity - before
            self._free = grown(self._free, self.capacity)
            self._free[self._free_count : self._free_count + added] = np.arange(before, self.capacity)
            self._free_count += added
            self.group, self._begin, self._lives = (
                grown(array, self.capacity) for array in (self.group, self._begin, self._lives)
            )
        self._free_count -= n
        slots = self._free[self._free_count : self._free_count + n].copy()
        self.group[slots] = groups
        self._begin[slots] = begin
        items = self._items(slots)
        self._waiting.append((begin, items))
        ends = end < NEVER
        self._leaving.push(end[ends], items[ends])
        return slots

    def watch(self, alias: str, rows: I64, slots: I64) -> None:
        """The results in these slots end when their component of a ROWS alias, in these rows, does."""
        self._watched[alias].push(rows, self._items(slots))

    def take_watched(self, alias: str, until: int) -> tuple[I64, I64]:
        """Rows before `until` have ended: those rows, and the results that end with them, for `end`."""
        rows, items = self._watched[alias].take(until)
        good = self._valid(items)
        return rows[good], items[good]

    def end(self, ends: I64, items: I64) -> None:
        """Results end at these multiples, if not before."""
        self._leaving.push(ends, items)

    def take(self, last: int) -> tuple[Events, I64]:
        """What happens up to multiple `last`, and the slots to free after that: their results are over.

        Some of those were never seen: they have no events.
        """
        ends, items = self._leaving.take(last + 1)
        if self._watched and len(items):
            good = np.flatnonzero(self._valid(items))
            # A result that two windows end leaves once, with the first.
            good = good[np.sort(np.unique(items[good], return_index=True)[1])]
            ends, items = ends[good], items[good]
        over = items & _SLOT
        seen = self._begin[over] < ends
        entering = [np.zeros(0, np.int64)]
        if not seen.all():
            self._lives[over[~seen]] += 1  # they must not enter
        while self._waiting and self._waiting[0][0][0] <= last:
            begins, waiting = self._waiting.popleft()
            stop = int(np.searchsorted(begins, last, side="right"))
            if stop < len(begins):
                self._waiting.appendleft((begins[stop:], waiting[stop:]))
            entering.append(waiting[:stop][self._valid(waiting[:stop])] & _SLOT)
        come = np.concatenate(entering)
        left = over[seen]
        slots = np.concatenate([come, left])
        multiples = np.concatenate([self._begin[come], ends[seen]])
        groups = self.group[slots]
        order = np.lexsort((groups, multiples))
        slots, multiples, groups = slots[order], multiples[order], groups[order]
        signs = np.ones(len(slots), np.int8)
        signs[order >= len(come)] = -1
        turns = (multiples[1:] != multiples[:-1]) | (groups[1:] != groups[:-1])
        stops = np.append(np.flatnonzero(turns) + 1, len(slots)) if len(slots) else slots
        return Events(slots, signs, multiples[stops - 1], groups[stops - 1], stops), over

    def free(self, slots: I64) -> None:
        """The results in these slots are over and have been accounted for."""
        self._lives[slots] += 1
        self._free[self._free_count : self._free_count + len(slots)] = slots
        self._free_count += len(slots)

    def _items(self, slots: I64) -> I64:
        return np.asarray(slots | ((self._lives[slots] & _LIFE) << 32), np.int64)

    def _valid(self, items: I64) -> Mask:
        return np.asarray(items == self._items(items & _SLOT))

    def size_bytes(self) -> int:
        """Bytes of all arrays."""
        arrays: list[npt.NDArray[Any]] = [self.group, self._begin, self._lives, self._free]
        waiting = sum(begins.nbytes + items.nbytes for begins, items in self._waiting)
        queues = self._leaving.size_bytes() + sum(queue.size_bytes() for queue in self._watched.values())
        return sum(array.nbytes for array in arrays) + waiting + queues
