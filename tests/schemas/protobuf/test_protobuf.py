"""Protobuf records become the columns that Google's parser and the rules of conversion say, by every way of reading."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from schemas.codecs.decoded import Decoded, RecordError, Value
from schemas.codecs.wanted import Wanted
from schemas.columns import Batch
from schemas.errors import DataError
from schemas.protobuf.columns import columns_of
from schemas.protobuf.decoder import ProtobufDecoder
from schemas.protobuf.descriptors import ProtobufSchema, parse_file, parse_set
from schemas.protobuf.layout import table_of
from schemas.protobuf.rules import ProtobufRules, misfits
from schemas.query import Field, Stream, Type
from tests.profiles import examples

DEAD = "dead letter"
F = descriptor_pb2.FieldDescriptorProto

SCALARS = [
    F.TYPE_DOUBLE,
    F.TYPE_FLOAT,
    F.TYPE_INT64,
    F.TYPE_UINT64,
    F.TYPE_INT32,
    F.TYPE_FIXED64,
    F.TYPE_FIXED32,
    F.TYPE_BOOL,
    F.TYPE_STRING,
    F.TYPE_BYTES,
    F.TYPE_UINT32,
    F.TYPE_SFIXED32,
    F.TYPE_SFIXED64,
    F.TYPE_SINT32,
    F.TYPE_SINT64,
    F.TYPE_ENUM,
]
REALS = {F.TYPE_DOUBLE, F.TYPE_FLOAT}
TEXTS = {F.TYPE_STRING, F.TYPE_BYTES}
KNOWN = [".google.protobuf.Timestamp", ".google.protobuf.Int64Value", ".google.protobuf.StringValue"]


def file_of(seed: int) -> descriptor_pb2.FileDescriptorProto:
    """A random file: message M with fields of all kinds, and messages within it."""
    rng = Random(seed)
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="p", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    colors = file.enum_type.add(name="Color")
    for number, name in enumerate(("RED", "GREEN", "BLUE")):
        colors.value.add(name=name, number=number if name != "BLUE" else rng.choice([2, 7]))
    _fill(file.message_type.add(name="M"), rng, 0, ".p.M")
    return file


def _fill(message: descriptor_pb2.DescriptorProto, rng: Random, depth: int, name: str) -> None:
    numbers = rng.sample([*range(1, 20), 100, 5000], rng.randint(1, 7))
    if rng.random() < 0.4:
        message.oneof_decl.add(name="choice")
    optional = []
    for k, number in enumerate(numbers):
        field = message.field.add(name=f"f{k}", number=number, label=F.LABEL_OPTIONAL)
        kind = rng.random()
        if kind < 0.2 and depth < 3:
            field.type, field.type_name = F.TYPE_MESSAGE, f"{name}.N{k}"
            _fill(message.nested_type.add(name=f"N{k}"), rng, depth + 1, field.type_name)
        elif kind < 0.3:
            field.type, field.type_name = F.TYPE_MESSAGE, rng.choice(KNOWN)
        else:
            field.type = rng.choice(SCALARS)
            if field.type == F.TYPE_ENUM:
                field.type_name = ".p.Color"
        if rng.random() < 0.15:
            field.label = F.LABEL_REPEATED
        elif message.oneof_decl and rng.random() < 0.4:
            field.oneof_index = 0
        elif field.type != F.TYPE_MESSAGE and rng.random() < 0.4:
            field.proto3_optional = True
            optional.append(field)
    for field in optional:
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{field.name}")
    if (
        message.oneof_decl
        and message.oneof_decl[0].name == "choice"
        and not any(one.HasField("oneof_index") and one.oneof_index == 0 for one in message.field)
    ):
        message.field[0].label = F.LABEL_OPTIONAL
        if not message.field[0].proto3_optional:
            message.field[0].oneof_index = 0
        else:
            extra = message.field.add(name="only", number=30, label=F.LABEL_OPTIONAL, type=F.TYPE_INT32)
            extra.oneof_index = 0


def fill(message: Any, rng: Random, depth: int = 0) -> None:
    """Set random fields."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.3:
            continue
        times = rng.randint(0, 3) if field.is_repeated else 1
        for _ in range(times):
            if field.message_type is not None:
                inner = getattr(message, field.name)
                inner = inner.add() if field.is_repeated else inner
                if not field.is_repeated:
                    inner.SetInParent()
                fill(inner, rng, depth + 1)
                continue
            value = value_of(field, rng)
            if field.is_repeated:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)


