"""Tracks which results are alive at which multiples of EMIT EVERY: `LivingResults`, used by the aggregator.

Time is counted in multiples here. A result is alive from multiple `begin` = ceil(ts / every) up to, not including,
`end` = floor(expiry / every) + 1. A result that is alive only between two multiples is never stored. Every other result
has a slot; it waits until its first multiple, then for the end of its lifetime.

The end in a ROWS window is known when the tuple that ends it has arrived; until then the result is watched by the row
of its component. Cost: O(log n) per result, nothing per multiple without changes. Where one window ends a result, what
the queues have of it for others is void; void pairs are removed when they may outnumber the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from operators.aggregate.groups import grown
from operators.data.tuples import FOREVER
from operators.kernels.heap import heap_push, heap_take
from schemas.columns import I64, Mask

FIRST_CAPACITY = 1024

_SLOT_MASK = np.int64(2**32 - 1)
_REUSE_MASK = np.int64(2**31 - 1)


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Results that become alive (sign 1) or die (-1) at some multiple, grouped into touches.

    A touch comprises all events of one group at one multiple. Touches ascend by (multiple, group).

    Attributes:
        slots: (m,) the result's slot for each event, touch after touch.
        signs: (m,) 1 or -1 for each event.
        multiples: (t,) the multiple of each touch.
        groups: (t,) the group of each touch.
        ends: (t,) the position after the last event of each touch.
    """

    slots: I64
    signs: npt.NDArray[np.int8]
    multiples: I64
    groups: I64
    ends: I64

    def __len__(self) -> int:
        return len(self.ends)


class EventQueue:
    """A growing heap; see `operators.kernels.heap`."""

    def __init__(self) -> None:
        self._keys: I64 = np.zeros(FIRST_CAPACITY, np.int64)
        self._items: I64 = np.zeros(FIRST_CAPACITY, np.int64)
        self._size = 0
        self._keep_from = FIRST_CAPACITY

    def __len__(self) -> int:
        return self._size

    def push(self, keys: I64, items: I64) -> None:
        """Insert (n,) pairs of key and item."""
        need = self._size + len(keys)
        if need > len(self._keys):
            capacity = 1 << (need - 1).bit_length()
            self._keys, self._items = grown(self._keys, capacity), grown(self._items, capacity)
        self._size = heap_push(self._keys, self._items, self._size, keys, items)

    def take(self, until: int) -> tuple[I64, I64]:
        """Remove and return the pairs with key < until, ascending by key."""
        keys, items = heap_take(self._keys, self._items, self._size, until)
        self._size -= len(keys)
        return np.asarray(keys, np.int64), np.asarray(items, np.int64)

    def keep(self, valid: Callable[[I64], Mask]) -> None:
        """Remove the pairs whose items are not `valid`, if there are twice as many pairs as were kept the last time.

        Cost: O(log n) per pair pushed.
        """
        if self._size >= self._keep_from:
            good = np.flatnonzero(valid(self._items[: self._size]))
            good = good[np.argsort(self._keys[good])]  # ascending keys are a heap
            self._size = len(good)
            self._keys[: self._size], self._items[: self._size] = self._keys[good], self._items[good]
            self._keep_from = max(2 * self._size, FIRST_CAPACITY)

    def size_bytes(self) -> int:
        """Return the bytes of its arrays."""
        return self._keys.nbytes + self._items.nbytes


