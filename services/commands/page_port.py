"""The page of the whole query, served by a process that runs or coordinates it: `page_at`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Annotated

import typer

from schemas.query import Query
from services.process.security import KafkaClients

UiPort = Annotated[
    int,
    typer.Option(
        envvar="WEIR_WORKER_UI_PORT",
        min=0,
        max=65535,
        help="TCP port of the page that `weir ui --hide-values` serves, about the whole query; 0 serves none.",
    ),
]


def page_at(
    bind: str, port: int, clients: KafkaClients, query: Query, group: str, *, of_group: bool = False
) -> AbstractContextManager[object]:
    """Serve the page while the context lasts, if it has a port.

    Args:
        query: the query, or of a registered group what stands for it.
        group: the consumer group of the workers.
        of_group: whether it is the page of a registered group.

    Raises:
        WeirError: the port cannot be opened.
    """
    if not port:
        return nullcontext()
    from services.ui.options import PageOptions
    from services.ui.serve import serve, serve_group

    options = PageOptions(bind, port, hide_values=True)
    return serve_group(clients, query.name, group, options) if of_group else serve(clients, query, group, options)
