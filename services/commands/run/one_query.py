"""`weir run` of one query, with a plan that can change during the run."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from operators.plan.plan import parse_plan
from schemas import refusals
from schemas.durations import parse_duration
from schemas.query import Query
from services.commands.options.query import Switch, adapt_mode
from services.commands.run.options import Cleanup, ExecutorChoice, RunOptions
from services.commands.run.terminal import ending, read_progress, report, reported
from services.files.query_files import source_paths, table_paths
from services.process import memory as memory_use

if TYPE_CHECKING:
    from operators.data.statistics import EngineStatistics
    from operators.engine.engine import Engine
    from services.files.sinks import LineSink
    from services.spill.block_store import SpillStore
    from services.ui.file_run import RunReports


def run_query(query: Query, options: RunOptions, epoch_ms: int, reports: RunReports | None) -> None:
    """Run a query over files.

    Args:
        reports: for its page; None without a page.

    Raises:
        UsageError: the options do not fit.
    """
    text, plan = options.plan, None
    if text is not None:
        plan = parse_plan(text, query, multiway=options.executor is ExecutorChoice.JUGGLER)
    paths = source_paths(query, options.source or [])
    rows = table_paths(query, options.query, options.table or [])
    if options.memory is not None:
        memory_use.choose_arrow_pool()
    # Imported here: the engine and Arrow take most of a second, which a wrong argument need not wait for.
    from operators.autopilot.autopilot import Limits
    from operators.migration.advise import Goal
    from schemas.codecs.encode import check_output_names
    from services.batch.file_run import Outputs
    from services.batch.plan_changes import parse_plan_change, whole_changes
    from services.batch.query_run import Run
    from services.batch.run_statistics import decision_lines, idle_migrations, outcome_lines, stats_json
    from services.files.sinks import LineSink, check_outputs
    from services.files.sources import SourceFile
    from services.files.tables import read_tables
    from services.spill.budget import spill_setup

    executor = options.executor or ExecutorChoice.XJOIN
    goal = Goal(prefer=options.prefer.value)
    bounds = Goal(options.prefer.value, parse_duration(options.max_silence) / 1000, options.max_extra_memory)
    changes = [parse_plan_change(change, query, executor, goal) for change in whole_changes(options.migrate or [])]
    check_output_names(query)
    feedback = options.jit is Switch.ON
    refusals.check(query, refusals.executor(executor))
    if options.memory is not None and options.cleanup is not Cleanup.LOCAL:
        refusals.check(query, refusals.DEFERRED_CLEANUP)
    given = {
        "--out": options.out, "--stats": options.stats, "--late": options.late, "--dead-letters": options.dead_letters
    }  # fmt: skip
    inputs = {f"--source {n}": path for n, path in paths.items()} | {f"table {n}": path for n, path in rows.items()}
    check_outputs(given, {"the query": str(options.query)} | inputs)
    files = {s.name: SourceFile(s, paths[s.name]) for s in query.streams()}
    tables = read_tables(query, rows)
    sinks = {option: LineSink(option, path) for option, path in given.items() if path is not None}
    outputs = Outputs([sinks["--out"]], sinks.get("--late"), sinks.get("--dead-letters"))
    cleanup = options.cleanup
    with spill_setup(options.memory, options.spill, options.spill_dir, cleans=cleanup is not Cleanup.NONE) as spilling:
        with read_progress(files, reports) as shown:
            job = Run(
                query,
                files,
                outputs,
                epoch_ms=epoch_ms,
                plan=plan,
                executor=options.executor,
                tables=tables,
                changes=changes,
                feedback=feedback,
                spill=spilling,
                keep_timeline="--stats" in sinks,
                cleans=cleanup is Cleanup.LOCAL,
                progress=shown,
                adapt=adapt_mode(options.adapt, pinned=plan is not None or bool(changes)),
                asked=options.adapt is not None,
                limits=Limits(bounds),
            )
            with ending(job), reported(job, reports):
                engine = job.run()
        with ending(job):
            counters = engine.statistics()
            if spilling is not None and cleanup is not Cleanup.LOCAL:
                spark = options.spark if cleanup is Cleanup.SPARK else None
                began = time.perf_counter()
                counters = _save_pending(engine, spilling.blocks, options.query, sinks["--out"], spark)
                job.statistics.seconds += time.perf_counter() - began
            if "--stats" in sinks:
                sinks["--stats"].write(stats_json(job.statistics, engine, counters, job.autopilot))
            for sink in sinks.values():
                sink.close()
    report(job, counters, str(engine.plan), options)
    for note in idle_migrations(job.statistics, engine):
        print(f"weir: --migrate: {note}", file=sys.stderr)
    if job.not_adapted:
        print(f"weir: --adapt {options.adapt}: the plan stays, since {job.not_adapted}", file=sys.stderr)
    if options.verbose:
        for line in outcome_lines(engine) + decision_lines(job.autopilot):
            print(f"weir: {line}", file=sys.stderr)


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
        found = clean_up_backlog(backlog, out.path, LineDestination(out, engine.query), spark, None, say)
    spill = replace(
        before.spill,
        owed=0,
        on_disk_tuples=0,
        cleanup_results=before.spill.cleanup_results + found,
        cleanup_s=before.spill.cleanup_s + time.perf_counter() - began,
    )
    return replace(before, results=before.results + found, spill=spill)
