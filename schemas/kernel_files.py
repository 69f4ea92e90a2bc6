"""The files in which one kernel's compiled versions are kept, for Numba to find.

    <kernel>.<stamp>.<version>.nbc    one version: what it is for (argument types, processor, bytecode), and its code

A file's name says all that its contents are valid for, and it is put in its place whole. So whoever reads finds what is
asked for or nothing, however many processes write at once, and wherever one of them is killed.

Numba's own files do not have that: an index names numbered files of code and is written before them. Whoever reads in
between, or ever after a writer that died in between, runs what the number held before: the code of an older source. And
of two that write at once both may take the same number for different argument types.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
from glob import escape
from pathlib import Path
from typing import Any, Final

from numba.core.serialize import dumps

SUFFIX: Final = ".nbc"


class KernelFiles:
    """What Numba asks of a `numba.core.caching.IndexDataCacheFile`.

    Args:
        folder: where they are; made by Numba.
        kernel: what the kernel's files begin with, and no other kernel's.
        stamp: what its versions are valid for.
    """

    def __init__(self, folder: Path, kernel: str, stamp: str) -> None:
        self._folder = folder
        self._kernel = f"{kernel}."
        self._current = f"{self._kernel}{stamp[:16]}."

    def save(self, key: Any, data: Any) -> None:
        """Keep a version, and no more of what is stale. A disk that refuses costs another compilation, later."""
        path = self._path(key)
        try:
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix=self._current, delete=False) as file:
                try:
                    file.write(dumps((key, data)))
                    file.close()
                    os.replace(file.name, path)
                except BaseException:
                    os.unlink(file.name)
                    raise
            for other in self._all():
                if not other.name.startswith(self._current):
                    other.unlink(missing_ok=True)
        except OSError:
            return

    def load(self, key: Any) -> Any:
        """The version for the key; None when there is none that can be read."""
        try:
            found, data = pickle.loads(self._path(key).read_bytes())
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):
            return None  # cut off where a machine lost its power, at worst
        return data if found == key else None

    def flush(self) -> None:
        """Forget all versions."""
        for path in self._all():
            path.unlink(missing_ok=True)

    def _path(self, key: Any) -> Path:
        return self._folder / f"{self._current}{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}{SUFFIX}"

    def _all(self) -> list[Path]:
        """Every file of the kernel, of whatever stamp; also those that Numba kept by itself."""
        return list(self._folder.glob(f"{escape(self._kernel)}*"))
