"""`weir decisions`: which changes of plans a running query has weighed, why, and what came of them."""

from __future__ import annotations

from typing import Annotated

import typer

from schemas.errors import BrokerError
from schemas.timestamps import format_progress
from services.commands.options.kafka import with_kafka
from services.commands.options.query import Group, QueryArgument, QueryName, group_of
from services.commands.options.registry import with_registry
from services.formats.registry_access import RegistryAccess
from services.process.security import KafkaClients
from services.registry.query_registry import find_query


@with_kafka
@with_registry
def decisions(
    query: QueryArgument,
    name: QueryName = None,
    group: Group = None,
    evidence: Annotated[
        bool,
        typer.Option("--evidence", envvar="WEIR_EVIDENCE", help="Show the rates and shares that each rests on."),
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", envvar="WEIR_JSON", help="All of it as one JSON array, for machines.")
    ] = False,
    *,
    clients: KafkaClients,
    access: RegistryAccess,
) -> None:
    """List the changes of plans that `weir worker --adapt` has weighed: when, why, what was expected, what came of it.

    Times are event times. Exit codes: 0 listed; 1 no worker has adapted the query, or Kafka does not answer; 2 the
    arguments are wrong.
    """
    bound = find_query(query, name, clients, access)

    # Imported here: the engine takes a second, which a wrong argument need not wait for.
    import orjson

    from services.control.decisions import adaptation_of, read_decisions
    from services.kafka.topics import ControlTopics, TopicAdmin

    of = group_of(bound, group)
    topic = ControlTopics.of(of).decisions
    if not TopicAdmin(clients).exists(topic):
        raise BrokerError(
            f"no worker of group {of!r} has adapted a plan (topic {topic} is missing): start `weir worker --adapt on`, "
            "or give its --group"
        )
    found = {number: adaptation_of(message) for number, message in read_decisions(clients, of).items()}
    if json:
        documents = [{"number": number, **one.document()} for number, one in found.items()]
        typer.echo(orjson.dumps(documents, option=orjson.OPT_INDENT_2).decode())
        return
    if not found:
        typer.echo("no other plan has been worth a thought yet")
    for number, one in found.items():
        typer.echo(f"{number}. {format_progress(one.at)}: {one.line()}")
        if evidence:
            for known in one.evidence_lines():
                typer.echo(f"   {known}")
