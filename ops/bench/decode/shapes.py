"""The records of `weir bench decode`: two shapes, each with the same values in JSON, Avro and Protobuf.

- **flat**: the four columns `id`, `city`, `total` and `at`.
- **nested**: the same and three more, in records within records: `customer.name`, `customer.address.city`,
  `customer.address.zip`, `payment.total`, `payment.paid`. One record in twenty has no customer.

Records in Avro and Protobuf have the frame of schema registries. Weir's encoders make none of them: Google's library
writes Protobuf, orjson JSON, and this module Avro, as the specification says.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

import numpy as np
import orjson
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

from schemas.avro.schema import Avro, parse_avro
from schemas.protobuf.compiler import compile_text
from schemas.protobuf.descriptors import ProtobufSchema
from schemas.query import Field, Stream, Type

NUMBER: Final = 1
"""Of every schema in its registry."""

FRAME: Final = bytes(1) + NUMBER.to_bytes(4, "big")
PLACE: Final = bytes(1)
"""Of the message type in its file, behind the frame: the first."""

BEGIN_MS: Final = 1_700_000_000_000
CITIES: Final = ("Oslo", "Bern", "København", "San Francisco", "京都", "Santiago de Compostela")

Row = dict[str, Any]
"""A record as JSON has it. `at` is in milliseconds; a record within it that is not there is None."""

Values = tuple[Any, ...]
"""A record's values in the order of the columns; times in milliseconds."""


@dataclass(frozen=True)
class Shape:
    """A shape of records.

    Attributes:
        columns: all values of a record.
        avro: the schema as JSON has it.
        proto: the message type, without what is before and behind its fields.
        make: makes a record of its number and four numbers in [0, 1).
        to_avro: writes a record in Avro.
    """

    name: str
    columns: tuple[Field, ...]
    avro: Mapping[str, Any]
    proto: str
    make: Callable[[int, Sequence[float]], Row]
    to_avro: Callable[[Row], bytes]

    def stream(self, format: str) -> Stream:
        """The stream that has all values as columns."""
        return Stream("orders", self.columns, "orders", format, timestamp="at")

    @cached_property
    def avro_text(self) -> str:
        """The schema in Avro, as registries have it."""
        return orjson.dumps(self.avro).decode()

    @cached_property
    def avro_schema(self) -> Avro:
        """The same as Weir has it."""
        return parse_avro(self.avro_text)

    @cached_property
    def protobuf_schema(self) -> ProtobufSchema:
        """The schema in Protobuf, as Weir has it."""
        return compile_text(f'syntax = "proto3";\nimport "{TIMES}";\nmessage Order {{\n{self.proto}}}\n')

    @property
    def message(self) -> Descriptor:
        """The message type."""
        return self.protobuf_schema.message((0,))

    def values(self, record: Any) -> Values:
        """The values of a record that is a dict, or a message of Google's library."""
        found = []
        for column in self.columns:
            place = record
            for step in column.place:
                place = None if place is None else _field(place, str(step))
            found.append(place)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one shape.

    Attributes:
        values: of each record, what every decoder has to find.
        raw: the records by format.
    """

    values: list[Values]
    raw: Mapping[str, list[bytes]]


def records_of(shape: Shape, count: int, seed: int) -> Records:
    """Make records; those of one seed are always the same."""
    random = np.random.default_rng(seed).random((count, 4)).tolist()
    rows = [shape.make(number, own) for number, own in enumerate(random)]
    message = GetMessageClass(shape.message)
    raw = {
        "json": [orjson.dumps(row) for row in rows],
        "avro": [FRAME + shape.to_avro(row) for row in rows],
        "protobuf": [FRAME + PLACE + _filled(message(), row).SerializeToString() for row in rows],
    }
    return Records([shape.values(row) for row in rows], raw)


def _field(record: Any, name: str) -> Any:
    """A field of a dict or message; None if a message in it is not there."""
    if isinstance(record, Message):
        is_message = record.DESCRIPTOR.fields_by_name[name].message_type is not None
        value = getattr(record, name) if not is_message or record.HasField(name) else None
    else:
        value = record[name]
    if isinstance(value, Message) and value.DESCRIPTOR.full_name == Timestamp.DESCRIPTOR.full_name:
        return value.ToMilliseconds()  # type: ignore[attr-defined]
    if isinstance(value, datetime):  # without a time zone, some libraries mean UTC
        return round((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1000)
    return value


def _filled(message: Any, row: Row) -> Any:
    """The message, with the values of a record."""
    for name, value in row.items():
        if isinstance(value, dict):
            _filled(getattr(message, name), value)
        elif name == "at":
            message.at.FromMilliseconds(value)
        elif value is not None:
            setattr(message, name, value)
    return message


def long_bytes(value: int) -> bytes:
    """A whole number in Avro."""
    left, found = value << 1 ^ value >> 63, bytearray()
    while left >= 0x80:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes((*found, left))


def text_bytes(text: str) -> bytes:
    """A text in Avro."""
    raw = text.encode()
    return long_bytes(len(raw)) + raw


_double_bytes = struct.Struct("<d").pack


def _record(kind: str, **fields: Any) -> Mapping[str, Any]:
    return {"type": "record", "name": kind, "fields": [{"name": name, "type": of} for name, of in fields.items()]}


TIMES: Final = "google/protobuf/timestamp.proto"
_TIME: Final = {"type": "long", "logicalType": "timestamp-millis"}


def _flat(number: int, random: Sequence[float]) -> Row:
    city = CITIES[int(random[0] * len(CITIES))]
    return {"id": number, "city": city, "total": round(random[1] * 1000, 2), "at": BEGIN_MS + number}


def _flat_avro(row: Row) -> bytes:
    return long_bytes(row["id"]) + text_bytes(row["city"]) + _double_bytes(row["total"]) + long_bytes(row["at"])


FLAT: Final = Shape(
    "flat",
    (Field("id", Type.BIGINT), Field("city", Type.STRING), Field("total", Type.DOUBLE), Field("at", Type.TIMESTAMP)),
    _record("Order", id="long", city="string", total="double", at=_TIME),
    """\
  int64 id = 1;
  string city = 2;
  double total = 3;
  google.protobuf.Timestamp at = 4;
