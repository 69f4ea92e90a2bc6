"""Schemas of a real registry by their numbers: found, missing, of other kinds, and while it does not answer."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference

from schemas.avro.schema import Avro
from schemas.codecs.decoded import RecordError
from schemas.query import Stream
from services.broker.background import free_port
from services.formats import schema_registry
from services.formats.registry_access import RegistryAccess
from services.formats.schema_kinds import AVRO, PROTOBUF
from services.formats.schema_registry import NoSuchSchema, SchemaRegistry, SchemaUnavailable, latest_schema
from tests.registry_fixture import RestartableRegistry, client_of
from tests.worker_harness import wait_for

RECORD = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]})


def answer(registry: SchemaRegistry[Avro], number: int) -> Callable[[], Avro | None]:
    def ask() -> Avro | None:
        try:
            return registry.schema(number)
        except SchemaUnavailable:
            return None

    return ask


@pytest.mark.kafka
def test_schemas_are_found_by_their_numbers(registry: str) -> None:
    client, own = client_of(registry), SchemaRegistry(registry, RegistryAccess(), AVRO, 30.0)
    number = client.register_schema(f"s-{uuid.uuid4()}", Schema(RECORD, "AVRO"))
    assert [field.name for field in own.schema(number).fields] == ["a"]
    assert own.schema(number) is own.schema(number)
    primitive = client.register_schema(f"s-{uuid.uuid4()}", Schema('"string"', "AVRO"))
    assert own.schema(primitive).kind == "string"


@pytest.mark.kafka
def test_a_schema_may_refer_to_others(registry: str) -> None:
    client, own = client_of(registry), SchemaRegistry(registry, RegistryAccess(), AVRO, 30.0)
    inner, outer = (f"s-{uuid.uuid4()}" for _ in range(2))
    client.register_schema(inner, Schema(RECORD, "AVRO"))
    holder = {"type": "record", "name": "H", "fields": [{"name": "r", "type": "R"}, {"name": "s", "type": "R"}]}
    number = client.register_schema(outer, Schema(json.dumps(holder), "AVRO", [SchemaReference("R", inner, 1)]))
    found = own.schema(number)
    assert [field.type.kind for field in found.fields] == ["record", "record"]
    assert found.fields[0].type is found.fields[1].type


@pytest.mark.kafka
def test_what_is_no_avro_schema_is_the_records_fault(registry: str) -> None:
    client, own = client_of(registry), SchemaRegistry(registry, RegistryAccess(), AVRO, 30.0)
    number = client.register_schema(f"s-{uuid.uuid4()}", Schema('syntax = "proto3"; message M {}', "PROTOBUF"))
    for _ in range(2):
        with pytest.raises(RecordError, match=f"schema {number} of the registry is PROTOBUF, expected AVRO"):
            own.schema(number)
        with pytest.raises(RecordError, match="the registry has no schema 987654"):
            own.schema(987654)


@pytest.mark.kafka
def test_another_server_at_the_address_is_no_registry(registry: str) -> None:
    """What it answers is not taken for the answer that a schema does not exist."""
    own = SchemaRegistry(registry + "/nothing/here", RegistryAccess(), AVRO, 5.0)
    with pytest.raises(SchemaUnavailable, match=r"schema 1 of the registry .*/nothing/here is unknown"):
        own.schema(1)


@pytest.mark.kafka
def test_a_schema_that_comes_a_little_late_is_no_missing_one(registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one missing number in a while has time; garbage may name any."""

    def refused() -> bool:
        try:
            own.schema(last + 1_000)
        except SchemaUnavailable:
            return False
        except RecordError as error:
            return str(error) == f"the registry has no schema {last + 1_000}"
        return False

    monkeypatch.setattr(schema_registry, "GRACE_S", 30.0)
    client, own = client_of(registry), SchemaRegistry(registry, RegistryAccess(), AVRO, 0.2)
    new, late = ({**json.loads(RECORD), "name": f"R{uuid.uuid4().hex}"} for _ in range(2))
    last = client.register_schema(f"s-{uuid.uuid4()}", Schema(json.dumps(new), "AVRO"))
    with pytest.raises(SchemaUnavailable):
        own.schema(last + 1)
    wait_for(refused, "the answer to the second number", 15.0)
    number = client.register_schema(f"s-{uuid.uuid4()}", Schema(json.dumps(late), "AVRO"))
    if number == last + 1:  # nobody else has registered one
        assert wait_for(answer(own, number), "the schema").name == late["name"]


class LaggingReplica(BaseHTTPRequestHandler):
    """A replica of a registry that knows `schemas` by now."""

    schemas: ClassVar[set[int]] = set()
    asked: ClassVar[list[int]] = []

    def do_GET(self) -> None:
        """Answer as a registry does."""
        number = int(self.path.split("/ids/")[1].split("?")[0].partition("/")[0])
        self.asked.append(number)
        known = number in self.schemas
        found = {"schema": RECORD} if known else {"error_code": 40403, "message": "Schema not found"}
        body = json.dumps(found).encode()
        self.send_response(200 if known else 404)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def lagging(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SchemaRegistry[Avro], type[LaggingReplica]]]:
    """A replica, and schemas from there. A missing schema is believed to be missing for a second."""
    monkeypatch.setattr(schema_registry, "MISSING_S", 1.0, raising=False)
    monkeypatch.setattr(schema_registry, "MOST_MISSING", 10, raising=False)
    monkeypatch.setattr(schema_registry, "GRACE_S", 0.0)
    monkeypatch.setattr(LaggingReplica, "schemas", set())
    monkeypatch.setattr(LaggingReplica, "asked", [])
    with ThreadingHTTPServer(("127.0.0.1", 0), LaggingReplica) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield SchemaRegistry(f"http://127.0.0.1:{server.server_port}", RegistryAccess(), AVRO, 30.0), LaggingReplica
        server.shutdown()


