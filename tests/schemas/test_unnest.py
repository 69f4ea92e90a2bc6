"""UNNEST: a tuple for each element of an array in a record, and which arrays make a record a dead letter."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codecs.json_schema import FramedJsonDecoder
from schemas.errors import QueryError
from schemas.language.program import parse_program
from schemas.nested import elements
from schemas.nested.json_arrays import json_decoder
from schemas.query import ColumnRef, Query, Stream, Type
from services.formats.decoders import Decoders
from tests import oracle
from tests.profiles import examples

DECLARED = """
CREATE STREAM orders (id BIGINT, items ARRAY<ROW(sku STRING, qty BIGINT)>, tags array<double>, at TIMESTAMP)
  WITH (timestamp = 'at');
CREATE STREAM moves (sku STRING, at TIMESTAMP) WITH (timestamp = 'at');
"""
NESTED = DECLARED.replace("qty BIGINT", "qty BIGINT, town STRING FROM 'from.city', second BIGINT FROM 'more[1].n'")


def bound(query: str, declared: str = DECLARED) -> Query:
    return parse_program(declared + query).queries[-1]


def stream_of(*arrays: str, declared: str = DECLARED) -> Stream:
    unnested = " ".join(f"CROSS JOIN UNNEST(O.{array}) AS {array}" for array in arrays)
    (found,) = bound(f"SELECT O.id FROM orders O [ROWS 1] {unnested}", declared).streams()
    return found


ROWS, TAGS = stream_of("items"), stream_of("tags")
DEEP, BOTH = stream_of("items", declared=NESTED), stream_of("tags", "items", declared=NESTED)
TEXTS = st.none() | st.text(max_size=3) | st.sampled_from(['"', "]", '\\"],{', "ä"])
ELEMENTS = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "sku": TEXTS,
        "qty": st.none() | st.integers(-5, 5),
        "more": st.sampled_from([[1, {"sku": "]"}], [1, {"n": 5}], [{"n": 7}], {"n": 6}]),
        "from": st.none() | st.fixed_dictionaries({}, optional={"city": TEXTS, "sku": st.just("no")}),
    },
)
RECORDS = st.fixed_dictionaries(
    {"id": st.none() | st.integers(0, 9), "at": st.integers(0, 99)},
    optional={
        "items": st.none() | st.lists(ELEMENTS, max_size=3),
        "tags": st.none() | st.lists(st.none() | st.floats(-9, 9), max_size=3),
        "other": st.just('"items":[1]'),
    },
)


@given(
    st.lists(RECORDS, max_size=5), st.sampled_from([ROWS, DEEP, TAGS, BOTH]), st.booleans(), st.sampled_from([None, 1])
)
@examples(300)
def test_tuples_of_elements(records: list[dict[str, Any]], stream: Stream, ascii: bool, indent: int | None) -> None:
    expected = oracle.elements(stream, records)
    numbers = [n for n, record in enumerate(records) for _ in oracle.elements(stream, [record])]
    values = [json.dumps(record, ensure_ascii=ascii, indent=indent).encode() for record in records]
    lines = b"\n".join(value.replace(b"\n", b" ") for value in values)
    for found in (json_decoder(stream).decode_values(values), json_decoder(stream).decode_lines(lines)):
        assert not found.dead
        assert found.rows.tolist() == numbers
        assert found.batch.ts.tolist() == [row["at"] for row in expected]
        assert list(found.batch.columns) == [field.name for field in stream.fields]
        for name, column in found.batch.columns.items():
            assert column.to_values() == [row.get(name) for row in expected]


@pytest.mark.parametrize(
    ("record", "stream", "reason"),
    [
        ('{"items":5,"at":1}', ROWS, "field 'items' is 5, which is no array"),
        ('{"items":"[]","at":1}', ROWS, "field 'items' is \"[]\", which is no array"),
        ('{"items":{"sku":"a"},"at":1}', ROWS, 'field \'items\' is {"sku":"a"}, which is no array'),
        ('{"items":[{},{"qty":"x"}],"at":1}', ROWS, "element 2 of 'items': field 'items.qty' is 'x', BIGINT accepts"),
        ('{"items":[{},7],"at":1}', ROWS, "element 2 of 'items': 7 is not an object"),
        ('{"items":[{"qty":"x"},7],"at":1}', ROWS, "element 1 of 'items': field 'items.qty' is 'x'"),
        ('{"items":[null,[]],"at":1}', ROWS, "element 2 of 'items': [] is not an object"),
        ('{"tags":[1,true],"at":1}', TAGS, "element 2 of 'tags': field 'tags.value' is true, DOUBLE accepts"),
        ('{"tags":[1,{}],"at":1}', TAGS, "element 2 of 'tags': field 'tags.value' is {}, DOUBLE accepts"),
        ('{"tags":[1,],"at":1}', TAGS, "broken JSON"),
        ('{"tags":[1]}', TAGS, "at"),
        ('{"tags":[],"id":"x","at":1}', TAGS, "field 'id' is 'x'"),
    ],
)
def test_dead_letters(record: str, stream: Stream, reason: str) -> None:
    """One element that is wrong makes the whole record a dead letter, and none of the records around it."""
    good = b'{"id":3,"items":[{"qty":1},{"qty":2}],"tags":[1,2],"at":7}'
    values = [good, record.encode(), good]
    decoder = json_decoder(stream)
    for found in (decoder.decode_values(values), decoder.decode_lines(b"\r\n".join(values))):
        assert found.rows.tolist() == [0, 0, 2, 2]
        assert found.batch.columns["id"].to_values() == [3] * 4
        value, expected = ("items.qty", [1, 2]) if stream is ROWS else ("tags.value", [1.0, 2.0])
        assert found.batch.columns[value].to_values() == expected * 2
        (letter,) = found.dead
        assert (letter.row, letter.raw) == (1, record.encode())
        assert reason in letter.reason


def test_dead_letters_are_in_the_order_of_records() -> None:
    values = [b'{"items":[7],"at":1}', b"{", b'{"items":5,"at":1}', b'{"items":[{"qty":""},{}],"at":1}']
    assert [letter.row for letter in json_decoder(ROWS).decode_values(values).dead] == [0, 1, 2, 3]


def test_a_record_makes_so_many_tuples_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two arrays of 100,000 elements are a small record, and were 10^10 tuples in memory, after each restart again."""
    monkeypatch.setattr(elements, "MOST_TUPLES", 6)
    values = [json.dumps({"id": n, "items": [{}] * n, "tags": [0.5] * 3, "at": 1}).encode() for n in (2, 3, 1)]
    found = json_decoder(BOTH).decode_values(values)
    assert found.rows.tolist() == [0] * 6 + [2] * 3
    (letter,) = found.dead
    assert (letter.row, letter.reason) == (1, "its arrays make 9 tuples, and a record makes at most 6")


