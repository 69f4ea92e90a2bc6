"""Allocates the memory of rings as pages that the system provides on first write, and returns pages to the system.

`operators.kernels.ring` and the states use it. An engine counts as the memory of a ring what was written of it
(`operators.kernels.ring.touched_bytes`). That is correct for memory that malloc has just mapped. But malloc first
reuses holes and must clear them, so a ring would occupy memory that it does not need yet; and a small ring that grows
leaves a hole again. Therefore this module itself maps rings from MAPPED_FROM up to HUGE_FROM bytes. Measured with
states of 21 MiB, five streams and four joins: the rings took 24.1 MiB from malloc, and take 20.6 MiB from this module.

A smaller ring comes from malloc: it has a few pages, which it soon fills. Malloc maps larger rings anyway.

**Rings in files.** Within `RingMemory.used`, a ring that would exceed a limit is a mapped file. It is read and written
like any other ring. The system reads its pages when they are needed, and takes their memory back when memory is scarce.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Pages = mmap.mmap | Array
"""Bytes of memory that is given back when nothing refers to it."""

MAPPED_FROM = 1 << 16
"""Bytes. Mapping and unmapping take about 10 us, which is little compared with writing this many bytes."""

HUGE_FROM = 4 << 20
"""From this many bytes on, NumPy requests huge pages from the system, and malloc maps each allocation."""

GIVES_BACK = hasattr(mmap, "MADV_DONTFORK")
"""Whether `give_back` works. It does on Linux, recognised by an advice that no other system has. Other systems
guarantee nothing, so there a ring must be reallocated."""

GIVE_BACK_SHARE = 0.125
"""States give memory of a ring back when more than this share of its touched memory is not needed."""


class RingMemory:
    """The memory of one engine's rings: up to a limit that of the process, beyond it files.

    Rings below MAPPED_FROM do not count. A ring stays where it is until it is replaced by a larger or a smaller one.

    Engines that share a limit run in threads of their own, and a ring ends in any thread. So rings are counted in
    dictionaries, each change and each copy of which no other thread interrupts.

    Args:
        limit_bytes: of the rings in memory.
        map_file: returns so many bytes of a new file, zeros, for which the disk has room; raises StateError if it does
            not.
        rings: the bytes of each ring in memory that the limit is for, by number, where engines share the limit; None
            for this engine's alone.

    Attributes:
        limit_bytes: as above.
    """

    def __init__(self, limit_bytes: int, map_file: Callable[[int], Pages], rings: dict[int, int] | None = None) -> None:
        self.limit_bytes = limit_bytes
        self._map_file = map_file
        self._rings = {} if rings is None else rings
        self._in_memory: dict[int, int] = {}
        self._in_files: dict[int, int] = {}
        self._fixed = next(_NUMBERS)
        weakref.finalize(self, self._rings.pop, self._fixed, None).atexit = False

    @property
    def in_memory(self) -> int:
        """Bytes of this engine's rings in memory, unused capacity included, and its fixed bytes."""
        return _total(self._in_memory)

    @property
    def fixed_bytes(self) -> int:
        """Bytes of this engine that are in no ring, and so cannot be in a file; they count against the limit."""
        return self._in_memory.get(self._fixed, 0)

    @fixed_bytes.setter
    def fixed_bytes(self, size: int) -> None:
        self._rings[self._fixed] = self._in_memory[self._fixed] = size

    @property
    def in_files(self) -> int:
        """Bytes of this engine's rings in files."""
        return _total(self._in_files)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Within the context, the rings that this thread makes take their memory from here."""
        before = _USED.set(self)
        try:
            yield
        finally:
            _USED.reset(before)

    def take(self, size: int) -> Pages:
        """Return so many bytes, zeros.

        Raises:
            StateError: they must be in a file, and the disk is full or fails.
        """
        number = next(_NUMBERS)
        # Counted before it is compared: of engines that take the last room at once, none misses the others.
        self._rings[number] = size
        if _total(self._rings) <= self.limit_bytes:
            pages = _mapped(size)
            counts: tuple[dict[int, int], ...] = (self._rings, self._in_memory)
        else:
            del self._rings[number]
            pages = self._map_file(size)
            counts = (self._in_files,)
        for sizes in counts:
            sizes[number] = size
            weakref.finalize(pages, sizes.pop, number).atexit = False
        return pages


_NUMBERS = itertools.count()
"""Of all rings that a RingMemory has made."""


def _total(sizes: dict[int, int]) -> int:
    return sum(list(sizes.values()))


def _mapped(size: int) -> Pages:
    try:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        # A process may have 65,530 mappings; malloc can still allocate without a new one.
        return np.zeros(size, np.uint8)


_USED: ContextVar[RingMemory | None] = ContextVar("ring memory", default=None)


def zeroed(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """An array of zeros; if it is large enough to matter, pages never written occupy no memory."""
    size = math.prod(shape if isinstance(shape, tuple) else (shape,)) * np.dtype(dtype).itemsize
    memory = _USED.get()
    if memory is not None and size >= MAPPED_FROM:
        return np.frombuffer(memory.take(size), dtype).reshape(shape)
    if not GIVES_BACK or not MAPPED_FROM <= size < HUGE_FROM:
        return np.zeros(shape, dtype)
    return np.frombuffer(_mapped(size), dtype).reshape(shape)


def give_back(ring: Array, lo: int, hi: int) -> None:
    """Return the memory of a ring's numbers to the system, page by page, except of lo .. hi - 1; the values are lost.

    Nothing is copied, and the ring keeps its capacity: pages return, as zeros, when they are written. A new ring would
    have to be written completely, and the system may be slow to provide its pages (up to 5 ms per MB on a virtual
    machine).
    """
    for row in np.atleast_2d(ring):
        capacity = len(row)
        used = min(hi - lo, capacity)
        begin = lo & (capacity - 1)
        end = begin + used
        free = [(end - capacity, begin)] if end > capacity else [(end, capacity), (0, begin)]
        for first, last in free:
            _forget_pages(row.ctypes.data + first * row.itemsize, row.ctypes.data + last * row.itemsize)


def _forget_pages(begin: int, end: int) -> None:
    """Return the whole pages between two addresses of an array's own memory; no other object shares these pages."""
    begin = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    end = end // mmap.PAGESIZE * mmap.PAGESIZE
    if begin < end:
        _MADVISE(begin, end - begin, mmap.MADV_DONTNEED)


if GIVES_BACK:
    _MADVISE = ctypes.CDLL(None).madvise
    _MADVISE.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
