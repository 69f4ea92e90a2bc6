"""JSON behind the frame of a registry, and the columns that a JSON Schema describes."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from schemas.codecs.json_codec import JsonDecoder
from schemas.codecs.json_schema import (
    FramedJsonDecoder,
    columns_of_json_schema,
    key_json_schema,
    value_json_schema,
)
from schemas.codecs.results import FramedKeys, FramedValues, JsonKeys, JsonValues, ResultRecords
from schemas.columns import Batch, Column
from schemas.errors import DataError
from schemas.language.program import parse_program
from schemas.members import flat_members
from schemas.query import Field, Stream, Type

FRAME = b"\0\0\0\1\2"


def test_records_behind_a_frame() -> None:
    stream = Stream("s", (Field("a", Type.BIGINT),), "s", "json-schema")
    values = [FRAME + b'{"a": 1}', b'{"a": 2}', None, b"", FRAME, FRAME + b'{"a": "x"}', FRAME + b'{"a": null}']
    found = FramedJsonDecoder(JsonDecoder(stream)).decode_values(values, np.arange(len(values)))
    assert found.batch.columns["a"].to_values() == [1, None]
    assert found.rows.tolist() == [0, 6]
    reasons = {letter.row: letter.reason for letter in found.dead}
    assert reasons[1] == "the record has no frame of a schema registry: a zero byte and a schema's number"
    assert reasons[2].startswith("the record is empty")
    assert reasons[3].startswith("the record has no frame")
    assert reasons[4].startswith("the record is empty")
    assert "'x'" in reasons[5]
    assert [letter.raw for letter in found.dead] == [values[row] or b"" for row in range(1, 6)]


ADDRESS = {"type": "object", "properties": {"city": {"type": "string"}, "post-code": {"type": ["null", "integer"]}}}


def columns(schema: Any) -> dict[str, tuple[Type, tuple[str | int, ...]]]:
    return {field.name: (field.type, field.path) for field in columns_of_json_schema(json.dumps(schema))}


def test_columns_of_a_schema() -> None:
    found = columns(
        {
            "definitions": {"Address": ADDRESS, "a/b": {"type": "number"}},
            "type": "object",
            "properties": {
                "id": {"type": "integer"},
                "price": {"$ref": "#/definitions/a~1b"},
                "at": {"oneOf": [{"type": "null"}, {"type": "string", "format": "date-time"}]},
                "gift": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
                "home": {"$ref": "#/definitions/Address"},
                "items": {"type": "array", "items": {"type": "string"}},
                "either": {"type": ["string", "integer"]},
                "both": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
                "nothing": {},
                "elsewhere": {"$ref": "other.json"},
                "missing": {"$ref": "#/definitions/Nobody"},
                "odd": 5,
            },
        }
    )
    assert found == {
        "id": (Type.BIGINT, ()),
        "price": (Type.DOUBLE, ()),
        "at": (Type.TIMESTAMP, ()),
        "gift": (Type.BOOLEAN, ()),
        "home_city": (Type.STRING, ("home", "city")),
        "home_post-code": (Type.BIGINT, ("home", "post-code")),
    }


def test_schemas_that_contain_themselves() -> None:
    """They end somewhere."""
    found = columns({"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}}})
    assert found == {"v": (Type.BIGINT, ())}
    assert columns({"$ref": "#"}) == {}
    assert columns({"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}) == {}
    leaf = {"properties": {str(n): {"type": "integer"} for n in range(101)}}
    many = {"definitions": {"leaf": leaf}, "properties": {str(n): {"$ref": "#/definitions/leaf"} for n in range(101)}}
    with pytest.raises(DataError, match="more than 10000 columns"):
        columns(many)


@pytest.mark.parametrize("text", ["5", "[]", '"string"', "null", '{"type": "integer"}'])
def test_what_describes_no_objects_has_no_columns(text: str) -> None:
    assert columns_of_json_schema(text) == []


def test_what_is_no_json() -> None:
    with pytest.raises(DataError, match="broken JSON Schema"):
        columns_of_json_schema("{")


def test_results_behind_a_frame() -> None:
    encoder = ResultRecords(FramedValues(258, JsonValues()), FramedKeys(3, JsonKeys(flat_members(["k"]))))
    columns = {"n": Column.from_values([1, None], Type.BIGINT)}
    batch = Batch(np.array([5, 6]), columns, (Column.from_values(["a", None], Type.STRING),))
    found = encoder.encode(batch)
    assert found.keys is not None
    values, keys = (
        [one.data[begin : end - 1] for begin, end in pairwise(one.offsets.tolist())] for one in (found, found.keys)
    )
    assert values == [FRAME + b'{"n":1,"_ts":5}', FRAME + b'{"n":null,"_ts":6}']
    assert keys == [b'\0\0\0\0\3{"k":"a"}', b'\0\0\0\0\3{"k":null}']


def test_the_schema_of_results() -> None:
    text = "CREATE STREAM t (k BIGINT, at TIMESTAMP); INSERT INTO 'x' SELECT t.k, t.at AS at FROM t [ROWS 1]"
    schema = value_json_schema(parse_program(text).queries[0], "com.X")
    assert json.loads(schema) == {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "com.X",
        "type": "object",
        "properties": {
            "t.k": {"oneOf": [{"type": "null"}, {"type": "integer"}]},
            "at": {"oneOf": [{"type": "null"}, {"type": "integer"}]},
            "_ts": {"type": "integer"},
            "_phase": {"type": "string"},
        },
        "required": ["t.k", "at", "_ts"],
    }
    own = {name: type for name, (type, _) in columns(json.loads(schema)).items()}
    assert own == {"t.k": Type.BIGINT, "at": Type.BIGINT, "_ts": Type.BIGINT, "_phase": Type.STRING}
    assert json.loads(key_json_schema(flat_members(["s"]), [Type.STRING], "k"))["required"] == ["s"]
