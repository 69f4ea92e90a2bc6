"""Versions of a table's rows from records of a topic: keys, tombstones, Debezium's envelopes, and what is wrong."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.avro.schema import parse_avro
from schemas.language.program import parse_program
from schemas.query import GONE, Stream
from services.formats.decoders import Decoders
from tests.profiles import examples
from tests.services.formats.test_records import Records

ENVELOPE = "format = 'debezium-json'"


def table_of(columns: str, options: str = "") -> Stream:
    return parse_program(
        f"CREATE TABLE t ({columns}) WITH (topic = 't'{options and ', ' + options}); "
        "CREATE STREAM s (ts TIMESTAMP); SELECT * FROM s [ROWS 1]"
    ).streams[0]


def versions_of(table: Stream, records: Records, decoders: Decoders | None = None) -> list[Any]:
    """Per record the version's ts, its columns and whether its row ends; why it is a dead letter; None for neither."""
    found = (decoders or Decoders()).records_of(table).decode(records)
    assert list(found.batch.columns) == [*(one.name for one in table.fields), GONE]
    assert found.records == len(records.values_)
    for rows in (found.rows.tolist(), [letter.row for letter in found.dead]):
        assert rows == sorted(set(rows)), "the records' own order"
    out: list[Any] = [None] * len(records.values_)
    for letter in found.dead:
        out[letter.row] = letter.reason
        assert letter.raw == (records.values_[letter.row] or b"")
    columns = [column.to_values() for column in found.batch.columns.values()]
    for n, row in enumerate(found.rows.tolist()):
        out[row] = (int(found.batch.ts[n]), *(column[n] for column in columns))
    return out


def test_the_primary_key_is_in_the_key() -> None:
    table = table_of("cur STRING PRIMARY KEY, rate DOUBLE, at TIMESTAMP", "timestamp = 'at'")
    values = [b'{"rate": 1.5, "at": 7}', None, b'{"cur": "SEK", "at": 9}', b'{"at": 9}', None, b"{"]
    records = Records(values, [b"USD", b"USD", b"GBP", None, None, b"USD"], times=[1, 8, 3, 4, 5, 6])
    found = versions_of(table, records)
    assert found[:5] == [
        (7, "USD", 1.5, 7, False),
        (8, "USD", None, None, True),
        (9, "GBP", None, 9, False),
        "the primary key (cur) is NULL",
        "the primary key (cur) is NULL",
    ]
    assert isinstance(found[5], str)


def test_a_key_of_several_columns() -> None:
    table = table_of("a BIGINT PRIMARY KEY, b STRING PRIMARY KEY, v BIGINT")
    assert (table.key_format, table.primary_key) == ("json", ("a", "b"))
    records = Records([b'{"v": 1}', None, b'{"v": 2}'], [b'{"a":1,"b":"x"}', b'{"a":1,"b":"x"}', b'{"a":2}'])
    assert versions_of(table, records) == [
        (0, 1, "x", 1, False),
        (1, 1, "x", None, True),
        "the primary key (a, b) is NULL",
    ]


def test_only_tombstones_and_no_records() -> None:
    table = table_of("cur STRING PRIMARY KEY, rate DOUBLE")
    assert versions_of(table, Records([None, None], [b"a", b"b"])) == [(0, "a", None, True), (1, "b", None, True)]
    assert versions_of(table, Records([])) == []


def change(op: str, key: int, ms: int, row: dict[str, Any] | None, before: Any = None) -> dict[str, Any]:
    """What Debezium writes about a change of a row."""
    return {"before": before, "after": row, "source": {"ts_ms": ms, "lsn": 7}, "op": op, "ts_ms": ms + 50}


def with_schema(payload: Any) -> bytes:
    """As Kafka Connect writes JSON with its schema beside it."""
    return orjson.dumps({"schema": {"type": "struct", "fields": [{"field": "payload"}]}, "payload": payload})


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("wrapped_key", [False, True])
def test_changes_of_a_databases_rows(wrapped: bool, wrapped_key: bool) -> None:
    """A row that is read in a snapshot, inserted, changed, deleted; the tombstone behind has no time of its own."""
    table = table_of("id BIGINT PRIMARY KEY, name STRING, city STRING FROM 'address.city'", ENVELOPE)
    changes = [
        change("r", 1, 100, {"id": 1, "name": "a"}),
        change("c", 2, 200, {"id": 2, "name": "b", "address": {"city": "x"}}),
        change("u", 1, 300, {"id": 1, "name": "c"}, {"id": 1, "name": "a"}),
        change("d", 2, 400, None, {"id": 2, "name": "b"}),
    ]
    value, key = (with_schema if one else orjson.dumps for one in (wrapped, wrapped_key))
    values: list[bytes | None] = [*map(value, changes), None, value(change("t", 0, 1, None)), value({"op": "m"})]
    keys = [key({"id": n}) for n in (1, 2, 1, 2, 2, 1, 1)]
    assert versions_of(table, Records(values, keys)) == [
        (100, 1, "a", None, False),
        (200, 2, "b", "x", False),
        (300, 1, "c", None, False),
        (400, 2, None, None, True),
        (0, 2, None, None, True),
        "'op' is no change of a row: c, u, r or d",
        "timestamp field '_source_time' is missing or null, every record needs its event time",
    ]


