"""Avro records become the columns that the specification and the rules of conversion say, by every way of reading."""

from __future__ import annotations

import io
import math
from decimal import Decimal
from random import Random
from typing import Any

import fastavro
import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.avro.columns import columns_of
from schemas.avro.decoder import AvroDecoder
from schemas.avro.layout import program_of
from schemas.avro.rules import AvroRules, Path
from schemas.avro.schema import Avro, parse_avro
from schemas.codecs.decoded import Decoded, RecordError, Value
from schemas.codecs.wanted import Wanted
from schemas.columns import Batch
from schemas.errors import DataError
from schemas.query import Field, Stream, Type
from schemas.timestamps import parse_iso
from tests.profiles import examples
from tests.schemas.avro.random_avro import RandomAvro, long, plain, without_logical

DEAD = "dead letter"
ABSENT = object()


def decoder(wanted: list[Wanted], schema: Any) -> AvroDecoder:
    """A decoder of a stream whose event time is the records' own."""
    fields = tuple(Field(one.name, one.type) for one in wanted)
    return AvroDecoder(Stream("s", fields, "s", timestamp=None), wanted, schema)


def decoded(found: Decoded, records: int) -> list[Any]:
    """Per record its values, or DEAD."""
    rows: list[Any] = [None] * records
    for dead in found.dead:
        rows[dead.row] = DEAD
    for row, values in zip(found.rows.tolist(), values_of(found.batch), strict=True):
        rows[row] = values
    return rows


def values_of(batch: Batch) -> list[list[Value]]:
    """The rows of a batch."""
    columns = [column.to_arrow().to_pylist() for column in batch.columns.values()]
    return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in range(len(batch))]


def at(count: int) -> Any:
    """Event times."""
    return np.arange(count, dtype=np.int64)


# --- What is expected, from the values and not from their bytes ---------------------------------------------


def paths(schema: Any, rng: Random) -> list[Path]:
    """Paths that records of a schema may have, to anything."""
    if isinstance(schema, list):
        return [path for branch in schema for path in paths(branch, rng)]
    found: list[Path] = [()]
    if isinstance(schema, dict):
        match schema["type"]:
            case "record":
                found += [(f["name"], *path) for f in schema["fields"] for path in paths(f["type"], rng)]
            case "array":
                found += [(rng.randrange(3), *path) for path in paths(schema["items"], rng)]
            case "map":
                found += [(rng.choice("abc"), *path) for path in paths(schema["values"], rng)]
    return found


def found_at(schema: Any, value: Any, path: Path) -> tuple[Any, Any]:
    """The type and the value at a path; a null where there is none."""
    if isinstance(schema, list):
        branch, inside = value
        return found_at(schema[branch], inside, path)
    if not path:
        return schema, value
    kind = schema["type"] if isinstance(schema, dict) else schema
    step, rest = path[0], path[1:]
    if kind == "record":
        types = {field["name"]: field["type"] for field in schema["fields"]}
        return found_at(types[step], value[step], rest) if step in types else ("null", None)
    if kind == "map" and step in value:
        return found_at(schema["values"], value[step], rest)
    if kind == "array" and isinstance(step, int) and step < len(value):
        return found_at(schema["items"], value[step], rest)
    return "null", None


