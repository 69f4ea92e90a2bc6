"""`weir run` of several queries, or with a group's executor: each query's results go to a separate file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.errors import UsageError, listed
from schemas.groups import read_by
from schemas.query import Query
from services.commands.counts import counted
from services.commands.options.query import Switch, adapt_mode
from services.commands.run.options import Cleanup, RunOptions
from services.commands.run.terminal import ending, read_progress, report, reported
from services.files.query_files import source_paths, table_paths
from services.process import memory as memory_use

if TYPE_CHECKING:
    from services.ui.file_run import RunReports

STDOUT = "-"
SUFFIX = ".jsonl"


def run_queries(queries: Sequence[Query], options: RunOptions, epoch_ms: int, reports: RunReports | None) -> None:
    """Run queries over files; several write to a folder, one to where `--out` says.

    Args:
        reports: for their page; None without a page.

    Raises:
        UsageError: the options do not fit, or an executor cannot execute a query.
    """
    file, several, feedback = options.query, len(queries) > 1, options.jit is Switch.ON
    _check_one_plan(queries, options)
    results = _results(file, queries, options.out)
    everything = read_by(queries)
    paths = source_paths(everything, options.source or [])
    rows = table_paths(everything, file, options.table or [])
    # Imported here: the engine and Arrow take most of a second, which a wrong argument need not wait for.
    from operators.groups.sharing import check_group_executor
    from schemas.codecs.encode import check_output_names
    from services.batch.file_run import Outputs
    from services.batch.group_run import GroupRun
    from services.batch.run_statistics import group_stats_json
    from services.files.sinks import LineSink, check_outputs
    from services.files.sources import SourceFile
    from services.files.tables import read_tables
    from services.spill.budget import budget_of, spill_setup

    for query in queries:
        check_output_names(query)
    if options.executor is not None:
        check_group_executor(options.executor, queries)
    budget_of(options.memory, options.spill, options.spill_dir)
    if options.memory is not None:
        memory_use.choose_arrow_pool()
    given = {f"--out {name}" if several else "--out": path for name, path in results.items()}
    beside = {"--stats": options.stats, "--late": options.late, "--dead-letters": options.dead_letters}
    inputs = {f"--source {n}": path for n, path in paths.items()} | {f"table {n}": path for n, path in rows.items()}
    check_outputs({**given, **beside}, {"the query": str(file)} | inputs)
    files = {stream.name: SourceFile(stream, paths[stream.name]) for stream in everything.streams()}
    tables = read_tables(everything, rows)
    if several:
        _make_folder(options.out)
    sinks = {name: LineSink("--out", path) for name, path in results.items()}
    others = {option: LineSink(option, path) for option, path in beside.items() if path is not None}
    outputs = Outputs([sinks[query.name] for query in queries], others.get("--late"), others.get("--dead-letters"))
    with spill_setup(options.memory, options.spill, options.spill_dir, cleans=True) as spilling:
        with read_progress(files, reports) as shown:
            job = GroupRun(
                queries,
                files,
                outputs,
                epoch_ms=epoch_ms,
                executor=options.executor,
                tables=tables,
                spill=spilling,
                keep_timeline="--stats" in others,
                feedback=feedback,
                progress=shown,
            )
            with ending(job), reported(job, reports):
                engine = job.run()
        counters = engine.statistics()
    with ending(job):
        if "--stats" in others:
            others["--stats"].write(group_stats_json(job.statistics, counters))
        for sink in (*sinks.values(), *others.values()):
            sink.close()
    report(job, counters, "", options)
    if adapt_mode(options.adapt, pinned=True) is not None:
        why = "those of a group of queries are not adapted"
        print(f"weir: --adapt {options.adapt}: the plans stay, since {why}", file=sys.stderr)
    if options.verbose:
        for one in counters.queries:
            how = f"shared, {one.executor}" if one.shared else f"apart, {one.executor} {one.plan}".rstrip()
            print(f"weir: {one.name}: {counted(one.results, 'result')} ({how})", file=sys.stderr)


def _check_one_plan(queries: Sequence[Query], options: RunOptions) -> None:
    """Refuse the options that are about the plan of a single query."""
    given = {"--plan": options.plan, "--migrate": options.migrate}
    refused = [option for option, value in given.items() if value]
    if options.cleanup is not Cleanup.LOCAL:
        refused.append(f"--cleanup {options.cleanup}")
    if not refused:
        return
    if len(queries) == 1:
        raise UsageError(f"{refused[0]} is about the plan of one query, and --executor {options.executor} has none")
    raise UsageError(
        f"{refused[0]} is about the plan of one query, and {options.query} has {len(queries)} queries; pick one with "
        f"--query: {listed([query.name for query in queries])}"
    )


def _results(file: Path, queries: Sequence[Query], out: str) -> dict[str, str]:
    """Where each query's results go, by its name."""
    names = [query.name for query in queries]
    if len(names) == 1:
        return {names[0]: out}
    if out == STDOUT:
        raise UsageError(
            f"{file} has {len(names)} queries: name a folder for their results with --out DIR, or pick one with "
            f"--query: {listed(names)}"
        )
    if Path(out).exists() and not Path(out).is_dir():
        raise UsageError(f"--out {out} is no folder, and each of {len(names)} queries needs a file of its own there")
    return {name: str(Path(out) / f"{name}{SUFFIX}") for name in names}


def _make_folder(path: str) -> None:
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out: cannot create the folder {path}: {error.strerror}") from None
