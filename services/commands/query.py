"""`weir query`: registers query files under names, which commands on every machine can use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from schemas.errors import BrokerError, UsageError
from schemas.language.program import parse_program
from schemas.messages.control import MemberRecord, RegisteredQuery
from schemas.timestamps import format_progress
from services.commands.options.kafka import with_kafka
from services.commands.options.query import Group, QueryName, Replication
from services.commands.options.registry import with_registry
from services.files.query_files import pick_query, query_text
from services.formats.registry_access import RegistryAccess
from services.kafka.topics import ControlTopics, TopicAdmin
from services.process.security import KafkaClients
from services.registry import query_registry as registry
from services.registry.group_registry import (
    GroupEntry,
    drop_from_group,
    find_group,
    registry_groups,
)
from services.registry.member_log import read_members

app = typer.Typer(
    no_args_is_help=True,
    help="Register query files under names, in Kafka: worker, coordinator and migrate take such a name in place of a "
    "file. With --group, a name stands for several queries that a worker runs together. Queries can be added to a "
    "group and dropped while it runs.",
)

_OF_TOPICS = re.compile(r"[A-Za-z0-9_-]{1,240}")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the query: letters, digits, _ and -.")]


@app.command()
@with_kafka
@with_registry
def register(
    name: Name,
    query: Annotated[Path, typer.Argument(metavar="QUERY.sql", help="File with CREATE STREAM and INSERT INTO.")],
    pick: QueryName = None,
    group: Annotated[
        bool,
        typer.Option(
            "--group",
            help="NAME is a group: all queries of the file run in it together. Its other queries stay; one with the "
            "same INSERT INTO is replaced. A running worker starts the new queries at once.",
        ),
    ] = False,
    from_now: Annotated[
        bool,
        typer.Option(
            "--from-now",
            help="With --group: a new query sees only tuples from its beginning on. Default: also those that the "
            "group's windows hold then.",
        ),
    ] = False,
    replication: Replication = -1,
    *,
    clients: KafkaClients,
    access: RegistryAccess,
) -> None:
    """Register a query file under a name, in place of what the name stood for; with --group, add to the group."""
    if not name.replace("_", "").replace("-", "").isalnum():
        raise UsageError(f"a query's name has letters, digits, _ and - only, got {name!r}")
    if group and not _OF_TOPICS.fullmatch(name):
        raise UsageError(
            f"a group's name begins those of topics, so it has at most 240 of a-z, A-Z, 0-9, _ and -, got {name!r}"
        )
    if from_now and not group:
        raise UsageError("--from-now is for queries that join a group: add --group")
    if group:
        _register_in_group(clients, access, name, query, pick, from_now=from_now, replication=replication)
        return
    if find_group(clients, name) is not None:
        raise UsageError(f"{name!r} is a group of queries: add --group, or take another name")
    text = query_text(query, access)
    bound = pick_query(text, pick, str(query))
    registry.register(clients, RegisteredQuery(name=name, text=text, pick=pick), replication)
    typer.echo(f"registered {name}: {_shown(bound.name)}")


@app.command("list")
@with_kafka
def list_(group: Group = None, *, clients: KafkaClients) -> None:
    """List the registered queries, one per line. Each query of a group has a line: since when it runs, or why not."""
    for name, found in registry.registered(clients).items():
        try:
            bound = pick_query(found.text, found.pick, f"registered query {name}")
        except UsageError as error:  # registered by another version
            typer.echo(f"{name}: cannot be read: {str(error).splitlines()[0]}")
            continue
        streams = ", ".join(stream.topic for stream in bound.streams())
        typer.echo(f"{name}: {streams} to {_shown(bound.sink)}")
    for name, entry in registry_groups(clients).items():
        typer.echo(f"{name}: a group of {len(entry.queries)} over {', '.join(entry.declared.streams)}")
        for line in _members(clients, entry, group or f"weir-{name}"):
            typer.echo(f"  {line}")


@app.command()
@with_kafka
def drop(name: Name, pick: QueryName = None, *, clients: KafkaClients) -> None:
    """Remove a name. Running workers keep its query, but end the queries of a group (with --query: only that one)."""
    entry = find_group(clients, name)
    if entry is None:
        if pick is not None:
            raise UsageError(f"--query {pick}: no group is registered as {name!r} on {clients.bootstrap}")
        registry.drop(clients, name)
    else:
        drop_from_group(clients, entry, pick)
    typer.echo(f"dropped {name}" if pick is None else f"dropped {pick} of {name}")


def _register_in_group(
    clients: KafkaClients,
    access: RegistryAccess,
    name: str,
    file: Path,
    pick: str | None,
    *,
    from_now: bool,
    replication: int,
) -> None:
    if name in registry.registered(clients):
        raise UsageError(f"{name!r} is a query, not a group: take another name, or `weir query drop {name}`")
    entry = find_group(clients, name)
    known = {}
    if entry is not None:
        known = {one.name: (*one.of_records().fields, *one.arrays) for one in entry.query().streams()}
    text = query_text(file, access, known)
    if pick is not None or not parse_program(text).queries:
        pick_query(text, pick, str(file))  # says what is wrong with the file
    # Imported here: it checks output as workers do, and kernels take a second.
    from services.registry.group_registration import register_in_group

    begin = register_in_group(clients, name, text, pick, from_now=from_now, replication=replication)
    typer.echo(f"registered in group {name}: {', '.join(begin) or 'nothing new'}")


def _members(clients: KafkaClients, entry: GroupEntry, group: str) -> list[str]:
    """A line per query of a group: since when it runs, or why it does not."""
    topic = ControlTopics.of(group).members
    try:
        records = read_members(clients, topic) if TopicAdmin(clients).exists(topic) else []
    except BrokerError as error:  # other groups may be readable
        return [f"{name}: {error}" for name in entry.queries]
    lines = [f"{name}: {_state([m for m in records if m.id == query.id])}" for name, query in entry.queries.items()]
    ended = [m for m in records if m.ended is not None and m.name not in entry.queries]
    return [*lines, *(f"{m.name}: ended {format_progress(m.ended or 0)}" for m in ended)]


def _state(tasks: list[MemberRecord]) -> str:
    if not tasks:
        return "not begun: does a worker run?"
    first = tasks[0]
    if first.error:
        return f"refused: {first.error}"
    partly = ", ".join(f"{alias} from {format_progress(ts)}" for alias, ts in first.since.items())
    return f"runs since {format_progress(first.began or 0)}" + (f", sees {partly}" if partly else "")


def _shown(sink: str | None) -> str:
    return "no topic (it has no INSERT INTO)" if sink is None else f"topic {sink}"
