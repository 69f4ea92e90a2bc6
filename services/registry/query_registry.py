"""Registered queries: whole query files under names, in the compacted topic `weir.queries`.

Every command that takes a query file also takes such a name, so that a worker, its coordinator and `weir migrate` on
other machines use the same text. The topic also contains groups of queries: `services.registry.group_registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from confluent_kafka import KafkaException, Message, Producer

from schemas.errors import BrokerError, UsageError
from schemas.messages.control import ControlMessage, RegisteredGroup, RegisteredQuery, decode_control, encode_control
from schemas.query import Query
from services.files.query_files import pick_query, read_query
from services.formats.registry_access import RegistryAccess
from services.kafka.log_consumer import position_of
from services.kafka.readback import read_to_end
from services.kafka.topics import REGISTRY, TopicAdmin
from services.process.rights import reason
from services.process.security import KafkaClients

TIMEOUT_S = 30.0


def names_file(given: Path) -> bool:
    """Whether a query argument is a path, existing or not, rather than the name of a registered query. A folder is no
    query, so it may have the name of one."""
    return (given.exists() and not given.is_dir()) or bool(given.suffix) or len(given.parts) != 1


def find_query(given: Path, pick: str | None, clients: KafkaClients, access: RegistryAccess) -> Query:
    """The query of a file, or the registered query of that name if there is no such file.

    Args:
        access: how to reach the registry of streams that are declared without columns.

    Raises:
        UsageError: there is neither, or the text has no query or several.
        QueryError: the text is wrong; shows where.
        BrokerError: the name must be looked up and Kafka does not answer, or the registry does not.
    """
    if names_file(given):
        return read_query(given, pick, access)
    found = registered(clients, str(given)).get(str(given))
    if found is None:
        raise UsageError(
            f"{str(given)!r} is no file, and no query of that name is registered on {clients.bootstrap}; "
            f"`weir query register {given} QUERY.sql` registers one"
        )
    return pick_query(found.text, pick or found.pick, f"registered query {found.name}")


def register(clients: KafkaClients, query: RegisteredQuery, replication: int) -> None:
    """Register a query under its name, replacing a former one.

    Raises:
        BrokerError: Kafka does not accept it.
    """
    TopicAdmin(clients).registry(replication)
    write(clients, {query.name: query})


def drop(clients: KafkaClients, name: str) -> None:
    """Remove a registered query. Workers that run it continue.

    Raises:
        UsageError: there is no such name.
        BrokerError: Kafka does not answer.
    """
    if name not in registered(clients):
        raise UsageError(f"no query is registered as {name!r} on {clients.bootstrap}")
    write(clients, {name: None})


def registered(clients: KafkaClients, name: str | None = None) -> dict[str, RegisteredQuery]:
    """All registered queries outside groups, or only the one of that name, by name, sorted.

    Raises:
        BrokerError: Kafka does not answer.
        StateError: the topic holds something else.
        NewerFormatError: a newer Weir has registered one of them.
    """
    found = newest(clients, lambda key: name in (None, key))
    return {
        name: message for name, message in found.items() if isinstance(message, RegisteredQuery) and not message.group
    }


def newest(clients: KafkaClients, wanted: Callable[[str], bool] = lambda key: True) -> dict[str, ControlMessage]:
    """The newest message of every wanted key, sorted by key. All other messages may be of any version.

    Raises:
        BrokerError: Kafka does not answer.
        StateError: the topic holds something else.
        NewerFormatError: a newer Weir has registered one of them.
    """
    if not TopicAdmin(clients).exists(REGISTRY):
        return {}
    last = {key_of(message): message for _, message in read_to_end(clients, (REGISTRY, 0))}
    found: dict[str, ControlMessage] = {}
    for key in sorted(filter(wanted, last)):
        fold(found, last[key])
    return found


def key_of(message: Message) -> str:
    """The key of a message of the topic, as text."""
    key = message.key() or b""
    return key if isinstance(key, str) else key.decode(errors="replace")


def fold(found: dict[str, ControlMessage], message: Message) -> None:
    """Apply a message of the topic to the newest messages by key."""
    value = message.value()
    if value is None:
        found.pop(key_of(message), None)
    else:
        found[key_of(message)] = decode_control(value, position_of(message))


def write(clients: KafkaClients, records: Mapping[str, RegisteredQuery | RegisteredGroup | None]) -> None:
    """Write messages under their keys; None removes a key.

    Raises:
        BrokerError: Kafka does not accept them.
    """
    failed: list[str] = []
    right = f"WRITE on topic {REGISTRY!r}"
    # Messages stay in order, and duplicates do no harm. An idempotent producer would end with a fatal error if it may
    # not write.
    producer = Producer(clients.librdkafka(max__in__flight=1, log_level=0))
    try:
        for key, message in records.items():
            producer.produce(
                REGISTRY,
                None if message is None else encode_control(message),
                key.encode(),
                partition=0,
                on_delivery=lambda error, _: failed.append(reason(error, right)) if error is not None else None,
            )
    except KafkaException as error:
        failed.append(reason(error.args[0], right))
    if producer.flush(TIMEOUT_S) or failed:
        raise BrokerError(f"topic {REGISTRY} cannot be written: {', '.join(failed) or 'no answer from Kafka'}")