""",
    _flat,
    _flat_avro,
)


def _nested(number: int, random: Sequence[float]) -> Row:
    flat = _flat(number, random)
    address = {"city": flat["city"], "zip": str(10_000 + int(random[2] * 90_000))}
    return {
        "id": number,
        "customer": {"name": f"customer {number % 1000}", "address": address} if random[3] >= 0.05 else None,
        "payment": {"total": flat["total"], "paid": number % 3 > 0},
        "at": flat["at"],
    }


def _nested_avro(row: Row) -> bytes:
    customer, payment = row["customer"], row["payment"]
    found = long_bytes(row["id"]) + long_bytes(int(customer is not None))
    if customer is not None:
        address = customer["address"]
        found += text_bytes(customer["name"]) + text_bytes(address["city"]) + text_bytes(address["zip"])
    return found + _double_bytes(payment["total"]) + bytes((payment["paid"],)) + long_bytes(row["at"])


NESTED: Final = Shape(
    "nested",
    (
        Field("id", Type.BIGINT),
        Field("name", Type.STRING, ("customer", "name")),
        Field("city", Type.STRING, ("customer", "address", "city")),
        Field("zip", Type.STRING, ("customer", "address", "zip")),
        Field("total", Type.DOUBLE, ("payment", "total")),
        Field("paid", Type.BOOLEAN, ("payment", "paid")),
        Field("at", Type.TIMESTAMP),
    ),
    _record(
        "Order",
        id="long",
        customer=["null", _record("Customer", name="string", address=_record("Address", city="string", zip="string"))],
        payment=_record("Payment", total="double", paid="boolean"),
        at=_TIME,
    ),
    """\
  message Address { string city = 1; string zip = 2; }
  message Customer { string name = 1; Address address = 2; }
  message Payment { double total = 1; bool paid = 2; }
  int64 id = 1;
  Customer customer = 2;
  Payment payment = 3;
  google.protobuf.Timestamp at = 4;
""",
    _nested,
    _nested_avro,
)
