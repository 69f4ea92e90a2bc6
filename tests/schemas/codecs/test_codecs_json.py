"""JSON decoding: the compiled pass compared with the record-at-a-time definition, and the rules themselves."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta, timezone
from random import Random

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.codecs.decoded import Decoded, RecordError, check_event_time
from schemas.codecs.json_codec import JsonDecoder
from schemas.codecs.json_grammar import members
from schemas.query import Field, Stream, Type
from schemas.timestamps import MAX_TIMESTAMP_MS, format_iso, parse_iso
from tests.profiles import examples
from tests.schemas.codecs.decoding import bits, tuples

STREAM = Stream(
    "S",
    (
        Field("i", Type.BIGINT),
        Field("d", Type.DOUBLE),
        Field("s", Type.STRING),
        Field("b", Type.BOOLEAN),
        Field("t", Type.TIMESTAMP),
        Field("at", Type.TIMESTAMP),
    ),
    "s",
    timestamp="at",
)
DECODER = JsonDecoder(STREAM)

NESTED_STREAM = Stream(
    "N",
    (
        Field("i", Type.BIGINT, ("a", "i")),
        Field("at", Type.TIMESTAMP),
        Field("d", Type.DOUBLE, ("a", "b", "d")),
        Field("s", Type.STRING, ("s", 1, "s")),
        Field("b", Type.BOOLEAN, ("a", "b", "b")),
        Field("t", Type.TIMESTAMP, ("t", "b")),
    ),
    "n",
    timestamp="at",
)
NESTED_DECODER = JsonDecoder(NESTED_STREAM)
ODD_NAMES = ("a\\b", 'a"b', "a\nb", "a\tb", "\u00e4", "")
ODD_DECODER = JsonDecoder(
    Stream(
        "O",
        (
            *(Field(f"c{n}", Type.BIGINT, (name,)) for n, name in enumerate(ODD_NAMES)),
            Field("d", Type.BIGINT, ("x", "a\nb")),
            Field("at", Type.TIMESTAMP),
        ),
        "o",
        timestamp="at",
    )
)


def decode(*lines: bytes | str) -> Decoded:
    return DECODER.decode_lines(b"\n".join(x.encode() if isinstance(x, str) else x for x in lines))


def defined(
    decoder: JsonDecoder, raws: list[bytes], skip_blank: bool
) -> tuple[list[int], list[list[object]], list[tuple[int, str]]]:
    """The definition's rows, values and errors for the records."""
    rows, values, dead = [], [], []
    for row, raw in enumerate(raws):
        if skip_blank and not raw.strip(b" \t\r\n"):
            continue
        try:
            record = decoder.rules.values(raw)
            ts = record[[field.name for field in decoder.stream.fields].index("at")]
            check_event_time("at", ts if isinstance(ts, int) else None)
            rows.append(row)
            values.append([bits(v) for v in record])
        except RecordError as error:
            dead.append((row, str(error)))
    return rows, values, dead


def assert_same(raws: list[bytes], decoder: JsonDecoder = DECODER) -> None:
    lines = [raw.replace(b"\n", b" ") for raw in raws]
    for given_, decoded, skip in (
        (lines, decoder.decode_lines(b"".join(line + b"\n" for line in lines)), True),
        (raws, decoder.decode_values(raws), False),
    ):
        rows, values, dead = defined(decoder, given_, skip)
        assert decoded.rows.tolist() == rows
        assert tuples(decoded) == values
        assert [(d.row, d.reason) for d in decoded.dead] == dead
        assert [d.raw.rstrip(b"\r") for d in decoded.dead] == [given_[row].rstrip(b"\r") for row, _ in dead]
        assert decoded.batch.ts.tolist() == decoded.batch.columns["at"].to_values()
        assert decoded.records == len(given_)


# --- random records -----------------------------------------------------------------------------------

