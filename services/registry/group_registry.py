"""Registered groups: queries that a worker runs together, and that users add and drop while it runs.

A group is created with its first file. This fixes the streams that its queries may read, since its workers subscribe to
their topics. It also fixes how the group is split: if all queries of the file have PARTITION BY, and agree on the
column of each topic, the group has a task per partition, and queries that are added later must agree, too.

A sink identifies a query: registering another query with the same sink replaces the former one. The registry states
which queries should run. Which queries a task actually runs, and since when, is in the group's own topic
(`services.program.group_members`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from schemas.errors import UsageError, listed
from schemas.language.program import parse_program
from schemas.messages.control import ControlMessage, RegisteredGroup, RegisteredQuery
from schemas.query import ColumnRef, Lookup, Query, Source, Stream, Table, Window
from services.process.security import KafkaClients
from services.registry.query_registry import newest, write


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """A registered group.

    Attributes:
        declared: its own message in the registry.
        queries: its registered queries, by name, sorted.
    """

    declared: RegisteredGroup
    queries: Mapping[str, RegisteredQuery]

    @property
    def name(self) -> str:
        """The group's name."""
        return self.declared.name

    def query(self) -> Query:
        """A pseudo-query whose sources are the streams that the group's queries may read, and all declared tables in
        files; its lookups are the tables in topics."""
        program = parse_program(self.declared.text)
        known = [stream for stream in program.streams if stream.name in self.declared.streams]
        streams = [stream for stream in known if not stream.is_versioned]
        lookups = (Lookup(table.name, table, streams[0].name, ()) for table in known if table.is_versioned)
        read: list[Stream | Table] = [*streams, *program.tables]
        sources = tuple(Source(stream.name, stream, Window("UNBOUNDED")) for stream in read)
        columns: dict[str, ColumnRef] = {}
        if self.declared.partitioned is True:
            columns = partition_columns(program.queries)
        named = tuple(replace(columns[stream.name], alias=stream.name) for stream in streams if columns)
        return Query(self.name, None, sources, (), (), partition_by=named, lookups=tuple(lookups))


def partition_columns(queries: Sequence[Query]) -> dict[str, ColumnRef]:
    """The column that PARTITION BY names of each stream; empty unless all queries have it and agree.

    They agree where each topic has one column: records are in the partition of their key.
    """
    found: dict[str, ColumnRef] = {}
    of_topics: dict[str, str] = {}
    for query in queries:
        if not query.partition_by:
            return {}
        for column in query.partition_by:
            stream = query.source(column.alias).stream
            if isinstance(stream, Stream) and of_topics.setdefault(stream.topic, column.name) != column.name:
                return {}
            found.setdefault(stream.name, column)
    return found if len({column.type for column in found.values()}) == 1 else {}


def find_group(clients: KafkaClients, name: str) -> GroupEntry | None:
    """The group of that name; None if there is none.

    Raises:
        BrokerError: Kafka does not answer.
        StateError: the topic holds something else.
        NewerFormatError: a newer Weir has registered it, or a query of it.
    """
    return groups_of(newest(clients, lambda key: key.startswith(f"{name}/"))).get(name)


def registry_groups(clients: KafkaClients) -> dict[str, GroupEntry]:
    """All groups, by name.

    Raises:
        BrokerError: Kafka does not answer.
        StateError: the topic holds something else.
    """
    return groups_of(newest(clients))


def groups_of(messages: Mapping[str, ControlMessage]) -> dict[str, GroupEntry]:
    """The groups among the newest messages of the registry, by name."""
    return {
        declared.name: GroupEntry(
            declared,
            {
                query.name: query
                for query in messages.values()
                if isinstance(query, RegisteredQuery) and query.group == declared.name
            },
        )
        for declared in messages.values()
        if isinstance(declared, RegisteredGroup)
    }


def drop_from_group(clients: KafkaClients, entry: GroupEntry, pick: str | None) -> None:
    """Remove one query of a group, or all queries and the group itself.

    Raises:
        UsageError: there is no such query.
        BrokerError: Kafka does not answer.
    """
    if pick is not None and pick not in entry.queries:
        raise UsageError(f"group {entry.name!r} has no query {pick!r}, it has {listed(list(entry.queries)) or 'none'}")
    names = list(entry.queries) if pick is None else [pick]
    records: dict[str, RegisteredQuery | RegisteredGroup | None] = {f"{entry.name}/{name}": None for name in names}
    write(clients, records if pick is not None else {**records, f"{entry.name}/": None})
