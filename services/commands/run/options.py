"""The options of `weir run`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from services.commands.options.query import (
    Adapt,
    MaxExtraMemory,
    MaxSilence,
    Memory,
    Prefer,
    Preference,
    SpillDir,
    SpillStrategy,
    Switch,
    TableFiles,
)


class ExecutorChoice(StrEnum):
    """How the plan is executed."""

    XJOIN = "xjoin"
    MJOIN = "mjoin"
    EDDY = "eddy"
    STAIRS = "stairs"
    JUGGLER = "juggler"
    APART = "apart"


class Cleanup(StrEnum):
    """Which process produces the pending results of spilled state."""

    LOCAL = "local"
    SPARK = "spark"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options, as the user wrote them; each field's help text says what it is."""

    query: Annotated[
        Path,
        typer.Argument(
            help="File with CREATE STREAM statements and one SELECT, or several INSERT INTO ... SELECT: a group of "
            "queries, which read each source once.",
            metavar="QUERY.sql",
        ),
    ]
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--source",
            metavar="NAME=PATH",
            envvar="WEIR_SOURCES",
            help=(
                "File of a declared stream, once per stream (a self-joined stream once): JSON lines "
                "(.jsonl), CSV with a header (.csv), both also .gz, Parquet (.parquet), or - for JSON lines "
                "on standard input. Records may be out of order within the stream's declared disorder. In "
                "WEIR_SOURCES, separated by blanks."
            ),
        ),
    ] = None
    table: TableFiles = None
    out: Annotated[
        str,
        typer.Option(
            envvar="WEIR_OUT",
            metavar="PATH",
            help="File of results, JSON lines; - is standard output. For several queries a folder: the results of "
            "INSERT INTO 'alarms' are in its alarms.jsonl.",
        ),
    ] = "-"
    plan: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_PLAN",
            metavar="PLAN",
            help="Join tree over the aliases, such as '((A B) C)'. Default: chosen from sampled statistics.",
        ),
    ] = None
    epoch: Annotated[
        str,
        typer.Option(
            envvar="WEIR_EPOCH",
            metavar="DURATION",
            help="Event time processed together, such as 250ms, 1s or 5m; epochs ready at once are merged.",
        ),
    ] = "1s"
    stats: Annotated[
        str | None,
        typer.Option(envvar="WEIR_STATS", metavar="PATH", help="File for counters, as JSON. Default: none."),
    ] = None
    late: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_LATE",
            metavar="PATH",
            help="File for late records, JSON lines. Default: only counted.",
        ),
    ] = None
    dead_letters: Annotated[
        str | None,
        typer.Option(
            "--dead-letters",
            envvar="WEIR_DEAD_LETTERS",
            metavar="PATH",
            help="File for records that cannot be decoded, with reason, source and line. Default: only counted.",
        ),
    ] = None
    name: Annotated[
        str | None,
        typer.Option(
            "--query",
            envvar="WEIR_QUERY",
            metavar="NAME",
            help="Which query alone, by its topic, if the file has several.",
        ),
    ] = None
    executor: Annotated[
        ExecutorChoice | None,
        typer.Option(
            envvar="WEIR_EXECUTOR",
            help=(
                "How the plan is executed: xjoin (a tree of binary joins that keeps intermediate results), mjoin (none "
                "are kept), eddy (none, and every tuple is routed on its own), stairs (an eddy that keeps them) or "
                "juggler (inputs in one pair of parentheses, as A B C in '((A B C) D)', are joined by one operator). "
                "Default: for a given plan xjoin, else the cheaper of xjoin and mjoin. Several queries share one "
                "juggler operator by default, except those that cannot, such as EXCEPT; apart runs each query "
                "standalone, and any other name runs each with that executor."
            ),
        ),
    ] = None
    migrate: Annotated[
        list[str] | None,
        typer.Option(
            envvar="WEIR_MIGRATE",
            metavar="TS:PLAN:STRATEGY",
            help=(
                "Change to another plan at an event time (milliseconds or ISO 8601), such as "
                "'2026-01-31T12:00:00Z:((A B) C):auto'; may be given several times. Strategies: auto (the cost model "
                "picks one at that time; -v prints why), moving-state, parallel-track, hybmig, hybmig-bsc, jisc, gms, "
                "gpt, ghm. Results stay the same. In WEIR_MIGRATE, separated by blanks; a plan may have blanks, a time "
                "none."
            ),
        ),
    ] = None
    adapt: Annotated[
        Adapt | None,
        typer.Option(
            envvar="WEIR_ADAPT",
            help=(
                "Whether Weir changes the plan when rates or selectivities change and that pays: on, advise (it only "
                "reports what it would do, with -v and in --stats) or off. Results stay the same. Default: on, but off "
                "with --plan or --migrate; where the executor is chosen, it may be one without a plan to change."
            ),
        ),
    ] = None
    max_silence: MaxSilence = "100ms"
    max_extra_memory: MaxExtraMemory = 1.0
    prefer: Prefer = Preference.WORK
    jit: Annotated[
        Switch,
        typer.Option(
            envvar="WEIR_JIT",
            help=(
                "Just-in-time feedback: joins do not produce what no join above them can use now, and produce it when "
                "one can. Results stay the same; it rests where it does not pay."
            ),
        ),
    ] = Switch.OFF
    memory: Memory = None
    spill: SpillStrategy = None
    spill_dir: SpillDir = None
    cleanup: Annotated[
        Cleanup,
        typer.Option(
            envvar="WEIR_CLEANUP",
            help=(
                "What produces the results that are still pending at the end: local (this process), spark (a Spark "
                "job) or none: they stay pending in the folder of --spill-dir, and `weir cleanup` produces them later."
            ),
        ),
    ] = Cleanup.LOCAL
    spark: Annotated[
        str,
        typer.Option(
            envvar="WEIR_SPARK_MASTER",
            metavar="MASTER",
            help="With --cleanup spark: its master, such as spark://host:7077; then --spill-dir is a folder that all "
            "its machines see.",
        ),
    ] = "local[*]"
    ui: Annotated[
        bool,
        typer.Option(
            "--ui",
            envvar="WEIR_RUN_UI",
            help="Serve a page that shows the run: plan, rates, decisions. It stays until Ctrl-C.",
        ),
    ] = False
    http_port: Annotated[
        int,
        typer.Option(
            "--http-port", envvar="WEIR_UI_PORT", min=0, max=65_535, help="With --ui: its port; 0: a free one."
        ),
    ] = 8088
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", envvar="WEIR_VERBOSE", help="Print a summary on standard error, plan changes included."
        ),
    ] = False