def expected(schema: Any, value: Any, wanted: Wanted) -> Value:
    """The value of a column, or DEAD."""
    schema, value = found_at(schema, value, wanted.path)
    kind = schema if isinstance(schema, str) else schema["type"]
    logical = schema.get("logicalType", "") if isinstance(schema, dict) else ""
    if kind == "null":
        return None
    match wanted.type, kind:
        case Type.BIGINT, "int" | "long":
            return value
        case Type.DOUBLE, "int" | "long":
            return float(value)
        case Type.DOUBLE, "float" | "double" if math.isfinite(value):
            return value
        case Type.BOOLEAN, "boolean":
            return value
        case ((Type.DOUBLE | Type.STRING), "bytes" | "fixed") if logical == "decimal":
            number = Decimal(int.from_bytes(value, "big", signed=True)) / 10 ** schema["scale"]
            return float(number) if wanted.type is Type.DOUBLE else f"{number:.{schema['scale']}f}"
        case Type.STRING, "string" | "enum":
            return value
        case Type.STRING, "bytes":
            return value.decode() if is_text(value) else DEAD
        case Type.TIMESTAMP, "long":
            return math.floor(value // {"timestamp-micros": 1000, "timestamp-nanos": 10**6}.get(logical, 1))
        case Type.TIMESTAMP, "int" if logical == "date":
            return value * 24 * 60 * 60 * 1000
        case Type.TIMESTAMP, "string":
            try:
                return parse_iso(value)
            except ValueError:
                return DEAD
    return DEAD


def is_text(value: bytes) -> bool:
    """Whether bytes are UTF-8."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


FITTING = {
    "int": (Type.BIGINT, Type.DOUBLE, Type.TIMESTAMP),
    "long": (Type.BIGINT, Type.DOUBLE, Type.TIMESTAMP),
    "float": (Type.DOUBLE,),
    "double": (Type.DOUBLE,),
    "boolean": (Type.BOOLEAN,),
    "bytes": (Type.STRING, Type.DOUBLE),
    "fixed": (Type.DOUBLE, Type.STRING),
    "string": (Type.STRING, Type.TIMESTAMP),
    "enum": (Type.STRING,),
}


def columns(schema: Any, rng: Random) -> list[Wanted]:
    """Some columns, mostly of types that fit."""
    chosen = rng.sample(some := paths(schema, rng), min(len(some), rng.randint(1, 5)))
    found = []
    for n, path in enumerate(chosen):
        kinds = FITTING.get(kind_at(schema, path), tuple(Type))
        found.append(Wanted(f"c{n}", path, rng.choice(kinds if rng.random() < 0.9 else tuple(Type))))
    return found


def kind_at(schema: Any, path: Path) -> str:
    """The kind of the last branch that has a path."""
    if isinstance(schema, list):
        kinds = [kind for branch in schema if (kind := kind_at(branch, path)) not in ("", "null")]
        return kinds[-1] if kinds else ""
    kind = schema if isinstance(schema, str) else schema["type"]
    if not path:
        return str(kind)
    match kind:
        case "record":
            types = {field["name"]: field["type"] for field in schema["fields"]}
            return kind_at(types[path[0]], path[1:]) if path[0] in types else ""
        case "array" | "map":
            return kind_at(schema["items" if kind == "array" else "values"], path[1:])
    return ""


def parsed(schema: Any) -> Avro:
    """The type of a schema."""
    return parse_avro(orjson.dumps(schema))


# --- Properties ------------------------------------------------------------------------------------------------


@examples(800, quick=120)
@given(st.integers(0, 2**40))
def test_any_schema_gives_the_expected_columns(seed: int) -> None:
    rng = Random(seed)
    avro = RandomAvro(rng)
    schema = avro.record()
    wanted = columns(schema, rng)
    given = [avro.value(schema) for _ in range(rng.randint(1, 8))]
    raw = [avro.written(schema, value) for value in given]
    rows = [[expected(schema, value, one) for one in wanted] for value in given]
    rows = [DEAD if DEAD in row else row for row in rows]
    type = parsed(schema)
    rules = AvroRules(type, wanted)
    assert [read(rules, one) for one in raw] == rows
    if all(len(one) for one in raw):
        assert decoded(decoder(wanted, type).decode_values(raw, at(len(raw))), len(raw)) == rows


def read(rules: AvroRules, raw: bytes) -> Any:
    """The values of a record by the rules, or DEAD."""
    try:
        return rules.values(raw)
    except RecordError:
        return DEAD


@examples(400, quick=60)
@given(st.integers(0, 2**40))
def test_fastavro_reads_the_same_records(seed: int) -> None:
    """So the bytes that the other tests make are Avro."""
    avro = RandomAvro(Random(seed))
    schema = avro.record()
    value = avro.value(schema)
    stream = io.BytesIO(raw := avro.written(schema, value))
    assert repr(fastavro.schemaless_reader(stream, without_logical(schema), None)) == repr(plain(schema, value))
    assert stream.tell() == len(raw)


@examples(800, quick=120)
@given(st.integers(0, 2**40))
def test_damaged_records_are_read_by_no_rule_of_their_own(seed: int) -> None:
    """The compiled pass never disagrees with the rules, and a damaged record leaves the others alone."""
    rng = Random(seed)
    avro = RandomAvro(rng)
    schema = avro.record()
    wanted = columns(schema, rng)
    raw = []
    for _ in range(rng.randint(1, 12)):
        one = bytearray(avro.written(schema, avro.value(schema)))
        for _ in range(rng.choice([0, 1, 1, 3])):
            if not one:
                break
            place = rng.randrange(len(one))
            match rng.randrange(4):
                case 0:
                    one[place] ^= 1 << rng.randrange(8)
                case 1:
                    del one[place:]
                case 2:
                    one[place:place] = rng.randbytes(rng.randint(1, 12))
                case 3:
                    one[place] = rng.choice([0xFF, 0x80, 0, 1])
        raw.append(bytes(one) or b"\xff")
    rules = AvroRules(parsed(schema), wanted)
    found = decoded(decoder(wanted, parsed(schema)).decode_values(raw, at(len(raw))), len(raw))
    assert [repr(row) for row in found] == [repr(read(rules, one)) for one in raw]


# --- By hand -----------------------------------------------------------------------------------------------------

SENSOR = {
    "type": "record",
    "name": "Sensor",
    "namespace": "lab",
    "fields": [
        {"name": "mote", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "temperature", "type": ["null", "double"]},
        {"name": "place", "type": {"type": "record", "name": "Place", "fields": [{"name": "room", "type": "string"}]}},
    ],
}
LATER = SENSOR | {"fields": [*SENSOR["fields"], {"name": "unit", "type": "string", "default": "C"}]}  # type: ignore[misc]
MOTE = Wanted("mote", ("mote",), Type.BIGINT)
ROOM = Wanted("room", ("place", "room"), Type.STRING)
UNIT = Wanted("unit", ("unit",), Type.STRING, "C")


def sensor(mote: int, unit: str | None = None) -> bytes:
    """A record of SENSOR, or of LATER with a unit."""
    text = b"" if unit is None else long(len(unit)) + unit.encode()
    return long(mote) + long(1000) + long(0) + long(2) + b"R1" + text


def framed(number: int, raw: bytes) -> bytes:
    """A record in the wire format of schema registries."""
    return b"\0" + number.to_bytes(4, "big") + raw


def registry(schemas: dict[int, Any]) -> Any:
    """What returns schemas by number."""

    def schema_of(number: int) -> Avro:
        if number not in schemas:
            raise RecordError(f"the registry has no schema {number}")
        return parsed(schemas[number])

    return schema_of


def test_each_record_is_read_by_its_own_schema() -> None:
    """Writers add a field in mid-run. Records from before have its default."""
    values = [framed(7, sensor(1)), framed(9, sensor(2, "F")), framed(7, sensor(3)), framed(8, sensor(4)), b"{}", None]
    found = decoder([MOTE, ROOM, UNIT], registry({7: SENSOR, 9: LATER})).decode_values(values, at(6))
    assert values_of(found.batch) == [[1, "R1", "C"], [2, "R1", "F"], [3, "R1", "C"]]
    assert [(dead.row, dead.raw) for dead in found.dead] == [(3, values[3]), (4, b"{}"), (5, b"")]
    assert [dead.reason.split(":")[0] for dead in found.dead] == [
        "the registry has no schema 8",
        "the record has no frame of a schema registry",
        "the record is empty, it has no value",
    ]


def test_a_registry_that_does_not_answer_stops_the_decoding() -> None:
    def schema_of(number: int) -> Avro:
        raise ConnectionError(number)

    with pytest.raises(ConnectionError):
        decoder([MOTE], schema_of).decode_values([framed(7, sensor(1))], at(1))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (sensor(1) + b"x", "1 bytes follow the Avro record: it was written with another schema"),
        (sensor(1)[:-1], "broken Avro: 2 bytes expected at byte 6 of 6"),
        (long(1) + long(1000) + long(2), "broken Avro: branch of a union 2 of 2"),
        (b"\xff" * 11, "broken Avro: a number of more than 10 bytes"),
        (long(1) + long(1000) + long(0) + long(2) + b"\xff\xff", "field 'room' is not UTF-8 (invalid start byte"),
    ],
)
def test_reasons(raw: bytes, reason: str) -> None:
    (dead,) = decoder([MOTE, ROOM], parsed(SENSOR)).decode_values([raw], at(1)).dead
    assert dead.reason.startswith(reason)


def test_common_records_are_read_by_the_compiled_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> list[Value]:
        raise AssertionError("the rules were asked")

    types = {
        "w": ["null", "long"],
        "d": "double",
        "e": {"type": "enum", "name": "E", "symbols": ["ON", "OFF"]},
        "t": {"type": "long", "logicalType": "timestamp-micros"},
        "m": {"type": "map", "values": ["null", "string"]},
        "a": {"type": "array", "items": {"type": "record", "name": "I", "fields": [{"name": "n", "type": "float"}]}},
        "c": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "b": "boolean",
    }
    schema = {"type": "record", "name": "R", "fields": [{"name": name, "type": type} for name, type in types.items()]}
    wanted = [
        Wanted("w", ("w",), Type.BIGINT),
        Wanted("d", ("d",), Type.DOUBLE),
        Wanted("e", ("e",), Type.STRING),
        Wanted("t", ("t",), Type.TIMESTAMP),
        Wanted("m", ("m", "k"), Type.STRING),
        Wanted("a", ("a", 1, "n"), Type.DOUBLE),
        Wanted("c", ("c",), Type.DOUBLE),
        Wanted("b", ("b",), Type.BOOLEAN),
        Wanted("new", ("new",), Type.DOUBLE, 2.5),
        Wanted("none", ("none",), Type.BIGINT),
    ]
    value = {"w": (1, 7), "d": -2.0, "e": "OFF", "t": 1999, "m": {"j": (0, None), "k": (1, "zwölf")}}
    value |= {"a": [{"n": 1.5}, {"n": 2.5}], "c": b"\xff\x85", "b": True}
    raw = [RandomAvro(Random(n)).written(schema, value) for n in range(10)]
    monkeypatch.setattr(AvroRules, "values", refuse)
    found = values_of(decoder(wanted, parsed(schema)).decode_values(raw, at(10)).batch)
    assert found == [[7, -2.0, "OFF", 1, "zwölf", 2.5, -1.23, True, 2.5, None]] * 10


def test_an_array_may_not_claim_any_number_of_nulls() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}]}
    (dead,) = decoder([MOTE], parsed(schema)).decode_values([long(1 << 60) + b"\0"], at(1)).dead
    assert "do not fit into the record" in dead.reason


def test_a_type_that_contains_itself() -> None:
    """It is read by the rules."""
    tree = {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "v", "type": "long"}, {"name": "next", "type": ["null", "Node"]}],
    }
    wanted = [Wanted("v", ("v",), Type.BIGINT), Wanted("third", ("next", "next", "v"), Type.BIGINT)]
    raw = [long(1) + long(1) + long(2) + long(1) + long(3) + long(0), long(5) + long(0)]
    assert values_of(decoder(wanted, parsed(tree)).decode_values(raw, at(2)).batch) == [[1, 3], [5, None]]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "broken Avro schema: "),
        ('"strin"', "unknown type 'strin'"),
        ('{"type": "record", "name": "R"}', "the schema: 'fields' is missing"),
        ('{"type": "record", "name": "R", "fields": [{"name": "f", "type": "x"}]}', "field 'f' of R: unknown type 'x'"),
        ('["null", ["int"]]', "a union may not hold a union"),
        ("[]", "a union of nothing"),
        ("7", "7 is no type"),
        ('{"type": "enum", "name": "E", "symbols": "AB"}', "symbols are a list of strings"),
        ('{"type": "fixed", "name": "F", "size": "2"}', "size is a whole number"),
        ('[{"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 2}]', "name 'F' is taken"),
        ('{"type": "record", "name": "", "fields": []}', "'' is no name"),
    ],
)
def test_broken_schemas(text: str, why: str) -> None:
    with pytest.raises(DataError, match="broken Avro schema") as raised:
        parse_avro(text)
    assert why in str(raised.value)


def test_names_are_of_their_namespace() -> None:
    byte = {"type": "fixed", "name": "F", "size": 1}
    inner = {"type": "record", "name": "B", "fields": [{"name": "x", "type": byte}]}
    schema = {"type": "record", "name": "a.A", "fields": [{"name": "b", "type": inner}, {"name": "f", "type": "F"}]}
    found = parsed(schema)
    assert [field.type.name for field in found.fields] == ["a.B", "a.F"]
    assert found.fields[0].type.fields[0].type is found.fields[1].type


# --- What hostile records and schemas may not do -----------------------------------------------------------------


def both(schema: Any, wanted: Wanted, raw: bytes) -> Any:
    """A record's value by the rules, which the compiled pass has, too; or DEAD."""
    by_rules = read(AvroRules(parsed(schema), [wanted]), raw)
    found = decoded(decoder([wanted], parsed(schema)).decode_values([raw], at(1)), 1)
    assert found == [by_rules]
    return by_rules if by_rules is DEAD else by_rules[0]


@pytest.mark.parametrize("type", ["int", {"type": "int", "logicalType": "date"}])
@pytest.mark.parametrize("wanted", [Type.BIGINT, Type.DOUBLE, Type.TIMESTAMP])
def test_an_int_has_32_bits(type: Any, wanted: Type) -> None:
    """A date beyond them once wrapped to another date, or stopped the worker."""
    schema = record_of(x=type)
    for value in (2**31 - 1, -(2**31)):
        assert (both(schema, Wanted("x", ("x",), wanted), long(value)) is DEAD) == (
            wanted is Type.TIMESTAMP and type == "int"
        )
    for value in (2**31, -(2**31) - 1, 2**40, 2**63 - 1):
        assert both(schema, Wanted("x", ("x",), wanted), long(value)) is DEAD
    assert both(record_of(x=type, y="long"), Wanted("y", ("y",), Type.BIGINT), long(2**40) + long(5)) == 5


def record_of(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": type} for name, type in fields.items()]}


def test_decimals_keep_all_of_their_digits() -> None:
    number = -12345678901234567890123456789012345678
    schema = record_of(x={"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2})
    raw = number.to_bytes(17, "big", signed=True)
    text = Wanted("x", ("x",), Type.STRING)
    assert both(schema, text, long(17) + raw) == "-123456789012345678901234567890123456.78"
    largest = str(int.from_bytes(b"\x7f" * 1_024, "big"))
    assert both(schema, text, long(1_024) + b"\x7f" * 1_024) == f"{largest[:-2]}.{largest[-2:]}"
    assert both(schema, text, long(1_025) + b"\x7f" * 1_025) is DEAD
    assert both(schema, Wanted("x", ("x",), Type.DOUBLE), long(500_000) + b"\x7f" * 500_000) is DEAD


def test_a_decimal_of_an_absurd_scale_is_bytes() -> None:
    schema = record_of(x={"type": "bytes", "logicalType": "decimal", "precision": 10**18, "scale": 10**17})
    assert both(schema, Wanted("x", ("x",), Type.STRING), long(2) + b"ab") == "ab"


def test_a_record_of_many_levels_is_dead() -> None:
    node = record_of(v="long", next=["null", "R"])
    raw = b"\x02\x02" * 5_000 + b"\x02\x00"
    assert both(node, Wanted("v", ("v",), Type.BIGINT), raw) is DEAD
    assert both(node, Wanted("v", ("v",), Type.BIGINT), b"\x02\x02" * 20 + b"\x02\x00") == 1


def test_of_equal_keys_of_a_map_the_last_counts() -> None:
    schema = record_of(m={"type": "map", "values": {"type": "array", "items": "long"}})
    wanted = Wanted("x", ("m", "k", 0), Type.BIGINT)
    key, empty, five = long(1) + b"k", long(0), long(1) + long(5) + long(0)
    assert both(schema, wanted, long(2) + key + five + key + empty + long(0)) is None
    assert both(schema, wanted, long(2) + key + empty + key + five + long(0)) == 5


def test_many_blocks_of_nulls_are_as_few_as_one() -> None:
    schema = record_of(a={"type": "array", "items": "null"}, x="long")
    wanted = Wanted("x", ("x",), Type.BIGINT)
    assert both(schema, wanted, (long(3) * 2 + long(0)) + long(5)) == 5
    assert both(schema, wanted, long(60_000) * 20_000 + long(0) + long(5)) is DEAD


def test_schemas_that_would_take_for_ever() -> None:
    with pytest.raises(DataError, match="more than 100 types within each other"):
        parse_avro('{"type":"array","items":' * 200 + '"long"' + "}" * 200)
    with pytest.raises(DataError, match="broken Avro schema"):
        parse_avro('{"type":"array","items":' * 2_000 + '"long"' + "}" * 2_000)
    with pytest.raises(DataError, match="fields are a list"):
        parse_avro('{"type":"record","name":"R","fields":5}')
    doubled: Any = "long"
    for n in range(40):
        inside = [{"name": "a", "type": doubled}, {"name": "b", "type": f"E{n - 1}" if n else "long"}]
        doubled = {"type": "record", "name": f"E{n}", "fields": inside}
    schema = parsed(doubled)
    program_of(schema, [Wanted("x", ("a",), Type.BIGINT)])
    with pytest.raises(DataError, match="more than 10000 columns"):
        columns_of(schema)