def value_of(field: Any, rng: Random) -> Any:
    kind = field.type
    if kind in REALS:
        value = rng.choice([0.0, -0.0, 1.5, rng.uniform(-1e6, 1e6), math.inf if rng.random() < 0.1 else 2.0])
        return float(np.float32(value)) if kind == F.TYPE_FLOAT else value
    if kind == F.TYPE_BOOL:
        return rng.random() < 0.5
    if kind == F.TYPE_STRING:
        return rng.choice(["", "a", "ä☃", "2026-01-31T12:00:00Z", "x" * 200])
    if kind == F.TYPE_BYTES:
        return rng.choice([b"", b"a", b"\xff", "ä".encode()])
    if kind == F.TYPE_ENUM:
        return rng.choice([0, 1, 2, 7, 9, -1])
    bits = 32 if kind in (F.TYPE_INT32, F.TYPE_UINT32, F.TYPE_SINT32, F.TYPE_FIXED32, F.TYPE_SFIXED32) else 64
    unsigned = kind in (F.TYPE_UINT32, F.TYPE_UINT64, F.TYPE_FIXED32, F.TYPE_FIXED64)
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return rng.choice([0, 1, low, high, rng.randint(low, high), rng.randint(0, 1000)])


def wanted_of(descriptor: Descriptor, rng: Random) -> list[Wanted]:
    """Some columns, of types that fit mostly."""
    paths: list[tuple[tuple[str | int, ...], Any]] = []
    _paths(descriptor, (), paths, 0)
    chosen = rng.sample(paths, min(len(paths), rng.randint(1, 5)))
    found = []
    for n, (path, field) in enumerate(chosen):
        fitting = [type for type in Type if field is not None and _fits(type, field)]
        type = rng.choice(fitting) if fitting and rng.random() < 0.9 else rng.choice(list(Type))
        found.append(Wanted(f"c{n}", path, type))
    return found


def _fits(type: Type, field: Any) -> bool:
    descriptor = field.containing_type
    return not misfits(descriptor, [Wanted("x", (field.name, *([0] if field.is_repeated else [])), type)])


def _paths(descriptor: Descriptor, before: tuple[str | int, ...], found: list[Any], depth: int) -> None:
    for field in descriptor.fields:
        path: tuple[str | int, ...] = (*before, field.name, *([1] if field.is_repeated else []))
        found.append((path, field))
        if field.message_type is not None and depth < 4:
            _paths(field.message_type, path, found, depth + 1)
    found.append(((*before, "missing"), None))


def decoder(wanted: list[Wanted], schema: Any) -> ProtobufDecoder:
    """A decoder of a stream whose event time is the records' own."""
    fields = tuple(Field(one.name, one.type) for one in wanted)
    return ProtobufDecoder(Stream("s", fields, "s", timestamp=None), wanted, schema)


def decoded(found: Decoded, records: int) -> list[Any]:
    """Per record its values, or DEAD."""
    rows: list[Any] = [None] * records
    for dead in found.dead:
        rows[dead.row] = DEAD
    for row, values in zip(found.rows.tolist(), values_of(found.batch), strict=True):
        rows[row] = values
    return rows


def values_of(batch: Batch) -> list[list[Value]]:
    columns = [column.to_arrow().to_pylist() for column in batch.columns.values()]
    return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in range(len(batch))]


def by_rules(rules: ProtobufRules, raw: bytes) -> Any:
    try:
        return rules.values(raw)
    except RecordError:
        return DEAD


def by_google(message: Any, wanted: list[Wanted]) -> Any:
    """What Google's parser has, by the rules of conversion; DEAD where no column accepts it."""
    found = []
    for one in wanted:
        value = _google_value(message, one.path, one.type)
        if value is DEAD:
            return DEAD
        found.append(value)
    return found


def _google_value(place: Any, path: tuple[str | int, ...], type: Type) -> Any:
    field: Any = None
    for step in path:
        if isinstance(step, int):
            if step >= len(place):
                return None
            place = place[step]
            continue
        if not hasattr(place, "DESCRIPTOR"):
            return None
        field = place.DESCRIPTOR.fields_by_name.get(step)
        if field is None or (not field.is_repeated and field.has_presence and not place.HasField(step)):
            return None
        place = getattr(place, step)
    if hasattr(place, "DESCRIPTOR"):
        if place.DESCRIPTOR.full_name == "google.protobuf.Timestamp" and type is Type.TIMESTAMP:
            ms = place.seconds * 1000 + place.nanos // 1_000_000
            return ms if -(2**63) <= ms < 2**63 else DEAD
        if not place.DESCRIPTOR.full_name.endswith("Value"):
            return DEAD
        field, place = place.DESCRIPTOR.fields_by_name["value"], place.value
    return _google_scalar(place, field, type)


