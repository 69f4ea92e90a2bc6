"""Repeated fields of Protobuf records become the tuples that UNNEST means, as Google's parser reads them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, text_format
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from schemas.codecs.decoded import Decoded, RecordError, Value
from schemas.codecs.wanted import Wanted, WantedArray, wanted_arrays, wanted_of
from schemas.nested.schema_arrays import unnesting
from schemas.protobuf import columns
from schemas.protobuf.decoder import ProtobufDecoder
from schemas.protobuf.descriptors import parse_file
from schemas.protobuf.rules import ElementRules, ProtobufRules, array_field, array_misfits, is_map
from schemas.query import Array, Field, Path, Stream, Type
from tests.profiles import examples
from tests.schemas.protobuf import test_protobuf as plain
from tests.schemas.protobuf.test_protobuf import DEAD, F, file_of, fill, times

Tuples = list[list[Value]] | str
"""The tuples of a record, or DEAD."""


def unnested(fields: Sequence[Wanted], arrays: Sequence[Array]) -> Stream:
    """An unnested stream whose event time is the records' own."""
    found = Stream("s", tuple(Field(one.name, one.type, one.path) for one in fields), "s", "protobuf", timestamp=None)
    for array in arrays:
        found = found.unnest(array)
    return found


def decoded(stream: Stream, schema: Any, values: list[bytes]) -> list[Tuples]:
    """The tuples of each record."""
    found = unnesting(ProtobufDecoder(stream, wanted_of(stream), schema)).decode_values(values, times(len(values)))
    assert list(found.batch.columns) == [field.name for field in stream.fields]
    return by_record(found, len(values))


def by_record(found: Decoded, records: int) -> list[Tuples]:
    rows: list[Any] = [[] for _ in range(records)]
    for dead in found.dead:
        rows[dead.row] = DEAD
    values = [column.to_arrow().to_pylist() for column in found.batch.columns.values()]
    for row, *one in zip(found.rows.tolist(), *values, strict=True):
        rows[row].append(one)
    return rows


def by_rules(stream: Stream, descriptor: Descriptor, raw: bytes) -> Tuples:
    """The tuples of a record by the rules alone."""
    arrays = wanted_arrays(stream)
    rules = ProtobufRules(descriptor, wanted_of(stream), arrays)
    found: list[list[list[Value]]] = [[] for _ in arrays]
    try:
        own = rules.values(raw)
        for number, element in rules.elements(raw):
            field = array_field(descriptor, arrays[number].path)
            assert field is not None
            values = ElementRules(field, arrays[number]).values(element)
            found[number].append([*values, len(found[number]) + 1])
    except RecordError:
        return DEAD
    return [[*own, *itertools.chain(*choice)] for choice in itertools.product(*found)]


def by_google(stream: Stream, message: Any) -> Tuples:
    """The tuples of a record as Google's parser has read it, by the rules of conversion."""
    own = plain.by_google(message, list(wanted_of(stream)))
    arrays = [list(_google_elements(message, array)) for array in wanted_arrays(stream)]
    if own == DEAD or any(DEAD in element for elements in arrays for element in elements):
        return DEAD
    return [[*own, *itertools.chain(*choice)] for choice in itertools.product(*arrays)]


def _google_elements(message: Any, array: WantedArray) -> Iterator[list[Any]]:
    place: Any = message
    field: Any = None
    for step in array.path:
        if isinstance(step, int):
            if step >= len(place):
                return
            place = place[step]
            continue
        field = place.DESCRIPTOR.fields_by_name.get(step) if hasattr(place, "DESCRIPTOR") else None
        if field is None or (not field.is_repeated and field.has_presence and not place.HasField(step)):
            return
        place = getattr(place, step)
    if isinstance(array.path[-1], int) or not field.is_repeated or is_map(field):
        yield [DEAD]
        return
    for n in range(len(place)):
        if not array.rows:
            element = [plain._google_value(message, (*array.path, n), array.elements[0].type)]
        elif field.message_type is None:
            element = [DEAD]
        else:
            element = plain.by_google(place[n], list(array.elements))
        yield [DEAD] if DEAD in (element, *element) else [*element, n + 1]