DIGITS = st.text("0123456789", min_size=1, max_size=24)
NUMBERS = st.one_of(
    st.integers(-(2**65), 2**65).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.builds(
        lambda sign, a, b, e: f"{sign}{a}{b}{e}",
        st.sampled_from(["", "-", "+"]),
        DIGITS,
        st.one_of(st.just(""), DIGITS.map(lambda d: "." + d), st.just(".")),
        st.one_of(
            st.just(""),
            st.builds(
                lambda e, s, d: e + s + d, st.sampled_from("eE"), st.sampled_from(["", "+", "-"]), DIGITS
            ),
            st.integers(-400, 400).map(lambda e: f"e{e}"),
        ),
    ),
    st.sampled_from(
        [
            "0",
            "-0",
            "-0.0",
            "01",
            "1.0",
            "NaN",
            "Infinity",
            "-Infinity",
            "1e400",
            "0x10",
            "1_000",
            "9007199254740993",
        ]
    ),
    st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**19, 2**64, MAX_TIMESTAMP_MS, -1]).map(str),
)
ISO = st.one_of(
    st.datetimes(timezones=st.sampled_from([None, UTC, timezone(timedelta(hours=5, minutes=30))])).map(
        lambda d: d.isoformat()
    ),
    st.dates().map(lambda d: d.isoformat()),
    st.from_regex(
        r"[0-9]{4}-[0-1][0-9]-[0-3][0-9][T t][0-2][0-9]:[0-6][0-9](:[0-6][0-9](\.[0-9]{0,10})?)?"
        r"(Z|z|[+-][0-2][0-9](:?[0-6][0-9])?)?",
        fullmatch=True,
    ),
    st.text("0123456789-:TZ+. ", max_size=26),
)
STRINGS = st.one_of(
    st.text(max_size=12).map(json.dumps),
    st.text(max_size=12).map(lambda s: json.dumps(s, ensure_ascii=False)),
    st.text('abu"\\/nrtdD8c0{}[]:, \t\x01', max_size=12).map(lambda s: f'"{s}"'),
    ISO.map(json.dumps),
)
SCALARS = st.one_of(st.sampled_from(["true", "false", "null", "tru", "nul", "", "TRUE"]), NUMBERS, STRINGS)
NESTED = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda v: "[" + ",".join(v) + "]"),
        st.lists(st.tuples(STRINGS, inner), max_size=3).map(
            lambda v: "{" + ", ".join(f"{k} : {x}" for k, x in v) + "}"
        ),
    ),
    max_leaves=6,
)
FITTING = {
    "i": st.integers(-(2**63), 2**63 - 1).map(str),
    "d": st.floats(allow_nan=False, allow_infinity=False).map(repr),
    "s": st.text(max_size=12).map(json.dumps),
    "b": st.sampled_from(["true", "false"]),
    "t": ISO.map(json.dumps),
    "at": st.integers(0, MAX_TIMESTAMP_MS - 1).map(str),
}
SPACE = ["", "", "", " ", "\t", "\r", "\n", "  ", "\f"]
KEYS = ["x", "i", "ii", "", "\\u0069", "ä", 'q\\"']


def record(rng: Random, fitting: dict[str, list[str]], nested: list[str]) -> bytes:
    """A mostly plausible record, or one with wrong values, odd keys, odd space, or a byte changed."""
    names = rng.sample(list(FITTING), rng.randint(0, len(FITTING)))
    if rng.random() < 0.5 and "at" not in names:
        names.append("at")
    names += rng.choices(KEYS, k=rng.randint(0, 2))
    parts = []
    for name in names:
        odd = name not in fitting or rng.random() < 0.1
        value = rng.choice(nested) if odd else rng.choice([*fitting[name], "null"])
        space = rng.choices(SPACE, k=4) if rng.random() < 0.2 else [""] * 4
        parts.append(f'{space[0]}"{name}"{space[1]}:{space[2]}{value}{space[3]}')
    raw = ("{" + ",".join(parts) + "}").encode("utf-8", "surrogatepass")
    if rng.random() < 0.125:
        at = rng.randrange(len(raw))
        raw = raw[:at] + rng.randbytes(rng.randint(0, 2)) + raw[at + rng.randint(0, 2) :]
    return raw


@st.composite
def records(draw: st.DrawFn) -> list[bytes]:
    """Records of a few values of each kind. Hypothesis draws the values and a seed for the rest: drawing every choice
    took most of the time."""
    fitting = {name: draw(st.lists(values, min_size=1, max_size=2)) for name, values in FITTING.items()}
    nested = draw(st.lists(NESTED, min_size=1, max_size=3))
    rng = Random(draw(st.integers(0, 2**32 - 1)))
    return [record(rng, fitting, nested) for _ in range(rng.randint(0, 15))]


