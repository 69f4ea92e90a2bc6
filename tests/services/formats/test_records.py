"""Columns of a record's value, key and headers, and of what Kafka knows of it, are put together by record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.avro.schema import parse_avro
from schemas.codecs.decoded import Decoded
from schemas.columns import I64
from schemas.language.program import parse_program
from schemas.query import Stream
from services.formats.decoders import Decoders
from services.formats.records import as_record
from services.kafka.records import last_header
from tests.profiles import examples

DEAD = "dead letter"


@dataclass
class Records:
    """Records of a partition."""

    values_: list[bytes | None]
    keys_: list[bytes | None] = field(default_factory=list)
    headers_: list[list[tuple[str, bytes | None]]] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    partition: int = 3
    first: int = 100

    def values(self) -> list[bytes | None]:
        return self.values_

    def keys(self) -> list[bytes | None]:
        return self.keys_ or [None] * len(self.values_)

    def headers(self, name: str) -> list[bytes | None]:
        return [last_header(one, name) for one in self.headers_ or [[] for _ in self.values_]]

    def offsets(self) -> I64:
        return np.arange(self.first, self.first + len(self.values_), dtype=np.int64)

    def timestamps(self) -> I64:
        return np.array(self.times or range(len(self.values_)), np.int64)


def stream_of(columns: str, options: str = "") -> Stream:
    written = f" WITH ({options})" if options else ""
    return parse_program(f"CREATE STREAM s ({columns}){written}; SELECT * FROM s [ROWS 1]").streams[0]


def rows_of(stream: Stream, records: Records) -> list[Any]:
    """Per record its values, or the reason why it is a dead letter."""
    found: Decoded = Decoders().records_of(stream).decode(records)
    assert list(found.batch.columns) == [one.name for one in stream.fields]
    assert found.records == len(records.values_)
    out: list[Any] = [None] * len(records.values_)
    for letter in found.dead:
        out[letter.row] = letter.reason
        assert letter.raw == (records.values_[letter.row] or b"")
    columns = [column.to_values() for column in found.batch.columns.values()]
    for n, row in enumerate(found.rows.tolist()):
        out[row] = [column[n] for column in columns]
    assert [letter.row for letter in found.dead] == sorted(letter.row for letter in found.dead)
    return out


def test_every_part_of_a_record() -> None:
    stream = stream_of(
        "v BIGINT, whole STRING FROM '_key', trace STRING FROM '_headers[\"trace-id\"]', p BIGINT FROM '_partition', "
        "_offset BIGINT, at TIMESTAMP FROM '_timestamp'"
    )
    assert stream.timestamp == "at"
    records = Records(
        [b'{"v": 1}', b'{"v": 2}', b'{"v": 3, "_offset": 7}'],
        ["kä".encode(), None, b""],
        [[("trace-id", b"a"), ("x", b"y"), ("trace-id", b"b")], [("Trace-Id", b"a")], [("trace-id", None)]],
        [5, 6, 7],
    )
    assert rows_of(stream, records) == [
        [1, "kä", "b", 3, 100, 5],
        [2, None, None, 3, 101, 6],
        [3, "", None, 3, 102, 7],
    ]


def test_a_record_that_is_bad_in_any_part() -> None:
    stream = stream_of("v BIGINT, h STRING FROM '_headers[\"h\"]', k BIGINT KEY")
    records = Records(
        [b'{"v": 1}', b"{", b'{"v": 3}', b'{"v": 4}', b'{"v": 5}', None],
        [b"1", b"x", b"x", None, b"5", b"6"],
        [[], [("h", b"\xff")], [], [], [("h", b"\xff")], []],
    )
    first, second, third, fourth, fifth, sixth = rows_of(stream, records)
    assert (first, fourth) == ([1, None, 1], [4, None, None])
    assert second.startswith("broken JSON")
    assert third.startswith("key: ")
    assert fifth.startswith("header 'h': the record b'\\xff' is not UTF-8")
    assert sixth.startswith("the record is empty")


@pytest.mark.parametrize(
    ("columns", "format", "keys"),
    [
        ("k STRING KEY", "", {b"a b": "a b", b'"a"': '"a"', b"": "", None: None, b"\xff": DEAD}),
        ("k BIGINT KEY", "", {b"42": 42, b"-7": -7, None: None, b"4.5": DEAD, b"a": DEAD, b"1,2": DEAD, b"": DEAD}),
        ("k BIGINT KEY", "", {b"42": 42, b"43": 43}),
        ("k BIGINT KEY", "json", {b"42": 42, b' {"k": 4}': 4, b"4.0": DEAD, b"[4]": DEAD, b"4}": DEAD, b"null": None}),
        ("k STRING KEY", "json", {b'"a"': "a", b"a": DEAD, b"": DEAD, b'{"k": "b"}': "b", b"{}": None, None: None}),
        ("k STRING KEY FROM 'a.b'", "", {b'{"a": {"b": "x"}}': "x", b'"x"': DEAD, b"{}": None}),
        ("k BIGINT KEY", "csv", {b"42": 42, b"x": DEAD}),
        ("k BIGINT KEY", "json-schema", {b"\0\0\0\0\1" + b"42": 42, b'\0\0\0\0\1{"k": 4}': 4, b"42": DEAD, None: None}),
    ],
)
def test_a_column_in_the_key(columns: str, format: str, keys: dict[bytes | None, Any]) -> None:
    stream = stream_of(f"v BIGINT, {columns}", f"key_format = '{format}'" if format else "")
    found = rows_of(stream, Records([b'{"v": 1}'] * len(keys), list(keys)))
    for row, (key, expected) in zip(found, keys.items(), strict=True):
        if expected is DEAD:
            assert isinstance(row, str), key
            assert row.startswith("key: "), key
        else:
            assert row == [1, expected], key


def test_several_columns_in_the_key() -> None:
    stream = stream_of("a BIGINT KEY, v BIGINT, b STRING KEY")
    assert stream.key_format == "json"
    keys: list[bytes | None] = [b'{"a": 1, "b": "x", "v": 9}', b'{"b": null}', None, b"7"]
    found = rows_of(stream, Records([b'{"v": 5, "a": 8}'] * 4, keys))
    assert found[:3] == [[1, 5, "x"], [None, 5, None], [None, 5, None]]
    assert found[3].startswith("key: ")


def test_nothing_of_the_value() -> None:
    """Values count for nothing then, not even as JSON; tombstones are records like others."""
    stream = stream_of("k STRING KEY, n BIGINT FROM '_offset'")
    assert stream.timestamp is None
    records = Records([b"garbage", None, b"", b"x"], [b"a", b"b", None, b"\xff"], times=[1, 2, -1, 4])
    first, second, third, fourth = rows_of(stream, records)
    assert (first, second) == (["a", 100], ["b", 101])
    assert third.startswith("record timestamp is missing")
    assert fourth.startswith("key: ")


def test_a_record_without_a_time_of_its_own() -> None:
    stream = stream_of("at TIMESTAMP, own TIMESTAMP FROM '_timestamp'", "timestamp = 'at'")
    assert rows_of(stream, Records([b'{"at": 5}', b'{"at": 6}'], times=[-1, 9])) == [[5, None], [6, 9]]


def test_no_records() -> None:
    stream = stream_of("v BIGINT, k BIGINT KEY, h STRING FROM '_headers[\"h\"]', p BIGINT FROM '_partition'")
    assert rows_of(stream, Records([])) == []


VALUES = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.tuples(VALUES, st.none() | VALUES, st.none() | st.text(), st.booleans()), max_size=8))
@examples(100)
def test_any_records(rows: list[tuple[int, int | None, str | None, bool]]) -> None:
    stream = stream_of("v BIGINT, k BIGINT KEY, h STRING FROM '_headers[\"h\"]', o BIGINT FROM '_offset'")
    records = Records(
        [b"{" if bad else orjson.dumps({"v": v}) for v, _, _, bad in rows],
        [None if k is None else b"%d" % k for _, k, _, _ in rows],
        [[] if h is None else [("h", h.encode("utf-8", "surrogatepass"))] for _, _, h, _ in rows],
    )
    for n, (found, (v, k, h, bad)) in enumerate(zip(rows_of(stream, records), rows, strict=True)):
        surrogate = h is not None and any("\ud800" <= c <= "\udfff" for c in h)
        assert isinstance(found, str) if bad or surrogate else found == [v, k, h, 100 + n]


def test_a_primitive_schema_is_that_of_a_record_with_one_field() -> None:
    made = as_record(parse_avro('"string"'), "k")
    assert [(one.name, one.type.kind) for one in made.fields] == [("k", "string")]
    record = parse_avro('{"type": "record", "name": "R", "fields": []}')
    assert as_record(record, "k") is record