def arrays_of(descriptor: Descriptor, rng: Random) -> list[Array]:
    """One or two arrays of a message type, mostly of types that fit; rarely something else."""
    places: list[tuple[Path, Any]] = []
    plain._paths(descriptor, (), places, 0)
    repeated = [(path[:-1], field) for path, field in places if field is not None and field.is_repeated]
    if not repeated or rng.random() < 0.05:
        repeated = [(path, field) for path, field in places if field is not None]
    chosen = rng.sample(repeated, min(len(repeated), rng.choice([1, 1, 1, 2])))
    return [_array(f"a{n}", path, field, rng) for n, (path, field) in enumerate(chosen)]


def _array(name: str, place: Path, field: Any, rng: Random) -> Array:
    message = field.message_type
    rows = message is not None and not message.full_name.startswith("google.")
    if rng.random() < 0.05:
        rows = not rows
    if not rows:
        return Array(name, (Field("value", _fitting(field, rng)),), False, place)
    inside: list[tuple[Path, Any]] = []
    if message is not None:
        plain._paths(message, (), inside, 0)
    inside = [(path, one) for path, one in inside if one is not None and one.message_type is None]
    chosen = rng.sample(inside, min(len(inside), rng.randint(1, 3)))
    fields = [Field(".".join(map(str, path)), _fitting(one, rng), path) for path, one in chosen]
    return Array(name, (*fields, Field("absent", Type.STRING))[: rng.choice([len(fields) or 1, 4])], True, place)


def _fitting(field: Any, rng: Random) -> Type:
    fitting = [type for type in Type if plain._fits(type, field)]
    return fitting[0] if fitting and rng.random() < 0.7 else rng.choice(fitting or list(Type))


def with_arrays(seed: int) -> Descriptor:
    """A random message type, with more repeated fields than others have."""
    rng, file = Random(seed), file_of(seed)
    for message in _messages(file.message_type[0]):
        for field in message.field:
            if not field.HasField("oneof_index") and rng.random() < 0.4:
                field.label = F.LABEL_REPEATED
                if rng.random() < 0.3 and field.type not in (F.TYPE_STRING, F.TYPE_BYTES, F.TYPE_MESSAGE):
                    field.options.packed = False
    return parse_file(file.SerializeToString()).message((0,))


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for one in message.nested_type:
        yield from _messages(one)


def same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)


@examples(600, quick=80)
@given(st.integers(0, 2**32))
def test_any_arrays(seed: int) -> None:
    """The compiled pass, the rules and Google's parser agree, on whole, merged and damaged records."""
    rng = Random(seed)
    descriptor = with_arrays(seed)
    made = GetMessageClass(descriptor)
    fields = plain.wanted_of(descriptor, rng)[: rng.randrange(3)]
    stream = unnested(fields, arrays_of(descriptor, rng))
    raws = []
    for _ in range(5):
        parts = []
        for _ in range(rng.choice([1, 1, 2])):
            message = made()
            fill(message, rng)
            parts.append(message.SerializeToString())
        raws.append(b"".join(parts))  # two messages in a row are merged
    expected = [by_google(stream, made.FromString(raw)) for raw in raws]
    assert same([by_rules(stream, descriptor, raw) for raw in raws], expected), stream
    assert same(decoded(stream, descriptor, raws), expected), stream
    broken = [_damaged(raw, rng) for raw in raws for _ in range(6)]
    found = decoded(stream, descriptor, broken)
    assert same(found, [by_rules(stream, descriptor, raw) for raw in broken]), stream
    for raw, tuples in zip(broken, found, strict=True):
        try:
            message = made.FromString(raw)
            ProtobufRules(descriptor, ()).values(raw)
        except (DecodeError, RecordError):
            continue
        assert same(tuples, by_google(stream, message)), (stream, raw)


def _damaged(raw: bytes, rng: Random) -> bytes:
    bad = bytearray(raw)
    match rng.randrange(3):
        case 0 if bad:
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        case 1 if bad:
            del bad[rng.randrange(len(bad)) :]
        case _:
            at = rng.randint(0, len(bad))
            bad[at:at] = rng.randbytes(rng.randint(1, 6))
    return bytes(bad)


