"""`weir backfill` and `weir audit`: answer a query over history with Spark, and check what a query wrote."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from schemas.errors import UsageError
from schemas.query import Query
from schemas.timestamps import format_iso, format_progress, parse_event_time
from services.commands.counts import counted
from services.commands.options.kafka import with_kafka
from services.commands.options.query import Group, QueryArgument, QueryName, TableFiles, group_of
from services.commands.options.registry import with_registry
from services.files.query_files import table_paths
from services.formats.registry_access import RegistryAccess
from services.process.security import KafkaClients
from services.registry.query_registry import find_query, names_file

if TYPE_CHECKING:
    from ops.spark.audit import Audit
    from ops.spark.backfill import ResultRange, Spark
    from ops.spark.sources import RecordCounts

WRONG = 1
_SHOWN = 5

REGISTRY_S = 60.0
"""How long a schema registry may take to answer."""

Archives = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        metavar="NAME=PATH",
        envvar="WEIR_SOURCES",
        help="Archive of a declared stream: JSON lines, CSV, both also .gz, Parquet, or - for JSON lines on standard "
        "input. Given again for the same stream, the next piece of it. Without any, the streams' topics are read. In "
        "WEIR_SOURCES, separated by blanks.",
    ),
]
Begin = Annotated[
    str | None,
    typer.Option(
        "--from",
        envvar="WEIR_BEGIN",
        metavar="TIME",
        help="Only results from this event time on, in ms or ISO 8601. Default: all.",
    ),
]
End = Annotated[
    str | None,
    typer.Option(
        "--to",
        envvar="WEIR_END",
        metavar="TIME",
        help="Only results before this event time. Default: all of files, the final ones of topics.",
    ),
]
Master = Annotated[
    str,
    typer.Option(envvar="WEIR_SPARK_MASTER", metavar="URL", help="Spark's master, such as spark://host:7077."),
]
WorkDir = Annotated[
    Path | None,
    typer.Option(
        envvar="WEIR_SPARK_DIR",
        metavar="DIR",
        help="Folder for data on its way through Spark; with a cluster, one that all its machines see. Default: the "
        "system's for temporary files.",
    ),
]


@with_kafka
@with_registry
def backfill(
    query: QueryArgument,
    source: Archives = None,
    table: TableFiles = None,
    out: Annotated[
        str,
        typer.Option(
            envvar="WEIR_OUT",
            metavar="PATH",
            help="File of results: Parquet (.parquet), else JSON lines; - is standard output.",
        ),
    ] = "-",
    begin: Begin = None,
    end: End = None,
    master: Master = "local[*]",
    work_dir: WorkDir = None,
    name: QueryName = None,
    *,
    clients: KafkaClients,
    access: RegistryAccess,
) -> None:
    """Answer a query over history with Spark: over archives, or over what its topics hold.

    The results are those of `weir run` over the same files, or of a worker that has read the same records, in the order
    of their timestamps. Exit codes: 0 done; 2 the query or the arguments are wrong; 1 anything else.
    """
    bound, rows, span, spark = _prepared(query, name, clients, access, table, begin, end, master, work_dir)
    pieces = _archives(bound, source)

    # Imported here: Arrow and polars take most of a second, which a wrong argument need not wait for.
    from ops.spark.backfill import backfill_files, backfill_topics
    from services.files.sinks import check_outputs
    from services.files.tables import read_tables
    from services.formats.decoders import make_decoders

    inputs = {f"--source {stream}": path for stream, paths in pieces.items() for path in paths}
    inputs |= {f"table {name}": path for name, path in rows.items()}
    check_outputs({"--out": out}, inputs | ({"the query": str(query)} if names_file(query) else {}))
    tables = read_tables(bound, rows)
    with progress() as say:
        if pieces:
            report = backfill_files(bound, pieces, tables, out, span, spark, say)
        else:
            decoders = make_decoders(bound, query, access, REGISTRY_S)
            report = backfill_topics(bound, clients, tables, decoders, out, span, spark, say)
    until = "" if report.until is None else f", final before {format_progress(report.until)}"
    _say(f"{_taken(report.intake)}; {report.results:,} results{until}")
    for note in (*_buried(report.intake), *report.notes):
        _say(note)


@with_kafka
@with_registry
def audit(
    query: QueryArgument,
    source: Archives = None,
    results: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_RESULTS",
            metavar="PATH",
            help="With --source: the file of results to check, JSON lines or Parquet.",
        ),
    ] = None,
    table: TableFiles = None,
    begin: Begin = None,
    end: End = None,
    master: Master = "local[*]",
    work_dir: WorkDir = None,
    name: QueryName = None,
    group: Group = None,
    *,
    clients: KafkaClients,
    access: RegistryAccess,
) -> None:
    """Compare what a query wrote with the exact answer, and report missing, extra and doubled results.

    Checks the output topic of a query on Kafka, running or stopped, as far as its tasks have committed; or with
    --source and --results a file. Exit codes: 0 nothing is wrong; 1 something is, or the audit failed; 2 the query or
    the arguments are wrong.
    """
    if bool(source) != (results is not None):
        raise UsageError("--source and --results belong together: archives, and the file of results made from them")
    bound, rows, span, spark = _prepared(query, name, clients, access, table, begin, end, master, work_dir)
    pieces = _archives(bound, source)

    from ops.spark.audit import audit_files, audit_topics
    from services.files.tables import read_tables
    from services.formats.decoders import make_decoders

    tables = read_tables(bound, rows)
    with progress() as say:
        if results is not None:
            found = audit_files(bound, pieces, results, tables, span, spark, say)
        else:
            decoders = make_decoders(bound, query, access, REGISTRY_S)
            found = audit_topics(bound, clients, group_of(bound, group), tables, decoders, span, spark, say)
    for line in _verdict(found):
        typer.echo(line)
    for note in _buried(found.intake):
        _say(note)
    if not found.clean:
        raise typer.Exit(WRONG)


def _prepared(
    query: Path,
    name: str | None,
    clients: KafkaClients,
    access: RegistryAccess,
    table: list[str] | None,
    begin: str | None,
    end: str | None,
    master: str,
    work_dir: Path | None,
) -> tuple[Query, dict[str, str], ResultRange, Spark]:
    """The query, its tables' files, the span and the place of work."""
    bound = find_query(query, name, clients, access)
    from schemas.codecs.encode import check_output_names  # not above: it takes half a second

    check_output_names(bound)
    rows = table_paths(bound, query, table or [])
    times = [None if text is None else _time(option, text) for option, text in (("--from", begin), ("--to", end))]
    from ops.spark.backfill import Spark, span_of

    return bound, rows, span_of(*times), Spark(master, work_dir)


