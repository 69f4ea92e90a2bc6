"""Registers queries in a group, after it has checked that the group's workers can run them.

`weir query register --group` calls `register_in_group`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence

from msgspec import UNSET

from schemas import refusals
from schemas.codecs.encode import check_output_names
from schemas.errors import UsageError, listed
from schemas.groups import streams_of
from schemas.language.program import parse_program
from schemas.messages.control import RegisteredGroup, RegisteredQuery
from schemas.query import ColumnRef, Query, Stream
from services.files.query_files import pick_query
from services.kafka.topics import TopicAdmin
from services.process.security import KafkaClients
from services.registry.group_registry import GroupEntry, find_group, partition_columns
from services.registry.query_registry import write


def register_in_group(
    clients: KafkaClients, name: str, text: str, pick: str | None, *, from_now: bool, replication: int
) -> tuple[str, ...]:
    """Register the queries of a file, or the picked query; creates the group if it does not exist.

    A query that is already registered with the same meaning stays as it is.

    Args:
        pick: name of the query to register; None for all.
        from_now: the queries ignore tuples from before their start.

    Returns:
        the names of the newly registered queries.

    Raises:
        QueryError, UsageError: the group cannot run one of them; then none is registered.
        BrokerError: Kafka does not accept them.
    """
    TopicAdmin(clients).registry(replication)
    entry = find_group(clients, name)
    queries = parse_program(text).queries if pick is None else (pick_query(text, pick, "the file"),)
    if not queries:
        raise UsageError("the file declares streams but has no INSERT INTO")
    names = [query.name for query in queries]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two queries of the file write to {twice!r}; each query of a group needs a topic of its own")
    streams = streams_of(queries if entry is None else [entry.query()])
    bound = {} if entry is None else {name: _bound(query) for name, query in entry.queries.items()}
    registered = {name: query for name, query in bound.items() if query is not None}
    added = [query for query in queries if registered.get(query.name) != query]
    check_group_queries(name, streams, {**registered, **{query.name: query for query in queries}}.values())
    # A worker reads the whole file, whichever of its queries are registered.
    split = partition_columns(parse_program(text).queries) if entry is None else _split_of(entry)
    check_partitions(name, split, queries)
    records: dict[str, RegisteredQuery | RegisteredGroup | None] = {}
    if entry is None:
        records[f"{name}/"] = RegisteredGroup(
            name=name, text=text, streams=tuple(s.name for s in streams), partitioned=bool(split) or UNSET
        )
    for query in added:
        records[f"{name}/{query.name}"] = RegisteredQuery(
            name=query.name, text=text, pick=query.name, group=name, from_now=from_now, id=uuid.uuid4().hex[:12]
        )
    write(clients, records)
    return tuple(query.name for query in added)


def check_group_queries(name: str, streams: Sequence[Stream], queries: Iterable[Query]) -> None:
    """Check that queries can run together as a service.

    Args:
        streams: the streams that the group reads.

    Raises:
        UsageError: they cannot; the message names the query and the reason.
    """
    known = {stream.name: stream for stream in streams}
    queries = list(queries)
    writers = {query.sink: query.name for query in queries}
    for query in queries:
        if query.sink is None:
            raise UsageError("a query of a group needs to know where results go: begin it with INSERT INTO 'topic'")
        check_output_names(query)
        refusals.check(query, refusals.GROUP)
        for stream in query.streams():
            if known.get(stream.name) != stream:
                how = "declares otherwise than" if stream.name in known else "reads, and that is not read by"
                raise UsageError(
                    f"{stream}, which query {query.name!r} {how} group {name!r}: a group reads what the queries read "
                    f"that it was made with, {listed(list(known))}; make another group"
                )
            if stream.topic in writers:
                raise UsageError(
                    f"query {query.name!r} reads what query {writers[stream.topic]!r} of the same group writes, topic "
                    f"{stream.topic!r}; put them into two groups"
                )


def _split_of(entry: GroupEntry) -> dict[str, ColumnRef]:
    return {column.alias: column for column in entry.query().partition_by}


def check_partitions(name: str, split: Mapping[str, ColumnRef], queries: Iterable[Query]) -> None:
    """Check that the tasks of a group that is split by partitions have all that a query joins.

    Args:
        split: the column that PARTITION BY names of each stream; empty for a group that is one task.

    Raises:
        UsageError: they have not; the message names the query.
    """
    for query in queries if split else ():
        own = {stream: column.name for stream, column in partition_columns([query]).items()}
        # The language has seen to it that tables in topics are partitioned alike.
        wrong = next((s for s in query.joined_streams() if own.get(s.name) != split[s.name].name), None)
        if wrong is not None:
            raise UsageError(
                f"group {name!r} has a task per partition, by column {split[wrong.name].name} of {wrong}: end query "
                f"{query.name!r} with a PARTITION BY that names it, or make another group"
            )


def _bound(query: RegisteredQuery) -> Query | None:
    """The bound query; None where this version cannot read its text."""
    try:
        return next((parsed for parsed in parse_program(query.text).queries if parsed.name == query.pick), None)
    except UsageError:
        return None
