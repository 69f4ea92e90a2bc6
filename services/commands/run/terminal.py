"""Terminal functions of runs over files: progress bar, exit on a signal, final messages. `weir run` calls them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import typer

from services.commands.counts import counted
from services.commands.run.options import RunOptions

if TYPE_CHECKING:
    from services.batch.run_statistics import RunStatistics
    from services.files.sources import SourceFile

INTERRUPTED = 130
BROKEN_PIPE = 1


class Job(Protocol):
    """A run of one query or of several."""

    statistics: RunStatistics
    written: int

    @property
    def first_dead(self) -> str:
        """The first dead letter as `file:line: reason`."""
        ...


class Counters(Protocol):
    """What an engine of one query or of several has counted."""

    @property
    def input_tuples(self) -> int: ...

    @property
    def results(self) -> int: ...

    @property
    def late(self) -> int: ...


@contextmanager
def ending(job: Job) -> Iterator[None]:
    """Let a run that a signal stops end with the signal's exit code."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"weir: interrupted; {counted(job.written, 'result')} written", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        raise typer.Exit(BROKEN_PIPE) from None


@contextmanager
def read_progress(files: Mapping[str, SourceFile]) -> Iterator[Callable[[int], None] | None]:
    """A bar of bytes read while standard error is a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield None
        return
    # Imported here: it takes a while, and programs that start `weir run` have no use for it.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    sizes = [file.size for file in files.values()]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("read", total=total)
        yield lambda done: bar.update(task, completed=done)


def report(job: Job, counters: Counters, plan: str, options: RunOptions) -> None:
    """Report records that were not used and, with -v, a summary of the run."""
    dead = job.statistics.dead_letters
    if dead and options.dead_letters is None:
        kept = "--dead-letters FILE keeps them"
        print(f"weir: {counted(dead, 'dead letter')} ({kept}), the first is {job.first_dead}", file=sys.stderr)
    if counters.late and options.late is None:
        print(f"weir: {counted(counters.late, 'late tuple')} left out (--late FILE keeps them)", file=sys.stderr)
    if options.verbose:
        seconds = job.statistics.seconds
        rate = counters.input_tuples / seconds if seconds > 0 else 0.0
        print(
            f"weir: {counted(counters.input_tuples, 'tuple')}, {counted(counters.results, 'result')}, "
            f"{counters.late:,} late, {counted(dead, 'dead letter')} in {seconds:.2f} s ({rate:,.0f} tuples/s)"
            + f", plan {plan}" * bool(plan),
            file=sys.stderr,
        )
