"""`weir run`: runs a query over files."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from operators.plan.plan import parse_plan
from schemas.durations import parse_duration
from schemas.errors import UsageError
from schemas.sizes import unit_hint
from services.commands.query_options import Memory, SpillDir, SpillStrategy, TableFiles
from services.commands.run_queries import GroupOptions, run_queries
from services.commands.running import ending, read_progress, report
from services.files.query_files import read_queries, source_paths, table_paths
from services.process import memory as memory_use
from services.process.settings import Switch

if TYPE_CHECKING:
    from operators.data.statistics import EngineStatistics
    from operators.engine.engine import Engine
    from services.files.sinks import LineSink
    from services.spill.block_store import SpillStore


class ExecutorChoice(StrEnum):
    """How the plan is executed."""

    XJOIN = "xjoin"
    MJOIN = "mjoin"
    EDDY = "eddy"
    STAIRS = "stairs"
    JUGGLER = "juggler"
    APART = "apart"


class Preference(StrEnum):
    """The cost that the strategy `auto` minimizes."""

    WORK = "work"
    SILENCE = "silence"
    MEMORY = "memory"


class Cleanup(StrEnum):
    """Which process produces the pending results of spilled state."""

    LOCAL = "local"
    SPARK = "spark"
    NONE = "none"


def run(
    query: Annotated[
        Path,
        typer.Argument(
            help="File with CREATE STREAM statements and one SELECT, or several INSERT INTO ... SELECT: a group of "
            "queries, which read each source once.",
            metavar="QUERY.sql",
        ),
    ],
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
    ] = None,
    table: TableFiles = None,
    out: Annotated[
        str,
        typer.Option(
            envvar="WEIR_OUT",
            metavar="PATH",
            help="File of results, JSON lines; - is standard output. For several queries a folder: the results of "
            "INSERT INTO 'alarms' are in its alarms.jsonl.",
        ),
    ] = "-",
    plan: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_PLAN",
            metavar="PLAN",
            help="Join tree over the aliases, such as '((A B) C)'. Default: chosen from sampled statistics.",
        ),
    ] = None,
    epoch: Annotated[
        str,
        typer.Option(
            envvar="WEIR_EPOCH",
            metavar="DURATION",
            help="Event time processed together, such as 250ms, 1s or 5m; epochs ready at once are merged.",
        ),
    ] = "1s",
    stats: Annotated[
        str | None,
        typer.Option(envvar="WEIR_STATS", metavar="PATH", help="File for counters, as JSON. Default: none."),
    ] = None,
    late: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_LATE",
            metavar="PATH",
            help="File for late records, JSON lines. Default: only counted.",
        ),
    ] = None,
    dead_letters: Annotated[
        str | None,
        typer.Option(
            "--dead-letters",
            envvar="WEIR_DEAD_LETTERS",
            metavar="PATH",
            help="File for records that cannot be decoded, with reason, source and line. Default: only counted.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--query",
            envvar="WEIR_QUERY",
            metavar="NAME",
            help="Which query alone, by its topic, if the file has several.",
        ),
    ] = None,
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
    ] = None,
    migrate: Annotated[
        list[str] | None,
        typer.Option(
            envvar="WEIR_MIGRATE",
            metavar="TS:PLAN:STRATEGY",
            help=(
                "Change to another plan at an event time (milliseconds or ISO 8601), such as "
                "'2026-01-31T12:00:00Z:((A B) C):auto'; may be given several times. Strategies: auto (the cost model "
                "picks one at that time; -v prints why), moving-state, parallel-track, hybmig, hybmig-bsc, jisc, gms, "
                "gpt, ghm. Results stay the same."
            ),
        ),
    ] = None,
    prefer: Annotated[
        Preference,
        typer.Option(
            envvar="WEIR_PREFER",
            help=(
                "What the strategy auto minimizes: work, silence (the longest pause) or memory (tuples held beside "
                "the new plan's)."
            ),
        ),
    ] = Preference.WORK,
    jit: Annotated[
        Switch,
        typer.Option(
            envvar="WEIR_JIT",
            help=(
                "Just-in-time feedback: joins do not produce what no join above them can use now, and produce it when "
                "one can. Results stay the same; it rests where it does not pay."
            ),
        ),
    ] = Switch.OFF,
    memory: Memory = None,
    spill: SpillStrategy = None,
    spill_dir: SpillDir = None,
    cleanup: Annotated[
        Cleanup,
        typer.Option(
            envvar="WEIR_CLEANUP",
            help=(
                "What produces the results that are still pending at the end: local (this process), spark (a Spark "
                "job) or none: they stay pending in the folder of --spill-dir, and `weir cleanup` produces them later."
            ),
        ),
    ] = Cleanup.LOCAL,
    spark: Annotated[
        str,
        typer.Option(
            envvar="WEIR_SPARK_MASTER",
            metavar="MASTER",
            help="With --cleanup spark: its master, such as spark://host:7077; then --spill-dir is a folder that all "
            "its machines see.",
        ),
    ] = "local[*]",
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", envvar="WEIR_VERBOSE", help="Print a summary on standard error, plan changes included."
        ),
    ] = False,
) -> None:
    """Run a query over files and write its results, ordered by their timestamp `_ts`.

    The same files give the same bytes. Exit codes: 0 done; 2 the query or the arguments are wrong; 1 anything
    else; 130 interrupted.
    """
    _check_cleanup(cleanup, spark, memory, spill_dir)
    if hint := unit_hint(memory):
        print(f"weir: --memory {hint}", file=sys.stderr)
    epoch_ms = parse_duration(epoch)
    if epoch_ms == 0:
        raise UsageError("--epoch 0s: an epoch is at least 1ms")
    queries = read_queries(query, name)
    if len(queries) > 1 or executor is ExecutorChoice.APART:
        refused = {"--plan": plan, "--migrate": migrate, f"--cleanup {cleanup}": cleanup is not Cleanup.LOCAL}
        options = GroupOptions(
            source or [], table or [], out, stats, late, dead_letters, executor, epoch_ms, verbose, refused,
            memory, spill, spill_dir, jit is Switch.ON,
        )  # fmt: skip
        run_queries(query, queries, options)
        return
    bound = queries[0]
    tree = parse_plan(plan, bound, multiway=executor is ExecutorChoice.JUGGLER) if plan is not None else None
    paths = source_paths(bound, source or [])
    rows = table_paths(bound, query, table or [])
    if memory is not None:
        memory_use.choose_arrow_pool()
    # Imported here: the engine and Arrow take most of a second, which a wrong argument need not wait for.
    from operators.feedback.feedback import check_feedback
    from operators.migration.advise import Goal
    from operators.spill.plan_spilling import check_spillable
    from schemas.codecs.encode import check_output_names
    from services.batch.file_run import Outputs
    from services.batch.plan_changes import parse_plan_change
    from services.batch.query_run import Run
    from services.batch.run_statistics import idle_migrations, outcome_lines, stats_json
    from services.files.sinks import LineSink, check_outputs
    from services.files.sources import SourceFile
    from services.files.tables import read_tables
    from services.spill.budget import spill_setup

    goal = Goal(prefer=prefer.value)
    changes = [parse_plan_change(text, bound, executor or ExecutorChoice.XJOIN, goal) for text in migrate or []]
    check_output_names(bound)
    if jit is Switch.ON:
        check_feedback(bound)
    if memory is not None:
        check_spillable(bound, executor or ExecutorChoice.XJOIN)
    given = {"--out": out, "--stats": stats, "--late": late, "--dead-letters": dead_letters}
    inputs = {f"--source {n}": path for n, path in paths.items()} | {f"table {n}": path for n, path in rows.items()}
    check_outputs(given, {"the query": str(query)} | inputs)
    files = {s.name: SourceFile(s, paths[s.name]) for s in bound.streams()}
    tables = read_tables(bound, rows)
    sinks = {option: LineSink(option, path) for option, path in given.items() if path is not None}
    outputs = Outputs([sinks["--out"]], sinks.get("--late"), sinks.get("--dead-letters"))
    with spill_setup(memory, spill, spill_dir, cleans=cleanup is not Cleanup.NONE) as spilling:
        with read_progress(files) as shown:
            job = Run(
                bound,
                files,
                outputs,
                epoch_ms=epoch_ms,
                plan=tree,
                executor=executor,
                tables=tables,
                changes=changes,
                feedback=jit is Switch.ON,
                spill=spilling,
                cleans=cleanup is Cleanup.LOCAL,
                progress=shown,
            )
            with ending(job):
                engine = job.run()
        with ending(job):
            counters = engine.statistics()
            if spilling is not None and cleanup is not Cleanup.LOCAL:
                payer = spark if cleanup is Cleanup.SPARK else None
                began = time.perf_counter()
                counters = _save_pending(engine, spilling.blocks, query, sinks["--out"], payer)
                job.statistics.seconds += time.perf_counter() - began
            if "--stats" in sinks:
                sinks["--stats"].write(stats_json(job.statistics, engine, counters))
            for sink in sinks.values():
                sink.close()
    report(job, counters, str(engine.plan), late is None, dead_letters is None, verbose)
    for note in idle_migrations(job.statistics, engine):
        print(f"weir: --migrate: {note}", file=sys.stderr)
    if verbose:
        print(*(f"weir: {line}" for line in outcome_lines(engine)), sep="\n", end="\n" * bool(changes), file=sys.stderr)


def _check_cleanup(cleanup: Cleanup, spark: str, memory: str | None, spill_dir: Path | None) -> None:
    """Check the options about pending results, before anything is read.

    Raises:
        UsageError: they cannot work together; the message says why.
    """
    if memory is None:
        if cleanup is not Cleanup.LOCAL:
            raise UsageError(f"--cleanup {cleanup} has no effect without --memory, such as --memory 64MiB")
        return
    if spill_dir is not None:
        from services.spill.backlog import check_free

        check_free(spill_dir)
    if cleanup is Cleanup.NONE and spill_dir is None:
        raise UsageError("--cleanup none leaves pending results in a folder: name it with --spill-dir DIR")
    if cleanup is Cleanup.SPARK:
        from ops.spark.session import check_installed, is_local

        check_installed()
        if spill_dir is None and not is_local(spark):
            raise UsageError(f"--spill-dir is needed with --spark {spark}: a folder that all its machines see")


def _save_pending(
    engine: Engine, blocks: SpillStore, query: Path, out: LineSink, spark: str | None
) -> EngineStatistics:
    """Save the backlog of pending results in the spill folder, and let Spark produce them if a master is given.

    Returns:
        the statistics of the engine, with those of Spark added.

    Raises:
        StateError: the backlog cannot be written, or not be cleaned up; then it stays in the folder if that was named.
    """
    from services.spill.backlog import BacklogBlocks, OpenBacklog, save_backlog

    before = engine.statistics()
    owed_pairs = 0 if before.spill is None else before.spill.owed
    pending = engine.write_backlog()
    if pending is None or before.spill is None:
        print("weir: no results are pending", file=sys.stderr)
        return before
    manifest = save_backlog(blocks.path, blocks, query.read_text("utf-8-sig"), engine.query, pending, owed_pairs)
    if spark is None:
        print(
            f"weir: {owed_pairs:,} pairs of tuples were not compared for lack of memory; `weir cleanup {blocks.path}` "
            "produces the results among them",
            file=sys.stderr,
        )
        return before
    from services.commands.cleanup import clean_up_backlog
    from services.commands.history import progress
    from services.spill.destinations import LineDestination

    with progress() as say:
        backlog = OpenBacklog(blocks.path, manifest, engine.query, BacklogBlocks(blocks))
        began = time.perf_counter()
        found = clean_up_backlog(backlog, out.path, LineDestination(out), spark, None, say)
    spill = replace(
        before.spill,
        owed=0,
        on_disk_tuples=0,
        cleanup_results=before.spill.cleanup_results + found,
        cleanup_s=before.spill.cleanup_s + time.perf_counter() - began,
    )
    return replace(before, results=before.results + found, spill=spill)
