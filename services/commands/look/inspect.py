"""`weir inspect`: looks at the records of a topic and proposes its CREATE STREAM."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from services.commands.options.kafka import with_kafka
from services.commands.options.registry import with_registry
from services.formats.registry_access import RegistryAccess
from services.process.security import KafkaClients

REGISTRY_S = 30.0
"""How long a schema registry may take to answer."""


@with_kafka
@with_registry
def inspect(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")],
    records: Annotated[
        int,
        typer.Option(min=1, envvar="WEIR_RECORDS", help="How many of its last records to look at."),
    ] = 10_000,
    *,
    clients: KafkaClients,
    access: RegistryAccess,
) -> None:
    """Look at the last records of a topic and print a CREATE STREAM for it, ready to paste: format, columns (also of
    nested objects), event time, disorder, rate, distinct values.

    Exit codes: 0 printed; 2 the arguments are wrong, or there are no records; 1 anything else.
    """
    # Imported here: Arrow takes a while, which a wrong argument need not wait for.
    from services.formats.decoders import Decoders
    from services.formats.proposal import propose
    from services.formats.sampling import sample_of
    from services.formats.schema_kinds import KINDS
    from services.formats.schema_registry import SchemaRegistry

    registries = None
    if (url := access.url) is not None:
        registries = {format: SchemaRegistry(url, access, kind, REGISTRY_S) for format, kind in KINDS.items()}
    with Console(stderr=True).status(f"reading {topic}"):
        sample = sample_of(clients, topic, records)
        text = propose(sample, Decoders(access=access, patience_s=REGISTRY_S), registries)
    typer.echo(text)