@examples(200)
@given(records())
@example([b'{"at":1,"d":-0}', b'{"at":1,"d":-0.0}'])
@example([b'{"at":1,"i":-9223372036854775808}', b'{"at":1,"i":9223372036854775808}'])
@example([b'{"at":1,"x":1e309}', b'{"at":1,"x":[1e309]}', b'{"at":1,"x":1e308}'])
@example([b'{"at":1,"d":1e309}', b'{"at":1,"d":12345678901234567890123e-5}', b'{"at":1,"d":1e-400}'])
@example([b'{"at":1,"s":"\xff"}', b'{"at":1,"s":"\xc3\xa4"}', b'{"at":1,"s":"a"}'])
@example([b'{"at":1,"s":"\\ud83d\\ude00\\u00e4\\u20ac\\u0041\\b\\f\\n\\r\\t\\/\\\\\\""}'])
@example([b'{"at":1,"s":"\\ud83d"}', b'{"at":1,"x":"\\ude00"}'])
@example([b'{"at":1,"x":' + b"[" * 70 + b"]" * 70 + b"}", b'{"at":1,"x":' + b"[" * 2000 + b"]" * 2000 + b"}"])
@example([b'{"ix:5,"at":1}', b'{"i:5,"at":1}', b'{"i":5 "at":1}', b'{"i" 5,"at":1}'])
@example([b'{"at":1}{"at":2}', b'{"at":1} x', b'{"at":1,}', b'{,"at":1}', b'{"at":1', b"\xef\xbb\xbf{}"])
@example([b'{"at":1,"at":2}', b'{"at":"x","at":2}', b'{"at":2,"at":null}'])
def test_compiled_pass_equals_the_definition(raws: list[bytes]) -> None:
    assert_same(raws)


def nested_record(rng: Random, fitting: dict[str, list[str]], nested: list[str]) -> bytes:
    """A record with objects within each other, or one with something else in their place, or a byte changed."""

    def value(keys: str, depth: int) -> str:
        if depth > 3 or rng.random() < 0.15:
            return rng.choice(nested)
        parts = []
        for key in rng.sample(keys.split(), rng.randint(0, len(keys.split()))) + rng.choices(["x", "a", "s"], k=depth):
            kind = rng.random()
            if kind < 0.4:
                inside = value("i b d t a s", depth + 1)
            elif kind < 0.6:
                inside = "[" + ",".join(value("s a", depth + 1) for _ in range(rng.randint(0, 3))) + "]"
            else:
                inside = rng.choice([*fitting.get(key, nested), "null"])
            parts.append(f'"{key}"{rng.choice(SPACE[:6])}:{inside}')
        return "{" + ",".join(parts) + "}"

    start = "{" + rng.choice(['"at":1,', '"at":2,', '"at" : 3 ,', ""])
    raw = (start + value("a s t", 0).removeprefix("{")).encode("utf-8", "surrogatepass")
    if rng.random() < 0.125:
        at = rng.randrange(len(raw))
        raw = raw[:at] + rng.randbytes(rng.randint(0, 2)) + raw[at + rng.randint(0, 2) :]
    return raw


@st.composite
def nested_records(draw: st.DrawFn) -> list[bytes]:
    fitting = {name: draw(st.lists(values, min_size=1, max_size=2)) for name, values in FITTING.items()}
    nested = draw(st.lists(NESTED, min_size=1, max_size=3))
    rng = Random(draw(st.integers(0, 2**32 - 1)))
    return [nested_record(rng, fitting, nested) for _ in range(rng.randint(0, 15))]


@examples(300)
@given(nested_records())
@example([b'{"at":1,"a":{"i":1,"b":{"d":2.5,"b":true}},"t":{"b":5}}', b'{"a":{"b":{},"i":1},"at":1}'])
@example([b'{"at":1,"a":{}}', b'{"a":{"i":7},"at":1}', b'{"at":1,"a":{"i":7},"a":{}}', b'{"at":1,"a":{"a":{"i":7}}}'])
@example([b'{"at":1,"a":{"i":7}', b'{"at":1,"a":{"i":7}}}', b'{"at":1,"a":{"i":7,}}', b'{"at":1,"a":{"b":{"d":1}}'])
@example([b'{"at":1,"a":{"at":2}}', b'{"at":1,"i":3,"b":{"i":3}}', b'{"a":{"b":{"at":1}},"at":4}'])
@example([b'{"at":1,"i":3}'])
@example([b'{"at":1,"x":1,"i":3}'])
@example([b'{"a":{"i":1},"at":1}', b'{"a":1,"i":5,"at":2}'])
@example([b'{"at":1,"x":1e309,"a":{"i":7,"b":{"d":1e309}}}', b'{"at":1,"x":1e309,"s":[1e309,{"s":"q"}]}'])
def test_compiled_pass_equals_the_definition_of_nested_records(raws: list[bytes]) -> None:
    assert_same(raws, NESTED_DECODER)