class LivingResults:
    """The slots of results that are alive at some multiple.

    Args:
        watched: the aliases with ROWS windows.

    Attributes:
        capacity: all slots are smaller.
        group: (capacity,) the group of each slot's result.
    """

    def __init__(self, watched: Iterable[str] = ()) -> None:
        self.capacity = FIRST_CAPACITY
        self.group: I64 = np.zeros(self.capacity, np.int64)
        self._begin: I64 = np.zeros(self.capacity, np.int64)
        # How often a slot has been freed: a queue's item for an earlier result in the slot is void.
        self._reuses: I64 = np.zeros(self.capacity, np.int64)
        self._free: I64 = np.arange(self.capacity, dtype=np.int64)
        self._free_count = self.capacity
        self._waiting: deque[tuple[I64, I64]] = deque()
        self._waiting_late = EventQueue()
        self._leaving = EventQueue()
        self._watched = {alias: EventQueue() for alias in watched}

    def __len__(self) -> int:
        return self.capacity - self._free_count

    def add(self, groups: I64, begin: I64, end: I64, *, late: bool = False) -> I64:
        """Add n results and return their slots, (n,) int64.

        Args:
            groups: (n,) the group of each result.
            begin: (n,) first multiples; unless `late`, ascending and none before those of earlier results.
            end: (n,) the multiples after the last, larger than `begin`; FOREVER where the end is not known.
            late: the results are not in the order of their ts.
        """
        n = len(groups)
        if self._free_count < n:
            before = self.capacity
            self.capacity = 1 << (len(self) + n - 1).bit_length()
            added = self.capacity - before
            self._free = grown(self._free, self.capacity)
            self._free[self._free_count : self._free_count + added] = np.arange(before, self.capacity)
            self._free_count += added
            self.group, self._begin, self._reuses = (
                grown(array, self.capacity) for array in (self.group, self._begin, self._reuses)
            )
        self._free_count -= n
        slots = self._free[self._free_count : self._free_count + n].copy()
        self.group[slots] = groups
        self._begin[slots] = begin
        items = self._items(slots)
        if late:
            self._waiting_late.push(begin, items)
        else:
            self._waiting.append((begin, items))
        ends = end < FOREVER
        self._leaving.push(end[ends], items[ends])
        if self._watched:
            self._leaving.keep(self._valid)
        return slots

    def watch(self, alias: str, rows: I64, slots: I64) -> None:
        """Let the results in these slots end when their components of a ROWS alias, in these rows, do."""
        self._watched[alias].push(rows, self._items(slots))
        self._watched[alias].keep(self._valid)

    def take_watched(self, alias: str, until: int) -> tuple[I64, I64]:
        """Return the watched rows before `until`, which have ended, and the results that end with them, for `end`."""
        rows, items = self._watched[alias].take(until)
        good = self._valid(items)
        return rows[good], items[good]

    def end(self, ends: I64, items: I64) -> None:
        """Let results end at these multiples, if they do not end before."""
        self._leaving.push(ends, items)

    def take(self, last: int) -> tuple[Events, I64]:
        """Return the events up to multiple `last`, and the slots of results that have died by then.

        The caller frees those slots after it has applied the events. Some of their results were never alive at a
        multiple and have no events.
        """
        ends, items = self._leaving.take(last + 1)
        if self._watched and len(items):
            good = np.flatnonzero(self._valid(items))
            # A result that two windows end leaves once, with the first.
            good = good[np.sort(np.unique(items[good], return_index=True)[1])]
            ends, items = ends[good], items[good]
        over = items & _SLOT_MASK
        seen = self._begin[over] < ends
        entering = [np.zeros(0, np.int64)]
        if not seen.all():
            self._reuses[over[~seen]] += 1  # they must not enter
        while self._waiting and self._waiting[0][0][0] <= last:
            begins, waiting = self._waiting.popleft()
            stop = int(np.searchsorted(begins, last, side="right"))
            if stop < len(begins):
                self._waiting.appendleft((begins[stop:], waiting[stop:]))
            entering.append(waiting[:stop][self._valid(waiting[:stop])] & _SLOT_MASK)
        _, late = self._waiting_late.take(last + 1)
        entering.append(late[self._valid(late)] & _SLOT_MASK)
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
        """Free the slots of results that have died and whose events have been applied."""
        self._reuses[slots] += 1
        self._free[self._free_count : self._free_count + len(slots)] = slots
        self._free_count += len(slots)

    def _items(self, slots: I64) -> I64:
        return np.asarray(slots | ((self._reuses[slots] & _REUSE_MASK) << 32), np.int64)

    def _valid(self, items: I64) -> Mask:
        return np.asarray(items == self._items(items & _SLOT_MASK))

    def size_bytes(self) -> int:
        """Return the bytes of all arrays."""
        arrays: list[npt.NDArray[Any]] = [self.group, self._begin, self._reuses, self._free]
        waiting = sum(begins.nbytes + items.nbytes for begins, items in self._waiting)
        waiting += self._waiting_late.size_bytes()
        queues = self._leaving.size_bytes() + sum(queue.size_bytes() for queue in self._watched.values())
        return sum(array.nbytes for array in arrays) + waiting + queues
