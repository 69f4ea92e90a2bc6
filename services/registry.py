"""Registered queries: whole query files under names, in the compacted topic `weir.queries`.

Every command that takes a query file takes such a name in its place, so that a worker, its coordinator and
`weir migrate` on other machines speak of the same text. Groups of queries are there too: `services.group_registry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import KafkaException, Message, Producer

from schemas.control import ControlMessage, RegisteredGroup, RegisteredQuery, decode_control, encode_control
from schemas.errors import BrokerError, UsageError
from schemas.query import Query
from services.query_files import pick_query, read_query
from services.readback import reading
from services.security import KafkaClients
from services.topics import REGISTRY, TopicAdmin

TIMEOUT_S = 30.0


def find_query(given: Path, pick: str | None, clients: KafkaClients) -> Query:
    """The query of a file, or the registered one of that name where there is no such file.

    Raises:
        UsageError: there is neither, or it holds no query or several.
        QueryError: the text is wrong; shows where.
        BrokerError: Kafka had to be asked and does not answer.
    """
    if given.exists() or given.suffix or len(given.parts) > 1:
        return read_query(given, pick)
    found = registered(clients).get(str(given))
    if found is None:
        raise UsageError(
            f"{str(given)!r} is no file, and no query of that name is registered on {clients.bootstrap}; "
            f"`weir query register {given} QUERY.sql` registers one"
        )
    return pick_query(found.text, pick or found.pick, f"registered query {found.name}")


def register(clients: KafkaClients, query: RegisteredQuery, replication: int) -> None:
    """Put a query under its name, in place of the one that is there.

    Raises:
        BrokerError: Kafka does not take it.
    """
    TopicAdmin(clients).registry(replication)
    write(clients, {query.name: query})


def drop(clients: KafkaClients, name: str) -> None:
    """Forget a name. Workers that run its query go on.

    Raises:
        UsageError: there is no such name.
        BrokerError: Kafka does not answer.
    """
    if name not in registered(clients):
        raise UsageError(f"no query is registered as {name!r} on {clients.bootstrap}")
    write(clients, {name: None})


def registered(clients: KafkaClients) -> dict[str, RegisteredQuery]:
    """All registered queries that run alone, by name, sorted.

    Raises:
        BrokerError: Kafka does not answer.
        StateError: the topic holds something else.
    """
    found = newest(clients)
    return {
        name: message for name, message in found.items() if isinstance(message, RegisteredQuery) and not message.group
    }


def newest(clients: KafkaClients) -> dict[str, ControlMessage]:
    """The newest message under every key, sorted.

    Raises:
        BrokerError: Kafka does not answer.
        StateError: the topic holds something else.
    """
    if not TopicAdmin(clients).exists(REGISTRY):
        return {}
    found: dict[str, ControlMessage] = {}
    with reading(clients, REGISTRY) as readback:
        begin, end = readback.ends(0)
        for offset, message in readback.between(0, begin, end):
            fold(found, message, offset)
    return dict(sorted(found.items()))


def fold(found: dict[str, ControlMessage], message: Message, offset: int) -> None:
    """Take a message of the topic into what is known by key."""
    key, value = message.key() or b"", message.value()
    name = key if isinstance(key, str) else key.decode(errors="replace")
    if value is None:
        found.pop(name, None)
    else:
        found[name] = decode_control(value, f"{REGISTRY}[0]@{offset}")


def write(clients: KafkaClients, records: Mapping[str, RegisteredQuery | RegisteredGroup | None]) -> None:
    """Put messages under their keys; None drops a key.

    Raises:
        BrokerError: Kafka does not take them.
    """
    failed: list[str] = []
    producer = Producer(clients.librdkafka(enable__idempotence=True, log_level=0))
    try:
        for key, message in records.items():
            producer.produce(
                REGISTRY,
                None if message is None else encode_control(message),
                key.encode(),
                partition=0,
                on_delivery=lambda error, _: failed.append(error.str()) if error is not None else None,
            )
    except KafkaException as error:
        failed.append(error.args[0].str())
    if producer.flush(TIMEOUT_S) or failed:
        raise BrokerError(f"topic {REGISTRY} cannot be written: {', '.join(failed) or 'no answer from Kafka'}")