def test_a_path_leads_to_a_value_or_to_null() -> None:
    def read(record: str) -> dict[str, object]:
        batch = NESTED_DECODER.decode_lines(record.encode()).batch
        return {name: column.to_values()[0] for name, column in batch.columns.items()}

    full = '{"at":1,"a":{"b":{"b":true,"d":2.5},"i":7,"x":{"i":8}},"s":[{"s":"p"},{"s":"q"}],"t":{"b":"1970-01-01"}}'
    assert read(full) == {"i": 7, "at": 1, "d": 2.5, "s": "q", "b": True, "t": 0}
    nothing = {"i": None, "at": 1, "d": None, "s": None, "b": None, "t": None}
    for text in ('"a":5', '"a":"x"', '"a":[{"i":7}]', '"a":null', '"s":[{"s":"p"}]', '"s":{"1":{"s":"q"}}', '"t":[]'):
        assert read(f'{{"at":1,{text}}}') == nothing, text
    odd = '{"at":1,"odd":1e400,"a":{"i":7,"b":{"d":3}},"s":[[],{"s":"q"}]}'
    assert read(odd) == nothing | {"i": 7, "d": 3.0, "s": "q"}


def test_a_value_that_a_path_leads_to_is_checked_like_any_other() -> None:
    decoded = NESTED_DECODER.decode_lines(b'{"at":1,"a":{"i":{}}}\n{"at":1,"a":{"i":"7"}}\n{"at":1,"s":[0,{"s":[]}]}')
    assert [dead.reason.partition(",")[0] for dead in decoded.dead] == [
        "field 'i' is {}",
        "field 'i' is '7'",
        "field 's' is []",
    ]


@examples(200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([*ODD_NAMES, *(json.dumps(name)[1:-1] for name in ODD_NAMES), "x", "b"]),
            st.sampled_from(["1", "2", "null", '{"a\\nb":3}', '{"a\nb":3}']),
        ),
        max_size=4,
    ).map(lambda pairs: ("{" + "".join(f'"{k}":{v},' for k, v in pairs) + '"at":1}').encode()),
    st.integers(0, 3),
)
@example(b'{"a', 0)
@example(b'{"a\\b":1,"at":1}', 1)
@example(b'{"a"b":1,"at":1}', 1)
def test_names_with_characters_that_json_escapes(raw: bytes, others: int) -> None:
    """Their bytes in a record are never those of the name. A line break in one once led out of the block."""
    assert_same([b'{"at":1}'] * others + [raw, b'b":1,"at":2}', b'{"at":1}'], ODD_DECODER)


@pytest.mark.parametrize("depth", [60, 1_000, 1_024, 3_000])
def test_values_of_many_levels(depth: int) -> None:
    """orjson reads 1,024 levels, which Python cannot show."""
    deep = b"[" * depth + b"]" * depth
    assert_same([deep, b'{"at":1,"s":' + deep + b"}", b'{"at":1,"x":' + deep + b"}", b'{"at":1}'])


def test_two_columns_of_one_value() -> None:
    fields = (Field("at", Type.TIMESTAMP), Field("n", Type.BIGINT, ("at",)), Field("o", Type.BIGINT, ("at", "x")))
    for count in (2, 3):
        decoder = JsonDecoder(Stream("S", fields[:count], "s", timestamp="at"))
        assert tuples(decoder.decode_lines(b'{"at":5}')) == [[5, 5, None][:count]]
    twice = (Field("n", Type.BIGINT, ("x", "y")), Field("m", Type.BIGINT, ("x", "y")), Field("at", Type.TIMESTAMP))
    decoder = JsonDecoder(Stream("S", twice, "s", timestamp="at"))
    assert tuples(decoder.decode_lines(b'{"at":5,"x":{"y":7}}')) == [[7, 7, 5]]