def test_rare_records() -> None:
    """Those that the compiled pass leaves to the rules: an escaped key, half of a pair, many levels, equal keys."""
    deep = "[" * 70 + "]" * 70
    values = [
        b'{"\\u0069tems":[{"sku":"a"}],"at":1}',
        b'{"items":[{"sku":"b","x":"\\ud800"}],"at":2}',
        f'{{"items":[{{"x":{deep},"sku":"c"}}],"at":3}}'.encode(),
        b'{"items":[{"sku":"no"}],"at":4,"items":[{"sku":"d"},{"sku":"no","sku":"e"}]}',
    ]
    found = json_decoder(ROWS).decode_values(values)
    assert not found.dead
    assert found.batch.columns["items.sku"].to_values() == ["a", "b", "c", "d", "e"]
    assert found.batch.columns["items._ordinal"].to_values() == [1, 1, 1, 1, 2]


def test_nothing() -> None:
    for found in (json_decoder(ROWS).decode_values([]), json_decoder(ROWS).decode_lines(b"")):
        assert len(found.batch) == 0
        assert list(found.batch.columns) == [field.name for field in ROWS.fields]
    (letter,) = json_decoder(ROWS).decode_values([None]).dead
    assert letter.row == 0


def test_an_array_inside_of_records_behind_a_frame() -> None:
    declared = """CREATE STREAM orders (items ARRAY<ROW(sku STRING)> FROM 'order.items')
                  WITH (format = 'json-schema', registry = 'http://r');"""
    (stream,) = bound("SELECT sku AS it FROM orders O [ROWS 1] CROSS JOIN UNNEST(O.items) E", declared).streams()
    decoder = Decoders().of(stream)
    assert isinstance(decoder, FramedJsonDecoder)
    bodies = [b'{"order":{"items":[{"sku":"a"},{}]}}', b'{"order":5}', b'{"order":{"items":7}}']
    found = decoder.decode_values([b"\0\0\0\0\1" + body for body in bodies], np.array([5, 6, 7]))
    assert found.batch.ts.tolist() == [5, 5]
    assert found.batch.columns["items.sku"].to_values() == ["a", None]
    assert [letter.row for letter in found.dead] == [2]


def test_names() -> None:
    query = bound(
        "SELECT *, O.id AS one, E.amount AS two, name AS three, E._ordinal AS four FROM orders O [ROWS 1] "
        "CROSS JOIN UNNEST(O.items) AS E (name, amount BIGINT), moves M [ROWS 1] WHERE E.name = M.sku"
    )
    assert [(output.name, output.expr) for output in query.outputs] == [
        ("O.id", ColumnRef("O", "id", Type.BIGINT)),
        ("O.at", ColumnRef("O", "at", Type.TIMESTAMP)),
        ("E.name", ColumnRef("O", "items.sku", Type.STRING)),
        ("E.amount", ColumnRef("O", "items.qty", Type.BIGINT)),
        ("M.sku", ColumnRef("M", "sku", Type.STRING)),
        ("M.at", ColumnRef("M", "at", Type.TIMESTAMP)),
        ("one", ColumnRef("O", "id", Type.BIGINT)),
        ("two", ColumnRef("O", "items.qty", Type.BIGINT)),
        ("three", ColumnRef("O", "items.sku", Type.STRING)),
        ("four", ColumnRef("O", "items._ordinal", Type.BIGINT)),
    ]
    assert [
        output.name for output in bound("SELECT E.* FROM orders O [ROWS 1] CROSS JOIN UNNEST(O.tags) E").outputs
    ] == ["E.value"]


