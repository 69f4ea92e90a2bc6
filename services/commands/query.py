"""`weir query`: query files under names that all machines know."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from schemas.control import RegisteredQuery
from schemas.errors import UsageError
from services import registry
from services.commands.kafka_options import with_kafka
from services.commands.query_options import QueryName, Replication
from services.query_files import pick_query, read_query
from services.security import KafkaClients

app = typer.Typer(
    no_args_is_help=True,
    help="Query files under names, kept in Kafka: worker, coordinator and migrate take such a name for a file.",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the query: letters, digits, _ and -.")]


@app.command()
@with_kafka
def register(
    name: Name,
    query: Annotated[Path, typer.Argument(metavar="QUERY.sql", help="File with CREATE STREAM and INSERT INTO.")],
    pick: QueryName = None,
    replication: Replication = -1,
    *,
    clients: KafkaClients,
) -> None:
    """Register a query file under a name, in place of what the name stood for."""
    if not name.replace("_", "").replace("-", "").isalnum():
        raise UsageError(f"a query's name has letters, digits, _ and - only, got {name!r}")
    bound = read_query(query, pick)
    text = query.read_text("utf-8-sig")
    registry.register(clients, RegisteredQuery(name=name, text=text, pick=pick), replication or -1)
    typer.echo(f"registered {name}: {_shown(bound.name)}")


@app.command("list")
@with_kafka
def list_(*, clients: KafkaClients) -> None:
    """List the registered queries, one per line."""
    for name, found in registry.registered(clients).items():
        try:
            bound = pick_query(found.text, found.pick, f"registered query {name}")
        except UsageError as error:  # registered by another version
            typer.echo(f"{name}: cannot be read: {str(error).splitlines()[0]}")
            continue
        streams = ", ".join(stream.topic for stream in bound.streams())
        typer.echo(f"{name}: {streams} to {_shown(bound.sink)}")


@app.command()
@with_kafka
def drop(name: Name, *, clients: KafkaClients) -> None:
    """Forget a name; workers that run its query go on."""
    registry.drop(clients, name)
    typer.echo(f"dropped {name}")


def _shown(sink: str | None) -> str:
    return "no topic (it has no INSERT INTO)" if sink is None else f"topic {sink}"
