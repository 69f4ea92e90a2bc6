"""`weir explain`: shows the plan of a query as text or as a page; with --analyze also what it does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from operators.plan.plan import parse_plan
from schemas import refusals
from schemas.errors import UsageError, listed
from schemas.query import Query
from schemas.timestamps import format_progress
from services.commands.options.kafka import with_kafka
from services.commands.options.query import Group, QueryArgument, TableFiles, group_of
from services.commands.options.registry import with_registry
from services.commands.run.options import ExecutorChoice
from services.files.query_files import read_queries, source_paths, table_paths
from services.formats.registry_access import RegistryAccess
from services.process.security import KafkaClients
from services.registry.query_registry import find_query, names_file

if TYPE_CHECKING:
    from operators.autopilot.adaptation import Adaptation


DECISIONS = 5
"""So many of the latest decisions about the plan are shown."""


@with_kafka
@with_registry
def explain(
    query: QueryArgument,
    plan: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_PLAN",
            metavar="PLAN",
            help="Join tree over the aliases, such as '((A B) C)'. Default: chosen.",
        ),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--source",
            metavar="NAME=PATH",
            envvar="WEIR_SOURCES",
            help="File of a stream: its first records give the statistics that are not declared. With --analyze all "
            "are needed.",
        ),
    ] = None,
    table: TableFiles = None,
    analyze: Annotated[
        bool,
        typer.Option(
            "--analyze",
            envvar="WEIR_ANALYZE",
            help="Show what every operator does, beside the expected figures: in the query as it runs on Kafka, or "
            "with --source in a run over files whose results are dropped.",
        ),
    ] = False,
    executor: Annotated[
        ExecutorChoice,
        typer.Option(envvar="WEIR_EXECUTOR", help="With --analyze over files: how the plan is executed."),
    ] = ExecutorChoice.XJOIN,
    task: Annotated[
        int | None,
        typer.Option(
            min=0,
            envvar="WEIR_TASK",
            metavar="NUMBER",
            help="With --analyze: this task only. Default: the sum of all.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[
        bool,
        typer.Option("--json", envvar="WEIR_JSON", help="With --analyze: all of it as one JSON object, for machines."),
    ] = False,
    html: Annotated[
        str | None,
        typer.Option(
            "--html",
            envvar="WEIR_HTML",
            metavar="FILE",
            help="Write all of it to a file, as a page that can be mailed and opened from disk, and print the file's "
            "path. It loads nothing.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--query",
            envvar="WEIR_QUERY",
            metavar="NAME",
            help="Which query, by its topic, if the file has several.",
        ),
    ] = None,
    group: Group = None,
    *,
    clients: KafkaClients,
    access: RegistryAccess,
) -> None:
    """Print the plan of a query: joins, keys, where each predicate acts, windows, expected sizes.

    Of a file with several queries: which share an operator, their inputs, and the predicates that they share.

    With --analyze, the measured figures: rates, selectivities, sizes and completeness of states, per operator; the
    progress of plan changes; a line per task; and the latest decisions of `weir worker --adapt` about the plan.

    With --html, the same as a page in one file: the plan is drawn, and a selected node shows its figures.
    """
    for option, given in (("--json", json), ("--task", task is not None)):
        if given and not analyze:
            raise UsageError(f"{option} has no effect without --analyze")
    if json and html is not None:
        raise UsageError("--html and --json are two forms of the same: give one of them")
    if analyze and executor in (ExecutorChoice.JUGGLER, ExecutorChoice.APART):
        raise UsageError(f"--executor {executor}: --analyze does not show shared operators; omit --analyze")
    if name is None and names_file(query):
        queries = read_queries(query, None, access)
        if len(queries) > 1:
            single = {"--analyze": analyze, "--plan": plan, "--source": source, "--html": html}
            for option in (option for option, value in single.items() if value):
                names = listed([one.name for one in queries])
                raise UsageError(f"{option} is about one query, and {query} has {len(queries)}: --query of {names}")
            typer.echo(_explain_queries(queries))
            return
    running = analyze and not source
    if task is not None and not running:
        raise UsageError("--task has no effect over files: a run over files is one task")
    if running and plan is not None:
        raise UsageError("--plan: a query that runs has a plan already; `weir migrate` changes it")
    bound = find_query(query, name, clients, access)
    tree = parse_plan(plan, bound) if plan is not None else None
    paths = source_paths(bound, source or [], complete=analyze and not running)
    rows = table_paths(bound, query, table or [])

    # Imported here: the engine and Arrow take most of a second, which a wrong argument need not wait for.
    import orjson

    from operators.explain.analyze import Analysis, analyses
    from operators.explain.explain import explain as explained
    from operators.plan.choose import choose_plan, declared_statistics, sample_statistics
    from services.files.sinks import check_outputs
    from services.files.sources import SourceFile
    from services.files.tables import Tables, read_tables

    inputs = {f"--source {one}": path for one, path in paths.items()} | {f"table {n}": path for n, path in rows.items()}
    check_outputs({"--html": html}, inputs | ({"the query": str(query)} if names_file(query) else {}))
    # Where nothing is run, a table that is not there yet is only of unknown size.
    there = (analyze and not running) or all(Path(path).exists() for path in rows.values())
    tables = read_tables(bound, rows) if there else Tables()
    files = {stream.name: SourceFile(stream, paths[stream.name]) for stream in bound.streams() if stream.name in paths}
    samples = {}
    for stream, file in files.items():
        if analyze and file.live:
            continue  # a pipe can be read only once, and all of it is wanted
        block = next(file.blocks(), None)
        files[stream] = SourceFile(file.stream, file.name) if analyze else file
        if block is not None:
            samples[stream] = block.decoded.batch
    statistics = declared_statistics(bound, tables.batches)
    if samples:
        statistics = sample_statistics(bound, {**samples, **tables.batches})
    found: list[Analysis]
    missing: list[str] = []
    if not analyze:
        chosen = tree or choose_plan(bound, statistics)
        if html is None:
            typer.echo(explained(bound, chosen, statistics))
        else:
            from services.ui.documents.one_file import expected

            _write_page(html, expected(bound, chosen, statistics))
        return
    if running:
        from services.control.observations import read_observations

        observed, tasks = read_observations(clients, group_of(bound, group))
        known = [one.task for one in observed]
        missing = [f"task {k}: has reported nothing for a while" for k in range(tasks) if k not in known]
        if task is not None:
            observed = [one for one in observed if one.task == task]
            if not observed:
                raise UsageError(f"--task {task}: the tasks that run are {', '.join(map(str, known))}")
            missing = []
        found = analyses(bound, observed, statistics)
    else:
        from services.batch.analysis import analyze_files

        refusals.check(bound, refusals.executor(executor))
        found = [analyze_files(bound, tree or choose_plan(bound, statistics), files, tables, statistics, executor)]
    decisions = _decisions(clients, group_of(bound, group)) if running else {}
    if html is not None:
        from services.ui.documents.one_file import measured

        weighed = {number: one.document() for number, one in decisions.items()}
        _write_page(html, measured(bound, found, weighed, missing))
        return
    if json:
        document = {"analyses": [one.document() for one in found], "silent_tasks": missing}
        if running:
            document["adaptations"] = [{"number": n, **one.document()} for n, one in decisions.items()]
        typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
        return
    for number, one in enumerate(found):
        typer.echo("\n" * (number > 0) + "\n".join(one.lines()))
    for line in missing:
        typer.echo(line)
    for number, decision in [*decisions.items()][-DECISIONS:]:
        typer.echo(f"decision {number}, {format_progress(decision.at)}: {decision.line()}")


def _write_page(path: str, document: dict[str, Any]) -> None:
    """Write the page of a document, and print where it is.

    Raises:
        UsageError: the file cannot be created.
        StateError: it cannot be written.
    """
    from services.files.sinks import STDOUT, LineSink
    from services.ui.documents.one_file import page_file

    page = page_file(document).encode()
    sink = LineSink("--html", path)
    try:
        sink.write(page)
    finally:
        sink.close()
    if path != STDOUT:
        typer.echo(path)


def _decisions(clients: KafkaClients, group: str) -> dict[int, Adaptation]:
    """The changes of plans that workers of a group have weighed, by number; empty where they do not adapt the plan."""
    from services.control.decisions import adaptation_of, read_decisions
    from services.kafka.topics import ControlTopics, TopicAdmin

    if not TopicAdmin(clients).exists(ControlTopics.of(group).decisions):
        return {}
    return {number: adaptation_of(message) for number, message in read_decisions(clients, group).items()}


def _explain_queries(queries: Sequence[Query]) -> str:
    """What `weir run` makes of several queries: their shared operator, and the plans of those that run standalone."""
    from operators.explain.explain import explain
    from operators.groups.explain import explain_group
    from operators.groups.sharing import sharing
    from operators.plan.choose import choose_plan, declared_statistics
    from schemas.groups import query_group

    shared = sharing(queries, None)
    pieces = [explain_group(query_group(shared))] if shared else []
    for query in queries:
        if query not in shared:
            statistics = declared_statistics(query)
            pieces.append(explain(query, choose_plan(query, statistics), statistics))
    return "\n\n".join(pieces)
