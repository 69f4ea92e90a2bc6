"""A wall clock for worker processes that can be set while they run.

Debian's libfaketime 0.9.10 breaks `time.sleep` of Python 3.11 (`clock_nanosleep` with an absolute monotonic time), so
the library to preload is made from `clock.c` beside this file. It needs a C compiler; without one, clocks do not jump.
"""

from __future__ import annotations

import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")


class Clock:
    """The wall clock of all processes that are started with `environment`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._shift_s = 0.0
        path.write_bytes(struct.pack("=q", 0))

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for processes that use this clock."""
        return {"LD_PRELOAD": str(library()), "WEIR_CLOCK": str(self._path)}

    def step(self, seconds: float) -> None:
        """Set the clock forwards, or backwards, by so many seconds."""
        self._shift_s += seconds
        with self._path.open("r+b") as file:
            file.write(struct.pack("=q", round(self._shift_s * 1e9)))


@cache
def library() -> Path | None:
    """The compiled library; None where it cannot be compiled."""
    target = Path(tempfile.mkdtemp(prefix="weir-torture-clock-")) / "clock.so"
    try:
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "-o", str(target), str(SOURCE), "-ldl"], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return target
