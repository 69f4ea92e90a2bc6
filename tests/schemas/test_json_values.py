"""JSON_VALUE finds in any text what Python's json finds (`tests.oracle.json_value`)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.columns import Column
from schemas.nested import json_values as module
from schemas.nested.json_values import json_values
from schemas.query import Type
from tests import oracle
from tests.profiles import examples

KINDS = (Type.STRING, Type.BIGINT, Type.DOUBLE, Type.BOOLEAN)
NAMES = st.sampled_from(["a", "a", "a", "b", "ab", "ä", "a b", ""])
NUMBERS = ["0", "-0", "-0.0", "7", "1.50", "1e2", "-1E-7", "1e400", "9223372036854775807", "-9223372036854775808"]
NUMBERS += ["9223372036854775808", "0.12345678901234567890123", "123456789012345678901234567890", "1" * 400]
SCALARS = st.sampled_from(
    [*NUMBERS, "true", "false", "null", '"x\\ud800y"', '"\\u0041"', '"\\ud83d\\ude00\\n"']
) | st.text().map(json.dumps)
SPACE = st.sampled_from(["", "", "", " ", "\n", "\t\r\n "])


@st.composite
def documents(draw: st.DrawFn, depth: int = 3) -> str:
    """A text of JSON, as other writers may have written it: white space, equal keys, escaped keys."""
    kind = draw(st.sampled_from(["scalar", "object", "object", "array"])) if depth else "scalar"
    if kind == "scalar":
        return draw(SPACE) + draw(SCALARS) + draw(SPACE)
    inside = [draw(documents(depth - 1)) for _ in range(draw(st.integers(0, 3)))]
    if kind == "array":
        return f"{draw(SPACE)}[{','.join(inside) or draw(SPACE)}]{draw(SPACE)}"
    escaped = draw(st.booleans())
    keys = [draw(SPACE) + json.dumps(draw(NAMES), ensure_ascii=escaped) + draw(SPACE) for _ in inside]
    if draw(st.integers(0, 5)) == 0:
        keys = [key.replace("a", "\\u0061") for key in keys]
    members = ",".join(f"{key}:{value}" for key, value in zip(keys, inside, strict=True))
    return f"{draw(SPACE)}{{{members or draw(SPACE)}}}{draw(SPACE)}"


@st.composite
def texts(draw: st.DrawFn) -> str | None:
    """A text that may be JSON."""
    text = draw(documents())
    match draw(st.integers(0, 9)):
        case 0:
            return None
        case 1:
            return draw(st.text(max_size=5))
        case 2 if text:
            at = draw(st.integers(0, len(text) - 1))
            return text[:at] + draw(st.sampled_from(["", "{", "]", ",", '"', "\\", "\0", "x", "NaN"])) + text[at + 1 :]
        case 3:
            return text + draw(st.sampled_from([",", "}", " 1", "\n", "\ufeff"]))
    return text


PATHS = st.lists(
    st.sampled_from([".a", ".a", ".a", ".b", ".ab", "['ä']", "['a b']", "['']", '["a"]', "[0]", "[1]", "[2]"]),
    max_size=3,
).map(lambda steps: "$" + "".join(steps))


def check(given: list[str | None], path: str, type: Type) -> None:
    found = json_values(Column.from_values(given, Type.STRING), path, type)
    assert found.type is type
    expected = [None if text is None else oracle.json_value(text, path, type) for text in given]
    assert [repr(value) for value in found.to_values()] == [repr(value) for value in expected]


@given(st.lists(texts(), max_size=6), PATHS, st.sampled_from(KINDS), st.data())
@examples(1500, quick=300)
def test_what_python_finds(given: list[str | None], path: str, type: Type, data: st.DataObject) -> None:
    check(given, path, type)
    begin = data.draw(st.integers(0, len(given)))
    part = json_values(Column.from_values(given, Type.STRING).slice(begin, len(given)), path, type)
    whole = json_values(Column.from_values(given, Type.STRING), path, type)
    assert repr(part.to_values()) == repr(whole.to_values()[begin:])


@pytest.mark.parametrize(
    "text", ['{"a":1,"a":2}', '{"a":1,"a":null}', '{"a":{"b":1},"a":{"b":2}}', '{"a":1,"\\u0061":2}']
)
def test_the_last_of_equal_keys_counts(text: str) -> None:
    for path in ("$.a", "$.a.b"):
        check([text], path, Type.BIGINT)


@pytest.mark.parametrize("type", KINDS)
def test_all_scalars(type: Type) -> None:
    scalars = [*NUMBERS, "true", "false", "null", '"true"', '"7"', '""', "{}", "[]", '"ä\\/"', '"\\udc00"']
    check([f'{{"x":[{scalar}]}}' for scalar in scalars], "$.x[0]", type)
    check(list(scalars), "$", type)


@pytest.mark.parametrize(
    "text",
    ["", " ", "{", '{"a"', '{"a":', '{"a":1', '{"a":1,}', "[1,]", "[1 2]", '{"a" 1}', "01", "+1", "1.", ".5", "nul",
     "truex", "NaN", "Infinity", "'a'", '"a', '"\\x"', '"\\u12"', '"\n"', '"\t"', "1 1", "{} {}", "\ufeff1", "-", "1e"],
)  # fmt: skip
def test_texts_that_are_no_json(text: str) -> None:
    """Also where the value is before the place that is wrong."""
    for whole in (text, f'{{"a":5,"b":{text}}}', f'{{"b":{text},"a":5}}', f'{{"a":5}}{text}'):
        check([whole], "$.a", Type.BIGINT)
    check([f'{{"a":5,"b":{text}'], "$.a", Type.BIGINT)


def test_nesting_of_any_depth() -> None:
    for depth in (61, 62, 63, 500, 20_000):
        text = '{"a":7,"b":' + "[" * depth + "]" * depth + "}"
        found = json_values(Column.from_values([text, text[:-1]], Type.STRING), "$.a", Type.STRING)
        assert found.to_values() == ["7", None]


def test_columns_of_more_bytes_than_one_pass_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BLOCK_BYTES", 20)
    check(['{"a":1}', None, '{"a":"xyz"}', "", '{"a":2}' + " " * 30], "$.a", Type.STRING)


def test_no_texts() -> None:
    none = Column(Type.STRING, np.zeros(0, np.uint8), None, np.zeros(1, np.int64))
    found: list[Any] = [json_values(none, "$.a", type).to_values() for type in KINDS]
    assert found == [[]] * 4
