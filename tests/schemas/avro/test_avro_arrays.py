"""Arrays in Avro records become the tuples that UNNEST means, by every way of reading."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.avro.decoder import AvroDecoder
from schemas.avro.rules import AvroRules, array_misfits, element_kinds
from schemas.avro.schema import Avro
from schemas.codecs.decoded import Decoded, RecordError, Value
from schemas.codecs.wanted import Wanted, wanted_arrays, wanted_of
from schemas.nested.schema_arrays import unnesting
from schemas.query import Array, Field, Path, Stream, Type
from tests.profiles import examples
from tests.schemas.avro.random_avro import RandomAvro, long
from tests.schemas.avro.test_avro import (
    DEAD,
    FITTING,
    at,
    columns,
    expected,
    found_at,
    framed,
    kind_at,
    parsed,
    paths,
    registry,
)

Tuples = list[list[Value]] | str
"""The tuples of a record, or DEAD."""


def unnested(fields: Sequence[Wanted], arrays: Sequence[Array]) -> Stream:
    """An unnested stream whose event time is the records' own."""
    found = Stream("s", tuple(Field(one.name, one.type, one.path) for one in fields), "s", "avro", timestamp=None)
    for array in arrays:
        found = found.unnest(array)
    return found


def decoded(stream: Stream, schema: Any, values: list[bytes]) -> list[Tuples]:
    """The tuples of each record."""
    found = unnesting(AvroDecoder(stream, wanted_of(stream), schema)).decode_values(values, at(len(values)))
    assert list(found.batch.columns) == [field.name for field in stream.fields]
    return by_record(found, len(values))


def by_record(found: Decoded, records: int) -> list[Tuples]:
    rows: list[Any] = [[] for _ in range(records)]
    for dead in found.dead:
        rows[dead.row] = DEAD
    values = [column.to_arrow().to_pylist() for column in found.batch.columns.values()]
    for row, ts, *one in zip(found.rows.tolist(), found.batch.ts.tolist(), *values, strict=True):
        assert ts == row
        rows[row].append(one)
    return rows


# --- What is expected, from the values and not from their bytes ---------------------------------------------


def expected_tuples(stream: Stream, schema: Any, value: Any) -> Tuples:
    own: list[Any] = [expected(schema, value, one) for one in wanted_of(stream)]
    arrays = [list(expected_elements(array, schema, value)) for array in stream.unnested]
    if DEAD in own or any(DEAD in element for elements in arrays for element in elements):
        return DEAD
    return [[*own, *itertools.chain(*choice)] for choice in itertools.product(*arrays)]


def expected_elements(array: Array, schema: Any, value: Any) -> Iterator[list[Any]]:
    """For each element its values and its place, or DEAD alone."""
    schema, value = found_at(schema, value, array.place)
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "null":
        return
    if kind != "array":
        yield [DEAD]
        return
    for ordinal, one in enumerate(value, 1):
        items, element = found_at(schema["items"], one, ())
        kind = items if isinstance(items, str) else items["type"]
        if array.rows and kind not in ("record", "map", "null"):
            yield [DEAD]
            continue
        wanted = [Wanted(field.name, field.place if array.rows else (), field.type) for field in array.fields]
        yield [*(expected(items, element, field) for field in wanted), ordinal]


def by_rules(stream: Stream, schema: Avro, raw: bytes) -> Tuples:
    """The tuples of a record by the rules alone."""
    arrays = wanted_arrays(stream)
    kinds = element_kinds(schema, arrays)
    rules = AvroRules(schema, wanted_of(stream), arrays)
    found: list[list[list[Value]]] = [[] for _ in arrays]
    try:
        own = rules.values(raw)
        for number, element in rules.elements(raw):
            array = arrays[kinds[number].array]
            values = AvroRules(kinds[number].items, array.elements, rows=array.rows).values(element)
            so_far = found[kinds[number].array]
            so_far.append([*values, len(so_far) + 1])
    except RecordError:
        return DEAD
    return [[*own, *itertools.chain(*choice)] for choice in itertools.product(*found)]


# --- Random arrays --------------------------------------------------------------------------------------------


READ = ("int", "long", "boolean", "string", "enum", "double")
"""Kinds that mostly have a value that a column accepts."""