def _google_scalar(value: Any, field: Any, type: Type) -> Any:
    from schemas.codecs.decoded import check_value

    if field.type == F.TYPE_ENUM:
        if type is Type.STRING:
            symbol = field.enum_type.values_by_number.get(value)
            return str(value) if symbol is None else symbol.name
        if type is not Type.BIGINT:
            return DEAD
    if isinstance(value, bytes):
        try:
            return value.decode() if type is Type.STRING else DEAD
        except UnicodeDecodeError:
            return DEAD
    try:
        return check_value("x", type, value)
    except RecordError:
        return DEAD


def same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return [repr(value) for value in one] == [repr(value) for value in other]
    return bool(one == other)


@given(st.integers(0, 2**32), st.data())
@examples(400)
def test_any_records(seed: int, data: st.DataObject) -> None:
    """The compiled pass, the rules and Google's parser agree, on whole records and on those in other orders."""
    rng = Random(seed)
    schema = parse_file(file_of(seed).SerializeToString())
    descriptor = schema.message((0,))
    made = GetMessageClass(descriptor)
    wanted = wanted_of(descriptor, rng)
    raws, expected = [], []
    for _ in range(5):
        parts = []
        for _ in range(rng.randint(1, 2)):
            message = made()
            fill(message, rng)
            parts.append(message.SerializeToString())
        raws.append(b"".join(parts))  # two messages in a row are merged
        expected.append(by_google(made.FromString(raws[-1]), wanted))
    rules = ProtobufRules(descriptor, wanted)
    for raw, values in zip(raws, expected, strict=True):
        assert same(by_rules(rules, raw), values), (wanted, raw)
    assert all(map(same, decoded(decoder(wanted, descriptor).decode_values(raws, times(5)), 5), expected)), wanted
    _damaged(raws, made, wanted, rules, descriptor, rng)


def times(count: int) -> Any:
    return np.arange(count, dtype=np.int64)


def _damaged(raws: list[bytes], made: Any, wanted: list[Wanted], rules: Any, descriptor: Any, rng: Random) -> None:
    """Bytes that are changed, cut off or added: both ways agree, and have the values of Google's parser if that accepts
    them, too. It accepts fields of number 0 within groups."""
    broken = []
    for raw in raws:
        for _ in range(6):
            bad = bytearray(raw)
            match rng.randrange(3):
                case 0 if bad:
                    bad[rng.randrange(len(bad))] = rng.randrange(256)
                case 1 if bad:
                    del bad[rng.randrange(len(bad)) :]
                case _:
                    at = rng.randint(0, len(bad))
                    bad[at:at] = rng.randbytes(rng.randint(1, 6))
            broken.append(bytes(bad))
    found = decoded(decoder(wanted, descriptor).decode_values(broken, times(len(broken))), len(broken))
    for raw, values in zip(broken, found, strict=True):
        assert same(values, by_rules(rules, raw)), (wanted, raw)
        try:
            message = made.FromString(raw)
            rules.values(raw)
        except DecodeError:
            continue
        except RecordError as error:
            if str(error).startswith("broken Protobuf: no field begins"):
                continue
        assert same(values, by_google(message, wanted)), (wanted, raw)


ORDER = """
    name: "order.proto" package: "shop" syntax: "proto3"
    dependency: "google/protobuf/timestamp.proto" dependency: "google/protobuf/wrappers.proto"
    message_type {
      name: "Order"
      field { name: "id" number: 1 type: TYPE_INT64 }
      field { name: "customer" number: 2 type: TYPE_MESSAGE type_name: ".shop.Order.Customer" }
      field { name: "at" number: 3 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" }
      field { name: "price" number: 4 type: TYPE_MESSAGE type_name: ".google.protobuf.DoubleValue" }
      field { name: "state" number: 5 type: TYPE_ENUM type_name: ".shop.State" }
      field { name: "tags" number: 6 type: TYPE_STRING label: LABEL_REPEATED }
      field { name: "labels" number: 7 type: TYPE_MESSAGE type_name: ".shop.Order.LabelsEntry" label: LABEL_REPEATED }
      field { name: "raw" number: 8 type: TYPE_BYTES }
      field { name: "parent" number: 9 type: TYPE_MESSAGE type_name: ".shop.Order" }
      nested_type {
        name: "Customer"
        field { name: "city" number: 1 type: TYPE_STRING }
      }
      nested_type {
        name: "LabelsEntry" options { map_entry: true }
        field { name: "key" number: 1 type: TYPE_STRING }
        field { name: "value" number: 2 type: TYPE_INT32 }
      }
    }
    message_type { name: "Other" field { name: "id" number: 1 type: TYPE_STRING } }
    enum_type { name: "State" value { name: "NEW" number: 0 } value { name: "PAID" number: 1 } }
"""