@examples(300)
@given(st.lists(st.binary(max_size=40), max_size=6))
def test_garbage_never_raises_and_is_accounted_for(raws: list[bytes]) -> None:
    assert_same(raws)


@examples(300)
@given(st.lists(st.text('{}[]":,\\ \tat10.e-+truefalsn', max_size=30).map(str.encode), max_size=8))
def test_json_shaped_garbage_equals_the_definition(raws: list[bytes]) -> None:
    assert_same([b'{"at":1,' + raw for raw in raws] + raws)


@examples(500)
@given(ISO)
@example("2024-02-29")
@example("2023-02-29")
@example("1969-12-31T23:59:59.9999Z")
@example("0001-01-01T00:00+23:59")
@example("0000-01-01")
def test_compiled_iso_scanner_equals_parse_iso(text: str) -> None:
    if "\n" in text:
        return
    decoded = decode(json.dumps({"t": text, "at": 1}))
    try:
        expected = [parse_iso(text)]
    except ValueError:
        expected = []
    assert decoded.batch.columns["t"].values.tolist() == expected


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-7))])))
def test_parse_iso_equals_datetime(moment: datetime) -> None:
    expected = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert parse_iso(moment.isoformat()) == expected
    assert parse_iso(format_iso(expected)) == expected or not moment.astimezone(UTC).year > 0


# --- the rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("i", "7", 7),
        ("i", "-9223372036854775808", -(2**63)),
        ("d", "7", 7.0),
        ("d", "0.1", 0.1),
        ("d", "1e22", 1e22),
        ("d", "179769313486231570000e288", 1.7976931348623157e308),
        ("d", "2.2250738585072014e-308", 2.2250738585072014e-308),
        ("d", "0.30000000000000004", 0.30000000000000004),
        ("s", '""', ""),
        ("s", '"\\u0000"', "\0"),
        ("b", "true", True),
        ("t", "-5", -5),
        ("t", '"1970-01-01T00:00:01"', 1000),
        ("t", '"1970-01-01T01:00:01.5+01:00"', 1500),
        ("t", '"1970-01-02"', 86_400_000),
        ("i", "null", None),
        ("t", "null", None),
    ],
)
def test_accepted_values(name: str, text: str, value: object) -> None:
    decoded = decode(f'{{"at": 5, "{name}": {text}}}')
    assert decoded.dead == []
    assert decoded.batch.columns[name].to_values() == [value]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"at":1,"i":1.0}', "field 'i' is 1.0, BIGINT accepts an integer"),
        ('{"at":1,"i":"1"}', "field 'i' is '1', BIGINT accepts an integer"),
        ('{"at":1,"i":true}', "field 'i' is true, BIGINT"),
        ('{"at":1,"i":9223372036854775808}', "field 'i' is 9223372036854775808, BIGINT"),
        ('{"at":1,"d":"1"}', "field 'd' is '1', DOUBLE accepts a finite number"),
        ('{"at":1,"d":NaN}', "broken JSON: expected a value at character 13, found 'NaN}'"),
        ('{"at":1,"d":1e999}', "field 'd' is 1e999, DOUBLE accepts a finite number"),
        ('{"at":1,"i":-1e999}', "field 'i' is -1e999, BIGINT accepts an integer"),
        ('{"at":1,"s":"a\\ud800"}', "field 's' is 'a\\ud800', which has half of a surrogate pair"),
        ('{"at":1,"t":"\\udfff"}', "field 't': '\\udfff' is not of the form"),
        ('{"at":1,"b":"\\udfff"}', "field 'b' is '\\udfff', BOOLEAN accepts"),
        ('{"at":1,"i":' + "[" * 100_000 + "]" * 100_000 + "}", f"field 'i' is {'[' * 60}..., BIGINT accepts"),
        ('{"at":1,"x":NaN}', "broken JSON: expected a value at character 13, found 'NaN}'"),
        ('{"at":1,"x":' + "[" * 100_000, "broken JSON: expected a value at character 100013, found the end"),
        ('{"at":1,"x":[1e999}', "broken JSON: expected ',' or ']' at character 19, found '}'"),
        ('{"at":1,"x":{"y" 1e999}}', "broken JSON: expected ':' at character 18, found '1e999}}'"),
        ('{"at":1,"x":1e999,}', "broken JSON: expected a key in quotes at character 19, found '}'"),
        ('{"at":1,"x":"\\ud800" "i":1}', "broken JSON: expected ',' or '}' at character 22"),
        ('{"at":1,"x":"\\x"}', "broken JSON: expected a value at character 13"),
        ('{"at":1,"x":1e999} 7', "broken JSON: expected the end of the record at character 20, found '7'"),
        ("1e999", "'1e999' is not a JSON object"),
        ('{"at":1,"d":false}', "field 'd' is false, DOUBLE"),
        ('{"at":1,"s":1}', "field 's' is 1, STRING accepts a string"),
        ('{"at":1,"s":["a"]}', "field 's' is ['a'], STRING"),
        ('{"at":1,"b":1}', "field 'b' is 1, BOOLEAN accepts true or false"),
        ('{"at":1,"t":1.5}', "field 't' is 1.5, TIMESTAMP accepts an integer"),
        ('{"at":1,"t":"yesterday"}', "field 't': 'yesterday' is not of the form"),
        ('{"at":1,"t":"2023-02-30"}', "is no date"),
        ("{}", "timestamp field 'at' is missing or null"),
        ('{"at":null}', "timestamp field 'at' is missing or null"),
        ('{"at":-1}', "timestamp field 'at' is -1, accepted are 0 <= ms < 4102444800000"),
        (f'{{"at":{MAX_TIMESTAMP_MS}}}', f"timestamp field 'at' is {MAX_TIMESTAMP_MS}"),
        ('{"at":"9999-12-31T00:00:00Z"}', "timestamp field 'at' is 253402214400000"),
        ('{"at":NaN}', "broken JSON"),
        ("[1]", "[1] is not a JSON object"),
        ("oops", "broken JSON: expected a value at character 1, found 'oops'"),
    ],
)
def test_refused_records_say_why(line: str, reason: str) -> None:
    decoded = decode('{"at":1}', line, '{"at":2}')
    assert decoded.rows.tolist() == [0, 2]
    (dead,) = decoded.dead
    assert reason in dead.reason
    assert (dead.row, dead.raw) == (1, line.encode())


