"""Makes and serves the page of a running query, or of a group of queries: `serve`, `serve_group`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager

from operators.plan.choose import declared_statistics
from schemas.errors import UsageError
from schemas.query import Query
from services.process.security import KafkaClients
from services.ui.changes import group_changes, plan_changes
from services.ui.documents.group_picture import explained, group_picture
from services.ui.documents.picture import Document, NodeWords, picture
from services.ui.documents.rows import Rows
from services.ui.documents.what_if import WhatIf
from services.ui.options import LOOPBACK, PageOptions
from services.ui.server import Answer, Page, PageServer
from services.ui.watch.follow import QueryFollower
from services.ui.watch.live import LiveQuery, Snapshot
from services.ui.watch.members import GroupQueries


@contextmanager
def serve(clients: KafkaClients, query: Query, group: str, options: PageOptions = LOOPBACK) -> Iterator[PageServer]:
    """Serve the page of a query while the context lasts.

    Args:
        group: the consumer group of its workers.

    Raises:
        WeirError: the port cannot be opened.
    """
    with (
        query_page(clients, query, group, options) as page,
        serve_page(page, options) as server,
    ):
        yield server


@contextmanager
def serve_group(clients: KafkaClients, name: str, group: str, options: PageOptions) -> Iterator[PageServer]:
    """Serve the page of a group of queries while the context lasts.

    Args:
        name: of the registered group.
        group: as in `serve`.

    Raises:
        WeirError: the port cannot be opened.
    """
    with group_page(clients, name, group, options) as page, serve_page(page, options) as server:
        yield server


def serve_page(shown: Page, options: PageOptions) -> PageServer:
    """Serve one page.

    Raises:
        WeirError: the port cannot be opened.
    """
    return PageServer(options.bind, options.port, shown, options.names, changes=options.changes)


@contextmanager
def query_page(clients: KafkaClients, query: Query, group: str, options: PageOptions) -> Iterator[Page]:
    """Follow a query while the context lasts.

    Args:
        group: the consumer group of its workers.
    """
    expected, live = declared_statistics(query), LiveQuery(query.name)
    with closing(QueryFollower(clients, group, live).start()):
        rows = Rows(clients, query.name, lambda: {query.name: query}, options.hide_values, options.access)
        plans = WhatIf(query, live, [*options.query, "--bootstrap", clients.bootstrap, "--group", group])
        answers = {"rows": rows.document, "what-if": plans.answer}
        changes = plan_changes(clients, query, group)
        words = NodeWords(query)
        yield page_of(live, lambda snapshot: picture(query, snapshot, expected, words), answers, changes)


@contextmanager
def group_page(clients: KafkaClients, name: str, group: str, options: PageOptions) -> Iterator[Page]:
    """Follow a group of queries while the context lasts.

    Args:
        name: of the registered group.
        group: the consumer group of its workers.
    """
    live = LiveQuery(name)
    with (
        closing(GroupQueries(clients, name).start()) as members,
        closing(QueryFollower(clients, group, live).start()),
    ):

        def operator(given: Mapping[str, str]) -> Document:
            return {"text": explained(given.get("query", ""), members.queries, live.snapshot())}

        rows = Rows(clients, name, lambda: members.queries, options.hide_values, options.access)
        answers = {"operator": operator, "rows": rows.document}
        changes = group_changes(clients, name)
        yield page_of(live, lambda snapshot: group_picture(name, members.queries, snapshot), answers, changes)


def page_of(
    live: LiveQuery,
    drawn: Callable[[Snapshot], Document],
    answers: Mapping[str, Answer],
    changes: Mapping[str, Answer],
) -> Page:
    """Make the page of what is known of a query.

    Args:
        drawn: makes the document that the page draws.
        answers, changes: as in `Page`.
    """

    def past(given: Mapping[str, str]) -> Document:
        at = given.get("ms", "")
        if not at.isdecimal():
            raise UsageError(f"past?ms=...: give a time in milliseconds since 1970, not {at!r}")
        return drawn(live.past(int(at)))

    return Page(lambda: drawn(live.snapshot()), live.timeline, {"past": past, **answers}, changes)
