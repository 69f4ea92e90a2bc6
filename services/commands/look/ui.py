"""`weir ui` and `weir top`: a running query to look at, in a browser or a terminal."""

from __future__ import annotations

import webbrowser
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schemas.errors import UsageError
from services.commands.options.kafka import with_kafka
from services.commands.options.query import Group, QueryArgument, QueryName, group_of
from services.commands.options.registry import with_registry
from services.commands.stopping import stop_event
from services.formats.registry_access import RegistryAccess
from services.process.security import KafkaClients
from services.registry.group_registry import find_group
from services.registry.query_registry import find_query, names_file
from services.ui.options import PageOptions

if TYPE_CHECKING:
    from services.ui.server import PageServer

UI_PORT = 8088
EVERY_S = 1.0


@with_kafka
@with_registry
def ui(
    query: Annotated[
        Path | None,
        typer.Argument(
            envvar="WEIR_QUERY_FILE",
            metavar="[QUERY]",
            help="File with CREATE STREAM and INSERT INTO, or the name of a registered query or group (`weir query`). "
            "Default: all that are registered.",
            show_default=False,
        ),
    ] = None,
    name: QueryName = None,
    group: Group = None,
    port: Annotated[
        int,
        typer.Option("--http-port", envvar="WEIR_UI_PORT", min=0, max=65_535, help="Port of the page; 0: a free one."),
    ] = UI_PORT,
    bind: Annotated[
        str,
        typer.Option(
            "--http-bind",
            envvar="WEIR_UI_BIND",
            metavar="ADDRESS",
            help="Address of the page. Anybody who reaches it sees the query and its last records; it has no password.",
        ),
    ] = "127.0.0.1",
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--http-name",
            envvar="WEIR_UI_NAMES",
            metavar="NAME",
            help="A public host name under which the page is reached; may be repeated. In WEIR_UI_NAMES, separated by "
            "blanks.",
        ),
    ] = None,
    hide_values: Annotated[
        bool,
        typer.Option(
            "--hide-values",
            envvar="WEIR_UI_HIDE_VALUES",
            help="Leave out the values and keys of the last results, late records and dead letters.",
        ),
    ] = False,
    browser: Annotated[
        bool, typer.Option("--open", envvar="WEIR_UI_OPEN", help="Open the page in this machine's browser.")
    ] = False,
    changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes",
            envvar="WEIR_UI_ALLOW_CHANGES",
            help="Let the page change the plan, or add and drop queries of a group. That needs the token in the "
            "address that is printed; whoever has it can do so.",
        ),
    ] = False,
    *,
    clients: KafkaClients,
    access: RegistryAccess,
) -> None:
    """Serve a page that shows a running query: how far it is and what holds it back, plan, rates, tasks, decisions.

    Of a registered group it shows all queries and what they share. Without QUERY there is an overview of all registered
    queries and groups, with a page of each.

    It reads what the workers publish, and changes nothing without --allow-changes. It runs until stopped, beside the
    workers or elsewhere. Exit codes: 0 stopped; 1 the port cannot be opened; 2 the arguments are wrong.
    """
    options = PageOptions(
        bind, port, names or (), hide_values, changes, (str(query), *(("--query", name) if name else ())), access
    )
    with _pages(clients, access, query, name, group, options) as (what, server):
        typer.echo(f"{what}: {server.address}", err=True)
        if browser:
            webbrowser.open(server.address)
        stop_event().wait()


@contextmanager
def _pages(
    clients: KafkaClients,
    access: RegistryAccess,
    query: Path | None,
    name: str | None,
    group: str | None,
    options: PageOptions,
) -> Iterator[tuple[str, PageServer]]:
    """Serve what the arguments name; yields that and the server."""
    from services.ui.cluster import serve_cluster
    from services.ui.serve import serve, serve_group

    if query is None:
        if given := [option for option, value in (("--query", name), ("--group", group)) if value]:
            raise UsageError(f"{given[0]} is about one query: name it")
        with serve_cluster(clients, options) as server:
            yield "registered queries", server
        return
    entry = None if names_file(query) else find_group(clients, str(query))
    bound = find_query(query, name, clients, access) if entry is None else entry.query()
    of = group_of(bound, group)
    with (
        serve(clients, bound, of, options) if entry is None else serve_group(clients, entry.name, of, options)
    ) as server:
        yield bound.name, server


@with_kafka
@with_registry
def top(
    query: QueryArgument,
    name: QueryName = None,
    group: Group = None,
    *,
    clients: KafkaClients,
    access: RegistryAccess,
) -> None:
    """Show a running query in the terminal, anew each second: how far it is, what holds it back, plan, rates, tasks.

    QUERY may also be a registered group: then its queries are listed. Exit codes: 0 stopped with Ctrl-C; 2 the
    arguments are wrong.
    """
    entry = None if names_file(query) else find_group(clients, str(query))
    bound = find_query(query, name, clients, access) if entry is None else entry.query()
    from rich.console import Console
    from rich.live import Live

    from operators.plan.choose import declared_statistics
    from services.ui.terminal import group_screen, query_screen
    from services.ui.watch.follow import QueryFollower
    from services.ui.watch.live import LiveQuery

    expected, stopped, live = declared_statistics(bound), stop_event(), LiveQuery(bound.name)
    with (
        closing(QueryFollower(clients, group_of(bound, group), live).start()),
        Live(console=Console(), screen=True, auto_refresh=False) as shown,
    ):
        while not stopped.wait(EVERY_S):
            snapshot = live.snapshot()
            drawn = query_screen(bound, snapshot, expected) if entry is None else group_screen(snapshot)
            shown.update(drawn, refresh=True)