# --- By hand ---------------------------------------------------------------------------------------------------

ORDER = """
    name: "order.proto" package: "shop" syntax: "proto3"
    dependency: "google/protobuf/timestamp.proto" dependency: "google/protobuf/wrappers.proto"
    enum_type { name: "Color" value { name: "RED" number: 0 } value { name: "BLUE" number: 1 } }
    message_type {
      name: "Order"
      field { name: "id" number: 1 type: TYPE_INT64 }
      field { name: "items" number: 2 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".shop.Order.Item" }
      field { name: "sizes" number: 3 label: LABEL_REPEATED type: TYPE_SINT32 }
      field { name: "loose" number: 4 label: LABEL_REPEATED type: TYPE_SINT32 options { packed: false } }
      field { name: "weights" number: 5 label: LABEL_REPEATED type: TYPE_DOUBLE }
      field { name: "tags" number: 6 label: LABEL_REPEATED type: TYPE_STRING }
      field { name: "colors" number: 7 label: LABEL_REPEATED type: TYPE_ENUM type_name: ".shop.Color" }
      field { name: "times" number: 8 label: LABEL_REPEATED type: TYPE_MESSAGE
              type_name: ".google.protobuf.Timestamp" }
      field { name: "boxed" number: 9 label: LABEL_REPEATED type: TYPE_MESSAGE
              type_name: ".google.protobuf.Int64Value" }
      field { name: "counts" number: 10 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".shop.Order.CountsEntry" }
      field { name: "note" number: 11 type: TYPE_STRING proto3_optional: true oneof_index: 0 }
      oneof_decl { name: "_note" }
      nested_type {
        name: "Item"
        field { name: "sku" number: 1 type: TYPE_STRING }
        field { name: "qty" number: 2 type: TYPE_INT32 proto3_optional: true oneof_index: 0 }
        field { name: "parts" number: 3 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".shop.Order.Item" }
        field { name: "town" number: 4 type: TYPE_MESSAGE type_name: ".shop.Order.Town" }
        oneof_decl { name: "_qty" }
      }
      nested_type {
        name: "Town"
        field { name: "name" number: 1 type: TYPE_STRING }
      }
      nested_type {
        name: "CountsEntry" options { map_entry: true }
        field { name: "key" number: 1 type: TYPE_STRING }
        field { name: "value" number: 2 type: TYPE_INT32 }
      }
    }
"""


def order_type() -> Descriptor:
    file = text_format.Parse(ORDER, descriptor_pb2.FileDescriptorProto())
    return parse_file(file.SerializeToString()).message((0,))


ORDER_TYPE = order_type()
Order: Any = GetMessageClass(ORDER_TYPE)
ITEMS = Array("items", (Field("sku", Type.STRING), Field("qty", Type.BIGINT)), rows=True)
ID = Wanted("id", ("id",), Type.BIGINT)
FULL = Order(
    id=7,
    items=[{"sku": "a", "qty": 2}, {"sku": "ä"}, {}],
    sizes=[-1, 300, 0],
    loose=[5, -(1 << 31)],
    weights=[0.5, -2.0],
    tags=["x", "", "y"],
    colors=[1, 0],
    times=[{"seconds": 2, "nanos": 5_000_000}, {}],
    boxed=[{"value": 3}, {}],
).SerializeToString()


def scalars(name: str, type: Type) -> Array:
    return Array(name, (Field("value", type),), rows=False)


