"""How a process keeps its memory small and its collector quiet; called before threads start."""

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
"""Arrays from this size on go back to the system when they are freed, and so does what is free at the heap's end, if it
is more. glibc otherwise raises the limit with every large array it frees, up to 32 MiB, and keeps the holes that
growing states leave. Half of it makes large slices a tenth slower: the arrays that a slice works on are given their
pages anew each time, 100,000 page faults in a join of 1.8 million tuples instead of 60,000. Twice as much leaves a
megabyte more of holes."""

ARENAS = 2


def choose_arrow_pool() -> None:
    """Let Arrow use malloc. To be called before pyarrow is imported, which is when Arrow chooses.

    Its own pool keeps what one snapshot needed until the next one: 20 bytes per live source tuple, measured as below.
    Of a run over files it keeps what was read of them: 12 MB of 350 beside a budget of 4 MiB, and it is no faster.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


def prepare() -> None:
    """Set up malloc and the garbage collector. To be called when all modules are loaded.

    Measured at 300,000 live source tuples: 118 bytes of resident memory per tuple, 137 without.
    """
    _frugal_malloc()
    _calm_collector()


def choose_small_pages() -> None:
    """Have all memory given in small pages: none is taken for a part of an array that was never written.

    NumPy asks for huge pages of 2 MiB from 4 MiB on. They make looking into large states about a fifth faster, and let
    each of a state's rings take up to 2 MiB that it has no use for yet. Only Linux has this; elsewhere nothing happens.
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
    """Leave what lives as long as the process out of garbage collection, and collect less often.

    Fetched records are many small objects without cycles: with Python's defaults the collector took 45% of
    a worker's processor time looking at them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
