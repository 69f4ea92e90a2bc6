"""`weir bench`: measures Weir's speed, against required figures and against other programs in the same run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schemas.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from ops.bench.measuring.measure import Progress
    from ops.bench.measuring.report import Report
    from ops.bench.measuring.suites import PaperBench, Suite

app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Measure this machine: a table of required and measured figures, with the ceilings and a naive "
        "program measured in the same run. The exit code is 0 whether or not the requirements are met."
    ),
)

Quick = Annotated[bool, typer.Option("--quick", help="Small sizes: shows that it runs, and roughly how fast.")]
Runs = Annotated[
    int | None,
    typer.Option(min=1, help="Runs of every figure; default 5, with --quick 2.", show_default=False),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the events.")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also store everything as JSON.")]

Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT,...",
        help="A running broker; weir-bench-* topics stay on it. Default: one that the benchmark starts.",
        show_default=False,
    ),
]
PaperQuick = Annotated[
    bool, typer.Option("--quick", help="The smallest sizes, one run. Default: sizes that take minutes.")
]
Full = Annotated[
    bool, typer.Option("--full", help="The paper's sizes, which take hours. Default: sizes that take minutes.")
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where tables (.md, .json) and charts (.png) go.")]
PaperRuns = Annotated[
    int | None,
    typer.Option("--runs", min=1, help="Runs of every figure; default 2, --quick 1, --full 3.", show_default=False),
]
FigureNumber = Annotated[
    int | None, typer.Option("--figure", min=1, help="Draw this figure only; default all.", show_default=False)
]


@app.command()
def engine(
    quick: Quick = False,
    runs: Runs = None,
    seconds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Event time that each run measures, in seconds; default 20, with --quick 4.",
            show_default=False,
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="Event time of the run that measures the growth of memory, in minutes; default 5, with --quick 0.5.",
            show_default=False,
        ),
    ] = None,
    seed: Seed = 1,
    json: Json = None,
) -> None:
    """The engine alone: nothing to parse, no Kafka, one core."""
    from ops.bench.engine import EngineSettings, bench_engine

    settings = EngineSettings(
        runs=runs or (2 if quick else 5),
        seconds=seconds or (4 if quick else 20),
        minutes=minutes or (0.5 if quick else 5.0),
        seed=seed,
        quick=quick,
    )
    _measure(bench_engine, settings, json)


@app.command()
def files(
    quick: Quick = False,
    runs: Runs = None,
    seconds: Annotated[
        int | None,
        typer.Option(
            min=11,
            help="Event time of the files, in seconds (30,000 events each); default 200, with --quick 30.",
            show_default=False,
        ),
    ] = None,
    seed: Seed = 1,
    json: Json = None,
) -> None:
    """JSON lines to JSON lines with `weir run`, against decoders that merely read them."""
    from ops.bench.files import FilesSettings, bench_files

    settings = FilesSettings(
        runs=runs or (2 if quick else 5), seconds=seconds or (30 if quick else 200), seed=seed, quick=quick
    )
    _measure(bench_files, settings, json)


@app.command()
def decode(quick: Quick = False, runs: Runs = None, seed: Seed = 1, json: Json = None) -> None:
    """Records in JSON, Avro and Protobuf to columns, flat and nested, against decoders of other libraries."""
    from ops.bench.decode.table import DecodeSettings, bench_decode

    sizes = {"records": 20_000, "seconds": 0.1} if quick else {}
    _measure(bench_decode, DecodeSettings(runs=runs or (2 if quick else 5), seed=seed, **sizes), json)


@app.command()
def kafka(
    bootstrap: Bootstrap = None,
    quick: Quick = False,
    runs: Runs = None,
    seconds: Annotated[
        int | None,
        typer.Option(
            min=12,
            help="Event time of the topics, in seconds (30,000 events each); default 100, with --quick 20.",
            show_default=False,
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="Wall time at constant rate that watches memory grow; default 2, with --quick 0.2.",
            show_default=False,
        ),
    ] = None,
    rate: Annotated[int, typer.Option(min=100, help="Events per second of that run.")] = 30_000,
    formats: Annotated[
        bool, typer.Option("--formats", help="The rate from topics in JSON, Avro and Protobuf instead.")
    ] = False,
    seed: Seed = 1,
    json: Json = None,
) -> None:
    """Topic to topic with `weir worker`, exactly once: rate, latency, memory."""
    from ops.bench.kafka.formats import bench_formats
    from ops.bench.kafka.topic_to_topic import KafkaSettings, bench_kafka

    settings = KafkaSettings(
        bootstrap=bootstrap,
        runs=runs or (2 if quick else 5),
        seconds=seconds or (20 if quick else 100),
        latency_seconds=4.0 if quick else 10.0,
        minutes=minutes or (0.2 if quick else 2.0),
        rate=rate,
        seed=seed,
    )
    _measure(bench_formats if formats else bench_kafka, settings, json)


@app.command()
def migrations(
    bootstrap: Bootstrap = None,
    quick: Quick = False,
    runs: Runs = None,
    rate: Annotated[int, typer.Option(min=60, help="Events per second, all streams together.")] = 50_000,
    window: Annotated[float, typer.Option(min=0.1, help="Window of the join, in seconds.")] = 5.0,
    per_operator: Annotated[
        bool, typer.Option("--per-operator", help="Joins in tasks of their own, by the strategies that they have.")
    ] = False,
    seed: Seed = 1,
    json: Json = None,
) -> None:
    """Plan changes of a running `weir worker`: how long results stay away by each strategy."""
    from ops.bench.kafka.migrations import MigrationSettings, bench_migrations

    settings = MigrationSettings(
        bootstrap=bootstrap,
        runs=runs or (2 if quick else 5),
        rate=rate,
        window_ms=round(window * 1000),
        per_operator=per_operator,
        seed=seed,
    )
    _measure(bench_migrations, settings, json)


@app.command()
def failover(
    bootstrap: Bootstrap = None,
    quick: Quick = False,
    runs: Runs = None,
    seed: Seed = 1,
    json: Json = None,
) -> None:
    """Workers that are killed: how long results stay away, by the size of the state, and what takes that time."""
    from ops.bench.kafka.failover import WINDOWS_MS, FailoverSettings, bench_failover

    settings = FailoverSettings(
        bootstrap=bootstrap,
        runs=runs or (2 if quick else 20),
        windows_ms=WINDOWS_MS[:1] if quick else WINDOWS_MS,
        seed=seed,
    )
    _measure(bench_failover, settings, json)


@app.command()
def cleanup(
    quick: Quick = False,
    runs: Runs = None,
    tuples: Annotated[
        int | None,
        typer.Option(
            min=30, help="Source tuples of all streams; default 1,000,000, with --quick 100,000.", show_default=False
        ),
    ] = None,
    master: Annotated[str, typer.Option(metavar="URL", help="Spark's master.")] = "local[*]",
    seed: Seed = 1,
    json: Json = None,
) -> None:
    """Cleanup of the results that a run left pending for lack of memory: by one process, and by Spark."""
    from ops.bench.spark_cleanup import CleanupSettings, bench_cleanup
    from ops.spark.session import check_installed

    check_installed()
    settings = CleanupSettings(tuples or (100_000 if quick else 1_000_000), master, runs or (2 if quick else 3), seed)
    _measure(bench_cleanup, settings, json)


def figures_of(paper: str) -> str:
    """The module whose `BENCH` draws a paper's figures."""
    return f"ops.bench.papers.{paper}.figures"