@pytest.mark.parametrize(
    ("array", "elements"),
    [
        (ITEMS, [["a", 2], ["ä", None], ["", None]]),
        (scalars("sizes", Type.BIGINT), [[-1], [300], [0]]),
        (scalars("loose", Type.DOUBLE), [[5.0], [-2147483648.0]]),
        (scalars("weights", Type.DOUBLE), [[0.5], [-2.0]]),
        (scalars("tags", Type.STRING), [["x"], [""], ["y"]]),
        (scalars("colors", Type.STRING), [["BLUE"], ["RED"]]),
        (scalars("times", Type.TIMESTAMP), [[2005], [0]]),
        (scalars("boxed", Type.BIGINT), [[3], [0]]),
        (scalars("nowhere", Type.BIGINT), []),
    ],
)
def test_what_is_read_by_the_compiled_pass(
    array: Array, elements: list[list[Value]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> list[Value]:
        raise AssertionError("the rules were asked")

    monkeypatch.setattr(ProtobufRules, "values", refuse)
    monkeypatch.setattr(ElementRules, "values", refuse)
    expected = [[7, *element, n] for n, element in enumerate(elements, 1)]
    assert decoded(unnested([ID], [array]), ORDER_TYPE, [FULL, b"", FULL]) == [expected, [], expected]


def test_several_arrays() -> None:
    stream = unnested([], [ITEMS, scalars("colors", Type.STRING)])
    (found,) = decoded(stream, ORDER_TYPE, [FULL])
    assert found == [
        [sku, qty, n, color, k]
        for n, (sku, qty) in enumerate([("a", 2), ("ä", None), ("", None)], 1)
        for k, color in enumerate(["BLUE", "RED"], 1)
    ]


def test_a_bad_element_makes_its_record_a_dead_letter() -> None:
    def reasons(array: Array, record: bytes = FULL) -> list[str]:
        stream = unnested([ID], [array])
        decoder = unnesting(ProtobufDecoder(stream, wanted_of(stream), ORDER_TYPE))
        found = decoder.decode_values([b"", record, b""], times(3))
        assert [letter.row for letter in found.dead] in ([], [1])
        return [letter.reason for letter in found.dead]

    infinite = Order(weights=[1.0, math.inf]).SerializeToString()
    (reason,) = reasons(scalars("weights", Type.DOUBLE), infinite)
    assert reason.startswith("element 2 of 'weights': field 'weights.value' is inf, DOUBLE accepts")
    (reason,) = reasons(Array("items", (Field("sku", Type.BIGINT),), rows=True))
    assert reason.startswith("element 1 of 'items': field 'items.sku' is 'a', BIGINT accepts")
    (reason,) = reasons(Array("sizes", (Field("x", Type.BIGINT),), rows=True))
    assert reason == "element 1 of 'sizes': a value of type sint32 is no message"
    (reason,) = reasons(scalars("counts", Type.BIGINT), Order(counts={"a": 1}).SerializeToString())
    assert reason == "field 'counts' is a map, which is no array"
    (reason,) = reasons(scalars("note", Type.STRING), Order(note="a").SerializeToString())
    assert reason == "field 'note' is a value of type string, which is no array"
    assert reasons(scalars("note", Type.STRING)) == []


def test_what_a_schema_does_not_have() -> None:
    def misfits(*arrays: Array) -> list[str]:
        return array_misfits(ORDER_TYPE, wanted_arrays(unnested([], arrays)))

    assert misfits(ITEMS, scalars("sizes", Type.BIGINT), scalars("times", Type.TIMESTAMP)) == []
    assert misfits(scalars("goods", Type.STRING)) == ["array 'goods', which the schema does not have"]
    assert misfits(scalars("id", Type.STRING)) == ["array 'id', which the schema has as int64"]
    assert misfits(scalars("sizes", Type.STRING)) == ["array 'sizes' of STRING, of which the schema has sint32"]
    assert misfits(Array("sizes", (Field("x", Type.STRING),), rows=True)) == [
        "array 'sizes' of ROW, of which the schema has sint32"
    ]
    assert misfits(Array("items", (Field("x", Type.STRING),), rows=True)) == [
        "column 'items.x' FROM 'x', which the schema does not have"
    ]


def test_arrays_of_a_schema() -> None:
    assert [field.name for field in columns.columns_of(ORDER_TYPE)] == ["id", "note"]
    assert columns.arrays_of(ORDER_TYPE) == [
        Array("items", (*ITEMS.fields, Field("town_name", Type.STRING, ("town", "name"))), rows=True),
        scalars("sizes", Type.BIGINT),
        scalars("loose", Type.BIGINT),
        scalars("weights", Type.DOUBLE),
        scalars("tags", Type.STRING),
        scalars("colors", Type.STRING),
        scalars("times", Type.TIMESTAMP),
        scalars("boxed", Type.BIGINT),
    ]
