"""Ensures that Numba has a cache folder for compiled kernels, so that a start takes a second, not half a minute.

Numba uses `NUMBA_CACHE_DIR`; else `__pycache__` beside the source; else the user's cache folder. It accepts only a
folder that it can write to. It silently skips any other folder, even one full of compiled kernels, and without any
folder it refuses to define a kernel at all. `prepare` helps installations that are read-only or have no home: it copies
a read-only folder to one that can be written.

It must run before a module with kernels is imported; the command line calls it first of all.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from services.broker.maven import cache_dir

VARIABLE: Final = "NUMBA_CACHE_DIR"
_PACKAGES: Final = ("operators/kernels", "schemas/codecs/kernels")


def prepare() -> Path | None:
    """Ensure that Numba finds a folder that it can write to.

    Returns:
        The folder that was set for this process and its children; None when Numba's own choice is good.
    """
    given = os.environ.get(VARIABLE)
    if given:
        if is_writable(Path(given)):
            return None
    elif _beside_source() or is_writable(_numbas_home()):
        return None
    folder = _own_folder()
    if given and Path(given).is_dir():
        shutil.copytree(given, folder, dirs_exist_ok=True)
    os.environ[VARIABLE] = str(folder)
    return folder


def is_writable(folder: Path) -> bool:
    """Whether files can be made in the folder, which is made when missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _beside_source() -> bool:
    root = Path(__file__).resolve().parents[2]
    return all(is_writable(root / package / "__pycache__") for package in _PACKAGES)


def _numbas_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "numba"


def _own_folder() -> Path:
    """A folder that only this user can write to, since its contents are run as code."""
    kept = cache_dir() / "kernels"
    if is_writable(kept):
        return kept
    shared = Path(tempfile.gettempdir()) / f"weir-kernels-{os.getuid()}"
    try:
        shared.mkdir(mode=0o700, exist_ok=True)
        found = shared.lstat()
        if found.st_uid == os.getuid() and found.st_mode & 0o077 == 0 and is_writable(shared):
            return shared
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="weir-kernels-"))
