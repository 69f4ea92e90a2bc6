"""`weir ui` and `weir top`: a running query to look at, in a browser or a terminal."""

from __future__ import annotations

import signal
import threading
import webbrowser
from typing import Annotated

import typer

from services.commands.kafka_options import with_kafka
from services.commands.query_options import Group, QueryArgument, QueryName, group_of
from services.process.security import KafkaClients
from services.registry.query_registry import find_query

UI_PORT = 8088
EVERY_S = 1.0


@with_kafka
def ui(
    query: QueryArgument,
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
            help="Address of the page. Anybody who reaches it sees the query; it has no password.",
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
    browser: Annotated[
        bool, typer.Option("--open", envvar="WEIR_UI_OPEN", help="Open the page in this machine's browser.")
    ] = False,
    *,
    clients: KafkaClients,
) -> None:
    """Serve a page that shows a running query: how far it is and what holds it back, plan, rates, tasks, decisions.

    It reads what the workers publish and changes nothing. It runs until stopped, beside the workers or elsewhere. Exit
    codes: 0 stopped; 1 the port cannot be opened; 2 the arguments are wrong.
    """
    bound = find_query(query, name, clients)
    from services.ui.serve import serve

    with serve(clients, bound, group_of(bound, group), bind, port, names or ()) as server:
        typer.echo(f"{bound.name}: {server.address}", err=True)
        if browser:
            webbrowser.open(server.address)
        _stopped().wait()


@with_kafka
def top(
    query: QueryArgument,
    name: QueryName = None,
    group: Group = None,
    *,
    clients: KafkaClients,
) -> None:
    """Show a running query in the terminal, anew each second: how far it is, what holds it back, plan, rates, tasks.

    Exit codes: 0 stopped with Ctrl-C; 2 the arguments are wrong.
    """
    bound = find_query(query, name, clients)
    from rich.console import Console
    from rich.live import Live

    from operators.plan.choose import declared_statistics
    from services.ui.serve import following
    from services.ui.terminal import screen

    expected, stopped = declared_statistics(bound), _stopped()
    with (
        following(clients, bound, group_of(bound, group)) as live,
        Live(console=Console(), screen=True, auto_refresh=False) as shown,
    ):
        while not stopped.wait(EVERY_S):
            shown.update(screen(bound, live.snapshot(), expected), refresh=True)


def _stopped() -> threading.Event:
    """Set by SIGINT or SIGTERM."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: stopped.set())
    return stopped
