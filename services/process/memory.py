"""Settings of malloc, Arrow and the garbage collector that keep a process small; call them before threads start."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_PR_SET_THP_DISABLE = 41

LARGE_BYTES = 1 << 19
"""Arrays from this size on are returned to the system when they are freed, and so is free memory at the heap's end from
this size on. Otherwise glibc raises the limit with every large array that it frees, up to 32 MiB, and keeps the holes
that growing states leave. With half this size large slices take a tenth longer: a slice's arrays get new pages each
time, 100,000 page faults in a join of 1.8 million tuples instead of 60,000. Twice this size leaves a megabyte more of
holes."""

ARENAS = 2


def choose_arrow_pool() -> None:
    """Let Arrow use malloc. Call this before pyarrow is imported, since Arrow chooses its pool then.

    Arrow's own pool keeps the memory of one snapshot until the next one: 20 bytes per live source tuple, measured as
    below. In a run over files it keeps memory that reading has used: 12 MB of 350 beside a budget of 4 MiB. It is no
    faster.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


def prepare() -> None:
    """Set up malloc and the garbage collector. Call this when all modules are loaded.

    Measured at 300,000 live source tuples: 118 bytes of resident memory per tuple, 137 without.
    """
    _frugal_malloc()
    _calm_collector()


def choose_small_pages() -> None:
    """Use small pages only, so that the parts of an array that were never written take no memory.

    NumPy requests huge pages of 2 MiB for arrays from 4 MiB on. They make probing large states about a fifth faster,
    but each of a state's rings may take up to 2 MiB that it does not use yet. Has an effect on Linux only.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)


def _frugal_malloc() -> None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # not glibc
    mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
    mallopt(_M_TRIM_THRESHOLD, LARGE_BYTES)
    mallopt(_M_ARENA_MAX, ARENAS)


def _calm_collector() -> None:
    """Exclude all present objects from garbage collection, since most live as long as the process; collect less often.

    Fetched records are many small objects without cycles. With Python's defaults the collector used 45% of a worker's
    processor time to examine them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
