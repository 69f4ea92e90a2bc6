"""Fixtures that provide a real schema registry for tests: Apicurio, by its Confluent-compatible API.

`registry` (whole session) is shared by tests, which register subjects of their own. `restartable_registry` (one test)
can be stopped, killed and started again at the same address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from services.broker import registry as registries


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a registry."""
    folder = tmp_path_factory.mktemp("registry")
    yield registries.start(folder, 0).url
    registries.kill(folder)


@dataclass
class RestartableRegistry:
    """A registry that a test may end and start again."""

    folder: Path
    port: int

    @property
    def url(self) -> str:
        """Where it answers, while it runs."""
        return f"http://127.0.0.1:{self.port}{registries.API}"

    def kill(self) -> None:
        """kill -9."""
        assert registries.kill(self.folder)

    def start(self) -> None:
        """Start it again where it was."""
        registries.start(self.folder, self.port)


@pytest.fixture
def restartable_registry(tmp_path: Path) -> Iterator[RestartableRegistry]:
    """A registry of this test's own."""
    folder = tmp_path / "registry"
    yield RestartableRegistry(folder, registries.start(folder, 0).port)
    registries.kill(folder)


def client_of(url: str) -> SchemaRegistryClient:
    """A client of a registry."""
    return SchemaRegistryClient({"url": url, "timeout": 10, "max.retries": 3})


def serializer_of(url: str, schema: str) -> AvroSerializer:
    """Confluent's serializer; it registers the schema with the first record of a topic."""
    return AvroSerializer(client_of(url), schema)


def key_serializer_of(url: str, topic: str) -> Callable[[int], bytes]:
    """Confluent's serializer of keys that are numbers."""
    serialize, context = serializer_of(url, '"long"'), SerializationContext(topic, MessageField.KEY)
    return lambda key: serialize(key, context) or b""


def rows_of_avro(url: str, topic: str, part: MessageField = MessageField.VALUE) -> Callable[[bytes], dict[str, Any]]:
    """What Confluent's deserializer reads of results; a row as JSON would have had it."""
    read, context = AvroDeserializer(client_of(url)), SerializationContext(topic, part)

    def row(raw: bytes) -> dict[str, Any]:
        found: Any = read(raw, context)
        if found.get("_phase", "") is None:
            del found["_phase"]
        return {name: _plain(value) for name, value in found.items()}

    return row


def _plain(value: Any) -> Any:
    return round(value.timestamp() * 1000) if isinstance(value, datetime) else value