def _archives(query: Query, given: list[str] | None) -> dict[str, list[str]]:
    """The archives by stream; empty for topics."""
    if not given:
        return {}
    from ops.spark.sources import archives

    return archives(query, given)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A line that says what is done just now while standard error is a terminal, else nothing."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("beginning") as status:
        yield status.update


def _time(option: str, text: str) -> int:
    try:
        return parse_event_time(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def _taken(intake: RecordCounts) -> str:
    return f"{counted(intake.tuples, 'tuple')}, {intake.late:,} late, {counted(intake.dead, 'dead letter')}"


def _buried(intake: RecordCounts) -> list[str]:
    return [f"{counted(intake.dead, 'dead letter')}, the first is {intake.first_dead}"] if intake.dead else []


def _verdict(found: Audit) -> list[str]:
    """The lines of an audit."""
    from ops.spark.compare import report_lines

    until = "" if found.end is None else f" before {format_progress(found.end)}"
    since = f" from {format_iso(found.begin)}" if found.begin else ""
    others = [f"  not a result: {place}" for place in found.unreadable[:_SHOWN]]
    if found.unreadable:
        others.insert(0, f"no result of this query: {counted(len(found.unreadable), 'record')}")
    verdict = "exact" if found.clean else "WRONG"
    return [
        f"{_taken(found.intake)}; results{since}{until} compared",
        *report_lines(found.verdict, found.topic),
        *others,
        f"{verdict}",
    ]


def _say(text: str) -> None:
    print(f"weir: {text}", file=sys.stderr)
