"""The memory of rings: pages that come from the system when they are first written, and go back to it.

What an engine counts of a ring is what was written of it (`operators.kernels.ring.touched_bytes`). That is true of
memory that malloc has just mapped. From MAPPED_FROM bytes on a ring is mapped here, whatever malloc would do: it looks
into its holes first, and has to clear what it finds there, so that a ring takes memory that it has no use for yet; and
a small ring that grows leaves a hole again. Seen with states of 21 MiB, five streams and four joins: the rings took
24.1 MiB from malloc, and take 20.6 from here.

A ring smaller than that is malloc's: it is a few pages, which it soon fills.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MAPPED_FROM = 1 << 16
"""Bytes. To map and unmap takes some 10 us, which is not much beside writing so many."""

HUGE_FROM = 4 << 20
"""From so many bytes on NumPy asks the system for huge pages, and malloc maps what it is asked for."""

GIVES_BACK = hasattr(mmap, "MADV_DONTFORK")
"""Whether `give_back` can, which is on Linux, told by advice that no other system knows: elsewhere the system promises
nothing, and a ring must be made anew."""


def zeroed(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """An array of zeros, of which what was never written takes no memory, if it is large enough to matter."""
    size = math.prod(shape if isinstance(shape, tuple) else (shape,)) * np.dtype(dtype).itemsize
    if not GIVES_BACK or not MAPPED_FROM <= size < HUGE_FROM:
        return np.zeros(shape, dtype)
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        # A process may have 65,530 mappings; malloc goes on without.
        return np.zeros(shape, dtype)
    return np.frombuffer(pages, dtype).reshape(shape)


def give_back(ring: Array, lo: int, hi: int) -> None:
    """Give the memory of all but the numbers lo .. hi of a ring back to the system, page by page; what they were is
    lost.

    Nothing is copied, and the ring keeps its capacity: pages are there again, as zeros, when they are written. A new
    ring would have to be written as a whole, and the system's pages for it may be slow to come (5 ms per MB were seen
    on a virtual machine).
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
    """Whole pages between two addresses of an array's own memory, which nothing else has a part of."""
    begin = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    end = end // mmap.PAGESIZE * mmap.PAGESIZE
    if begin < end:
        _MADVISE(begin, end - begin, mmap.MADV_DONTNEED)


if GIVES_BACK:
    _MADVISE = ctypes.CDLL(None).madvise
    _MADVISE.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
