"""Stores the compiled versions of one kernel in files, as Numba's cache asks for them.

    <kernel>.<stamp>.<version>.nbc    one version: its key (argument types, processor, bytecode), and its code

`schemas.compiled` gives a `KernelFiles` to each kernel. A file's name contains everything that its contents are valid
for, and a file appears under its name only when it is complete. So a reader finds the version it asks for or nothing,
however many processes write at once, and wherever one of them is killed.

Numba's own files lack that property: an index names numbered files of code and is written before them. A reader that
comes in between, or any time after a writer died in between, runs the code that the number stood for before: that of an
older source. And two processes that write at once may both take the same number for different argument types.
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
    """Implements the part of `numba.core.caching.IndexDataCacheFile` that Numba uses.

    Args:
        folder: where the files are; made by Numba.
        kernel: prefix of this kernel's file names, which no other kernel has.
        stamp: what the versions are valid for (`schemas.compiled.stamp`).
    """

    def __init__(self, folder: Path, kernel: str, stamp: str) -> None:
        self._folder = folder
        self._kernel = f"{kernel}."
        self._current = f"{self._kernel}{stamp[:16]}."

    def save(self, key: Any, data: Any) -> None:
        """Store a version and delete stale files. If the disk refuses, the kernel is compiled again later."""
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
        """The version for the key; None when there is none or it cannot be read."""
        try:
            found, data = pickle.loads(self._path(key).read_bytes())
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):
            return None  # at worst cut short, by a machine that lost its power
        return data if found == key else None

    def flush(self) -> None:
        """Forget all versions."""
        for path in self._all():
            path.unlink(missing_ok=True)

    def _path(self, key: Any) -> Path:
        return self._folder / f"{self._current}{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}{SUFFIX}"

    def _all(self) -> list[Path]:
        """Every file of the kernel, under any stamp, including those that Numba itself has written."""
        return list(self._folder.glob(f"{escape(self._kernel)}*"))
