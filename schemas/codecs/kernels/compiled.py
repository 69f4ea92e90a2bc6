"""How these kernels are compiled and cached.

Numba's cache of a function is valid as long as the function's own file is unchanged. Here functions of one
file are inlined into those of another, so that an edit of `scan` would leave stale code in the caches of
`json_records` and `csv_records`. `compiled` makes a cache valid only for all files of this folder together.
It sets a private field of the pinned Numba; another Numba without that field fails at import, not silently.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit

_STAMP = tuple(
    (path.name, path.stat().st_mtime_ns, path.stat().st_size)
    for path in sorted(Path(__file__).parent.glob("*.py"))
)


def compiled(function: Callable[..., Any]) -> Any:
    """`njit(cache=True, nogil=True)` whose cache minds every file of this folder."""
    dispatcher = njit(cache=True, nogil=True)(function)
    if dispatcher is not function:  # NUMBA_DISABLE_JIT gives the function itself
        cache_file = dispatcher._cache._cache_file
        if not hasattr(cache_file, "_source_stamp"):
            raise ImportError(f"Numba keeps the stamp of its caches elsewhere, see {__file__}")
        cache_file._source_stamp = _STAMP
    return dispatcher