def arrays_of(schema: Any, rng: Random) -> list[Array]:
    """One or two arrays of a schema, mostly of types that fit; rarely something else."""
    places = [path for path in paths(schema, rng) if path and kind_at(schema, path) == "array"]
    fine = [place for place in places if kind_at(schema, (*place, 0)) in (*READ, "record")]
    places = fine if fine and rng.random() < 0.95 else places
    places = places if places and rng.random() < 0.95 else [path for path in paths(schema, rng) if path]
    chosen = rng.sample(places, min(len(places), rng.choice([1, 1, 1, 2])))
    return [_array(f"a{n}", schema, place, rng) for n, place in enumerate(chosen)]


def _array(name: str, schema: Any, place: Path, rng: Random) -> Array:
    step = (*place, 0)
    inside = {path[len(step) :] for path in paths(schema, rng) if path[: len(place)] == place and len(path) > len(step)}
    names = sorted((one for one in inside if isinstance(one[0], str)), key=str)
    names = [one for one in names if kind_at(schema, (*step, *one)) in READ] or names
    rows = bool(names) if rng.random() < 0.95 else not names
    if not rows:
        return Array(name, (Field("value", _fitting(schema, step, rng)),), False, place)
    names = rng.sample(names, rng.randint(1, min(len(names), 4))) if names else [("x",)]
    names += rng.choice([[], [("absent",)]])
    fields = [Field(".".join(map(str, one)), _fitting(schema, (*step, *one), rng), one) for one in names]
    return Array(name, tuple(fields), True, place)


def _fitting(schema: Any, path: Path, rng: Random) -> Type:
    kinds = FITTING.get(kind_at(schema, path), tuple(Type))
    return rng.choice(kinds[:1] if rng.random() < 0.95 else tuple(Type))


def own_columns(schema: Any, rng: Random) -> list[Wanted]:
    """A few columns beside the arrays."""
    found = [one for one in columns(schema, rng) if kind_at(schema, one.path) in READ or rng.random() < 0.1]
    return found[: rng.randrange(3)]


def with_arrays(avro: RandomAvro) -> Any:
    """A record with an array of records, beside all else."""
    rng = avro.rng
    schema = avro.record()
    items = rng.choice([lambda: avro.record(2), lambda: ["null", avro.record(2)], lambda: avro.schema(2)])()
    array: Any = {"type": "array", "items": items}
    array = rng.choice([array, array, ["null", array], [array, "null", "long"], {"type": "map", "values": array}])
    schema["fields"].insert(rng.randint(0, len(schema["fields"])), {"name": "items", "type": array})
    return schema


def evolved(schema: Any, rng: Random) -> Any:
    """The schema as another writer has it: fields added, removed, in another order, promoted, made nullable."""
    if isinstance(schema, list):
        return [evolved(one, rng) for one in schema]
    if schema in ("int", "float") and rng.random() < 0.4:
        return {"int": "long", "float": "double"}[schema]
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for inside in ("items", "values"):
        if inside in found:
            found[inside] = evolved(found[inside], rng)
    if found["type"] == "record":
        fields = [{**field, "type": evolved(field["type"], rng)} for field in found["fields"] if rng.random() < 0.85]
        for field in fields:
            if not isinstance(field["type"], list) and field["type"] != "null" and rng.random() < 0.2:
                field["type"] = ["null", field["type"]]
        if rng.random() < 0.5:
            fields.append({"name": "added", "type": rng.choice(["string", "long", {"type": "array", "items": "int"}])})
        rng.shuffle(fields)
        found["fields"] = fields
    return found


@examples(1500, quick=150)
@given(st.integers(0, 2**40))
def test_any_arrays(seed: int) -> None:
    rng = Random(seed)
    avro = RandomAvro(rng)
    schema = with_arrays(avro)
    stream = unnested(own_columns(schema, rng), arrays_of(schema, rng))
    writers = [schema, evolved(schema, rng)]
    by = [rng.randrange(2) for _ in range(rng.randint(1, 8))]
    given = [avro.value(writers[n]) for n in by]
    raw = [avro.written(writers[n], value) for n, value in zip(by, given, strict=True)]
    tuples = [expected_tuples(stream, writers[n], value) for n, value in zip(by, given, strict=True)]
    for n, one, own in zip(by, raw, tuples, strict=True):
        assert repr(by_rules(stream, parsed(writers[n]), one)) == repr(own)
    known = registry(dict(enumerate(writers)))
    assert repr(decoded(stream, known, [framed(n, one) for n, one in zip(by, raw, strict=True)])) == repr(tuples)
    own = [(one, expect) for n, one, expect in zip(by, raw, tuples, strict=True) if n == 0 and one]
    assert repr(decoded(stream, parsed(schema), [one for one, _ in own])) == repr([expect for _, expect in own])