JIT_ON_KAFKA = "ops.bench.kafka.jit_kafka"
"""The module whose `BENCH` measures feedback between workers."""


def _redraws(name: str, help: str, module: str | None = None) -> None:
    """Add the command that draws figures: a paper's, or those of a module."""

    @app.command(name, help=help)
    def command(
        quick: PaperQuick = False,
        full: Full = False,
        figure: FigureNumber = None,
        runs: PaperRuns = None,
        seed: Seed = 1,
        out: Out = Path("bench-results"),
    ) -> None:
        _redraw(module or figures_of(name), quick, full, figure, runs, seed, out)


def _redraw(module: str, quick: bool, full: bool, figure: int | None, runs: int | None, seed: int, out: Path) -> None:
    from importlib import import_module

    from ops.bench.measuring.measure import Progress
    from services.process.warmup import warm_up

    if quick and full:
        raise UsageError("--quick and --full contradict each other: give one of them, or none")
    bench: PaperBench[Any] = import_module(module).BENCH
    with Progress() as progress:
        warm_up(lambda step: progress.say(f"compiling: {step}"))
        size = "quick" if quick else "full" if full else "default"
        suite = bench.run(size, runs, seed, figure, progress)
    _finish_suite(suite, out)


_redraws(
    "jisc",
    "The figures of the JISC paper, 7 to 12, redrawn: lazy migration against Parallel Track, CACQ and Moving State.",
)
_redraws(
    "hybmig",
    "The figures of the HybMig paper, 15 to 22, redrawn: counters, and a simulated clock where load matters.",
)
_redraws(
    "spill",
    "The figures of the state-spill paper, 16 to 20, redrawn; and pace against RocksDB, pauses, growth, memory use.",
)
_redraws(
    "juggler",
    "The figures of the Juggler thesis, 5.4 to 5.12, redrawn; and drift, and up to 1,000 queries in one operator.",
)
_redraws(
    "drift",
    "How well plans follow data that change: --adapt on against every static plan and a clairvoyant.",
    "ops.bench.drift.figures",
)


@app.command()
def jit(
    quick: PaperQuick = False,
    full: Full = False,
    figure: FigureNumber = None,
    kafka: Annotated[
        bool,
        typer.Option(
            "--kafka",
            help="What feedback saves and costs between joins that run in tasks of their own; not in the paper.",
        ),
    ] = False,
    runs: PaperRuns = None,
    seed: Seed = 1,
    out: Out = Path("bench-results"),
) -> None:
    """The figures of the JIT paper, 10 to 17, redrawn: feedback on and off, nested loops and hash joins."""
    _redraw(JIT_ON_KAFKA if kafka else figures_of("jit"), quick, full, figure, runs, seed, out)


def _finish_suite(suite: Suite, out: Path) -> None:
    files = suite.write(out)
    suite.show(_console())
    typer.echo("written: " + ", ".join(str(path) for path in files))


def _measure(bench: Callable[[Any, Progress], Report], settings: Any, json: Path | None) -> None:
    """Run a benchmark with its settings, show its report, and write it to a file if one is given."""
    from ops.bench.measuring.measure import Progress

    with Progress() as progress:
        report = bench(settings, progress)
    report.show(_console())
    if json is not None:
        json.write_text(report.to_json())


def _console() -> Console:
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=160)