FROM = "SELECT O.id FROM orders O [ROWS 1] CROSS JOIN UNNEST"


@pytest.mark.parametrize(
    ("query", "shown", "message"),
    [
        (
            "SELECT O.items FROM orders O [ROWS 1]",
            "items",
            "O.items is an array, and no value; CROSS JOIN UNNEST(O.items)",
        ),
        (f"{FROM}(O.itms) E", "itms", "stream 'orders' has no array 'itms'; did you mean items?"),
        (f"{FROM}(O.id) E", "id", "stream 'orders' has no array 'id'"),
        (f"{FROM}(P.items) E", "P", "unknown alias 'P'"),
        (f"{FROM}(O.items) O", "O", "alias 'O' stands for two streams"),
        (f"{FROM}(O.items) E (a)", "(a)", "takes 2 different names here, got a"),
        (f"{FROM}(O.items) E (a, a)", "(a, a)", "takes 2 different names here, got a, a"),
        (f"{FROM}(O.items) E (a, _ordinal)", "(a, _ordinal)", "takes 2 different names"),
        (f"{FROM}(O.items) E (a BIGINT, b)", "BIGINT", "'sku' of 'items' is declared STRING, not BIGINT"),
        (f"{FROM}(O.tags) E CROSS JOIN UNNEST(O.tags) F", "tags", "tags2 ARRAY<...> FROM 'tags'"),
        (f"{FROM}(O.items) E CROSS JOIN UNNEST(O.tags) E", "E", "alias 'E' stands for two streams"),
        (
            f"{FROM}(O.items) E CROSS JOIN UNNEST(O.tags) F WHERE _ordinal = 1",
            "_ordinal",
            "column '_ordinal' is ambiguous; write E._ordinal or F._ordinal",
        ),
        (f"{FROM}(O.items) E WHERE E.nix = 1", "nix", "E has no column 'nix'; it has sku, qty"),
        (f"{FROM}(O.items) E, orders P [ROWS 1]", "CROSS JOIN UNNEST(O.items) E", "is read by O and P"),
        (
            f"INSERT INTO a {FROM}(O.items) E; INSERT INTO b {FROM}(O.tags) E",
            "orders O",
            "in another query of this file",
        ),
        (
            f"{FROM}(O.items) E, moves M [ROWS 1] WHERE E.sku = M.sku PARTITION BY E.sku, M.sku",
            "E.sku",
            "takes columns of records",
        ),
    ],
)
def test_what_is_refused(query: str, shown: str, message: str) -> None:
    with pytest.raises(QueryError) as found:
        bound(query)
    assert message in str(found.value)
    line, caret = str(found.value).splitlines()[1:3]
    assert line[caret.index("^") : caret.rindex("^") + 1].startswith(shown)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("x ARRAY<INT>", "unknown type 'INT'"),
        ("x ARRAY<ROW(a BIGINT, a STRING)>", "'a' is there twice in an element of 'x'"),
        ("x ARRAY<ROW(_ordinal BIGINT)>", "'_ordinal' is there twice"),
        ("x ARRAY STRING", "got 'STRING'"),
        ("id ARRAY<STRING>", "column 'id' is declared twice"),
        ('"x.a" STRING, x ARRAY<ROW(a STRING)>', "column 'x.a' would be called as an element's of array 'x'"),
        ('x ARRAY<ROW("b.c" STRING)>, "x.b" ARRAY<ROW(c STRING)>', "column 'x.b.c' would be called as an element's"),
        ("x ARRAY<STRING> FROM '_key'", "'_key' of a record is no array"),
    ],
)
def test_declarations_that_are_refused(column: str, message: str) -> None:
    with pytest.raises(QueryError) as found:
        parse_program(f"CREATE STREAM s (id BIGINT, {column});")
    assert message in str(found.value)


def test_formats_whose_arrays_are_not_read() -> None:
    with pytest.raises(QueryError, match="arrays are read of avro, json, json-schema, protobuf, not of 'csv'"):
        parse_program("CREATE STREAM s (id BIGINT, x ARRAY<STRING>) WITH (format = 'csv');")


def test_tables_have_no_arrays() -> None:
    with pytest.raises(QueryError):
        parse_program("CREATE TABLE s (id BIGINT, x ARRAY<STRING>) WITH (path = 'x.jsonl');")


@pytest.mark.parametrize("name", ["array", "row", "unnest", "cross", "returning"])
def test_words_of_it_are_names(name: str) -> None:
    declared = f"CREATE STREAM {name} ({name} BIGINT, x ARRAY<ROW({name} STRING)>);"
    query = bound(
        f"SELECT {name}.{name} AS {name} FROM {name} {name}2 [ROWS 1]".replace(f"{name}.", f"{name}2."), declared
    )
    assert query.outputs[0].name == name
