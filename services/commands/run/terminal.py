"""Terminal functions of `weir run`: progress bar, page, exit on a signal, final messages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import typer

from services.commands.counts import counted
from services.commands.run.options import RunOptions
from services.commands.stopping import stop_event

if TYPE_CHECKING:
    from operators.engine.engine import Engine
    from operators.groups.engine import GroupEngine
    from schemas.query import Query
    from services.batch.run_statistics import RunStatistics
    from services.files.sources import SourceFile
    from services.ui.file_run import RunReports

INTERRUPTED = 130
BROKEN_PIPE = 1


class Job(Protocol):
    """A run of one query or of several."""

    statistics: RunStatistics
    written: int

    @property
    def engine(self) -> Engine | GroupEngine | None:
        """None until the run has begun to process."""
        ...

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

    @property
    def deduplicated(self) -> int: ...


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
def run_page(queries: Sequence[Query], options: RunOptions) -> Iterator[RunReports | None]:
    """The page of the run, which stays after it until Ctrl-C; None unless the user wants it."""
    if not options.ui:
        yield None
        return
    from services.ui.file_run import shown_run

    with shown_run(queries, options.http_port) as reports:
        print(f"weir: {reports.address}", file=sys.stderr)
        yield reports
        stopped = stop_event()
        print(f"weir: done; {reports.address} stays until Ctrl-C", file=sys.stderr)
        stopped.wait()


@contextmanager
def reported(job: Job, reports: RunReports | None) -> Iterator[None]:
    """Report on a run to its page, if it has one."""
    if reports is not None:
        reports.begin(job)
    yield
    if reports is not None:
        reports.finish()


@contextmanager
def read_progress(
    files: Mapping[str, SourceFile], reports: RunReports | None
) -> Iterator[Callable[[int], None] | None]:
    """A bar of bytes read while standard error is a terminal, and the figures of the run's page, if it has one."""
    page = None if reports is None else reports.progress
    if not sys.stderr.isatty():
        yield page
        return
    # Imported here: it takes a while, and programs that start `weir run` have no use for it.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    sizes = [file.size for file in files.values()]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("read", total=total)

        def show(done: int) -> None:
            bar.update(task, completed=done)
            if page is not None:
                page(done)

        yield show


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
        repeats = f"{counted(counters.deduplicated, 'repeat')}, " if counters.deduplicated else ""
        print(
            f"weir: {counted(counters.input_tuples, 'tuple')}, {counted(counters.results, 'result')}, "
            f"{counters.late:,} late, {repeats}{counted(dead, 'dead letter')} in {seconds:.2f} s ({rate:,.0f} tuples/s)"
            + f", plan {plan}"
            * bool(plan),
            file=sys.stderr,
        )
