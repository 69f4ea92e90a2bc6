"""Serves the page of a running query: `serve`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from operators.plan.choose import declared_statistics
from schemas.query import Query
from services.process.security import KafkaClients
from services.ui.live import LiveQuery
from services.ui.picture import picture
from services.ui.server import PageServer


@contextmanager
def following(clients: KafkaClients, query: Query, group: str) -> Iterator[LiveQuery]:
    """Follow a query while the context lasts.

    Args:
        group: the consumer group of its workers.
    """
    live = LiveQuery(clients, group, query.name).start()
    try:
        yield live
    finally:
        live.close()


@contextmanager
def serve(
    clients: KafkaClients,
    query: Query,
    group: str,
    bind: str = "127.0.0.1",
    port: int = 0,
    names: Collection[str] = (),
) -> Iterator[PageServer]:
    """Serve the page while the context lasts.

    Args:
        bind, port, names: as in `PageServer`.

    Raises:
        WeirError: the port cannot be opened.
    """
    expected = declared_statistics(query)
    with following(clients, query, group) as live:

        def state() -> dict[str, Any]:
            return picture(query, live.snapshot(), expected)

        with PageServer(bind, port, state, live.timeline, names) as server:
            yield server
