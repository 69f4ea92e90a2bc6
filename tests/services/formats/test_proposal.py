"""What `weir inspect` proposes means what was in the sample."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from typing import Any

import fastavro
import numpy as np
import pytest

from schemas.avro.schema import parse_avro
from schemas.errors import UsageError
from schemas.language.program import parse_program
from schemas.query import Field, Stream, Type
from services.formats.decoders import Decoders
from services.formats.proposal import propose
from services.formats.registry_access import RegistryAccess
from services.formats.sampling import Sample

BASE = 1_772_359_200_000


def sample(*parts: Sequence[bytes | None], topic: str = "shop.orders") -> Sample:
    values = dict(enumerate(parts))
    times = {number: np.arange(BASE, BASE + len(part), dtype=np.int64) for number, part in values.items()}
    return Sample(topic, values, times, 1_000_000)


def stream_of(text: str) -> Stream:
    """The stream that a proposal declares; it is pasted before a query."""
    (query,) = parse_program(f"{text}\nSELECT * FROM orders O [RANGE 1 HOUR];").queries
    stream = query.streams()[0]
    assert isinstance(stream, Stream)
    return stream


def lines(*records: Any) -> list[bytes | None]:
    return [json.dumps(record).encode() for record in records]


def test_columns_of_nested_json() -> None:
    records = [
        {
            "id": i,
            "customer": {"city": ["Oslo", "Bern"][i % 2], "since": "2024-05-06", "a.b": None if i % 4 else 1.5},
            "items": [{"sku": "a"}],
            "paid": i % 3 == 0,
            "odd": ["x", 7][i % 2],
            "none": None,
            "at": BASE + 1_000 * i - 700 * (i % 2),
            "seen": BASE + 1_000 * i - 3_000 * (i % 2),
        }
        for i in range(40)
    ]
    text = propose(sample(lines(*records[:20]), lines(*records[20:])), Decoders(), None)
    stream = stream_of(text)
    assert stream.fields == (
        Field("id", Type.BIGINT),
        Field("customer_city", Type.STRING, ("customer", "city")),
        Field("customer_since", Type.TIMESTAMP, ("customer", "since")),
        Field("customer_a.b", Type.DOUBLE, ("customer", "a.b")),
        Field("paid", Type.BOOLEAN),
        Field("at", Type.TIMESTAMP),
        Field("seen", Type.TIMESTAMP),
    )
    assert (stream.topic, stream.timestamp, stream.disorder_ms) == ("shop.orders", "at", 0)
    assert "-- items is an array: name an element of it, such as FROM 'items[0]'" in text
    assert "-- odd has values of several types: integer, text" in text
    assert "-- none is always null or empty" in text
    assert "2 distinct" in text
    assert "75% null" in text


def test_the_event_time_is_the_time_that_is_most_in_order() -> None:
    times = [(BASE + 1_000 * i, i % 2) for i in range(40)]
    records = [{"born": BASE, "seen": at - 3_000 * odd, "at": at - 1_700 * odd} for at, odd in times]
    text = propose(sample(lines(*records)), Decoders(), None)
    stream = stream_of(text)
    assert (stream.timestamp, stream.disorder_ms, stream.rate) == ("at", 1_000, pytest.approx(1.03))
    assert "at most 700 ms out of order" in text


def test_disorder_is_that_within_partitions() -> None:
    early, late = ([{"at": BASE + first + i} for i in range(9)] for first in (0, 500_000))
    assert stream_of(propose(sample(lines(*early), lines(*late)), Decoders(), None)).disorder_ms == 0


def test_records_without_a_time_have_their_own() -> None:
    stream = stream_of(propose(sample(lines({"id": 1}, {"id": 2}, {"id": 2}, {"id": 2})), Decoders(), None))
    assert stream.timestamp is None
    assert stream.distinct == ()
    assert stream.fields == (Field("id", Type.BIGINT),)


def test_few_distinct_values_help_to_choose_a_plan() -> None:
    records = [{"id": i, "room": f"r{i % 5}", "at": BASE + i} for i in range(100)]
    stream = stream_of(propose(sample(lines(*records)), Decoders(), None))
    assert dict(stream.distinct) == {"room": 5}


def test_names_that_distinct_cannot_have_are_left_out_there() -> None:
    records = [{" room": "a", "room ": "b", "a,b": "c", "a:b": "d", "a b": "e", "at": BASE + i} for i in range(10)]
    stream = stream_of(propose(sample(lines(*records)), Decoders(), None))
    assert [one.name for one in stream.fields] == [" room", "room ", "a,b", "a:b", "a b", "at"]
    assert dict(stream.distinct) == {"a b": 1}


def test_numbers_take_the_type_that_holds_all_of_them() -> None:
    records = [{"a": 1, "b": 2**70, "c": BASE, "d": 5}, {"a": 1.5, "b": 3, "c": BASE + 1, "d": BASE}]
    stream = stream_of(propose(sample(lines(*records)), Decoders(), None))
    assert [(one.name, one.type) for one in stream.fields] == [
        ("a", Type.DOUBLE),
        ("b", Type.DOUBLE),
        ("c", Type.TIMESTAMP),
        ("d", Type.BIGINT),
    ]


@pytest.mark.parametrize(("time", "type"), [(BASE, Type.BIGINT), ("2026-03-01", Type.STRING)])
def test_a_time_that_is_missing_at_times_is_not_the_event_time(time: Any, type: Type) -> None:
    stream = stream_of(propose(sample(lines({"id": 1, "gone": None}, {"id": 2, "gone": time})), Decoders(), None))
    assert stream.timestamp is None
    assert stream.fields[1] == Field("gone", type)


def test_names_that_the_language_refuses_are_others() -> None:
    record = {"_ts": BASE, "a_b": 1, "a": {"b": 2, "": 3}, "x\n; DROP": 4, "#n": 5, "#_ts": 6}
    text = propose(sample(lines(record, {**record, "_ts": BASE + 1})), Decoders(), None)
    assert stream_of(text).fields == (
        Field("ts", Type.TIMESTAMP, ("_ts",)),
        Field("a_b", Type.BIGINT),
        Field("a_b_2", Type.BIGINT, ("a", "b")),
        Field("n", Type.BIGINT, ("#n",)),
        Field("ts_2", Type.BIGINT, ("#_ts",)),
    )
    assert "DROP" not in text


def test_records_without_a_column_and_records_of_many_levels() -> None:
    with pytest.raises(UsageError, match=r"nothing that is a column: items is an array"):
        propose(sample(lines({"items": [1]})), Decoders(), None)
    deep = b'{"id":1,"a":' + b'{"a":' * 900 + b"1" + b"}" * 901
    assert stream_of(propose(sample([deep, b'{"id":2}']), Decoders(), None)).fields == (Field("id", Type.BIGINT),)


def test_what_cannot_be_decoded_is_said() -> None:
    text = propose(sample([*lines({"id": 1}, {"id": 2}), b"{", None]), Decoders(), None)
    assert "-- 2 of them cannot be decoded: broken JSON" in text


def test_text_is_one_string() -> None:
    stream = stream_of(propose(sample([b"GET /", b"GET /x", b"1"]), Decoders(), None))
    assert (stream.format, stream.fields) == ("string", (Field("value", Type.STRING),))


def test_names_that_need_quotes() -> None:
    text = propose(sample(lines({"select": 1, "a b": {'c"d': "x"}}), topic="orders"), Decoders(), None)
    assert stream_of(text).fields == (
        Field("select", Type.BIGINT),
        Field('a b_c"d', Type.STRING, ("a b", 'c"d')),
    )


def test_no_records() -> None:
    with pytest.raises(UsageError, match=r"topic 'shop\.orders' has no records"):
        propose(sample([None]), Decoders(), None)


def test_avro_has_the_columns_of_its_schema() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        ],
    }
    values: list[bytes | None] = []
    for i in range(10):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {"id": i, "at": BASE + i})
        values.append(b"\0" + struct.pack(">I", 7) + out.getvalue())
    with pytest.raises(UsageError, match="look as if they named schemas of a registry: add --registry"):
        propose(sample(values), Decoders(), None)

    class Known:
        """A registry with one schema; a real one is in `tests/services/worker/test_inspect.py`."""

        url = "http://r"

        def schema(self, number: int) -> Any:
            assert number == 7
            return parse_avro(json.dumps(schema))

    registry: Any = Known()
    decoders = Decoders(access=RegistryAccess("http://r"))
    decoders._registries["http://r", "AVRO"] = registry
    stream = stream_of(propose(sample(values), decoders, {"avro": registry}))
    assert (stream.format, stream.timestamp) == ("avro", "at")
    assert stream.fields == (Field("id", Type.BIGINT), Field("at", Type.TIMESTAMP))