ODD = [
    "1e999",
    "-1e999",
    "1" * 5000,
    r'"\ud800"',
    r'"\udc00\ud800"',
    r'{"\ud800": [1e999, {}, [], {"a": "b", "c": null}]}',
    "[" * 100_000 + "]" * 100_000,
    '{"a":[' * 5_000 + "]}" * 5_000,
]
"""Legal JSON, by RFC 8259, that parsers refuse."""


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd[:12])
def test_undeclared_fields_never_make_a_record_a_dead_letter(odd: str) -> None:
    """The manual promises that they are ignored; a number beyond the doubles, half of a surrogate pair or deep nesting
    in one of them made the whole record a dead letter, as "not JSON"."""
    lines = [
        f'{{"at":1,"x":{odd}}}',
        f'{{"\\ud800":{odd}, "at" : 2 , "i":7,"s":"\\u00e4"}}',
        f'{{"i":{odd},"i":8,"at":3}}',
    ]
    decoded = decode(*lines)
    assert decoded.dead == []
    assert tuples(decoded) == [
        [None, None, None, None, None, 1],
        [7, None, "ä", None, None, 2],
        [8, None, None, None, None, 3],
    ]
    assert tuples(DECODER.decode_values([line.encode() for line in lines])) == tuples(decoded)


@examples(200)
@given(records())
def test_the_grammar_refuses_what_orjson_refuses_but_for_odd_values(raws: list[bytes]) -> None:
    """Both parts of the definition agree: what orjson reads, the grammar reads in the same way, and what Python's
    parser refuses, the grammar refuses."""
    for raw in raws:
        try:
            found = {json.loads(key): json.loads(value) for key, value in members(raw)}
        except RecordError:
            with pytest.raises((ValueError, AttributeError)):
                orjson.loads(raw).items()
            continue
        assert repr(found) == repr(json.loads(raw))