Lagging = tuple[SchemaRegistry[Avro], type[LaggingReplica]]


def is_missing(own: SchemaRegistry[Avro], number: int) -> bool:
    try:
        own.schema(number)
    except NoSuchSchema:
        return True
    return False


def test_a_missing_schema_is_asked_for_again(lagging: Lagging) -> None:
    """It was missing until the worker ended, though another producer had only just registered it."""
    own, replica = lagging
    assert [is_missing(own, number) for number in (7, 8, 7, 8)] == [True] * 4
    assert replica.asked == [7, 8], "the answer is believed for a while"
    replica.schemas.update((7, 8))
    wait_for(lambda: not is_missing(own, 7) and not is_missing(own, 8), "both schemas", 10.0)
    assert own.schema(7) is own.schema(7)
    assert len(replica.asked) == 4, "known schemas are asked for once"


def test_a_missing_schema_has_time_once(lagging: Lagging, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a partition would stand still for seconds in each minute for a number that never has a schema."""
    own, replica = lagging
    monkeypatch.setattr(schema_registry, "GRACE_S", 0.3)
    monkeypatch.setattr(schema_registry, "GRACE_EVERY_S", 0.0)
    assert is_missing(own, 7)
    first = len(replica.asked)
    assert first > 1
    wait_for(lambda: is_missing(own, 7) and len(replica.asked) > first, "another look", 10.0)
    assert is_missing(own, 7)
    assert len(replica.asked) == first + 1


def test_garbage_takes_little_memory(lagging: Lagging) -> None:
    own, _ = lagging
    assert all(is_missing(own, number) for number in range(100, 130))
    assert list(own._missing_until) == list(own._answers) == list(range(120, 130))


@pytest.mark.deep
def test_a_registry_that_is_away_is_asked_until_it_answers(restartable_registry: RestartableRegistry) -> None:
    client = client_of(restartable_registry.url)
    number = client.register_schema("s", Schema(RECORD, "AVRO"))
    restartable_registry.kill()
    own = SchemaRegistry(restartable_registry.url, RegistryAccess(), AVRO, 0.5)
    with pytest.raises(SchemaUnavailable, match=f"schema {number} of the registry {restartable_registry.url}"):
        own.schema(number)
    restartable_registry.start()
    found = wait_for(answer(own, number), "the schema")
    assert found.kind == "record"
    restartable_registry.kill()
    assert own.schema(number) is found


def test_nobody_listens() -> None:
    own = SchemaRegistry(f"http://127.0.0.1:{free_port()}", RegistryAccess(), AVRO, 5.0)
    with pytest.raises(SchemaUnavailable, match="Connection refused"):
        own.schema(1)


def test_credentials_are_for_their_registry_only() -> None:
    """Whoever writes a query may name any registry."""
    access = RegistryAccess("http://r:1/api", "me", "secret", ca="ca.pem")
    assert access.client_settings("http://r:1/other")["basic.auth.user.info"] == "me:secret"
    elsewhere = {"url": "http://r:2/api", "timeout": 10.0, "max.retries": 0, "ssl.ca.location": "ca.pem"}
    assert access.client_settings("http://r:2/api") == elsewhere


def test_credentials_reach_the_client_and_no_log() -> None:
    access = RegistryAccess("http://r", "me", "secret", None, "ca.pem", "own.pem")
    assert access.client_settings("http://r") == {
        "url": "http://r",
        "timeout": 10.0,
        "max.retries": 0,
        "basic.auth.user.info": "me:secret",
        "ssl.ca.location": "ca.pem",
        "ssl.certificate.location": "own.pem",
        "ssl.key.location": "own.pem",
    }
    assert "secret" not in repr(access)
    token = RegistryAccess("http://r", token="hidden")
    assert token.client_settings("http://r")["bearer.auth.token"] == "hidden"
    assert "hidden" not in repr(token)


BASE = """
syntax = "proto3"; package base;
message Address { string city = 1; }
"""
ORDER = """
syntax = "proto3"; package shop;
import "google/protobuf/timestamp.proto"; import "base.proto";
message Order { int64 id = 1; base.Address address = 2; google.protobuf.Timestamp at = 3; }
"""


@pytest.mark.kafka
def test_schemas_of_protobuf_are_texts_there(registry: str) -> None:
    """They may import others, and Google's own."""
    client, own = client_of(registry), SchemaRegistry(registry, RegistryAccess(), PROTOBUF, 30.0)
    base, order = (f"s-{uuid.uuid4()}" for _ in range(2))
    client.register_schema(base, Schema(BASE, "PROTOBUF"))
    number = client.register_schema(order, Schema(ORDER, "PROTOBUF", [SchemaReference("base.proto", base, 1)]))
    found = own.schema(number).named("shop.Order")
    assert [field.name for field in found.fields] == ["id", "address", "at"]
    assert found.fields_by_name["address"].message_type.full_name == "base.Address"
    latest = latest_schema(registry, RegistryAccess(), order, PROTOBUF)
    assert latest is not None
    stream = Stream("s", (), order, "protobuf", "at")
    assert [column.name for column in PROTOBUF.columns(latest[1], stream)] == ["id", "address_city", "at"]
