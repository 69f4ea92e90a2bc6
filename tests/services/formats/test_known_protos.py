"""Protobuf schemas may import what registries know, as texts, compiled and in files."""

from __future__ import annotations

import base64
import uuid
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import Schema

from schemas.errors import DataError
from schemas.protobuf.descriptors import ProtobufSchema
from services.formats.known_protos import imports_of, known_protos
from services.formats.registry_access import RegistryAccess
from services.formats.schema_files import read_schema, registered_text
from services.formats.schema_kinds import PROTOBUF
from services.formats.schema_registry import SchemaRegistry
from tests.registry_fixture import client_of

HEAD = """syntax = "proto3";
package shop;
import 'google/type/money.proto'; import public "google/type/datetime.proto";
// import "confluent/none.proto";
import "google/protobuf/timestamp.proto";
"""
ORDER = """message Order {
  google.type.Money price = 1;
  google.type.DateTime due = 2;
  google.protobuf.Timestamp at = 3;
"""
BY_GOOGLE = f"{HEAD}{ORDER}}}"
BY_BOTH = f"""{HEAD}import "confluent/meta.proto";
import "confluent/types/decimal.proto";
{ORDER}  confluent.type.Decimal share = 4 [(confluent.field_meta) = {{doc: "of all"}}];
}}"""


def check(schema: ProtobufSchema, *more: str) -> None:
    fields = schema.named("shop.Order").fields_by_name
    assert list(fields) == ["price", "due", "at", *more]
    assert [one.name for one in fields["price"].message_type.fields] == ["currency_code", "units", "nanos"]
    assert fields["due"].message_type.fields_by_name["utc_offset"].message_type.full_name == "google.protobuf.Duration"
    if more:
        assert fields["share"].message_type.full_name == "confluent.type.Decimal"


@pytest.mark.parametrize(("text", "more"), [(BY_GOOGLE, ()), (BY_BOTH, ("share",))])
def test_texts_and_compiled_ones(text: str, more: tuple[str, ...]) -> None:
    schema = PROTOBUF.parse(text, [])
    check(schema, *more)
    check(PROTOBUF.parse(base64.b64encode(schema.file.serialized_pb).decode(), []), *more)


def test_referenced_schemas_import_them_too() -> None:
    main = 'syntax = "proto3"; import "order.proto"; message Main { shop.Order order = 1; }'
    schema = PROTOBUF.parse(main, [("order.proto", BY_BOTH)])
    check(ProtobufSchema(schema.named("Main").fields_by_name["order"].message_type.file), "share")
    order = PROTOBUF.parse(BY_BOTH, []).file.serialized_pb
    raw = [base64.b64encode(one).decode() for one in (schema.file.serialized_pb, order)]
    schema = PROTOBUF.parse(raw[0], [("order.proto", raw[1])])
    check(ProtobufSchema(schema.named("Main").fields_by_name["order"].message_type.file), "share")


def test_what_a_schema_brings_counts() -> None:
    own = 'syntax = "proto3"; package google.type; message Money { int64 cents = 1; }'
    main = 'syntax = "proto3"; import "google/type/money.proto"; message Main { google.type.Money m = 1; }'
    schema = PROTOBUF.parse(main, [("google/type/money.proto", own)])
    assert [one.name for one in schema.named("Main").fields_by_name["m"].message_type.fields] == ["cents"]


def test_names_that_nobody_knows() -> None:
    names = ["google/type/none.proto", "google/type/../x.proto", "confluent/none.proto", "os.proto"]
    assert known_protos(names) == []
    text = f'syntax = "proto3"; import "{names[0]}"; message M {{}}'
    assert list(imports_of(text)) == names[:1]
    with pytest.raises(DataError, match=r"broken Protobuf schema: google/type/none\.proto: File not found"):
        PROTOBUF.parse(text, [])


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "order.proto"
    path.write_text(BY_BOTH)
    schema = read_schema(path, "protobuf")
    check(schema, "share")
    assert registered_text(path, schema, "protobuf") == BY_BOTH


@pytest.mark.kafka
def test_a_registry_knows_them(registry: str) -> None:
    """Without references, as serializers leave them out."""
    client, own = client_of(registry), SchemaRegistry(registry, RegistryAccess(), PROTOBUF, 30.0)
    number = client.register_schema(f"s-{uuid.uuid4()}", Schema(BY_GOOGLE, "PROTOBUF"))
    check(own.schema(number))