@examples(1000, quick=120)
@given(st.integers(0, 2**40))
def test_damaged_records(seed: int) -> None:
    """The compiled pass never disagrees with the rules, and a damaged record leaves the others alone."""
    rng = Random(seed)
    avro = RandomAvro(rng)
    schema = with_arrays(avro)
    stream = unnested(own_columns(schema, rng), arrays_of(schema, rng))
    raw = []
    for _ in range(rng.randint(1, 12)):
        one = bytearray(avro.written(schema, avro.value(schema)))
        for _ in range(rng.choice([0, 1, 1, 3])):
            place = rng.randrange(len(one) + 1)
            match rng.randrange(3):
                case 0 if one:
                    one[place % len(one)] = rng.randrange(256)
                case 1:
                    del one[place:]
                case _:
                    one[place:place] = rng.randbytes(rng.randint(1, 12))
        raw.append(bytes(one) or b"\xff")
    type = parsed(schema)
    assert repr(decoded(stream, type, raw)) == repr([by_rules(stream, type, one) for one in raw])


# --- By hand ---------------------------------------------------------------------------------------------------

ITEM = {
    "type": "record",
    "name": "Item",
    "fields": [{"name": "sku", "type": "string"}, {"name": "qty", "type": ["null", "int"], "default": None}],
}
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "items", "type": ["null", {"type": "array", "items": ITEM}], "default": None},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
    ],
}
ITEMS = Array("items", (Field("sku", Type.STRING), Field("qty", Type.BIGINT)), rows=True)
TAGS = Array("tags", (Field("value", Type.STRING),), rows=False)
ID = Wanted("id", ("id",), Type.BIGINT)


def by_fastavro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


ORDERS = [
    {"id": 1, "items": [{"sku": "a", "qty": 2}, {"sku": "b", "qty": None}], "tags": ["x", None]},
    {"id": 2, "items": None, "tags": ["y"]},
    {"id": 3, "items": [], "tags": []},
    {"id": 4, "items": [{"sku": "ä", "qty": 5}], "tags": ["z"]},
]


def test_what_fastavro_writes_is_read_by_the_compiled_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> list[Value]:
        raise AssertionError("the rules were asked")

    monkeypatch.setattr(AvroRules, "values", refuse)
    raw = [by_fastavro(ORDER, order) for order in ORDERS]
    assert decoded(unnested([ID], [ITEMS]), parsed(ORDER), raw) == [
        [[1, "a", 2, 1], [1, "b", None, 2]],
        [],
        [],
        [[4, "ä", 5, 1]],
    ]
    assert decoded(unnested([ID], [TAGS]), parsed(ORDER), raw) == [
        [[1, "x", 1], [1, None, 2]],
        [[2, "y", 1]],
        [],
        [[4, "z", 1]],
    ]
    assert decoded(unnested([], [ITEMS, TAGS]), parsed(ORDER), raw) == [
        [["a", 2, 1, "x", 1], ["a", 2, 1, None, 2], ["b", None, 2, "x", 1], ["b", None, 2, None, 2]],
        [],
        [],
        [["ä", 5, 1, "z", 1]],
    ]


