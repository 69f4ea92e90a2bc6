"""`weir coordinator`: coordinates plan changes among the workers of a query."""

from __future__ import annotations

from typing import Annotated

import typer

from services.commands.options.kafka import with_kafka
from services.commands.options.query import (
    Group,
    LogForm,
    LogFormat,
    LogLeast,
    LogLevel,
    QueryArgument,
    QueryName,
    Replication,
    WaitForTopics,
    group_of,
)
from services.commands.options.registry import with_registry
from services.commands.page_port import UiPort, page_at
from services.commands.stopping import stop_event
from services.formats.registry_access import RegistryAccess
from services.process.logs import set_up_logs
from services.process.security import KafkaClients
from services.registry.query_registry import find_query


@with_kafka
@with_registry
def coordinator(
    query: QueryArgument,
    name: QueryName = None,
    group: Group = None,
    wait: WaitForTopics = None,
    replication: Replication = -1,
    ui_port: UiPort = 0,
    http_bind: Annotated[
        str, typer.Option(envvar="WEIR_HTTP_BIND", metavar="ADDRESS", help="Address that the port of the page binds.")
    ] = "127.0.0.1",
    log_format: LogForm = LogFormat.TEXT,
    log_level: LogLeast = LogLevel.INFO,
    *,
    clients: KafkaClients,
    access: RegistryAccess,
) -> None:
    """Coordinate plan changes (`weir migrate`) among the workers of a query, until stopped.

    It keeps no state: start it anywhere, and several if you like. Without one, workers keep the plan that they have.
    Exit codes: 0 stopped; 2 the query or the arguments are wrong; 1 anything else.
    """
    bound = find_query(query, name, clients, access)
    set_up_logs(log_format, log_level)

    # Imported here: the engine takes a second, which a wrong argument need not wait for.
    from services.control.coordinator import Coordinator, CoordinatorSettings

    stop = stop_event()
    of = group_of(bound, group)
    with page_at(http_bind, ui_port, clients, bound, of):
        Coordinator(bound, CoordinatorSettings(clients, of, wait, replication)).run(stop)
