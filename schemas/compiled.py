"""Compiles kernels with Numba, and decides when a cached compilation is still valid.

Numba's own rule is that a cached kernel is valid as long as the function's own file is unchanged. But kernels and
constants of one file are inlined into kernels of other files, so a new version of one file left stale code in the
caches of the others: wrong results, without a warning. Here a cached kernel is valid for the contents of its own file
and of all kernel files that this file imports, directly or not, for this NumPy and Numba, and for the options below. So
nobody has to empty a cache: stale code is never read, whichever program has written it, and kernels whose sources have
not changed are not compiled again.

The module sets a private field of the pinned Numba (to `schemas.kernel_files`); another Numba without that field fails
at import, not silently.

Limit: only kernel files of one folder are followed. So a kernel may use nothing else of Weir but types; a test enforces
this.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import njit
from numba.core.caching import IndexDataCacheFile

from schemas.kernel_files import KernelFiles

_IMPORTED = re.compile(rb"^(?:from|import) ([\w.]+)", re.MULTILINE)


def compiled(function: Callable[..., Any], *, inline: str = "never") -> Any:
    """`njit(cache=True, nogil=True)` with a cache that is valid for all sources of the kernel.

    Args:
        inline: "always" for a kernel whose body replaces every call to it.
    """
    dispatcher = njit(cache=True, nogil=True, inline=inline)(function)
    if dispatcher is not function:  # with NUMBA_DISABLE_JIT, njit returns the function itself
        cache = dispatcher._cache
        if not isinstance(cache._cache_file, IndexDataCacheFile):
            raise ImportError(f"Numba keeps the files of its caches elsewhere, see {__file__}")
        package = function.__module__.rpartition(".")[0]
        valid_for = stamp(function.__code__.co_filename, package)
        cache._cache_file = KernelFiles(Path(cache.cache_path), cache._impl.filename_base, valid_for)
    return dispatcher


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a kernel whose body replaces every call to it."""
    return compiled(function, inline="always")


@cache
def stamp(file: str, package: str) -> str:
    """A digest of everything that a cache of this file's kernels is valid for.

    Args:
        package: the file's own package, in which it finds other kernels.

    Cost: 3 ms for all kernels together.
    """
    found: dict[str, bytes] = {}
    waiting = [__file__, file]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found[path], modules = _source(path)
            folder = os.path.dirname(path)
            waiting += [os.path.join(folder, f"{name}.py") for owner, _, name in modules if owner == package]
    whole = hashlib.sha256(f"{np.__version__} {numba.__version__}".encode())
    for name, digest in sorted((os.path.basename(path), digest) for path, digest in found.items()):
        whole.update(name.encode() + digest)
    return whole.hexdigest()


@cache
def _source(path: str) -> tuple[bytes, list[tuple[str, str, str]]]:
    """The digest of a file, and the modules that it imports."""
    with open(path, "rb") as file:
        text = file.read()
    return hashlib.sha256(text).digest(), [name.decode().rpartition(".") for name in _IMPORTED.findall(text)]