def test_many_small_elements() -> None:
    """More than the first guess has room for."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "tags", "type": {"type": "array", "items": "int"}}]}
    raw = by_fastavro(schema, {"tags": list(range(50))})
    numbers = Array("tags", (Field("value", Type.BIGINT),), rows=False)
    (found,) = decoded(unnested([], [numbers]), parsed(schema), [raw])
    assert found == [[n, n + 1] for n in range(50)]


def test_writers_add_a_field_to_elements_in_mid_run() -> None:
    later = {**ITEM, "fields": [{"name": "price", "type": "double"}, *ITEM["fields"]]}  # type: ignore[misc]
    fields = [ORDER["fields"][0], {"name": "items", "type": {"type": "array", "items": later}}]  # type: ignore[index]
    newer = {**ORDER, "fields": fields}
    older = {**ORDER, "fields": ORDER["fields"][:1]}  # type: ignore[index]
    values = [
        framed(1, by_fastavro(ORDER, ORDERS[0])),
        framed(2, by_fastavro(newer, {"id": 5, "items": [{"price": 1.5, "sku": "c", "qty": 1}]})),
        framed(3, by_fastavro(older, {"id": 6})),
        framed(1, by_fastavro(ORDER, ORDERS[3])),
    ]
    price = Field("price", Type.DOUBLE)
    stream = unnested([ID], [Array("items", (*ITEMS.fields, price), rows=True)])
    assert decoded(stream, registry({1: ORDER, 2: newer, 3: older}), values) == [
        [[1, "a", 2, None, 1], [1, "b", None, None, 2]],
        [[5, "c", 1, 1.5, 1]],
        [],
        [[4, "ä", 5, None, 1]],
    ]


def test_a_bad_element_makes_its_record_a_dead_letter() -> None:
    wrong = Array("items", (Field("sku", Type.BIGINT),), rows=True)
    stream, raw = unnested([ID], [wrong]), [by_fastavro(ORDER, order) for order in ORDERS]
    found = unnesting(AvroDecoder(stream, wanted_of(stream), parsed(ORDER))).decode_values(raw, at(4))
    assert [(letter.row, letter.raw) for letter in found.dead] == [(0, raw[0]), (3, raw[3])]
    assert found.dead[0].reason.startswith("element 1 of 'items': field 'items.sku' is 'a', BIGINT accepts")
    flat = Array("items", (Field("value", Type.STRING),), rows=False)
    stream = unnested([ID], [flat])
    found = unnesting(AvroDecoder(stream, wanted_of(stream), parsed(ORDER))).decode_values(raw, at(4))
    assert [letter.row for letter in found.dead] == [0, 3]
    assert "'items.value' is a record" in found.dead[0].reason
    other = Array("id", (Field("value", Type.STRING),), rows=False)
    (letter, *_) = unnesting(AvroDecoder(unnested([], [other]), (), parsed(ORDER))).decode_values(raw, at(4)).dead
    assert letter.reason == "field 'id' is long 1, which is no array"


def test_the_last_of_equal_keys_of_a_map_counts() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "m", "type": {"type": "map", "values": {"type": "array", "items": "long"}}}],
    }
    array = Array("m", (Field("value", Type.BIGINT),), rows=False, path=("m", "k"))
    raw = long(2) + (long(1) + b"k" + long(2) + long(7) + long(8) + b"\0") + (long(1) + b"k" + b"\0") + b"\0"
    more = long(1) + (long(1) + b"k" + long(1) + long(9) + b"\0") + b"\0"
    assert decoded(unnested([], [array]), parsed(schema), [raw, more]) == [[], [[9, 1]]]


def test_what_a_schema_does_not_have() -> None:
    def misfits(*arrays: Array) -> list[str]:
        return array_misfits(parsed(ORDER), wanted_arrays(unnested([], arrays)))

    assert misfits(ITEMS, TAGS) == []
    nix, qty = Field("nix", Type.STRING), Field("qty", Type.STRING)
    assert misfits(Array("goods", (nix,), rows=True)) == ["array 'goods', which the schema does not have"]
    assert misfits(Array("id", (nix,), rows=True)) == ["array 'id', which the schema has as long"]
    assert misfits(Array("items", (nix, qty), rows=True)) == [
        "column 'items.nix' FROM 'nix', which the schema does not have (it has: 'sku, qty')",
        "column 'items.qty' STRING, which the schema has as null or int",
    ]


def test_nothing() -> None:
    stream = unnested([ID], [ITEMS])
    found = unnesting(AvroDecoder(stream, wanted_of(stream), parsed(ORDER))).decode_values([])
    assert list(found.batch.columns) == [field.name for field in stream.fields]
    (letter,) = unnesting(AvroDecoder(stream, wanted_of(stream), parsed(ORDER))).decode_values([None], at(1)).dead
    assert letter.row == 0