def test_missing_fields_are_null_and_unknown_ones_ignored() -> None:
    decoded = decode('{"at":1,"zzz":{"a":[1,{"b":null}]},"I":3}', '{"i":4,"at":2,"é":1}')
    assert decoded.dead == []
    assert decoded.batch.columns["i"].to_values() == [None, 4]
    assert decoded.batch.columns["s"].to_values() == [None, None]
    assert decoded.batch.columns["i"].values.tolist() == [0, 4]


def test_line_ends_and_blank_lines() -> None:
    decoded = DECODER.decode_lines(b'{"at":1}\r\n\r\n  \n{"at":2}\n{"at":3}')
    assert decoded.rows.tolist() == [0, 3, 4]
    assert decoded.dead == []
    assert decoded.records == 5


def test_empty_input() -> None:
    for decoded in (DECODER.decode_lines(b""), DECODER.decode_values([]), DECODER.decode_lines(b"\n\n")):
        assert len(decoded.batch) == 0
        assert set(decoded.batch.columns) == {"i", "d", "s", "b", "t", "at"}
        assert decoded.dead == []


def test_tombstones_are_dead_letters() -> None:
    decoded = DECODER.decode_values([None, b"", b'{"at":1}'])
    assert decoded.rows.tolist() == [2]
    assert [d.reason for d in decoded.dead] == ["the record is empty, expected a JSON object"] * 2


def test_pretty_printed_values_and_raw_newlines() -> None:
    """A newline inside a Kafka value is white space, but not inside a string."""
    pretty = json.dumps({"at": 1, "s": "x"}, indent=2).encode()
    decoded = DECODER.decode_values([pretty, b'{"at":2,"s":"a\nb"}', b'{"at":3}'])
    assert decoded.rows.tolist() == [0, 2]
    assert decoded.dead[0].raw == b'{"at":2,"s":"a\nb"}'


def test_record_timestamps() -> None:
    stream = Stream("K", (Field("i", Type.BIGINT),), "k")
    values = [b'{"i":1}', b'{"i":2}', b'{"i":"x"}', b'{"i":4}']
    decoded = JsonDecoder(stream).decode_values(values, np.array([5, -1, 6, 7], np.int64))
    assert decoded.batch.ts.tolist() == [5, 7]
    assert decoded.rows.tolist() == [0, 3]
    assert [d.reason.split(",")[0] for d in decoded.dead] == [
        "record timestamp is -1",
        "field 'i' is 'x'",
    ]
    by_field = JsonDecoder(STREAM).decode_values([b'{"at":9}'], np.array([5], np.int64))
    assert by_field.batch.ts.tolist() == [9]


def test_large_record_between_small_ones() -> None:
    big = json.dumps({"at": 2, "s": "x" * 10_000_000})
    decoded = decode('{"at":1}', big, '{"at":3,"s":"y"}', json.dumps({"at": 4, "s": "ä" * 5_000_000}))
    assert [len(s or "") for s in decoded.batch.columns["s"].to_values()] == [0, 10_000_000, 1, 5_000_000]


def test_many_fields() -> None:
    """A record has more fields and keys than the remembered order."""
    stream = Stream(
        "W",
        (*(Field(f"f{i}", Type.BIGINT) for i in range(150)), Field("at", Type.TIMESTAMP)),
        "w",
        timestamp="at",
    )
    record = {f"g{i}": i for i in range(70)} | {f"f{i}": i for i in range(150)} | {"at": 3}
    decoded = JsonDecoder(stream).decode_lines((json.dumps(record) + "\n").encode() * 3)
    assert decoded.dead == []
    assert [decoded.batch.columns[f"f{i}"].values.tolist() for i in range(150)] == [
        [i] * 3 for i in range(150)
    ]


def test_doubles_are_rounded_correctly() -> None:
    rng = np.random.default_rng(7)
    numbers = rng.integers(0, 2**63, 20_000).view(np.float64)
    numbers = numbers[np.isfinite(numbers)].tolist()
    texts = (
        [repr(x) for x in numbers]
        + [f"{x:.25e}" for x in numbers[:2000]]
        + [f"{x:.10g}" for x in numbers[:2000]]
    )
    decoded = decode(*(f'{{"at":1,"d":{text}}}' for text in texts))
    found = decoded.batch.columns["d"].values.tolist()
    assert decoded.dead == []
    assert all(
        math.copysign(1, a) == math.copysign(1, float(b)) and a == float(b)
        for a, b in zip(found, texts, strict=True)
    )
