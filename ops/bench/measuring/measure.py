"""Measuring tools of the benchmarks: repeated runs, their median and spread, memory of a process."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from schemas.errors import InvariantError

T = TypeVar("T")

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of repeated measurements, with the smallest and the largest."""

    median: float
    low: float
    high: float
    runs: int

    @staticmethod
    def of(values: list[float]) -> Spread:
        """Summarize at least one value."""
        return Spread(statistics.median(values), min(values), max(values), len(values))


@dataclass(frozen=True, slots=True)
class Clocked:
    """How long one run of something took: by the wall clock, and by the process's processor clock."""

    seconds: float
    cpu_seconds: float


class Progress:
    """Shows on a terminal what is being measured; in a pipe only what `tell` prints."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._status = self._console.status("")

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._status.stop()

    def say(self, text: str) -> None:
        """Show the current step."""
        if self._console.is_terminal:
            self._status.update(text)

    def tell(self, text: str) -> None:
        """Print a line that stays, also in a pipe: a long benchmark has come this far."""
        self._console.print(text, highlight=False)


def repeat(runs: int, label: str, progress: Progress, run: Callable[[], T]) -> list[T]:
    """The outcomes of `runs` runs, one after the other."""
    outcomes = []
    for number in range(1, runs + 1):
        progress.say(f"{label}: run {number} of {runs}")
        outcomes.append(run())
    return outcomes


@contextmanager
def clocked() -> Iterator[list[Clocked]]:
    """Time a block; the list holds one `Clocked` afterwards."""
    out: list[Clocked] = []
    wall, cpu = time.perf_counter(), time.process_time()
    yield out
    out.append(Clocked(time.perf_counter() - wall, time.process_time() - cpu))


def resident_bytes(pid: int | str = "self") -> int:
    """Memory of a process that is in RAM now (Linux)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * PAGE_BYTES


def forget_peak() -> None:
    """Reset the peak of this process's memory (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(pid: int | str = "self") -> int:
    """The most memory that a process has had in RAM (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise InvariantError(f"/proc/{pid}/status has no VmHWM")


def tells_memory() -> bool:
    """Whether this machine reports the memory of a process in the way that this module reads it."""
    return Path("/proc/self/clear_refs").exists()


def growth(samples: Sequence[float]) -> float:
    """How much more the last quarter of a run has than its second quarter: 0.01 is one percent.

    The first quarter is left out: buffers reach their size in it.
    """
    quarter = max(1, len(samples) // 4)
    early, late = samples[quarter : 2 * quarter] or samples, samples[-quarter:]
    return statistics.median(late) / statistics.median(early) - 1.0
