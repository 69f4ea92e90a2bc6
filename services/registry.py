"""Registered queries: whole query files under names, in the compacted topic `weir.queries`.

Every command that takes a query file takes such a name in its place, so that a worker, its coordinator and
`weir migrate` on other machines speak of the same text.
"""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from schemas.control import RegisteredQuery, decode_control, encode_control
from schemas.errors import BrokerError, UsageError
from schemas.query import Query
from services.query_files import pick_query, read_query
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
    _write(clients, query.name, encode_control(query))


def drop(clients: KafkaClients, name: str) -> None:
    """Forget a name. Workers that run its query go on.

    Raises:
        UsageError: there is no such name.
        BrokerError: Kafka does not answer.
    """
    if name not in registered(clients):
        raise UsageError(f"no query is registered as {name!r} on {clients.bootstrap}")
    _write(clients, name, None)


def registered(clients: KafkaClients) -> dict[str, RegisteredQuery]:
    """All registered queries by name, sorted.

    Raises:
        BrokerError: Kafka does not answer.
        StateError: the topic holds something else.
    """
    if not TopicAdmin(clients).exists(REGISTRY):
        return {}
    consumer = Consumer(
        clients.librdkafka(
            group__id=f"{REGISTRY}.readers", enable__auto__commit=False, enable__partition__eof=True, log_level=0
        )
    )
    found: dict[str, RegisteredQuery] = {}
    try:
        consumer.assign([TopicPartition(REGISTRY, 0, 0)])
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            message = consumer.poll(0.5)
            error = message.error() if message is not None else None
            if message is None or (error is not None and error.code() != KafkaError._PARTITION_EOF):
                continue
            if error is not None:
                return dict(sorted(found.items()))
            name = (message.key() or b"").decode(errors="replace")
            if message.value() is None:
                found.pop(name, None)
                continue
            query = decode_control(message.value(), f"{REGISTRY}[0]@{message.offset()}")
            if isinstance(query, RegisteredQuery):
                found[name] = query
    finally:
        consumer.close()
    raise BrokerError(f"topic {REGISTRY} could not be read within {TIMEOUT_S:g} s")


def _write(clients: KafkaClients, name: str, value: bytes | None) -> None:
    failed: list[str] = []
    producer = Producer(clients.librdkafka(enable__idempotence=True, log_level=0))
    try:
        producer.produce(
            REGISTRY,
            value,
            name.encode(),
            partition=0,
            on_delivery=lambda error, _: failed.append(error.str()) if error is not None else None,
        )
    except KafkaException as error:
        failed.append(error.args[0].str())
    if producer.flush(TIMEOUT_S) or failed:
        raise BrokerError(f"topic {REGISTRY} cannot be written: {', '.join(failed) or 'no answer from Kafka'}")
