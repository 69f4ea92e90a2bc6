"""Runs a command in a process of its own and measures wall time, processor time and memory."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ops.bench.measuring.measure import peak_bytes, tells_memory
from schemas.errors import WeirError

WEIR = (sys.executable, "-m", "services.cli")
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that ended with exit code 0.

    Attributes:
        cpu_seconds: of all its threads.
        peak_bytes: the most memory it had, sampled; 0 where this system does not report it.
    """

    output: str
    seconds: float
    cpu_seconds: float
    peak_bytes: int


def run_command(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Finished:
    """Run the command to its end.

    Raises:
        WeirError: it failed; the message has its standard error.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.perf_counter()
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, **(environment or {})},
        )
        peak = 0
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if tells_memory():
                with contextlib.suppress(OSError, WeirError):
                    peak = max(peak, peak_bytes(process.pid))
            time.sleep(POLL_SECONDS)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode != 0:
            raise WeirError(f"{' '.join(arguments)} ended with {process.returncode}:\n{err.read().decode().strip()}")
        return Finished(out.read().decode(), seconds, usage.ru_utime + usage.ru_stime, peak)
