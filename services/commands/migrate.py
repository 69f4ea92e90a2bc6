"""`weir migrate`: changes the plan of a running query."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from operators.plan.plan import check_plan, parse_plan
from schemas.durations import parse_duration
from schemas.errors import UsageError
from schemas.messages.control import Done
from schemas.timestamps import format_progress, parse_event_time
from services.commands.options.kafka import with_kafka
from services.commands.options.query import Group, Prefer, Preference, QueryArgument, QueryName, group_of
from services.commands.options.registry import with_registry
from services.control.plan_requests import MigrationProgress, PlanRequest
from services.formats.registry_access import RegistryAccess
from services.process.security import KafkaClients
from services.process.settings import EXECUTOR
from services.registry.query_registry import find_query

INTERRUPTED = 130
REFUSED = 1


@with_kafka
@with_registry
def migrate(
    query: QueryArgument,
    plan: Annotated[
        str,
        typer.Option(envvar="WEIR_PLAN", metavar="PLAN", help="The new join tree, such as '((A B) C)'."),
    ],
    strategy: Annotated[
        str,
        typer.Option(
            envvar="WEIR_STRATEGY",
            metavar="NAME",
            help="Migration strategy; `auto` chooses by the query's statistics at that time.",
        ),
    ] = "auto",
    prefer: Prefer = Preference.WORK,
    at: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_AT",
            metavar="TIME",
            help="Event time of the change, in ms or ISO 8601; later where tasks have passed it. Default: at once.",
        ),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            envvar="WEIR_MIGRATE_WAIT",
            help="Return when every task runs the new plan alone. Default: when the cut is fixed.",
        ),
    ] = False,
    timeout: Annotated[
        str,
        typer.Option(
            envvar="WEIR_TIMEOUT",
            metavar="DURATION",
            help="How long the tasks may take to agree; a plan that is not agreed on is withdrawn.",
        ),
    ] = "10s",
    name: QueryName = None,
    group: Group = None,
    *,
    clients: KafkaClients,
    access: RegistryAccess,
) -> None:
    """Change the plan of a running query; its results and their order stay the same.

    Every task changes at the same event time, the cut, which `weir coordinator` fixes. An agreed change takes place
    whatever dies: Ctrl-C only stops watching. Exit codes: 0 agreed, with --wait done; 1 withdrawn, or no coordinator
    answers; 2 the arguments are wrong; 130 interrupted.
    """
    bound = find_query(query, name, clients, access)
    tree = parse_plan(plan, bound)
    check_plan(tree, bound)

    # Imported here: the engine takes a second, which a wrong plan need not wait for.
    from operators.migration.strategies import check_strategy

    try:
        check_strategy(strategy, EXECUTOR, bound)
    except UsageError as error:
        raise UsageError(f"--strategy: {error}") from None
    timeout_ms = parse_duration(timeout)
    if timeout_ms < 100:
        raise UsageError(f"--timeout must be at least 100ms, got {timeout!r}")
    event_time = None if at is None else _event_time(at)
    console = Console(stderr=True)
    with console.status("looking for the coordinator") as status:
        request = PlanRequest(bound, clients, group_of(bound, group), lambda p: status.update(_stage(p, wait)))
        try:
            progress = request.run(str(tree), strategy, prefer=prefer, at=event_time, timeout_ms=timeout_ms, wait=wait)
        except KeyboardInterrupt:
            print("weir: stopped watching; the requested plan change continues", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None
    change = progress.change
    assert change is not None
    typer.echo(f"plan {change.version}: {change.plan} by {change.strategy}, from {format_progress(change.cut)} on")
    for started in progress.started:
        if started.why:
            typer.echo(f"task {started.task}: {started.strategy}: {started.why}")
    for done in progress.done:
        typer.echo(_line(done))
    if any(done.error for done in progress.done):
        raise typer.Exit(REFUSED)


def _event_time(text: str) -> int:
    try:
        return parse_event_time(text)
    except ValueError as error:
        raise UsageError(f"--at: {error}") from None


def _stage(progress: MigrationProgress, wait: bool) -> str:
    """The current stage of the change, for a terminal."""
    if progress.change is None:
        if not progress.answered:
            return "waiting for the coordinator and the tasks"
        return f"{progress.answered} of {progress.tasks} tasks have answered"
    where = f"cut at {format_progress(progress.change.cut)}"
    if not wait:
        return where
    return f"{where}: {len(progress.started)} of {progress.tasks} tasks changed, {len(progress.done)} done"


def _line(done: Done) -> str:
    """One task's report."""
    if done.error:
        return f"task {done.task}: kept its plan: {done.error}"
    if done.restored:
        return f"task {done.task}: restarted in between, runs the new plan"
    facts = [f"longest silence {done.longest_silence_s * 1000:.0f} ms", f"{done.peak_extra_tuples} tuples more at most"]
    if done.began_at is not None and done.finished_at is not None:
        facts.insert(0, f"changed at {format_progress(done.began_at)}, done at {format_progress(done.finished_at)}")
    if done.first_result_s is not None:
        facts.append(f"first result after {done.first_result_s * 1000:.0f} ms")
    return f"task {done.task}: {', '.join(facts)}"