def order() -> ProtobufSchema:
    from google.protobuf import text_format

    return parse_file(text_format.Parse(ORDER, descriptor_pb2.FileDescriptorProto()).SerializeToString())


COLUMNS = [
    Wanted("id", ("id",), Type.BIGINT),
    Wanted("city", ("customer", "city"), Type.STRING),
    Wanted("at", ("at",), Type.TIMESTAMP),
    Wanted("price", ("price",), Type.DOUBLE),
    Wanted("state", ("state",), Type.STRING),
]


def test_values_of_a_record() -> None:
    descriptor = order().message((0,))
    message = GetMessageClass(descriptor)()
    found = decoder(COLUMNS, descriptor)
    empty = message.SerializeToString()
    message.id, message.customer.city, message.state, message.price.value = 7, "Oslo", 1, 2.5
    message.at.FromMilliseconds(1_700_000_000_123)
    assert table_of(descriptor, COLUMNS) is not None
    rows = decoded(found.decode_values([message.SerializeToString(), b"x", None], times(3)), 3)
    assert rows == [[7, "Oslo", 1_700_000_000_123, 2.5, "PAID"], DEAD, DEAD]
    assert ProtobufRules(descriptor, COLUMNS).values(empty) == [0, None, None, None, "NEW"]


def test_places_in_repeated_fields_and_maps() -> None:
    descriptor = order().message((0,))
    wanted = [
        Wanted("tag", ("tags", 1), Type.STRING),
        Wanted("n", ("labels", "a.b"), Type.BIGINT),
        Wanted("more", ("tags", 9), Type.STRING),
        Wanted("grand", ("parent", "parent", "id"), Type.BIGINT),
    ]
    message = GetMessageClass(descriptor)(tags=["x", "y"], labels={"a.b": 5, "c": 6})
    message.parent.parent.id = 9
    assert table_of(descriptor, wanted) is None
    assert not misfits(descriptor, wanted)
    (row,) = decoded(decoder(wanted, descriptor).decode_values([message.SerializeToString()], times(1)), 1)
    assert row == ["y", 5, None, 9]


def test_frames_name_the_schema_and_the_message_type() -> None:
    schema = order()

    def schema_of(number: int) -> ProtobufSchema:
        if number != 258:
            raise RecordError(f"the registry has no schema {number}")
        return schema

    head = b"\0\0\0\1\2"
    one = GetMessageClass(schema.message((0,)))(id=5).SerializeToString()
    other = GetMessageClass(schema.message((1,)))(id="7").SerializeToString()
    city = GetMessageClass(schema.message((0, 0)))(city="Oslo").SerializeToString()
    wanted = [Wanted("id", ("id",), Type.BIGINT), Wanted("city", ("city",), Type.STRING)]
    values = [
        head + b"\0" + one,
        head + b"\2\0" + one,
        head + b"\4\0\0" + city,
        head + b"\2\2" + other,
        head + b"\2\x12" + one,
        b"\0\0\0\0\1\0" + one,
        one,
        head,
        head + b"\x05" + one,
        head + b"\x02\xff",
    ]
    found = decoder(wanted, schema_of).decode_values(values, times(len(values)))
    rows = decoded(found, len(values))
    assert rows[:3] == [[5, None], [5, None], [None, "Oslo"]]
    reasons = {letter.row: letter.reason for letter in found.dead}
    assert "BIGINT" in reasons[3]
    assert reasons[4] == "the schema has no message type at [9]"
    assert reasons[5] == "the registry has no schema 1"
    assert "no frame of a schema registry" in reasons[6]
    assert "no frame of a schema registry" in reasons[7]
    assert "names no message type" in reasons[8]
    assert "names no message type" in reasons[9]
    assert [letter.raw for letter in found.dead] == values[3:]