@pytest.mark.parametrize("dumps", [orjson.dumps, with_schema])
def test_a_column_of_the_key_may_be_called_as_the_schema_beside_it(dumps: Any) -> None:
    table = table_of("schema STRING PRIMARY KEY, name STRING PRIMARY KEY, size BIGINT", ENVELOPE)
    key = {"schema": "public", "name": "a"}
    found = versions_of(table, Records([dumps(change("c", 1, 7, {**key, "size": 3})), None], [dumps(key)] * 2))
    assert found == [(7, "public", "a", 3, False), (0, "public", "a", None, True)]


def test_a_tombstone_whose_change_has_been_compacted() -> None:
    """A reader that had the row before would keep it."""
    table = table_of("id BIGINT PRIMARY KEY, name STRING", ENVELOPE)
    values = [orjson.dumps(change("c", 1, 7, {"id": 1, "name": "a"})), None]
    assert versions_of(table, Records(list(values), [b'{"id":1}'] * 2)) == [(7, 1, "a", False), (0, 1, None, True)]
    assert versions_of(table, Records([None, None], [b'{"id":2}', None])) == [
        (0, 2, None, True),
        "the primary key (id) is NULL",
    ]


def test_a_large_value_that_a_change_leaves_out() -> None:
    """It is not known: the row would have Debezium's word for that as its value."""
    table = table_of("id BIGINT PRIMARY KEY, name STRING, note STRING", ENVELOPE)
    rows = [{"id": 1, "name": "a", "note": "long"}, {"id": 1, "name": "b", "note": "__debezium_unavailable_value"}]
    values = [orjson.dumps(change("u", 1, n, row)) for n, row in enumerate(rows)]
    first, second = versions_of(table, Records(list(values), [b'{"id":1}'] * 2))
    assert first == (0, 1, "a", "long", False)
    assert second.startswith("field 'note' is a large value that the change leaves out: ALTER TABLE")
    without = table_of("id BIGINT PRIMARY KEY, name STRING", ENVELOPE)
    assert versions_of(without, Records(list(values), [b'{"id":1}'] * 2))[1] == (1, 1, "b", False)


def test_records_with_and_without_their_schemas_in_one_partition() -> None:
    """The settings of the connector have changed."""
    table = table_of("id BIGINT PRIMARY KEY, name STRING", ENVELOPE)
    changes = [change("c", n, n, {"id": n, "name": str(n)}) for n in range(6)]
    values = [(orjson.dumps, with_schema)[n % 2](one) for n, one in enumerate(changes)]
    keys = [(orjson.dumps, with_schema)[n % 3 == 0]({"id": n}) for n in range(6)]
    assert versions_of(table, Records(list(values), list(keys))) == [(n, n, str(n), False) for n in range(6)]


def test_changes_in_avro(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {
        "type": "record",
        "name": "Row",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
    }
    written = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", "Row"], "default": None},
            {
                "name": "source",
                "type": {"type": "record", "name": "Source", "fields": [{"name": "ts_ms", "type": "long"}]},
            },
            {"name": "op", "type": "string"},
        ],
    }
    key = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
    table = table_of("id BIGINT PRIMARY KEY, name STRING", "format = 'debezium-avro', registry = 'http://r:1'")
    assert table.key_format == "avro"
    decoders = Decoders()
    schemas = {1: parse_avro(orjson.dumps(written)), 2: parse_avro(orjson.dumps(key))}
    monkeypatch.setattr(Decoders, "_schemas_of", lambda self, stream, part: schemas.__getitem__)

    def frame(number: int, schema: Any, value: Any) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
        return b"\0" + number.to_bytes(4, "big") + out.getvalue()

    changes = [change("c", 1, 10, {"id": 1, "name": "a"}), change("d", 1, 20, None, {"id": 1, "name": "a"})]
    values = [frame(1, written, one) for one in changes]
    records = Records([*values, None], [frame(2, key, {"id": 1})] * 3)
    assert versions_of(table, records, decoders) == [(10, 1, "a", False), (20, 1, None, True), (0, 1, None, True)]


@examples(100)
@given(st.lists(st.tuples(st.sampled_from(["value", "gone", "broken", "keyless"]), st.integers(0, 9)), max_size=12))
def test_records_stay_in_order(kinds: list[tuple[str, int]]) -> None:
    table = table_of("k BIGINT PRIMARY KEY, v BIGINT")
    values = [{"value": b'{"v": %d}' % n, "gone": None, "broken": b"{"}.get(kind, b"{}") for kind, n in kinds]
    keys = [None if kind == "keyless" else b"%d" % n for kind, n in kinds]
    found = versions_of(table, Records(list(values), list(keys)))
    for row, ((kind, n), version) in enumerate(zip(kinds, found, strict=True)):
        if kind in ("value", "gone"):
            assert version == (row, n, n if kind == "value" else None, kind == "gone")
        else:
            assert isinstance(version, str)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ("format = 'debezium-json', timestamp = 'at'", "option 'timestamp' is known"),
        ("format = 'debezium-json', disorder = '1 SECOND'", "option 'disorder' has no use"),
        ("format = 'debezium-avro', schema = 'x.avsc'", "option 'schema' is in the registry"),
        ("format = 'debezium-xml'", "option 'format' is one of json, json-schema"),
    ],
)
def test_options_that_changes_of_a_database_do_not_take(options: str, wrong: str) -> None:
    with pytest.raises(Exception, match=wrong):
        table_of("id BIGINT PRIMARY KEY, at TIMESTAMP", options)