def test_columns_of_a_type() -> None:
    found = [(one.name, one.type, one.path) for one in columns_of(order().message((0,)))]
    assert found == [
        ("id", Type.BIGINT, ()),
        ("customer_city", Type.STRING, ("customer", "city")),
        ("at", Type.TIMESTAMP, ()),
        ("price", Type.DOUBLE, ()),
        ("state", Type.STRING, ()),
    ]


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (Wanted("x", ("no",), Type.BIGINT), "column 'x' FROM 'no', which the schema does not have"),
        (Wanted("id", ("id",), Type.STRING), "column 'id' STRING, which the schema has as int64"),
        (Wanted("customer", ("customer",), Type.STRING), "which the schema has as shop.Order.Customer"),
        (Wanted("state", ("state",), Type.DOUBLE), "which the schema has as shop.State"),
        (Wanted("tags", ("tags",), Type.STRING), "which the schema does not have"),
    ],
)
def test_columns_that_no_record_can_have(wanted: Wanted, why: str) -> None:
    (found,) = misfits(order().message((0,)), [wanted])
    assert why in found


def test_sets_of_files() -> None:
    files = [descriptor_pb2.FileDescriptorProto.FromString(order().file.serialized_pb)]
    whole = descriptor_pb2.FileDescriptorSet(file=files)
    schema = parse_set(whole.SerializeToString())
    assert schema.named(None).full_name == "shop.Order"
    assert schema.named("shop.Order.Customer").full_name == "shop.Order.Customer"
    with pytest.raises(DataError, match=r"no message type 'shop.No'; it has shop.Order, shop.Other"):
        schema.named("shop.No")
    with pytest.raises(DataError, match="it has no file"):
        parse_set(b"")
    with pytest.raises(DataError, match="broken Protobuf schema"):
        parse_set(b"\xff")
    with pytest.raises(DataError, match="broken Protobuf schema"):
        parse_file(descriptor_pb2.FileDescriptorProto(name="a", dependency=["b"]).SerializeToString())


def test_files_that_are_imported() -> None:
    base = descriptor_pb2.FileDescriptorProto(name="x", package="base", syntax="proto3")
    base.message_type.add(name="B").field.add(name="v", number=1, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
    main = descriptor_pb2.FileDescriptorProto(syntax="proto3", dependency=["base.proto"])
    field = main.message_type.add(name="M").field.add(name="b", number=1, label=F.LABEL_OPTIONAL)
    field.type, field.type_name = F.TYPE_MESSAGE, ".base.B"
    schema = parse_file(main.SerializeToString(), [("base.proto", base.SerializeToString())])
    assert [one.name for one in columns_of(schema.message((0,)))] == ["b_v"]
    assert wrappers_pb2.DESCRIPTOR.name in {"google/protobuf/wrappers.proto"}
    assert timestamp_pb2.DESCRIPTOR is not None


def test_schemas_without_end() -> None:
    """Types that have each other twice, or within each other without end."""
    file = descriptor_pb2.FileDescriptorProto(syntax="proto3")
    for depth in range(30):
        message = file.message_type.add(name=f"T{depth}")
        for name in ("a", "b"):
            field = message.field.add(name=name, number=len(message.field) + 1, type=F.TYPE_MESSAGE)
            field.type_name = f".T{depth + 1}"
    file.message_type.add(name="T30").field.add(name="x", number=1, type=F.TYPE_BYTES)
    with pytest.raises(DataError, match="too many fields within each other"):
        columns_of(parse_file(file.SerializeToString()).message((0,)))


def test_a_path_through_a_scalar_is_nowhere() -> None:
    """By the rules as by the pass, whether the scalar is there or not."""
    descriptor = order().message((0,))
    wanted = [Wanted("x", ("id", "y"), Type.BIGINT), Wanted("tag", ("tags", 0), Type.STRING)]
    message = GetMessageClass(descriptor)
    for one in (message(), message(id=5)):
        raw = one.SerializeToString()
        assert ProtobufRules(descriptor, wanted).values(raw) == [None, None]
        assert decoded(decoder(wanted[:1], descriptor).decode_values([raw], times(1)), 1) == [[None]]


def test_two_files_of_one_name() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", syntax="proto3")
    with pytest.raises(DataError, match=r"several of its files are called 'a\.proto'"):
        parse_set(descriptor_pb2.FileDescriptorSet(file=[file, file]).SerializeToString())
    own = parse_file(file.SerializeToString(), [("main.proto", file.SerializeToString())])
    assert own.file.name == "_main.proto"
